"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: extreme decays, long sequences,
chunks of other sizes."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.wkv7 import wkv7
from runnel.ops.wkv7.torch import wkv7_torch

FLOOR = 0.6065306597126334  # RWKV-7's log decays lie in (-FLOOR, 0)


def _inputs(tokens: int, heads: int, key_size: int, value_size: int, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    r, w, k, removal, gate = torch.randn(5, tokens, heads, key_size, generator=g, dtype=torch.float64)
    v = torch.randn(tokens, heads, value_size, generator=g, dtype=torch.float64)
    removal = F.normalize(removal, dim=-1)
    return [x.to(dtype) for x in (r, -FLOOR * w.sigmoid(), k, v, -removal, removal * gate.sigmoid())]


def _error(actual: Tensor, truth: Tensor) -> float:
    assert actual.shape == truth.shape
    actual, truth = actual.detach().double(), truth.detach().double()
    return float((actual - truth).abs().max() / truth.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_any_decay(dtype: torch.dtype, tolerance: float) -> None:
    """From no decay to a full stop, also side by side; what comes after a full stop is as exact as without one."""
    inputs = _inputs(70, 1, 9, 5, dtype=dtype)
    decays = torch.tensor([0.0, -1e-7, -0.3, -FLOOR, -5.0, -80.0, -1e3, -1e6, float("-inf")], dtype=dtype)
    mixed = decays[torch.randint(9, (70, 1, 9), generator=torch.Generator().manual_seed(1))]
    stop = inputs[1].clone() * 1e-3
    stop[[3, 40]] = -1e6
    for w in (mixed, stop, *(torch.full_like(mixed, float(d)) for d in decays)):
        values = [x.clone().requires_grad_() for x in (inputs[0], w, *inputs[2:])]
        truth = [x.detach().double().requires_grad_() for x in values]
        results = []
        for given, chosen in ((values, "torch"), (truth, "reference")):
            o, end = wkv7(*given, backend=chosen)
            results.append((o, end, *torch.autograd.grad(o.sum() + end.square().sum(), given)))
        for name, actual, expected in zip("o end r w k v a b".split(), *results, strict=True):
            assert actual.isfinite().all(), name
            assert _error(actual, expected) < tolerance, name


def test_long_sequences_stay_stable() -> None:
    """With weak decays the state remembers thousands of tokens; rounding neither grows nor drifts."""
    inputs = _inputs(4000, 1, 8, 8, dtype=torch.float32)
    inputs[1] *= 1e-3
    o, end = wkv7(*inputs, backend="torch")
    true_o, true_end = wkv7(*(x.double() for x in inputs), backend="reference")
    assert _error(o[-100:], true_o[-100:]) < 5e-6
    assert _error(end, true_end) < 5e-6


@pytest.mark.parametrize("chunk", [1, 2, 8, 64])
def test_chunk_size_changes_nothing(chunk: int) -> None:
    inputs, cu = _inputs(100, 2, 5, 3), torch.tensor([0, 65, 65, 66, 100])
    start = torch.randn(4, 2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = wkv7(*inputs, cu, start, backend="reference")
    assert all(_error(*pair) < 1e-13 for pair in zip(wkv7_torch(*inputs, cu, start, chunk), truth, strict=True))
