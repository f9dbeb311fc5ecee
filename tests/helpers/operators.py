"""Every operator at a few shapes, for the contract of `tests/contracts/test_ops.py`."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.gated_rms_norm import gated_rms_norm
from runnel.ops.mlstm import mlstm
from runnel.ops.selective_scan import selective_scan
from runnel.ops.ssd import ssd
from runnel.ops.wkv7 import wkv7

# the GPU kernels run on the CPU; see tests/ops/test_gpu.py
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = {
    "reference": "cpu",
    "torch": "cpu",
    "cpu": "cpu",
    "gpu": "cpu" if INTERPRETED else "cuda",
    "torch:cuda": "cuda",
}

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Operator:
    """One operator at one shape: how to make its inputs and how to call it."""

    # tokens -> inputs in fp64, by their names; those with T rows are per token
    make: Callable[[int, torch.Generator], Inputs]
    function: Callable[..., tuple[Tensor, Any]]  # of `ops`
    state_shape: tuple[int, ...] | None  # None: the operator carries nothing between tokens
    per_token: tuple[str, ...]
    # stay fp32 when the others are bf16, as the backbones pass them
    fp32_inputs: tuple[str, ...] = ()
    # a state of several tensors (S, H, ...) is here one, (S, H, their elements)
    state_parts: tuple[tuple[int, ...], ...] = ()

    def run(
        self, inputs: Inputs, cu: Tensor | None, state: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        sizes = [math.prod(shape) for shape in self.state_parts]
        parts: Any = state
        if sizes and state is not None:
            split = zip(state.split(sizes, dim=2), self.state_parts, strict=True)
            parts = tuple(part.reshape(*state.shape[:2], *shape) for part, shape in split)
        y, end = self.function(**(inputs | {"cu_seqlens": cu, "state": parts, "backend": backend}))
        if sizes:
            end = torch.cat(
                [
                    part.reshape(*part.shape[:2], size)
                    for part, size in zip(end, sizes, strict=True)
                ],
                2,
            )
        return y, end

    def call(
        self, inputs: Inputs, cu: Tensor | None, state: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """`run` on the backend's device, with results on the CPU."""
        device = DEVICE[backend]
        on_device = {k: v.to(device) for k, v in inputs.items()}
        y, end = self.run(
            on_device, cu, None if state is None else state.to(device), backend.partition(":")[0]
        )
        return y.cpu(), end.cpu()


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _conv(channels: int, width: int, *, bias: bool) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        return {"x": normal(g, tokens, channels), "weight": normal(g, channels, width)} | (
            {"bias": normal(g, channels)} if bias else {}
        )

    return Operator(make, causal_conv1d, (channels, width - 1), ("x",), ("weight", "bias"))


def _ssd(heads: int, size: int, groups: int, width: int, *, skip: bool) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        inputs = {
            "x": normal(g, tokens, heads, size),
            "dt": F.softplus(normal(g, tokens, heads) - 2),
        }
        inputs |= {
            "A": -normal(g, heads).exp() * 4,
            "B": normal(g, tokens, groups, width),
            "C": normal(g, tokens, groups, width),
        }
        return inputs | ({"D": normal(g, heads)} if skip else {})

    return Operator(make, ssd, (heads, size, width), ("x", "dt", "B", "C"), ("dt", "A", "D"))


def _selective_scan(channels: int, width: int, *, skip: bool) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        inputs = {
            "x": normal(g, tokens, channels),
            "dt": F.softplus(normal(g, tokens, channels) - 2),
        }
        inputs |= {
            "A": -normal(g, channels, width).exp() * 4,
            "B": normal(g, tokens, width),
            "C": normal(g, tokens, width),
        }
        return inputs | ({"D": normal(g, channels)} if skip else {})

    return Operator(
        make, selective_scan, (channels, width), ("x", "dt", "B", "C"), ("dt", "A", "D")
    )


def _wkv7(heads: int, key_size: int, value_size: int, *, strongest: float = 0.607) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        keys = (tokens, heads, key_size)
        removal = F.normalize(normal(g, *keys), dim=-1)
        inputs = {
            "r": normal(g, *keys),
            "w": -strongest * normal(g, *keys).sigmoid(),
            "k": normal(g, *keys),
        }
        inputs["v"] = normal(g, tokens, heads, value_size)
        return inputs | {"a": -removal, "b": removal * normal(g, *keys).sigmoid()}

    return Operator(
        make, wkv7, (heads, key_size, value_size), ("v", "r", "w", "k", "a", "b"), ("w",)
    )


def _mlstm(
    heads: int, width: int, size: int, *, gates: tuple[tuple[float, float], tuple[float, float]]
) -> Operator:
    """Gates are uniform in the ranges of i and f; the state is C, n and m."""

    def make(tokens: int, g: torch.Generator) -> Inputs:
        # Keys and queries lean to one side: where n . q cancels, h and its gradients are as large
        # as their rounding errors.
        inputs = {name: 1 + normal(g, tokens, heads, width) / 2 for name in "kq"}
        inputs["v"] = normal(g, tokens, heads, size)
        for name, (low, high) in zip("if", gates, strict=True):
            inputs[name] = low + (high - low) * torch.rand(
                tokens, heads, generator=g, dtype=torch.float64
            )
        return inputs

    parts = ((width, size), (width,), ())
    return Operator(
        make, mlstm, (heads, width * size + width + 1), ("k", "q", "v", "i", "f"), ("i", "f"), parts
    )


_MODERATE = ((-5.0, 8.0), (-3.0, 6.0))
_STRONG = ((-15.0, 15.0), (-15.0, 15.0))


def _gated_norm(channels: int, groups: int) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        return {
            "y": normal(g, tokens, channels),
            "z": normal(g, tokens, channels),
            "weight": normal(g, channels),
        }

    def function(
        y: Tensor, z: Tensor, weight: Tensor, *, backend: str, **_: object
    ) -> tuple[Tensor, Tensor]:
        no_state = torch.zeros(
            0, dtype=torch.float64 if y.dtype == torch.float64 else torch.float32
        )
        return gated_rms_norm(y, z, weight, 1e-5, groups, backend=backend), no_state

    return Operator(make, function, None, ("y", "z"), ("weight",))


OPERATORS: dict[str, Operator] = {
    "causal_conv1d": _conv(70, 4, bias=True),
    "causal_conv1d-plain": _conv(5, 4, bias=False),
    "causal_conv1d-narrow": _conv(3, 2, bias=True),
    "causal_conv1d-pointwise": _conv(3, 1, bias=True),
    "ssd": _ssd(3, 5, 1, 6, skip=True),
    "ssd-groups": _ssd(6, 4, 2, 3, skip=True),
    "ssd-group-per-head": _ssd(4, 18, 4, 17, skip=False),
    "ssd-wide": _ssd(2, 32, 1, 32, skip=True),
    "selective_scan": _selective_scan(40, 16, skip=True),
    "selective_scan-narrow": _selective_scan(3, 5, skip=False),
    "wkv7": _wkv7(1, 64, 64),
    "wkv7-odd": _wkv7(3, 5, 7),
    "wkv7-wide": _wkv7(2, 6, 85),
    "wkv7-forgets": _wkv7(1, 33, 16, strongest=150.0),
    "mlstm": _mlstm(2, 16, 32, gates=_MODERATE),
    "mlstm-odd": _mlstm(3, 3, 5, gates=_MODERATE),
    "mlstm-wide": _mlstm(1, 34, 70, gates=_MODERATE),
    "mlstm-strong-gates": _mlstm(3, 5, 7, gates=_STRONG),
    "gated_rms_norm": _gated_norm(12, 1),
    "gated_rms_norm-groups": _gated_norm(36, 3),
}
