"""Heads: from hidden vectors to a document vector, a relevance score or sentence scores.

    D  width of the hidden vectors   E  width of the embedding   V  vocabulary   K  kinds of mark   n  items

    S  sentences   F  lexical features   Q  tokens of the query   T  tokens of the sentence

All heads but `LmHead` run in fp32 (fp64 for a model in fp64), and all stream: they need sums, never the whole text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.errors import InputError
from runnel.models.lexical import COLUMNS
from runnel.ops.backend import plain_numbers
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
# What a head scores: the pooled text; besides it the means of two parts and their matching tokens (`models/items.py`); the state
# after the last token; or stored vectors, of a query and a document that are read separately.
Inputs = Literal["text", "matches", "state", "vectors"]


class Head(nn.Module):
    """A head, which declares what it needs of a text."""

    jobs: ClassVar[tuple[str, ...]] = ("embed", "sentences", "rerank")  # names that it may have in a model
    pooling: Pooling = "eos"  # the hidden vector, or the mean, that represents a text
    inputs: ClassVar[Inputs] = "text"
    state: ClassVar[str] = ""  # the tensor of the state that it reads

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options  # its settings in config.json, without the model's widths

    @property
    def calibrated(self) -> bool:
        """Whether a fit has set the `calibration`: only then are scores logits."""
        return getattr(self, "calibration", torch.tensor(UNFIT)).tolist() != UNFIT

    @property
    def config(self) -> dict[str, object]:
        """The head in config.json: its kind and settings."""
        return {"kind": head_kind(type(self)), **self.options}

    def request(self, ids: np.ndarray, **others: Any) -> Request:
        """Return the request that `pooling` or `state` needs for a text; `others` are fields of a `Request`."""
        if self.inputs == "state":
            return Request(ids, [], keep_state=True, **others)
        if self.pooling == "mean":
            return Request(ids, ranges=np.array([[0, len(ids)]]), **others)
        return Request(ids, [0 if self.pooling == "cls" else len(ids) - 1], **others)

    def pooled(self, result: Result) -> Tensor:
        """Return the pooled vector (1, D), or the tensor of the state (1, L, ...), from the result of `request`."""
        if self.inputs == "state":
            assert result.state is not None
            return result.state[self.state]
        return result.means if self.pooling == "mean" else result.hidden


class TokenFeatures(Head):
    """Per-token tables, indexed by id, and the vectors by which marks enter the backbone."""

    jobs = ("features",)

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(vocab_size))
        self.mark_vectors = nn.Parameter(torch.zeros(MARKS, hidden_size))  # added to embeddings in proportion to a token's marks
        self.idf: Tensor  # (V,) in [0, 1], static
        self.register_buffer("idf", torch.ones(vocab_size))

    def weight(self) -> Tensor:
        """Return the positive weights (V,) of tokens in means."""
        return self.log_weight.exp()


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

    inputs = "matches"

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

    inputs = "vectors"

    def __init__(self, hidden_size: int, size: int = 96) -> None:
        super().__init__(size=size)
        self.sentence = nn.Linear(hidden_size, size)
        self.query = nn.Linear(hidden_size, size)
        self.known = nn.Linear(len(_KNOWN), size)
        self.middle = nn.Linear(size, size)
        self.out = nn.Linear(size, 1)
        self.direct = nn.Parameter(torch.zeros(len(_KNOWN)))
        self.calibration: Tensor  # factor and summand
        self.register_buffer("calibration", torch.tensor(UNFIT))
        with torch.no_grad():  # the initial score is the sum of the z-scores of cosine and BM25
            self.out.weight.zero_()
            self.out.bias.zero_()
            self.direct[[_KNOWN.index("z cosine"), _KNOWN.index("z BM25")]] = 1.0

    def forward(self, query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
        """query (D,) and vectors (S, D) of unit length, features (S, F) of `sentence_features` -> (S,)"""
        return self.uncalibrated(query, vectors, features) * self.calibration[0] + self.calibration[1]

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
    inputs = "vectors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(self.FEATURES, 1)

    def forward(self, features: Tensor) -> Tensor:
        """(n, 3) -> (n,)"""
        return self.linear(wide(features))[:, 0]


UNFIT = [1.0, 0.0]  # factor and summand before a fit
_AROUND = 3  # sentences on each side in the mean of its last column
_BLOCK = 1024  # sentences
# The columns of `known`, in the order of its weights: these, of the cosines (S,) of sentences, of the means around them and the
# `COLUMNS` (S, F), then the latter.
_OF_VECTORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cosine": lambda cosine, around, features: cosine,
    "z cosine": lambda cosine, around, features: _standard(cosine),
    "z BM25": lambda cosine, around, features: _standard(features[:, list(COLUMNS).index("BM25 share")]),
    "below best": lambda cosine, around, features: cosine - cosine.amax(),
    "z before": lambda cosine, around, features: F.pad(_standard(cosine)[:-1], (1, 0)),
    "z after": lambda cosine, around, features: F.pad(_standard(cosine)[1:], (0, 1)),
    "z around": lambda cosine, around, features: _standard(around),
}
_KNOWN = (*_OF_VECTORS, *COLUMNS)
# The columns that make a part of a score; the vectors belong to "meaning". The other columns are equal for all sentences of a
# document, so no sentence differs from the average in them.
_PART_COLUMNS = {
    "meaning": ("cosine", "z cosine", "below best"),
    "words": ("z BM25", "BM25 share", "BM25", "idf", "local idf", "BM25 of pieces", "pairs"),
    "words of the best sentences": ("BM25 of one lent", "BM25 of three lent"),
    "neighbors": ("z before", "z after", "z around", "BM25 before", "BM25 after", "idf around"),
    "length": ("length",),
}
PARTS = {part: tuple(map(_KNOWN.index, names)) for part, names in _PART_COLUMNS.items()}


def known(query: Tensor, vectors: Tensor, features: Tensor) -> Tensor:
    """Return the input columns of `VectorScore`: query (D,), vectors (S, D), at least one, features (S, F) -> (S, K)."""
    cosine, around = vectors @ query, _cosines_around(query, vectors)
    columns = [column(cosine, around, features) for column in _OF_VECTORS.values()]
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


def check_pooling(pooling: Pooling | None, title: str, *, causal: bool) -> None:
    """Raise InputError for the first token's vector of a model that reads from left to right."""
    if pooling == "cls" and causal:
        raise InputError(f"{title} is causal: its first token cannot represent the text; use pooling 'eos' or 'mean'")


def vector_head(pooling: Pooling) -> EndVector:
    """Return the parameter-free head with this pooling."""
    return next(cls() for cls in (EndVector, FirstVector, PlainMeanVector) if cls.pooling == pooling)


def head_kind(head: type[nn.Module]) -> str:
    """Return the name of a kind of head in config.json, such as "end_vector"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", head.__name__).lower()


_LEAST_IDF = 0.05  # what the commonest token counts


class LateInteraction(Head):
    """A score of a sentence from the hidden vectors of its tokens and those of the query (`models/second_look.py`).

    Each token of the query takes its best cosine among tokens of the sentence, weighted by its static idf and by what `weight`
    makes of its hidden vector. Fresh weights judge by idf alone.
    """

    inputs = "vectors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Linear(hidden_size, 1)
        self.mix = nn.Parameter(torch.tensor([8.0, 4.0, 8.0]))  # of the sentence's tokens, of those around it too, of means
        with torch.no_grad():
            self.weight.weight.zero_()
            self.weight.bias.zero_()

    def weigh(self, hidden: Tensor, idf: Tensor) -> Tensor:
        """Return weights (Q,) of the query's tokens: hidden (Q, D), static idf (Q,)."""
        return (idf + _LEAST_IDF) * self.weight(hidden)[:, 0].clamp(-3, 3).exp()

    def forward(self, query: Tensor, weights: Tensor, mean: Tensor, sentence: Tensor, around: Tensor) -> Tensor:
        """Score a sentence: a query's unit vectors (Q, D), their weights (Q,) of sum 1, and mean (D,); the hidden vectors of the
        sentence (T, D) and of what is read with it (any, D) -> ().
        """
        own = (F.normalize(sentence, dim=-1) @ query.T).amax(0)
        seen = own if not len(around) else torch.maximum(own, (F.normalize(around, dim=-1) @ query.T).amax(0))
        return torch.stack([own @ weights, seen @ weights, F.cosine_similarity(sentence.mean(0), mean, dim=0)]) @ self.mix


class PairJudge(LateInteraction):
    """The score of a sentence that is read together with the query, as a cross-encoder reads (`models/second_look.py`).

    Late interaction within the sequence, and what a small network makes of the first vector and the sentence's mean.
    """

    jobs = ("pair",)

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.middle, self.out = nn.Linear(2 * hidden_size, hidden_size), nn.Linear(hidden_size, 1)
        with torch.no_grad():
            self.out.weight.zero_()
            self.out.bias.fill_(-12.0)  # about what the late interaction of an untrained encoder has

    def look(self, hidden: Tensor, idf: Tensor, asked: int, sentence: slice, around: Tensor) -> Tensor:
        """Score a sequence ().

        Args:
            hidden: (T, D) of the sequence: the first marker, `asked` tokens of the query, and the rest.
            idf: (asked,) of the query's tokens.
            sentence: its tokens; around: (T,) bool, other tokens that count.
        """
        query, text = hidden[1 : 1 + asked], hidden[sentence]
        weights = self.weigh(query, idf)
        met = self(F.normalize(query, dim=-1), weights / weights.sum(), query.mean(0), text, hidden[around])
        return met + self.out(F.gelu(self.middle(torch.cat([hidden[0], text.mean(0)]))))[0]


class Judge(LateInteraction):
    """The second look's score of a sentence that is read apart from the query, and what scores say."""

    jobs = ("judge",)
    FACTS = 6  # of a document: those of `document_facts`, the best of the judge's scores and the mean of the best three

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.document = nn.Linear(self.FACTS, 1)
        self.near = nn.Parameter(torch.tensor([0.0, 16.0, 2.0, 0.0]))  # of the first four facts, to choose among documents
        self.calibration: Tensor  # factor and summand of a sentence's score
        self.register_buffer("calibration", torch.tensor(UNFIT))
        self.floor: Tensor  # the judge's score of a sentence that is not read again
        self.register_buffer("floor", torch.tensor(4.0))
        with torch.no_grad():
            self.document.weight.zero_()
            self.document.bias.zero_()

    def inside(self, scores: np.ndarray) -> np.ndarray:
        """Return the logits (S,) that sentences answer, if their document does, from the sums of both looks."""
        return float(self.calibration[0]) * scores + float(self.calibration[1])

    def answers(self, facts: np.ndarray) -> float:
        """Return the logit that a document with these `FACTS` answers."""
        return float(self.document(torch.from_numpy(facts).to(self.document.weight.dtype)))

    def nearness(self, facts: np.ndarray) -> float:
        """Return what is added to the scores of a document's sentences when the best of several documents are read again."""
        return float(torch.from_numpy(facts).to(self.near.dtype) @ self.near)


@plain_numbers()
def sentence_heads(vocab_size: int, hidden_size: int) -> dict[str, nn.Module]:
    """Return fresh heads, by name, with which any encoder finds sentences (`Model.for_sentences`).

    They add up what a sentence's vector and its words say, and the second look; nothing is calibrated. A passage begins with the
    prompt for documents, a query with that for queries. A sentence's vector is the mean of its own tokens in the passage, and a
    query's the mean of its tokens, also if the model pools the first token, which stands for the whole passage. The model's own
    pooling makes the vectors of texts and passages.
    """
    with torch.random.fork_rng(devices=[]):  # the same weights each time
        torch.manual_seed(0)
        features = TokenFeatures(vocab_size, hidden_size)
        return {"features": features, "sentences": VectorScore(hidden_size), "judge": Judge(hidden_size)}
