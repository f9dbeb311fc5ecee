"""The fused kernels of an xLSTM block, against fp64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import StepMemory
from runnel.backbones.xlstm import kernel_parts, kernels
from runnel.ops import mlstm
from runnel.ops.chunks import plan_chunks
from runnel.ops.numba_math import parallel

DTYPES = [torch.float32, torch.bfloat16]
LAYERS, LAYER = 2, 1


def _array(tensor: Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, atol=tolerance * scale, rtol=tolerance)


@dataclass
class Block:
    """Random weights of one block between its projections."""

    heads: int
    key_size: int
    value_size: int
    width: int = 21  # of the residual stream
    cap: float = 5.0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.shape = kernel_parts.Shape(self.heads, self.key_size, self.value_size, self.cap, 1e-6, 1e-6)
        self.gate_weight, self.gate_bias = torch.randn(2 * self.heads, self.width) / 3, torch.randn(2 * self.heads) + 1
        self.norm, self.head_norm = torch.rand(self.width) + 0.5, torch.rand(self.heads * self.value_size) + 0.5

    def weights(self) -> kernel_parts.Weights:
        gates = kernel_parts.pack_gates(self.gate_weight.numpy(), self.norm.numpy())
        return kernel_parts.Weights(gates, self.gate_bias.numpy(), self.head_norm.numpy())

    def buffers(self, tokens: int, rows: int, dtype: torch.dtype, workers: int = 2) -> kernel_parts.Buffers:
        buffers = kernel_parts.allocate(StepMemory(), self.shape, tokens, rows, 4 // dtype.itemsize, workers)
        for memory in buffers[:-1]:
            memory.fill(np.nan)  # as a former step may have left it
        return buffers

    def pool(self, rows: int) -> list[Tensor]:
        """C, n, m."""
        shapes = [(self.key_size, self.value_size), (self.key_size,), ()]
        return [torch.randn(rows, LAYERS, self.heads, *shape) for shape in shapes]

    def fused(
        self, x: list[Tensor], cu: Tensor, reads: list[int], writes: list[int], pool: list[Tensor], workers: int = 2
    ) -> Tensor:
        """x: residual, q, k, v; the memory's output."""
        residual, q, k, v = x
        tokens = len(residual)
        plan = plan_chunks(cu.numpy(), np.array(reads), np.array(writes))
        buffers = self.buffers(tokens, int(plan.row[-1]), q.dtype, workers)
        y = torch.full(v.shape, float("nan"))
        rest = (self.shape, plan, buffers)
        with parallel():
            kernels.project_gates(_behind(residual).numpy()[:tokens], self.shape, self.weights(), buffers)
            kernels.prepare_heads(_array(q), _array(k), LAYER, pool[1].numpy(), pool[2].numpy(), *rest)
            kernels.scan_columns(_array(v), y.numpy(), LAYER, pool[0].numpy(), *rest)
        return y

    def gates(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Capped input and forget gates in fp64."""
        u = F.rms_norm(residual.double(), (self.width,), self.norm.double(), 1e-6)
        i, f = (self.cap * torch.tanh((u @ self.gate_weight.double().T + self.gate_bias) / self.cap)).chunk(2, -1)
        return i, f

    def exact(self, x: list[Tensor], cu: Tensor, state: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        residual, q, k, v = (t.double() for t in x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        start = (state[0].double(), state[1].double(), state[2].double())
        y, end = mlstm(q, k, v, *self.gates(residual), cu, start, backend="reference")
        return y.flatten(-2), end

    def inputs(self, tokens: int, dtype: torch.dtype) -> list[Tensor]:
        widths = (self.key_size, self.key_size, self.value_size)
        return [torch.randn(tokens, self.width) * 3, *(torch.randn(tokens, self.heads * width).to(dtype) for width in widths)]


def _behind(rows: Tensor) -> Tensor:
    """The same with the memory behind it that whole tiles need."""
    return torch.cat([rows, torch.full((8, rows.shape[1]), float("nan"))])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("block", "lengths", "reads", "writes"),
    [
        (Block(2, 32, 64), [130, 1, 0, 64, 65, 2, 3], [2, -1, 0, 3, -1, 2, 2], [0, -1, -1, 3, -1, 1, -1]),
        (Block(2, 6, 8), [5, 0, 70, 17], [-1, 0, 0, 1], [2, 3, -1, 1]),
        (Block(3, 40, 50), [5, 0, 70, 17], [-1, 0, 0, 1], [2, 3, -1, 1]),
        (Block(20, 4, 3), [40], [0], [0]),  # gates in two panels
        (Block(2, 16, 16), [0, 3, 0], [-1, 1, 2], [0, 1, 3]),
    ],
)
def test_block_equals_fp64(block: Block, lengths: list[int], reads: list[int], writes: list[int], dtype: torch.dtype) -> None:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    x, pool = block.inputs(sum(lengths), dtype), block.pool(4)
    kept, old = [t.clone() for t in x], [t.clone() for t in pool]

    y = block.fused(x, cu, reads, writes, pool)

    row, written = torch.tensor(reads), torch.tensor(writes)
    starts = [t[row.clamp(min=0), LAYER] * (row >= 0).view(-1, *[1] * (t.ndim - 2)) for t in old]
    expected, end = block.exact(x, cu, starts)
    if dtype == torch.float32:
        _near(y, expected, 2e-5)
    else:  # where the divisor is the remainder of a sum near zero, rounding shows
        assert F.cosine_similarity(y.double(), expected).min() > 0.999
    wanted = written >= 0
    for now, exact, bf16 in zip(pool, end, (1e-2, 1e-6, 1e-6), strict=True):
        _near(now[written[wanted], LAYER], exact[wanted], 1e-5 if dtype == torch.float32 else max(bf16, 1e-5))
    untouched = [r for r in range(4) if r not in writes]
    for now, before in zip(pool, old, strict=True):
        assert torch.equal(now[untouched], before[untouched])
        assert torch.equal(now[:, 1 - LAYER], before[:, 1 - LAYER])
    assert all(torch.equal(a, b) for a, b in zip(x, kept, strict=True))


def test_sums_of_shut_forget_gates_keep_their_differences() -> None:
    """Log forget gates sum to -900 in a chunk, while input gates vary as much between two tokens as the sum does."""
    block = Block(2, 16, 16, width=2, cap=15.0)
    block.gate_weight, block.gate_bias = torch.eye(2).repeat_interleave(2, 0) * 9, torch.tensor([0.0, 0.0, -30.0, -25.0])
    x, cu, pool = block.inputs(150, torch.float32), torch.tensor([0, 150]), [t * 0 for t in block.pool(1)]
    start = [t[:, LAYER].clone() for t in pool]
    y = block.fused(x, cu, [-1], [0], pool)
    expected, end = block.exact(x, cu, start)
    _near(y, expected, 5e-5)
    for now, exact in zip(pool, end, strict=True):
        _near(now[:, LAYER], exact, 5e-5)


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_change_nothing(workers: int) -> None:
    block, cu = Block(2, 32, 64), torch.tensor([0, 100, 103])
    x, results = block.inputs(103, torch.float32), []
    for count in (2, workers):
        pool = [torch.zeros_like(t) for t in block.pool(2)]
        results.append([block.fused(x, cu, [-1, -1], [0, 1], pool, count), *pool])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("heads", [1, 3, 17])
@pytest.mark.parametrize("tokens", [0, 1, 19])
def test_gates_equal_fp64(heads: int, tokens: int) -> None:
    block = Block(heads, 2, 2)
    residual = torch.randn(tokens, block.width) * 10
    buffers = block.buffers(tokens, 16, torch.float32)
    with parallel():
        kernels.project_gates(_behind(residual).numpy()[:tokens], block.shape, block.weights(), buffers)
    i, f = block.gates(residual)
    gates = torch.from_numpy(buffers.gates[:, :tokens]).transpose(0, 1).flatten(1)[:, : 2 * heads]
    _near(gates, torch.cat([i, F.logsigmoid(f)], 1), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(2, 32), (3, 21), (1, 1)])
def test_head_norm_and_output_gate_equal_fp64(heads: int, size: int, dtype: torch.dtype) -> None:
    block = Block(heads, 2, size)
    y, o = torch.randn(19, heads * size) + 5, (torch.randn(19, heads * size) * 4).to(dtype)
    o[0, 0] = -200  # shut
    out = torch.full(o.shape, float("nan"), dtype=dtype)
    with parallel():
        kernels.normalize_heads(y.numpy(), _array(o), block.shape, block.weights(), _array(out))
    normed = F.layer_norm(y.double().unflatten(-1, (heads, size)), (size,), eps=1e-6).flatten(-2)
    _near(out, torch.sigmoid(o.double()) * normed * block.head_norm.double(), 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(40, 32), (3, 37), (0, 16), (1, 5)])
def test_silu_times_up_equals_fp64(tokens: int, width: int, dtype: torch.dtype) -> None:
    gate, up = (torch.randn(2, tokens, width) * 4).to(dtype)
    expected = F.silu(gate.double()) * up.double()
    with parallel():
        kernels.multiply_silu(_array(gate), _array(up))
    _near(gate, expected, 1e-5 if dtype == torch.float32 else 1e-2)
