"""What the tools return, as structured content. All texts are verbatim text of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from runnel.records import AnsweringSentence, Place
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
