"""What the three models take from the hidden vectors as they stream out of the engine: sums, never the whole text.

T  tokens of a request   n  tokens of one segment   D  width of hidden vectors   S  sentences or spans
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.models.heads import MatchScore

_ROWS = 1 << 12  # sentences whose words are counted at a time


class WeightedMean:
    """Weighted means of hidden vectors over slices of a request, and the last hidden vector.

    Args:
        ids: (T,) token ids.
        weight: (V,) weight of each id.
        slices: token ranges [start, end), disjoint and in order.
    """

    def __init__(self, ids: np.ndarray, weight: Tensor, slices: list[slice]) -> None:
        self._ids = torch.as_tensor(np.asarray(ids, dtype=np.int64))
        self._weight = weight
        self._slices = slices
        self.sums: list[Tensor | None] = [None] * len(slices)
        self.totals = [0.0] * len(slices)
        self.end: Tensor | None = None

    def read(self, start: int, hidden: Tensor) -> None:
        stop = start + hidden.shape[0]
        for i, part in enumerate(self._slices):
            a, b = max(part.start, start), min(part.stop, stop)
            if a < b:
                weight = self._weight[self._ids[a:b]]
                total = (weight @ hidden[a - start : b - start]).double()  # segments in fp32, their sum in fp64
                before = self.sums[i]
                self.sums[i] = total if before is None else before + total
                self.totals[i] += float(weight.sum())
        self.end = hidden[-1].clone()

    def mean(self, index: int) -> Tensor:
        """(D,) fp32 mean of one slice; zeros if it is empty."""
        total = self.sums[index]
        if total is None:
            assert self.end is not None
            return torch.zeros_like(self.end)
        return (total / self.totals[index]).float()

    def result(self) -> WeightedMean:
        return self


class SpanMeans:
    """Weighted mean of each span of tokens, spans in any order and overlapping as they like.

    Keeps the running sum at each span's two ends, so memory depends on the number of spans, and 12 bytes a token. `sum` (D,)
    fp64 and `total` are those of all tokens so far.
    """

    def __init__(self, ids: np.ndarray, weight: Tensor, starts: np.ndarray, ends: np.ndarray) -> None:
        self._weights = weight[torch.as_tensor(np.asarray(ids, dtype=np.int64))]  # (T,)
        self._totals = np.concatenate(
            [[0.0], self._weights.numpy().cumsum(dtype=np.float64)]
        )  # before each token, and at the end
        self._bounds = np.unique(np.concatenate([starts, ends]))  # sorted token boundaries
        self._starts, self._ends = starts, ends
        self._next = 0
        self.sum: Tensor = torch.zeros(0, dtype=torch.float64)  # (D,) once the width is known
        self.total = 0.0
        self._sums: list[Tensor] = []  # of each segment, (bounds in it, D)

    def read(self, start: int, hidden: Tensor) -> None:
        stop = start + hidden.shape[0]
        last = int(np.searchsorted(self._bounds, stop, side="right"))
        edges = np.concatenate([[0], self._bounds[self._next : last] - start])
        sums = sums_between(hidden, self._weights[start:stop], edges).double().cumsum(0)  # stretches in fp32, their sum in fp64
        if start:
            sums += self.sum
        self._sums.append(sums[:-1])  # up to each place; the last one is up to the end
        self._next, self.sum, self.total = last, sums[-1], float(self._totals[stop])

    def result(self) -> Tensor:
        """(S, D) fp32."""
        sums = torch.cat(self._sums)
        a, b = np.searchsorted(self._bounds, self._starts), np.searchsorted(self._bounds, self._ends)
        totals = torch.from_numpy(self._totals[self._ends] - self._totals[self._starts])
        return ((sums[torch.from_numpy(b)] - sums[torch.from_numpy(a)]) / totals[:, None]).float()


class SentenceScores:
    """The learned part of `MatchScore` for each sentence of a document, as its last token goes by.

    Args:
        ids: (T,) ids of the request.
        weight: (V,) weight of each id in means.
        bounds: (S+1,) token boundaries of the sentences within the request; sentence i is [bounds[i], bounds[i+1]).
        ends: (S,) the token at which each sentence is scored, inside its bounds.
        query_mean: (D,) weighted mean of the query's hidden vectors.
        head: the head, called with its lexical features set to zero (they are added when the document is known).
    """

    def __init__(
        self, ids: np.ndarray, weight: Tensor, bounds: np.ndarray, ends: np.ndarray, query_mean: Tensor, head: MatchScore
    ) -> None:
        self._ids, self._weight, self._bounds, self._ends = ids, weight, bounds, ends
        self._query, self._head = query_mean[None], head
        self._end = torch.zeros_like(query_mean)  # hidden vector at the end of the sentence that is open at a segment's end
        self._sum = torch.zeros_like(query_mean)  # of the sentence that is open at a segment's end
        self._total = 0.0
        self._next = 0
        self.scores = np.full(len(bounds) - 1, np.nan, dtype=np.float32)  # nan: a sentence without tokens

    def read(self, start: int, hidden: Tensor) -> None:
        first, stop = self._next, start + hidden.shape[0]
        a = max(int(self._bounds[0]), start)
        if a >= stop or first >= len(self.scores):
            return
        last = int(np.searchsorted(self._bounds, stop, side="right")) - 1  # sentences [first, last) are complete
        edges = np.maximum(self._bounds[first : last + 1] - a, 0)  # the last of these sentences may go on in the next segment
        weight = self._weight[torch.from_numpy(self._ids[a:stop].astype(np.int64))]
        sums, totals = (
            sums_between(hidden[a - start :], weight, edges),
            sums_between(weight[:, None], torch.ones_like(weight), edges)[:, 0],
        )
        sums[0] += self._sum
        totals[0] += self._total
        if last > first:
            places = self._ends[first:last] - start
            ends = hidden[torch.from_numpy(places.clip(min=0))]
            if places[0] < 0:  # whitespace follows it in this segment
                ends[0] = self._end
            full = totals[: last - first] > 0
            mean = sums[: last - first][full] / totals[: last - first][full, None]
            lexical = torch.zeros(mean.shape[0], self._head.lexical_weight.numel())
            scores = self._head(mean, ends[full], self._query, lexical)
            self.scores[np.arange(first, last)[full.numpy()]] = scores.numpy()
        if last < len(self._ends) and start <= self._ends[last] < stop:
            self._end = hidden[self._ends[last] - start].clone()
        self._sum, self._total, self._next = sums[-1].clone(), float(totals[-1]), last

    def result(self) -> np.ndarray:
        return self.scores


def sums_between(hidden: Tensor, weight: Tensor, edges: np.ndarray) -> Tensor:
    """Weighted sums of hidden vectors (n, D) from each edge (k,) to the next, and from the last one to the end: (k, D).

    The first edge must be 0.
    """
    places, offsets = torch.arange(len(hidden)), torch.from_numpy(edges)
    return F.embedding_bag(places, hidden, offsets, mode="sum", per_sample_weights=weight)


def lexical_features(ids: np.ndarray, bounds: np.ndarray, query_ids: np.ndarray, idf: np.ndarray) -> np.ndarray:
    """What exact matches alone say of each sentence: (S, 2) float32.

    Column 0: share of the query's static idf that the sentence contains. Column 1: BM25 (k1 0.9, b 0.4) with the
    sentences of this document as the collection, divided by the sum of the query's idf in it.

    Args:
        ids: (T,) ids of the request; bounds: (S+1,) token boundaries of the sentences; query_ids: ids of the query.
        idf: (V,) static table.
    """
    terms, count = np.unique(query_ids), len(bounds) - 1
    df = np.zeros(len(terms), dtype=np.int64)
    for _, tf in _term_counts(ids, bounds, terms):
        df += (tf > 0).sum(axis=0)
    static, dynamic = idf[terms], np.log1p((count - df + 0.5) / (df + 0.5))
    lengths = np.diff(bounds).astype(np.float32)
    norm = 0.9 * (0.6 + 0.4 * lengths / max(float(lengths.mean()), 1.0))
    features = np.empty((count, 2), dtype=np.float32)
    for rows, tf in _term_counts(ids, bounds, terms):
        # Sums, not products of matrices: some BLAS kernels set the flags of an invalid operation, which numpy would report.
        bm25 = (tf * 1.9 / (tf + norm[rows, None] + 1e-9) * dynamic).sum(axis=1)
        features[rows, 0] = ((tf > 0) * static).sum(axis=1) / (static.sum() + 1e-6)
        features[rows, 1] = bm25 / (dynamic.sum() + 1e-6)
    return features


def _term_counts(ids: np.ndarray, bounds: np.ndarray, terms: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield counts of each sorted term in each sentence, (s, len(terms)) float32, up to `_ROWS` sentences at a time."""
    for first in range(0, len(bounds) - 1, _ROWS):
        edges = bounds[first : first + _ROWS + 1]
        tf = np.zeros((len(edges) - 1, len(terms)), dtype=np.float32)
        part = ids[edges[0] : edges[-1]]
        where = np.searchsorted(terms, part)
        where[where == len(terms)] = 0
        hits = np.flatnonzero(terms[where] == part)
        np.add.at(tf, (np.searchsorted(edges, hits + edges[0], side="right") - 1, where[hits]), 1.0)
        yield slice(first, first + len(tf)), tf
