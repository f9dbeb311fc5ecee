"""Token ids with the characters that they cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_SPACES = np.zeros(0x3001 + 1, dtype=bool)  # last entry: every code point above
_SPACES[[code for code in range(0x3001) if chr(code).isspace()]] = True


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Token ids with the characters that they cover.

    Attributes:
        ids: (n,) int32.
        starts, ends: (n,) int64, code points into the original text. A token never starts with whitespace unless it is all
            whitespace. Tokens that are parts of one character share its span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty() -> Encoded:
        """Return no tokens."""
        return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def join(parts: Iterable[Encoded]) -> Encoded:
        """Concatenate parts whose offsets already refer to one text."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else Encoded.empty()
        columns = ((part.ids for part in parts), (part.starts for part in parts), (part.ends for part in parts))
        return Encoded(*(np.concatenate(list(column)) for column in columns))

    def slice(self, start: int, stop: int) -> Encoded:
        """Return tokens [start, stop), their offsets unchanged."""
        return Encoded(self.ids[start:stop], self.starts[start:stop], self.ends[start:stop])

    def shifted(self, by: int) -> Encoded:
        """Return the same tokens with `by` added to all offsets."""
        return Encoded(self.ids, self.starts + by, self.ends + by) if by else self


def skip_spaces(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Move starts past leading whitespace, except in tokens that are all whitespace."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    within = np.flatnonzero(starts < len(codes))
    leading = within[_is_space(codes[starts[within]])]
    if not len(leading):
        return starts
    moved, stops = starts[leading], ends[leading]
    going = np.arange(len(leading))  # tokens that had only whitespace so far
    while len(going):
        moved[going] += 1
        going = going[moved[going] < stops[going]]
        going = going[_is_space(codes[moved[going]])]
    starts = starts.copy()
    starts[leading] = np.where(moved < stops, moved, starts[leading])
    return starts


def _is_space(codes: np.ndarray) -> np.ndarray:
    return _SPACES[np.minimum(codes, len(_SPACES) - 1)]
