"""Remembered documents: what a model keeps of each, so that a query costs only its own tokens.

An index, a folder of `Reranker.remember` and the cache of `runnel find` hold the same bytes (`Remembered.to_bytes`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from runnel.errors import InputError, StateError
from runnel.files import digest, write
from runnel.models.container import damage_in_state, pack, unpack
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

log = logging.getLogger("runnel")
Precision = Literal["fp32", "bf16", "int8"]


class Remembered(ABC):
    """What a model keeps of a document; see `DocumentState` and `SentenceVectors`."""

    text: str

    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Return everything except the text, for `of`."""

    @classmethod
    @abstractmethod
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> Self:
        """Make a document from `arrays`; a KeyError names one that is missing."""

    @property
    def size(self) -> int:
        """Bytes, without the text."""
        return sum(array.nbytes for array in self.arrays().values())

    def to_bytes(self, fingerprint: str = "") -> bytes:
        """Return everything except the text, for `from_bytes`. `fingerprint`: of the model, if nothing else names it."""
        return pack(self.arrays(), fingerprint, self.text)

    @classmethod
    def from_bytes(
        cls, data: bytes, text: str, place: str = "a remembered document", fingerprint: str | None = None, *, check: bool = True
    ) -> Self:
        """Read what `to_bytes` wrote; arguments and errors as for `unpack`."""
        with damage_in_state(place):
            return cls.of(text, unpack(data, place, fingerprint, text if check else None))


@dataclass(frozen=True, eq=False)
class Memory:
    """Documents remembered by `Reranker.remember`, by id, in order: in RAM, or in files that are read when they are ranked."""

    backbone: Any  # of the model that remembers them
    documents: Mapping[str, Remembered | StoredDocument]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, name: str) -> Remembered:
        document = self.documents[name]
        return document.load() if isinstance(document, StoredDocument) else document

    def entries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every document, in order."""
        return [(name, document.text) for name, document in self.documents.items()]

    def select(self, ids: Sequence[str]) -> Memory:
        """Return a memory of the documents with these ids, in this order. Documents are shared, not copied."""
        if (unknown := next((name for name in ids if name not in self.documents), None)) is not None:
            raise InputError(f"document {unknown!r} is not in this memory; remember it first, or leave it out")
        return Memory(self.backbone, {name: self.documents[name] for name in ids})


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A remembered document in a file, which was checked when it was found or written."""

    path: Path
    text: str
    kind: type[Remembered]
    fingerprint: str

    def load(self, *, check: bool = False) -> Remembered:
        """Read the file. Raises StateError if it is damaged; changed numbers are only seen with `check`."""
        with damage_in_state(place := f"the remembered document {self.path}"):
            return self.kind.from_bytes(self.path.read_bytes(), self.text, place, self.fingerprint, check=check)

    def is_sound(self) -> bool:
        """Return whether the file exists and is not damaged."""
        try:
            return self.path.exists() and self.load(check=True) is not None
        except StateError as error:
            log.warning("%s", error)
            return False


def remember_in(
    folder: Path,
    documents: Mapping[str, str | DocumentText],
    backbone: Any,
    precision: Precision,
    read: Callable[[Iterable[str | DocumentText]], Iterable[Remembered]],
    kind: type[Remembered],
) -> Memory:
    """Return a memory of documents in files, one for each text; `read` reads the texts without one, and damaged files again."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold what is known of texts
    texts, by = {text_of(document): document for document in documents.values()}, backbone.fingerprint()
    files = {text: folder / f"{digest(by, precision, text)}.safetensors" for text in texts}
    stored = {text: StoredDocument(file, text, kind, by) for text, file in files.items()}
    missing = [text for text, document in stored.items() if not document.is_sound()]
    for text, document in zip(missing, read(texts[text] for text in missing), strict=True):
        write(files[text], document.to_bytes(by))
    return Memory(backbone, {name: stored[text_of(document)] for name, document in documents.items()})
