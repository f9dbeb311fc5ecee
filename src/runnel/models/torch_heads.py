"""Heads that are torch modules: of models that read with torch, and of those in training.

    D  width of the hidden vectors      E  width of the embedding      V  vocabulary      n  items
    F  lexical features

All but `LmHead` run in fp32 (fp64 for a model in fp64).
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.models import heads
from runnel.models.heads import Head, Judge, TokenFeatures, VectorScore, apply, normalize, wide
from runnel.ops.backend import plain_numbers
from runnel.request import Array

OneToken = Literal["cls", "eos"]


class TorchHead(nn.Module, Head):
    """A head whose weights are torch's."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        nn.Module.__init__(self)
        super(nn.Module, self).__init__(*sizes, **options)

    @classmethod
    def module(cls, *sizes: int, **options: Any) -> TorchHead:
        return cls(*sizes, **options)

    def new_linear(self, inputs: int, outputs: int, *, fill: float | None = None) -> nn.Linear:
        layer = nn.Linear(inputs, outputs)
        if fill is not None:
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, fill)
        return layer

    def new_numbers(self, values: Any, *, fixed: bool = False) -> Any:
        tensor = torch.tensor(values, dtype=torch.float32)
        return nn.Buffer(tensor) if fixed else nn.Parameter(tensor)


_classes: dict[type[Head], type[TorchHead]] = {}


def module_class(head: type[Head]) -> type[TorchHead]:
    """Return the class of torch modules of a head of `heads.py`; they are instances of that class
    too.
    """
    if head not in _classes:
        # not the `forward` of nn.Module
        own = {"forward": head.forward, "__doc__": head.__doc__, "__module__": __name__}
        _classes[head] = cast("type[TorchHead]", type(head.__name__, (TorchHead, head), own))
    return _classes[head]


def __getattr__(name: str) -> Any:
    """Return a class that `module_class` made, which pickle looks up by its name."""
    if isinstance(head := vars(heads).get(name), type) and issubclass(head, Head):
        return module_class(head)
    raise AttributeError(name)


class MeanVector(TorchHead):
    """The normalized projection of a weighted mean of hidden vectors, including
    the end marker's.
    """

    pooling = "mean"

    def __init__(self, hidden_size: int, size: int | None = None) -> None:
        super().__init__(size=size)
        self.project = nn.Linear(hidden_size, size or hidden_size)
        with torch.no_grad():
            # not torch.eye, which imports torch._dynamo on the meta device
            self.project.weight.zero_().fill_diagonal_(1.0)
            self.project.bias.zero_()

    def forward(self, mean: Array) -> Array:
        """(n, D) -> (n, E) of unit length."""
        return normalize(apply(self.project, wide(mean)))


class EndScore(TorchHead):
    """A linear layer on one hidden vector: at the end marker (papers B, C) or at each sentence's
    last token (paper E).

    With two outputs (no, yes) the score is their difference.
    """

    def __init__(
        self, hidden_size: int, outputs: int = 1, bias: bool = True, pooling: OneToken = "eos"
    ) -> None:
        super().__init__(outputs=outputs, bias=bias, pooling=pooling)
        self.pooling = pooling
        self.linear = nn.Linear(hidden_size, outputs, bias=bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n,)"""
        return score(self.linear(wide(pooled)))


class MatchScore(TorchHead):
    """A score from vectors and exact matches: Linear([mean, end]) + g cos(P mean, P other) + f .
    lexical

    Sentence retrieval: `mean` and `end` are the sentence's, `other` is the query's mean, `lexical`
    (n, 2) the sentence's share of matched query idf and its in-document BM25. Reranking: `mean` and
    `end` are the query's, read after the document, `other` is the document's mean, `lexical` (n, 1)
    the share of query idf that occurs in the document.
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


class LmHead(TorchHead):
    """The LM head of a recurrent model: logits of the next token from the hidden vector of each
    token, in the weights' dtype.

    `tied`: the backbone's embedding table is the matrix; `soft_cap`: c of logits c * tanh(x / c),
        as in xLSTM.
    """

    jobs = ("generate",)

    def __init__(
        self, vocab_size: int, hidden_size: int, tied: bool = False, soft_cap: float | None = None
    ) -> None:
        super().__init__(tied=tied, soft_cap=soft_cap)
        self.soft_cap = soft_cap
        self.weight = None if tied else nn.Parameter(torch.zeros(vocab_size, hidden_size))

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """hidden (n, D), the embedding table (V, D) -> (n, V) in the dtype of `hidden`."""
        weight = table if self.weight is None else self.weight
        logits = F.linear(hidden.to(weight.dtype), weight).to(hidden.dtype)
        return (
            logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)
        )


def score(logits: Tensor) -> Tensor:
    """(n, 1 or 2) -> (n,): one output, or the second minus the first."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


@plain_numbers()
def with_sentence_heads(encoder: Any, heads_before: Any) -> nn.ModuleDict:
    """Return fresh heads with which any encoder finds sentences (`Model.for_sentences`), and the
    heads of its model.

    They add up what a sentence's vector and its words say, and the second look; nothing is
    calibrated. A passage begins with the prompt for documents, a query with that for queries. A
    sentence's vector is the mean of its own tokens in the passage, and a query's the mean of its
    tokens, also if the model pools the first token, which stands for the whole passage. The model's
    own pooling makes the vectors of texts and passages.
    """
    with torch.random.fork_rng(devices=[]):  # the same weights each time
        torch.manual_seed(0)
        features, width = (
            TokenFeatures.module(encoder.vocab_size, encoder.hidden_size),
            encoder.hidden_size,
        )
        fresh = {
            "features": features,
            "sentences": VectorScore.module(width),
            "judge": Judge.module(width),
        }
    return nn.ModuleDict(fresh | dict(heads_before.items()))
