"""Vectors written as they are made, so that an interrupted command resumes.

While the work lasts, two files are next to OUT, with those of `runnel.commands.resume`:

    OUT.part      the vectors, float32, one after the other
    OUT.part.ids  a line of JSON for each vector: [id, digest of its text, whether the text was cut]

A row counts once it is whole in both. `finish` turns them into OUT, and for .npy into OUT with the ending .ids too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from runnel.commands.resume import Output, appending
from runnel.errors import InputError
from runnel.files import replacing

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npy", ".jsonl")


class Row(NamedTuple):
    """The facts of a written vector, without its numbers."""

    id: str
    digest: str
    cut: bool


def vector_output(path: Path) -> Output:
    """Make the output for a `VectorLog`: .npy or .jsonl.

    Raises:
        InputError: the name has another ending.
    """
    if path.suffix == ".parquet":
        raise InputError(f"{path}: parquet needs a package that runnel does not depend on; write .npy or .jsonl and convert that")
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: cannot write {path.suffix or 'a name without an ending'!r}; name it {' or '.join(FORMATS)}")
    return Output(path, parts=(".part", ".part.ids"), also=[path.with_suffix(".ids")] if path.suffix == ".npy" else [])


class VectorLog:
    """Rows of vectors being written for an output (of `vector_output`) that has begun. Use as a context.

    Args:
        size: numbers in a vector.
    """

    def __init__(self, output: Output, size: int) -> None:
        self.output, self._size = output, size
        self._part, self._names = output.parts
        self.count = self._trim()
        self._files = ExitStack()
        self._append_vectors, self._append_names = (self._files.enter_context(appending(file)) for file in output.parts)

    def __enter__(self) -> VectorLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def rows(self) -> Iterator[Row]:
        """Yield the rows written so far, in order."""
        with self._names.open(encoding="utf-8") as file:
            for _, line in zip(range(self.count), file, strict=False):
                yield Row(*json.loads(line))

    def add(self, rows: Sequence[Row], vectors: Sequence[np.ndarray]) -> None:
        """Append rows; a killed process leaves all, some or none of them, each whole."""
        import numpy as np

        self._append_vectors(b"".join(np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in vectors))
        self._append_names(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
        self.count += len(rows)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows only."""
        if count < self.count:
            self.count = self._trim(count)

    def finish(self, **more: object) -> dict[str, object]:
        """Make the output files and return what OUT.json says: the settings, counts, and `more`."""
        out = self.output.path
        cut = sum(row.cut for row in self.rows())
        if out.suffix == ".npy":
            with replacing(out.with_suffix(".ids")) as new, new.open("wb") as ids:
                ids.writelines(row.id.encode() + b"\n" for row in self.rows())
        with replacing(out) as new, new.open("wb") as file:
            if out.suffix == ".npy":
                self._write_npy(file)
            else:
                self._write_jsonl(file)
        return self.output.end({"dimension": self._size, "count": self.count, "truncated": cut, **more})

    def _trim(self, most: int | None = None) -> int:
        """Cut both files back to the rows that are whole in both, `most` of them at most; their number."""
        for file in (self._part, self._names):
            file.touch()
        whole = self._part.stat().st_size // (4 * self._size)
        if most is not None:
            whole = min(whole, most)
        count = length = 0
        with self._names.open("rb") as lines:
            for line in lines:
                if count == whole or not line.endswith(b"\n"):
                    break
                count, length = count + 1, length + len(line)
        os.truncate(self._names, length)
        os.truncate(self._part, count * 4 * self._size)
        return count

    def _write_npy(self, file: BinaryIO) -> None:
        import numpy as np

        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self._size)}
        np.lib.format.write_array_header_1_0(file, header)
        with self._part.open("rb") as part:
            while block := part.read(1 << 22):
                file.write(block)

    def _write_jsonl(self, file: BinaryIO) -> None:
        import numpy as np

        with self._part.open("rb") as part:
            for row in self.rows():
                vector = np.frombuffer(part.read(4 * self._size), dtype="<f4")
                numbers = ", ".join(np.format_float_positional(x, trim="0") for x in vector)  # the shortest that reads back equal
                file.write(f'{{"id": {json.dumps(row.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'.encode())
