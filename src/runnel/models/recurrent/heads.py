"""Heads that are torch modules: the heads of models that torch runs, and `HeldHead`, which trains a
head of arrays (`models/pocket/heads.py`). A head turns hidden vectors into vectors or scores;
`Head` (`models/head.py`) says which hidden vectors each kind asks for (`inputs`, `pooling`).

    D  width of the hidden vectors      E  width of a text's vector      V  vocabulary      n  items
    F  lexical features

All but `LmHead` run in fp32 (fp64 for a model in fp64). docs/papers.md lists the papers, A to E.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.checkpoint.shapes import check_tensors
from runnel.backbones.checkpoint.tensors import from_tensors, shapes_of
from runnel.models.head import MARKS, Head, Pooling
from runnel.models.pocket.heads import ArrayHead, Judge, Linear, VectorScore
from runnel.ops.backend import inference, plain_numbers
from runnel.request import Array

OneToken = Literal["cls", "eos"]


class TorchHead(nn.Module, Head):
    """A head whose weights are torch's."""

    def __init__(self, **options: Any) -> None:
        nn.Module.__init__(self)
        Head.__init__(self, **options)

    @inference()
    def vectors(self, pooled: Sequence[Array]) -> np.ndarray:
        """Return the vectors (n, E) float32 of pooled hidden vectors, one tensor (any, D) for each
        document.
        """
        return self(torch.cat([torch.as_tensor(part) for part in pooled])).numpy()


class HeldHead(TorchHead):
    """A torch module that holds the weights of an `ArrayHead` as parameters, which move, train and
    are saved with a torch model. `refresh` copies them into the `ArrayHead`, `head`, which computes
    for inference.

    Layers and numbers have the names of `head`. A new layer begins as torch's layers do, or with
    the numbers of `Linear.fill`.
    """

    def __init__(self, head: ArrayHead) -> None:
        super().__init__(**head.options)
        self.head = head
        self.inputs = head.inputs
        self.pooling = head.pooling
        for name, held in vars(head).items():
            if isinstance(held, Linear):
                layer = nn.Linear(held.weight.shape[1], held.weight.shape[0])
                if held.fill is not None:
                    nn.init.zeros_(layer.weight)
                    nn.init.constant_(layer.bias, held.fill)
                setattr(self, name, layer)
            elif isinstance(held, np.ndarray):
                tensor = torch.tensor(held)
                setattr(
                    self, name, nn.Buffer(tensor) if name in head.fixed else nn.Parameter(tensor)
                )
        self.refresh()

    # Layers and numbers are set by name: this tells a type checker that there may be any.
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    @property
    def for_inference(self) -> ArrayHead:
        return self.head

    def refresh(self) -> None:
        """Give `head` the weights that were trained or loaded."""
        held = self.state_dict()
        if not any(tensor.is_meta for tensor in held.values()):
            self.head.load({name: part.float().cpu().numpy() for name, part in held.items()})

    def forward(self, *inputs: Any) -> Any:
        """Run `head` on arrays, for inference. In training, `lab/training/vector_scores.py`
        computes the same with the parameters.
        """
        return self.head(*inputs)


class TokenFeatures(TorchHead):
    """Per-token tables, indexed by id, and the vectors by which marks enter the backbone."""

    jobs = ("features",)

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(vocab_size))
        # added to embeddings in proportion to marks
        self.mark_vectors = nn.Parameter(torch.zeros(MARKS, hidden_size))
        self.idf = nn.Buffer(torch.ones(vocab_size))  # (V,) in [0, 1], static

    def weight(self) -> Tensor:
        """Return the positive weights (V,) of tokens in means."""
        return self.log_weight.exp()


class EndVector(TorchHead):
    """The normalized hidden vector at the end marker (papers A and D). No parameters."""

    only_normalizes = True

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n, D) of unit length."""
        return F.normalize(wide(pooled), dim=-1)


class FirstVector(EndVector):
    """The normalized hidden vector of the first token, the encoders' [CLS] (paper A's BERT and
    RoBERTa).
    """

    pooling = "cls"


class PlainMeanVector(EndVector):
    """The normalized mean of all hidden vectors with equal weights, as in sentence-transformers."""

    pooling = "mean"


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

    def forward(self, mean: Tensor) -> Tensor:
        """(n, D) -> (n, E) of unit length."""
        return F.normalize(self.project(wide(mean)), dim=-1)


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
    """A score from vectors and exact matches, with trained weights g, P and f:

        Linear([mean, end]) + g cos(P mean, P other) + f . lexical

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

    Args:
        tied: the matrix is the backbone's embedding table.
        soft_cap: c; each logit x becomes c * tanh(x / c), as in xLSTM. None: it stays x.
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
    """Return scores (n,) from logits (n, 1) or (n, 2): the one, or the second minus the first."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, or unchanged if it is fp64."""
    return x if x.dtype == torch.float64 else x.float()


def vector_head(pooling: Pooling) -> EndVector:
    """Return the parameter-free head with this pooling."""
    kinds: dict[Pooling, type[EndVector]] = {
        "eos": EndVector,
        "cls": FirstVector,
        "mean": PlainMeanVector,
    }
    return kinds[pooling]()


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Give a head, or the heads of a model, which are on the meta device, these tensors as weights.
    Raise CheckpointError unless they are all that it needs, in the right shapes.
    """
    wanted = module.state_dict()
    check_tensors(from_tensors(tensors, "the heads"), shapes_of(wanted), where)
    # Not `to_empty`: on meta tensors it imports sympy, which takes longer than everything else
    # here.
    module.load_state_dict(
        {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()},
        assign=True,
    )


@plain_numbers()
def with_sentence_heads(encoder: Any, heads_before: nn.ModuleDict) -> nn.ModuleDict:
    """Return the heads of an encoder's model, and untrained heads with which any encoder finds
    sentences (`Model.for_sentences`).

    A score adds up the comparison of vectors, the comparison of words, and the second look, which
    reads the best sentences again (`models/pocket/looks.py`); nothing is calibrated. A passage
    begins with the prompt for documents, a query with the prompt for queries. A sentence's vector
    is the mean of the hidden vectors of its tokens in the passage, and a query's vector the mean of
    its tokens', also if the model pools the first token, which stands for the whole passage. The
    model's own pooling makes the vectors of texts and passages.
    """
    with torch.random.fork_rng(devices=[]):  # the same weights each time
        torch.manual_seed(0)
        width = encoder.hidden_size
        fresh: dict[str, nn.Module] = {
            "features": TokenFeatures(encoder.vocab_size, width),
            "sentences": HeldHead(VectorScore(width)),
            "judge": HeldHead(Judge(width)),
        }
    return nn.ModuleDict(fresh | dict(heads_before.items()))
