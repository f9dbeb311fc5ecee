"""Every backbone gives one result whatever the path, the packing and the segments. A new one is an
entry in CONFIGS.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import (
    CONFIGS,
    VOCABULARY,
    Architecture,
    assert_close,
    assert_states_close,
    cumulative,
    needs_int8,
    open_xlstm,
    token_ids,
)
from helpers.toy import Toy, ToyConfig
from torch import nn
from torch.nn import functional as F

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import build_backbone
from runnel.backbones.families import BACKBONES
from runnel.backbones.state import State

BUILDERS: dict[str, Any] = BACKBONES | {"xlstm": open_xlstm, "toy": Toy}
ALL_CONFIGS = CONFIGS | {"toy": {"tiny": ToyConfig(VOCABULARY)}}  # which has no kernels
ARCHITECTURES = {
    name: Architecture(BUILDERS[name], configs) for name, configs in ALL_CONFIGS.items()
}
# For tests of what carries a state, and of what has kernels.
RECURRENT, COMPILED = (
    [n for n, entry in ARCHITECTURES.items() if getattr(entry.build(), fact)]
    for fact in ("recurrent", "has_kernels")
)
recurrent = pytest.mark.parametrize("architecture", RECURRENT, indirect=True)
compiled = pytest.mark.parametrize("architecture", COMPILED, indirect=True)
# Each precision and each width of the convolution is compiled separately, for up to a minute. The
# fast tests have neither the widths of `NARROW` nor bf16 and 8 bits of `RARE`.
NARROW = ("mamba1-narrow", "mamba1-smallest", "mamba2-narrow")
RARE = ("mamba1", "mamba2-narrow", "rwkv7")


def slow_if(ids: tuple[str, ...], shapes: list[Any]) -> list[Any]:
    return [
        pytest.param(*s.values, id=s.id, marks=[pytest.mark.slow] * s.id.startswith(ids))
        for s in shapes
    ]


SHAPES = slow_if(
    NARROW,
    [
        pytest.param(a, config, id=f"{name}-{config}")
        for name, a in ARCHITECTURES.items()
        for config in a.configs
    ],
)
FUSED_SHAPES = [
    shape for shape in SHAPES if str(shape.id).split("-")[0] in {*RECURRENT} & {*COMPILED}
]
INT8_SHAPES = [
    shape for shape in SHAPES if ARCHITECTURES[str(shape.id).split("-")[0]].build().int8_layers
]
LENGTHS = (9, 0, 1, 70, 3)  # 70: more than one chunk of every operator
IDS = token_ids(sum(LENGTHS))
CU = cumulative(LENGTHS)


def int8_backbone(entry: Architecture, config: str) -> Backbone:
    model = entry.build(config)
    return build_backbone(
        model.architecture, model.config.to_dict(), model.state_dict(), "int8", "cpu"
    )


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


@pytest.fixture(scope="module")
def model(architecture: Architecture) -> Backbone:
    """With its kernels. They run without autograd only, so that the same model also gives what to
    compare them with.
    """
    model = architecture.build()
    model.prepare()
    assert (model.fast is not None) == model.has_kernels
    return model


@pytest.mark.parametrize(("entry", "config"), SHAPES)
def test_fast_step_equals_forward_and_double_precision(entry: Architecture, config: str) -> None:
    model = entry.build(config)
    model.prepare()
    assert (model.fast is not None) == model.has_kernels
    make = torch.Generator().manual_seed(5)
    added = torch.randn(len(IDS), model.hidden_size, generator=make)  # to the embeddings
    hidden, state = model(IDS, CU, added=added)
    with torch.no_grad():
        fast, fast_state = model(IDS, CU, added=added)
        exact, exact_state = entry.build(config).double()(IDS, CU, added=added.double())
    assert torch.equal(added, torch.randn(added.shape, generator=make.manual_seed(5)))
    assert fast.dtype == torch.float32 and hidden.requires_grad
    assert fast_state.tokens.tolist() == list(LENGTHS)
    for found, end in ((hidden, state), (fast, fast_state)):
        assert_close(found.double(), exact)
        assert_states_close(end.to(torch.float64), exact_state)


@pytest.mark.parametrize(
    "lengths", [(1,) * 70, (130, 2, 65), (3, 0, 64, 1, 33, 32, 31)], ids=["many", "long", "mixed"]
)
@pytest.mark.parametrize(("entry", "config"), FUSED_SHAPES)
def test_fast_steps_of_any_lengths_from_states(
    entry: Architecture, config: str, lengths: tuple[int, ...]
) -> None:
    model = entry.build(config)
    ids = token_ids(sum(lengths))
    cu = cumulative(lengths)
    with torch.no_grad():
        _, start = model(token_ids(len(lengths), seed=1), cumulative((1,) * len(lengths)))
        expected, end = model(ids, cu, start)
        model.prepare()
        hidden, state = model(ids, cu, start)
    assert_close(hidden, expected)
    assert_states_close(state, end)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in COMPILED),
        pytest.param("mamba2", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_neighbors_and_former_steps_change_no_bit(name: str, dtype: torch.dtype) -> None:
    """Not even NaN, which stays in memory that later steps of any size reuse."""
    model = ARCHITECTURES[name].build(dtype=dtype)
    lengths = (7, 70, 1, 41)
    ids = token_ids(sum(lengths))
    cu = cumulative(lengths)
    zeros = torch.zeros(sum(lengths), model.hidden_size)
    others = [*range(7), *range(77, 119)]
    with torch.no_grad():
        model.prepare()
        short = model(token_ids(7, seed=1))[0]
        model.prepare()
        hidden, state = model(ids, cu, added=zeros)
        spoiled, spoiled_state = model(
            ids, cu, added=zeros.index_fill(0, torch.arange(37, 77), torch.nan)
        )
        again, again_state = model(ids, cu, added=zeros)
        assert torch.equal(model(token_ids(7, seed=1))[0], short)
    assert (
        spoiled[37:77].isnan().all()
        and torch.equal(spoiled[others], hidden[others])
        and torch.equal(again, hidden)
    )
    assert_states_close(spoiled_state.select([0, 2, 3]), state.select([0, 2, 3]), 0.0)
    assert_states_close(again_state, state, 0.0)


@recurrent
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "pieces", [(1,) * 12, (2, 1, 3, 0, 6), (11, 1), (63, 87), (64, 86), (65, 64, 21)]
)
def test_segments_change_nothing(model: Backbone, plain: bool, pieces: tuple[int, ...]) -> None:
    ids = token_ids(sum(pieces))
    state = None
    parts = []
    with torch.set_grad_enabled(plain):
        whole, end = model(ids)
        for piece in ids.split(pieces):
            hidden, state = model(piece, None, state)
            parts.append(hidden)
    assert_close(torch.cat(parts), whole)
    assert_states_close(state, end)
    assert state.tokens.tolist() == [len(ids)]


@pytest.mark.parametrize("plain", [True, False])
def test_packing_changes_nothing(model: Backbone, plain: bool) -> None:
    with torch.set_grad_enabled(plain):
        for lengths in ((0,), (0, 0, 0)):
            hidden, state = model(token_ids(0), cumulative(lengths))
            assert hidden.shape == (0, model.hidden_size) and state.tokens.tolist() == list(lengths)
        hidden, state = model(IDS, CU)
        for s, (start, end) in enumerate(pairwise(CU.tolist())):
            alone, alone_state = model(IDS[start:end])
            assert_close(hidden[start:end], alone)
            assert_states_close(state.select([s]), alone_state)


@recurrent
@pytest.mark.parametrize("fast", [True, False])
def test_pool_rows_are_read_forked_and_written(
    architecture: Architecture, model: Backbone, fast: bool
) -> None:
    """Also by sequences without tokens, which move a state as it is, or zeros."""
    prefix = token_ids(6, seed=1)
    ends = [token_ids(4, seed=2), token_ids(5, seed=3), token_ids(2, seed=4)]
    runner = model if fast else architecture.build()
    pool = runner.new_state(6)
    for tensor in pool.tensors.values():
        tensor.fill_(7.0)  # rows in use by others
    nowhere = torch.tensor([-1])
    runner.step(prefix, cumulative((6,)), pool, nowhere, torch.tensor([2]))
    kept = pool.clone()
    reads = torch.tensor([2, 2, -1, 2, -1])
    writes = torch.tensor([0, -1, 3, 4, 5])
    out = runner.step(torch.cat(ends), cumulative((4, 5, 2, 0, 0)), pool, reads, writes)
    whole = [
        model(ids) for ids in (torch.cat([prefix, ends[0]]), torch.cat([prefix, ends[1]]), ends[2])
    ]
    assert_close(out, torch.cat([whole[0][0][6:], whole[1][0][6:], whole[2][0]]))
    assert_states_close(pool.select([0]), whole[0][1])
    assert_states_close(pool.select([3]), whole[2][1])
    # no token at all
    runner.step(token_ids(0), torch.tensor([0, 0]), pool, torch.tensor([4]), torch.tensor([3]))
    for name in pool.tensors:
        assert torch.equal(pool[name][1:3], kept[name][1:3]) and not pool[name][5].any()
        assert torch.equal(pool[name][3], kept[name][2]) and torch.equal(
            pool[name][4], kept[name][2]
        )
    assert pool.tokens.tolist() == [10, 0, 6, 6, 6, 0]


@recurrent
@pytest.mark.parametrize("fast", [True, False])
def test_a_pool_of_another_dtype_is_rounded_but_used(
    architecture: Architecture, model: Backbone, fast: bool
) -> None:
    runner = model if fast else architecture.build()
    with torch.no_grad():
        _, state = model(token_ids(30))
    half = State({k: v.to(torch.bfloat16) for k, v in state.tensors.items()}, state.tokens.clone())
    row = torch.tensor([0])
    hidden = runner.step(token_ids(5), cumulative((5,)), half, row, row)
    expected, end = model(token_ids(5), None, state)
    assert_close(hidden, expected, 5e-2)
    assert all(tensor.dtype == torch.bfloat16 for tensor in half.tensors.values())
    assert_states_close(half.to(torch.float32), end, 5e-2)
    assert half.tokens.tolist() == [35]


def test_several_threads_at_once(model: Backbone) -> None:
    ids = token_ids(40)
    with torch.no_grad():
        expected, _ = model(ids)

    def work(_: int) -> bool:
        with torch.no_grad():
            return all(torch.equal(model(ids)[0], expected) for _ in range(5))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(work, range(3)))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing(
    model: Backbone, set_threads: Callable[[int], None], threads: int
) -> None:
    with torch.no_grad():
        expected, _ = model(IDS, CU)
        set_threads(threads)
        hidden, _ = model(IDS, CU)
    assert_close(hidden, expected, 5e-6)  # matrix products may be cut otherwise


@compiled
def test_a_copy_has_its_own_kernels_which_training_drops(
    architecture: Architecture, model: Backbone
) -> None:
    twin = copy.deepcopy(model)
    ids = token_ids(5)
    assert twin.fast is not None and twin.fingerprint() == model.fingerprint()
    with torch.no_grad():
        assert_close(twin(ids)[0], model(ids)[0])
        twin.train()
        next(module for module in twin.modules() if isinstance(module, nn.Linear)).weight.zero_()
        assert twin.fast is None and twin.eval().fast is not None
        assert (
            not torch.equal(twin(ids)[0], model(ids)[0])
            and twin.fingerprint() != model.fingerprint()
        )
        assert_close(model(ids)[0], architecture.build()(ids)[0])


@pytest.mark.parametrize(("entry", "config"), slow_if(RARE, SHAPES))
def test_bf16_linear_layers_stay_close_to_fp32(entry: Architecture, config: str) -> None:
    exact = entry.build(config)
    half = entry.build(config, torch.bfloat16)
    half.prepare()
    assert (half.fast is not None) == half.has_kernels
    with torch.no_grad():
        expected, _ = exact(IDS, CU)
        fast, state = half(IDS, CU)
        half.fast = None
        plain, plain_state = half(IDS, CU)
    assert fast.dtype == torch.float32
    assert all(t.dtype == torch.float32 for s in (state, plain_state) for t in s.tensors.values())
    assert F.cosine_similarity(fast, expected).min() > 0.999
    assert F.cosine_similarity(fast, plain).min() > 0.999


@needs_int8
@pytest.mark.parametrize(("entry", "config"), slow_if(RARE, INT8_SHAPES))
def test_8_bit_linear_layers_stay_close_to_fp32_and_packing_changes_no_bit(
    entry: Architecture, config: str
) -> None:
    """The scales of a token's numbers are its own."""
    exact = entry.build(config)
    small = int8_backbone(entry, config)
    # Mamba-1's narrow products stay with BLAS in fp32. On Intel processors without bf16 their last
    # bit depends on the rows.
    last_bit = 1e-6 if small.architecture == "mamba1" else 0.0
    assert small.fast is not None
    with torch.no_grad():
        expected, _ = exact(IDS, CU)
        fast, state = small(IDS, CU)
        again, _ = small(IDS, CU, state if small.recurrent else None)
        for s, (start, end) in enumerate(pairwise(CU.tolist())):
            alone, alone_state = small(IDS[start:end])
            assert_close(fast[start:end], alone, last_bit)
            assert_states_close(state.select([s]), alone_state, last_bit)
            assert torch.equal(copy.deepcopy(small)(IDS[start:end])[0], alone)
        small.fast = None
        plain, plain_state = small(IDS, CU)
        plain_again, _ = small(IDS, CU, plain_state if small.recurrent else None)
    assert fast.dtype == torch.float32
    assert all(t.dtype == torch.float32 for s in (state, plain_state) for t in s.tensors.values())
    for actual, wanted in (
        (fast, expected),
        (plain, expected),
        (fast, plain),
        (again, plain_again),
    ):
        cosine = F.cosine_similarity(actual, wanted)
        assert cosine.mean() > 0.999 and cosine.min() > 0.99
    assert state.tokens.tolist() == list(LENGTHS)


# What saturates every second gate or time step of a layer: half of the heads read hardly anything,
# or forget at once.
GATES = ("mlstm_layer.igate_preact.bias", "mlstm_layer.fgate_preact.bias")
EXTREMES = [
    *(("mamba2", "one-group", {"mixer.dt_bias": bias}) for bias in (-60.0, 60.0)),
    *(
        ("xlstm", "tiny", dict(zip(GATES, biases, strict=True)))
        for biases in product((-60.0, 60.0), repeat=2)
    ),
    *(("rwkv7", "tiny", {"att.w0": bias, "att.a0": -bias}) for bias in (-90.0, 90.0)),
]


@pytest.mark.parametrize(
    ("name", "config", "biases", "dtype"),
    [(*extreme, torch.float32) for extreme in EXTREMES]
    + [
        pytest.param(*extreme, torch.bfloat16, marks=[pytest.mark.slow] * (extreme[0] in RARE))
        for extreme in EXTREMES
    ],
)
def test_extreme_gates_give_finite_numbers(
    name: str, config: str, biases: dict[str, float], dtype: torch.dtype
) -> None:
    model = ARCHITECTURES[name].build(config, dtype)
    ids = token_ids(100)
    with torch.no_grad():
        for layer in model.layers:
            for parameter, bias in biases.items():
                layer.get_parameter(parameter)[::2] = bias
        exact, _ = copy.deepcopy(model).double()(ids)
        for kernels in (False, True):
            if kernels:
                model.prepare()
            hidden, state = model(ids)
            assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
            # With steps of 60 an output is little but dt C.B x, and C.B of rounded factors may
            # cancel; so may xLSTM's n.q.
            cosine = F.cosine_similarity(hidden, exact.float())
            assert cosine.quantile(0.02) > (0.999 if dtype == torch.float32 else 0.98)


def test_autocast_lowers_only_the_linear_layers(architecture: Architecture) -> None:
    model = architecture.build()
    ids = token_ids(20)
    expected, _ = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, state = model(ids)
    assert hidden.dtype == torch.float32
    assert all(t.dtype == torch.float32 for t in state.tensors.values())
    assert F.cosine_similarity(hidden, expected).min() > 0.999
    hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_gradients_reach_every_parameter_and_all_inputs_also_where_layers_are_recomputed(
    model: Backbone,
) -> None:
    trained = copy.deepcopy(model).train()
    found = []
    added = torch.randn(9, model.hidden_size, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        _, start = model(token_ids(4))
    leaves = [
        *trained.parameters(),
        *(tensor.requires_grad_() for tensor in (added, *start.tensors.values())),
    ]
    for recompute in (False, True):
        hidden, _ = trained(
            token_ids(9), None, start if model.recurrent else None, added, recompute=recompute
        )
        found.append(torch.autograd.grad(hidden.square().sum(), leaves))
    for plain, recomputed in zip(*found, strict=True):
        assert plain.abs().sum() > 0
        assert_close(recomputed, plain)
