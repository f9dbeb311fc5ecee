"""Read the values of a large JSON file one by one. Only one value at a time, and the text around
it, is in memory.
"""

import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from runnel.errors import InputError, ReadError, damage_in
from runnel.files import open_bytes
from runnel.text.lines import DAMAGED, unpacked

_CHARS = 1 << 20  # characters read at once; doubled while a value is longer
_SPACE = " \t\r\n"


def read_values(path: Path, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (keys, value) for each value inside `depth` levels of objects and lists; a list's keys
    are "0", "1", ...

    For {"a": {"b": 1, "c": 2}} and depth 2: (("a", "b"), 1) and (("a", "c"), 2).
    """
    with (
        open_bytes(path.absolute()) as file,
        io.TextIOWrapper(unpacked(file, str(path)), "utf-8-sig") as text,
    ):
        reader = _Reader(text, path)
        yield from reader.values(depth, ())
        reader.expect("")  # the end of the file


def expect_object(value: object, where: str) -> dict[str, object]:
    """Return a value that is an object."""
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: expected an object in braces, got {type(value).__name__}; download the file"
            " again"
        )
    return value


class _Reader:
    """Takes values from a file, of which `_text` is in memory."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._decode = json.JSONDecoder().raw_decode
        # the text in memory, the place in it, and the number of characters of the file before it
        self._text, self._at, self._before = "", 0, 0

    def _error(self, reason: str) -> ReadError:
        return ReadError(
            f"{self._path} is not valid JSON at character {self._before + self._at:,}: {reason};"
            " download it again"
        )

    def values(self, depth: int, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if depth == 0:
            yield keys, self._value()
            return
        closing = "}" if (opening := self._take("{[")) == "{" else "]"
        if self._peek() == closing:
            self._take(closing)
            return
        for number in count():
            key = str(number)
            if opening == "{":
                self.expect('"')
                key = self._value()
                self._take(":")
            yield from self.values(depth - 1, (*keys, key))
            if self._take("," + closing) == closing:
                return

    def _peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or not self._more(_CHARS):
                return self._text[self._at : self._at + 1]

    def expect(self, expected: str) -> str:
        """Return the next character, which must be one of these; "": the file must end."""
        found = self._peek()
        # At the end of the file `found` is "", which is `in` every string: the second condition
        # refuses an end that is not expected, and more text where the end is.
        if found not in expected or bool(found) != bool(expected):
            raise self._error(
                f"expected {' or '.join(expected) or 'the end of the file'}, got"
                f" {found or 'its end'!r}"
            )
        return found

    def _take(self, expected: str) -> str:
        found = self.expect(expected)
        self._at += 1
        return found

    def _value(self) -> Any:
        self._peek()
        size = _CHARS
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                # A number at the end of the text that was read may have more digits.
                if end < len(self._text) or not self._more(size):
                    self._at = end
                    return value
            except (json.JSONDecodeError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._more(size):
                    raise self._error(getattr(error, "msg", "nested too deeply")) from error
            size *= 2

    def _more(self, size: int) -> bool:
        """Read more text, and drop the text before the place; return False if there is none."""
        with damage_in(self._path, *DAMAGED, UnicodeDecodeError):
            new = self._file.read(size)
        if new:
            self._before += self._at
            self._text = self._text[self._at :] + new
            self._at = 0
        return bool(new)
