"""Shared launch code of all Triton kernels. Does not import Triton.

T  tokens      S  sequences      N  chunks of all sequences together
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.chunks import Chunks


def on_device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the GPU of `x` current, because Triton launches on the current GPU, not on the GPU of
    its arguments.
    """
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a tensor (T, ...) with contiguous rows, and the distance between rows in elements. A
    tensor that is some columns of a wider matrix is not copied.
    """
    if tensor.numel() and not tensor[0].is_contiguous():
        tensor = tensor.contiguous()
    return tensor, tensor.stride(0)


@dataclass(frozen=True)
class GpuChunks:
    """`Chunks` for kernels: tensors on the GPU, int64."""

    table: Tensor  # (3, N): sequence, first token, token after the last
    first: Tensor  # (S+1,) the first chunk of each sequence, and N
    count: int  # N
    most: int  # the largest number of chunks of a sequence

    @classmethod
    def of(cls, cu: Tensor, size: int, device: torch.device) -> GpuChunks:
        """Cut each sequence every `size` tokens; cu (S+1,) int64 on the CPU."""
        chunks = Chunks.of(cu.numpy(), size)
        table = np.stack([chunks.sequence, chunks.start, chunks.start + chunks.size])
        first = torch.from_numpy(chunks.first)
        most = int(first.diff().max()) if first.numel() > 1 else 0
        return cls(torch.from_numpy(table).to(device), first.to(device), table.shape[1], most)


def wants_gradients(*inputs: Tensor | None) -> bool:
    """Return whether a call with these inputs is recorded by autograd."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def with_torch_backward(
    forward: Callable[..., tuple[Tensor, ...]],
    in_torch: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
) -> tuple[Tensor, ...]:
    """Run `forward(*inputs)` differentiably: the backward pass reruns `in_torch`, the same function
    in torch operations. All inputs are tensors.

    The backward pass has the memory and time of `in_torch`; without gradients there is no such
    cost.
    """
    if not wants_gradients(*inputs):
        return forward(*inputs)
    return _TorchBackward.apply(forward, in_torch, *inputs)


class _TorchBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, in_torch: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.in_torch = in_torch
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:]
        leaves = [
            x.detach().requires_grad_(needed)
            for x, needed in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        with torch.enable_grad():
            outputs = ctx.in_torch(*leaves)
        used = [
            (y, g)
            for y, g in zip(outputs, gradients, strict=True)
            if g is not None and y.requires_grad
        ]
        if used:
            torch.autograd.backward([y for y, _ in used], [g for _, g in used])
        return None, None, *(leaf.grad for leaf in leaves)


def without_empty(cu: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Remove empty sequences, which flash-linear-attention does not support, from cumulative
    lengths cu (S+1,) on the CPU and a state (S, ...).

    Return the indices of the sequences that remain, on the CPU, their cumulative lengths, and their
    states.
    """
    left = cu.diff().nonzero().squeeze(1)
    if left.numel() == cu.numel() - 1:
        return left, cu, state
    return left, torch.cat([cu[:1], cu[left + 1]]), state[left.to(state.device)]
