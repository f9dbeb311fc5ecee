"""Plain records shared by all layers; the best, the groups and the recent ones of many; and checks
of values that users pass.

No torch here, and numpy only where arrays come in.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
import os
import reprlib
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, SupportsIndex, TypeVar

from runnel.errors import InputError
from runnel.formats import LINES

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
SentenceOrPlace = TypeVar("SentenceOrPlace", "Sentence", "AnsweringSentence")
Identified = TypeVar("Identified", bound="HasId")


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
        expect_kind(self.metadata, dict, f"the metadata of document {self.id!r}")


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
    return (1 + math.tanh(score / 2)) / 2


def percent(share: float) -> str:
    """Return a probability for people: "76 %", and never certainty: "under 1 %", "over 99 %"."""
    whole = round(100 * share)
    return "under 1 %" if whole < 1 else "over 99 %" if whole > 99 else f"{whole} %"


def highest(probabilities: Iterable[float | None]) -> float | None:
    """Return the highest of the probabilities that are known; None: none is."""
    return max((one for one in probabilities if one is not None), default=None)


_UNLIKELY = 0.15
_MANY = 8


def unanswered(answers: float | None) -> str:
    """Return what to say if probably nothing answers, from the probability that something does
    (None: it is not known), or "".
    """
    return (
        ""
        if answers is None or answers >= _UNLIKELY
        else f"nothing here seems to answer this ({percent(answers)})"
    )


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


@dataclass(frozen=True)
class Places:
    """Pages and headings of a document.

    `blocks`: JSON of {"rows": [[start, end, kind, page, number of the heading path], ...], "paths":
        [[title, ...], ...]}, or "".
    """

    blocks: str = ""

    def at(self, offset: int) -> tuple[int | None, tuple[str, ...]]:
        """Return the page (from 1) and the headings above a character, outermost first."""
        row = self._row(offset)
        return (row[3], tuple(self._rows_and_paths[1][row[4]])) if row else (None, ())

    def spans(self) -> list[tuple[int, int, str, int | None]]:
        return [(row[0], row[1], row[2], row[3]) for row in self._rows_and_paths[0]]

    def page_spans(self, page: int) -> list[tuple[int, int]]:
        return [(start, end) for start, end, _, its_page in self.spans() if its_page == page]

    def kind_at(self, offset: int) -> str | None:
        """Return the kind of the block that holds a character; None before the first block."""
        row = self._row(offset)
        return row[2] if row else None

    @cached_property
    def _rows_and_paths(self) -> tuple[list[Any], list[Any]]:
        value = json.loads(self.blocks) if self.blocks else {"rows": [], "paths": []}
        return value["rows"], value["paths"]

    def _row(self, offset: int) -> list[Any] | None:
        rows, _ = self._rows_and_paths
        number = bisect_right(rows, offset, key=lambda row: row[0])
        return rows[number - 1] if number else None


@dataclass(frozen=True)
class Place:
    """Characters [start, end) of a document's text, which has this SHA-256 in UTF-8.

    `line` (of the first word) and `page` count from 1; `id` is a row's. A document of an index
    without a file has its own id as `file`.
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

    def __str__(self) -> str:
        """Return the place as a user finds it in the file: a line number, if it is text."""
        if self.id is not None:
            return f"{self.file}, row {self.id}"
        if self.page is not None:
            return f"{self.file}, page {self.page:,}"
        return f"{self.file}:{self.line}" if self.kind in LINES else self.file

    def same(self, other: Place) -> bool:
        """Whether both are the same characters of the same document."""
        return (self.file, self.id, self.start, self.end) == (
            other.file,
            other.id,
            other.start,
            other.end,
        )

    @property
    def where(self) -> str:
        """Return the place in the file, in a form for programs: "12" (a line of text), "page 3",
        "row a7", "characters 5-60".
        """
        if self.id is not None:
            return f"row {self.id}"
        if self.kind in LINES:
            return str(self.line)
        return f"characters {self.start}-{self.end}" if self.page is None else f"page {self.page}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AnsweringSentence(Place):
    """A sentence that answers a query, the text around it, and its other places in reading order.

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
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class RankPart:
    """A document's rank in a list, from 1 (None: it is not in the list), and what this adds to its
    score.
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
    reranked: RankPart
    # what orders the reranked documents (docs/search.md); None if it was not reranked
    relevance: float | None


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. `rank` counts from 1.

    A search of an index also fills the answering sentences, in reading order, the stored title,
    source file and metadata, the whole text as a place, and the explanation of the score. `answers`
    is the probability that the document answers at all, None if it is not known.
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

    def as_json(self) -> dict[str, Any]:
        """Return all but the text, ready for JSON."""
        shown = {
            "id": self.id,
            "rank": self.rank,
            "score": self.score,
            "answers": self.answers,
            "title": self.title,
        }
        shown |= {
            "source": self.source,
            "metadata": dict(self.metadata),
            "sentences": [one.as_json() for one in self.sentences],
        }
        return shown | {
            "explanation": None if self.explanation is None else asdict(self.explanation)
        }


# ---- many values ---------------------------------------------------------------------------------
def top(scores: np.ndarray, count: int | None = None) -> np.ndarray:
    """Return the positions of the `count` (None: all) highest scores of (n,), highest first; ties
    go to the earlier position.
    """
    import numpy as np

    places, below = np.arange(len(scores)), -scores
    if count is not None and count < len(scores):
        # all that tie with the last one, too
        places = np.flatnonzero(~(below > np.partition(below, count - 1)[count - 1]))
    return places[np.argsort(below[places], kind="stable")][:count]


def grouped(
    items: Iterable[T], size: Callable[[T], float], most_size: float, most: float = math.inf
) -> Iterator[list[T]]:
    """Yield items in groups, which end at `most` of them, or as soon as their sizes add up to
    `most_size`.
    """
    group: list[T] = []
    total = 0.0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= most_size or len(group) >= most:
            yield group
            group, total = [], 0.0
    if group:
        yield group


def group_repeats(
    sentences: Iterable[Sentence], count: int, also: Collection[str] = ()
) -> list[list[Sentence]]:
    """Group sentences, best first, that differ only in whitespace: the first `count` groups, and
    those of the texts `also`.
    """
    groups: dict[str, list[Sentence]] = {}
    wanted = 0
    for sentence in sentences:
        key = normalize(sentence.text)
        if key in groups:
            groups[key].append(sentence)
        elif wanted < count or key in also:
            groups[key] = [sentence]
            wanted += 1
    return list(groups.values())


class HasId(Protocol):
    """What has an id."""

    @property
    def id(self) -> str:
        """The id."""


def by_id(items: Iterable[Identified], what: str) -> dict[str, Identified]:
    """Return items by their ids; raise InputError if two have the same one, or if there are none.
    `what` names them.
    """
    listed = list(items)
    counts = Counter(item.id for item in listed)
    if len(counts) < len(listed) or not listed:
        problem = f"two have the id {counts.most_common(1)[0][0]!r}" if listed else "there are none"
        raise InputError(f"{what}: {problem}; expected one at least, and each id once")
    return {item.id: item for item in listed}


class Recent(Generic[T]):
    """The values that were used last, by key, while their sizes add up to at most `most`; the
    newest stays, however large.

    Safe to use from several threads.
    """

    def __init__(self, size: Callable[[T], int], most: int) -> None:
        self._size, self._most = size, most
        self._values: dict[Hashable, T] = {}  # the least recently used first
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value, and forget the least recently used ones beyond the limit."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while (
                len(self._values) > 1 and sum(map(self._size, self._values.values())) > self._most
            ):
                del self._values[next(iter(self._values))]


# ---- checks of what users pass -------------------------------------------------------------------
def expect_text(value: object, what: str) -> None:
    """Raise InputError unless `value` is a string; `what` names it."""
    expect_kind(value, str, what)


def expect_kind(value: object, kind: type, what: str) -> None:
    """Raise InputError unless `value` is of this type; `what` names it."""
    if not isinstance(value, kind):
        raise InputError(
            f"{what} is {reprlib.repr(value)}; expected"
            f" {'text (str)' if kind is str else kind.__name__}"
        )


def expect_series(values: object, what: str, expected: str) -> None:
    """Raise InputError unless iterating over `values` yields texts in an order: not one text, a
    dict, a set or a table.
    """
    # names of a table's columns
    unordered = isinstance(values, Mapping | set | frozenset) or hasattr(values, "columns")
    if (
        unordered
        or isinstance(values, str | bytes)
        or not isinstance(values, Iterable)
        or getattr(values, "ndim", 1) == 0
    ):
        came = f"a {type(values).__name__}" if unordered else reprlib.repr(values)
        raise InputError(f"{what} are {came}; expected {expected}")


def expect_loaded(model: object, job: str) -> None:
    """Raise InputError for a name where a loaded model is expected, as other libraries accept it;
    `job` names the class.
    """
    if isinstance(model, str | os.PathLike):
        raise InputError(
            f"{job}({os.fspath(model)!r}): expected a loaded model; use"
            f" {job}.load({os.fspath(model)!r})"
        )


def expect_count(value: object, what: str, least: int = 1) -> None:
    """Raise InputError unless `value` is an integer (Python or NumPy) of at least `least`; `what`
    names it.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, SupportsIndex)
        or operator.index(value) < least
    ):
        raise InputError(f"{what} is {reprlib.repr(value)}; expected a whole number from {least}")


def expect_choice(value: object, choices: Iterable[str], what: str) -> None:
    """Raise InputError, which names the choices or, of many, the nearest ones, unless `value` is
    one; `what` names it.
    """
    if value not in (known := list(choices)):
        near = difflib.get_close_matches(str(value), known, 3, 0.5) if len(known) > _MANY else []
        raise InputError(
            f"{what} is {reprlib.repr(value)}; expected one of {', '.join(near or known) or 'none'}"
        )


def utf8(text: str, what: str = "the text", error: type[InputError] = InputError) -> bytes:
    """Encode a text, which is called `what`; raise the error, with the place, for half of a
    surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as failure:
        place = (
            f"U+{ord(text[failure.start]):04X} (half of a surrogate pair) at character"
            f" {failure.start}"
        )
        advice = (
            "read the file with the right encoding, or replace it with text.encode('utf-8',"
            " 'replace').decode()"
        )
        raise error(f"{what} contains {place}; {advice}") from failure
