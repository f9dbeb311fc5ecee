"""BM25 over words, the yardstick: k1 0.9, b 0.4, stop words and the plural s removed. Also mines
hard negatives.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    "a an and are as at be been but by can could did do does for from had has have he her his how i"
    " if in into is it its me my no not of on or our she should so such than that the their them"
    " then there these they this those to was we were what when where which who whom whose why will"
    " with would you your".split()
)


def words(text: str) -> list[str]:
    """Return lower-case words without stop words and without a plural s."""
    found = (w for w in _WORD.findall(text.lower()) if w not in _STOP)
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


class Bm25:
    """An index that scores all its documents for a query."""

    def __init__(self, documents: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        lists: dict[str, list[tuple[int, int]]] = {}
        lengths = np.zeros(len(documents))
        for number, text in enumerate(documents):
            counts = Counter(words(text))
            lengths[number] = counts.total()
            for word, count in counts.items():
                lists.setdefault(word, []).append((number, count))
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
        self.size = len(documents)
        self.lists: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for word, entries in lists.items():
            numbers, counts_ = np.array(entries).T
            idf = math.log(1 + (self.size - len(entries) + 0.5) / (len(entries) + 0.5))
            self.lists[word] = numbers, idf * counts_ / (counts_ + norm[numbers])

    def scores(self, query: str) -> NDArray[np.float64]:
        """Return the score of each document."""
        total = np.zeros(self.size)
        for word in set(words(query)):
            if word in self.lists:
                numbers, values = self.lists[word]
                total[numbers] += values
        return total

    def top(self, query: str, count: int) -> NDArray[np.int64]:
        """Return the best documents with a score above zero, best first; earlier documents win
        ties.
        """
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:count]
        return best[scores[best] > 0]
