"""Parts of several backbones: norms, linear layers in their own dtype, recomputed layers, padded batches, initialization.

T tokens, D width, L layers, Di inner width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runnel.backbones.int8 import Int8Linear
from runnel.backbones.state import State

_DT_MIN, _DT_MAX, _DT_FLOOR = 1e-3, 1e-1, 1e-4  # the time steps that a fresh model starts with
_SMALL_BATCH = 128  # padded tokens below which padding is cheaper than another call


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in x's dtype (the fp32 residual stream)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.Module):
    """(x - mean) / deviation * weight + bias over the last dimension, in x's dtype (the fp32 residual stream)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def apply_linear(layer: nn.Linear | Int8Linear, x: Tensor) -> Tensor:
    """Return `layer(x)` in x's dtype, computed in the weight's dtype (autocast may lower it further).

    8-bit weights are converted to x's dtype. Layers of other classes (adapters, 4-bit weights) are called unchanged.
    """
    if isinstance(layer, Int8Linear):
        return layer(x)
    if type(layer) is not nn.Linear:
        lowered = x.to(layer.weight.dtype) if layer.weight.is_floating_point() else x
        return layer(lowered).to(x.dtype)
    bias = None if layer.bias is None else layer.bias.to(layer.weight.dtype)
    return F.linear(x.to(layer.weight.dtype), layer.weight, bias).to(x.dtype)


def scan_dtype(layer: nn.Module, x: Tensor) -> torch.dtype:
    """Return the dtype in which a recurrence reads what `layer` gave: x's, but on a GPU bf16 where the layer computes in bf16.

    The chunked GPU kernels multiply in bf16 and would round fp32, the dtype of the residual stream, to 11 bits.
    """
    if not on_gpu(x):
        return x.dtype
    kind = x.device.type
    computed = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else getattr(layer, "weight", x).dtype
    return computed if computed == torch.bfloat16 else x.dtype


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU."""
    return x.device.type == "cuda"


class WideBiasLinear(nn.Linear):
    """A linear layer whose product is computed in the weight's dtype, and whose bias is added in the input's."""

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """input (..., K) -> (..., N) in its dtype."""
        return F.linear(input.to(self.weight.dtype), self.weight).to(input.dtype) + self.bias


def run_layer(layer: Callable[..., Any], recompute: bool, *inputs: Any) -> Any:
    """Call a layer. With `recompute` autograd keeps only the inputs, and the backward pass calls the layer again."""
    return checkpoint(layer, *inputs, use_reentrant=False) if recompute and torch.is_grad_enabled() else layer(*inputs)


def run_layers(
    layers: Sequence[nn.Module], names: Sequence[str], recompute: bool, hidden: Tensor, cu_seqlens: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """Run layers that map (hidden (T, D), cu_seqlens, *states) to (hidden, *states), with the states of these names.

    The state is left unchanged; None: zero. The numbers of tokens in the new one are 0.
    """
    after: list[tuple[Tensor, ...]] = []
    for index, layer in enumerate(layers):
        before = [None if state is None else state[name][:, index].to(hidden.dtype) for name in names]
        hidden, *ends = run_layer(layer, recompute, hidden, cu_seqlens, *before)
        after.append(tuple(ends))
    tensors = {name: torch.stack(ends, dim=1) for name, ends in zip(names, zip(*after, strict=True), strict=True)}
    return hidden, State(tensors, torch.zeros(cu_seqlens.numel() - 1, dtype=torch.int64))


def sub_batches(lengths: list[int]) -> Iterator[list[int]]:
    """Yield the indices of sequences to pad together, longest first; at most an eighth of their tokens is padding.

    Empty sequences are left out. Very small batches may have more padding.
    """
    batch: list[int] = []
    tokens = 0
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        padded = (len(batch) + 1) * lengths[batch[0] if batch else i]
        if batch and 8 * padded > 9 * (tokens + lengths[i]) and padded > _SMALL_BATCH:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


def init_dt_bias(channels: int) -> Tensor:
    """Return (channels,) biases whose softplus is log-uniform in [0.001, 0.1].

    On the CPU even where the default device is meta: arithmetic on meta tensors imports torch's compiler, which takes seconds.
    """
    low, high = math.log(_DT_MIN), math.log(_DT_MAX)
    dt = torch.empty(channels, device="cpu").uniform_(low, high).exp().clamp(min=_DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus


def init_out_proj(layer: nn.Linear, num_layers: int) -> None:
    """Fill Kaiming-uniformly, divided by sqrt(L) so that the residual stream does not grow with depth."""
    bound = (layer.in_features * num_layers) ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound)
