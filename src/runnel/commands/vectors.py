"""Vectors written as they are made, so that an interrupted command resumes.

OUT.part has the vectors, float32, and OUT.part.ids a line of JSON for each: [id, digest of its text, whether the text was cut].
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from runnel.commands.resume import Output, appending
from runnel.errors import InputError, describe
from runnel.files import replacing

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npy", ".jsonl")
_BLOCK_ROWS = 4096  # vectors in memory at a time


class VectorFacts(NamedTuple):
    """The facts of a written vector, without its numbers."""

    id: str
    digest: str
    cut: bool


def vector_output(path: Path, *, ranges: bool = False) -> Output:
    """Make the output for a `VectorLog`: .npy or .jsonl, with `ranges` also the file of the ranges that it computes."""
    if path.suffix == ".parquet":
        raise InputError(f"{path}: parquet needs a package that runnel does not depend on; write .npy or .jsonl and convert that")
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: cannot write {path.suffix or 'a name without an ending'!r}; name it {' or '.join(FORMATS)}")
    also = [path.with_suffix(".ids")] if path.suffix == ".npy" else []
    return Output(path, parts=(".part", ".part.ids"), also=[*also, path.with_suffix(".ranges.npy")] if ranges else also)


def load_ranges(path: Path, size: int) -> np.ndarray:
    """Read the ranges (2, size) of 8-bit vectors that an earlier run wrote."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read as ranges: {describe(error)}; expected OUT.ranges.npy of runnel embed"
        ) from error
    if not isinstance(found, np.ndarray) or found.shape != (2, size) or found.dtype != np.float32:
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "several arrays"
        raise InputError(f"{path} has {what}; expected the ranges of these vectors, float32 (2, {size})")
    return found


class VectorLog:
    """Rows of vectors being written for an output (of `vector_output`) that has begun; missing ranges are computed from all."""

    def __init__(self, output: Output, size: int, precision: str = "float32", ranges: np.ndarray | None = None) -> None:
        self.output, self._size, self._precision, self._ranges = output, size, precision, ranges
        self._part, self._names = output.parts
        self._files = ExitStack()
        self._append_vectors, self._append_names = (self._files.enter_context(appending(file)) for file in output.parts)
        self.count = self._trim()

    def __enter__(self) -> VectorLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def rows(self) -> Iterator[VectorFacts]:
        """Yield the rows written so far, in order."""
        with self._names.open(encoding="utf-8") as file:
            for _, line in zip(range(self.count), file, strict=False):
                yield VectorFacts(*json.loads(line))

    def add(self, rows: Sequence[VectorFacts], vectors: Sequence[np.ndarray]) -> None:
        """Append rows; a killed process leaves all, some or none of them, each whole."""
        import numpy as np

        self._append_vectors(b"".join(np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in vectors))
        self._append_names(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
        self.count += len(rows)

    def finish(self, **more: object) -> dict[str, Any]:
        """Make the output files and return what OUT.json says: the settings, counts, and `more`."""
        from runnel.models.precision import CALIBRATED

        out = self.output.path
        if self._precision in CALIBRATED and self._ranges is None:
            self._ranges = self._compute_ranges(out.with_suffix(".ranges.npy"))
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

    def _trim(self) -> int:
        """Cut both files back to the rows that are whole in both; return their number."""
        whole = self._part.stat().st_size // (4 * self._size)
        count = length = 0
        with self._names.open("rb") as lines:
            for line in lines:
                if count == whole or not line.endswith(b"\n"):
                    break
                count, length = count + 1, length + len(line)
        os.truncate(self._names, length)
        os.truncate(self._part, count * 4 * self._size)
        return count

    def _compute_ranges(self, path: Path) -> np.ndarray:
        import numpy as np

        from runnel.models.precision import value_ranges

        if self.count < 2:
            raise InputError(
                f"{self._precision} vectors need the ranges of at least two vectors, got {self.count}; give --ranges"
            )
        found = [value_ranges(np.concatenate([block, block])) for block in self._vectors()]
        ranges = value_ranges(np.concatenate(found))
        with replacing(path) as new, new.open("wb") as file:
            np.save(file, ranges)
        return ranges

    def _vectors(self) -> Iterator[np.ndarray]:
        """Yield the vectors float32 (rows, size), in blocks."""
        import numpy as np

        with self._part.open("rb") as part:
            while data := part.read(4 * self._size * _BLOCK_ROWS):
                yield np.frombuffer(data, dtype="<f4").reshape(-1, self._size)

    def _write_npy(self, file: BinaryIO) -> None:
        import numpy as np

        from runnel.models.precision import quantize

        none = quantize(np.empty((0, self._size), np.float32), self._precision, self._ranges)
        kind = none.dtype.newbyteorder("<")
        header = {"descr": kind.str, "fortran_order": False, "shape": (self.count, none.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
        for block in self._vectors():
            file.write(np.ascontiguousarray(quantize(block, self._precision, self._ranges), dtype=kind).tobytes())

    def _write_jsonl(self, file: BinaryIO) -> None:
        import numpy as np

        from runnel.models.precision import quantize

        rows = self.rows()
        for block in self._vectors():
            for vector in quantize(block, self._precision, self._ranges):
                if vector.dtype == np.float32:  # the shortest numbers that read back equal
                    numbers = ", ".join(np.format_float_positional(x, trim="0") for x in vector)
                else:
                    numbers = ", ".join(map(str, vector.tolist()))
                name = json.dumps(next(rows).id, ensure_ascii=False)
                file.write(f'{{"id": {name}, "vector": [{numbers}]}}\n'.encode())
