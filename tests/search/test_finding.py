"""The sentences of documents that answer a query, as a library: ranking, places, context and counts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from helpers.command_line import FakeRetriever

from runnel.errors import InputError
from runnel.records import AnsweringSentence, Places
from runnel.search.finding import FileDocument, FileRead, Findings, find, locate, read_documents
from runnel.text.documents.document import DocumentText, read_plain
from runnel.text.documents.reader import DocumentReader, Skipped
from runnel.text.reading import Decoded

RETRIEVER = FakeRetriever()  # scores a sentence by the number of query words in it


def document(name: str, text: str) -> FileDocument:
    return FileDocument(name, read_plain(Decoded(text, "utf-8")))


def found(query: str, *documents: FileDocument, **options: object) -> list[tuple[str, float, str]]:
    findings = find(RETRIEVER, query, documents, **options)
    return [(one.file, one.score, one.text.strip()) for one in findings.sentences]


def test_documents_are_ranked_together():
    first, second = document("a", "The dog slept. A cat ran."), document("b", "Nothing here. The dog barked.")
    answers = [("b", 3.0, "The dog barked."), ("a", 2.0, "The dog slept."), ("a", 0.0, "A cat ran."), ("b", 0.0, "Nothing here.")]
    assert found("the dog barked", first, second) == answers  # ties in the order of the documents
    assert found("the dog barked", first, second, top_k=1) == answers[:1]
    assert found("the dog barked") == found("the dog barked", document("c", " \n")) == []


def test_a_lowest_score_is_included_and_anything_below_is_not():
    documents = document("a", "The dog slept. A cat ran."), document("b", "Nothing here. The dog barked.")
    assert [score for _, score, _ in found("the dog barked", *documents, min_score=2.0)] == [3.0, 2.0]
    assert found("the dog barked", *documents, min_score=3.5) == []


def test_places_of_equal_sentences_are_merged_and_counted():
    findings = find(
        RETRIEVER, "dog", [document("a", "One dog.\n\nTwo cats.\n\nOne  dog."), document("b", "x\n\nOne\ndog.")], top_k=1
    )
    [sentence] = findings.sentences
    assert [str(sentence), *map(str, sentence.also)] == ["a:1", "a:5", "b:3"]
    assert findings.files == [
        FileRead("a", "txt", None, "utf-8", (), characters=30, sentences=3),
        FileRead("b", "txt", None, "utf-8", (), characters=11, sentences=2),
    ]


def test_the_better_of_two_places_is_shown():
    """Here a sentence scores more in each document."""

    class Growing(FakeRetriever):
        def first_look(self, *arguments, **options) -> Iterator[object]:
            for more, one in enumerate(super().first_look(*arguments, **options)):
                yield replace(one, scores=one.scores + min(more, 1))

    [best] = find(Growing(), "dog", [document(name, "One dog.") for name in "abc"]).sentences
    assert isinstance(best, AnsweringSentence) and (best.file, best.score) == ("b", 2.0)
    assert [one.file for one in best.also] == ["a", "c"]


def test_context_is_the_text_around():
    text = "One. Two. Three dogs. Four. Five."
    for context, before, after in ((0, "", ""), (1, "Two. ", "Four. "), (9, "One. Two. ", "Four. Five.")):
        [one] = find(RETRIEVER, "dogs", [document("a", text)], top_k=1, context=context).sentences
        assert (one.before, one.after) == (before, after) and one.before + one.text + one.after in text


def test_the_page_of_a_sentence_is_that_of_its_first_word():
    blocks = json.dumps({"rows": [[0, 4, "paragraph", 1, 0], [6, 10, "paragraph", 2, 1]], "paths": [[], ["Two"]]})
    [place] = locate("a", DocumentText.stored("One.\n\nTwo.", Places(blocks), kind="pdf"), [(4, 10)])
    assert (place.page, place.headings, place.start, place.line, str(place)) == (2, ("Two",), 4, 3, "a, page 2")


def test_json_is_plain_and_complete():
    findings = find(RETRIEVER, "dog", [document("a", "One dog.\n\nOne dog."), document("b", "")], top_k=1)
    value = json.loads(json.dumps(findings.as_json()))
    place = {"file": "a", "id": None, "page": None, "headings": [], "kind": "txt"}
    place |= {"sha256": hashlib.sha256(b"One dog.\n\nOne dog.").hexdigest()}
    [sentence] = value["sentences"]
    assert sentence == {
        **place, "line": 1, "start": 0, "end": 10, "text": "One dog.\n\n", "score": 1.0, "index": 0,
        "answers": None, "before": "", "after": "One dog.", "parts": None,
        "also": [{**place, "line": 3, "start": 10, "end": 18, "text": "One dog."}],
    }  # fmt: skip
    facts = {"kind": "txt", "pages": None, "encoding": "utf-8", "warnings": []}
    assert value["files"] == [
        {"file": "a", **facts, "characters": 18, "sentences": 2},
        {"file": "b", **facts, "characters": 0, "sentences": 0},
    ]


def test_documents_are_read_when_they_are_needed():
    """An iterator of many documents is not read whole before the first is scored."""
    scored: list[int] = []

    class Counting(FakeRetriever):
        def first_look(self, *arguments, **options) -> Iterator[object]:
            for one in super().first_look(*arguments, **options):
                scored.append(len(read))
                yield one

    read: list[int] = []

    def documents() -> Iterator[FileDocument]:
        for number in range(5):
            read.append(number)
            yield document(f"{number}", "One dog.")

    find(Counting(), "dog", documents())
    assert scored == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("top_k", [0, 1.5, True])
def test_a_number_of_sentences_is_a_whole_number(top_k):
    with pytest.raises(InputError, match="expected a whole number from 1"):
        find(RETRIEVER, "dog", [], top_k=top_k)


def test_files_that_cannot_be_read_are_listed_and_logged(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("One dog.")
    (tmp_path / "b.txt").write_text(" ")
    names = [str(tmp_path / name) for name in ("missing.txt", "a.txt", "b.txt")]
    skipped: list[Skipped] = []
    with caplog.at_level(logging.WARNING), DocumentReader() as reader:
        findings = find(RETRIEVER, "dog", read_documents(names, reader, skipped))
    assert [file.file for file in findings.files] == names[1:] and len(findings.sentences) == 1
    [one] = skipped
    assert one.file == names[0] and one.reason.startswith(f"no file {names[0]}; check the path")
    assert caplog.messages == [f"error: {one.reason}", f"note: {names[2]} is empty"]


def test_no_documents_is_an_empty_result():
    assert find(RETRIEVER, "dog", []) == Findings("sentence", [], [])
