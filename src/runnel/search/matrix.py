"""Exact nearest vectors in memory: one matrix product over all passages.

n  passages   d  width of the vectors
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from runnel.errors import StoreError
from runnel.search.records import ScoredPassage
from runnel.work import top

TOLERANCE = 1e-3  # of the length of a unit vector
_ROWS = 10_000


class PassageMatrix:
    """Passages of an index as one matrix: (n,) ids of their documents and (n,) numbers, (n, d) float32 vectors of unit length.

    `ids` are those of all documents; `place` is that of the index, for messages.
    """

    def __init__(
        self, documents: Sequence[str], numbers: np.ndarray, vectors: np.ndarray, ids: Sequence[str], place: str
    ) -> None:
        order = {name: i for i, name in enumerate(ids)}
        odd = "a vector of document {!r} has the length {:.3g} instead of 1"
        damage = [odd.format(documents[i], length) for i, length in odd_lengths(vectors)]
        damage += [f"document {owner!r} has passages, but no text" for owner in documents if owner not in order]
        if damage:
            raise damaged(place, damage[0])
        self._owner = np.array([order[name] for name in documents], dtype=np.int64)
        self._ids, self._numbers, self._vectors = ids, numbers, vectors

    def nearest(self, vector: np.ndarray, count: int, among: Container[str] | None = None) -> list[ScoredPassage]:
        """Return the `count` passages with the highest inner product, best first, ties in stored order; None: of all."""
        rows, vectors = np.arange(len(self._owner)), self._vectors
        if among is not None:
            fits = np.array([name in among for name in self._ids], dtype=bool)
            rows = np.flatnonzero(fits[self._owner])
            vectors = vectors[rows]
        scores = vectors @ vector
        order = top(scores, count)
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
