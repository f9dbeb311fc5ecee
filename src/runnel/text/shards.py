"""Fixed shares of an input for many independent jobs.

Shard i of n owns the lines that begin in its part of the bytes. Splitting by bytes lets a job find its share without reading the
others'; the shares differ by at most one line.
"""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from runnel.errors import InputError

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `number` of `count`, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard written as 2/8."""
        found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"--shard must be I/N with 1 <= I <= N, like 2/8, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        """The shard's part of file names: 00002-of-00008. Sorting by name sorts by number."""
        return f"{self.number:05d}-of-{self.count:05d}"

    def output_path(self, path: Path) -> Path:
        """Return the name of this shard of an output file: vectors.npy becomes vectors-00002-of-00008.npy."""
        return path.with_name(f"{path.stem}-{self.name}{path.suffix}")


def byte_range(size: int, shard: Shard) -> tuple[int, int]:
    """Return the part [start, end) of `size` bytes in which a shard's lines begin."""
    return (shard.number - 1) * size // shard.count, shard.number * size // shard.count


def line_range(file: BinaryIO, start: int, end: int) -> tuple[int, int]:
    """Return the byte range of the lines whose first byte is in [start, end); lines end at newlines."""
    return _line_start(file, start), _line_start(file, end)


def _line_start(file: BinaryIO, at: int) -> int:
    """Return the first offset from `at` on where a line starts, else the end of the file."""
    if at <= 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return file.tell()


def count_lines(file: BinaryIO, end: int) -> int:
    r"""Return how many lines end (at \n, \r or \r\n, as Python reads text) before byte `end`, which starts a line."""
    count, behind_return = 0, False
    for piece in iter(partial(FileRange(file, 0, end).read, _PIECE), b""):
        count += piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
        count -= behind_return and piece.startswith(b"\n")
        behind_return = piece.endswith(b"\r")
    return count


def range_sha256(file: BinaryIO, start: int, end: int) -> str:
    """Return the SHA-256 of the bytes [start, end)."""
    return hashlib.file_digest(FileRange(file, start, end), "sha256").hexdigest()


class FileRange(io.RawIOBase):
    """The bytes [start, end) of an open file, as a file to be read once. Closing it also closes the open file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._left = file, end - start
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
