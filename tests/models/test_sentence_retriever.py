"""Sentence retriever: sentences tile the document, and scores do not depend on
how the pass is cut.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import byte_level_model, judging_encoder, tiny_model
from helpers.tiny_training import make_item
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel import Sentence, SentenceRetriever
from runnel.errors import InputError
from runnel.lab.training.forward import sentence_scores
from runnel.text.sentences import UNITS

QUERY = "does the river run to the sea"
PARAGRAPHS = (
    "The cat sat on the mat. A river runs to the sea. Is the clause executed?\n\n"
    "The dog sat on the cat.\n\n"
)
DOCUMENT = PARAGRAPHS * 6


@pytest.fixture(scope="module", params=[False, True], ids=["match", "papers"])
def retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SentenceRetriever:
    return SentenceRetriever(
        tiny_model(tmp_path_factory.mktemp("tiny"), papers_heads=request.param)
    )


def scores(sentences: list) -> np.ndarray:
    return np.array([s.score for s in sentences])


class Ended(Exception):
    pass


@pytest.mark.parametrize("name", ["pocket", "papers"])
@pytest.mark.parametrize("unit", [None, "clauses"])
@pytest.mark.parametrize("document", [DOCUMENT * 40, "One dog. " * 1000, "| a | b |\n" * 1000])
def test_a_call_ends_while_a_long_document_is_still_split(
    tmp_path, name, unit, document, monkeypatch
):
    """Its `progress` is asked at every sentence, before a token is read, and what it raises ends
    the call.
    """
    retriever = SentenceRetriever(
        tiny_model(tmp_path, papers_heads=True) if name == "papers" else judging_encoder(tmp_path)
    )
    calls = []

    def progress(done: int, total: int | None) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise Ended

    monkeypatch.setattr(retriever.model.tokenizer, "encode_pieces", lambda *given: [])
    with pytest.raises(Ended):
        list(retriever.scan("dog", [document], unit=unit, progress=progress))
    assert calls == [0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_tiled(retriever: SentenceRetriever, text: str) -> None:
    sentences = retriever.score("cat", text)
    assert "".join(s.text for s in sentences) == text
    # of the whole text: an unknown word may reach into the next sentence
    starts = retriever.model.tokenizer.encode(text).starts
    has_token = [bool(((s.start <= starts) & (starts < s.end)).any()) for s in sentences]
    assert (
        np.isfinite(scores(sentences)).tolist() == has_token
        and not (scores(sentences) == np.inf).any()
    )


REAL = ["The train leaves at noon. Cats sleep.", "The budget was approved.", "Anna keeps the key."]
EMPTY = ["\u200b", "\ufeff", "\0", "\u0301", "\u202e\u200b"]


@pytest.mark.parametrize("name", ["pocket", "pocket-mamba2", "minilm-mamba2", "papers"])
def test_sentences_without_a_token_are_no_answers_and_change_no_others(
    name: str, tmp_path: Path
) -> None:
    retriever = (
        SentenceRetriever(tiny_model(tmp_path, papers_heads=True))
        if name == "papers"
        else SentenceRetriever.load(name)
    )
    # lines between change what is a title, which its second look reads
    if "judge" in retriever.model.heads:
        del retriever.model.heads["judge"]
        retriever = SentenceRetriever(retriever.model)
    query = "when does the train leave"

    def ways(text: str) -> Iterator[list[Sentence]]:
        yield retriever.retrieve(query, text)
        yield list(next(retriever.scan(query, [text])).ranked())
        if retriever.remembers:
            yield retriever.retrieve(query, next(retriever.remember([text])))

    @settings(max_examples=12, deadline=None)
    @given(st.lists(st.sampled_from(REAL + EMPTY), max_size=8), st.sampled_from([1, 12]))
    def check(parts: list[str], times: int) -> None:
        parts = parts * times  # several passages
        real = [part for part in parts if part in REAL]
        for found, expected in zip(ways("\n\n".join(parts)), ways("\n\n".join(real)), strict=True):
            assert [s.text.strip() for s in found] == [s.text.strip() for s in expected]
            np.testing.assert_allclose(scores(found), scores(expected), atol=1e-4)
        if parts:
            spans = retriever.score(query, "\n\n".join(parts))
            assert [s.score == -np.inf for s in spans] == [s.text.strip() in EMPTY for s in spans]

    check()


def test_many_documents_at_once_and_tokenized_in_pieces(
    retriever: SentenceRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [DOCUMENT, "", "A river runs.", " \n ", DOCUMENT * 3, ""]
    together = list(retriever.score_many(QUERY, documents))
    assert [len(s) for s in together] == [24, 0, 1, 1, 72, 0]
    for document, sentences in zip(documents, together, strict=True):
        np.testing.assert_allclose(
            scores(sentences), scores(retriever.score(QUERY, document)), atol=2e-4
        )
    monkeypatch.setattr("runnel.models.scoring._PIECES_CHARS", 20)
    monkeypatch.setattr("runnel.models.scoring._TOGETHER_CHARS", 40)
    assert list(retriever.score_many(QUERY, documents)) == together


@pytest.mark.parametrize("papers_heads", [False, True], ids=["match", "papers"])
def test_a_sentence_is_scored_at_its_full_stop_not_at_the_line_end(
    tmp_path: Path, papers_heads: bool
) -> None:
    model = byte_level_model(tmp_path, papers_heads=papers_heads)
    retriever = SentenceRetriever(model)
    text = "the dog jumps.\n\n\nThe fox runs.\nThe sea."
    document = model.tokenizer.encode(text)
    dots = [t for t in range(len(document)) if text[document.starts[t]] == "."]
    before = model.tokenizer.encode("dog").ids.tolist() + model.tokenizer.encode("\n").ids.tolist()
    hidden = model.backbone(torch.tensor([*before, *document.ids.tolist()]))[0]
    assert retriever.score(" dog \n", text) == retriever.score("dog", text), (
        "whitespace around a query is left out"
    )
    for size in (1, 2, 5, 1024):
        model.engine = model.new_engine(step_tokens=size)
        if papers_heads:
            expected = model.heads["sentences"](hidden[[len(before) + t for t in dots]])
            np.testing.assert_allclose(
                scores(retriever.score("dog", text)), expected.numpy(), atol=2e-4
            )
        else:
            whole = make_item(model, "dog", text)
            assert whole.request.positions.tolist() == [len(before) + t for t in dots]
            np.testing.assert_allclose(
                scores(retriever.score("dog", text)), sentence_scores(model, [whole])[0], atol=2e-4
            )


def test_units(retriever: SentenceRetriever) -> None:
    seen: list[tuple[int, int]] = []
    paragraphs = retriever.score(
        QUERY, DOCUMENT, unit="paragraph", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (len(retriever.model.tokenizer.encode(DOCUMENT).ids),) * 2
    assert [s.text for s in paragraphs[:2]] == [DOCUMENT[:74], "The dog sat on the cat.\n\n"]
    assert (
        len(retriever.score(QUERY, DOCUMENT, unit="clauses"))
        < len(retriever.score(QUERY, DOCUMENT, unit="sentence"))
        == 24
    )
    for unit in UNITS:
        found = retriever.score(QUERY, DOCUMENT, unit=unit)
        best = next(retriever.scan(QUERY, [DOCUMENT], unit=unit))
        assert "".join(s.text for s in found) == DOCUMENT and all(
            DOCUMENT[s.start : s.end] == s.text for s in found
        )
        assert [s.index for s in found] == list(range(len(found)))
        assert next(retriever.score_many(QUERY, [DOCUMENT], unit=unit)) == best.sentences() == found
        expected = sorted(found, key=lambda s: (-s.score, s.index))
        assert (
            retriever.retrieve(QUERY, DOCUMENT, 3, unit=unit) == expected[:3]
            and list(best.ranked()) == expected
        )
    usual = retriever.model.unit
    retriever.model.unit = "paragraph"
    assert retriever.score(QUERY, DOCUMENT) == paragraphs
    retriever.model.unit = usual
    with pytest.raises(InputError, match="unit is 'page'"):
        retriever.score(QUERY, DOCUMENT, unit="page")


def test_given_spans_are_scored_and_returned_as_they_are(retriever: SentenceRetriever) -> None:
    every = retriever.score(QUERY, DOCUMENT)
    spans = np.array([[s.start, s.end] for s in every])
    assert retriever.score(QUERY, DOCUMENT, spans=spans) == every
    words = [(4, 7), (8, 11), (26, 40)]
    found = retriever.score(QUERY, DOCUMENT, spans=words)
    assert [(s.start, s.end) for s in found] == words
    assert [s.text for s in found] == ["cat", "sat", "river runs to "]
    assert [s.index for s in found] == [0, 1, 2]
    assert retriever.retrieve(QUERY, DOCUMENT, 1, spans=words)[0] == max(
        found, key=lambda s: s.score
    )
    assert retriever.score(QUERY, DOCUMENT, spans=[]) == []
    for bad, number in (
        ([(3, 3)], 0),
        ([(5, 9), (0, 5)], 1),
        ([(0, 6), (5, 9)], 1),
        ([(-1, 2)], 0),
        ([(0, 10**6)], 0),
    ):
        with pytest.raises(InputError, match=rf"span {number} is \["):
            retriever.score(QUERY, DOCUMENT, spans=bad)
    with pytest.raises(InputError, match="unit and spans"):
        retriever.score(QUERY, DOCUMENT, spans=words, unit="sentence")


def test_windows_of_the_paper(retriever: SentenceRetriever) -> None:
    whole = retriever.score(QUERY, DOCUMENT)
    one = retriever.score(QUERY, DOCUMENT, window=10_000, stride=5_000)
    np.testing.assert_allclose(scores(one), scores(whole), atol=2e-4)
    several = retriever.score(QUERY, DOCUMENT, window=60, stride=30)
    assert "".join(s.text for s in several) == DOCUMENT
    assert np.abs(scores(several) - scores(whole)).max() > 1e-3, (
        "restarting the state is not the same"
    )
    with pytest.raises(InputError, match="stride"):
        retriever.score(QUERY, DOCUMENT, window=60)


def test_bad_input(retriever: SentenceRetriever) -> None:
    for query in ("  ", "\u200b", "\x00", "\u202e \u200b"):
        with pytest.raises(InputError, match="the query"):
            retriever.score(query, DOCUMENT)
    for spans in (None, [(0, 1)]):
        with pytest.raises(InputError, match="a document is b'a'"):
            retriever.score(QUERY, b"a", spans=spans)
