"""A query and a document read as one row: marks on matching tokens, and scores of its units.

T  tokens of a text      D  width of hidden vectors
n  units: a pair, or the sentences with a token      F  lexical features
K  kinds of mark
"""

from dataclasses import dataclass

import numpy as np

from runnel.models.base import Model
from runnel.models.heads import MARK_MATCH, MARK_QUERY, MARKS, Head
from runnel.request import Array, OpenRequest, Request, Result, space
from runnel.text.sentences import SentenceTokens


@dataclass(frozen=True, eq=False)
class Item:
    """A query and a document to read as one row, in which a pair or the document's sentences (n)
    are scored.

    The request's positions are the ends of the scored units. With a head that matches, its ranges
    are the text that the units are compared with (the document of a pair, the query of sentences)
    and then the units, and its tag is their lexical features (n, F) float32.
    """

    request: Request
    cut: int = 0  # tokens of the document cut by `max_tokens`
    empty: bool = False  # the document of a pair has no token
    sentences: SentenceTokens | None = None  # None for a pair
    # (S,) float32, 1 for sentences that answer the query; None if unknown
    labels: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """The tokens that are read."""
        return len(self.request.ids)

    @property
    def full(self) -> np.ndarray:
        """(S,) bool, True for sentences with a token, which are scored; (1,) for a pair."""
        return np.ones(1, dtype=bool) if self.sentences is None else self.sentences.full


def mark(ids: np.ndarray, earlier: np.ndarray, idf: np.ndarray, kind: int) -> np.ndarray:
    """Return marks (T, K) of a text's tokens read after another text with the `earlier` ids,
    distinct and sorted.
    """
    marks = np.zeros((len(ids), MARKS), dtype=np.float32)
    marks[:, kind] = 1
    if len(earlier):
        marks[:, MARK_MATCH] = idf[ids] * (
            earlier[np.searchsorted(earlier, ids).clip(max=len(earlier) - 1)] == ids
        )
    return marks


def mark_pair(
    model: Model, ids: np.ndarray, start: int, query: np.ndarray, document: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return marks (T, K) of a row whose query starts at `start`, and the share (1, 1) of its idf
    in the document.

    `document` has distinct, sorted ids.
    """
    assert model.features is not None
    idf = model.features.static_idf
    marks = np.zeros((len(ids), MARKS), dtype=np.float32)
    marks[start : start + len(query)] = mark(query, document, idf, MARK_QUERY)
    terms, first = np.unique(query, return_index=True)
    share = marks[start + first, MARK_MATCH].sum() / (idf[terms].sum() + 1e-6)
    return marks, np.array([[share]], dtype=np.float32)


def unit_scores(head: Head, result: Result) -> Array:
    """Return the scores (n,) of an `Item`'s units from the result of its request."""
    if head.inputs != "matches":
        return head(head.pooled(result))
    means = result.means
    return head(means[1:], result.hidden, means[:1], space(means).from_numpy(result.tag))


class UnitScores:
    """Scores of the units of a request like an `Item`'s, each computed after its last token is
    read; then only it is kept.

    `other` (1, D) is the mean of the text that the units are compared with; its tokens are not in
    the request.
    """

    def __init__(self, head: Head, reading: OpenRequest, lexical: np.ndarray, other: Array) -> None:
        self._head, self._reading, self._lexical, self._other = head, reading, lexical, other
        self._done = 0  # units

    def take_complete(self) -> Array:
        """Return the scores (k,) of the units that are newly complete."""
        hidden, rows = self._reading.take_complete()
        first, self._done = self._done, self._done + len(hidden)
        if not len(hidden):
            return hidden.new_zeros(0)
        if self._head.inputs != "matches":
            return self._head(hidden)
        lexical = space(hidden).from_numpy(self._lexical[first : self._done]).to(hidden)
        return self._head(_means(rows).to(hidden), hidden, self._other.to(hidden), lexical)


def _means(rows: Array) -> Array:
    """Return means (k, D) of rows of `RangeSums`."""
    return rows[:, :-1] / rows[:, -1:]
