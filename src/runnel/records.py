"""Plain records shared by all layers: documents, sentences, places and hits, and how probabilities
and texts in them are written.

    Document             a text with an id       Sentence      a scored sentence of it
    Places               what a document's characters are: pages, headings, kinds of blocks
    Place                characters of a document, as a user finds them in the file
    AnsweringSentence    a `Place` with the score of the sentence there, for answers
    Hit                  a ranked document, with its answering sentences and an `Explanation`
"""

import json
import math
import re
import reprlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

from runnel.checks import expect_text
from runnel.errors import InputError
from runnel.formats import LINES

# emphasis and code of Markdown at the edges of words, and the signs of quoted lines
_MARKUP = re.compile(r"(?m)^[ \t]*>[> \t]*|(?<!\w)[*_`]+|[*_`]+(?!\w)")
# curly quotation marks, each with the straight one
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d\u201e", '\'\'"""')
# what `trimmed` takes: a record with a text, a start and an end
SentenceOrPlace = TypeVar("SentenceOrPlace", "Sentence", "AnsweringSentence")


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id. `metadata` is stored unchanged; `title` is shown with search results.

    Raises:
        InputError: the id, the text or the title is not a string, or the metadata is not a dict.
    """

    id: str
    text: str
    metadata: dict[str, object] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        expect_text(self.id, "the id of a document")
        expect_text(self.text, f"the text of document {self.id!r}")
        expect_text(self.title, f"the title of document {self.id!r}")
        given: object = self.metadata
        if not isinstance(given, dict):
            raise InputError(
                f"the metadata of document {self.id!r} is {reprlib.repr(given)}; expected dict"
            )


def titled(title: object, text: str) -> str:
    """Return a text preceded by its title, if it has one, and a space, as in BEIR and Tevatron."""
    return f"{title} {text}".strip() if isinstance(title, str) and title.strip() else text


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a document: `document[start:end] == text`, offsets in characters (code
    points).
    """

    text: str
    start: int
    end: int
    score: float
    index: int  # position among the document's sentences, from 0


def probability(score: float) -> float:
    """Return the probability that a calibrated score stands for: its sigmoid."""
    # as a tanh, because exp(-score) overflows
    return (1 + math.tanh(score / 2)) / 2


def percent(share: float) -> str:
    """Return a probability for people: "76 %", and never certainty: "under 1 %", "over 99 %"."""
    rounded = round(100 * share)
    if rounded < 1:
        return "under 1 %"
    return "over 99 %" if rounded > 99 else f"{rounded} %"


def highest(probabilities: Iterable[float | None]) -> float | None:
    """Return the highest probability, None if all are None."""
    return max((value for value in probabilities if value is not None), default=None)


_UNLIKELY = 0.15  # the probability below which nothing seems to answer


def unanswered(answers: float | None) -> str:
    """Return what to say if probably nothing answers, from the probability that something does
    (None: it is not known), or "".
    """
    if answers is None or answers >= _UNLIKELY:
        return ""
    return f"nothing here seems to answer this ({percent(answers)})"


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span [start, end) of a text without the whitespace at its ends; start >= end if it
    has nothing else.
    """
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def trimmed(sentence: SentenceOrPlace) -> SentenceOrPlace:
    """Return a sentence without whitespace at its ends."""
    first, last = trim(sentence.text, 0, len(sentence.text))
    return replace(
        sentence,
        text=sentence.text[first:last],
        start=sentence.start + first,
        end=sentence.start + last,
    )


def normalize(text: str) -> str:
    """Return a text without line breaks and repeated spaces."""
    return " ".join(text.split())


def wording(text: str) -> str:
    """Return what a text shares with its copies, which may differ in whitespace, the form of
    quotation marks, the signs before quoted lines, and Markdown's emphasis.
    """
    return " ".join(_MARKUP.sub("", text.translate(_STRAIGHT)).split())


@dataclass(frozen=True)
class Places:
    """Pages, headings and kinds of the blocks of a document, as an index stores them.

    `blocks` is the JSON that `DocumentText.places` (`text/documents/document.py`) writes, an object
    with four parts, or "" for a document without blocks. In it, path and lead are numbers from 0 in
    the lists of these parts:

        "blocks"  [[start, end, kind, page, path, lead], ...], in order: paragraphs, headings, rows
                  and so on, by `kind` (`Block`)
        "paths"   [[title, ...], ...]: the headings above a block, outermost first
        "leads"   [[words, ...], ...]: of a row of a table, its caption, then the names of its
                  columns
        "unread"  [[start, end], ...]: characters that are shown but not read, such as markup
    """

    blocks: str = ""

    def at(self, offset: int) -> tuple[int | None, tuple[str, ...]]:
        """Return the page (from 1) and the headings above a character, outermost first."""
        row = self._row(offset)
        return (row[3], tuple(self.wire["paths"][row[4]])) if row else (None, ())

    def spans(self) -> list[tuple[int, int, str, int | None]]:
        """Return the start, end, kind and page of each block."""
        return [(row[0], row[1], row[2], row[3]) for row in self.wire["blocks"]]

    def kind_at(self, offset: int) -> str | None:
        """Return the kind of the block that holds a character; None before the first block."""
        row = self._row(offset)
        return row[2] if row else None

    @cached_property
    def wire(self) -> dict[str, Any]:
        """The JSON of `blocks`, parsed: its four parts by name."""
        if not self.blocks:
            return {"blocks": [], "paths": [], "leads": [], "unread": []}
        return json.loads(self.blocks)

    def _row(self, offset: int) -> list[Any] | None:
        rows = self.wire["blocks"]
        number = bisect_right(rows, offset, key=lambda row: row[0])
        return rows[number - 1] if number else None


@dataclass(frozen=True)
class Place:
    """Characters [start, end) of a document's text, which has this SHA-256 in UTF-8.

    `line` (of the first word) and `page` count from 1. `kind` is the file's format (`formats.py`).
    `id` is the row's, if the document is one row of a file of rows (jsonl, csv, tsv); else None. A
    document of an index without a file has its own id as `file`. `table_row` is set for a row of a
    table inside a document: the row as it is shown, with the caption and the names of the columns;
    None: `text` is shown.
    """

    file: str
    id: str | None
    line: int
    page: int | None
    headings: tuple[str, ...]  # outermost first
    start: int
    end: int
    text: str
    kind: str
    sha256: str
    table_row: str | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        """Return the place as a user finds it in the file: a line number, if it is text."""
        if self.id is not None:
            return f"{self.file}, row {self.id}"
        if self.page is not None:
            return f"{self.file}, page {self.page:,}"
        return f"{self.file}:{self.line}" if self.kind in LINES else self.file

    def same(self, other: "Place") -> bool:
        """Whether both are the same characters of the same document."""
        fields = attrgetter("file", "id", "start", "end")
        return fields(self) == fields(other)

    @property
    def words(self) -> str:
        """What is shown, on one line."""
        return normalize(self.table_row or self.text)

    @property
    def where(self) -> str:
        """Return the place in the file, in a form for programs: "12" (a line of text), "page 3",
        "row a7", "characters 5-60, Leave › Sick leave" (with the headings, without colons).
        """
        if self.id is not None:
            return f"row {self.id}"
        if self.kind in LINES:
            return str(self.line)
        if self.page is not None:
            return f"page {self.page}"
        headings = " › ".join(self.headings).replace(":", "")
        return ", ".join(filter(None, [f"characters {self.start}-{self.end}", headings]))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AnsweringSentence(Place):
    """A sentence that answers a query, the text around it, and its other places in reading order.

    Of very many places the first are in `also`, and `also_omitted` is the number of the others.

    `answers` is the probability that it answers; None: the model only ranks. `index` is its
    position among the document's sentences. A question or heading has the first text below it in
    `after`. `parts` are the summands of the score, if requested.
    """

    score: float
    index: int
    answers: float | None = None
    before: str = ""
    after: str = ""
    also: tuple[Place, ...] = ()
    also_omitted: int = 0  # how many more places there are than are listed in `also`
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class RankPart:
    """A document's rank in a list, from 1 (None: it is not in the list), and what this adds to its
    score (docs/search.md has the formula).
    """

    rank: int | None
    score: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a search of an index ranks a document as it does; the score is the sum of the three
    parts' scores.
    """

    meaning: RankPart  # among the nearest vectors
    words: RankPart  # among the highest BM25 scores
    reranked: RankPart  # among the reranked documents, by `relevance`
    # what orders the reranked documents (docs/search.md); None if it was not reranked
    relevance: float | None


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. `rank` counts from 1.

    A search of an index also fills the answering sentences, best first, the stored title,
    source file and metadata, the whole text as a place, and the explanation of the score. `answers`
    is the probability that the document answers at all, None if it is not known. `also` has a place
    in each of the documents that were found too and say the same: those of equal text, and those
    with the same best sentence between the same neighbors.
    """

    id: str
    score: float
    rank: int
    text: str | None = None
    sentences: tuple[AnsweringSentence, ...] = ()
    title: str = ""
    source: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    place: Place | None = None
    explanation: Explanation | None = None
    answers: float | None = None
    also: tuple[Place, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return all but the text, ready for JSON."""
        return {
            "id": self.id,
            "rank": self.rank,
            "score": self.score,
            "answers": self.answers,
            "title": self.title,
            "source": self.source,
            "metadata": dict(self.metadata),
            "sentences": [sentence.as_json() for sentence in self.sentences],
            "also": [asdict(place) for place in self.also],
            "explanation": None if self.explanation is None else asdict(self.explanation),
        }


def group_repeats(
    sentences: Iterable[Sentence], count: int, also: Collection[str] = ()
) -> list[list[Sentence]]:
    """Group sentences, best first, that have the same wording (`wording`): the first `count`
    groups, and those of the wordings `also`, wherever they come.
    """
    groups: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        key = wording(sentence.text)
        if key in groups:
            groups[key].append(sentence)
        elif len(groups) < count or key in also:
            groups[key] = [sentence]
    return list(groups.values())
