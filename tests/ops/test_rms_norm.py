"""Residual + norm against fp64 and in 8 bits, and the chunks of a step."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.chunks import plan_chunks
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import as_array, parallel
from runnel.ops.rms_norm import add_rms_norm, add_rms_norm_bytes

SIZES = pytest.mark.parametrize(("tokens", "width", "parts"), [(40, 32, 3), (3, 37, 0), (0, 16, 1), (1, 5, 2)])


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@SIZES
def test_residual_and_norm_equal_fp64(tokens: int, width: int, parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    residual, added, weight = torch.randn(tokens, width), torch.randn(tokens, width).to(dtype), torch.randn(width)
    squares, out = torch.rand(tokens, parts), torch.full((tokens, width), float("nan"), dtype=dtype)
    scale = torch.rsqrt(squares.double().sum(1, keepdim=True) / 9 + 1e-5) if parts else 1.0
    expected = residual.double() + scale * added.double()
    with parallel():
        add_rms_norm(residual.numpy(), as_array(added), squares.numpy(), 9, weight.numpy(), 1e-5, as_array(out))
    _near(residual, expected, 1e-6)
    _near(out, F.rms_norm(expected, (width,), weight.double(), 1e-5), 1e-6 if dtype == torch.float32 else 1e-2)


@SIZES
def test_norm_in_8_bits(tokens: int, width: int, parts: int) -> None:
    torch.manual_seed(0)
    residual, added, weight = torch.randn(tokens, width), torch.randn(tokens, width), torch.randn(width)
    squares, whole, expected = torch.rand(tokens, parts), torch.empty(tokens, width), residual.clone()
    out, scales = torch.zeros(tokens, bytes_per_group(width, 1), dtype=torch.uint8), torch.full((tokens, 1), float("nan"))
    given = (added.numpy(), squares.numpy(), 9, weight.numpy(), 1e-5)
    with parallel():
        add_rms_norm(expected.numpy(), *given, whole.numpy())
        add_rms_norm_bytes(residual.numpy(), *given, out.numpy(), scales.numpy())
    assert torch.equal(residual, expected)
    torch.testing.assert_close(scales, whole.abs().amax(1, keepdim=True) / 127 if tokens else scales)
    assert (((out[:, :width].float() - 128) * scales - whole).abs() <= 0.5001 * scales).all()


def test_plan_cuts_sequences_into_chunks() -> None:
    plan = plan_chunks(np.array([0, 130, 130, 133]), np.array([-1, 0, 1]), np.array([0, 1, -1]))
    assert plan.first_chunk.tolist() == [0, 3, 3, 4]
    assert plan.sequence.tolist() == [0, 0, 0, 2]
    assert plan.start.tolist() == [0, 64, 128, 130]
    assert plan.row.tolist() == [0, 64, 128, 160, 192]
