"""Heads: from hidden vectors to a document vector, a relevance score or sentence scores.

    D  width of the hidden vectors   V  vocabulary   K  kinds of mark   n  items

    S  sentences   F  lexical features   Q  tokens of the query   T  tokens of the sentence

Heads run in fp32 (fp64 for a model in fp64), and all stream: they need sums, never the whole text.
Those here compute in numpy what is given to them as arrays, and in torch what is given as tensors.
Their weights are arrays, or those of a torch module (`Head.module`), which can be trained; other
heads, and no array, are in `torch_heads.py`. No torch is imported here.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from runnel.errors import InputError
from runnel.models.lexical import COLUMNS
from runnel.request import Array, Request, Result, space

# Columns of the marks, i.e. rows of `TokenFeatures.mark_vectors`.
MARK_MATCH = 0  # idf of a token of the later part that also occurs in the earlier part
MARK_DOCUMENT = 1  # 1 for document tokens that follow a query (sentence retrieval)
MARK_QUERY = 2  # 1 for query tokens that follow a document (reranking)
MARKS = 3

# a document's score if it has no token: below any other, and a number for JSON, even exp(700)
WITHOUT_TOKENS = -700.0
Pooling = Literal["cls", "eos", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
# What a head scores: the pooled text; besides it the means of two parts and their matching tokens
# (`models/items.py`); the state after the last token; or stored vectors, of a query and a document
# that are read separately.
Inputs = Literal["text", "matches", "state", "vectors"]


class Linear:
    """A linear layer: weight (N, K) and bias (N,), zeros before they are loaded."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight: Array = np.zeros((outputs, inputs), np.float32)
        self.bias: Array = np.zeros(outputs, np.float32)


class Head:
    """A head, which declares what it needs of a text."""

    # names that it may have in a model
    jobs: ClassVar[tuple[str, ...]] = ("embed", "sentences", "rerank")
    pooling: Pooling = "eos"  # the hidden vector, or the mean, that represents a text
    inputs: ClassVar[Inputs] = "text"
    state: ClassVar[str] = ""  # the tensor of the state that it reads

    def __init__(self, **options: object) -> None:
        self.options = options  # its settings in config.json, without the model's widths

    # of each head: what the engine pooled, or stored vectors, to vectors or scores
    forward: Any = None

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    @classmethod
    def module(cls, *sizes: int, **options: Any) -> Any:
        """Return a fresh head as a torch module, whose weights can be trained: this class, with
        those of torch.
        """
        from runnel.models.torch_heads import module_class

        return module_class(cls)(*sizes, **options)

    # How weights are held; a torch module does it otherwise.

    def new_linear(self, inputs: int, outputs: int, *, fill: float | None = None) -> Any:
        """Return a linear layer: a fresh one is random, or zero with the bias `fill`."""
        return Linear(inputs, outputs)

    def new_numbers(self, values: Any, *, fixed: bool = False) -> Array:
        """Return a weight that is `values` before it is trained; `fixed`: it is not trained with
        the others.
        """
        return np.asarray(values, np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the weights by name, in a head that is no torch module."""
        layers = {name: layer for name, layer in vars(self).items() if isinstance(layer, Linear)}
        held = {
            f"{name}.{part}": array
            for name, layer in layers.items()
            for part, array in vars(layer).items()
        }
        return held | {
            name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take weights, named and shaped as those of `arrays`."""
        for name, array in arrays.items():
            layer, _, part = name.rpartition(".")
            setattr(getattr(self, layer) if layer else self, part, array.astype(np.float32))

    @property
    def calibrated(self) -> bool:
        """Whether a fit has set the `calibration`: only then are scores logits."""
        return list(map(float, getattr(self, "calibration", UNFIT))) != UNFIT

    @property
    def config(self) -> dict[str, object]:
        """The head in config.json: its kind and settings."""
        return {"kind": head_kind(type(self)), **self.options}

    def request(self, ids: np.ndarray) -> Request:
        """Return the request that `pooling` or `state` needs for a text."""
        if self.inputs == "state":
            return Request(ids, [], keep_state=True)
        if self.pooling == "mean":
            return Request(ids, ranges=np.array([[0, len(ids)]]))
        return Request(ids, [0 if self.pooling == "cls" else len(ids) - 1])

    def pooled(self, result: Result) -> Array:
        """Return the pooled vector (1, D), or the tensor of the state (1, L, ...), from the result
        of `request`.
        """
        if self.inputs == "state":
            assert result.state is not None
            return result.state[self.state]
        return result.means if self.pooling == "mean" else result.hidden


class TokenFeatures(Head):
    """Per-token tables, indexed by id, and the vectors by which marks enter the backbone."""

    jobs = ("features",)

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.log_weight = self.new_numbers(np.zeros(vocab_size))
        # added to embeddings in proportion to marks
        self.mark_vectors = self.new_numbers(np.zeros((MARKS, hidden_size)))
        self.idf = self.new_numbers(np.ones(vocab_size), fixed=True)  # (V,) in [0, 1], static

    def weight(self) -> Array:
        """Return the positive weights (V,) of tokens in means."""
        return space(self.log_weight).exp(self.log_weight)

    @property
    def static_idf(self) -> np.ndarray:
        """The idf as an array."""
        return as_held(self.idf, np.zeros(0))


class EndVector(Head):
    """The normalized hidden vector at the end marker (papers A and D). No parameters."""

    def forward(self, pooled: Array) -> Array:
        """(n, D) -> (n, D) of unit length."""
        return normalize(wide(pooled))


class FirstVector(EndVector):
    """The normalized hidden vector of the first token, the encoders' [CLS] (paper A's BERT and
    RoBERTa).
    """

    pooling = "cls"


class PlainMeanVector(EndVector):
    """The normalized mean of all hidden vectors with equal weights, as in sentence-transformers."""

    pooling = "mean"


class VectorScore(Head):
    """Scores of a document's sentences from stored vectors and lexical features, without reading
    the text again.

    The first layer gets a sentence's vector only in its product with the query, because otherwise
    it would learn which sentences the training questions preferred. The score is calibrated: its
    sigmoid is the probability that the sentence answers.
    """

    inputs = "vectors"

    def __init__(self, hidden_size: int, size: int = 96) -> None:
        super().__init__(size=size)
        self.sentence = self.new_linear(hidden_size, size)
        self.query = self.new_linear(hidden_size, size)
        self.known = self.new_linear(len(_KNOWN), size)
        self.middle = self.new_linear(size, size)
        # the initial score is the sum of the z-scores of cosine and BM25
        self.out = self.new_linear(size, 1, fill=0.0)
        self.direct = self.new_numbers([float(name in ("z cosine", "z BM25")) for name in _KNOWN])
        self.calibration = self.new_numbers(UNFIT, fixed=True)  # factor and summand

    def forward(self, query: Array, vectors: Array, features: Array) -> Array:
        """query (D,) and vectors (S, D) of unit length, features (S, F) of `sentence_features` ->
        (S,)
        """
        factor, summand = as_held(self.calibration, query)
        return self.uncalibrated(query, vectors, features) * factor + summand

    def uncalibrated(self, query: Array, vectors: Array, features: Array) -> Array:
        """Return the scores of `forward` before calibration."""
        query, vectors, features = wide(query), wide(vectors), wide(features)
        if not len(vectors):
            return query[:0]
        columns, projected = known(query, vectors, features), apply(self.query, query)
        blocks = [slice(start, start + _BLOCK) for start in range(0, len(vectors), _BLOCK)]
        return space(query).concatenate(
            [self.combine(projected, vectors[block], columns[block]) for block in blocks]
        )

    def combine(self, query: Array, vectors: Array, known: Array) -> Array:
        """Projected queries (size,) or one for each sentence (S, size), vectors (S, D), `known` (S,
        K) -> (S,)
        """
        hidden = gelu(4 * apply(self.sentence, vectors) * query + apply(self.known, known))
        return 3 * apply(self.out, gelu(apply(self.middle, hidden)))[:, 0] + known @ as_held(
            self.direct, known
        )

    def parts(
        self, query: np.ndarray, vectors: np.ndarray, features: np.ndarray, row: int
    ) -> dict[str, float]:
        """Return summands of the score of sentence `row`: the score of an average sentence, with
        the mean of all inputs, and the Shapley value of each of `PARTS`: how much the score changes
        when its inputs become the sentence's, over all orders.
        """
        query, vectors, features = wide(query), wide(vectors), wide(features)
        columns, names = known(query, vectors, features), list(PARTS)
        # (2^parts, parts), all sets of parts
        chosen = np.array(list(itertools.product([False, True], repeat=len(names))))
        own = np.zeros((len(chosen), columns.shape[1]), bool)  # the columns of the sentence itself
        for part, name in enumerate(names):
            own[:, list(PARTS[name])] = chosen[:, part : part + 1]
        mixed = np.where(own, columns[row], columns.mean(0))
        pairs = np.where(chosen[:, names.index("meaning"), None], vectors[row], vectors.mean(0))
        factor, summand = as_held(self.calibration, query)
        scores = self.combine(apply(self.query, query), pairs, mixed) * factor + summand
        sums = {"average sentence": float(scores[0])}
        for part, name in enumerate(names):
            others = chosen.sum(1) - chosen[:, part]
            weight = np.array(
                [1 / (len(names) * math.comb(len(names) - 1, n)) for n in others.tolist()],
                scores.dtype,
            )
            sums[name] = float((np.where(chosen[:, part], weight, -weight) * scores).sum())
        return sums


class VectorRelevance(Head):
    """Relevance of a document from its stored vectors: a weighted sum of features that do not
    depend on other documents.
    """

    FEATURES = 3
    inputs = "vectors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = self.new_linear(self.FEATURES, 1)

    def forward(self, features: Array) -> Array:
        """(n, 3) -> (n,)"""
        return apply(self.linear, wide(features))[:, 0]


UNFIT = [1.0, 0.0]  # factor and summand before a fit
_AROUND = 3  # sentences on each side in the mean of its last column
_BLOCK = 1024  # sentences
# The columns of `known`, in the order of its weights: these, of the cosines (S,) of sentences, of
# the means around them and the `COLUMNS` (S, F), then the latter.
_OF_VECTORS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "cosine": lambda cosine, around, features: cosine,
    "z cosine": lambda cosine, around, features: _standard(cosine),
    "z BM25": lambda cosine, around, features: _standard(
        features[:, list(COLUMNS).index("BM25 share")]
    ),
    "below best": lambda cosine, around, features: cosine - cosine.max(),
    "z before": lambda cosine, around, features: _concat(cosine[:1] * 0, _standard(cosine)[:-1]),
    "z after": lambda cosine, around, features: _concat(_standard(cosine)[1:], cosine[:1] * 0),
    "z around": lambda cosine, around, features: _standard(around),
}
_KNOWN = (*_OF_VECTORS, *COLUMNS)
# The columns that make a part of a score; the vectors belong to "meaning". The other columns are
# equal for all sentences of a document, so no sentence differs from the average in them.
_PART_COLUMNS = {
    "meaning": ("cosine", "z cosine", "below best"),
    "words": ("z BM25", "BM25 share", "BM25", "idf", "local idf", "BM25 of pieces", "pairs"),
    "words of the best sentences": ("BM25 of one lent", "BM25 of three lent"),
    "neighbors": ("z before", "z after", "z around", "BM25 before", "BM25 after", "idf around"),
    "length": ("length",),
}
PARTS = {part: tuple(map(_KNOWN.index, names)) for part, names in _PART_COLUMNS.items()}


def known(query: Array, vectors: Array, features: Array) -> Array:
    """Return the input columns of `VectorScore`: query (D,), vectors (S, D), at least one, features
    (S, F) -> (S, K).
    """
    cosine, around, xp = vectors @ query, _cosines_around(query, vectors), space(query)
    columns = [column(cosine, around, features) for column in _OF_VECTORS.values()]
    return xp.concatenate([xp.stack(columns, 1), features], 1)


def _cosines_around(query: Array, vectors: Array) -> Array:
    """Return the cosine of the query and the mean of the vectors around each vector, (S,): in
    blocks that fit into caches.
    """
    xp, edge = space(query), vectors[:1] * 0
    padded, cosines = xp.concatenate([edge] * _AROUND + [vectors] + [edge] * _AROUND), []
    for start in range(0, len(vectors), _BLOCK):
        block = padded[start : start + _BLOCK + 2 * _AROUND]
        count = len(block) - 2 * _AROUND
        total = block[:count] + block[1 : 1 + count]
        # in one order: equal neighborhoods have equal cosines
        for step in range(2, 2 * _AROUND + 1):
            total += block[step : step + count]
        cosines.append((normalize(total) * query).sum(-1))
    return xp.concatenate(cosines)


def _concat(*parts: Array) -> Array:
    return space(parts[0]).concatenate(parts)


def _standard(x: Array) -> Array:
    """Return z-scores; zeros if all values are equal."""
    return (x - x.mean()) / (space(x).std(x, correction=0) + 1e-6)


def wide(x: Array) -> Array:
    """Return x in fp32, or unchanged if it is fp64."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)
    return x if x.dtype == space(x).float64 else x.float()


def as_held(weight: Array, x: Array) -> Array:
    """Return a weight as x is held: as an array for an array, in which case nothing is trained."""
    return (
        weight
        if type(weight) is np.ndarray or not isinstance(x, np.ndarray)
        else weight.detach().cpu().numpy()
    )


def apply(layer: Any, x: Array) -> Array:
    """Return the output (..., N) of a linear layer for x (..., K)."""
    return x @ as_held(layer.weight, x).T + as_held(layer.bias, x)


def normalize(x: Array) -> Array:
    """Return x (..., D) with vectors of unit length; zeros stay."""
    if not isinstance(x, np.ndarray):
        return space(x).nn.functional.normalize(x, dim=-1)
    return x / np.maximum(np.sqrt(np.einsum("...d,...d->...", x, x)), 1e-12)[..., None]


# The normal distribution, within 7.5e-8: Abramowitz and Stegun, "Handbook of Mathematical
# Functions" (1964), 26.2.17.
# highest power first
_NORMAL = (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530, 0.0)


def gelu(x: Array) -> Array:
    """Return x Phi(x), Phi the normal distribution; in numpy within 7.5e-8 |x|, before rounding."""
    if not isinstance(x, np.ndarray):
        return space(x).nn.functional.gelu(x)
    near, above = 1 / (1 + 0.2316419 * np.abs(x)), np.zeros_like(x)
    for factor in _NORMAL:
        above = above * near + factor
    above *= np.exp(x * x / -2) / math.sqrt(2 * math.pi)
    return x * np.where(x > 0, 1 - above, above)


def check_pooling(pooling: Pooling | None, title: str, *, causal: bool) -> None:
    """Raise InputError for the first token's vector of a model that reads from left to right."""
    if pooling == "cls" and causal:
        raise InputError(
            f"{title} is causal: its first token cannot represent the text; use pooling 'eos' or"
            " 'mean'"
        )


def vector_head(pooling: Pooling) -> type[EndVector]:
    """Return the class of the parameter-free head with this pooling."""
    return next(cls for cls in (EndVector, FirstVector, PlainMeanVector) if cls.pooling == pooling)


def head_kind(head: type) -> str:
    """Return the name of a kind of head in config.json, such as "end_vector"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", head.__name__).lower()


_LEAST_IDF = 0.05  # what the commonest token counts


class LateInteraction(Head):
    """A score of a sentence from the hidden vectors of its tokens and those of the query
    (`models/sentence_vectors.py`).

    Each token of the query takes its best cosine among tokens of the sentence, weighted by its
    static idf and by what `weight` makes of its hidden vector. Fresh weights judge by idf alone.
    """

    inputs = "vectors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = self.new_linear(hidden_size, 1, fill=0.0)
        # of the sentence's tokens, of those around it too, of means
        self.mix = self.new_numbers([8.0, 4.0, 8.0])

    def weigh(self, hidden: Array, idf: Array) -> Array:
        """Return weights (Q,) of the query's tokens: hidden (Q, D), static idf (Q,)."""
        return (idf + _LEAST_IDF) * space(hidden).exp(apply(self.weight, hidden)[:, 0].clip(-3, 3))

    def forward(
        self, query: Array, weights: Array, mean: Array, sentence: Array, around: Array
    ) -> Array:
        """Score a sentence: a query's unit vectors (Q, D), their weights (Q,) of sum 1, and mean
        (D,); the hidden vectors of the sentence (T, D) and of what is read with it (any, D) -> ().
        """
        xp = space(query)
        own = xp.amax(normalize(sentence) @ query.T, 0)
        seen = own if not len(around) else xp.maximum(own, xp.amax(normalize(around) @ query.T, 0))
        cosine = normalize(sentence.mean(0)) @ normalize(mean)
        return xp.stack([own @ weights, seen @ weights, cosine]) @ as_held(self.mix, query)


class PairJudge(LateInteraction):
    """The score of a sentence that is read together with the query, as a cross-encoder reads
    (`models/sentence_vectors.py`).

    Late interaction within the sequence, and what a small network makes of the first vector and the
    sentence's mean.
    """

    jobs = ("pair",)

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.middle = self.new_linear(2 * hidden_size, hidden_size)
        # about what the late interaction of an untrained encoder has
        self.out = self.new_linear(hidden_size, 1, fill=-12.0)

    def look(self, hidden: Array, idf: Array, asked: int, sentence: slice, around: Array) -> Array:
        """Score a sequence ().

        Args:
            hidden: (T, D) of the sequence: the first marker, `asked` tokens of the query, and the
                rest.
            idf: (asked,) of the query's tokens.
            sentence: its tokens; around: (T,) bool, other tokens that count.
        """
        query, text = hidden[1 : 1 + asked], hidden[sentence]
        weights = self.weigh(query, idf)
        met = self(normalize(query), weights / weights.sum(), query.mean(0), text, hidden[around])
        return met + apply(self.out, gelu(apply(self.middle, _concat(hidden[0], text.mean(0)))))[0]


class Judge(LateInteraction):
    """The second look's score of a sentence that is read apart from the query,
    and what scores say.
    """

    jobs = ("judge",)
    # of a document: those of `document_facts`, the best of the judge's scores and the mean of the
    # best three
    FACTS = 6

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.document = self.new_linear(self.FACTS, 1, fill=0.0)
        # of the first four facts, to choose among documents
        self.near = self.new_numbers([0.0, 16.0, 2.0, 0.0])
        # factor and summand of a sentence's score
        self.calibration = self.new_numbers(UNFIT, fixed=True)
        # the judge's score of a sentence that is not read again
        self.floor = self.new_numbers(4.0, fixed=True)

    def inside(self, scores: np.ndarray) -> np.ndarray:
        """Return the logits (S,) that sentences answer, if their document does, from the sums of
        both looks.
        """
        return float(self.calibration[0]) * scores + float(self.calibration[1])

    def answers(self, facts: np.ndarray) -> float:
        """Return the logit that a document with these `FACTS` answers."""
        return float(apply(self.document, facts.astype(np.float32))[0])

    def nearness(self, facts: np.ndarray) -> float:
        """Return what is added to the scores of a document's sentences when the best of several
        documents are read again.
        """
        return float(facts.astype(np.float32) @ as_held(self.near, facts))
