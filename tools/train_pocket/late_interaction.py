"""The scores of the second look in torch, with a graph; `models/pocket/heads.py` computes the same
of arrays.

    D  width of the hidden vectors   Q  tokens of the query   T  tokens of the sentence
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.models.pocket.heads import LEAST_IDF
from runnel.models.recurrent.heads import HeldHead


def weigh(head: HeldHead, hidden: Tensor, idf: Tensor) -> Tensor:
    """Return weights (Q,) of the query's tokens: hidden (Q, D), static idf (Q,)."""
    return (idf + LEAST_IDF) * head.weight(hidden)[:, 0].clip(-3, 3).exp()


def interact(
    head: HeldHead, query: Tensor, weights: Tensor, mean: Tensor, sentence: Tensor, around: Tensor
) -> Tensor:
    """Score a sentence, see `LateInteraction`: a query's unit vectors (Q, D), their weights
    (Q,) of sum 1, and mean (D,); the hidden vectors of the sentence (T, D) and of what is read with
    it (any, D) -> ().
    """
    inside = (F.normalize(sentence, dim=-1) @ query.T).amax(0)
    seen = inside
    if len(around):
        seen = inside.maximum((F.normalize(around, dim=-1) @ query.T).amax(0))
    cosine = F.normalize(sentence.mean(0), dim=-1) @ F.normalize(mean, dim=-1)
    return torch.stack([inside @ weights, seen @ weights, cosine]) @ head.mix


def look(
    head: HeldHead, hidden: Tensor, idf: Tensor, asked: int, sentence: slice, around: Tensor
) -> Tensor:
    """Score a sequence (), see `PairJudge.look`."""
    query = hidden[1 : 1 + asked]
    text = hidden[sentence]
    weights = weigh(head, query, idf)
    met = interact(
        head,
        F.normalize(query, dim=-1),
        weights / weights.sum(),
        query.mean(0),
        text,
        hidden[around],
    )
    return met + head.out(F.gelu(head.middle(torch.cat([hidden[0], text.mean(0)]))))[0]
