"""Heads whose weights are arrays, without torch: what a model computes from the hidden vectors of
its encoder.

    TokenFeatures                            tables of the vocabulary, used by other heads
    EndVector, FirstVector, PlainMeanVector  the vector of a text, for an embedder
    VectorScore                              scores of a document's sentences
    VectorRelevance                          the score of a document, for a reranker
    LateInteraction, Judge, PairJudge        scores of sentences that are read again

A sentence retriever looks at a document twice (`looks.py`): the first look scores all sentences
with `VectorScore`, from vectors that may have been stored and from lexical features (`lexical.py`).
The second look reads the best sentences again, with the text around them, for `Judge`, and with the
query for `PairJudge`.

    D  width of the hidden vectors   V  vocabulary       n  items
    S  sentences of a document       F  lexical features of a sentence
    N  `known_columns`: numbers of a sentence that need no weights, from cosines and the F features
    Q  tokens of the query           T  tokens of a sentence

Heads run in fp32 (fp64 for a model in fp64). They need sums over a text, never the whole text. They
are trained as torch modules (`models/recurrent/heads.py`, `lab/training/vector_scores.py`).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from runnel.backbones.encoder.gelu import gelu
from runnel.models.head import MARKS, Head
from runnel.models.pocket.lexical import COLUMNS

Floats = NDArray[np.floating]
UNFIT = [1.0, 0.0]  # factor and summand before a fit
_OF_MODEL = ("vocab_size", "hidden_size")  # widths that a head takes from its model


@dataclass(eq=False)
class Linear:
    """A linear layer: weight (outputs, inputs) and bias (outputs,), zeros before they are loaded.
    `fill`: a layer that is made for training begins with a weight of zeros and this bias; None: it
    begins with random numbers.
    """

    weight: Floats
    bias: Floats
    fill: float | None

    def __call__(self, x: Floats) -> Floats:
        """Return the outputs (..., outputs) for x (..., inputs)."""
        return x @ self.weight.T + self.bias


class ArrayHead(Head):
    """A head with arrays and layers as weights, which are fields of a dataclass. `Head` explains
    what a kind of head sets: `jobs`, `inputs`, `pooling`. The arguments that
    make a head are its widths: the model's, and those that config.json has as its settings.

    A layer is declared by its widths, numbers or names of these arguments:

        query: Linear = field(init=False, metadata={"layer": ("hidden_size", "size"), "fill": 0.0})

    The last one is the width of its output; the ones before are the widths of its inputs, which it
    takes side by side as one vector. "fill" is `Linear.fill`.
    """

    # arrays that gradients do not change: set by a fit after training, or counted (idf)
    fixed: ClassVar[tuple[str, ...]] = ("calibration", "floor", "idf")
    # factor and summand that make logits of the head's scores
    calibration: Floats = np.array(UNFIT, np.float32)

    def __post_init__(self) -> None:
        declared = fields(self)  # type: ignore[arg-type]  # each kind of head is a dataclass
        widths: dict[Any, Any] = {
            item.name: getattr(self, item.name) for item in declared if item.init
        }
        self.options = {name: value for name, value in widths.items() if name not in _OF_MODEL}
        for item in declared:
            if "layer" in item.metadata:
                *inputs, outputs = (widths.get(width, width) for width in item.metadata["layer"])
                fill = item.metadata.get("fill")
                weight = np.zeros((outputs, sum(inputs)), np.float32)
                bias = np.full(outputs, fill or 0.0, np.float32)
                setattr(self, item.name, Linear(weight, bias, fill))

    def arrays(self) -> dict[str, Floats]:
        """Return the weights by name."""
        layers = {name: layer for name, layer in vars(self).items() if isinstance(layer, Linear)}
        held = {
            f"{name}.{part}": getattr(layer, part)
            for name, layer in layers.items()
            for part in ("weight", "bias")
        }
        return held | {
            name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }

    def load(self, arrays: Mapping[str, Floats]) -> None:
        """Take weights with the names and shapes of `arrays`."""
        for name, array in arrays.items():
            layer, _, part = name.rpartition(".")
            setattr(getattr(self, layer) if layer else self, part, array.astype(np.float32))

    def vectors(self, pooled: Sequence[Any]) -> Floats:
        """Return an embedder's vectors (n, D) float32 of pooled hidden vectors, one array (any, D)
        for each document.
        """
        return self(np.concatenate([np.asarray(part) for part in pooled]))

    @property
    def calibrated(self) -> bool:
        """Whether a fit has set the `calibration`: only then are scores logits."""
        return self.calibration.tolist() != UNFIT


@dataclass(eq=False)
class TokenFeatures(ArrayHead):
    """What a model knows of each token, by its id: its idf, and how much it counts in a weighted
    mean (`log_weight`, the logarithm). And the vectors of marks: numbers that are given beside a
    token and say what it is, such as a word that the query has too (`models/head.py`).
    """

    jobs = ("features",)
    vocab_size: int
    hidden_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log_weight: Floats = np.zeros(self.vocab_size, np.float32)
        # (kinds of mark, D): added to a token's embedding, times its marks
        self.mark_vectors: Floats = np.zeros((MARKS, self.hidden_size), np.float32)
        self.idf: Floats = np.ones(self.vocab_size, np.float32)  # (V,) in [0, 1], static


@dataclass(eq=False)
class EndVector(ArrayHead):
    """The normalized hidden vector at the end marker (papers A and D). No parameters."""

    only_normalizes = True

    def __call__(self, pooled: Floats) -> Floats:
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


# Constants of `VectorScore`: factors of the product of sentence and query, and of its last layer.
# Stored weights were trained with them.
PRODUCT_SCALE = 4
OUT_SCALE = 3
AROUND = 3  # sentences on each side of a sentence in the mean around it
_BLOCK = 1024  # sentences whose means are computed at a time
# The first of the `known_columns`, computed from the cosines (S,) of sentences with the query, the
# cosines (S,) of the means around them, and the `COLUMNS` (S, F). The `COLUMNS` themselves follow:
# lexical features, which `lexical.py` explains. "z": in standard deviations from the document's
# mean. `cosine[:1] * 0` is a zero of the same dtype: the first sentence has none before it.
_OF_VECTORS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "cosine": lambda cosine, around, features: cosine,
    "z cosine": lambda cosine, around, features: _standard(cosine),
    "z BM25": lambda cosine, around, features: _standard(
        features[:, list(COLUMNS).index("BM25 share")]
    ),
    "below best": lambda cosine, around, features: cosine - cosine.max(),
    "z before": lambda cosine, around, features: np.append(cosine[:1] * 0, _standard(cosine)[:-1]),
    "z after": lambda cosine, around, features: np.append(_standard(cosine)[1:], cosine[:1] * 0),
    "z around": lambda cosine, around, features: _standard(around),
}
_KNOWN = (*_OF_VECTORS, *COLUMNS)
# The columns of each part of a score (`VectorScore.parts`); the vectors belong to "meaning".
# Columns that are equal for all sentences of a document are in no part: no sentence differs in
# them.
_PART_COLUMNS = {
    "meaning": ("cosine", "z cosine", "below best"),
    "words": ("z BM25", "BM25 share", "BM25", "idf", "local idf", "BM25 of pieces", "pairs"),
    "words of the best sentences": ("BM25 of one lent", "BM25 of three lent"),
    "neighbors": ("z before", "z after", "z around", "BM25 before", "BM25 after", "idf around"),
    "length": ("length",),
}
PARTS = {part: tuple(map(_KNOWN.index, names)) for part, names in _PART_COLUMNS.items()}
# The initial score is the sum of the z-scores of cosine and BM25.
_STARTED = [float(name in ("z cosine", "z BM25")) for name in _KNOWN]


@dataclass(eq=False)
class VectorScore(ArrayHead):
    """Scores of a document's sentences from stored vectors and lexical features, without reading
    the text again.

    The first layer gets a sentence's vector only in its product with the query, because otherwise
    it would learn which sentences the training questions prefer. The score is calibrated: its
    sigmoid is the probability that the sentence answers.
    """

    inputs = "vectors"

    hidden_size: int
    size: int = 96  # of the hidden layers
    sentence: Linear = field(init=False, metadata={"layer": ("hidden_size", "size")})
    query: Linear = field(init=False, metadata={"layer": ("hidden_size", "size")})
    known: Linear = field(init=False, metadata={"layer": (len(_KNOWN), "size")})
    middle: Linear = field(init=False, metadata={"layer": ("size", "size")})
    out: Linear = field(init=False, metadata={"layer": ("size", 1), "fill": 0.0})
    direct: Floats = field(init=False, default_factory=partial(np.array, _STARTED, np.float32))
    calibration: Floats = field(init=False, default_factory=partial(np.array, UNFIT, np.float32))

    def __call__(self, query: Floats, vectors: Floats, features: Floats) -> Floats:
        """query (D,) and vectors (S, D) of unit length, features (S, F) of `sentence_features` ->
        (S,)
        """
        query = wide(query)
        vectors = wide(vectors)
        features = wide(features)
        if not len(vectors):
            return query[:0]
        columns = known_columns(query, vectors, features)
        projected = self.query(query)
        blocks = [slice(start, start + _BLOCK) for start in range(0, len(vectors), _BLOCK)]
        scores = [self.combine(projected, vectors[block], columns[block]) for block in blocks]
        factor, summand = self.calibration
        return np.concatenate(scores) * factor + summand

    def combine(self, query: Floats, vectors: Floats, columns: Floats) -> Floats:
        """Return scores (S,) before calibration, from the projected query (size,) or one for each
        sentence (S, size), vectors (S, D) and `known_columns` (S, N).
        """
        hidden = gelu(PRODUCT_SCALE * self.sentence(vectors) * query + self.known(columns))
        return OUT_SCALE * self.out(gelu(self.middle(hidden)))[:, 0] + columns @ self.direct

    def parts(
        self, query: np.ndarray, vectors: np.ndarray, features: np.ndarray, row: int
    ) -> dict[str, float]:
        """Return summands of the score of sentence `row`: the score of an average sentence, with
        the mean of all inputs, and the Shapley value of each of `PARTS`: how much the score changes
        when its inputs become the sentence's, over all orders.
        """
        query = wide(query)
        vectors = wide(vectors)
        features = wide(features)
        columns = known_columns(query, vectors, features)
        names = list(PARTS)
        # (2^parts, parts), all sets of parts
        chosen = np.array(list(itertools.product([False, True], repeat=len(names))))
        own = np.zeros((len(chosen), columns.shape[1]), bool)  # the columns of the sentence itself
        for part, name in enumerate(names):
            own[:, list(PARTS[name])] = chosen[:, part : part + 1]
        mixed = np.where(own, columns[row], columns.mean(0))
        pairs = np.where(chosen[:, names.index("meaning"), None], vectors[row], vectors.mean(0))
        factor, summand = self.calibration
        scores = self.combine(self.query(query), pairs, mixed) * factor + summand
        sums = {"average sentence": float(scores[0])}
        # Shapley value of a part: the mean, over all orders in which parts become the sentence's,
        # of the change when this part does. A set that has the part and `others` others counts
        # with 1 / (parts * C(parts - 1, others)), and the same set without the part against it.
        for part, name in enumerate(names):
            others = chosen.sum(1) - chosen[:, part]
            weight = np.array(
                [1 / (len(names) * math.comb(len(names) - 1, n)) for n in others.tolist()],
                scores.dtype,
            )
            sums[name] = float((np.where(chosen[:, part], weight, -weight) * scores).sum())
        return sums


@dataclass(eq=False)
class VectorRelevance(ArrayHead):
    """Relevance of a document from its stored vectors: a weighted sum of three features that do not
    depend on other documents (`relevance_features` in `scorer.py`): the best cosine of the query
    and a passage, the cosine of the query and the document, and BM25 with static idf.
    """

    FEATURES = 3
    inputs = "vectors"
    hidden_size: int
    linear: Linear = field(init=False, metadata={"layer": (FEATURES, 1)})

    def __call__(self, features: Floats) -> Floats:
        """(n, 3) -> (n,)"""
        return self.linear(wide(features))[:, 0]


def known_columns(query: Floats, vectors: Floats, features: Floats) -> Floats:
    """Return the input columns (S, N) of `VectorScore` from query (D,), vectors (S, D) and features
    (S, F), for at least one sentence.
    """
    cosine = vectors @ query
    around = _cosines_around(query, vectors)
    columns = [column(cosine, around, features) for column in _OF_VECTORS.values()]
    return np.concatenate([np.stack(columns, 1), features], 1)


def _cosines_around(query: Floats, vectors: Floats) -> Floats:
    """Return the cosine of the query and the mean of the vectors around each vector, (S,): in
    blocks that fit into caches.
    """
    padded = np.pad(vectors, ((AROUND, AROUND), (0, 0)))
    cosines = []
    for start in range(0, len(vectors), _BLOCK):
        block = padded[start : start + _BLOCK + 2 * AROUND]
        count = len(block) - 2 * AROUND
        total = block[:count] + block[1 : 1 + count]
        # in one order: equal neighborhoods have equal cosines
        for step in range(2, 2 * AROUND + 1):
            total += block[step : step + count]
        cosines.append((normalize(total) * query).sum(-1))
    return np.concatenate(cosines)


def _standard(x: Floats) -> Floats:
    """Return z-scores; zeros if all values are equal, but for rounding."""
    spread = x.std()
    return (x - x.mean()) * (spread > 1e-6) / (spread + 1e-6)


def wide(x: Floats) -> Floats:
    """Return x in fp32, or unchanged if it is fp64."""
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def normalize(x: Floats) -> Floats:
    """Return x (..., D) with vectors of unit length; zeros stay."""
    return x / np.maximum(np.sqrt(np.einsum("...d,...d->...", x, x)), 1e-12)[..., None]


LEAST_IDF = 0.05  # the weight of the commonest token in means


@dataclass(eq=False)
class LateInteraction(ArrayHead):
    """A score of a sentence from the hidden vectors of its tokens and those of the query
    (`models/pocket/looks.py`).

    Each token of the query takes its best cosine with a token of the sentence. The score is their
    sum, weighted by the static idf of the query's tokens and by a trained factor of their hidden
    vectors. An untrained head weighs by idf alone.
    """

    inputs = "vectors"
    hidden_size: int
    weight: Linear = field(init=False, metadata={"layer": ("hidden_size", 1), "fill": 0.0})
    # weights of the best cosines with tokens of the sentence, with tokens of the sentence or around
    # it, and of the cosine of the two means
    mix: Floats = field(init=False, default_factory=partial(np.array, [8.0, 4.0, 8.0], np.float32))

    def weigh(self, hidden: Floats, idf: Floats) -> Floats:
        """Return weights (Q,) of the query's tokens: hidden (Q, D), static idf (Q,)."""
        return (idf + LEAST_IDF) * np.exp(self.weight(hidden)[:, 0].clip(-3, 3))

    def __call__(
        self, query: Floats, weights: Floats, mean: Floats, sentence: Floats, around: Floats
    ) -> Floats:
        """Score a sentence: a query's unit vectors (Q, D), their weights (Q,) of sum 1, and mean
        (D,); the hidden vectors of the sentence (T, D) and of what is read with it (any, D) -> ().
        """
        inside = (normalize(sentence) @ query.T).max(0)
        seen = np.maximum(inside, (normalize(around) @ query.T).max(0, initial=-np.inf))
        cosine = normalize(sentence.mean(0)) @ normalize(mean)
        return np.stack([inside @ weights, seen @ weights, cosine]) @ self.mix


@dataclass(eq=False)
class PairJudge(LateInteraction):
    """The score of a sentence that is read together with the query, as a cross-encoder reads
    (`models/pocket/looks.py`).

    It is the late interaction within the sequence plus the output of a small network, whose inputs
    are the hidden vector of the first token and the sentence's mean.
    """

    jobs = ("pair",)
    middle: Linear = field(
        init=False, metadata={"layer": ("hidden_size", "hidden_size", "hidden_size")}
    )
    # it begins with about the negative of an untrained encoder's late interaction: the sum of `mix`
    # is 20, so 12 is a cosine of 0.6
    out: Linear = field(init=False, metadata={"layer": ("hidden_size", 1), "fill": -12.0})

    def look(
        self, hidden: Floats, idf: Floats, asked: int, sentence: slice, around: Floats
    ) -> Floats:
        """Score a sequence ().

        Args:
            hidden: (T, D) of the sequence: the first marker, `asked` tokens of the query, and the
                rest.
            idf: (asked,) of the query's tokens.
            sentence: its tokens; around: (T,) bool, other tokens that count.
        """
        query = hidden[1 : 1 + asked]
        text = hidden[sentence]
        weights = self.weigh(query, idf)
        met = self(normalize(query), weights / weights.sum(), query.mean(0), text, hidden[around])
        return met + self.out(gelu(self.middle(np.append(hidden[0], text.mean(0)))))[0]


@dataclass(eq=False)
class Judge(LateInteraction):
    """The second look's score of a sentence that is read without the query; and the calibration of
    the sums of both looks, for sentences and for documents. `looks.py` computes with its fields.
    """

    jobs = ("judge",)
    # facts about a document: four of `first_look` (its best score, the mean of its best cosines,
    # the share of the query's idf in it, its length), the best of the judge's scores, and the mean
    # of the best three
    FACTS = 6
    document: Linear = field(
        init=False, metadata={"layer": (FACTS, 1), "fill": 0.0}
    )  # the logit that a document answers
    # weights of the first four facts: `FirstLook.nearness` is their weighted sum
    near: Floats = field(
        init=False, default_factory=partial(np.array, [0.0, 16.0, 2.0, 0.0], np.float32)
    )
    # factor and summand of a sentence's score
    calibration: Floats = field(init=False, default_factory=partial(np.array, UNFIT, np.float32))
    # the judge's score of a sentence that is not read again, set by a fit
    floor: Floats = field(init=False, default_factory=partial(np.array, 4.0, np.float32))


KINDS: dict[str, type[ArrayHead]] = {  # by the names that `head_kind` gives them
    "token_features": TokenFeatures,
    "end_vector": EndVector,
    "first_vector": FirstVector,
    "plain_mean_vector": PlainMeanVector,
    "vector_score": VectorScore,
    "vector_relevance": VectorRelevance,
    "judge": Judge,
    "pair_judge": PairJudge,
}
