"""Heads of published checkpoints: EmbeddingRWKV's embedders and rerankers.

D  width of the hidden vectors   L  layers   H  heads of the recurrence   N  head size   n  items
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError
from runnel.models.heads import Head, wide


class ResidualVector(Head):
    """The hidden vector at the end marker after a feed-forward layer, a residual connection and a norm (EmbeddingRWKV)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.fc2 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, D) -> (n, D) of unit length."""
        pooled = wide(pooled)
        return F.normalize(self.norm(pooled + self.fc2(F.relu(self.fc1(pooled)))), dim=-1)


class StateScore(Head):
    """A score from the state after the last token (EmbeddingRWKV's state reranker).

    Another RWKV-7 model, the reader, as wide as the backbone, reads one token, starting from the matrices of the chosen layers of
    that state; a classifier scores its hidden vector. The reader runs in plain torch: one token is a small part of a query.

    Args:
        state_shapes: of the backbone.
        reader: its shape, one layer for each of `layers`.
        layers: of the backbone, from 0.

    Raises:
        CheckpointError: reader, layers and backbone do not fit together.
    """

    inputs, state = "state", "wkv"

    def __init__(self, state_shapes: Mapping[str, tuple[int, ...]], reader: Rwkv7Config, layers: tuple[int, ...]) -> None:
        super().__init__(reader=reader.to_dict(), layers=list(layers))
        depth, *matrices = state_shapes.get(self.state, (0,))
        fits = matrices == [reader.num_heads, reader.head_size, reader.head_size] and reader.num_layers == len(layers)
        if not fits or not all(0 <= layer < depth for layer in layers):
            raise CheckpointError(
                f"the state reranker has {reader.num_layers} layers of {reader.num_heads} heads of {reader.head_size} and reads "
                f"the layers {list(layers)} of {depth} of a state of shape {matrices}; they do not belong together"
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
        hidden, _ = self.reader(torch.zeros(count, dtype=torch.int64), torch.arange(count + 1), start)
        return self.linear(torch.tanh(self.dense(hidden)))[:, 0]
