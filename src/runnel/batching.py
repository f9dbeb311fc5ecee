"""Three small tools for many values, which models, indexes, servers and agents share:

top        the positions of the best scores
grouped    values in groups of a size
Recent     the values that were used last, up to a size together
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


def top(scores: "np.ndarray", count: int | None = None) -> "np.ndarray":
    """Return the positions of the `count` (None: all) highest scores of (n,), highest first; ties
    go to the earlier position.
    """
    places = np.arange(len(scores))
    below = -scores
    if count is not None and count < len(scores):
        # all that tie with the last one, too, and NaN: hence not `<=`
        places = np.flatnonzero(~(below > np.partition(below, count - 1)[count - 1]))
    return places[np.argsort(below[places], kind="stable")][:count]


def grouped(
    items: Iterable[T], size: Callable[[T], float], most_size: float, most: float = math.inf
) -> Iterator[list[T]]:
    """Yield items in groups, which end at `most` of them, or as soon as their sizes add up to
    `most_size`.
    """
    group: list[T] = []
    total = 0.0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= most_size or len(group) >= most:
            yield group
            group = []
            total = 0.0
    if group:
        yield group


class Recent(Generic[T]):
    """The values that were used last, by key, while their sizes add up to at most `most`; the
    newest stays, however large.

    Safe to use from several threads.
    """

    def __init__(self, size: Callable[[T], int], most: int) -> None:
        self._size = size
        self._most = most
        self._values: dict[Hashable, T] = {}  # the least recently used first
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value, and forget the least recently used ones beyond the limit."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while (
                len(self._values) > 1 and sum(map(self._size, self._values.values())) > self._most
            ):
                del self._values[next(iter(self._values))]
