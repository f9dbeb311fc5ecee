"""Inputs of a `MatchScore` head: marks on matching tokens, lexical features, and scores of sentences computed while reading.

T  tokens of a text   D  width of hidden vectors   S  sentences   F  lexical features   K  kinds of mark   V  vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.models.heads import MARK_DOCUMENT, MARK_MATCH, MARK_QUERY, MARKS, MatchScore
from runnel.models.lexical import K1, bm25, piece_hits
from runnel.request import RangeSums, Request
from runnel.text.sentences import SentenceTokens


@dataclass(frozen=True, eq=False)
class Item:
    """A query and a document to read as one row, in which a pair or the document's sentences (n) are scored.

    The request's positions are the ends of the scored units. With a head that matches, its ranges are the text that the units
    are compared with (the document of a pair, the query of sentences) and then the units, and its tag is their lexical features
    (n, F) float32.
    """

    request: Request
    cut: int = 0  # tokens of the document cut by `max_tokens`
    empty: bool = False  # the document of a pair has no token
    sentences: SentenceTokens | None = None  # None for a pair
    labels: np.ndarray | None = None  # (S,) float32, 1 for sentences that answer the query; None if unknown

    @property
    def tokens(self) -> int:
        """The tokens that are read."""
        return len(self.request.ids)

    @property
    def full(self) -> np.ndarray:
        """(S,) bool, True for sentences with a token, which are scored; (1,) for a pair."""
        return np.ones(1, dtype=bool) if self.sentences is None else self.sentences.full


class DocumentMarks:
    """Marks (T, K) of a document's tokens after a query, computed for each segment as it is read; see `request.Marks`."""

    def __init__(self, ids: np.ndarray, query_ids: np.ndarray, idf: np.ndarray) -> None:
        self._ids, self._match = ids, np.zeros_like(idf)
        self._match[query_ids] = idf[query_ids]
        self.shape = (len(ids), MARKS)

    def __getitem__(self, tokens: slice, /) -> np.ndarray:
        ids = self._ids[tokens]
        marks = np.zeros((len(ids), MARKS), dtype=np.float32)
        marks[:, MARK_DOCUMENT] = 1
        marks[:, MARK_MATCH] = self._match[ids]
        return marks


def query_marks(
    tokens: int, start: int, query_ids: np.ndarray, document_ids: np.ndarray, idf: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return marks (tokens, K) of a row whose query starts at `start`, and the share (1, 1) of its idf in the document.

    `document_ids` are distinct and sorted.
    """
    marks = np.zeros((tokens, MARKS), dtype=np.float32)
    place = slice(start, start + len(query_ids))
    marks[place, MARK_QUERY] = 1
    matches = _among(query_ids, document_ids)
    marks[place, MARK_MATCH] = idf[query_ids] * matches
    terms, first = np.unique(query_ids, return_index=True)
    share = float(idf[terms[matches[first]]].sum() / (idf[terms].sum() + 1e-6))
    return marks, np.array([[share]], dtype=np.float32)


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return (n,) bool: whether each value is in the sorted `known`."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    return known[np.searchsorted(known, values).clip(max=len(known) - 1)] == values


class SentenceScores:
    """Scores of a document's sentences, each computed, except for its lexical part, after its last token is read.

    weights (T,): of its tokens in means; query_mean (D,): weighted mean of the query's hidden vectors.
    """

    def __init__(self, tokens: SentenceTokens, weights: Tensor, query_mean: Tensor, head: MatchScore) -> None:
        self._tokens, self._full = tokens, np.flatnonzero(tokens.full)
        self._sums = RangeSums(np.stack([tokens.bounds[self._full], tokens.bounds[self._full + 1]], axis=1), weights)
        self._totals, self._ends = self._sums.totals(), tokens.ends[self._full]
        self._query, self._head = query_mean[None], head
        self._end = query_mean  # hidden vector at the end of a sentence that continues in the next segment
        self._scores = np.full(len(tokens.spans), -np.inf, dtype=np.float32)

    def take(self, start: int, hidden: Tensor) -> None:
        """Take the hidden vectors (n, D) of tokens [start, start + n); see `Request.take`."""
        self._sums.add(start, hidden)
        first, sums = self._sums.take_complete()
        last = first + len(sums)
        if last > first:
            places = self._ends[first:last] - start
            ends = hidden[torch.from_numpy(places.clip(min=0))]
            if places[0] < 0:  # only its trailing whitespace is in this segment
                ends[0] = self._end
            means = (sums / self._totals[first:last, None]).float()
            self._scores[self._full[first:last]] = self._head(means, ends, self._query, None).numpy()
        if last < len(self._ends) and start <= self._ends[last] < start + len(hidden):
            self._end = hidden[self._ends[last] - start].clone()

    def result(self, query_ids: np.ndarray, idf: np.ndarray) -> np.ndarray:
        """Return the scores (S,) float32; -inf for a sentence without a token. `idf` (V,) as for `lexical_features`."""
        lexical = lexical_features(self._tokens.ids, np.unique(self._tokens.bounds), query_ids, idf)  # of the full ones
        self._scores[self._full] += lexical @ self._head.lexical_weight.detach().numpy()
        return self._scores


def lexical_features(ids: np.ndarray, bounds: np.ndarray, query_ids: np.ndarray, idf: np.ndarray) -> np.ndarray:
    """Compute features (S, 2) float32 of each sentence (ids (T,), bounds (S+1,)) from exact matches.

    Column 0: share of the query's static idf (V,) in the sentence. Column 1: BM25 with the sentences of this
    document as the collection, divided by the sum of the query's idf in it.
    """
    terms, lengths = np.unique(query_ids), np.diff(bounds).astype(np.float64)
    hits = piece_hits(ids[bounds[0] : bounds[-1]], bounds - bounds[0], terms, len(idf))
    score, dynamic = bm25(hits, np.ones(len(terms)), lengths)
    absent = np.count_nonzero(dynamic == 0) * np.log1p(2 * len(lengths) + 1)
    share = np.bincount(hits.sentence, idf[terms][hits.term], len(lengths)) / (idf[terms].sum() + 1e-6)
    return np.stack([share, (K1 + 1) * score / (dynamic.sum() + absent + 1e-6)], axis=1).astype(np.float32)
