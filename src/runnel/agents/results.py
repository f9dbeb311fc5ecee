"""The answers of the tools, as structured content. All texts are verbatim text of documents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from runnel.text.nearest import Change


class Answer(BaseModel):
    """What a tool returns."""

    notes: list[str] = Field([], description="Warnings about the file; why the index is not up to date, or not shown whole.")
    next_cursor: str | None = Field(
        None, description="If not null, the answer continues: call again with the same arguments and this cursor."
    )


class Anchor(BaseModel):
    """A place in a document: characters (code points) [start, end) of its text, whose SHA-256 is `sha256`."""

    file: str
    row: str | None = Field(None, description="Id of the row, for jsonl, csv and tsv.")
    line: int | None = Field(None, description="From 1.")
    page: int | None = Field(None, description="From 1; null if the kind of file has no pages.")
    headings: list[str] = []
    start: int
    end: int
    sha256: str


class Passage(Anchor):
    """A place with its text. If `complete` is false, the text is too long for the answer: read the rest by characters."""

    text: str
    complete: bool = True


class AnsweringSentence(Passage):
    """A sentence that answers the question, with the text around it."""

    rank: int
    probability: float | None = Field(description="That the sentence answers; null if the model only ranks.")
    before: str = ""
    after: str = ""
    other_places: int = Field(0, description="How many more places have the same sentence.")


Answers = Annotated[
    float | None,
    Field(description="Probability that there is an answer at all: below 0.15, say that there is none. Null: not known."),
]


class Found(Answer):
    """Sentences of a file, best first. `total` counts all that were asked for."""

    answers: Answers = None
    sentences: list[AnsweringSentence]
    total: int


class FoundDocument(BaseModel):
    """A document of the index with its best sentences, in reading order."""

    file: str = Field(description="Name for find, read and verify: the document as it was when it was indexed.")
    source: str = Field(description="The file that was indexed, if any.")
    title: str
    rank: int
    sentences: list[Passage]


class Searched(Answer):
    """Documents of the index, best first."""

    answers: Answers = None
    documents: list[FoundDocument]
    total: int


class Read(Answer, Passage):
    """A stretch of a document."""

    characters: int = Field(description="Characters of the whole document.")
    lines: int = Field(description="Lines of the whole document.")
    pages: int | None = Field(None, description="Pages of the whole document.")


class QuotedPassage(Passage):
    """A place of the quote."""

    match: Literal["exact", "normalized", "changed"]
    case_differs: bool
    changes: list[Change] = []
    changes_omitted: int = 0


class VerifiedQuote(Answer):
    """Whether the file has the quote. exact: the same characters; normalized: the same words in another typography;
    changed: the nearest stretch, with the words that differ; absent: nothing near.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float = Field(description="Share of the quote's words in the nearest stretch.")
    places: list[QuotedPassage]
    total: int


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
