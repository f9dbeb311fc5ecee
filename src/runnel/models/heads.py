"""Heads: from hidden vectors to a document vector, a relevance score or sentence scores.

    D  width of the hidden vectors   E  width of the embedding   V  vocabulary   K  kinds of mark   n  items

All heads but `LmHead` run in fp32 (fp64 for a model in fp64), and all stream: they need sums, never the whole text.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.models.lexical import FEATURES
from runnel.request import Request, Result

# Columns of the marks, i.e. rows of `TokenFeatures.mark_vectors`.
MARK_MATCH = 0  # idf of a token of the later part that also occurs in the earlier part
MARK_DOCUMENT = 1  # 1 for document tokens that follow a query (sentence retrieval)
MARK_QUERY = 2  # 1 for query tokens that follow a document (reranking)
MARKS = 3

WITHOUT_TOKENS = -700.0  # a document's score if it has no token: below any other, and a number for JSON, even exp(700)
Pooling = Literal["cls", "eos", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
OneToken = Literal["cls", "eos"]


class TokenFeatures(nn.Module):
    """Per-token tables, indexed by id, and the vectors by which marks enter the backbone."""

    jobs: ClassVar[tuple[str, ...]] = ("features",)
    options: ClassVar[dict[str, object]] = {}

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(vocab_size))
        self.mark_vectors = nn.Parameter(torch.zeros(MARKS, hidden_size))  # added to embeddings in proportion to a token's marks
        self.idf: Tensor  # (V,) in [0, 1], static
        self.register_buffer("idf", torch.ones(vocab_size))

    def weight(self) -> Tensor:
        """Return the positive weights (V,) of tokens in means."""
        return self.log_weight.exp()


class Head(nn.Module):
    """A head, which declares what it needs of a text."""

    jobs: ClassVar[tuple[str, ...]] = ("embed", "sentences", "rerank")  # names that it may have in a model
    pooling: Pooling = "eos"  # the hidden vector, or the mean, that represents a text
    matches: ClassVar[bool] = False  # it also needs the means of two parts and their matching tokens; see `models/items.py`
    stored: ClassVar[bool] = False  # it uses stored vectors: query and document are read separately
    state: ClassVar[str | None] = None  # the tensor of the state that it reads after the last token instead of hidden vectors

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options  # its settings in config.json, without the model's widths

    def request(self, ids: np.ndarray, **others: Any) -> Request:
        """Return the request that `pooling` or `state` needs for a text; `others` are fields of a `Request`."""
        if self.state is not None:
            return Request(ids, [], keep_state=True, **others)
        if self.pooling == "mean":
            return Request(ids, ranges=np.array([[0, len(ids)]]), **others)
        return Request(ids, [0 if self.pooling == "cls" else len(ids) - 1], **others)

    def pooled(self, result: Result) -> Tensor:
        """Return the pooled vector (1, D), or the tensor of the state (1, L, ...), from the result of `request`."""
        if self.state is not None:
            assert result.state is not None
            return result.state[self.state]
        return result.means if self.pooling == "mean" else result.hidden


class EndVector(Head):
    """The normalized hidden vector at the end marker (papers A and D). No parameters."""

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n, D) of unit length."""
        return F.normalize(wide(pooled), dim=-1)


class FirstVector(EndVector):
    """The normalized hidden vector of the first token, the encoders' [CLS] (paper A's BERT and RoBERTa)."""

    pooling = "cls"


class PlainMeanVector(EndVector):
    """The normalized mean of all hidden vectors with equal weights, as in sentence-transformers."""

    pooling = "mean"


class MeanVector(Head):
    """The normalized projection of a weighted mean of hidden vectors, including the end marker's."""

    pooling = "mean"

    def __init__(self, hidden_size: int, size: int | None = None) -> None:
        super().__init__(size=size)
        self.project = nn.Linear(hidden_size, size or hidden_size)
        with torch.no_grad():
            self.project.weight.zero_().fill_diagonal_(1.0)  # not torch.eye, which imports torch._dynamo on the meta device
            self.project.bias.zero_()

    def forward(self, mean: Tensor) -> Tensor:
        """(n, D) -> (n, E) of unit length."""
        return F.normalize(self.project(wide(mean)), dim=-1)


class EndScore(Head):
    """A linear layer on one hidden vector: at the end marker (papers B, C) or at each sentence's last token (paper E).

    With two outputs (no, yes) the score is their difference.
    """

    def __init__(self, hidden_size: int, outputs: int = 1, bias: bool = True, pooling: OneToken = "eos") -> None:
        super().__init__(outputs=outputs, bias=bias, pooling=pooling)
        self.pooling = pooling
        self.linear = nn.Linear(hidden_size, outputs, bias=bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n,)"""
        return score(self.linear(wide(pooled)))


class MatchScore(Head):
    """A score from vectors and exact matches: Linear([mean, end]) + g cos(P mean, P other) + f . lexical

    Sentence retrieval: `mean` and `end` are the sentence's, `other` is the query's mean, `lexical` (n, 2) the sentence's share of
    matched query idf and its in-document BM25. Reranking: `mean` and `end` are the query's, read after the document,
    `other` is the document's mean, `lexical` (n, 1) the share of query idf that occurs in the document.
    """

    matches = True

    def __init__(self, hidden_size: int, lexical: int, match_size: int = 128) -> None:
        super().__init__(lexical=lexical, match_size=match_size)
        self.linear = nn.Linear(2 * hidden_size, 1)
        self.match = nn.Linear(hidden_size, match_size, bias=False)
        self.cosine_weight = nn.Parameter(torch.tensor(5.0))
        self.lexical_weight = nn.Parameter(torch.full((lexical,), 2.0))

    def forward(self, mean: Tensor, end: Tensor, other: Tensor, lexical: Tensor | None) -> Tensor:
        """mean, end, other (n, D) or other (1, D); lexical (n, F), None: zeros -> (n,)"""
        score = self.linear(wide(torch.cat([mean, end], dim=-1)))[:, 0]
        cosine = F.cosine_similarity(self.match(wide(mean)), self.match(wide(other)), dim=-1)
        score = score + self.cosine_weight * cosine
        return score if lexical is None else score + lexical.to(score) @ self.lexical_weight


class LmHead(Head):
    """The LM head of a recurrent model: logits of the next token from the hidden vector of each token, in the weights' dtype.

    `tied`: the backbone's embedding table is the matrix; `soft_cap`: c of logits c * tanh(x / c), as in xLSTM.
    """

    jobs = ("generate",)

    def __init__(self, vocab_size: int, hidden_size: int, tied: bool = False, soft_cap: float | None = None) -> None:
        super().__init__(tied=tied, soft_cap=soft_cap)
        self.soft_cap = soft_cap
        self.weight = None if tied else nn.Parameter(torch.zeros(vocab_size, hidden_size))

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """hidden (n, D), the embedding table (V, D) -> (n, V) in the dtype of `hidden`."""
        weight = table if self.weight is None else self.weight
        logits = F.linear(hidden.to(weight.dtype), weight).to(hidden.dtype)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)


class VectorScore(Head):
    """Scores of a document's sentences from stored vectors and lexical features, without reading the text again.

    The first layer gets a sentence's vector only in its product with the query, because otherwise it would learn which sentences
    the training questions preferred. The score is calibrated: its sigmoid is the probability that the sentence answers.
    """

    stored = True

    def __init__(self, hidden_size: int, size: int = 96) -> None:
        super().__init__(size=size)
        self.sentence = nn.Linear(hidden_size, size)
        self.query = nn.Linear(hidden_size, size)
        self.known = nn.Linear(_COSINES + FEATURES, size)
        self.middle = nn.Linear(size, size)
        self.out = nn.Linear(size, 1)
        self.direct = nn.Parameter(torch.zeros(_COSINES + FEATURES))
        self.calibration: Tensor  # factor and summand
        self.register_buffer("calibration", torch.tensor(UNFIT))
        with torch.no_grad():  # the initial score is the sum of the z-scores of cosine and BM25
            self.out.weight.zero_()
            self.out.bias.zero_()
            self.direct[1:3] = 1.0

    def forward(self, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
        """query (D,) and vectors (S, D) of unit length, features (S, F) of `sentence_features` -> (S,)"""
        return self.uncalibrated(query, vectors, features) * self.calibration[0] + self.calibration[1]

    @property
    def calibrated(self) -> bool:
        """Whether a fit has set the calibration; if not, scores only rank the sentences of a document."""
        return self.calibration.tolist() != UNFIT

    def uncalibrated(self, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
        """Return the scores of `forward` before calibration."""
        query, vectors, features = wide(query), wide(vectors), wide(features)
        if not len(vectors):
            return query.new_zeros(0)
        blocks = zip(vectors.split(_BLOCK), known(query, vectors, features).split(_BLOCK), strict=True)
        projected = self.query(query)
        return torch.cat([self.combine(projected, *block) for block in blocks])

    def combine(self, query: Tensor, vectors: Tensor, known: Tensor) -> Tensor:
        """Projected queries (size,) or one for each sentence (S, size), vectors (S, D), `known` (S, K) -> (S,)"""
        hidden = F.gelu(4 * self.sentence(vectors) * query + self.known(known))
        return 3 * self.out(F.gelu(self.middle(hidden)))[:, 0] + known @ self.direct

    def parts(self, query: Tensor, vectors: Tensor, features: Tensor, row: int) -> dict[str, float]:
        """Return summands of the score of sentence `row`: the score of an average sentence, with the mean of all inputs, and the
        Shapley value of each of `PARTS`: how much the score changes when its inputs become the sentence's, over all orders.
        """
        query, vectors, features = wide(query), wide(vectors), wide(features)
        columns, names = known(query, vectors, features), list(PARTS)
        chosen = torch.tensor(list(itertools.product([False, True], repeat=len(names))))  # (2^parts, parts), all sets of parts
        own = torch.zeros(len(chosen), columns.shape[1], dtype=torch.bool)  # the columns of the sentence itself
        for part, name in enumerate(names):
            own[:, list(PARTS[name])] = chosen[:, part : part + 1]
        mixed = torch.where(own, columns[row], columns.mean(0))
        pairs = torch.where(chosen[:, names.index("meaning"), None], vectors[row], vectors.mean(0))
        scores = self.combine(self.query(query), pairs, mixed) * self.calibration[0] + self.calibration[1]
        sums = {"average sentence": float(scores[0])}
        for part, name in enumerate(names):
            others = chosen.sum(1) - chosen[:, part].long()
            weight = torch.tensor([1 / (len(names) * math.comb(len(names) - 1, n)) for n in others.tolist()], dtype=scores.dtype)
            sums[name] = float((torch.where(chosen[:, part], weight, -weight) * scores).sum())
        return sums


class VectorRelevance(Head):
    """Relevance of a document from its stored vectors: a weighted sum of features that do not depend on other documents."""

    FEATURES = 3
    stored = True

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(self.FEATURES, 1)

    def forward(self, features: Tensor) -> Tensor:
        """(n, 3) -> (n,)"""
        return self.linear(wide(features))[:, 0]


UNFIT = [1.0, 0.0]  # factor and summand before a fit
_COSINES = 7  # columns of `known` before the features
_AROUND = 3  # sentences on each side in the mean of its last column
_BLOCK = 1024  # sentences
# The columns of `known` that make a part of a score; the vectors belong to "meaning". The other columns are equal for all
# sentences of a document, so no sentence differs from the average in them.
PARTS: dict[str, tuple[int, ...]] = {
    "meaning": (0, 1, 3),
    "words": (2, *(_COSINES + column for column in (0, 1, 4, 5, 7, 12))),
    "words of the best sentences": tuple(_COSINES + column for column in (14, 15)),
    "neighbors": (4, 5, 6, *(_COSINES + column for column in (2, 3, 6))),
    "length": (_COSINES + 8,),
}


def known(query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the input columns of `VectorScore`: query (D,), vectors (S, D), at least one, features (S, F) -> (S, 7 + F).

    Columns: cosine; z-scores of cosine and BM25; distance to the best cosine; z-scores of the cosine of the sentence before, of
    the sentence after, and of the mean of the vectors around; and the features.
    """
    cosine = vectors @ query
    z = _standard(cosine)
    columns = [cosine, z, _standard(features[:, 0]), cosine - cosine.amax()]
    columns += [F.pad(z[:-1], (1, 0)), F.pad(z[1:], (0, 1)), _standard(_cosines_around(query, vectors))]
    return torch.cat([torch.stack(columns, dim=1), features], dim=1)


def _cosines_around(query: Tensor, vectors: Tensor) -> Tensor:
    """Return the cosine of the query and the mean of the vectors around each vector, (S,): in blocks that fit into caches."""
    padded, cosines = F.pad(vectors, (0, 0, _AROUND, _AROUND)), []
    for start in range(0, len(vectors), _BLOCK):
        block = padded[start : start + _BLOCK + 2 * _AROUND]
        count = len(block) - 2 * _AROUND
        total = block[:count].clone()
        for step in range(1, 2 * _AROUND + 1):  # in one order: equal neighborhoods have equal cosines
            total += block[step : step + count]
        cosines.append((F.normalize(total, dim=-1) * query).sum(-1))
    return torch.cat(cosines)


def _standard(x: Tensor) -> Tensor:
    """Return z-scores; zeros if all values are equal."""
    return (x - x.mean()) / (x.std(correction=0) + 1e-6)


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, or unchanged if it is fp64."""
    return x if x.dtype == torch.float64 else x.float()


def score(logits: Tensor) -> Tensor:
    """(n, 1 or 2) -> (n,): one output, or the second minus the first."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def vector_head(pooling: Pooling) -> EndVector:
    """Return the parameter-free head with this pooling."""
    return next(cls() for cls in (EndVector, FirstVector, PlainMeanVector) if cls.pooling == pooling)
