"""Remembered documents: the data that a model keeps of each document it has read, so that a query
costs only its own tokens.

    pack, unpack      arrays as bytes in the format of safetensors, with the fingerprint of the
                      model and one digest; saved streams use them too
    Remembered        one document; an index, a folder of `Reranker.remember` and the cache of
                      `runnel find` store its `to_bytes`
    Memory            several documents, in RAM or in files (`StoredDocument`, `remember_in`)
"""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runnel.errors import InputError, StateError, errors_as
from runnel.files import digest, write
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

log = logging.getLogger("runnel")
StatePrecision = Literal["fp32", "bf16", "int8"]
_DAMAGE = (
    SafetensorError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
)


def pack(arrays: Mapping[str, np.ndarray | bytes], fingerprint: str, about: str = "") -> bytes:
    """Return arrays as bytes for `unpack`. `about`: the text or other thing that they belong to. It
    is not stored, but `unpack` compares it by the digest.
    """
    held = {
        name: (
            np.frombuffer(array, dtype=np.uint8)
            if isinstance(array, bytes)
            else np.asarray(array, order="C")
        )
        for name, array in arrays.items()
    }
    return save(held, {"runnel": f"{_digest(held, fingerprint, about)} {fingerprint}"})


def unpack(
    data: bytes, place: str, fingerprint: str | None, about: str | None = ""
) -> dict[str, np.ndarray]:
    """Return the arrays that `pack` stored, by name. A bytes object becomes a uint8 array.

    Args:
        place: what the data is and where it comes from, for messages.
        fingerprint: the fingerprint that the data must have; None: any.
        about: as for `pack`; None: do not compare the digest, because that has been done before.

    Raises:
        StateError: the data is damaged, or belongs to another model or to something else.
    """
    with damage_in_state(place):
        # safetensors: 8 bytes with the length of the header, the header in JSON, the arrays
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        arrays = load(data)
        stored, _, model = header["runnel"].partition(" ")
    problem = None
    if about is not None and stored != _digest(arrays, model, about):
        problem = "is damaged, or belongs to another text"
    elif fingerprint not in (None, model):
        problem = (
            f"was made by another model (fingerprint {model[:12]}, this model has"
            f" {fingerprint:.12}); use that one"
        )
    if problem:
        raise StateError(f"{place} {problem}, or read the text again")
    return arrays


def damage_in_state(place: str) -> AbstractContextManager[None]:
    """Turn errors of reading packed data into a StateError; `place`: as for `unpack`."""
    return errors_as(
        StateError,
        f"{place} is damaged, or belongs to another kind of model",
        *_DAMAGE,
        advice="read the text again with this model",
    )


def _digest(arrays: Mapping[str, np.ndarray], model: str, about: str) -> str:
    hasher = hashlib.blake2b(f"{model}\n{about}".encode("utf-8", "surrogatepass"), digest_size=16)
    for name, array in sorted(arrays.items()):
        hasher.update(f"{name} {array.dtype} {list(array.shape)}".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


class Remembered(ABC):
    """The data that a model keeps of a document: a recurrent model a `DocumentState`, an encoder
    `SentenceVectors`.
    """

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
        """The number of bytes, without the text."""
        return sum(array.nbytes for array in self.arrays().values())

    def to_bytes(self, fingerprint: str = "") -> bytes:
        """Return everything except the text, for `from_bytes`. `fingerprint`: that of the model, or
        "" where the store of the bytes has it already.
        """
        return pack(self.arrays(), fingerprint, self.text)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        text: str,
        place: str = "a remembered document",
        fingerprint: str | None = None,
        *,
        check: bool = True,
    ) -> Self:
        """Read what `to_bytes` wrote; arguments and errors as for `unpack`."""
        with damage_in_state(place):
            return cls.of(text, unpack(data, place, fingerprint, text if check else None))


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A remembered document in a file, which was checked when it was found or written."""

    path: Path
    text: str
    kind: type[Remembered]
    fingerprint: str

    def load(self, *, check: bool = False) -> Remembered:
        """Read the file. Raises StateError if it is damaged; changed numbers are only seen with
        `check`.
        """
        with damage_in_state(place := f"the remembered document {self.path}"):
            return self.kind.from_bytes(
                self.path.read_bytes(), self.text, place, self.fingerprint, check=check
            )

    def is_sound(self) -> bool:
        """Return whether the file exists and is not damaged."""
        try:
            return self.path.exists() and self.load(check=True) is not None
        except StateError as error:
            log.warning("%s", error)
            return False


@dataclass(frozen=True, eq=False)
class Memory:
    """Documents remembered by `Reranker.remember`, by id, in order: in RAM, or in files that are
    read when they are ranked.
    """

    backbone: Any  # of the model that remembers them, for its fingerprint
    documents: Mapping[str, Remembered | StoredDocument]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, name: str) -> Remembered:
        document = self.documents[name]
        return document.load() if isinstance(document, StoredDocument) else document

    def entries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every document, in order."""
        return [(name, document.text) for name, document in self.documents.items()]

    def select(self, ids: Sequence[str]) -> Self:
        """Return a memory of the documents with these ids, in this order. Documents are shared, not
        copied.
        """
        if (
            unknown := next((name for name in ids if name not in self.documents), None)
        ) is not None:
            raise InputError(
                f"document {unknown!r} is not in this memory; remember it first, or leave it out"
            )
        return replace(self, documents={name: self.documents[name] for name in ids})


def remember_in(
    folder: Path,
    documents: Mapping[str, str | DocumentText],
    backbone: Any,
    precision: StatePrecision,
    read: Callable[[Iterable[str | DocumentText]], Iterable[Remembered]],
    kind: type[Remembered],
) -> Memory:
    """Return a memory of documents in files, one for each text; `read` reads the texts without one,
    and damaged files again.
    """
    # private: states and vectors tell much about the texts
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    texts = {text_of(document): document for document in documents.values()}
    by = backbone.fingerprint()
    files = {text: folder / f"{digest(by, precision, text)}.safetensors" for text in texts}
    stored = {text: StoredDocument(file, text, kind, by) for text, file in files.items()}
    missing = [text for text, document in stored.items() if not document.is_sound()]
    for text, document in zip(missing, read(texts[text] for text in missing), strict=True):
        write(files[text], document.to_bytes(by), mode=0o600)  # the folder may let others in
    return Memory(
        backbone, {name: stored[text_of(document)] for name, document in documents.items()}
    )
