"""The fused kernels of a Mamba-2 block and of residual + norm, against fp64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import StepMemory
from runnel.backbones.mamba2 import kernel_parts, kernels
from runnel.ops import causal_conv1d, gated_rms_norm, ssd
from runnel.ops.chunks import plan_chunks
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import parallel
from runnel.ops.rms_norm import add_rms_norm, add_rms_norm_bytes

DTYPES = [torch.float32, torch.bfloat16]
LAYERS, LAYER = 2, 1


def _array(tensor: Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@dataclass
class Block:
    """Random weights of one block between its projections."""

    heads: int
    size: int
    groups: int
    n: int
    width: int = 4

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.inner = self.heads * self.size
        self.channels = self.inner + 2 * self.groups * self.n
        self.conv, self.bias = torch.randn(self.channels, self.width) / 2, torch.randn(self.channels) / 10
        self.dt_bias, self.A, self.D = torch.randn(self.heads) - 2, -torch.rand(self.heads) * 8 - 0.5, torch.randn(self.heads)
        self.norm = torch.rand(self.inner) + 0.5

    def fused(
        self,
        projected: Tensor,
        cu: Tensor,
        reads: list[int],
        writes: list[int],
        conv: Tensor,
        pool: Tensor,
        workers: int = 2,
        int8: bool = False,
    ) -> tuple[Tensor, Tensor]:
        shape = kernel_parts.Shape(self.heads, self.size, self.groups, self.n, 0.0, float("inf"))
        small = [t.numpy() for t in (self.dt_bias, self.A, self.D, self.norm)]
        weights = kernel_parts.Weights(kernel_parts.pad_conv(self.conv.numpy(), self.bias.numpy(), shape), *small)
        plan = plan_chunks(cu.numpy(), np.array(reads), np.array(writes))
        buffers = kernel_parts.allocate(
            StepMemory(), shape, self.width, int(plan.row[-1]), 4 // projected.dtype.itemsize, workers
        )
        for memory in buffers[:-1]:
            memory.fill(np.nan)  # as a former step may have left it
        padded = bytes_per_group(self.inner, self.heads)
        gated = torch.full((len(projected), self.inner), float("nan"), dtype=projected.dtype)
        if int8:
            gated = torch.zeros(len(projected), self.heads * padded, dtype=torch.uint8)
        squares, scales = (torch.full((len(projected), self.heads), float("nan")) for _ in range(2))
        rest = (conv.numpy(), shape, tuple(range(self.width)), weights, plan, buffers)
        with parallel():
            kernels.prepare_chunks(_array(projected), LAYER, *rest)
            outputs = (_array(gated), scales.numpy(), squares.numpy())
            kernels.scan_heads(_array(projected), *outputs, LAYER, rest[0], pool.numpy(), *rest[1:])
        if int8:
            rows = (gated.view(-1, self.heads, padded)[..., : self.size].float() - 128) * scales[..., None]
            gated = rows.flatten(1)
        return gated, squares

    def exact(self, projected: Tensor, cu: Tensor, conv: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gated y without its division, y silu(z), and both states, in fp64."""
        z, xbc, dt = projected.double().split([self.inner, self.channels, self.heads], -1)
        xbc, conv = causal_conv1d(xbc, self.conv.double(), self.bias.double(), cu, conv.double(), activation="silu")
        x, b, c = xbc.split([self.inner, self.groups * self.n, self.groups * self.n], -1)
        b, c = (v.unflatten(-1, (self.groups, self.n)) for v in (b, c))
        dt = F.softplus(dt + self.dt_bias.double())
        x = x.unflatten(-1, (self.heads, self.size))
        y, state = ssd(x, dt, self.A.double(), b, c, self.D.double(), cu, state.double(), backend="reference")
        y = y.flatten(-2) * F.silu(z)
        return y * self.norm.double(), y, conv, state


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("block", "lengths", "reads", "writes"),
    [
        (Block(2, 32, 1, 32), [130, 1, 0, 64, 65, 2, 3], [2, -1, 0, 3, -1, 2, 2], [0, -1, -1, 3, -1, 1, -1]),
        (Block(2, 8, 2, 6), [5, 0, 70, 17], [-1, 0, 0, 1], [2, 3, -1, 1]),
        (Block(6, 40, 3, 20), [5, 0, 70, 17], [-1, 0, 0, 1], [2, 3, -1, 1]),
        (Block(2, 16, 1, 16, width=2), [0, 3, 0], [-1, 1, 2], [0, 1, 3]),
    ],
)
def test_block_equals_fp64(block: Block, lengths: list[int], reads: list[int], writes: list[int], dtype: torch.dtype) -> None:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    projected = torch.randn(sum(lengths), block.inner + block.channels + block.heads).to(dtype)
    conv, pool = torch.randn(4, LAYERS, block.channels, block.width - 1), torch.randn(4, LAYERS, block.heads, block.size, block.n)
    kept, old_conv, old_pool = projected.clone(), conv.clone(), pool.clone()

    gated, squares = block.fused(projected, cu, reads, writes, conv, pool)

    row, written = torch.tensor(reads), torch.tensor(writes)
    starts = [t[row.clamp(min=0), LAYER] * (row >= 0).view(-1, *[1] * (t.ndim - 2)) for t in (old_conv, old_pool)]
    expected, ungated, end_conv, end = block.exact(projected, cu, *starts)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    _near(gated, expected, tolerance)
    _near(squares, ungated.square().unflatten(-1, (block.heads, block.size)).sum(-1), tolerance)
    wanted = written >= 0
    _near(pool[written[wanted], LAYER], end[wanted], tolerance)
    _near(conv[written[wanted], LAYER], end_conv[wanted], 1e-7)
    untouched = [r for r in range(4) if r not in writes]
    for now, before in ((conv, old_conv), (pool, old_pool)):
        assert torch.equal(now[untouched], before[untouched])
        assert torch.equal(now[:, 1 - LAYER], before[:, 1 - LAYER])
    assert torch.equal(projected, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [Block(2, 32, 1, 32), Block(3, 10, 1, 6)])
def test_gated_output_in_8_bits(block: Block, dtype: torch.dtype) -> None:
    """Each head of a token is off by half of its scale at most, and all else is as it was."""
    cu = torch.tensor([0, 70, 70, 73])
    projected = torch.randn(73, block.inner + block.channels + block.heads).to(dtype)
    results = []
    for int8 in (False, True):
        conv, pool = torch.zeros(3, LAYERS, block.channels, 3), torch.zeros(3, LAYERS, block.heads, block.size, block.n)
        results.append((*block.fused(projected, cu, [-1] * 3, [0, 1, 2], conv, pool, int8=int8), conv, pool))
    (whole, *rest), (rounded, *same) = results
    whole, rounded = (t.float().unflatten(-1, (block.heads, block.size)) for t in (whole, rounded))
    steps = (whole - rounded).abs() / (whole.abs().amax(-1, keepdim=True) / 127)
    assert steps.max() < (0.5001 if dtype == torch.float32 else 1.02)  # bf16 rounds numbers near 127 to halves
    assert all(torch.equal(a, b) for a, b in zip(rest, same, strict=True))


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_change_nothing(workers: int) -> None:
    block, cu = Block(2, 32, 1, 32), torch.tensor([0, 100, 103])
    projected = torch.randn(103, block.inner + block.channels + block.heads)
    results = []
    for count in (2, workers):
        conv, pool = torch.zeros(2, LAYERS, block.channels, 3), torch.zeros(2, LAYERS, 2, 32, 32)
        results.append((*block.fused(projected, cu, [-1, -1], [0, 1], conv, pool, count), conv, pool))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "size"), [(1, 32), (2, 20)])
def test_normalized_groups_make_the_gated_norm(groups: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = 2 * groups
    y, z, weight = torch.randn(7, heads * size), torch.randn(7, heads * size), torch.rand(heads * size)
    gated = y * F.silu(z)
    squares = gated.square().unflatten(-1, (heads, size)).sum(-1)
    out = (gated * weight).to(dtype)
    with parallel():
        kernels.normalize_groups(_array(out), squares.numpy(), groups, 2 * size, 1e-5)
    expected = gated_rms_norm(y.double(), z.double(), weight.double(), 1e-5, groups)
    _near(out, expected, 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width", "parts"), [(40, 32, 3), (3, 37, 0), (0, 16, 1), (1, 5, 2)])
def test_residual_and_norm_equal_fp64(tokens: int, width: int, parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    residual, added, weight = torch.randn(tokens, width), torch.randn(tokens, width).to(dtype), torch.randn(width)
    squares, out = torch.rand(tokens, parts), torch.full((tokens, width), float("nan"), dtype=dtype)
    scale = torch.rsqrt(squares.double().sum(1, keepdim=True) / 9 + 1e-5) if parts else 1.0
    expected = residual.double() + scale * added.double()
    with parallel():
        add_rms_norm(residual.numpy(), _array(added), squares.numpy(), 9, weight.numpy(), 1e-5, _array(out))
    _near(residual, expected, 1e-6)
    _near(out, F.rms_norm(expected, (width,), weight.double(), 1e-5), 1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(("tokens", "width", "parts"), [(40, 32, 3), (3, 37, 0), (0, 16, 1), (1, 5, 2)])
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
    assert plan.row.tolist() == [0, 64, 128, 144, 160]
