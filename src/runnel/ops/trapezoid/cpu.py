"""trapezoid by the kernels of ssd, for one input per head and token and without autograd; else its plain torch form.

A token's input enters the state with the sum of both weights, as ssd's inputs do; what its own token then sees too much is
subtracted. ssd multiplies inputs by its step size, which is -dt A here, so they are divided by that. This is exact to rounding
for values, but the gradient of the step size would cancel, so gradients take the torch form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import last_tokens
from runnel.ops.ssd import ssd
from runnel.ops.trapezoid.torch import State, start_state, trapezoid_torch, weights

_LEAST = 1e-30  # a step size that no input divided by it overflows with


def trapezoid_cpu(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, trap: Tensor, cu: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    tensors = (q, k, v, dt, A, trap, *(state or ()))
    if q.shape[2] != 1 or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return trapezoid_torch(q, k, v, dt, A, trap, cu, state)
    own, again, both = weights(dt.float(), trap.float(), cu)
    S, key_before, value_before = start_state(cu, state, again, (*q.shape[1:], v.shape[3]))
    query, key, value = (x[:, :, 0].float() for x in (q, k, v))
    step = (-dt.float() * A.float()).clamp(min=_LEAST)
    y, S = ssd(value * (both / step)[..., None], step, -torch.ones(q.shape[1]), key, query, None, cu, S, backend="cpu")
    y = y - ((query * key).sum(-1) * (both - own))[..., None] * value
    return y[:, :, None].to(v.dtype), (S, last_tokens(k.float(), cu, key_before), last_tokens(v.float(), cu, value_before))
