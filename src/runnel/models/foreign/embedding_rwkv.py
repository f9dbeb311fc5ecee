"""Heads, templates and prompts of EmbeddingRWKV: RWKV-7 embedders, and rerankers that read the
states the embedders leave.

A text ends with one end marker, the last row of the embedding table (65535). The text's vector is
the output of the retrieval head at that marker. The checkpoints also have heads for classification
and for similarity, which are not read.

Source: package/src/rwkv_emb/model.py and README.md in howard-hou/EmbeddingRWKV 13613c0. Two things
are different here. The authors' code pads batches with token 0, which the model then reads; here
texts are read without padding. And as in every template here, documents and queries are tokenized
separately from the text around them.

D  width of the hidden vectors      n  texts or pairs
L  layers of the backbone           H  heads of the recurrence      N  head size
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.checkpoint.load import Checkpoint, NoRandomNumbers
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError
from runnel.models.recurrent.heads import TorchHead, fill, wide
from runnel.text.templates import DOCUMENT, Template

# Beginnings of the names of tensors: of the retrieval head, of the reranker, and of heads that are
# not read; all heads but the reranker come after "head.".
_VECTOR, _RERANKER = "retr_head.", "reranker."
HEADS = ("head.", _RERANKER)
_UNREAD = ("cls_head.", "sts_head.")
# Of the reranker: names in the file -> names in `StateScore`. The classifier in the file is a list
# of modules; number 1, the tanh, has no weights.
_CLASSIFIER = {
    "head.0.weight": "dense.weight",
    "head.0.bias": "dense.bias",
    "head.2.weight": "linear.weight",
}
_TASK = "Instruct: Given a query, retrieve documents that answer the query\n"
TEMPLATES = {
    "document": DOCUMENT,
    "rerank": Template.parse(_TASK + "Document: {document}\nQuery: {query}{end}"),
}
PROMPTS = {"query": _TASK + "Query: "}


class ResidualVector(TorchHead):
    """The hidden vector at the end marker after a feed-forward layer, a residual connection and a
    norm (EmbeddingRWKV).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.fc2 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n, D) of unit length."""
        pooled = wide(pooled)
        return F.normalize(self.norm(pooled + self.fc2(F.relu(self.fc1(pooled)))), dim=-1)


class StateScore(TorchHead):
    """A score from the state after the last token (EmbeddingRWKV's state reranker).

    Another RWKV-7 model, the reader, as wide as the backbone, reads one token, starting from the
    matrices of the chosen layers of that state; a classifier scores its hidden vector. The reader
    runs in plain torch: one token is a small part of a query.

    Args:
        state_shapes: the backbone's `state_shapes()`.
        reader: the shape of the reader, which has one layer for each of `layers`.
        layers: the numbers, from 0, of the backbone's layers whose states are read.

    Raises:
        CheckpointError: reader, layers and backbone do not fit together.
    """

    inputs = "state"
    state = "wkv"  # the tensor of the backbone's state that it reads

    def __init__(
        self,
        state_shapes: Mapping[str, tuple[int, ...]],
        reader: Rwkv7Config,
        layers: tuple[int, ...],
    ) -> None:
        super().__init__(reader=reader.to_dict(), layers=list(layers))
        depth, *matrices = state_shapes.get(self.state, (0,))
        fits = matrices == [
            reader.num_heads,
            reader.head_size,
            reader.head_size,
        ] and reader.num_layers == len(layers)
        if not fits or not all(0 <= layer < depth for layer in layers):
            raise CheckpointError(
                f"the state reranker has {reader.num_layers} layers of {reader.num_heads} heads of"
                f" {reader.head_size} and reads the layers {list(layers)} of {depth} of a state of"
                f" shape {matrices}; they do not belong together"
            )
        self.layers = list(layers)
        self.reader = Rwkv7(reader)
        self.dense = nn.Linear(reader.hidden_size, reader.hidden_size)
        self.linear = nn.Linear(reader.hidden_size, 1, bias=False)

    def forward(self, wkv: Tensor) -> Tensor:
        """(n, L, H, N, N) -> (n,)"""
        count = len(wkv)
        start = self.reader.new_state(count)
        start.tensors[self.state] = wkv[:, self.layers].to(start.dtype)
        # one token, with the id 0, in each of the `count` rows
        hidden, _ = self.reader(
            torch.zeros(count, dtype=torch.int64), torch.arange(count + 1), start
        )
        return self.linear(torch.tanh(self.dense(hidden)))[:, 0]


def read_heads(checkpoint: Checkpoint) -> nn.ModuleDict:
    """Return the head "embed", and "rerank" if the checkpoint has a state reranker."""
    where = str(checkpoint.folder)
    vector = {
        name.removeprefix(_VECTOR): tensor
        for name, tensor in _named(checkpoint, "head.").items()
        if not name.startswith(_UNREAD)
    }
    with torch.device("meta"), NoRandomNumbers():
        embed = ResidualVector(checkpoint.backbone.hidden_size)
    fill(embed, vector, f"{where}, head.{_VECTOR}")
    heads = nn.ModuleDict({"embed": embed})
    if reranker := _named(checkpoint, _RERANKER):
        heads["rerank"] = _state_score(checkpoint, reranker, where)
    return heads


def _state_score(checkpoint: Checkpoint, tensors: dict[str, Tensor], where: str) -> TorchHead:
    """Return the head of a reranker from its tensors: a whole RWKV-7 of official names, whose
    embedding table has the one token that it reads, and a classifier.
    """
    from runnel.backbones.rwkv7.formats import READ_LAYERS, read_rwkv7  # only for this model

    tensors = {
        "emb.weight" if name == "token.weight" else name: tensor for name, tensor in tensors.items()
    }
    classifier = {
        ours: tensors.pop(theirs) for theirs, ours in _CLASSIFIER.items() if theirs in tensors
    }
    reader = read_rwkv7({}, from_tensors(tensors, "the reranker"), f"{where}, {_RERANKER}")
    assert isinstance(reader.config, Rwkv7Config)
    chosen = checkpoint.heads.get(READ_LAYERS)
    layers = range(reader.config.num_layers) if chosen is None else chosen.flatten().int().tolist()
    with torch.device("meta"), NoRandomNumbers():
        head = StateScore(checkpoint.backbone.state_shapes(), reader.config, tuple(layers))
    read = {f"reader.{name}": stored.read() for name, stored in reader.backbone.items()}
    for name, tensor in read.items():
        # the file has these transposed, so `read` gives a transposed view
        if name.endswith(("_down.weight", "_up.weight")):
            read[name] = tensor.contiguous()
    fill(head, read | classifier, f"{where}, {_RERANKER}")
    return head


def _named(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint.heads.items()
        if name.startswith(prefix)
    }
