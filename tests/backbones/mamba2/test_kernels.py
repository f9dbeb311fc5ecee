"""What the fused kernels compute between a block's projections, against the recurrence token by token in fp64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import StepMemory, count_workers
from runnel.backbones.mamba2 import kernels
from runnel.backbones.mamba2.cpu import Mamba2Cpu
from runnel.backbones.mamba2.kernel_parts import allocate
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.ops import causal_conv1d, ssd
from runnel.ops.amx import has_tiles
from runnel.ops.chunks import plan_chunks
from runnel.ops.numba_math import as_array, parallel

HEADS = {"published": (3, 64, 128, 1), "pocket": (2, 64, 64, 1), "odd": (6, 12, 20, 3), "wide": (2, 72, 40, 1)}
WAYS = {
    "fp32": (torch.float32, False),
    "bf16-vectors": (torch.bfloat16, False),
    "bf16-tiles": (torch.bfloat16, True),
}
# The largest error over the largest value. bf16: factors of 8 bits, and a sum of many of them; the result is rounded once more.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
LENGTHS = (5, 0, 1, 133, 3, 2, 64, 0, 33, 96)
ways = pytest.mark.parametrize(
    ("dtype", "tiles"),
    [
        pytest.param(*way, id=name, marks=pytest.mark.skipif(way[1] and not has_tiles(), reason="this processor has no AMX"))
        for name, way in WAYS.items()
    ],
)


class Block:
    """The kernels of one block with random weights, and the same in fp64."""

    def __init__(self, heads: str, dtype: torch.dtype, tiles: bool) -> None:
        count, size, states, groups = HEADS[heads]
        self.config = c = Mamba2Config(8, count * size // 2, 1, state_size=states, head_size=size, groups=groups)
        torch.manual_seed(0)
        self.model, self.dtype, self.tiles = Mamba2(c), dtype, tiles
        self.mixer = self.model.layers[0].mixer
        with torch.no_grad():
            for parameter in (self.mixer.D, self.mixer.norm.weight):
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)
            self.mixer.dt_bias.add_(2.0)
        self.cpu, self.memory = Mamba2Cpu(self.model), StepMemory()

    def inputs(self, tokens: int) -> Tensor:
        return torch.randn(tokens, self.config.projection_size).to(self.dtype)

    def states(self, rows: int) -> tuple[Tensor, Tensor]:
        c = self.config
        conv = torch.randn(rows, 1, c.conv_channels, c.conv_width - 1)
        return conv.to(self.dtype).float(), torch.randn(rows, 1, c.num_heads, c.head_size, c.state_size)

    def run(
        self, projected: Tensor, lengths: tuple[int, ...], pool: tuple[Tensor, Tensor], read: list[int], write: list[int]
    ) -> Tensor:
        """Gated outputs (T, Di); the pool's rows are updated."""
        c, cu = self.config, np.concatenate([[0], np.cumsum(lengths)])
        plan = plan_chunks(cu, np.array(read), np.array(write))
        shape, taps, per_word = self.cpu._shape, self.cpu._taps, 4 // self.dtype.itemsize
        buffers = allocate(self.memory, shape, c.conv_width, int(plan.row[-1]), self.tiles, per_word, count_workers())
        gated = torch.empty(len(projected), c.inner_size, dtype=self.dtype)
        self.squares = np.zeros((len(projected), c.num_heads), np.float32)
        conv, ssm = (tensor.numpy() for tensor in pool)
        source, out, nothing = as_array(projected), as_array(gated), np.empty((len(projected), 0), np.float32)
        with parallel():
            kernels.prepare_chunks(source, 0, conv, shape, taps, self.cpu._blocks[0].kernels, plan, buffers)
            kernels.scan_heads(
                source, out, nothing, self.squares, 0, conv, ssm, shape, taps, self.cpu._blocks[0].kernels, plan, buffers
            )
        return gated

    @torch.no_grad()
    def exact(self, projected: Tensor, lengths: tuple[int, ...], conv: Tensor, ssm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same and the end states, in fp64, from start states without the dimension of layers."""
        c, m = self.config, self.mixer
        cu = torch.tensor([0, *lengths]).cumsum(0)
        z, xbc, dt = projected.double().split([c.inner_size, c.conv_channels, c.num_heads], dim=-1)
        weight, bias = m.conv1d.weight.squeeze(1).double(), m.conv1d.bias.double()
        xbc, conv = causal_conv1d(xbc, weight, bias, cu, conv.double(), activation="silu", backend="reference")
        x, b, C = xbc.split([c.inner_size, c.groups * c.state_size, c.groups * c.state_size], dim=-1)
        y, ssm = ssd(
            x.unflatten(-1, (c.num_heads, c.head_size)),
            F.softplus(dt + m.dt_bias.double()),
            -m.A_log.double().exp(),
            b.unflatten(-1, (c.groups, c.state_size)),
            C.unflatten(-1, (c.groups, c.state_size)),
            m.D.double(),
            cu,
            ssm.double(),
            backend="reference",
        )
        return y.flatten(-2) * F.silu(z) * m.norm.weight.double(), conv, ssm


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).abs().max() / expected.abs().max())


@ways
@pytest.mark.parametrize("heads", HEADS)
def test_packed_sequences_equal_the_recurrence(heads: str, dtype: torch.dtype, tiles: bool) -> None:
    block, rows = Block(heads, dtype, tiles), len(LENGTHS)
    projected, pool = block.inputs(sum(LENGTHS)), block.states(rows)
    starts = [tensor[:, 0].clone() for tensor in pool]
    read = [row if row % 3 else -1 for row in range(rows)]
    for start in starts:
        start[::3] = 0
    expected, *ends = block.exact(projected, LENGTHS, *starts)
    gated = block.run(projected, LENGTHS, pool, read, list(range(rows)))
    assert error(gated, expected) < TOLERANCE[dtype]
    for tensor, end in zip(pool, ends, strict=True):
        assert error(tensor[:, 0], end) < TOLERANCE[dtype]
    squares = (expected / block.mixer.norm.weight.double()).unflatten(-1, (block.config.num_heads, -1)).square().sum(-1)
    assert error(torch.from_numpy(block.squares), squares.detach()) < TOLERANCE[dtype]


@ways
@pytest.mark.parametrize("cut", [(1,) * 5 + (145,), (31, 1, 118), (33, 63, 54), (64, 86), (96, 32, 22)])
def test_any_cut_equals_the_recurrence(dtype: torch.dtype, tiles: bool, cut: tuple[int, ...]) -> None:
    block = Block("pocket", dtype, tiles)
    projected, pool = block.inputs(150), block.states(1)
    expected, *ends = block.exact(projected, (150,), *(tensor[:, 0].clone() for tensor in pool))
    parts = [block.run(projected[i:j], (j - i,), pool, [0], [0]) for i, j in pairwise(np.cumsum([0, *cut]).tolist())]
    assert error(torch.cat(parts), expected) < TOLERANCE[dtype]
    for tensor, end in zip(pool, ends, strict=True):
        assert error(tensor[:, 0], end) < TOLERANCE[dtype]


@ways
def test_neighbors_and_former_steps_change_no_bit(dtype: torch.dtype, tiles: bool) -> None:
    """Not even NaN, which stays in memory that the next step reuses."""
    block, lengths = Block("odd", dtype, tiles), (7, 70, 1, 41)
    projected, (conv, ssm) = block.inputs(sum(lengths)), block.states(1)
    cu = np.cumsum([0, *lengths]).tolist()
    alone = []
    for i, j in pairwise(cu):
        pool = conv.clone(), ssm.clone()
        alone.append((block.run(projected[i:j], (j - i,), pool, [0], [0]), *pool))
    spoiled = projected.clone()
    spoiled[cu[1] + 30 : cu[2]] = float("nan")
    for packed in (spoiled, projected):
        pool = conv.repeat(4, 1, 1, 1), ssm.repeat(4, 1, 1, 1, 1)
        gated = block.run(packed, lengths, pool, [0, 1, 2, 3], [0, 1, 2, 3])
        for s, (i, j) in enumerate(pairwise(cu)):
            if s == 1 and packed is spoiled:
                assert gated[i + 30 : j].isnan().all()
                assert pool[1][s].isnan().all()
            else:
                for actual, expected in zip((gated[i:j], pool[0][s], pool[1][s]), alone[s], strict=True):
                    assert torch.equal(actual, expected.reshape(actual.shape))


def test_ends_that_nobody_keeps_change_no_output() -> None:
    block = Block("pocket", *WAYS["bf16-tiles" if has_tiles() else "bf16-vectors"])
    projected, pool = block.inputs(100), block.states(2)
    kept = [tensor.clone() for tensor in pool]
    gated = block.run(projected, (100,), pool, [1], [-1])
    assert all(torch.equal(*pair) for pair in zip(pool, kept, strict=True))
    assert torch.equal(block.run(projected, (100,), pool, [1], [0]), gated)
    assert torch.equal(pool[1][1], kept[1][1])
    assert not torch.equal(pool[1][0], kept[1][0])
