"""Kinds of sentences go with a document from its text to its memory, whatever reads it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.readers import read_documents
from runnel.models.sentence_vectors import Scored, SentenceVectors, sentence_tokens
from runnel.records import normalize
from runnel.search.finding import FileDocument, find
from runnel.text.documents.document import DocumentText, read_plain
from runnel.text.documents.html import read_html
from runnel.text.kinds import ASIDE, HEADING, QUESTION, TEXT, sentence_kinds
from runnel.text.reading import Decoded
from runnel.text.sentences import UNITS, read_sentences, split_sentences

TEXT_ALONE = "The river\n\nA river runs to the sea. The cat sat.\n\nWhere is the dog?\n\nA dog ran. The dog sat."
PAGE = (
    "<ul><li><a href='#a'>the cat</a><li><a href='#b'>the dog</a><li><a href='#c'>the sea</a></ul>"
    "<h2 id=a>The cat sat.</h2><p>A cat ran. It sat.<h2 id=b>Is it a dog?</h2><p>It is. A dog sat.<p id=c>The sea."
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


def page() -> DocumentText:
    return read_html(Decoded(PAGE, "utf-8", None))


def kinds(found: SentenceVectors) -> list[int]:
    return found.kinds.tolist()


def test_every_reader_of_a_document_keeps_its_kinds(model: Model) -> None:
    retriever, document = SentenceRetriever(model), page()
    expected = [ASIDE] * 3 + [HEADING, TEXT, TEXT, QUESTION, TEXT, TEXT, TEXT]
    (found,) = retriever.remember([document])
    assert kinds(found) == expected and found.text == document.text
    (ranked,) = Reranker(model).remember([document]).documents.values()  # type: ignore[union-attr]
    (named,) = Reranker(model).remember({"a": document}).documents.values()  # type: ignore[union-attr]
    (read,) = read_documents(Embedder(model), [document], remember=True)
    assert read.memory is not None
    assert kinds(ranked) == kinds(named) == kinds(read.memory) == expected
    ((_, scored),) = find(retriever, "dog", [FileDocument("a", document)]).documents
    assert scored.vectors is not None and kinds(scored.vectors) == expected
    tokens = list(sentence_tokens(model, model.templates["document"], [document, document.text, "", document]))
    assert [one.kinds.tolist() == expected for one in tokens] == [True, False, False, True]


def test_a_text_and_its_document_score_and_have_kinds_alike(model: Model, tmp_path: Path) -> None:
    document = read_plain(Decoded(TEXT_ALONE, "utf-8", None))
    for retriever in (SentenceRetriever(model), SentenceRetriever(tiny_model(tmp_path))):
        assert retriever.score("dog", document) == retriever.score("dog", TEXT_ALONE)
        assert retriever.retrieve("dog", document, spans=[(0, 9)]) == retriever.retrieve("dog", TEXT_ALONE, spans=[(0, 9)])
    (one,), (other,) = (SentenceRetriever(model).remember([content]) for content in (document, TEXT_ALONE))
    assert kinds(one) == kinds(other) == [HEADING, TEXT, TEXT, QUESTION, TEXT, TEXT]
    scores = [Reranker(model).score("dog", [content, "The cat sat."]).tolist() for content in (document, TEXT_ALONE)]
    assert scores[0] == scores[1]
    with pytest.raises(InputError, match="3"):
        list(SentenceRetriever(model).remember([3]))  # type: ignore[list-item]


def test_kinds_of_units_and_parts(model: Model) -> None:
    for unit in UNITS:
        tokens = read_sentences(page(), [model.tokenizer.encode(page().text)], unit=unit)
        assert tokens.kinds.shape == (len(tokens.spans),) and tokens.kinds.any() == (unit == "sentence")
    assert read_sentences(page(), [model.tokenizer.encode(page().text)]).part(2, 4).kinds.tolist() == [ASIDE, HEADING]


def test_kinds_are_stored(model: Model) -> None:
    (found,) = SentenceRetriever(model).remember([page()])
    again = SentenceVectors.from_bytes(found.to_bytes(), found.text)
    assert np.array_equal(again.kinds, found.kinds) and again.kinds.dtype == np.uint8
    assert found.size == replace(found, kinds=found.kinds[:0]).size + len(found)


@pytest.mark.parametrize(
    ("text", "title", "shown"),
    [
        ("10.4.11 410 Gone\n\n   The resource is\n   gone. It will not be back.", "410", "The resource is gone."),
        ("Calls\n*****\n\nA call runs it. More.", "Calls", "A call runs it."),
        ("# Calls\nA call runs it. More.", "Calls", "A call runs it."),
        ("1. Scope\n\n1.1 Purpose\n\nThis says why. More.", "Scope", "1.1 Purpose This says why."),
        ("Before it.\n\nIs it loud?\n\nThe flag -v is loud. More.", "Is it", "The flag -v is loud."),
        # no titles
        ("A short sentence.\n\nMore text.", "short", ""),
        ("- an item\n- another item", "an item", ""),
        ("word " * 30 + "\n\nMore text.", "word", ""),
        ("two lines\nwithout an end\n\nMore text.", "two", ""),
        # no text below
        ("The end", "end", ""),
    ],
)
def test_a_question_or_heading_is_followed_by_the_first_text_below(text: str, title: str, shown: str) -> None:
    spans = split_sentences(text)
    index = next(i for i, (a, b) in enumerate(spans.tolist()) if title in text[a:b])
    scored = Scored(text, spans, np.zeros(len(spans)), sentence_kinds(text, spans))
    assert normalize(text[spans[index, 1] : spans[scored.below(index), 1]]) == shown
    assert replace(scored, kinds=None).below(index) == index
