"""Mamba-2: one result whatever the path, the packing and the segments."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.backbones.mamba2 import Mamba2, Mamba2Config
from runnel.backbones.state import State
from runnel.errors import CheckpointError, InputError

TINY = Mamba2Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=6, head_size=8, groups=3)
ONE_GROUP = Mamba2Config(50, 32, 2, state_size=16, head_size=16)
LENGTHS = (9, 0, 1, 70, 3)


def _model(config: Mamba2Config = TINY, dtype: torch.dtype = torch.float32) -> Mamba2:
    """A tiny model off its initial values (norms and D that are not 1)."""
    torch.manual_seed(0)
    model = Mamba2(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.to(dtype)
    return model


@pytest.fixture(scope="module")
def model() -> Mamba2:
    model = _model()
    model.prepare()
    assert model.fast is not None
    return model


def _ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(seed))


def _cu(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


# ---- configuration and parameters ----------------------------------------------------------------------------------------


def test_config_round_trip_is_strict() -> None:
    assert (TINY.inner_size, TINY.num_heads, TINY.conv_channels, TINY.projection_size) == (48, 6, 84, 138)
    values = TINY.to_dict()
    assert values["dt_max"] is None
    assert Mamba2Config.from_dict(values) == TINY
    clamped = Mamba2Config(10, 16, 1, head_size=8, dt_min=0.01, dt_max=0.5)
    assert Mamba2Config.from_dict(clamped.to_dict()) == clamped
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['expand'\]"):
        Mamba2Config.from_dict({k: v for k, v in values.items() if k != "expand"} | {"heads": 2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"head_size": 7}, "inner width 48 .* must be a multiple of head_size 7"),
        ({"groups": 4}, "6 heads cannot be shared by 4 groups"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt_min and dt_max must satisfy .* got 0.2 and 0.1"),
    ],
)
def test_config_refuses_shapes_that_do_not_fit(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mamba2Config(**{**TINY.to_dict(), "dt_max": float("inf"), **changes})


def test_parameter_names_and_published_start_values() -> None:
    model = Mamba2(TINY)
    names = {name.replace("layers.0.", "") for name in model.state_dict() if "layers.1" not in name and "layers.2" not in name}
    mixer = "in_proj.weight conv1d.weight conv1d.bias dt_bias A_log D norm.weight out_proj.weight"
    assert names == {"embeddings.weight", "norm_f.weight", "norm.weight", *(f"mixer.{n}" for n in mixer.split())}
    start = model.layers[0].mixer
    assert start.A_log.exp().min() >= 1
    assert start.A_log.exp().max() <= 16.001
    step = F.softplus(start.dt_bias)
    assert step.min() >= 0.9e-3
    assert step.max() <= 0.11


def test_130m_shape_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Mamba2(Mamba2Config(50288, 768, 24))
    assert sum(p.numel() for p in model.parameters()) == 128_989_632


# ---- the kernels' path equals the plain path ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        ONE_GROUP,
        Mamba2Config(50, 24, 2, state_size=5, head_size=12, conv_width=2, proj_bias=True, conv_bias=False),
        Mamba2Config(50, 32, 1, state_size=16, head_size=16, dt_min=0.3, dt_max=0.4),
    ],
)
def test_fast_step_equals_forward(config: Mamba2Config) -> None:
    model = _model(config)
    model.prepare()
    assert model.fast is not None
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    hidden, state = model(ids, cu)
    with torch.no_grad():
        fast, fast_state = model(ids, cu)
        again, again_state = model(ids, cu, fast_state)
    assert fast.dtype == torch.float32
    assert hidden.requires_grad
    _close(fast, hidden)
    for name in state.tensors:
        _close(fast_state[name], state[name])
    hidden, state = model(ids, cu, state)
    _close(again, hidden)
    for name in state.tensors:
        _close(again_state[name], state[name])
    assert again_state.tokens.tolist() == [2 * n for n in LENGTHS]


def test_fast_step_equals_double_precision(model: Mamba2) -> None:
    exact = _model().double()
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    with torch.no_grad():
        expected, end = exact(ids, cu)
        hidden, state = model(ids, cu)
    _close(hidden.double(), expected, 1e-5)
    for name in state.tensors:
        _close(state[name].double(), end[name], 1e-5)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("pieces", [(1,) * 12, (2, 1, 3, 0, 6), (5, 7), (11, 1)])
def test_segments_change_nothing(model: Mamba2, plain: bool, pieces: tuple[int, ...]) -> None:
    ids, state, parts = _ids(12), None, []
    with torch.set_grad_enabled(plain):
        whole, end = model(ids)
        for piece, start in zip(pieces, _cu(pieces).tolist(), strict=False):
            hidden, state = model(ids[start : start + piece], None, state)
            parts.append(hidden)
    _close(torch.cat(parts), whole)
    for name in end.tensors:
        _close(state[name], end[name])
    assert state.tokens.tolist() == [12]


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 100, 128])
def test_segments_of_several_chunks_change_nothing(model: Mamba2, cut: int) -> None:
    ids = _ids(150)
    with torch.no_grad():
        whole, end = model(ids)
        first, state = model(ids[:cut])
        second, state = model(ids[cut:], None, state)
    _close(torch.cat([first, second]), whole)
    for name in end.tensors:
        _close(state[name], end[name])


@pytest.mark.parametrize("plain", [True, False])
def test_packing_changes_nothing(model: Mamba2, plain: bool) -> None:
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    with torch.set_grad_enabled(plain):
        hidden, state = model(ids, cu)
        for s, (start, end) in enumerate(zip(cu.tolist(), cu.tolist()[1:], strict=False)):
            alone, alone_state = model(ids[start:end])
            _close(hidden[start:end], alone)
            for name in state.tensors:
                _close(state[name][s], alone_state[name][0])


@pytest.mark.parametrize("fast", [True, False])
def test_pool_rows_are_read_forked_and_written(model: Mamba2, fast: bool) -> None:
    prefix, ends = _ids(6, seed=1), [_ids(4, seed=2), _ids(5, seed=3), _ids(2, seed=4)]
    runner = model if fast else _model()
    pool = runner.new_state(4)
    for tensor in pool.tensors.values():
        tensor.fill_(7.0)  # rows in use by others
    nowhere = torch.tensor([-1])
    runner.step(prefix, _cu((6,)), pool, nowhere, torch.tensor([2]))
    kept = pool.clone()
    out = runner.step(torch.cat(ends), _cu((4, 5, 2)), pool, torch.tensor([2, 2, -1]), torch.tensor([0, -1, 3]))
    whole = [model(ids) for ids in (torch.cat([prefix, ends[0]]), torch.cat([prefix, ends[1]]), ends[2])]
    _close(out, torch.cat([whole[0][0][6:], whole[1][0][6:], whole[2][0]]))
    for name in pool.tensors:
        _close(pool[name][0], whole[0][1][name][0])
        _close(pool[name][3], whole[2][1][name][0])
        assert torch.equal(pool[name][1:3], kept[name][1:3])
    assert pool.tokens.tolist() == [10, 0, 6, 2]


def test_nothing_to_read_moves_the_state(model: Mamba2) -> None:
    with torch.no_grad():
        _, state = model(_ids(5))
        hidden, same = model(_ids(0), torch.tensor([0, 0]), state)
        pool = State.concatenate([state, model.new_state(2)])
        pool["ssm"][2] = 7.0
        nothing = torch.zeros(3, dtype=torch.int64)
        model.step(_ids(0), nothing, pool, torch.tensor([0, -1]), torch.tensor([1, 2]))
    assert hidden.shape == (0, 24)
    for name in state.tensors:
        assert torch.equal(state[name], same[name])
        assert torch.equal(pool[name][1], state[name][0])
        assert not pool[name][2].any()
    assert pool.tokens.tolist() == [5, 5, 0]


def test_vectors_added_to_the_embeddings(model: Mamba2) -> None:
    ids, added = _ids(8), torch.randn(8, 24)
    expected, _ = model(ids, added=added)
    kept = added.clone()
    with torch.no_grad():
        _close(model(ids, added=added)[0], expected)
    assert torch.equal(added, kept)


def test_several_threads_at_once(model: Mamba2) -> None:
    ids = _ids(40)
    with torch.no_grad():
        expected, _ = model(ids)
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(5):
                if not torch.equal(model(ids)[0], expected):
                    wrong.append("another result than alone")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing(model: Mamba2, threads: int) -> None:
    before = torch.get_num_threads()
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    with torch.no_grad():
        expected, _ = model(ids, cu)
        torch.set_num_threads(threads)
        try:
            hidden, _ = model(ids, cu)
        finally:
            torch.set_num_threads(before)
    _close(hidden, expected, 1e-6)


def test_a_copy_has_its_own_kernels(model: Mamba2) -> None:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[0].mixer.in_proj.weight.zero_()
        assert not torch.equal(twin(_ids(5))[0], model(_ids(5))[0])
        _close(model(_ids(5))[0], _model()(_ids(5))[0])


# ---- precision -----------------------------------------------------------------------------------------------------------


def test_double_precision_segments_agree_to_1e_10() -> None:
    model = _model().double()
    model.prepare()
    assert model.fast is None
    ids = _ids(40)
    whole, _ = model(ids)
    first, state = model(ids[:17])
    second, _ = model(ids[17:], None, state)
    assert whole.dtype == torch.float64
    _close(torch.cat([first, second]), whole, 1e-10)


@pytest.mark.parametrize("config", [TINY, ONE_GROUP])
def test_bf16_linear_layers_stay_close_to_fp32(config: Mamba2Config) -> None:
    exact, half = _model(config), _model(config, dtype=torch.bfloat16)
    half.prepare()
    assert half.fast is not None
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    with torch.no_grad():
        expected, _ = exact(ids, cu)
        fast, state = half(ids, cu)
        half.fast = None
        plain, plain_state = half(ids, cu)
    assert fast.dtype == torch.float32
    assert all(t.dtype == torch.float32 for s in (state, plain_state) for t in s.tensors.values())
    assert F.cosine_similarity(fast, expected).min() > 0.999
    assert F.cosine_similarity(fast, plain).min() > 0.999


def test_autocast_lowers_only_the_linear_layers() -> None:
    model, ids = _model(), _ids(20)
    expected, _ = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, state = model(ids)
    assert hidden.dtype == torch.float32
    assert all(t.dtype == torch.float32 for t in state.tensors.values())
    assert F.cosine_similarity(hidden, expected).min() > 0.999
    hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("bias", [-60.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_time_steps_give_finite_numbers(bias: float, dtype: torch.dtype) -> None:
    model = _model(ONE_GROUP, dtype)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.dt_bias[::2] = bias
    plain = copy.deepcopy(model)
    model.prepare()
    with torch.no_grad():
        hidden, state = model(_ids(100))
        expected, _ = plain(_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    # With dt = 60 an output is little but dt C.B x, and C.B of rounded factors may cancel.
    assert F.cosine_similarity(hidden, expected).min() > (0.999 if dtype == torch.float32 else 0.98)


def test_gradients_reach_every_parameter_and_the_state(model: Mamba2) -> None:
    start = model(_ids(4))[1].detach()
    for tensor in start.tensors.values():
        tensor.requires_grad_()
    trained = copy.deepcopy(model)
    trained(_ids(9), None, start)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.parameters())
    assert all(t.grad is not None and t.grad.abs().sum() > 0 for t in start.tensors.values())


# ---- others --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 3])
def test_same_as_transformers(groups: int) -> None:
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    torch.manual_seed(1)
    theirs = transformers.Mamba2Model(
        transformers.Mamba2Config(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=3,
            state_size=6,
            num_heads=6,
            head_dim=8,
            n_groups=groups,
            chunk_size=16,
            use_cache=False,
            pad_token_id=0,
        )
    ).eval()
    ours = _model(Mamba2Config(50, 24, 3, state_size=6, head_size=8, groups=groups))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours.get_parameter(name))
        ours.prepare()
        ids = _ids(37)
        expected = theirs(ids[None]).last_hidden_state[0]
        _close(ours(ids)[0], expected, 1e-4)
    _close(ours(ids)[0], expected, 1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_a_pool_of_another_dtype_is_rounded_but_used(model: Mamba2, fast: bool) -> None:
    runner = model if fast else _model()
    state = model(_ids(30))[1].detach()
    half = State({k: v.to(torch.bfloat16) for k, v in state.tensors.items()}, state.tokens.clone())
    row = torch.tensor([0])
    hidden = runner.step(_ids(5), _cu((5,)), half, row, row)
    expected, end = model(_ids(5), None, state)
    _close(hidden, expected, 5e-2)
    for name in end.tensors:
        assert half[name].dtype == torch.bfloat16
        _close(half[name].float(), end[name], 5e-2)
    assert half.tokens.tolist() == [35]
