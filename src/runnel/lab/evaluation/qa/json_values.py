"""Read the values of a large JSON file one by one: no more than one of them, and the text around it, is in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from runnel.errors import ReadError, damage_in
from runnel.text.lines import DAMAGED, unpacked
from runnel.text.reading import open_bytes

_CHARS = 1 << 20  # read at once; doubled while a value is longer
_SPACE = " \t\r\n"


def read_values(path: Path, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (keys, value) for each value inside `depth` levels of objects and lists; a list's keys are "0", "1", ...

    For {"a": {"b": 1, "c": 2}} and depth 2: (("a", "b"), 1) and (("a", "c"), 2).
    """
    with open_bytes(path.absolute()) as file, io.TextIOWrapper(unpacked(file, str(path)), "utf-8-sig") as text:
        reader = _Reader(text, path)
        yield from reader.values(depth, ())
        if rest := reader.peek():
            raise reader.error(f"expected the end of the file, got {rest!r}")


class _Reader:
    """Text that is read as it is needed."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path, self._decode = file, path, json.JSONDecoder().raw_decode
        self._text, self._at, self._before = "", 0, 0  # what was read, the place in it, and the characters before it

    def error(self, reason: str) -> ReadError:
        return ReadError(f"{self._path} is not valid JSON at character {self._before + self._at:,}: {reason}; download it again")

    def values(self, depth: int, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if depth == 0:
            yield keys, self._value()
            return
        closing = "}" if (opening := self._take("{[")) == "{" else "]"
        if self.peek() == closing:
            self._take(closing)
            return
        for number in count():
            key = self._value() if opening == "{" else str(number)
            if not isinstance(key, str):
                raise self.error(f"expected a name, got {key!r}")
            if opening == "{":
                self._take(":")
            yield from self.values(depth - 1, (*keys, key))
            if self._take("," + closing) == closing:
                return

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or not self._more(_CHARS):
                return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> str:
        found = self.peek()
        if not found or found not in expected:
            raise self.error(f"expected {' or '.join(expected)}, got {found or 'its end'!r}")
        self._at += 1
        return found

    def _value(self) -> Any:
        self.peek()
        size = _CHARS
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or not self._more(size):  # at the end of what was read, a number may go on
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if not self._more(size):
                    raise self.error(error.msg) from error
            except RecursionError as error:
                raise self.error("nested too deeply") from error
            size *= 2

    def _more(self, size: int) -> bool:
        """Read on; what is before the place is forgotten."""
        try:
            with damage_in(self._path, *DAMAGED):
                new = self._file.read(size)
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8 ({error})") from error
        if new:
            self._before += self._at
            self._text, self._at = self._text[self._at :] + new, 0
        return bool(new)
