"""The scores of a `VectorScore` head in torch, with a graph; `models/pocket/heads.py` computes the
same of arrays.

    S  sentences   D  width of the vectors   F  lexical features   K  numbers known of a sentence
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.models.pocket.heads import AROUND
from runnel.models.pocket.lexical import COLUMNS
from runnel.models.recurrent.heads import HeldHead, wide


def score(head: HeldHead, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """query (D,) and vectors (S, D) of unit length, features (S, F) of `sentence_features` ->
    (S,)
    """
    factor, summand = head.calibration
    return uncalibrated(head, query, vectors, features) * factor + summand


def uncalibrated(head: HeldHead, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the scores before calibration."""
    query = wide(query)
    vectors = wide(vectors)
    features = wide(features)
    if not len(vectors):
        return query[:0]
    return combine(head, head.query(query), vectors, known(query, vectors, features))


def combine(head: HeldHead, query: Tensor, vectors: Tensor, numbers: Tensor) -> Tensor:
    """Projected queries (size,) or one for each sentence (S, size), vectors (S, D), `known` (S, K)
    -> (S,)
    """
    # 4 and 3 are constants of the head, as in `models/pocket/heads.py`
    hidden = F.gelu(4 * head.sentence(vectors) * query + head.known(numbers))
    return 3 * head.out(F.gelu(head.middle(hidden)))[:, 0] + numbers @ head.direct


def known(query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the input columns of `VectorScore`: query (D,), vectors (S, D), at least one, features
    (S, F) -> (S, K).
    """
    cosine = vectors @ query
    standard = _standard(cosine)
    nothing = torch.zeros_like(cosine[:1])
    columns = [
        cosine,
        standard,
        _standard(features[:, list(COLUMNS).index("BM25 share")]),
        cosine - cosine.max(),
        torch.cat([nothing, standard[:-1]]),
        torch.cat([standard[1:], nothing]),
        _standard(_cosines_around(query, vectors)),
    ]
    return torch.cat([torch.stack(columns, 1), features], 1)


def _cosines_around(query: Tensor, vectors: Tensor) -> Tensor:
    """Return the cosine of the query and the mean of the vectors around each vector, (S,)."""
    padded = F.pad(vectors, (0, 0, AROUND, AROUND))
    # in one order: equal neighborhoods have equal cosines
    total = padded[: len(vectors)]
    for step in range(1, 2 * AROUND + 1):
        total = total + padded[step : step + len(vectors)]
    return (F.normalize(total, dim=-1) * query).sum(-1)


def _standard(x: Tensor) -> Tensor:
    """Return z-scores; zeros if all values are equal."""
    return (x - x.mean()) / (x.std(correction=0) + 1e-6)
