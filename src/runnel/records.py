"""Plain records shared by all layers. No torch here."""

from __future__ import annotations

import operator
import reprlib
from dataclasses import dataclass, field
from typing import SupportsIndex

from runnel.errors import InputError


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id. `metadata` is carried along untouched.

    Raises:
        InputError: the id or the text is not a string, or the metadata is not a dict.
    """

    id: str
    text: str
    metadata: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_text(self.id, "the id of a document")
        expect_text(self.text, f"the text of document {self.id!r}")
        if not isinstance(self.metadata, dict):
            raise InputError(f"the metadata of document {self.id!r} is {reprlib.repr(self.metadata)}; expected a dict")


def titled(title: object, text: str) -> str:
    """Return a text with its title, if it has one, before it: joined by a space, as BEIR and Tevatron do."""
    return f"{title} {text}".strip() if isinstance(title, str) and title.strip() else text


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a document: `document[start:end] == text`, offsets in characters (code points)."""

    text: str
    start: int
    end: int
    score: float
    index: int  # position among the document's sentences, from 0


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. `rank` counts from 1; `sentences` are filled by callers that look inside."""

    id: str
    score: float
    rank: int
    text: str | None = None
    sentences: tuple[Sentence, ...] = ()


def expect_text(value: object, what: str) -> None:
    """Raise InputError unless `value` is a string; `what` names it."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {reprlib.repr(value)}; expected text (str)")


def expect_count(value: object, what: str) -> None:
    """Raise InputError unless `value` is a whole number from 1, of Python or of NumPy; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < 1:
        raise InputError(f"{what} is {reprlib.repr(value)}; expected a whole number from 1")
