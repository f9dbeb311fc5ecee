"""A family of backbones small enough to check by hand: h_t = decay * h_{t-1} + gain * embedding_t,
with gains of 1 at first.

It is what docs/contributing.md asks for of `model.py`, and no more.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.config import BackboneConfig
from runnel.backbones.layers import run_layer
from runnel.backbones.state import State


@dataclass(frozen=True)
class ToyConfig(BackboneConfig):
    vocab_size: int = 50
    hidden_size: int = 8
    num_layers: int = 1
    decay: float = 0.9


class ToyLayer(nn.Module):
    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.decay = config.decay
        self.gain = nn.Parameter(torch.ones(config.hidden_size))

    def forward(
        self, hidden: Tensor, cu_seqlens: Tensor, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """hidden (T, D), before (S, D) -> the same, both new."""
        out = torch.empty_like(hidden)
        ends = []
        for i, (a, b) in enumerate(
            zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
        ):
            h = hidden.new_zeros(hidden.shape[-1]) if before is None else before[i]
            for t in range(a, b):
                h = self.decay * h + self.gain.to(hidden.dtype) * hidden[t]
                out[t] = h
            ends.append(h)
        return out, torch.stack(ends)


class Toy(Backbone):
    architecture = "toy"
    title = "Toy"
    config_class = ToyConfig
    matrices = ("table",)
    config: ToyConfig

    def __init__(self, config: ToyConfig = ToyConfig()) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        nn.init.normal_(self.table, generator=torch.Generator().manual_seed(0))
        self.layers = nn.ModuleList([ToyLayer(config)])
        self.steps: list[int] = []  # tokens of each step, to look at the scheduling

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"h": (1, self.hidden_size)}

    @property
    def step_bytes_per_token(self) -> int:
        return 8 * self.hidden_size

    @property
    def flops_per_token(self) -> int:
        return 2 * self.hidden_size

    def embed(self, ids: Tensor) -> Tensor:
        return self.table[ids].to(stream_dtype(self.table))

    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.embed_with(ids, added)
        self.steps.append(len(hidden))
        before = None if state is None else state["h"][:, 0].to(hidden.dtype)
        out, ends = run_layer(self.layers[0], recompute, hidden, cu_seqlens, before)
        return out, {"h": ends[:, None]}


def ids_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, length)


def alone(backbone: Toy, ids: np.ndarray) -> Tensor:
    hidden: Tensor = backbone(torch.as_tensor(ids))[0]
    return hidden
