"""The scores of the units of an `Item`, from the hidden vectors that were read.

An `Item` (`models/items.py`) is a query and a document that are read as one text. What gets a score
is a unit: for a reranker the pair, one unit; for a sentence retriever each sentence that has a
token. With the template "query: {query} document: {document}" and a document of two sentences:

    query: why do cats purr document: Cats purr when they rest. Dogs bark.
           |---- other text --------| |------- unit 0 --------| |-unit 1-|
                                                              ^          ^  ends of the units

`Item.request` asks the engine for what the head needs, which depends on its `Head.inputs`:

    inputs       the request asks for                          the head is called with
    "text"       the hidden vectors at the units' ends; for    these (n, D)
                 a pair the one that `Head.request` pools
    "state"      the state after the text                      its tensor `Head.state` (1, L, ...)
    "tokens"     the hidden vectors before each token of the   these (1, Q, D); `tag`, the query's
                 query; its `tag` is the query's ids           ids (Q,)
    "matches"    the hidden vectors at the units' ends; its    the units' means (n, D), the hidden
                 ranges are first the other text, then the     vectors at their ends (n, D), the
                 units; its `tag` is the lexical features      mean of the other text (1, D), and
                                                               the lexical features (n, F)

The other text is what the units are compared with: the query, and what the template has after it.
For a reranker the order is reversed: the document is the other text, and the unit is the rest, from
the query on. Means are weighted by the tokens' weights, `Model.weight`.

    unit_scores    the scores of an item that has been read to its end
    UnitScores     the scores of sentences while a long document is being read

    n  units   D  width of hidden vectors   F  lexical features   Q  tokens of the query   L  layers
"""

import numpy as np
import torch
from torch import Tensor

from runnel.models.head import Head
from runnel.request import OpenRequest, Result, as_tensor


def unit_scores(head: Head, result: Result) -> Tensor:
    """Return the scores (n,) of an `Item`'s units from the result of its request: the table above,
    row by row.
    """
    if head.inputs == "tokens":
        return head(result.hidden[None], result.tag)
    if head.inputs != "matches":
        return head(head.pooled(result))
    means = result.means  # of the other text, then of the units
    return head(means[1:], result.hidden, means[:1], torch.from_numpy(result.tag))


class UnitScores:
    """Scores the sentences of a document while it is read after its query: each soon after its
    last token. Then only the score is kept, so that memory does not grow with hidden vectors.

    Args:
        head: with the inputs "text" or "matches".
        reading: the request for the document alone. Its positions are the ends of the units; for
            "matches", its ranges are the units, in order.
        lexical: (n, F) lexical features of all units; not used for "text".
        other: (1, D) the mean of the other text, the query, which was read before.
    """

    def __init__(
        self, head: Head, reading: OpenRequest, lexical: np.ndarray, other: Tensor
    ) -> None:
        self._head, self._reading, self._lexical, self._other = head, reading, lexical, other
        self._done = 0  # units that have been scored

    def take_complete(self) -> Tensor:
        """Return the scores (k,) of the k units that were completed since the last call."""
        # the vectors (k, D) at the units' ends, and for "matches" the sums over the units, with the
        # sum of the tokens' weights as the last column (k, D + 1)
        hidden, sums = map(as_tensor, self._reading.take_complete())
        first = self._done
        self._done = self._done + len(hidden)
        if not len(hidden):
            return hidden.new_zeros(0)
        if self._head.inputs != "matches":
            return self._head(hidden)
        lexical = torch.from_numpy(self._lexical[first : self._done]).to(hidden)
        means = sums[:, :-1] / sums[:, -1:]
        return self._head(means.to(hidden), hidden, self._other.to(hidden), lexical)
