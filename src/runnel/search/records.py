"""What an index keeps, as plain records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from runnel.errors import InputError

if TYPE_CHECKING:
    import numpy as np

FieldType = Literal["str", "int", "float", "bool"]
FIELD_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
WHOLE = -1  # the number of the row that holds a document's own vector


def check_storable(text: str, what: str) -> None:
    """Raise InputError if a text contains half of a surrogate pair, which neither UTF-8 nor a store can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!r} at character {error.start}"
        raise InputError(f"{what} contains half of a surrogate pair ({found}), which UTF-8 cannot store; replace it") from None


@dataclass(frozen=True, slots=True)
class Settings:
    """What is fixed when an index is created.

    Attributes:
        model: name or folder of the embedder, as it was given.
        probe: the embedder's vectors of a few fixed texts, by which another model is recognized whatever its name is.
        dimension: width d of the vectors.
        passage_tokens: the most tokens of a passage of several sentences.
        fields: metadata that searches may filter by, with their types.
        remember: whether documents are kept as the reranker remembers them, in 8 bits.
        format: of the index on disk.
    """

    model: str
    probe: Sequence[Sequence[float]]
    dimension: int
    passage_tokens: int = 256
    fields: Mapping[str, FieldType] = field(default_factory=dict)
    remember: bool = False
    format: int = 1


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A document as it is stored.

    Attributes:
        source: the file it came from; "" if it was handed over as text.
        source_hash: SHA-256 of that file, to see whether it has changed.
        content_hash: `content_hash` of the row; tells whether the document has changed.
        metadata: the user's, unchanged; the index's own facts are in the other columns.
        blocks: where pages and headings are, for `runnel.records.Places`; "" if there are none.
        saved: where a later reading can go on if text is appended (`models/passages.py`); None for short documents.
        memory: the document as the reranker remembers it (`models/memory.py`); None if it does not.
    """

    id: str
    text: str
    title: str
    source: str
    source_hash: str
    content_hash: str
    tokens: int
    metadata: Mapping[str, Any]
    blocks: str = ""
    saved: bytes | None = None
    memory: bytes | None = None


def content_hash(row: DocumentRow) -> str:
    """Hash (SHA-256) all that makes a document: text, title, source, metadata and blocks. A title counts once."""
    metadata = {key: value for key, value in row.metadata.items() if key != "title" or value != row.title}
    content = json.dumps([row.text, row.title, row.source, row.blocks, metadata], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class PassageRow:
    """A passage: a few sentences of a document with the vector they have behind all that comes before.

    `text == document.text[start:end]`. Row `WHOLE` of a document has its own vector, and no text.
    """

    document: str
    number: int
    start: int
    end: int
    text: str
    vector: np.ndarray  # (d,) float32
    page: int | None = None
    heading: str = ""

    @property
    def name(self) -> str:
        """For messages."""
        return "the whole document" if self.number == WHOLE else f"passage {self.number}"


@dataclass(frozen=True, slots=True)
class Commit:
    """A state of the index that searches can see. `time` in seconds since 1970."""

    number: int
    documents: int
    passages: int
    time: float


class Known(NamedTuple):
    """By what a document that is there is compared with a new one."""

    source: str
    source_hash: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that a first stage returns; higher scores are better."""

    document: str
    number: int
    score: float
