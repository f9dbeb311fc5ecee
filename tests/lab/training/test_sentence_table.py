import logging
from pathlib import Path

import numpy as np
import pytest
from helpers.evidence_examples import examples
from helpers.tiny import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.lab.training.data import Evidence
from runnel.lab.training.forward import make_item
from runnel.lab.training.tables import SentenceData, choose_window, label_sentences
from runnel.models.base import Model
from runnel.text.sentences import UNITS, split_sentences

TEXT = "The cat sat on the mat.  A river runs to the sea. \n\nFinally the dog sat. The end of it."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def positives(start: int, end: int, text: str = TEXT) -> list[int]:
    return np.flatnonzero(label_sentences(text, split_sentences(text), [(start, end)])).tolist()


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "before", "after", "expected"),
    [
        ("mat", 0, 0, [0]),
        ("dog", 0, 0, [2]),
        ("The cat sat on the mat.  A river runs to the sea.", 0, 0, [0, 1]),
        (TEXT, 0, 0, [0, 1, 2, 3]),
        ("A river runs to the sea.", 4, 5, [1]),  # what spills over into neighbors leaves them negative
    ],
)
def test_labels(piece: str, before: int, after: int, expected: list[int]) -> None:
    start = TEXT.index(piece)
    assert positives(start - before, start + len(piece) + after) == expected


def test_whitespace_counts_neither_for_sentences_nor_for_spans() -> None:
    text = "Yes." + "\n" * 40 + "The cat sat on the mat."
    assert positives(0, 44, text) == positives(0, 4, text) == [0]


def test_offsets_are_code_points() -> None:
    text = "\U0001f40d" * 30 + "! The cat sat."
    start = text.index("cat")
    assert positives(start, start + 3, text) == [1]


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))), min_size=1, max_size=3))
def test_every_span_makes_a_sentence_positive_that_it_overlaps(pairs: list[tuple[int, int]]) -> None:
    spans = [(min(p), max(p)) for p in pairs if TEXT[min(p) : max(p)].strip()]
    sentences = split_sentences(TEXT)
    labels = label_sentences(TEXT, sentences, spans)
    for start, end in spans:
        alone = label_sentences(TEXT, sentences, [(start, end)])
        assert alone.any()
        assert (labels >= alone).all()
        assert all(TEXT[max(start, a) : min(end, b)].strip() for a, b in sentences[alone].tolist())


# ---- windows ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data(), st.sets(st.integers(1, 200), min_size=1), st.integers(0, 9)
)
def test_a_window_holds_the_evidence_within_its_tokens(lengths, data, choices, seed) -> None:
    bounds, tokens = np.cumsum([7, *lengths]), sorted(choices)
    labels = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    window = choose_window(bounds, labels, tokens, np.random.default_rng(seed))
    held = int(bounds[window.stop] - bounds[window.start])
    whole = window == slice(0, len(lengths))
    assert 0 <= window.start < window.stop <= len(lengths)
    assert labels[window].sum() == labels.sum()
    assert held <= tokens[-1] or whole or window.stop - window.start == 1
    assert whole or sum(lengths) > tokens[0]
    assert window == choose_window(bounds, labels, tokens, np.random.default_rng(seed))


def test_a_window_may_be_anywhere_around_the_evidence() -> None:
    bounds, labels = np.arange(0, 1001, 10), np.zeros(100, dtype=bool)
    labels[50] = True
    starts = [choose_window(bounds, labels, [200], np.random.default_rng(seed)).start for seed in range(200)]
    assert set(starts) == set(range(31, 51))


@pytest.mark.parametrize(("last", "expected"), [(12, {50, 200, 500}), (25, {200, 500}), (60, {500}), (61, {1000})])
def test_evidence_that_is_far_apart_takes_a_longer_window_or_the_whole_document(last: int, expected: set[int]) -> None:
    """Sentences of 10 tokens; the evidence is sentence 11 and another."""
    bounds, labels = np.arange(0, 1001, 10), np.zeros(100, dtype=bool)
    labels[[11, last]] = True
    windows = [choose_window(bounds, labels, [50, 200, 500], np.random.default_rng(seed)) for seed in range(30)]
    held = [int(bounds[window.stop] - bounds[window.start]) for window in windows]
    assert {min(n for n in (50, 200, 500, 1000) if n >= tokens) for tokens in held} == expected  # whole sentences only
    assert all(labels[window].sum() == 2 for window in windows)


# ---- data ------------------------------------------------------------------------------------------------------------


def test_whole_documents_come_back_as_items(tmp_path: Path, model: Model) -> None:
    given = examples(6)
    data = SentenceData.write(tmp_path / "whole.arrow", model, iter(given), tokens=None)
    assert len(data) == 6
    for index, example in enumerate(given):
        name, item = data[index]
        spans = split_sentences(example.document)
        expected = make_item(
            model, example.query, example.document, spans, label_sentences(example.document, spans, example.spans)
        )
        assert name == example.id
        for field in ("ids", "positions", "ranges", "marks", "tag"):
            np.testing.assert_array_equal(getattr(item.request, field), getattr(expected.request, field))
        for field in ("spans", "bounds"):
            np.testing.assert_array_equal(getattr(item.sentences, field), getattr(expected.sentences, field))
        np.testing.assert_array_equal(item.labels, expected.labels)
        assert len(item.request.ids) == data.lengths[index]
        assert item.labels is not None
        assert item.labels.sum() == 1
    again = SentenceData(model, tmp_path / "whole.arrow")
    np.testing.assert_array_equal(again.lengths, data.lengths)
    assert not list(tmp_path.glob("*.partial"))


def test_examples_have_the_units_of_the_model(tmp_path: Path, model: Model) -> None:
    (example,) = examples(1)
    data = {}
    for unit in UNITS:
        model.unit = unit
        data[unit] = SentenceData.write(tmp_path / f"{unit}.arrow", model, [example], tokens=None)[0][1]
        np.testing.assert_array_equal(
            data[unit].sentences.spans, make_item(model, example.query, example.document).sentences.spans
        )
    model.unit = "sentence"
    assert len(data["paragraph"].full) < len(data["clauses"].full) < len(data["sentence"].full)
    assert all(item.labels.sum() == 1 for item in data.values())


def test_long_documents_are_cut_to_windows_of_the_mixed_lengths(
    tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    given = examples(60, sentences=(30, 31))
    with caplog.at_level(logging.INFO, "runnel"):
        data = SentenceData.write(tmp_path / "a.arrow", model, given, tokens=(40, 90), seed=1)
    assert "60 were cut to windows; 0 stay whole because no window holds their evidence" in caplog.text
    documents = []
    for (name, item), example in zip((data[i] for i in range(60)), given, strict=True):
        assert name == example.id
        assert item.labels is not None
        (at,) = np.flatnonzero(item.labels)
        tokens = item.sentences.ids[item.sentences.bounds[at] : item.sentences.bounds[at + 1]]
        start, end = example.spans[0]
        assert tokens.tolist() == model.tokenizer.encode(example.document[start:end]).ids.tolist()
        documents.append(item.sentences.bounds[-1])
    short, long = [d for d in documents if d <= 40], [d for d in documents if d > 40]
    assert max(long) <= 90
    assert min(len(short), len(long)) > 15
    assert min(short) > 40 - 26
    assert min(long) > 90 - 26  # whole sentences, of 13 tokens at most
    SentenceData.write(tmp_path / "b.arrow", model, given, tokens=(40, 90), seed=1)
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


def test_documents_that_no_window_fits_are_whole_and_counted(
    tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "The cat sat on the mat. "
    given = [Evidence("dog", sentence * 40, ((0, 22), (24 * 39, 24 * 40 - 1)), "far")]
    with caplog.at_level(logging.INFO, "runnel"):
        data = SentenceData.write(tmp_path / "a.arrow", model, given, tokens=(30, 60))
    assert "0 were cut to windows; 1 stay whole because no window holds their evidence" in caplog.text
    _, item = data[0]
    assert item.labels is not None
    assert (len(item.labels), item.labels.sum()) == (40, 2)


def test_examples_that_cannot_be_used_are_named(tmp_path: Path, model: Model) -> None:
    with pytest.raises(InputError, match="evidence example x19: "):
        SentenceData.write(tmp_path / "bad.arrow", model, [*examples(2), Evidence("cat", "", (), "x19")])
    assert not (tmp_path / "bad.arrow").exists()
    with pytest.raises(InputError, match="the data has no examples"):
        SentenceData.write(tmp_path / "bad.arrow", model, [])
