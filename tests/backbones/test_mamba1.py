"""Mamba-1: one result whatever the path, the packing and the segments."""

from __future__ import annotations

import copy
import logging
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.backbones.mamba1 import Mamba1, Mamba1Config
from runnel.backbones.state import State
from runnel.errors import CheckpointError, InputError

TINY = Mamba1Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=5)
LENGTHS = (9, 0, 1, 30, 3)


def _model(config: Mamba1Config = TINY, dtype: torch.dtype = torch.float32) -> Mamba1:
    """A tiny model off its initial values (A_log that no formula gives, biases that are not 0)."""
    torch.manual_seed(0)
    model = Mamba1(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.to(dtype)
    return model


@pytest.fixture(scope="module")
def model() -> Mamba1:
    model = _model()
    model.prepare()
    assert model.fast is not None
    return model


def _ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, TINY.vocab_size, (tokens,), generator=torch.Generator().manual_seed(seed))


def _cu(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


# ---- configuration and parameters ----------------------------------------------------------------------------------------


def test_config_round_trip_is_strict() -> None:
    assert TINY.dt_rank == 2
    assert TINY.inner_size == 48
    values = TINY.to_dict()
    assert Mamba1Config.from_dict(values) == TINY
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['expand'\]"):
        Mamba1Config.from_dict({k: v for k, v in values.items() if k != "expand"} | {"heads": 2})
    with pytest.raises(InputError, match="num_layers must be at least 1, got 0"):
        Mamba1Config(10, 16, 0)


def test_parameter_names_and_published_start_values() -> None:
    model = Mamba1(TINY)
    names = {name.replace("layers.0.", "") for name in model.state_dict() if "layers.1" not in name and "layers.2" not in name}
    mixer = "in_proj.weight conv1d.weight conv1d.bias x_proj.weight dt_proj.weight dt_proj.bias A_log D out_proj.weight"
    assert names == {"embeddings.weight", "norm_f.weight", "norm.weight", *(f"mixer.{n}" for n in mixer.split())}
    mixer = model.layers[0].mixer
    _close(mixer.A_log.exp(), torch.arange(1.0, 6.0).expand(48, 5))
    step = F.softplus(mixer.dt_proj.bias)
    assert step.min() >= 0.9e-3
    assert step.max() <= 0.11
    biased = Mamba1(Mamba1Config(10, 16, 1, proj_bias=True, conv_bias=False))
    assert biased.layers[0].mixer.out_proj.bias is not None
    assert biased.layers[0].mixer.conv1d.bias is None


# ---- the kernels' path equals the plain path ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        Mamba1Config(50, 32, 2, state_size=16, conv_width=2, dt_rank=3, proj_bias=True, conv_bias=False),
        Mamba1Config(50, 16, 1, state_size=1, conv_width=1, expand=1),
    ],
)
def test_fast_step_equals_forward(config: Mamba1Config) -> None:
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


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("pieces", [(1,) * 12, (2, 1, 3, 0, 6), (5, 7), (11, 1)])
def test_segments_change_nothing(model: Mamba1, plain: bool, pieces: tuple[int, ...]) -> None:
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


@pytest.mark.parametrize("plain", [True, False])
def test_packing_changes_nothing(model: Mamba1, plain: bool) -> None:
    ids, cu = _ids(sum(LENGTHS)), _cu(LENGTHS)
    with torch.set_grad_enabled(plain):
        hidden, state = model(ids, cu)
        for s, (start, end) in enumerate(zip(cu.tolist(), cu.tolist()[1:], strict=False)):
            alone, alone_state = model(ids[start:end])
            _close(hidden[start:end], alone)
            for name in state.tensors:
                _close(state[name][s], alone_state[name][0])


@pytest.mark.parametrize("fast", [True, False])
def test_pool_rows_are_read_forked_and_written(model: Mamba1, fast: bool) -> None:
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


def test_nothing_to_read_keeps_the_state(model: Mamba1) -> None:
    with torch.no_grad():
        _, state = model(_ids(5))
        hidden, same = model(_ids(0), torch.tensor([0, 0]), state)
    assert hidden.shape == (0, 24)
    for name in state.tensors:
        assert torch.equal(state[name], same[name])


def test_vectors_added_to_the_embeddings(model: Mamba1) -> None:
    ids, added = _ids(8), torch.randn(8, 24)
    expected, _ = model(ids, added=added)
    kept = added.clone()
    with torch.no_grad():
        _close(model(ids, added=added)[0], expected)
    assert torch.equal(added, kept)


def test_several_threads_at_once(model: Mamba1) -> None:
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


def test_bf16_linear_layers_stay_close_to_fp32(model: Mamba1) -> None:
    half = _model(dtype=torch.bfloat16)
    half.prepare()
    assert half.fast is not None
    ids = _ids(60)
    with torch.no_grad():
        expected, _ = model(ids)
        fast, state = half(ids)
        half.fast = None
        plain, plain_state = half(ids)
    assert fast.dtype == torch.float32
    assert all(t.dtype == torch.float32 for s in (state, plain_state) for t in s.tensors.values())
    assert F.cosine_similarity(fast, expected).min() > 0.999
    assert F.cosine_similarity(fast, plain).min() > 0.999


def test_gradients_reach_every_parameter_and_the_state(model: Mamba1) -> None:
    start = model(_ids(4))[1].detach()
    for tensor in start.tensors.values():
        tensor.requires_grad_()
    trained = copy.deepcopy(model)
    trained(_ids(9), None, start)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.parameters())
    assert all(t.grad is not None and t.grad.abs().sum() > 0 for t in start.tensors.values())


# ---- others --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [True, False])
def test_same_as_transformers(biases: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    torch.manual_seed(1)
    theirs = transformers.MambaModel(
        transformers.MambaConfig(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=3,
            state_size=5,
            use_bias=biases,
            use_conv_bias=not biases,
            use_cache=False,
        )
    ).eval()
    ours = _model(Mamba1Config(50, 24, 3, state_size=5, proj_bias=biases, conv_bias=not biases))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours.get_parameter(name))
        ours.prepare()
        ids = _ids(37)
        expected = theirs(ids[None]).last_hidden_state[0]
        _close(ours(ids)[0], expected, 1e-4)
    _close(ours(ids)[0], expected, 1e-4)


def test_odd_inner_width_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = _model(Mamba1Config(50, 12, 1))
    with caplog.at_level(logging.INFO, logger="runnel"):
        model.prepare()
    assert model.fast is None
    assert "inner width 24 is not a multiple of 16" in caplog.text
    with torch.no_grad():
        assert model(_ids(5))[0].shape == (5, 12)


@pytest.mark.parametrize("fast", [True, False])
def test_a_pool_of_another_dtype_is_rounded_but_used(model: Mamba1, fast: bool) -> None:
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
