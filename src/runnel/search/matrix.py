"""Exact nearest vectors in memory: one matrix product over all passages.

n  passages   d  width of the vectors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runnel.search.filters import Condition, matches
from runnel.search.records import Found


class Matrix:
    """Passages of an index as one matrix.

    Args:
        documents: (n,) document id of each passage.
        numbers: (n,) number of each passage.
        vectors: (n, d) float32, unit length.
        metadata: what filters look at, by document id.
    """

    def __init__(
        self, documents: Sequence[str], numbers: np.ndarray, vectors: np.ndarray, metadata: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._ids = list(metadata)
        place = {name: i for i, name in enumerate(self._ids)}
        self._owner = np.array([place[name] for name in documents], dtype=np.int64)
        self._numbers, self._vectors, self._metadata = numbers, vectors, metadata

    def __len__(self) -> int:
        return len(self._owner)

    def allowed(self, where: list[Condition]) -> np.ndarray:
        """(n,) bool: whether each passage's document fulfils the conditions."""
        fits = np.array([matches(where, self._metadata[name]) for name in self._ids], dtype=bool)
        return fits[self._owner]

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[Found]:
        """The `count` passages with the highest inner product, best first, ties in their stored order."""
        rows = np.flatnonzero(self.allowed(where)) if where else None
        scores = self._vectors @ vector if rows is None else self._vectors[rows] @ vector
        return best(scores, count, lambda i: self._key(i if rows is None else int(rows[i])))

    def _key(self, row: int) -> tuple[str, int]:
        return self._ids[self._owner[row]], int(self._numbers[row])


def best(scores: np.ndarray, count: int, key: Callable[[int], tuple[str, int]]) -> list[Found]:
    """The `count` highest of `scores`, best first, ties in order; `key(i)` names entry i."""
    count = min(count, len(scores))
    if count == 0:
        return []
    bound = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = np.flatnonzero(scores >= bound)
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:count]
    return [Found(*key(int(i)), float(scores[i])) for i in order]
