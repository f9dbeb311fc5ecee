"""What the tools return: structured content, and for agents that read none the same as text (`shown`).

All texts are verbatim text of documents. In `shown` they are between two lines that carry a random mark, so that no document can
end its own quotation.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from runnel.errors import counted
from runnel.records import AnsweringSentence, Place, percent, unanswered
from runnel.search.verifying import QuotedPlace


class ToolResult(BaseModel):
    """What a tool returns. A `text` shorter than `end - start` is cut: read the rest by characters."""

    notes: list[str] = Field([], description="Warnings about the file; why the index is not up to date, or not shown whole.")
    next_cursor: str | None = Field(
        None, description="If not null, the answer continues: call again with the same arguments and this cursor."
    )


class ToolList(ToolResult):
    """Results in order; `total` counts all of them, on all pages."""

    total: int
    first: int = Field(1, description="Rank of the first result of this page, from 1.")


Answers = Annotated[
    float | None,
    Field(description="Probability that there is an answer at all: below 0.15, say that there is none. Null: not known."),
]


@dataclass(frozen=True)
class ListedSentence(AnsweringSentence):
    """A sentence that answers the question, with the text around it. `answers`: the probability; null if the model only ranks."""

    also_omitted: int = 0


class Found(ToolList):
    """Sentences of a file, best first."""

    answers: Answers = None
    sentences: list[ListedSentence]


class IndexedDocument(BaseModel):
    """A document of the index with its best sentences, in reading order."""

    file: str = Field(description="Name for find, read and verify: the document as it was when it was indexed.")
    source: str = Field(description="The file that was indexed, if any.")
    title: str
    sentences: list[ListedSentence]


class Searched(ToolList):
    """Documents of the index, best first."""

    answers: Answers = None
    documents: list[IndexedDocument]


class Read(ToolResult):
    """A stretch of a document, and the size of the whole document."""

    place: Place
    characters: int
    lines: int
    pages: int | None


@dataclass(frozen=True)
class ListedQuote(QuotedPlace):
    """A place of the quote."""

    changes_omitted: int = 0


class VerifiedQuote(ToolList):
    """Whether the file has the quote. exact: the same characters; normalized: the same words in another typography;
    changed: the nearest stretch, with the words that differ; absent: nothing near.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float = Field(description="Share of the quote's words in the nearest stretch.")
    places: list[ListedQuote]


class IndexStatus(BaseModel):
    """The index that search uses."""

    place: str
    documents: int
    model: str


class ServerStatus(BaseModel):
    """The server's settings and state."""

    version: str
    roots: list[str]
    index: IndexStatus | None
    model: str
    model_loaded: bool
    max_characters: int


_MARK_BYTES = 4
_DIGITS = 16  # of a SHA-256: enough for `read`, which takes its beginning


def shown(answer: ToolResult | ServerStatus) -> str:
    """Return an answer as text."""
    mark = secrets.token_hex(_MARK_BYTES)
    if isinstance(answer, ServerStatus):
        return answer.model_dump_json(indent=2)
    said = unanswered(answer.answers) if isinstance(answer, Found | Searched) else ""
    lines = [*([said] if said else []), *_lines(answer, mark)]
    lines += [f"note: {_name(note)}" for note in answer.notes]
    if answer.next_cursor is not None:
        lines.append(f"continues with cursor {answer.next_cursor}")
    return "\n".join(lines)


def _lines(answer: ToolResult, mark: str) -> Iterator[str]:
    if isinstance(answer, Read):
        yield f"{_place(answer.place)}; the document has {answer.characters} characters and {answer.lines} lines"
        yield from _quotation(answer.place.text, mark)
    elif isinstance(answer, Searched):
        yield counted(answer.total, "document")
        for rank, document in enumerate(answer.documents, start=answer.first):
            yield f"{rank}. {_name(document.file)} {json.dumps(document.title)}"
            for sentence in document.sentences:
                yield from _passage(sentence, mark)
    elif isinstance(answer, Found):
        yield counted(answer.total, "sentence")
        for rank, sentence in enumerate(answer.sentences, start=answer.first):
            others = len(sentence.also) + sentence.also_omitted
            also = f", and {counted(others, 'more place')}" if others else ""
            chance = "" if sentence.answers is None else f", probability {percent(sentence.answers)}"
            yield f"{rank}. {_place(sentence)}{_cut(sentence)}{chance}{also}"
            yield from _quotation(f"{sentence.before}[answer {mark}]{sentence.text}[/answer {mark}]{sentence.after}", mark)
    elif isinstance(answer, VerifiedQuote):
        yield f"{answer.match}: {'' if answer.word_for_word else 'not '}word for word, similarity {answer.similarity}"
        for place in answer.places:
            yield f"{place.match}{' except for case' if place.case_differs else ''}"
            yield from _passage(place, mark)
            yield from (f"quote: {json.dumps(change.quote)}  document: {json.dumps(change.text)}" for change in place.changes)


def _passage(place: Place, mark: str) -> Iterator[str]:
    yield _place(place) + _cut(place)
    yield from _quotation(place.text, mark)


def _cut(place: Place) -> str:
    return "" if len(place.text) == place.end - place.start else f", here only its first {len(place.text)}"


def _quotation(text: str, mark: str) -> list[str]:
    return [f"[document text {mark}]", text, f"[end {mark}]"]


def _place(place: Place) -> str:
    """Return a place in one line. Headings are text of the document: quoted, and without line breaks."""
    row = "" if place.id is None else f", row {json.dumps(place.id)}"
    where = f", line {place.line}" if place.page is None else f", page {place.page}"
    under = f", under {json.dumps(' > '.join(place.headings))}" if place.headings else ""
    return f"{_name(place.file)}{row}{where}, characters {place.start}-{place.end}{under}, sha256 {place.sha256[:_DIGITS]}"


def _name(name: str) -> str:
    """Return the name of a file in one line: a name can have line breaks."""
    return name if name.isprintable() else json.dumps(name)
