"""Read the values of a large JSON file one by one: no more than one of them, and the text around it, is in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from runnel.errors import ReadError
from runnel.text.lines import DAMAGED, damaged, unpacked
from runnel.text.reading import open_bytes

_CHARS = 1 << 20  # read at once; doubled while a value is longer
_SPACE = " \t\r\n"


def read_values(path: Path, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (keys, value) for each value inside `depth` levels of objects and lists; a list's keys are "0", "1", ...

    For {"a": {"b": 1, "c": 2}} and depth 2: (("a", "b"), 1) and (("a", "c"), 2).

    Args:
        path: the file; plain, .gz or .zst.

    Raises:
        ReadError: the file is damaged, is not JSON in UTF-8, or has something other than objects and lists at these levels.
        MissingDependency: as `unpacked`.
    """
    with open_bytes(path.absolute()) as file, io.TextIOWrapper(unpacked(file, str(path)), "utf-8-sig") as text:
        reader = _Reader(text, path)
        yield from _values(reader, depth, ())
        if rest := reader.peek():
            raise reader.error(f"expected the end of the file, got {rest!r}")


def _values(reader: _Reader, depth: int, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if depth == 0:
        yield keys, reader.value()
        return
    opening = reader.take("{[")
    closing = "}" if opening == "{" else "]"
    if reader.peek() == closing:
        reader.take(closing)
        return
    for number in range(1 << 62):
        key = str(number)
        if opening == "{":
            key = reader.value()
            if not isinstance(key, str):
                raise reader.error(f"expected a name, got {key!r}")
            reader.take(":")
        yield from _values(reader, depth - 1, (*keys, key))
        if reader.take("," + closing) == closing:
            return


class _Reader:
    """Text that is read as it is needed."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0
        self._before = 0  # characters before `_text`

    def error(self, reason: str) -> ReadError:
        return ReadError(f"{self._path} is not valid JSON at character {self._before + self._at:,}: {reason}; download it again")

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or not self._more(_CHARS):
                return self._text[self._at : self._at + 1]

    def take(self, expected: str) -> str:
        """Return the next character, which must be one of `expected`."""
        found = self.peek()
        if not found or found not in expected:
            raise self.error(f"expected {' or '.join(expected)}, got {found or 'its end'!r}")
        self._at += 1
        return found

    def value(self) -> Any:
        """Return the next value, whole."""
        self.peek()
        size = _CHARS
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or not self._more(size):  # at the end of what was read, a number may go on
                    self._at = end if end <= len(self._text) else self._at
                    return value
            except json.JSONDecodeError as error:
                if not self._more(size):
                    raise self.error(error.msg) from error
            except RecursionError as error:
                raise self.error("nested too deeply") from error
            size *= 2

    def _more(self, size: int) -> bool:
        try:
            new = self._file.read(size)
        except UnicodeError as error:
            raise self.error(f"not UTF-8 ({error})") from error
        except DAMAGED as error:
            raise ReadError(damaged(str(self._path), error)) from error
        if new:
            self._before += self._at
            self._text, self._at = self._text[self._at :] + new, 0
        return bool(new)
