"""Remembered documents: the state after each document, stored so that a query costs only its own tokens.

On disk a memory is a folder of blocks (safetensors) and `memory.json`; blocks are written atomically, so interrupted work
resumes. In RAM it is a list of the same blocks (`models/memory_block.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import InputError, StateError, StoreBusy
from runnel.files import replacing, sweep, write
from runnel.lock import WriterLock
from runnel.models.memory_block import Precision, Remembered, pack, read_sealed, row_of, seal, unique_ids_of, unpack

log = logging.getLogger("runnel")
Piece = bytes  # a single remembered document
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_FORMAT = "runnel-memory-1"


@dataclass(frozen=True, eq=False)
class Batch:
    """Several remembered documents: one state for all, means (n, D), and the sorted distinct token ids of each."""

    state: State
    means: Tensor
    unique_ids: list[np.ndarray]


class Memory:
    """Remembered documents, in order. Made by `Reranker.remember`, read by `Reranker.rank`."""

    def __init__(self, precision: Precision, fingerprint: str, folder: Path | None = None) -> None:
        self.precision, self.fingerprint, self.folder = precision, fingerprint, folder
        self._blocks: list[Path | dict[str, Tensor]] = []
        self._names: list[list[str]] = []
        self._texts: list[list[str]] = []
        self._digests: list[str] = []
        self._checked: set[tuple[int, str]] = set()  # blocks on disk whose digest has been compared
        self._lock = None if folder is None else WriterLock(folder / "memory.lock", folder)

    def __len__(self) -> int:
        return sum(len(names) for names in self._names)

    @property
    def bytes(self) -> int:
        """Size of all blocks in bytes, in RAM or on disk."""
        return sum(
            b.stat().st_size if isinstance(b, Path) else sum(t.numel() * t.element_size() for t in b.values())
            for b in self._blocks
        )

    def batches(self, rows: int, room: State, width: int) -> Iterator[Batch]:
        """Yield the documents in order, up to `rows` at a time; every batch overwrites `room`, a state of so many rows."""
        source = self._rows()
        while chosen := list(itertools.islice(source, rows)):
            count = len(chosen)
            state = State({name: tensor[:count] for name, tensor in room.tensors.items()}, room.tokens[:count])
            try:
                for place, (tensors, row) in enumerate(chosen):
                    unpack(tensors, row, state, place)
                means = torch.cat([tensors["mean"][row : row + 1] for tensors, row in chosen]).float().view(count, width)
                unique_ids = [unique_ids_of(tensors, row).int().flatten().numpy() for tensors, row in chosen]
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                raise StateError(
                    "the states of the remembered documents do not fit this model's shapes; remember or index them again"
                ) from error
            yield Batch(state, means, unique_ids)

    def _rows(self) -> Iterator[tuple[Mapping[str, Tensor], int]]:
        """Yield (block, row in it) of every document."""
        for number, names in enumerate(self._names):
            tensors = self._block(number)
            yield from ((tensors, row) for row in range(len(names)))

    def _block(self, number: int) -> dict[str, Tensor]:
        """Return a block from RAM, or read and check its file."""
        block = self._blocks[number]
        if not isinstance(block, Path):
            return block
        one = (number, self._digests[number])
        tensors = read_sealed(
            lambda: load_file(block), str(block), None if one in self._checked else f"{self.fingerprint} {one[1]}"
        )
        self._checked.add(one)
        return tensors

    def entries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every document, in order, without reading states."""
        return [pair for names, texts in zip(self._names, self._texts, strict=True) for pair in zip(names, texts, strict=True)]

    def select(self, ids: Sequence[str]) -> Memory:
        """Return a memory of the documents with these ids, in this order. Their states are shared, not copied."""
        places = {name: (block, row) for block, names in enumerate(self._names) for row, name in enumerate(names)}
        unknown = next((name for name in ids if name not in places), None)
        if unknown is not None:
            raise InputError(f"document {unknown!r} is not in this memory; remember it first, or leave it out")
        chosen = Memory(self.precision, self.fingerprint)
        opened: dict[int, Mapping[str, Tensor]] = {}
        for name in ids:
            number, row = places[name]
            if number not in opened:
                opened[number] = self._block(number)
            chosen._blocks.append(row_of(opened[number], row))
            chosen._names.append([name])
            chosen._texts.append([self._texts[number][row]])
        return chosen

    def pieces(self) -> list[Piece]:
        """Return each document's state separately, in order, to store elsewhere; `of_pieces` reads them."""
        blocks = map(self._block, range(len(self._blocks)))
        return [save(seal(row_of(block, row))) for block in blocks for row in range(len(block["tokens"]))]

    @classmethod
    def of_pieces(cls, precision: Precision, fingerprint: str, pieces: Mapping[str, Piece]) -> Memory:
        """Make a memory of documents, without their texts, from the states returned by `pieces`, by id."""
        memory = cls(precision, fingerprint)
        memory._blocks = [read_sealed(partial(load, piece), f"the index, document {name!r}") for name, piece in pieces.items()]
        memory._names, memory._texts = [[name] for name in pieces], [[""] for _ in pieces]
        return memory

    def lacks(self, block: int, digest: str) -> bool:
        """Return whether this block must be written: missing, damaged, or of other documents. If so, lock the folder."""
        if self._has(block, digest):
            return False
        self._lock_folder(block)
        return not self._has(block, digest)

    def release(self) -> None:
        """Let other processes write to the folder."""
        if self._lock is not None:
            self._lock.release(remove=True)

    def _has(self, block: int, digest: str) -> bool:
        if self._digests[block : block + 1] != [digest]:
            return False
        try:
            self._block(block)
        except StateError:
            return False
        return True

    def _lock_folder(self, kept: int) -> None:
        """Lock the folder and read it again; raise if its first `kept` blocks, already compared, have changed."""
        if self.folder is None or self._lock is None or self._lock.held:
            return
        self._lock.acquire()
        sweep(self.folder)
        if not (self.folder / "memory.json").exists():
            return
        now = Memory.open(self.folder, fingerprint=self.fingerprint)
        if now.precision != self.precision or now._digests[:kept] != self._digests[:kept]:
            raise StoreBusy(f"{self.folder} was changed by another process in the meantime; remember the documents again")
        self._names, self._texts, self._digests, self._blocks = now._names, now._texts, now._digests, now._blocks

    def put(self, block: int, documents: Sequence[Remembered], digest: str) -> None:
        """Write a block that this memory lacks: in place of a damaged one, or of other documents and all blocks after them."""
        if self._digests[block : block + 1] == [digest]:
            log.warning("%s was damaged; its documents were read again", self._blocks[block])
        else:
            self.truncate(block)
        tensors, place = pack(documents, self.precision), slice(block, block + 1)
        if self.folder is None:
            self._blocks[place] = [tensors]
        else:
            path = self.folder / f"block-{block:06d}.safetensors"
            with replacing(path) as file:
                save_file(seal(tensors, f"{self.fingerprint} {digest}"), file)
            self._blocks[place] = [path]
        self._digests[place] = [digest]
        self._names[place], self._texts[place] = [[d.id for d in documents]], [[d.text or "" for d in documents]]
        if self.folder is not None:
            self._write_index()

    def truncate(self, blocks: int) -> None:
        """Delete all blocks from number `blocks` on."""
        if blocks >= len(self._blocks):
            return
        self._lock_folder(blocks)
        for block in self._blocks[blocks:]:
            if isinstance(block, Path):
                block.unlink(missing_ok=True)
        for values in (self._blocks, self._names, self._texts, self._digests):
            del values[blocks:]
        if self.folder is not None:
            self._write_index()

    def _write_index(self) -> None:
        assert self.folder is not None
        index: dict[str, object] = {"format": _FORMAT, "precision": self.precision, "fingerprint": self.fingerprint}
        index |= {"names": self._names, "texts": self._texts, "digests": self._digests}
        write(self.folder / "memory.json", json.dumps(index))

    @classmethod
    def at(cls, folder: Path, precision: Precision, fingerprint: str) -> Memory:
        """Open the memory in `folder`, or make an empty one."""
        if not (folder / "memory.json").exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold texts
            return cls(precision, fingerprint, folder)
        memory = cls.open(folder, fingerprint=fingerprint)
        if memory.precision != precision:
            raise InputError(
                f"{folder} holds {memory.precision} states, got dtype {precision!r}; "
                f"use another folder or dtype={memory.precision!r}"
            )
        return memory

    @classmethod
    def open(cls, folder: str | Path, *, fingerprint: str) -> Memory:
        """Open a memory on disk.

        Raises:
            StateError: the memory is damaged or was written by another model.
        """
        folder = Path(folder)
        try:
            index = json.loads((folder / "memory.json").read_text())
            names, texts, digests = index["names"], index["texts"], index["digests"]
            blocks = zip(names, texts, strict=True)
            sound = digests == [block_digest([*zip(*block, strict=True)]) for block in blocks] and index["format"] == _FORMAT
            precision, writer = check_precision(index["precision"]), index["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
            raise StateError(f"{folder} is not a memory of documents ({error}); remember them in an empty folder") from error
        if not sound:
            raise StateError(f"{folder / 'memory.json'} is damaged; remember the documents again in an empty folder")
        if writer != fingerprint:
            raise StateError(
                f"{folder} was written by another model (fingerprint {writer!s:.12}, this model has {fingerprint[:12]}); use the "
                "model that wrote it, or remember the documents again"
            )
        memory = cls(precision, fingerprint, folder)
        memory._names, memory._texts, memory._digests = names, texts, digests
        memory._blocks = [folder / f"block-{i:06d}.safetensors" for i in range(len(names))]
        return memory


def piece(document: Remembered, precision: Precision) -> Piece:
    """Return this document as `Memory.pieces` would."""
    return save(seal(pack([document], precision)))


def block_digest(documents: Sequence[tuple[str, str]]) -> str:
    """Return a digest of (id, text) pairs, to recognize a stored block."""
    return hashlib.blake2b(json.dumps(documents).encode(), digest_size=16).hexdigest()


def check_precision(value: str) -> Precision:
    """Return the value if it names a precision of remembered states; raise InputError otherwise."""
    for precision in PRECISIONS:
        if value == precision:
            return precision
    raise InputError(f"dtype must be one of {', '.join(PRECISIONS)}, got {value!r}")
