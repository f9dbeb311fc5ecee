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
        starts, ends: (n,) int64, code points into the original text. A token never starts with whitespace unless it is nothing
            but whitespace. Tokens that are parts of one character share its span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty() -> Encoded:
        """No tokens."""
        return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def join(parts: Iterable[Encoded]) -> Encoded:
        """The parts one after another. Their offsets must already refer to one text."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else Encoded.empty()
        columns = ((part.ids for part in parts), (part.starts for part in parts), (part.ends for part in parts))
        return Encoded(*(np.concatenate(list(column)) for column in columns))

    def slice(self, start: int, stop: int) -> Encoded:
        """Tokens [start, stop), their offsets unchanged."""
        return Encoded(self.ids[start:stop], self.starts[start:stop], self.ends[start:stop])

    def shifted(self, by: int) -> Encoded:
        """The same tokens with `by` added to all offsets."""
        return Encoded(self.ids, self.starts + by, self.ends + by) if by else self


def skip_spaces(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Move starts over leading whitespace, except in tokens that are all whitespace."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    spaces = _SPACES[np.minimum(codes, 0x3001)]
    leading = np.flatnonzero((starts < len(codes)) & spaces[np.minimum(starts, len(codes) - 1)])
    if not len(leading):
        return starts
    following = np.where(spaces, len(codes), np.arange(len(codes)))
    following = np.minimum.accumulate(following[::-1])[::-1]  # the next character that is no whitespace
    moved = following[starts[leading]]
    starts = starts.copy()
    starts[leading] = np.where(moved < ends[leading], moved, starts[leading])
    return starts
