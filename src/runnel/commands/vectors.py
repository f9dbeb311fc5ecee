"""Vectors written as they are made, so that stopped work can go on.

While the work lasts there are two files beside OUT, which only grow, and the description of `runnel.commands.resume`:

    OUT.part      the vectors, float32, one after the other
    OUT.part.ids  a line of JSON for each vector: [id, digest of its text, whether the text was cut]

A row counts once it is whole in both. `finish` turns them into OUT, and for .npy into OUT with the ending .ids too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from runnel.commands.resume import begin, beside, end, replacing

FORMATS = (".npy", ".jsonl")
_FLUSH_S = 0.5


class Row(NamedTuple):
    """What is known of a written vector besides its numbers."""

    id: str
    digest: str
    cut: bool


class VectorLog:
    """Rows of vectors being written for the file `out`. Use as a context: leaving it keeps every row added.

    Args:
        out: the file to make in the end, .npy or .jsonl.
        size: numbers in a vector.
        settings: what the vectors depend on; work begun with other settings is not continued.

    Raises:
        InputError: unfinished work beside `out` has other settings.
    """

    def __init__(self, out: Path, size: int, settings: Mapping[str, object]) -> None:
        self.out, self._size, self._settings = out, size, settings
        self._part, self._names = beside(out, ".part"), beside(out, ".part.ids")
        begin(out, settings)
        self.count = self._trim()
        self._vectors, self._ids = self._part.open("ab"), self._names.open("ab")
        self._flushed = time.monotonic()

    def __enter__(self) -> VectorLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._vectors.close()
        self._ids.close()

    def rows(self) -> Iterator[Row]:
        """The rows that were on disk when this log was opened or closed, in order."""
        with self._names.open(encoding="utf-8") as file:
            for _, line in zip(range(self.count), file, strict=False):
                yield Row(*json.loads(line))

    def add(self, row: Row, vector: np.ndarray) -> None:
        """Append a row; it is on disk a moment later."""
        self._vectors.write(np.ascontiguousarray(vector, dtype="<f4").tobytes())
        self._ids.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.count += 1
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._vectors.flush()
            self._ids.flush()
            self._flushed = time.monotonic()

    def finish(self, **more: object) -> dict[str, object]:
        """Make the output files, remove the part files, and return what OUT.json says: the settings, counts, and `more`."""
        self._vectors.close()
        self._ids.close()
        cut = sum(row.cut for row in self.rows())
        facts = {**self._settings, "dimension": self._size, "count": self.count, "truncated": cut, **more}
        if self.out.suffix == ".npy":
            with replacing(self.out.with_suffix(".ids")) as ids:
                ids.writelines(row.id.encode() + b"\n" for row in self.rows())
        with replacing(self.out) as file:
            if self.out.suffix == ".npy":
                self._write_npy(file)
            else:
                self._write_jsonl(file)
        end(self.out, facts)
        self._part.unlink()
        self._names.unlink()
        return facts

    def _trim(self) -> int:
        """Cut both files back to the rows that are whole in both; their number."""
        if not (self._part.exists() and self._names.exists()):
            self._part.write_bytes(b"")
            self._names.write_bytes(b"")
            return 0
        whole = self._part.stat().st_size // (4 * self._size)
        count = length = 0
        with self._names.open("rb") as file:
            for line in file:
                if count == whole or not line.endswith(b"\n"):
                    break
                count, length = count + 1, length + len(line)
        os.truncate(self._names, length)
        os.truncate(self._part, count * 4 * self._size)
        return count

    def _write_npy(self, file: BinaryIO) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self._size)}
        np.lib.format.write_array_header_1_0(file, header)
        with self._part.open("rb") as part:
            while block := part.read(1 << 22):
                file.write(block)

    def _write_jsonl(self, file: BinaryIO) -> None:
        with self._part.open("rb") as part:
            for row in self.rows():
                vector = np.frombuffer(part.read(4 * self._size), dtype="<f4")
                numbers = ", ".join(np.format_float_positional(x, trim="0") for x in vector)  # the shortest that reads back equal
                file.write(f'{{"id": {json.dumps(row.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'.encode())
