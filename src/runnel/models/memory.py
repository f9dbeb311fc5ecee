"""Remembered documents: what a model keeps of each, so that a query costs only its own tokens.

An index, a folder of `Reranker.remember` and the cache of `runnel find` hold the same bytes (`Remembered.to_bytes`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.state import State
from runnel.errors import InputError, StateError
from runnel.files import digest, write
from runnel.models.container import pack, unpack

log = logging.getLogger("runnel")
Precision = Literal["fp32", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Remembered(Protocol):
    """What a model keeps of a document; see `DocumentState` and `SentenceVectors`."""

    @property
    def text(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes, without the text."""

    def to_bytes(self, fingerprint: str = "") -> bytes:
        """Return everything except the text, for a reader's `load`. `fingerprint`: of the model, if nothing else names it."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Documents remembered by `Reranker.remember`, by id, in order: in RAM, or in files that are read when they are ranked."""

    backbone: Backbone  # of the model that remembers them
    documents: Mapping[str, Remembered | StoredDocument]

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def bytes(self) -> int:
        """Size of the documents in RAM or on disk, without the texts."""
        return sum(document.size for document in self.documents.values())

    def __getitem__(self, name: str) -> Remembered:
        document = self.documents[name]
        return document.load() if isinstance(document, StoredDocument) else document

    def is_of(self, backbone: Backbone) -> bool:
        """Return whether a model with this backbone, or one with the same weights, remembers the documents."""
        return self.backbone is backbone or self.backbone.fingerprint() == backbone.fingerprint()

    def entries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every document, in order."""
        return [(name, document.text) for name, document in self.documents.items()]

    def select(self, ids: Sequence[str]) -> Memory:
        """Return a memory of the documents with these ids, in this order. Documents are shared, not copied."""
        if (unknown := next((name for name in ids if name not in self.documents), None)) is not None:
            raise InputError(f"document {unknown!r} is not in this memory; remember it first, or leave it out")
        return Memory(self.backbone, {name: self.documents[name] for name in ids})


Load = Callable[..., Remembered]  # a reader's `load`


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A remembered document in a file, which was checked when it was found or written."""

    path: Path
    text: str
    read: Load

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def load(self, *, check: bool = False) -> Remembered:
        """Read the file. Raises StateError if it is damaged; changed numbers are only seen with `check`."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise StateError(f"cannot read the remembered document {self.path}: {error}; remember it again") from error
        return self.read(data, self.text, str(self.path), check=check)


def remember_in(
    folder: Path,
    documents: Mapping[str, str],
    backbone: Backbone,
    precision: Precision,
    read: Callable[[Iterable[str]], Iterable[Remembered]],
    load: Load,
) -> Memory:
    """Return a memory of documents in files, one for each text; `read` reads the texts without one, and damaged files again."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold what is known of texts
    stored, fingerprint = {}, backbone.fingerprint()
    for text in dict.fromkeys(documents.values()):
        key = digest(fingerprint, precision, text)
        stored[text] = StoredDocument(folder / f"{key}.safetensors", text, partial(load, fingerprint=fingerprint))
    missing = [text for text, document in stored.items() if not _sound(document)]
    for text, document in zip(missing, read(missing), strict=True):
        write(stored[text].path, document.to_bytes(fingerprint))
    return Memory(backbone, {name: stored[text] for name, text in documents.items()})


def _sound(document: StoredDocument) -> bool:
    if not document.path.exists():
        return False
    try:
        document.load(check=True)
    except StateError as error:
        log.warning("%s", error)
        return False
    return True


@dataclass(frozen=True, eq=False)
class DocumentState:
    """The state after a document, in a precision, with the mean of its hidden vectors and its distinct token ids."""

    text: str
    tensors: Mapping[str, Tensor]  # "tokens" (1,), "mean" (D,), "ids" (sorted), "state.NAME" and, in 8 bits, "scale.NAME"

    @classmethod
    def of(cls, text: str, state: State, mean: Tensor, ids: np.ndarray, precision: Precision) -> DocumentState:
        """Keep a state of one row in a precision; ids are sorted."""
        tensors = {"tokens": state.tokens, "mean": mean, "ids": torch.from_numpy(ids)}
        whole = sum(tensor.numel() for tensor in state.tensors.values())
        for name, tensor in state.tensors.items():
            if 100 * tensor.numel() < whole:  # small, and may scale the others (xLSTM's m and n)
                tensors[f"state.{name}"] = tensor
            elif precision == "int8" and tensor.shape[-1] >= 16:  # short last dimensions (conv tails) are a few percent
                scale = (tensor.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-30)
                tensors |= {f"state.{name}": (tensor / scale).round().to(torch.int8), f"scale.{name}": scale}
            else:
                tensors[f"state.{name}"] = tensor if precision == "fp32" else tensor.to(torch.bfloat16)
        return cls(text, tensors)

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    @property
    def mean(self) -> Tensor:
        """(D,) fp32"""
        return self.tensors["mean"].float()

    @property
    def ids(self) -> np.ndarray:
        """The sorted distinct token ids of the document."""
        return self.tensors["ids"].int().numpy()

    def fill(self, state: State, place: int) -> None:
        """Fill a row of a state in place: rows are as large as a processor's cache, and there are many."""
        for name, tensor in state.tensors.items():
            tensor[place].copy_(self.tensors[f"state.{name}"][0])
            if f"scale.{name}" in self.tensors:
                tensor[place].mul_(self.tensors[f"scale.{name}"][0])
        state.tokens[place] = self.tensors["tokens"][0]

    def to_bytes(self, fingerprint: str = "") -> bytes:
        return pack(self.tensors, fingerprint, self.text)

    @classmethod
    def load(
        cls, data: bytes, text: str, place: str = "a remembered document", fingerprint: str | None = None, *, check: bool = True
    ) -> DocumentState:
        """Read what `to_bytes` wrote; arguments and errors as for `unpack`."""
        return cls(text, unpack(data, place, fingerprint, text if check else None))


def check_precision(value: str) -> Precision:
    """Return the value if it names a precision of remembered states; raise InputError otherwise."""
    for precision in PRECISIONS:
        if value == precision:
            return precision
    raise InputError(f"dtype must be one of {', '.join(PRECISIONS)}, got {value!r}")
