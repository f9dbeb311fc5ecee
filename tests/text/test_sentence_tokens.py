"""Tokens of sentences: where each begins and is scored, whatever pieces the tokens come in; units."""

import tracemalloc

import numpy as np
import pytest
from helpers.tokenizers_for_tests import build
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.text.sentences import UNITS, SentenceTokens, read_sentences, read_spans, sentence_of_tokens, split_sentences
from runnel.text.tokenizer import Encoded

TEXTS = st.lists(
    st.sampled_from(
        ["the dog", " ", ". ", ".", "\n", "\n\n", ", ", "; ", "The fox jumps", "\t", "\x00", "\u200b", "é", "今天。", "# A\n"]
    ),
    max_size=30,
).map("".join)
NAMES = ["neox_like", "sentencepiece_like", "bert_like"]


def pieces(encoded: Encoded, cuts: list[int]) -> list[Encoded]:
    edges = sorted({0, len(encoded), *(cut % (len(encoded) + 1) for cut in cuts)})
    return [encoded.slice(a, b) for a, b in zip([0, *edges], [*edges, len(encoded)], strict=True)]


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES), cuts=st.lists(st.integers(0, 100), max_size=8), unit=st.sampled_from(UNITS))
def test_pieces_change_nothing(text, name, cuts, unit):
    encoded = build(name).encode(text)
    whole = read_sentences(text, [encoded], unit=unit)
    part = read_sentences(text, pieces(encoded, cuts), unit=unit)
    for field in SentenceTokens.__slots__:
        assert np.array_equal(getattr(whole, field), getattr(part, field))
    assert np.array_equal(whole.ids, encoded.ids)
    assert np.array_equal(whole.bounds, sentence_of_tokens(whole.spans, encoded))


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES))
def test_a_sentence_is_scored_at_its_last_visible_token(text, name):
    encoded = build(name).encode(text)
    tokens = read_sentences(text, [encoded])
    for first, stop, end in zip(tokens.bounds[:-1], tokens.bounds[1:], tokens.ends, strict=True):
        visible = [t for t in range(first, stop) if not text[encoded.starts[t]].isspace()]
        if visible:
            assert end == visible[-1]
        elif first < stop:
            assert end == stop - 1


@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_units_of_clauses_have_twenty_tokens(text):
    text *= 5
    encoded = build("bert_like").encode(text)
    tokens = read_sentences(text, [encoded], unit="clauses")
    counts = np.diff(tokens.bounds)
    assert counts.sum() == len(encoded)
    assert len(counts) < 2 or counts.min() >= 20


def test_clauses_join_neighbors():
    text = "the dog, the fox; the sea. " * 6 + "dog"
    encoded = build("bert_like").encode(text)
    tokens = read_sentences(text, [encoded], unit="clauses")
    assert [text[a:b].count("the") for a, b in tokens.spans.tolist()] == [7, 11]
    assert [text[encoded.starts[t] : encoded.ends[t]] for t in tokens.ends] == [",", "dog"]


def test_spans_and_units_are_checked():
    with pytest.raises(InputError, match="unit is 'word'; expected one of sentence, clauses, paragraph"):
        read_sentences("a", [], unit="word")
    tokens = read_spans("", [], np.zeros((0, 2), np.int64))
    assert tokens.bounds.tolist() == [0] and not len(tokens.ends)
    for unit in UNITS:
        assert read_sentences("", [], unit=unit).spans.shape == (0, 2)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_text_without_tokens(length):
    text = "\x00" * length
    tokens = read_spans(text, [Encoded.empty()], split_sentences(text))
    assert not tokens.bounds.any() and len(tokens.spans) == min(length, 1)


def test_memory_goes_with_ids_and_spans_only():
    """Each token costs its id, each sentence its span, bounds and position; nothing is kept of a piece's offsets."""
    tokenizer = build("bert_like")
    peaks = []
    for sentences in (1 << 14, 1 << 15):
        text = "the quick brown fox jumps over the lazy dog. " * sentences
        tracemalloc.start()
        tokens = read_sentences(text, tokenizer.encode_pieces([text]))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(tokens.spans) == sentences
        del tokens
    assert (peaks[1] - peaks[0]) / (len(text) / 2) < 6
