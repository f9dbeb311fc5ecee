"""Lines of text files, plain or compressed, one at a time and with their place for error messages."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from runnel.errors import InputError, MissingDependency, ReadError

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ENDINGS = ("", ".gz", ".zst")  # what may follow the name of a file


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """The text of a file in UTF-8, with line ends as they are; .gz and .zst are recognized by their first bytes.

    Raises:
        ReadError: missing, a directory, damaged or not UTF-8 (the last two while it is being read inside the context).
        MissingDependency: it is .zst and the zstandard package is not there.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
            file.seek(0)
            with io.TextIOWrapper(_expand(file, magic, path), encoding="utf-8-sig", newline="\n") as text:
                yield text
    except FileNotFoundError as error:
        raise ReadError(f"no file {path}; check the path (relative paths start at {Path.cwd()})") from error
    except IsADirectoryError as error:
        raise ReadError(f"{path} is a directory; expected a file") from error
    except UnicodeDecodeError as error:
        raise ReadError(f"{path} is not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x}); convert it") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ReadError(f"{path} is damaged or incomplete ({error}); fetch it again") from error


def read_head(path: str | Path, size: int) -> bytes:
    """Read the first `size` bytes of a file, uncompressed.

    Raises:
        ReadError, MissingDependency: as `open_text`.
    """
    with open_text(path) as text:
        head: bytes = text.buffer.read(size)
        return head


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """(place, line) for each line that is not blank, without its line end. Lines end at line feeds only."""
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield f"{path}, line {number}", line.removesuffix("\n").removesuffix("\r")
    except ReadError as error:
        raise ReadError(f"{error} (after line {number})" if number else str(error)) from error


def read_json(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) for each line of a jsonl file.

    Raises:
        InputError: a line is not a JSON object, or holds half a character.
    """
    for where, line in read_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON ({error}); expected one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected an object in braces, got {type(row).__name__}")
        if "\\u" in line:
            _refuse_half_characters(row, where)
        yield where, row


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files that is in `folder`, plain or compressed."""
    return next((p for name in names for ending in ENDINGS if (p := folder / (name + ending)).is_file()), None)


def _refuse_half_characters(row: dict[str, Any], where: str) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half of a surrogate pair ({error.object[error.start]!r}) is no text; remove it") from error


def _expand(file: IO[bytes], magic: bytes, path: str | Path) -> IO[bytes]:
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if not magic.startswith(_ZSTD):
        return file
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependency(
            f"{path} is compressed with zstd; run `pip install 'runnel[train]'`, or `zstd -d` the file"
        ) from error
    return io.BufferedReader(_Frames(file, zstandard), 1 << 17)


class _Frames(io.RawIOBase):
    """What zstd frames hold. zstandard's own stream ends without an error where a file is cut short."""

    def __init__(self, file: IO[bytes], zstandard: Any) -> None:
        self._file, self._error = file, zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame = self._decompressor.decompressobj()
        self._inside = False  # a frame
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = b""
            if self._frame.eof:
                data = self._frame.unused_data
                self._frame, self._inside = self._decompressor.decompressobj(), False
            data = data or self._file.read(1 << 14)
            if not data:
                if self._inside:
                    raise EOFError("it ends inside compressed data")
                return 0
            self._inside = True
            try:
                self._output = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size
