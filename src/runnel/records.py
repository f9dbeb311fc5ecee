"""Plain records shared by all layers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id. `metadata` is carried along untouched."""

    id: str
    text: str
    metadata: dict[str, object] = field(default_factory=dict)


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
