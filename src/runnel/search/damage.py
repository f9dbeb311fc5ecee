"""Damaged content of an index: its record, its error, and vectors that are not of unit length."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnel.errors import StoreError

TOLERANCE = 1e-3  # the most that the length of a unit vector may differ from 1
_CHECKED = 10_000  # vectors whose lengths are computed at a time


@dataclass(frozen=True, slots=True)
class Damage:
    """A problem of a document, or of the whole index (`document` is then None)."""

    document: str | None
    reason: str


def damaged(place: str, what: str) -> StoreError:
    """Return the error for an index with invalid content."""
    return StoreError(
        f"{place} is damaged: {what}; run `runnel check --in {place}` to see all damage"
    )


def odd_lengths(vectors: NDArray[np.float32]) -> Iterator[tuple[int, float]]:
    """Yield the rows of (n, d) vectors that are not finite or not of unit length, each with its
    length.
    """
    for start in range(0, len(vectors), _CHECKED):
        part = vectors[start : start + _CHECKED].astype(np.float64)
        lengths = np.sqrt((part * part).sum(axis=1))
        for i in np.flatnonzero(~(np.abs(lengths - 1) <= TOLERANCE)):
            yield start + int(i), float(lengths[i])
