"""Parts that several backbones share: norms and linear layers in the right dtype; recomputed
layers; padded batches; initialization; and `BlockBackbone`, the base of Mamba-1, Mamba-2 and
xLSTM.

T  tokens      D  width of the hidden vectors      S  sequences      L  layers
K  inputs of a linear layer      N  outputs of a linear layer
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.state import State

_DT_MIN, _DT_MAX, _DT_FLOOR = 1e-3, 1e-1, 1e-4  # the time steps that a fresh model starts with
_SMALL_BATCH = 128  # padded tokens below which padding is cheaper than another call


class RMSNorm(nn.RMSNorm):
    """Torch's RMSNorm, computed in the dtype of x (the fp32 residual stream), whatever the weight's
    dtype.
    """

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    """Torch's LayerNorm, computed in the dtype of x, whatever the dtypes of weight and bias."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )


def apply_linear(layer: nn.Linear | Int8Linear, x: Tensor) -> Tensor:
    """Return `layer(x)` in x's dtype, computed in the weight's dtype (autocast may lower it
    further).

    8-bit weights are converted to x's dtype. Layers of other classes (adapters, 4-bit weights) are
    called as they are, between the same conversions of x and of the result.
    """
    if isinstance(layer, Int8Linear):
        return layer(x)
    if type(layer) is not nn.Linear:
        return layer(to_weight_dtype(layer, x)).to(x.dtype)
    bias = None if layer.bias is None else layer.bias.to(layer.weight.dtype)
    return F.linear(to_weight_dtype(layer, x), layer.weight, bias).to(x.dtype)


def to_weight_dtype(layer: nn.Module, x: Tensor) -> Tensor:
    """Return x in the dtype of a layer's weight, so that `apply_linear(layer, x)` returns that
    dtype too. For a weight in 4 or 8 bits, return x unchanged.
    """
    weight = cast("Tensor", layer.weight)
    return x.to(weight.dtype) if weight.is_floating_point() else x


def scan_dtype(layer: nn.Module, x: Tensor) -> torch.dtype:
    """Return the dtype in which a recurrence reads the output of `layer`: the dtype of x, but on a
    GPU bf16 if the layer computes in bf16.

    The chunked GPU kernels multiply in bf16 and would round fp32, the dtype of the residual stream,
    to TF32, which has 11 bits.
    """
    if not on_gpu(x):
        return x.dtype
    kind = x.device.type
    computed = (
        torch.get_autocast_dtype(kind)
        if torch.is_autocast_enabled(kind)
        else getattr(layer, "weight", x).dtype
    )
    return computed if computed == torch.bfloat16 else x.dtype


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU."""
    return x.device.type == "cuda"


class WideBiasLinear(nn.Linear):
    """A linear layer whose product is computed in the weight's dtype, and whose bias is added in
    the input's.
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """input (..., K) -> (..., N) in its dtype."""
        return F.linear(input.to(self.weight.dtype), self.weight).to(input.dtype) + self.bias


def run_layer(layer: Callable[..., Any], recompute: bool, *inputs: Any) -> Any:
    """Call a layer. With `recompute` autograd keeps only the inputs, and the backward pass calls
    the layer again.
    """
    return (
        checkpoint(layer, *inputs, use_reentrant=False)
        if recompute and torch.is_grad_enabled()
        else layer(*inputs)
    )


def run_layers(
    layers: Iterable[nn.Module],
    names: Sequence[str],
    hidden: Tensor,
    places: Any,
    state: State | None,
    recompute: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run layers that map (hidden, places, *states) to the new (hidden, *states), with the states
    in the order of `names`; return the last hidden, and the states of all layers (S, L, ...).
    `places`: where each sequence is among the tokens, in the form that the layers take.
    """
    after = []
    for index, layer in enumerate(layers):
        before = [
            None if state is None else state[name][:, index].to(hidden.dtype) for name in names
        ]
        hidden, *ends = run_layer(layer, recompute, hidden, places, *before)
        after.append(ends)
    return hidden, {
        name: torch.stack(ends, dim=1)
        for name, ends in zip(names, zip(*after, strict=True), strict=True)
    }


def sub_batches(lengths: list[int]) -> Iterator[list[int]]:
    """Yield the indices of sequences to pad together, longest first.

    Padded to the longest, a batch has at most 9/8 of its tokens, or at most `_SMALL_BATCH` places.
    Empty sequences are left out.
    """
    batch: list[int] = []
    tokens = 0
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        padded = (len(batch) + 1) * lengths[batch[0] if batch else i]
        if batch and 8 * padded > 9 * (tokens + lengths[i]) and padded > _SMALL_BATCH:
            yield batch
            batch = []
            tokens = 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


def init_dt_bias(channels: int) -> Tensor:
    """Return (channels,) biases whose softplus is log-uniform in [0.001, 0.1].

    On the CPU even where the default device is meta: arithmetic on meta tensors imports torch's
    compiler, which takes seconds.
    """
    logs = torch.empty(channels, device="cpu").uniform_(math.log(_DT_MIN), math.log(_DT_MAX))
    dt = logs.exp().clamp(min=_DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus


def init_out_proj(layer: nn.Linear, num_layers: int) -> None:
    """Fill the weight Kaiming-uniformly, divided by the square root of the number of layers, so
    that the residual stream does not grow with depth.
    """
    bound = (layer.in_features * num_layers) ** -0.5  # Kaiming's is in_features ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound)


Block = TypeVar("Block", bound=nn.Module)
Mixer = TypeVar("Mixer", bound=nn.Module)


class MixerLayer(nn.Module, Generic[Mixer]):
    """One block: norm, mixer and residual."""

    def __init__(self, config: Any, mixer: Callable[[Any], Mixer]) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer = mixer(config)

    def forward(
        self, hidden: Tensor, cu_seqlens: Tensor, *states: Tensor | None
    ) -> tuple[Tensor, ...]:
        """hidden (T, D) and the mixer's states -> the new hidden and the new states."""
        out, *states = self.mixer(self.norm(hidden), cu_seqlens, *states)
        return (hidden + out, *states)


class BlockBackbone(Backbone, Generic[Block]):
    """A backbone of embeddings, equal blocks and an RMSNorm. Each block maps (hidden, cu_seqlens,
    *states) to the new (hidden, *states), with the states in the order of `state_shapes`.

    Args:
        config: a `BackboneConfig` with a field `norm_eps`.
        block: makes a block of the config.
        embedding_std: standard deviation of fresh embeddings.
    """

    def __init__(
        self, config: Any, block: Callable[[Any], Block], embedding_std: float = 0.02
    ) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(block(config) for _ in range(config.num_layers))
        self.norm_f = RMSNorm(config.hidden_size, config.norm_eps)
        nn.init.normal_(self.embeddings.weight, std=embedding_std)

    @property
    def blocks(self) -> list[Block]:
        """The blocks in order."""
        return cast("list[Block]", list(self.layers))

    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.embed_with(ids, added).to(stream_dtype(self.embeddings.weight))
        names = list(self.state_shapes())
        hidden, after = run_layers(self.layers, names, hidden, cu_seqlens, state, recompute)
        return self.norm_f(hidden), after
