"""The scores of a `VectorScore` head as differentiable torch operations, for its training.

`VectorScore` (`models/pocket/heads.py`) is a small network. It scores the sentences of a document
for a query without reading the text again: from the vectors of the query and of the sentences,
which an encoder computed once, and from lexical features. It computes with numpy, for users of a
model. Training needs gradients: the weights are then the parameters of a `HeldHead`, a torch module
with layers of the same names, and this file computes the same scores with them
(`tests/models/test_heads.py` holds both equal). Here `head` is always the `HeldHead` of a
`VectorScore`.

Besides its vector, the head gets the known columns of each sentence: numbers computed without
weights, from cosines and lexical features (`known_columns`). A sentence's score is, with the head's
layers as functions:

    projected      query(the query's vector)
    product        PRODUCT_SCALE * sentence(the sentence's vector) * projected
    hidden         gelu(product + known(known columns))
    uncalibrated   OUT_SCALE * out(gelu(middle(hidden))) + (known columns) . direct
    score          uncalibrated * factor + summand, both of `head.calibration`

In the order of this file: `score`, whose sigmoid is the probability that the sentence answers;
`uncalibrated`, which training uses before the calibration is fitted; `combine`, which computes it
from a projected query and known columns, so that these need to be computed only once;
`known_columns`.

    S  sentences of a document   D  width of the vectors   F  lexical features   K  known columns

`size` is the width of the head's hidden layers, and `direct` (K,) the weight of each known column.
"""

import torch
import torch.nn.functional as F  # not the F above, which is only in shapes
from torch import Tensor

from runnel.models.pocket.heads import AROUND, OUT_SCALE, PRODUCT_SCALE
from runnel.models.pocket.lexical import COLUMNS
from runnel.models.recurrent.heads import HeldHead, wide


def score(head: HeldHead, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the scores (S,) of sentences: query (D,) and vectors (S, D) of unit length, features
    (S, F) of `sentence_features`.
    """
    factor, summand = head.calibration
    return uncalibrated(head, query, vectors, features) * factor + summand


def uncalibrated(head: HeldHead, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the scores (S,) before calibration; arguments as of `score`."""
    query = wide(query)  # fp32, unless it is fp64
    vectors = wide(vectors)
    features = wide(features)
    if not len(vectors):
        return query[:0]  # no scores, in the dtype and the graph of the others
    return combine(head, head.query(query), vectors, known_columns(query, vectors, features))


def combine(head: HeldHead, projected: Tensor, vectors: Tensor, columns: Tensor) -> Tensor:
    """Return the scores (S,) before calibration, from the projected query (size,), or one for each
    sentence (S, size) if they belong to several queries, vectors (S, D) and `known_columns` (S, K).
    """
    hidden = F.gelu(PRODUCT_SCALE * head.sentence(vectors) * projected + head.known(columns))
    return OUT_SCALE * head.out(F.gelu(head.middle(hidden)))[:, 0] + columns @ head.direct


def known_columns(query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the known columns (S, K) from query (D,), vectors (S, D), at least one, and features
    (S, F).

    Their number and order belong to the weights of trained heads, and are the same as in
    `models/pocket/heads.py`: seven from the vectors and BM25, then the features.
    """
    cosine = vectors @ query
    standard = _standard(cosine)
    nothing = torch.zeros_like(cosine[:1])  # the neighbor of the first and of the last sentence
    columns = [
        cosine,  # of the query and the sentence
        standard,  # its z-score among the document's sentences
        _standard(features[:, list(COLUMNS).index("BM25 share")]),  # the z-score of BM25
        cosine - cosine.max(),  # how far below the best sentence
        torch.cat([nothing, standard[:-1]]),  # the cosine's z-score of the sentence before
        torch.cat([standard[1:], nothing]),  # and of the sentence after
        _standard(_cosines_around(query, vectors)),  # the z-score of the neighborhood's cosine
    ]
    return torch.cat([torch.stack(columns, 1), features], 1)


def _cosines_around(query: Tensor, vectors: Tensor) -> Tensor:
    """Return for each sentence the cosine (S,) of the query and the mean of the vectors of its
    neighborhood: the sentence and `AROUND` sentences on each side.
    """
    padded = F.pad(vectors, (0, 0, AROUND, AROUND))
    # Added one after another, not by a cumulative sum or a convolution: neighborhoods with the same
    # vectors are summed in the same order, so they have equal cosines.
    total = padded[: len(vectors)]
    for step in range(1, 2 * AROUND + 1):
        total = total + padded[step : step + len(vectors)]
    return (F.normalize(total, dim=-1) * query).sum(-1)


def _standard(x: Tensor) -> Tensor:
    """Return z-scores; zeros if all values are equal, but for rounding."""
    spread = x.std(correction=0)
    return (x - x.mean()) * (spread > 1e-6) / (spread + 1e-6)
