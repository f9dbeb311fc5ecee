"""Residual + norm against fp64, and in 8 bits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import parallel
from runnel.ops.rms_norm import add_rms_norm


def _near(actual: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, atol=1e-6 * scale, rtol=1e-6)


@pytest.mark.parametrize(("tokens", "width", "parts"), [(40, 32, 3), (3, 37, 0), (0, 16, 1), (1, 5, 2)])
def test_residual_and_norm_equal_fp64_also_in_8_bits(tokens: int, width: int, parts: int) -> None:
    torch.manual_seed(0)
    residual, added, weight, squares = *torch.randn(2, tokens, width), torch.randn(width), torch.rand(tokens, parts)
    scale = torch.rsqrt(squares.double().sum(1, keepdim=True) / 9 + 1e-5) if parts else 1.0
    expected, again, whole = residual.double() + scale * added.double(), residual.clone(), torch.empty(tokens, width)
    out, scales = torch.zeros(tokens, bytes_per_group(width, 1), dtype=torch.uint8), torch.full((tokens, 1), float("nan"))
    given = (added.numpy(), squares.numpy(), 9, weight.numpy(), 1e-5)
    with parallel():
        add_rms_norm(residual.numpy(), *given, whole.numpy(), scales.numpy())
        add_rms_norm(again.numpy(), *given, out.numpy(), scales.numpy())
    _near(residual, expected)
    _near(whole, F.rms_norm(expected, (width,), weight.double(), 1e-5))
    assert torch.equal(again, residual)
    torch.testing.assert_close(scales, whole.abs().amax(1, keepdim=True) / 127 if tokens else scales)
    assert (((out[:, :width].float() - 128) * scales - whole).abs() <= 0.5001 * scales).all()
