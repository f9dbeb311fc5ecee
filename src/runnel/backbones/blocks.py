"""Recurrent backbones of equal blocks between an embedding table and an RMSNorm, and the sizes that Mamba-2 and Mamba-3 share.

T  tokens    D  hidden_size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Backbone, BackboneConfig, stream_dtype
from runnel.backbones.layers import RMSNorm, run_layers
from runnel.backbones.state import State

Block = TypeVar("Block", bound=nn.Module)
Mixer = TypeVar("Mixer", bound=nn.Module)


@dataclass(frozen=True)
class HeadsConfig(BackboneConfig):
    """Sizes of blocks whose inner channels are divided into heads, and whose heads share groups of B and C."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    state_size: int = 128
    head_size: int = 64
    groups: int = 1
    expand: int = 2
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.inner_size % self.head_size == 0, "inner_size", "head_size", rule="a multiple of the latter")
        self.expect(self.num_heads % self.groups == 0, "num_heads", "groups", rule="a multiple of the latter")

    @property
    def inner_size(self) -> int:
        return self.expand * self.hidden_size

    @property
    def num_heads(self) -> int:
        return self.inner_size // self.head_size


class MixerLayer(nn.Module, Generic[Mixer]):
    """One block: norm, mixer and residual."""

    mixer: Mixer

    def __init__(self, config: Any, mixer: Callable[[Any], Mixer]) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer = mixer(config)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
        """hidden (T, D) and states, as the mixer's -> the same, all new."""
        out, *states = self.mixer(self.norm(hidden), cu_seqlens, *states)
        return (hidden + out, *states)


class BlockBackbone(Backbone, Generic[Block]):
    """A backbone whose blocks map (hidden, cu_seqlens, *states) to the same, with states in the order of `state_shapes`.

    Args:
        config: with vocab_size, hidden_size, num_layers and norm_eps.
        block: makes a block of the config.
        embedding_std: standard deviation of fresh embeddings.
    """

    def __init__(self, config: Any, block: Callable[[Any], Block], embedding_std: float = 0.02) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.hidden_size, self.num_layers = config.vocab_size, config.hidden_size, config.num_layers
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(block(config) for _ in range(config.num_layers))
        self.norm_f = RMSNorm(config.hidden_size, config.norm_eps)
        nn.init.normal_(self.embeddings.weight, std=embedding_std)

    @property
    def blocks(self) -> list[Block]:
        """The blocks in order."""
        return cast("list[Block]", list(self.layers))

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embeddings.weight).to(stream_dtype(self.embeddings.weight))

    def _forward(self, hidden: Tensor, cu_seqlens: Tensor, state: State | None, recompute: bool = False) -> tuple[Tensor, State]:
        hidden = hidden.to(stream_dtype(self.embeddings.weight))
        hidden, ends = run_layers(self.blocks, list(self.state_shapes()), recompute, hidden, cu_seqlens, state)
        return self.norm_f(hidden), ends
