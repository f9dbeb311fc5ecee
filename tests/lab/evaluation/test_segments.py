"""Pieces of documents: windows, whole sentences, chunks and segments; the score of a document from
its segments.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.lab.evaluation.retrieval import (
    Reading,
    System,
    as_in_recipe,
    cut_sentences,
    split_chunks,
    windows,
)
from runnel.lab.training import recipes
from runnel.models.folder import BUILT_IN
from runnel.text.tokenizers import read_tokenizer


def test_windows_of_the_paper_and_of_white_space():
    sentences = np.arange(451)
    assert windows(sentences, 200, 100) == [(0, 200), (100, 300), (200, 400), (300, 450)]
    assert windows(sentences, 450, 100) == [(0, 450)] and windows(np.arange(1), 200, 100) == []
    text = "\n\n  One cat.\n\n\n   \n\nTwo dogs.\n\n"
    pieces = cut_sentences(text, np.array([text.index("One"), text.index("Two")]), 1, 1)
    assert "".join(text[start:end] for start, end in pieces) == text and len(pieces) == 2
    assert cut_sentences("", np.zeros(0, int), 1, 1) == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 20), st.data())
def test_windows_have_every_unit_and_fit(lengths, size, data):
    stride = data.draw(st.integers(1, size) | st.just(size))
    bounds = np.cumsum([0, *lengths])
    cuts = windows(bounds, size, stride)
    assert cuts[0][0] == 0 and cuts[-1][1] == len(lengths)
    for first, last in cuts:
        assert last == first + 1 or bounds[last] - bounds[first] <= size
    for (a, b), (c, d) in itertools.pairwise(cuts):
        assert a < c <= b < d, (
            "each window goes on where or before the last one ended, and adds something"
        )
        assert c == b or (stride < size and bounds[c] - bounds[a] >= stride), (
            "as far as the size they tile"
        )


def test_chunks_tile_a_document():
    assert split_chunks("a b  c\nd e ", 2).tolist() == [[0, 5], [5, 9], [9, 11]]
    assert split_chunks("  one", 300).tolist() == [[0, 5]] and split_chunks("", 3).tolist() == [
        [0, 0]
    ]
    text = "word " * 601
    assert [len(text[a:b].split()) for a, b in split_chunks(text, 300)] == [300, 300, 1]


TEXT = "One heron stands. Two frogs wait, and three fishes swim below. Rain falls."


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer(BUILT_IN["pocket"], begin=101, end=102)


@pytest.mark.parametrize(
    ("tokens", "stride"),
    [(1, None), (1, 1), (3, 2), (5, 1), (5, None), (7, 7), (16, 3), (99, None)],
)
def test_segments_cover_a_text(tokenizer, tokens, stride):
    encoded = tokenizer.encode(TEXT)
    starts = range(0, max(0, len(encoded.ids) - tokens) + (stride or tokens), stride or tokens)
    expected = [
        TEXT[encoded.starts[n] : encoded.ends[min(n + tokens, len(encoded.ids)) - 1]]
        for n in starts
    ]
    assert Reading(segment_tokens=tokens, stride=stride).cut(TEXT, tokenizer) == expected


def test_segments_of_texts_without_words(tokenizer):
    for text in ("", "  ", "heron"):
        assert Reading(segment_tokens=1).cut(text, tokenizer) == [text]


def test_the_recipe_of_a_reranker_says_what_is_read(tmp_path):
    model = str(tmp_path / "model")
    recipes.write(recipes.read("ssm-reranker-longp"), tmp_path / "recipe.toml")
    assert as_in_recipe(System(model, "rerank")).reading == Reading(1536)
    assert as_in_recipe(System(model, "embed")).reading == Reading()
    assert as_in_recipe(System("pocket", "rerank")).reading == Reading()
