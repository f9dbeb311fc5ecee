"""8-bit products against exact integers, and the bytes that go into them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from runnel.backbones.int8 import quantize
from runnel.ops import int8_matmul
from runnel.ops.int8_matmul import bytes_per_group, multiply, pack, quantize_row, vnni_problem
from runnel.ops.numba_math import StepMemory, parallel
from runnel.ops.simd import address

pytestmark = [
    pytest.mark.skipif(
        vnni_problem() is not None, reason=f"8-bit products cannot run here: {vnni_problem()}"
    ),
    pytest.mark.usefixtures("tiles"),
]


def _product(
    x: Tensor, scales: Tensor, q: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    tokens, groups, size = x.shape
    room = torch.full(
        (tokens, groups, bytes_per_group(groups * size, groups)), 77, dtype=torch.uint8
    )
    room[..., :size] = x
    out = torch.full((tokens + 1, len(q)), 7.0, dtype=dtype)
    bits = (out.view(torch.uint16) if dtype == torch.bfloat16 else out).numpy()
    with parallel():
        multiply(
            room.flatten(1).numpy(),
            scales.numpy(),
            pack(q.numpy(), scale.numpy(), groups),
            bits[:tokens],
            StepMemory(),
        )
    assert bool((out[tokens] == 7).all())  # nothing is written behind the end
    return out[:tokens]


@pytest.mark.parametrize(
    ("tokens", "groups", "size", "outputs"),
    [
        (1, 1, 4, 1),
        (9, 1, 24, 33),
        (64, 3, 5, 31),
        (300, 2, 64, 70),
        (0, 1, 8, 8),
        (7, 1, 1536, 40),
    ],
)
def test_sums_of_integers_are_exact(tokens: int, groups: int, size: int, outputs: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (tokens, groups, size), generator=draw, dtype=torch.uint8)
    q = torch.randint(-127, 128, (outputs, groups * size), generator=draw).to(torch.int8)
    scales = 2.0 ** torch.randint(-3, 4, (tokens, groups), generator=draw)
    scale = 2.0 ** torch.arange(outputs).remainder(5)
    if groups > 1:
        scales[:] = scales[:, :1]  # one power of two, so that the sum over groups is exact too
    exact = ((x.double() - 128) * scales[..., None]).flatten(1) @ (q.double() * scale[:, None]).T
    largest = 2**24 * scales[:, :1] * scale  # above it fp32 has not all integers
    rounded = exact.abs() > largest
    actual = _product(x, scales, q, scale).double()
    assert torch.equal(actual[~rounded], exact[~rounded])
    torch.testing.assert_close(actual[rounded], exact[rounded], atol=0.0, rtol=2**-23)


def test_extremes_do_not_overflow() -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat_interleave(8192).view(2, 1, 8192)
    q = torch.tensor([[-127], [127]], dtype=torch.int8).expand(2, 8192).contiguous()
    expected = torch.tensor([[128.0, -128.0], [-127.0, 127.0]]) * 127 * 8192
    assert torch.equal(_product(x, torch.ones(2, 1), q, torch.ones(2)), expected)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_tokens_groups_and_outputs(groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (21, groups, 64), dtype=torch.uint8)
    scales = torch.rand(21, groups)
    q, scale = quantize(torch.randn(37, groups * 64))
    exact = ((x.double() - 128) * scales.double()[..., None]).flatten(1) @ (
        q.double() * scale.double()[:, None]
    ).T
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(
        _product(x, scales, q, scale, dtype).double(), exact, atol=tolerance, rtol=tolerance
    )


def test_workers_neighbors_and_tiles_change_nothing(
    monkeypatch: pytest.MonkeyPatch, workers: Callable[[int], None]
) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (513, 3, 64), dtype=torch.uint8)
    scales = torch.rand(513, 3)
    q, scale = quantize(torch.randn(65, 3 * 64))
    whole = _product(x, scales, q, scale)
    for count in (1, 3):
        workers(count)
        assert torch.equal(_product(x, scales, q, scale), whole)
        assert torch.equal(_product(x[300:305], scales[300:305], q, scale), whole[300:305])
    monkeypatch.setattr(int8_matmul, "has_tiles", lambda: False)
    assert torch.equal(_product(x, scales, q, scale), whole)


@njit
def _quantize(source, size, target):
    return quantize_row(address(source), size, address(target))


@pytest.mark.parametrize("size", [1, 16, 37, 64])
def test_inputs_in_8_bits(size: int) -> None:
    torch.manual_seed(0)
    exact = torch.randn(size).numpy()
    target = np.zeros(size + 1, np.uint8)
    scale = _quantize(exact, size, target)
    assert scale == pytest.approx(np.abs(exact).max() / 127)
    assert np.abs((target[:size].astype(float) - 128) * scale - exact).max() <= scale * 0.5001
    assert target[:size].min() >= 1 and target[size] == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (0.0, "0.0"), (1e-40, "7.87")],
)
def test_numbers_without_a_scale(value: float, expected: str) -> None:
    """Damage is passed on; nothing is divided by zero."""
    target = np.zeros(20, np.uint8)
    scale = _quantize(np.array([value] * 3 + [0.0] * 17, np.float32), 20, target)
    assert str(float(scale)).startswith(expected)
    if value < 1:
        assert (target == 128).all()
