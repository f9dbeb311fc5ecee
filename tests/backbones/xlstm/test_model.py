"""What is particular to xLSTM; what all backbones share is in tests/contracts/test_backbones.py."""

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
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


def test_gates_stay_fp32_under_autocast() -> None:
    gate, u = open_model(TINY).blocks[0].mlstm_layer.fgate_preact, torch.randn(7, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = gate(u)
    expected = 15 * torch.tanh((u.double() @ gate.weight.double().T + gate.bias) / 15)
    assert_close(actual.double(), expected, 1e-6)
