"""What is particular to xLSTM; what all backbones share is in tests/contracts/test_backbones.py."""

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

TINY = XlstmConfig(vocab_size=50, hidden_size=24, num_layers=3, num_heads=3, qk_size=24, v_size=36, ffn_size=40)


def open_model(config: XlstmConfig, dtype: torch.dtype = torch.float32) -> Xlstm:
    """Input gates that write more than a fresh model's, so that the memory matters."""
    model = tiny_backbone(Xlstm, config, dtype)
    with torch.no_grad():
        for layer in model.blocks:
            layer.mlstm_layer.igate_preact.bias += 8
    return model


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
