"""Lines of text, plain or compressed, from files, parts of files and standard input, and JSON rows
in them: objects, one in each line, and their fields.
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from runnel.checks import utf8
from runnel.errors import InputError, MissingDependency, ReadError, damage_in, describe, errors_as
from runnel.files import decode, marked_encoding, open_bytes
from runnel.records import Document, titled

# first bytes of compressed files
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
ENDINGS = ("", ".gz", ".zst")  # suffixes of a plain or compressed file
_LOOK_BYTES = 1 << 16  # from whose encoding a file's is guessed
# names of a row's id and text: the first of them that it has counts
_IDS = ("id", "_id", "docid", "query_id")
_TEXTS = ("text", "document_text", "query_text", "contents")


class Lines:
    """The lines of an open file, plain or packed, with their line ends. They can be read once,
    which closes the file.

    Args:
        longest: the most characters of a line; None: no limit.
        encoding: None: the one that the byte order mark says, or without one UTF-8. After the first
            line, `self.encoding` has it.
        before: returns the number of lines before `file`, if that is a part of a larger file.
        advice: for the error about text in another encoding.
    """

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        *,
        encoding: str | None = "utf-8-sig",
        newline: str | None = "\n",
        longest: int | None = None,
        before: Callable[[], int] = lambda: 0,
        advice: str = "convert it to UTF-8",
    ) -> None:
        self.name = name
        self.encoding = encoding
        self.warning: str | None = None  # that its encoding was guessed
        self._file = file
        self._newline = newline
        self._longest = longest
        self._before = before
        self._advice = advice

    def __iter__(self) -> Iterator[str]:
        number = 0
        # as `readline` takes it: -1 is no limit
        most = -1 if self._longest is None else self._longest + 1
        try:
            with self._file, self._open() as text:
                for line in iter(partial(text.readline, most), ""):
                    number += 1
                    if self._longest is not None and len(line) > self._longest:
                        raise ReadError(
                            f"{self.place(number)} is larger than {self._longest:,} bytes; raise"
                            " Limits.unpacked_bytes if you trust the file"
                        )
                    yield line
        except (*DAMAGED, UnicodeError, OSError) as error:
            problem, advice = self._problem(error)
            raise ReadError(
                f"{self.name} {problem} after line {self._before() + number}: {advice}"
            ) from error

    def _problem(self, error: Exception) -> tuple[str, str]:
        """Return the problem with the file, and advice, in words."""
        if isinstance(error, DAMAGED):
            return "is damaged or incomplete", f"{describe(error)}; download it again"
        if not isinstance(error, UnicodeError):
            return "cannot be read", "check the file and its disk"
        encoding = "UTF-8" if (self.encoding or "utf-8").startswith("utf-8") else self.encoding
        byte = ""
        if isinstance(error, UnicodeDecodeError):
            byte = f"byte 0x{error.object[error.start]:02x}: "
        return f"is not {encoding} text ({byte}{getattr(error, 'reason', error)})", self._advice

    def _open(self) -> io.TextIOWrapper:
        content = unpacked(self._file, self.name)
        if self.encoding is None:
            head = content.peek(4)  # type: ignore[attr-defined]
            self.encoding = marked_encoding(head) or self._guessed(content)
        return io.TextIOWrapper(content, self.encoding, newline=self._newline)

    def _guessed(self, content: BinaryIO) -> str:
        """Return UTF-8, or the encoding that a text that is not UTF-8 seems to have."""
        if not content.seekable():
            return "utf-8"
        begin = content.read(_LOOK_BYTES)
        content.seek(0)
        with suppress(UnicodeDecodeError):
            if "\0" not in codecs.getincrementaldecoder("utf-8")().decode(begin):
                return "utf-8"
        guess = decode(begin, self.name)  # refuses what is binary
        self.warning = guess.warning
        return guess.encoding

    def place(self, number: int) -> "LinePlace":
        return LinePlace(self, number)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The place of a line, for messages. Lines before a part of a file are
    counted only on request.
    """

    _lines: Lines
    _number: int

    @property
    def line(self) -> int:
        return self._lines._before() + self._number

    def __str__(self) -> str:
        return f"{self._lines.name}, line {self.line}"


def read_head(path: str | Path, size: int) -> bytes:
    """Read the first `size` bytes of a file, unpacked."""
    with open_bytes(Path(path).absolute()) as file, damage_in(path, *DAMAGED):
        return unpacked(file, str(path)).read(size)


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield (place, line without its line end) for each nonblank line of a file."""
    for number, line in enumerate(Lines(open_bytes(Path(path).absolute()), str(path)), start=1):
        if not line.isspace():
            yield f"{path}, line {number}", line.removesuffix("\n").removesuffix("\r")


def read_json(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) for each line of a jsonl file."""
    for where, line in read_lines(path):
        row = parse_object(line, where)
        if "\\u" in line:
            utf8(json.dumps(row, ensure_ascii=False), where, ReadError)
        yield where, row


def parse_object(line: str, where: object) -> dict[str, Any]:
    """Parse a line as a JSON object."""
    try:
        row = json.loads(line)
        if isinstance(row, dict):
            return row
        problem = f"got {type(row).__name__}"
    except (ValueError, RecursionError) as error:
        problem = f"not valid JSON ({error})"
    raise ReadError(f"{where}: {problem}; expected one object in braces per line")


def parse_document(row: Mapping[str, object], where: object) -> Document:
    """Return a document from a JSON row with an id, a text and optionally a title, which is put
    before the text.
    """
    key, text = (next((row[k] for k in names if k in row), None) for names in (_IDS, _TEXTS))
    if not isinstance(key, str | int) or key == "" or not isinstance(text, str):
        raise ReadError(
            f'{where}: expected "id" (or "_id", "docid") and "text", got'
            f" {'an empty id' if key == '' else keys(row)}"
        )
    return Document(str(key), titled(row.get("title"), text))


def keys(row: Mapping[str, object]) -> str:
    """Describe the keys of a row for a message."""
    return f"the keys {', '.join(map(repr, row))}" if row else "an empty object"


def text_of(row: Mapping[str, object], name: str, where: object) -> str:
    """Return a text of a row."""
    value = row.get(name)
    if not isinstance(value, str):
        raise _no_text(row, name, f"{where}: expected a text")
    return value


def texts_of(row: Mapping[str, object], name: str, where: object) -> list[str]:
    """Return a list of texts of a row; a text alone is a list of one."""
    value = row.get(name)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _no_text(row, name, f"{where}: expected a text or a list of texts")
    return texts


def _no_text(row: Mapping[str, object], name: str, expected: str) -> InputError:
    value = row.get(name)
    came = f"{type(value).__name__} {str(value)[:40]!r}" if name in row else keys(row)
    return InputError(f'{expected} as "{name}", got {came}')


def find(folder: Path, *names: str) -> Path | None:
    """Return the first of these files that exists in `folder`, plain or compressed."""
    return next(
        (p for name in names for ending in ENDINGS if (p := folder / (name + ending)).is_file()),
        None,
    )


DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # raised by reading from `unpacked`


def unpacked(file: BinaryIO, name: str) -> BinaryIO:
    """Return a file's unpacked content; gzip and zstd are recognized by the first bytes."""
    if not hasattr(file, "peek"):
        file = io.BufferedReader(file)  # type: ignore[type-var]
    head = file.peek(4)
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if not head.startswith(ZSTD):
        return file
    with errors_as(
        MissingDependency,
        f"{name} is compressed with zstd",
        ImportError,
        advice="run `pip install zstandard`, or `zstd -d` the file",
    ):
        import zstandard
    return io.BufferedReader(_Frames(file, zstandard), 1 << 17)


class _Frames(io.RawIOBase):
    """The content of zstd frames. zstandard's own stream reports no error for a truncated file."""

    def __init__(self, file: BinaryIO, zstandard: ModuleType) -> None:
        self._file = file
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame = self._decompressor.decompressobj()
        self._inside = False  # inside a frame
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = b""
            if self._frame.eof:
                data = self._frame.unused_data
                self._frame = self._decompressor.decompressobj()
                self._inside = False
            data = data or self._file.read(1 << 14)
            if not data:
                if not self._inside:
                    return 0
                raise EOFError("the compressed data is incomplete")
            self._inside = True
            try:
                self._output = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size
