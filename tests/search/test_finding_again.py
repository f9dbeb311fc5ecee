"""`find` with a model that reads the best sentences of all documents again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers.tiny import WORDS, judging_encoder

from runnel import SentenceRetriever
from runnel.models.second_look import TOGETHER
from runnel.search.finding import FileDocument, find
from runnel.text.documents.document import read_plain
from runnel.text.reading import Decoded

QUERY = "where does the river run"
PAGE = "The river\n\nA river runs to the sea. The cat sat.\n\nWhere is the dog?\n\nA dog ran. The dog sat on the mat."


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> SentenceRetriever:
    return SentenceRetriever(judging_encoder(tmp_path_factory.mktemp("tiny")))


def document(name: str, text: str) -> FileDocument:
    return FileDocument(name, read_plain(Decoded(text, "utf-8")))


def some(count: int) -> list[FileDocument]:
    """Documents of three sentences, no two alike."""
    rng = np.random.default_rng(0)
    texts = [". ".join(" ".join([*rng.choice(WORDS, 4), str(3 * n + i)]) for i in range(3)) + "." for n in range(count)]
    return [document(f"{n:03}.txt", text) for n, text in enumerate(texts)]


@pytest.mark.parametrize("count", [1, 3, 90])
def test_answers_are_those_of_one_ranking_in_any_order(retriever: SentenceRetriever, count: int) -> None:
    documents = some(count)
    found = find(retriever, QUERY, documents, top_k=7)
    turned = find(retriever, QUERY, reversed(documents), top_k=7)
    assert found.sentences == turned.sentences
    ranked = retriever.rank(QUERY, [one.document for one in documents])
    best = sorted((-s.score, n, s) for n, one in enumerate(ranked) for s in one.ranked())[: min(7, 3 * count)]
    assert [(one.file, one.score, one.index, one.text) for one in found.sentences] == [
        (f"{n:03}.txt", s.score, s.index, s.text) for _, n, s in best
    ]
    assert found.answers == turned.answers == max(one.answers or 0.0 for one in ranked)
    assert found.as_json()["answers"] == found.answers and 0 < found.answers < 1
    assert len(found.files) == count and {one.file for one, _ in found.documents} == {one.file for one in found.sentences}


def test_documents_that_hold_none_of_the_best_are_let_go(retriever: SentenceRetriever) -> None:
    held: list[int] = []
    known: list[weakref.ref[FileDocument]] = []

    def documents() -> Iterator[FileDocument]:
        unread = some(400)
        while unread:
            known.append(weakref.ref(unread[0]))
            yield unread.pop(0)
            held.append(sum(ref() is not None for ref in known))

    kept: list[int] = []
    second_look = retriever.second_look
    retriever.second_look = lambda scored: kept.append(len(scored)) or second_look(scored)  # type: ignore
    try:
        assert len(find(retriever, QUERY, documents(), top_k=3).sentences) == 3
    finally:
        del retriever.second_look  # type: ignore
    assert kept[0] <= TOGETHER and max(held) <= 3 * TOGETHER  # some are read ahead


def test_more_answers_than_are_read_again(retriever: SentenceRetriever) -> None:
    assert len(find(retriever, QUERY, some(50), top_k=120).sentences) == 120


def test_places_are_also_those_in_documents_that_are_not_kept(retriever: SentenceRetriever) -> None:
    copies = [document(f"copy{n}", "The cat sat on the mat.\n\nA river runs to the sea.") for n in range(5)]
    found = find(retriever, QUERY, [*copies, *some(80)], top_k=200)
    (best,) = (one for one in found.sentences if one.text == "A river runs to the sea.")
    assert [one.file for one in (best, *best.also)] == [f"copy{n}" for n in range(5)]


def test_parts_explain_the_score(retriever: SentenceRetriever) -> None:
    found = find(retriever, QUERY, [document("page", PAGE), *some(2)], top_k=12, explain=True)
    assert {"page"} < {one.file for one in found.sentences}
    for one in found.sentences:
        assert one.parts is not None and sum(one.parts.values()) == pytest.approx(one.score, abs=1e-4)
        assert list(one.parts)[-3:] == ["second look", "question or heading above", "document"]
    titles = {one.text.strip(): one.parts["question or heading above"] for one in found.sentences if one.parts}
    assert titles["Where is the dog?"] == titles["The river"] == -1
    assert any(part > 0 for text, part in titles.items() if text.startswith(("A dog", "A river")))
    (vectors,) = retriever.remember([PAGE])
    for sentence in retriever.score(QUERY, vectors):
        assert sum(retriever.explain(QUERY, vectors, sentence.index).values()) == pytest.approx(sentence.score, abs=1e-4)


def test_a_question_or_heading_is_shown_with_the_text_below(retriever: SentenceRetriever) -> None:
    found = find(retriever, QUERY, [document("page", PAGE)], context=0, top_k=9)
    after = {one.text.strip(): one.after for one in found.sentences}
    assert after["Where is the dog?"] == "A dog ran. " and after["The river"] == "A river runs to the sea. "
    assert set(after.values()) == {"", after["The river"], after["Where is the dog?"]}


def test_a_document_without_an_answer(retriever: SentenceRetriever) -> None:
    found = find(retriever, QUERY, [document("a", "\u200b")])
    assert (found.sentences, found.answers, len(found.files)) == ([], None, 1)
    assert find(retriever, QUERY, []).answers is None


def test_the_best_are_read_together_with_the_query(retriever: SentenceRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    (document,) = retriever.remember([" ".join(one.document.text for one in some(12))])
    (both,) = retriever.scan(QUERY, [document])
    judging, model = retriever._judging, retriever.model
    assert judging is not None and both.first is not None and both.second is not None
    monkeypatch.setattr(judging, "_pair", None)
    (apart,) = retriever.scan(QUERY, [document])
    assert apart.second is not None and both.answers == apart.answers
    read = both.second.read
    before = np.where(read, both.first.scores + apart.second.judged, -np.inf)
    together = np.where(read, both.second.judged - apart.second.judged, np.inf)
    better = np.flatnonzero(read & (together > together.min() + 1e-6))
    assert read.sum() > 20 and 5 < len(better) <= 16 and set(better) <= set(np.argsort(-before)[:16].tolist())
    begin, end = model.tokenizer.markers()
    asked = both.first.query[:9]  # half of what this encoder reads at once
    row, first, last = judging._row(both.first, int(better[0]), begin, end, asked)
    hidden = model.backbone.step_forms(torch.from_numpy(row).long(), torch.tensor([0, len(row)]), forms=("pair",))
    around = ~np.isin(row, [begin, end])
    around[: 1 + len(asked)] = around[first:last] = False
    idf = torch.from_numpy(model.words.idf[asked])
    alone = model.heads["pair"].look(hidden, idf, len(asked), slice(first, last), torch.from_numpy(around))
    assert together[better[0]] == pytest.approx(float(alone), abs=1e-4)
