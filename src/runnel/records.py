"""Plain records shared by all layers. No torch here."""

from __future__ import annotations

import json
import operator
import reprlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, SupportsIndex

from runnel.errors import InputError


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
        if not isinstance(self.metadata, dict):
            raise InputError(f"the metadata of document {self.id!r} is {reprlib.repr(self.metadata)}; expected a dict")


def titled(title: object, text: str) -> str:
    """Return a text preceded by its title, if it has one, and a space, as in BEIR and Tevatron."""
    return f"{title} {text}".strip() if isinstance(title, str) and title.strip() else text


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a document: `document[start:end] == text`, offsets in characters (code points)."""

    text: str
    start: int
    end: int
    score: float
    index: int  # position among the document's sentences, from 0


@dataclass(frozen=True)
class Places:
    """Pages and headings of a document.

    Args:
        blocks: JSON of {"rows": [[start, end, kind, page, number of the heading path], ...], "paths": [[title, ...], ...]};
            "": none.
    """

    blocks: str = ""

    def at(self, offset: int) -> tuple[int | None, tuple[str, ...]]:
        """Return the page (from 1) and the headings above a character, outermost first."""
        row = self._row(offset)
        return (row[3], tuple(self._rows_and_paths[1][row[4]])) if row else (None, ())

    def page_spans(self, page: int) -> list[tuple[int, int]]:
        """Return the characters [start, end) of each block of a page."""
        return [(row[0], row[1]) for row in self._rows_and_paths[0] if row[3] == page]

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


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. `rank` counts from 1.

    A search of an index also fills the answering sentences and the stored title, source file, metadata, and the pages and
    headings of the document's characters.
    """

    id: str
    score: float
    rank: int
    text: str | None = None
    sentences: tuple[Sentence, ...] = ()
    title: str = ""
    source: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    places: Places = field(default_factory=Places)


def expect_text(value: object, what: str) -> None:
    """Raise InputError unless `value` is a string; `what` names it."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {reprlib.repr(value)}; expected text (str)")


def expect_count(value: object, what: str) -> None:
    """Raise InputError unless `value` is an integer from 1 (Python or NumPy); `what` names it."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < 1:
        raise InputError(f"{what} is {reprlib.repr(value)}; expected a whole number from 1")
