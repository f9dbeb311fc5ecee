"""A query and a document read as one row, with marks on matching tokens.

T  tokens of a text      K  kinds of mark      S  sentences of a document
n  units that are scored: a pair, or the sentences with a token
F  lexical features of a unit: of a pair `mark_pair`'s share, of sentences `piece_features`

`Request` (`request.py`) names the outputs to take from the hidden vectors: at positions, sums over
ranges; its tag is any value that is returned with the result.
"""

from dataclasses import dataclass

import numpy as np

from runnel.models.head import MARK_MATCH, MARK_QUERY, MARKS
from runnel.models.model import Model
from runnel.request import Request
from runnel.text.sentences import TokenUnits


@dataclass(frozen=True, eq=False)
class Item:
    """A query and a document to read as one row, in which a pair or the document's sentences (n)
    are scored.

    The request's positions are the ends of the scored units. For a head whose inputs are "matches",
    the request's ranges are the text that the units are compared with (the document of a pair, or
    the query of sentences) and then the units; its tag has their lexical features (n, F) float32.
    """

    request: Request
    cut: int = 0  # tokens of the document cut by `max_tokens`
    empty: bool = False  # the document of a pair has no token
    sentences: TokenUnits | None = None  # None for a pair
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
    distinct and sorted. `kind`: the column of the marks that says which text this is
    (`MARK_DOCUMENT` or `MARK_QUERY`).
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
    """Return marks (T, K) of a row whose query starts at `start`, and the share (1, 1) of the
    query's idf that is in the document.

    `document` has distinct, sorted ids.
    """
    idf = model.idf
    marks = np.zeros((len(ids), MARKS), dtype=np.float32)
    marks[start : start + len(query)] = mark(query, document, idf, MARK_QUERY)
    terms, first = np.unique(query, return_index=True)
    share = marks[start + first, MARK_MATCH].sum() / (idf[terms].sum() + 1e-6)
    return marks, np.array([[share]], dtype=np.float32)
