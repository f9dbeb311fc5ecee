"""What is particular to xLSTM; what all backbones share is in tests/contracts/test_backbones.py."""

import torch
from helpers.tiny_backbones import assert_close, tiny_backbone

from runnel.backbones.xlstm.model import Xlstm, XlstmConfig


def test_gates_stay_fp32_under_autocast() -> None:
    config = XlstmConfig(vocab_size=50, hidden_size=24, num_layers=1, num_heads=3, qk_size=24, v_size=36, ffn_size=40)
    gate, u = tiny_backbone(Xlstm, config).blocks[0].mlstm_layer.fgate_preact, torch.randn(7, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = gate(u)
    expected = 15 * torch.tanh((u.double() @ gate.weight.double().T + gate.bias) / 15)
    assert_close(actual.double(), expected, 1e-6)
