"""Heads: from hidden vectors to a document vector, a relevance score or sentence scores.

    D  width of the hidden vectors   E  width of the embedding   V  vocabulary   K  kinds of mark   n  items

The papers' heads look at one hidden vector of a text (`EndVector` and its kin, `EndScore`, `DenseScore`); their `pooling`
says which: "eos" the last token's, "cls" the first token's, "mean" the mean of all tokens', special ones among them. The
built-in model's heads add features of the same pass: weighted means of hidden vectors and exact matches between query and
document (`TokenFeatures`). All of them run in fp32 (fp64 for a model in fp64) and stream: they need sums, never the whole text.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Columns of the marks, i.e. rows of `TokenFeatures.mark_vectors`.
MARK_MATCH = 0  # idf of a token of the later part that also occurs in the earlier part
MARK_DOCUMENT = 1  # 1 for document tokens that follow a query (sentence retrieval)
MARK_QUERY = 2  # 1 for query tokens that follow a document (reranking)
MARKS = 3

Pooling = Literal["cls", "eos", "mean"]
POOLINGS: tuple[Pooling, ...] = ("cls", "eos", "mean")


class TokenFeatures(nn.Module):
    """What is known of a token by its id alone, and how marks enter the backbone.

    `weight()` (V,) > 0 weighs tokens in means; `idf` (V,) in [0, 1] is a static table; `mark_vectors` (K, D) are added
    to the token embeddings in proportion to a token's marks.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(vocab_size))
        self.mark_vectors = nn.Parameter(torch.zeros(MARKS, hidden_size))
        self.idf: Tensor
        self.register_buffer("idf", torch.ones(vocab_size))

    def weight(self) -> Tensor:
        return self.log_weight.exp()


class EndVector(nn.Module):
    """The normalized hidden vector at the end marker (papers A and D). No parameters."""

    pooling: ClassVar[Pooling] = "eos"

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n, D) of unit length."""
        return F.normalize(_wide(pooled), dim=-1)


class FirstVector(EndVector):
    """The normalized hidden vector of the first token, the encoders' [CLS] (paper A's BERT and RoBERTa)."""

    pooling = "cls"


class PlainMeanVector(EndVector):
    """The normalized mean of all hidden vectors, each with the same weight, as sentence-transformers takes it."""

    pooling = "mean"


class MeanVector(nn.Module):
    """The normalized projection of a weighted mean of hidden vectors, the end marker's among them."""

    pooling: ClassVar[Pooling] = "mean"

    def __init__(self, hidden_size: int, size: int | None = None) -> None:
        super().__init__()
        self.options = {"size": size}  # what config.json keeps beside the hidden width
        self.project = nn.Linear(hidden_size, size or hidden_size)
        with torch.no_grad():
            self.project.weight.zero_().fill_diagonal_(1.0)  # not torch.eye, which imports torch._dynamo on the meta device
            self.project.bias.zero_()

    def forward(self, mean: Tensor) -> Tensor:
        """(n, D) -> (n, E) of unit length."""
        return F.normalize(self.project(_wide(mean)), dim=-1)


class EndScore(nn.Module):
    """A linear layer on one hidden vector: at the end marker for a reranker (papers B, C; with encoders at the first token),
    at each sentence's last token for a sentence retriever (paper E). Two outputs count as (no, yes): their difference is the
    score.
    """

    def __init__(self, hidden_size: int, outputs: int = 1, bias: bool = True, pooling: Pooling = "eos") -> None:
        super().__init__()
        self.options = {"outputs": outputs, "bias": bias, "pooling": pooling}
        self.pooling = pooling
        self.linear = nn.Linear(hidden_size, outputs, bias=bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n,)"""
        return _score(self.linear(_wide(pooled)))


class DenseScore(nn.Module):
    """The classifier of published cross-encoders: a layer as wide as the model, its activation, then as `EndScore`."""

    def __init__(
        self, hidden_size: int, outputs: int = 1, activation: Literal["tanh", "gelu"] = "tanh", pooling: Pooling = "cls"
    ) -> None:
        super().__init__()
        self.options = {"outputs": outputs, "activation": activation, "pooling": pooling}
        self.pooling = pooling
        self.activation = nn.Tanh() if activation == "tanh" else nn.GELU()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.linear = nn.Linear(hidden_size, outputs)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n,)"""
        return _score(self.linear(self.activation(self.dense(_wide(pooled)))))


class MatchScore(nn.Module):
    """score = Linear([mean, end]) + g cos(P mean, P other) + f . lexical

    Sentence retrieval: `mean` and `end` are the sentence's, `other` the query's mean, `lexical` (n, 2) its share of
    matched query idf and its in-document BM25. Reranking: `mean` and `end` are the query's, read after the document,
    `other` the document's mean, `lexical` (n, 1) the share of query idf that occurs in the document.
    """

    def __init__(self, hidden_size: int, lexical: int, match_size: int = 128) -> None:
        super().__init__()
        self.options = {"lexical": lexical, "match_size": match_size}
        self.linear = nn.Linear(2 * hidden_size, 1)
        self.match = nn.Linear(hidden_size, match_size, bias=False)
        self.cosine_weight = nn.Parameter(torch.tensor(5.0))
        self.lexical_weight = nn.Parameter(torch.full((lexical,), 2.0))

    def forward(self, mean: Tensor, end: Tensor, other: Tensor, lexical: Tensor) -> Tensor:
        """mean, end, other (n, D) or other (1, D); lexical (n, F) -> (n,)"""
        score = self.linear(_wide(torch.cat([mean, end], dim=-1)))[:, 0]
        cosine = F.cosine_similarity(self.match(_wide(mean)), self.match(_wide(other)), dim=-1)
        return score + self.cosine_weight * cosine + lexical.to(score.dtype) @ self.lexical_weight


def _wide(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 if it is."""
    return x if x.dtype == torch.float64 else x.float()


def _score(logits: Tensor) -> Tensor:
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


HEADS: dict[str, type[nn.Module]] = {
    "end_vector": EndVector,
    "first_vector": FirstVector,
    "plain_mean_vector": PlainMeanVector,
    "mean_vector": MeanVector,
    "end_score": EndScore,
    "dense_score": DenseScore,
    "match_score": MatchScore,
}


def vector_head(pooling: Pooling) -> EndVector:
    """The head without parameters that pools so."""
    return next(cls() for cls in (EndVector, FirstVector, PlainMeanVector) if cls.pooling == pooling)
