"""What is particular to one family; what all backbones share is in
tests/contracts/test_backbones.py.
"""

import math
from pathlib import Path

import pytest
import torch
from helpers.tiny_backbones import CONFIGS, assert_close, tiny_backbone, token_ids

from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.backbones.xlstm.model import Xlstm

GOLDEN = Path(__file__).parents[1] / "golden"
RWKV7 = CONFIGS["rwkv7"]["uneven-ranks"]


def test_gates_of_xlstm_stay_fp32_under_autocast() -> None:
    gate = tiny_backbone(Xlstm, CONFIGS["xlstm"]["tiny"]).blocks[0].mlstm_layer.fgate_preact
    u = torch.randn(7, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = gate(u)
    expected = 15 * torch.tanh((u.double() @ gate.weight.double().T + gate.bias) / 15)
    assert_close(actual.double(), expected, 1e-6)


def test_fresh_layers_of_rwkv7_add_nothing_and_start_as_published() -> None:
    model = Rwkv7(RWKV7)
    ids = token_ids(6)
    assert_close(model(ids)[0], model.norm_f(model.norm_0(model.embeddings(ids))))
    last = model.blocks[-1].att
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(last.w0))
    assert decay.max() > 0.99 and decay.min() < 0.65
    assert last.x_r[0] == 1.0 and 0 <= last.x_r.min() < 0.2
    assert last.k_k[[0, -1]].tolist() == pytest.approx([0.76, 0.66])
    assert [layer.att.ln_x.weight[0].item() for layer in model.blocks] == pytest.approx(
        [0.5**0.7, 1]
    )
    assert not last.w_down.weight.any()
    assert_close(last.w_up.weight.T @ last.w_up.weight, 0.01 * torch.eye(5))
    for config in (Rwkv7Config(5, 1, 1, head_size=1), Rwkv7Config(5, 8, 1, head_size=1)):
        assert all(parameter.isfinite().all() for parameter in Rwkv7(config).parameters())


@pytest.mark.parametrize("fast", [True, False])
def test_short_removal_keys_of_rwkv7_are_normed_as_in_the_official_code(fast: bool) -> None:
    """Divided by their length, floored at 1e-12: other floors lose the removal of keys of 1e-8."""
    ids = token_ids(20)
    found = {}
    for scale in (1.0, 1e-8, 1e-20, 0.0):
        model = tiny_backbone(Rwkv7, RWKV7)
        with torch.no_grad():
            for layer in model.blocks:
                layer.att.k_k *= scale
            if fast:
                model.prepare()
                assert model.fast is not None
            found[scale] = model(ids)[0]
    assert_close(found[1e-8], found[1.0])
    assert_close(found[1e-20], found[0.0])
    assert (found[1.0] - found[0.0]).abs().max() > 1e-3


def test_added_vectors_join_the_residual_stream_of_rwkv7() -> None:
    """After the norm of the embeddings, whose own scale says nothing about that of the stream."""
    model = tiny_backbone(Rwkv7, Rwkv7Config(50, 48, 1, head_size=16))
    ids = token_ids(1)
    added = torch.randn(1, 48)
    assert_close(model.embed(ids), model.norm_0(model.embeddings(ids)))
    with torch.no_grad():
        for name in ("att.output.weight", "ffn.value.weight"):
            model.blocks[0].get_parameter(name).zero_()
        assert_close(model(ids, added=added)[0], model.norm_f(model.embed(ids) + added))
