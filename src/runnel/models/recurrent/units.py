"""The scores of an `Item`'s units: a pair, or the sentences with a token.

D  width of hidden vectors      n  units      F  lexical features
"""

import numpy as np
import torch
from torch import Tensor

from runnel.models.head import Head
from runnel.request import OpenRequest, Result, as_tensor


def unit_scores(head: Head, result: Result) -> Tensor:
    """Return the scores (n,) of an `Item`'s units from the result of its request."""
    if head.inputs == "tokens":
        return head(result.hidden[None], result.tag)
    if head.inputs != "matches":
        return head(head.pooled(result))
    # The first range of such a request is the other text; its tag has the lexical features.
    means = result.means
    return head(means[1:], result.hidden, means[:1], torch.from_numpy(result.tag))


class UnitScores:
    """Scores the units of a request like an `Item`'s while it is read: each unit after its last
    token. Then only the score is kept.

    `other` (1, D) is the mean of the hidden vectors of the text that the units are compared with,
    which was read before: the query. `reading` must read each unit as a range with one position,
    its last token.
    """

    def __init__(
        self, head: Head, reading: OpenRequest, lexical: np.ndarray, other: Tensor
    ) -> None:
        self._head, self._reading, self._lexical, self._other = head, reading, lexical, other
        self._done = 0  # units

    def take_complete(self) -> Tensor:
        """Return the scores of the units that were completed since the last call."""
        hidden, rows = map(as_tensor, self._reading.take_complete())
        first = self._done
        self._done = self._done + len(hidden)
        if not len(hidden):
            return hidden.new_zeros(0)
        if self._head.inputs != "matches":
            return self._head(hidden)
        lexical = torch.from_numpy(self._lexical[first : self._done]).to(hidden)
        means = rows[:, :-1] / rows[:, -1:]
        return self._head(means.to(hidden), hidden, self._other.to(hidden), lexical)
