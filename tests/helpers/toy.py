"""A recurrent backbone small enough to check by hand: h_t = decay * h_{t-1} + embedding_t, state = h."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.state import State


class Toy(Backbone):
    architecture = "toy"

    def __init__(self, vocab_size: int = 50, hidden_size: int = 8) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size, self.num_layers = vocab_size, hidden_size, 1
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(vocab_size, hidden_size, generator=generator), requires_grad=False)
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
        return self.table[ids]

    def _forward(self, hidden: Tensor, cu_seqlens: Tensor, state: State | None, recompute: bool = False) -> tuple[Tensor, State]:
        self.steps.append(len(hidden))
        out, ends = torch.empty_like(hidden), []
        for i, (a, b) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
            h = torch.zeros(self.hidden_size) if state is None else state["h"][i, 0].clone()
            for t in range(a, b):
                h = 0.9 * h + hidden[t]
                out[t] = h
            ends.append(h)
        return out, State({"h": torch.stack(ends)[:, None]}, torch.zeros(len(ends), dtype=torch.int64))
