"""What is particular to xLSTM; what all backbones share is in tests/contracts/test_backbones.py."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

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


@pytest.mark.parametrize("name", ["k", "out_proj"])
def test_mixed_dtypes_run(name: str) -> None:
    mixed = open_model(TINY)
    expected = mixed(token_ids(9))[0]
    layer = getattr(mixed.blocks[1].mlstm_layer, name)
    layer.weight.data = layer.weight.data.bfloat16()
    assert F.cosine_similarity(mixed(token_ids(9))[0], expected).min() > 0.99


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
