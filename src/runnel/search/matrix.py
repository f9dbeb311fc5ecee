"""Exact nearest vectors in memory: one matrix product over all passages.

n  passages   d  width of the vectors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runnel.errors import StoreError
from runnel.search.filters import Condition, matches
from runnel.search.records import ScoredPassage

TOLERANCE = 1e-3  # of the length of a unit vector
_ROWS = 10_000


class PassageMatrix:
    """Passages of an index as one matrix.

    Args:
        documents: (n,) document id of each passage.
        numbers: (n,) number of each passage.
        vectors: (n, d) float32, unit length.
        metadata: for filters, by document id.
        place: of the index, for messages.

    Raises:
        StoreError: a vector that is not finite or not of unit length, or a passage without a document.
    """

    def __init__(
        self,
        documents: Sequence[str],
        numbers: np.ndarray,
        vectors: np.ndarray,
        metadata: Mapping[str, Mapping[str, Any]],
        place: str,
    ) -> None:
        for i, length in odd_lengths(vectors):
            raise damaged(place, f"a vector of document {documents[i]!r} has the length {length:.3g} instead of 1")
        if lost := next((owner for owner in documents if owner not in metadata), ""):
            raise damaged(place, f"document {lost!r} has passages, but no text")
        self._ids = list(metadata)
        order = {name: i for i, name in enumerate(self._ids)}
        self._owner = np.array([order[name] for name in documents], dtype=np.int64)
        self._numbers, self._vectors, self._metadata = numbers, vectors, metadata

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[ScoredPassage]:
        """Return the `count` passages with the highest inner product, best first, ties in stored order."""
        rows, vectors = np.arange(len(self._owner)), self._vectors
        if where:
            fits = np.array([matches(where, self._metadata[name]) for name in self._ids], dtype=bool)
            rows = np.flatnonzero(fits[self._owner])
            vectors = vectors[rows]
        scores = vectors @ vector
        count = min(count, len(scores))
        if count == 0:
            return []
        bound = np.partition(scores, len(scores) - count)[len(scores) - count]
        chosen = np.flatnonzero(scores >= bound)
        order = chosen[np.argsort(-scores[chosen], kind="stable")][:count]
        found = zip(self._owner[rows[order]], self._numbers[rows[order]], scores[order], strict=True)
        return [ScoredPassage(self._ids[owner], int(number), float(score)) for owner, number, score in found]


def odd_lengths(vectors: np.ndarray) -> Iterator[tuple[int, float]]:
    """Yield the rows of (n, d) vectors that are not finite or not of unit length, each with its length."""
    for start in range(0, len(vectors), _ROWS):
        part = vectors[start : start + _ROWS].astype(np.float64)
        lengths = np.sqrt((part * part).sum(axis=1))
        for i in np.flatnonzero(~(np.abs(lengths - 1) <= TOLERANCE)):
            yield start + int(i), float(lengths[i])


def damaged(place: str, what: str) -> StoreError:
    """Return the error for an index with invalid content."""
    return StoreError(f"{place} is damaged: {what}; run `runnel index --check --to {place}` to see all that is")
