"""What is particular to xLSTM; what all backbones share is in tests/contracts/test_backbones.py."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import assert_close, assert_states_close, tiny_backbone, token_ids
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.xlstm.model import Xlstm, XlstmConfig
from runnel.errors import CheckpointError, InputError

TINY = XlstmConfig(vocab_size=50, hidden_size=24, num_layers=3, num_heads=3, qk_size=24, v_size=36, ffn_size=40)
PUBLISHED = XlstmConfig(50304, 4096, 32, num_heads=8, qk_size=2048, v_size=4096, ffn_size=10944)


def open_model(config: XlstmConfig, dtype: torch.dtype = torch.float32) -> Xlstm:
    """Input gates that write more than a fresh model's, so that the memory matters."""
    model = tiny_backbone(Xlstm, config, dtype)
    with torch.no_grad():
        for layer in model.blocks:
            layer.mlstm_layer.igate_preact.bias += 8
    return model


@pytest.fixture(scope="module")
def model() -> Xlstm:
    return open_model(TINY)


# ---- configuration and parameters ----------------------------------------------------------------------------------------


def test_config_round_trip_is_strict() -> None:
    assert (TINY.key_size, TINY.value_size) == (8, 12)
    values = TINY.to_dict()
    assert XlstmConfig.from_dict(values) == TINY
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['v_size'\]"):
        XlstmConfig.from_dict({k: v for k, v in values.items() if k != "v_size"} | {"heads": 2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"ffn_size": 0}, "ffn_size must be at least 1, got 0"),
        ({"qk_size": 25}, "qk_size 25 must be a multiple of num_heads 3"),
        ({"v_size": 20}, "v_size 20 must be a multiple of num_heads 3"),
        ({"gate_cap": 0.0}, "gate_cap must be positive and finite, got 0.0"),
        ({"gate_cap": float("inf")}, "gate_cap must be positive and finite, got inf"),
    ],
)
def test_config_refuses_shapes_that_do_not_fit(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        XlstmConfig(**{**TINY.to_dict(), **changes})


def test_parameter_names_and_published_start_values() -> None:
    model = Xlstm(TINY)
    names = {name.replace("layers.0.", "") for name in model.state_dict() if "layers.1" not in name and "layers.2" not in name}
    mixer = "q.weight k.weight v.weight ogate_preact.weight out_proj.weight multihead_norm.weight"
    gates = "igate_preact.weight igate_preact.bias fgate_preact.weight fgate_preact.bias"
    expected = {"embeddings.weight", "norm_f.weight", "norm_mlstm.weight", "norm_ffn.weight"}
    expected |= {f"mlstm_layer.{name}" for name in f"{mixer} {gates}".split()}
    expected |= {f"ffn.{name}.weight" for name in ("proj_up_gate", "proj_up", "proj_down")}
    assert names == expected
    start = model.layers[1].mlstm_layer
    assert start.igate_preact.bias.tolist() == [-10] * 3
    assert start.fgate_preact.bias.tolist() == [3, 4.5, 6]
    assert not start.igate_preact.weight.any()
    assert not start.fgate_preact.weight.any()
    assert start.q.weight.std().item() == pytest.approx((2 / (5 * 24)) ** 0.5, rel=0.1)
    assert start.out_proj.weight.std().item() == pytest.approx(2 / 3 / 24**0.5, rel=0.1)


def test_published_shape_has_the_published_numbers() -> None:
    with torch.device("meta"):
        model = Xlstm(PUBLISHED)
    lm_head = PUBLISHED.vocab_size * PUBLISHED.hidden_size
    assert sum(p.numel() for p in model.parameters()) + lm_head == 6_865_424_896
    assert sum(p.numel() for p in model.layers[0].parameters()) == 201_666_576
    assert model.state_bytes == 32 * (8 * 256 * 512 + 8 * 256 + 8) * 4
    assert model.flops_per_token == pytest.approx(32 * (403.3e6 + 5.24e6), rel=1e-3)


def test_only_matrices_take_the_low_dtype() -> None:
    low = {name for name in Xlstm(TINY).state_dict() if name.endswith(Xlstm.matrices)}
    mixer, ffn = ("q", "k", "v", "ogate_preact", "out_proj"), ("proj_up_gate", "proj_up", "proj_down")
    expected = {"embeddings.weight"}
    for i in range(3):
        expected |= {f"layers.{i}.mlstm_layer.{name}.weight" for name in mixer} | {
            f"layers.{i}.ffn.{name}.weight" for name in ffn
        }
    assert low == expected


@pytest.mark.parametrize("name", ["k", "out_proj"])
def test_mixed_dtypes_run(name: str) -> None:
    mixed = open_model(TINY)
    expected = mixed(token_ids(9))[0]
    layer = getattr(mixed.blocks[1].mlstm_layer, name)
    layer.weight.data = layer.weight.data.bfloat16()
    assert F.cosine_similarity(mixed(token_ids(9))[0], expected).min() > 0.99


# ---- results ---------------------------------------------------------------------------------------------------------------


def token_by_token(model: Xlstm, ids: Tensor) -> Tensor:
    """The model as published, written down once more: one token at a time, no shared code."""
    w, c = dict(model.named_parameters()), model.config
    memory = [
        [torch.zeros(c.num_heads, *shape, dtype=torch.float64) for shape in ((c.key_size, c.value_size), (c.key_size,), ())]
        for _ in range(c.num_layers)
    ]
    rows = []
    for token in ids.tolist():
        x = w["embeddings.weight"][token]
        for i in range(c.num_layers):
            at = f"layers.{i}."
            u = rms(x, w[at + "norm_mlstm.weight"], c.norm_eps)
            x = x + token_of_memory(
                {k.removeprefix(at + "mlstm_layer."): v for k, v in w.items() if k.startswith(at)}, u, memory[i], c
            )
            u = rms(x, w[at + "norm_ffn.weight"], c.norm_eps)
            gate = w[at + "ffn.proj_up_gate.weight"] @ u
            x = x + w[at + "ffn.proj_down.weight"] @ (gate / (1 + torch.exp(-gate)) * (w[at + "ffn.proj_up.weight"] @ u))
        rows.append(rms(x, w["norm_f.weight"], c.norm_eps))
    return torch.stack(rows)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt() * weight


def token_of_memory(w: dict[str, Tensor], u: Tensor, memory: list[Tensor], c: XlstmConfig) -> Tensor:
    q, k, v = ((w[f"{name}.weight"] @ u).view(c.num_heads, -1) for name in "qkv")
    i, f = (c.gate_cap * ((w[f"{g}gate_preact.weight"] @ u + w[f"{g}gate_preact.bias"]) / c.gate_cap).tanh() for g in "if")
    matrix, vector, m = memory
    keep = -torch.log1p(torch.exp(-f))
    new = torch.maximum(keep + m, i)
    old_part, new_part = torch.exp(keep + m - new)[:, None], torch.exp(i - new)[:, None]
    memory[:] = [
        old_part[..., None] * matrix + new_part[..., None] * k[:, :, None] * v[:, None],
        old_part * vector + new_part * k,
        new,
    ]
    q = q / c.key_size**0.5
    below = torch.maximum((memory[1] * q).sum(-1).abs(), torch.exp(-new)) + c.cell_eps
    y = torch.einsum("hk,hkv->hv", q, memory[0]) / below[:, None]
    y = y - y.mean(-1, keepdim=True)
    y = (y / (y.square().mean(-1, keepdim=True) + c.norm_eps).sqrt()).flatten() * w["multihead_norm.weight"]
    return w["out_proj.weight"] @ (y / (1 + torch.exp(-(w["ogate_preact.weight"] @ u))))


OTHER = XlstmConfig(50, 20, 2, num_heads=2, qk_size=14, v_size=10, ffn_size=7, gate_cap=3.0, norm_eps=1e-4, cell_eps=1e-2)


@pytest.mark.parametrize("config", [TINY, OTHER])
def test_values_and_gradients_of_an_independent_transcription(config: XlstmConfig) -> None:
    model, ids = open_model(config).double(), token_ids(13)
    weight = torch.randn(13, config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    hidden, expected = model(ids)[0], token_by_token(model, ids)
    assert_close(hidden, expected, 1e-10)
    parameters = dict(model.named_parameters())
    actual = torch.autograd.grad((hidden * weight).sum(), list(parameters.values()))
    wanted = torch.autograd.grad((expected * weight).sum(), list(parameters.values()))
    for name, a, b in zip(parameters, actual, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8 * b.abs().max().item(), rtol=1e-8, msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 64, "num_heads": 2, "qk_dim_factor": 2.0, "v_dim_factor": 3.0, "chunk_size": 16},
        {"hidden_size": 96, "num_heads": 8, "qk_dim_factor": 0.5, "v_dim_factor": 1.0, "ffn_proj_factor": 1.3},
        {"hidden_size": 48, "num_heads": 1, "gate_soft_cap": 5.0, "norm_eps": 1e-4, "eps": 1e-3, "chunk_size": 32},
    ],
)
@torch.no_grad()
def test_same_as_transformers(options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; install the extra train")
    declared = transformers.xLSTMConfig(vocab_size=50, num_hidden_layers=2, embedding_dim=options["hidden_size"], **options)
    theirs = transformers.xLSTMModel(declared).eval()
    block = theirs.blocks[0]
    qk_size, v_size, ffn_size = (x.weight.shape[0] for x in (block.mlstm_layer.q, block.mlstm_layer.v, block.ffn.proj_up))
    config = XlstmConfig(
        50, declared.hidden_size, 2, declared.num_heads, qk_size, v_size, ffn_size, declared.gate_soft_cap, declared.norm_eps,
        declared.eps,
    )  # fmt: skip
    ours, ids = open_model(config), token_ids(45)
    for name, parameter in theirs.named_parameters():
        name = name.replace("blocks.", "layers.").replace("out_norm.", "norm_f.")
        parameter.copy_(ours.get_parameter(name))
    expected = theirs(ids[None], use_cache=False).last_hidden_state[0]
    assert_close(ours(ids)[0], expected, 1e-4)


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 100, 128])
def test_segments_of_several_chunks_change_nothing(model: Xlstm, cut: int) -> None:
    ids = token_ids(150)
    with torch.no_grad():
        whole, end = model(ids)
        first, state = model(ids[:cut])
        second, state = model(ids[cut:], None, state)
    assert_close(torch.cat([first, second]), whole, 5e-5)
    assert_states_close(state, end)


def test_a_copy_sees_its_own_matrices_at_once(model: Xlstm) -> None:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[0].ffn.proj_down.weight.zero_()
        assert not torch.equal(twin(token_ids(5))[0], model(token_ids(5))[0])
        assert_close(model(token_ids(5))[0], open_model(TINY)(token_ids(5))[0])


def test_gates_stay_fp32_under_autocast() -> None:
    gate, u = open_model(TINY).blocks[0].mlstm_layer.fgate_preact, torch.randn(7, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = gate(u)
    expected = 15 * torch.tanh((u.double() @ gate.weight.double().T + gate.bias) / 15)
    assert_close(actual.double(), expected, 1e-6)


@pytest.mark.parametrize("biases", [(60.0, -60.0), (-60.0, 60.0), (60.0, 60.0), (-60.0, -60.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saturated_gates_give_finite_numbers(biases: tuple[float, float], dtype: torch.dtype) -> None:
    model = tiny_backbone(Xlstm, replace(TINY, norm_eps=0.01), dtype)  # a smaller one blows up what is left of a sum near zero
    with torch.no_grad():
        for layer in model.blocks:
            layer.mlstm_layer.igate_preact.bias[::2], layer.mlstm_layer.fgate_preact.bias[::2] = biases
    with torch.no_grad():
        hidden, state = model(token_ids(100))
        expected, _ = copy.deepcopy(model).double()(token_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    assert F.cosine_similarity(hidden, expected.float()).min() > (0.9999 if dtype == torch.float32 else 0.98)
