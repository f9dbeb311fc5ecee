"""The fused kernels of an RWKV-7 layer against fp64, and the whole fused step against the module."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.tiny_backbones import VOCABULARY, assert_close, assert_states_close, cumulative, tiny_backbone, token_ids
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import StepMemory
from runnel.backbones.rwkv7 import kernel_parts, kernels
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.ops import wkv7
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import SERIAL, parallel
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS, address, sigmoid
from runnel.ops.simd_tile import load_up_to, store_up_to

DTYPES = [torch.float32, torch.bfloat16]
LAYERS, LAYER = 3, 1
BOTH = kernel_parts.BLOCK + kernel_parts.ROWS  # more than one block of every kernel


def _array(tensor: Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _numbers(x: Tensor, scale: Tensor, width: int) -> Tensor:
    """(T, width) fp32 of bytes x (T, G Kp) and scale (T, G)."""
    groups = scale.shape[1]
    return ((x.float() - 128).unflatten(1, (groups, -1))[..., : width // groups] * scale[..., None]).flatten(1)


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, atol=tolerance * scale, rtol=tolerance)


def _starts(pool: Tensor, layer: int, reads: list[int]) -> Tensor:
    """The rows that sequences start from, fp64."""
    row = torch.tensor(reads)
    return pool[row.clamp(min=0), layer].double() * (row >= 0).view(-1, *[1] * (pool.ndim - 2))


def _untouched(pool: Tensor, before: Tensor, layer: int, writes: list[int]) -> bool:
    rows = [r for r in range(len(pool)) if r not in writes]
    layers = [i for i in range(LAYERS) if i != layer]
    return torch.equal(pool[rows], before[rows]) and torch.equal(pool[:, layers], before[:, layers])


# ---- the recurrence and what surrounds it -----------------------------------------------------------------------------------


@dataclass
class Heads:
    """Random products and weights of one time mix. Ranks are those of v, w, a and g."""

    heads: int
    size: int
    ranks: tuple[int, int, int, int] = (3, 33, 5, 40)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.width = self.heads * self.size
        self.shape = kernel_parts.Shape(self.heads, self.size, 64e-5)
        self.weights = [torch.randn(self.heads, self.size) for _ in kernel_parts.HeadWeights._fields]
        self.downs = [torch.randn(rank, self.width) / self.width**0.5 for rank in self.ranks]
        self.ups = [torch.randn(self.width, rank) / rank**0.5 for rank in self.ranks]

    def low_rank(self, layer: int, dtype: torch.dtype) -> kernel_parts.LowRank:
        first = 0 if layer else 1  # there is no v in the first layer
        downs, ups = ([t.to(dtype) for t in pair[first:]] for pair in (self.downs, self.ups))
        return kernel_parts.pack_low_rank(downs, ups, self.shape)

    def inputs(self, tokens: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        """r, k, v, v_first (T, D); low-rank activations (T, rank)."""
        x = [torch.randn(tokens, self.width).to(dtype) for _ in range(4)]
        return x, [torch.randn(tokens, rank).to(dtype) for rank in self.ranks]

    def fused(
        self,
        x: list[Tensor],
        low: list[Tensor],
        layer: int,
        cu: Tensor,
        reads: list[int],
        writes: list[int],
        pool: Tensor,
        workers: int = 2,
        *,
        in_place: bool = False,
        int8: bool = False,
    ) -> Tensor:
        weights = kernel_parts.HeadWeights(*(kernel_parts.pad_heads(w.numpy(), self.shape) for w in self.weights))
        low_rank, dtype = self.low_rank(layer, x[0].dtype), x[0].dtype
        plan = kernel_parts.plan_blocks(cu.numpy(), np.array(reads), np.array(writes))
        buffers = kernel_parts.allocate(StepMemory(), self.shape, len(plan.first) + len(reads), workers)
        buffers.scratch.fill(np.nan)  # as a former step may have left it
        activations = torch.full((len(x[0]) + TILE_ROWS, _first(self.low_rank(LAYER, dtype))[-1]), float("nan"), dtype=dtype)
        for part, (begin, end) in enumerate(pairwise(_first(low_rank))):
            activations[: len(x[0]), begin:end] = 0
            activations[: len(x[0]), begin : begin + min(end - begin, self.ranks[part])] = low[part][:, : end - begin]
        out = x[0] if in_place else torch.full_like(x[0], float("nan"))
        scales = torch.full((len(out), self.heads), float("nan"))
        if int8:
            out = torch.zeros(len(out), self.heads * bytes_per_group(self.size, 1), dtype=torch.uint8)
        products = kernels.Products(*map(_array, (*x, activations)))
        with parallel():
            kernels.mix_heads(
                products, _array(out), scales.numpy(), layer, pool.numpy(), self.shape, weights, low_rank, plan, buffers
            )
        return _numbers(out, scales, self.width) if int8 else out

    def exact(self, x: list[Tensor], low: list[Tensor], layer: int, cu: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same in fp64, from weights that are rounded as those of the kernels."""
        r, k, v, v_first = (t.double().unflatten(-1, (self.heads, self.size)) for t in x)
        products = [t.double() @ up.to(x[0].dtype).double().t() for t, up in zip(low, self.ups, strict=True)]
        v_gate, w, a, g = (t.unflatten(-1, (self.heads, self.size)) for t in products)
        w0, a0, v0, k_k, k_a, r_k, norm, bias = (t.double() for t in self.weights)
        if layer:
            v = v + (v_first - v) * torch.sigmoid(v0 + v_gate)
        a = torch.sigmoid(a0 + a)
        kk = F.normalize(k * k_k, dim=-1, eps=1e-12)
        k = k * (1 + (a - 1) * k_a)
        w = -np.exp(-0.5) * torch.sigmoid(w0 + w)
        o, state = wkv7(r, w, k, v, -kk, kk * a, cu, state, backend="reference")
        o = F.layer_norm(o, o.shape[-1:], eps=self.shape.eps) * norm + bias
        return ((o + (r * k * r_k).sum(-1, keepdim=True) * v) * g).flatten(-2), state


def _first(low_rank: kernel_parts.LowRank) -> list[int]:
    """The first column of each low-rank activation, and their number."""
    return (low_rank.first * TILE_COLUMNS).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [0, LAYER])
@pytest.mark.parametrize(
    ("heads", "lengths", "reads", "writes"),
    [
        (Heads(2, 64), [BOTH + 1, 1, 0, 0, 2, 3], [2, -1, 0, 3, -1, 2], [0, -1, -1, 3, 1, -1]),
        (Heads(3, 8), [5, 0, BOTH, 17], [-1, 0, 0, 1], [2, 3, -1, 1]),
        (Heads(1, 80), [kernel_parts.BLOCK, 0, 3], [-1, -1, 2], [0, 1, 3]),
        (Heads(2, 20), [0, 3, 0], [-1, 1, 2], [0, 1, 3]),
    ],
)
def test_heads_equal_fp64(
    heads: Heads, lengths: list[int], reads: list[int], writes: list[int], layer: int, dtype: torch.dtype
) -> None:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    x, low = heads.inputs(sum(lengths), dtype)
    pool = torch.randn(4, LAYERS, heads.heads, heads.size, heads.size)
    kept, before = [t.clone() for t in x], pool.clone()

    out = heads.fused(x, low, layer, cu, reads, writes, pool)

    expected, end = heads.exact(x, low, layer, cu, _starts(before, layer, reads))
    _near(out, expected, 2e-5 if dtype == torch.float32 else 1e-2)
    wanted = torch.tensor(writes) >= 0
    _near(pool[torch.tensor(writes)[wanted], layer], end[wanted], 1e-5)  # bf16 inputs are exact in both
    assert _untouched(pool, before, layer, writes)
    assert all(torch.equal(a, b) for a, b in zip(x, kept, strict=True))


def test_output_may_take_the_memory_of_r() -> None:
    heads, cu = Heads(2, 20), torch.tensor([0, BOTH])
    (x, low), pool = heads.inputs(BOTH, torch.bfloat16), torch.zeros(1, LAYERS, 2, 20, 20)
    expected = heads.fused(x, low, LAYER, cu, [-1], [-1], pool)
    assert not torch.equal(x[0], expected)
    assert torch.equal(heads.fused(x, low, LAYER, cu, [-1], [-1], pool, in_place=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [Heads(2, 64), Heads(3, 37), Heads(3, 1)])
def test_output_in_8_bits(heads: Heads, dtype: torch.dtype) -> None:
    cu = torch.tensor([0, 7, 7, BOTH])
    x, low = heads.inputs(BOTH, dtype)
    pools = [torch.zeros(3, LAYERS, heads.heads, heads.size, heads.size) for _ in range(2)]
    exact, small = (
        heads.fused(x, low, LAYER, cu, [-1] * 3, [0, 1, 2], pool, int8=int8)
        for pool, int8 in zip(pools, (False, True), strict=True)
    )
    assert torch.equal(*pools)
    if dtype == torch.float32:
        largest = exact.unflatten(1, (heads.heads, -1)).abs().amax(-1, keepdim=True).expand(-1, -1, heads.size).flatten(1)
        assert ((small - exact).abs() <= largest / 127 * 0.501).all()
    else:  # the whole numbers are made from fp32, and `exact` was rounded
        _near(small, exact.double(), 1.5e-2)


@pytest.mark.parametrize("scale", [0.0, 1e25])
def test_extreme_products_stay_finite(scale: float) -> None:
    """Zero keys have no direction to divide by; gates and decays saturate."""
    heads, cu = Heads(1, 16), torch.tensor([0, 4])
    x, low = heads.inputs(4, torch.float32)
    x[1] *= 0
    low = [t * scale for t in (*low[:3], low[3] / 1e25)]
    pool = torch.zeros(1, LAYERS, 1, 16, 16)
    assert heads.fused(x, low, LAYER, cu, [0], [0], pool).isfinite().all()
    assert torch.equal(pool[0, LAYER], torch.zeros(1, 16, 16))


# ---- norm, shift and mixes --------------------------------------------------------------------------------------------------


def _shift(
    residual: Tensor, added: Tensor, weights: list[Tensor], heads: Heads, cu: Tensor, reads: list[int], writes: list[int],
    pool: Tensor, workers: int = 2, *, int8: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mixes for r, k, v (or the only one), and low-rank activations."""
    tokens, width = residual.shape
    plan = kernel_parts.plan_blocks(cu.numpy(), np.array(reads), np.array(writes))
    buffers = kernel_parts.allocate(StepMemory(), heads.shape, len(plan.first) + len(reads), workers)
    buffers.before.fill(np.nan)
    buffers.scratch.fill(np.nan)
    w = kernel_parts.ShiftWeights(*(kernel_parts.pad_columns(t.numpy()) for t in weights))
    parts, kept = ((0, 1, 2), (0, 1, 2, 3)) if len(weights[2]) == 6 else ((0,), ())
    out = torch.full((len(parts), tokens, width), float("nan"), dtype=added.dtype)
    scales = torch.full((len(parts), tokens, 1), float("nan"))
    if int8:
        out = torch.zeros(len(parts), tokens, bytes_per_group(width, 1), dtype=torch.uint8)
    low_rank = heads.low_rank(LAYER, added.dtype)
    low = torch.full((tokens, _first(low_rank)[-1]), float("nan"), dtype=added.dtype)
    with parallel():
        kernels.add_norm_shift(
            residual.numpy(), _array(added), w, 1e-5, parts, pool.numpy(), LAYER, plan, buffers, _array(out),
            scales.numpy(), kept, low_rank, _array(low),
        )  # fmt: skip
    return torch.stack([_numbers(*m, width) for m in zip(out, scales, strict=True)]) if int8 else out, low


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixes", [6, 1])
@pytest.mark.parametrize(
    ("heads", "lengths", "reads", "writes"),
    [
        (Heads(3, 16), [2 * BOTH, 1, 0, 0, 3], [2, -1, 0, 3, -1], [2, 0, -1, 1, -1]),
        (Heads(1, 37), [1] * (BOTH + 1), [0, -1] * (BOTH // 2) + [0], [-1] * BOTH + [3]),
        (Heads(1, 5), [0, 3, 0], [-1, 1, 2], [0, 1, 3]),
    ],
)
def test_shift_equals_fp64(
    heads: Heads, lengths: list[int], reads: list[int], writes: list[int], mixes: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    cu, tokens, width = torch.tensor([0, *lengths]).cumsum(0), sum(lengths), heads.width
    residual, added = torch.randn(tokens, width) * 3 + 1, torch.randn(tokens, width).to(dtype)
    weights, pool = [torch.randn(width), torch.randn(width), torch.rand(mixes, width)], torch.randn(4, LAYERS, width)
    expected, before = residual.double() + added.double(), pool.clone()

    out, low = _shift(residual, added, weights, heads, cu, reads, writes, pool)

    _near(residual, expected, 1e-6)
    y = F.layer_norm(expected, (width,), weights[0].double(), weights[1].double(), 1e-5)
    previous, starts = torch.cat([y[:1], y[:-1]]), _starts(before, LAYER, reads)
    for s, (begin, end) in enumerate(pairwise(cu.tolist())):
        if begin < end:
            previous[begin] = starts[s]
        if writes[s] >= 0:
            _near(pool[writes[s], LAYER], y[end - 1] if begin < end else starts[s], 1e-5)
    x = [(y + (previous - y) * mix.double()) for mix in weights[2]]
    tolerance = 3e-6 if dtype == torch.float32 else 1e-2
    for m in range(len(out)):
        _near(out[m], x[m], tolerance)
    if mixes == 6:
        functions = (lambda t: t, torch.tanh, lambda t: t, torch.sigmoid)
        for part, (f, down) in enumerate(zip(functions, heads.downs, strict=True)):
            begin = _first(heads.low_rank(LAYER, dtype))[part]
            _near(low[:, begin : begin + len(down)], f(x[2 + part] @ down.double().t()), tolerance)
    assert _untouched(pool, before, LAYER, writes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixes", [6, 1])
@pytest.mark.parametrize("heads", [Heads(3, 16), Heads(1, 37), Heads(1, 5)])
def test_mixes_in_8_bits(heads: Heads, mixes: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cu, width = torch.tensor([0, 5, 5, BOTH + 1]), heads.width
    residual, added = torch.randn(BOTH + 1, width), torch.randn(BOTH + 1, width).to(dtype)
    weights, results = [torch.randn(width), torch.randn(width), torch.rand(mixes, width)], []
    for int8 in (False, True):
        pool = torch.ones(3, LAYERS, width)
        state, given = residual.clone(), added if int8 else added.float()  # mixes of fp32 come out in fp32
        results.append((*_shift(state, given, weights, heads, cu, [-1, 1, -1], [0, 1, 2], pool, int8=int8), state, pool))
    (exact, low, *rest), (small, small_low, *small_rest) = results
    assert ((small - exact).abs() <= exact.abs().amax(-1, keepdim=True) / 127 * 0.501).all()
    assert all(torch.equal(a, b) for a, b in zip(rest, small_rest, strict=True))
    if mixes == 6:
        used = [c for a, rank in zip(_first(heads.low_rank(LAYER, dtype)), heads.ranks, strict=False) for c in range(a, a + rank)]
        _near(small_low[:, used], low[:, used].double(), 1e-6 if dtype == torch.float32 else 1e-2)


def test_norm_alone_equals_fp64() -> None:
    torch.manual_seed(0)
    residual, added, norm, bias = torch.randn(BOTH, 37), torch.randn(BOTH, 37), torch.randn(37), torch.randn(37)
    w = kernel_parts.ShiftWeights(*(kernel_parts.pad_columns(t.numpy()) for t in (norm, bias, torch.zeros(0, 37))))
    out, kept = torch.empty(BOTH, 37), residual.clone()
    with parallel():
        kernels.add_norm(residual.numpy(), added.numpy(), w, 1e-5, out.numpy())
    _near(out, F.layer_norm(residual.double() + added.double(), (37,), norm.double(), bias.double(), 1e-5), 2e-6)
    assert torch.equal(residual, kept)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_relu_equals_torch(dtype: torch.dtype) -> None:
    values = torch.cat([torch.linspace(-100, 100, 5000), torch.tensor([0.0, -1e30, 1e15, float("nan")])]).to(dtype)
    squared = values.clone()
    with parallel():
        kernels.square_relu(_array(squared))
    assert torch.equal(squared.nan_to_num(-1), values.relu().square().nan_to_num(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "groups"), [(256, 2), (50, 1), (1, 1), (12, 4)])
def test_squared_relu_in_8_bits(width: int, groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(BOTH + 1, width).to(dtype)
    x[3] = -1
    out = torch.zeros(len(x), groups * bytes_per_group(width, groups), dtype=torch.uint8)
    scales = torch.full((len(x), groups), float("nan"))
    with parallel():
        kernels.square_relu_bytes(_array(x), out.numpy(), scales.numpy())
    exact = x.float().relu().square()
    largest = exact.unflatten(1, (groups, -1)).amax(-1, keepdim=True).expand(-1, -1, width // groups).flatten(1)
    assert ((_numbers(out, scales, width) - exact).abs() <= largest / 127 * 0.501).all()


@njit(**SERIAL)
def _sixteen(x: np.ndarray, squashed: np.ndarray, gate: np.ndarray, decayed: np.ndarray) -> None:
    for i in range(0, len(x), 16):
        v = load_up_to(address(x), i, len(x) - i)
        store_up_to(address(squashed), i, kernel_parts.tanh(v), len(x) - i)
        store_up_to(address(gate), i, sigmoid(v), len(x) - i)
        store_up_to(address(decayed), i, kernel_parts.decay(sigmoid(v)), len(x) - i)


def test_functions_are_accurate() -> None:
    x = torch.cat([torch.linspace(-100, 100, 5001), torch.linspace(-1, 1, 5001), torch.tensor([-1e30, 1e30, float("nan")])])
    results = torch.empty(3, len(x))
    _sixteen(x.numpy(), *(row.numpy() for row in results))
    gate = x.double().sigmoid()
    for result, expected in zip(results, (x.double().tanh(), gate, (-np.exp(-0.5) * gate).exp()), strict=True):
        torch.testing.assert_close(result.double(), expected, atol=3e-7, rtol=0, equal_nan=True)


# ---- the whole step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_change_nothing(workers: int) -> None:
    heads, cu = Heads(2, 20), torch.tensor([0, 100, 103])
    (x, low), results = heads.inputs(103, torch.float32), []
    for count in (2, workers):
        pool, shift_pool = torch.zeros(2, LAYERS, 2, 20, 20), torch.zeros(2, LAYERS, 40)
        out = heads.fused(x, low, LAYER, cu, [-1, -1], [0, 1], pool, count)
        weights = [torch.ones(40), torch.zeros(40), torch.full((6, 40), 0.3)]
        mixed = _shift(x[0].clone(), x[1], weights, heads, cu, [0, -1], [0, 1], shift_pool, count)
        results.append((out, pool, *mixed, shift_pool))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


SHAPES = {
    "odd": Rwkv7Config(VOCABULARY, 36, 2, head_size=12, ffn_size=50, decay_rank=5, a_rank=3, v_rank=1, gate_rank=7),
    "published heads": Rwkv7Config(VOCABULARY, 128, 3, decay_rank=16, a_rank=16, v_rank=16, gate_rank=32),
    "small middle": Rwkv7Config(VOCABULARY, 32, 1, head_size=16, ffn_size=8),
}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("lengths", [(1,) * 70, (300,), (3, 0, 64, 1, 33, 32, 31)], ids=["many", "long", "mixed"])
def test_step_equals_forward(config: Rwkv7Config, lengths: tuple[int, ...]) -> None:
    model = tiny_backbone(Rwkv7, config)
    ids, cu = token_ids(sum(lengths)), cumulative(lengths)
    with torch.no_grad():
        _, start = model(token_ids(len(lengths), seed=1), cumulative((1,) * len(lengths)))
        expected, end = model(ids, cu, start)
        model.prepare()
        assert model.fast is not None
        hidden, state = model(ids, cu, start)
    assert_close(hidden, expected)
    assert_states_close(state, end)


def test_steps_of_any_size_share_memory() -> None:
    """A long step, a short one in its memory, and the long one again."""
    model = tiny_backbone(Rwkv7, SHAPES["odd"], torch.bfloat16)
    model.prepare()
    with torch.no_grad():
        first, short = model(token_ids(90))[0], model(token_ids(7, seed=1))[0]
        assert torch.equal(model(token_ids(90))[0], first)
        model.prepare()
        assert torch.equal(model(token_ids(7, seed=1))[0], short)
