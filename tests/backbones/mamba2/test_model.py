"""What is particular to Mamba-2; what all backbones share is in tests/contracts/test_backbones.py."""

import copy

import pytest
import torch
from helpers.tiny_backbones import tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config

TINY = Mamba2Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=6, head_size=8, groups=3)
ONE_GROUP = Mamba2Config(50, 32, 2, state_size=16, head_size=16)


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


@pytest.mark.parametrize("bias", [-60.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_time_steps_give_finite_numbers(bias: float, dtype: torch.dtype) -> None:
    model = tiny_backbone(Mamba2, ONE_GROUP, dtype)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.dt_bias[::2] = bias
    plain = copy.deepcopy(model)
    model.prepare()
    with torch.no_grad():
        hidden, state = model(token_ids(100))
        expected, _ = plain(token_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    # With dt = 60 an output is little but dt C.B x, and C.B of rounded factors may cancel.
    assert F.cosine_similarity(hidden, expected).min() > (0.999 if dtype == torch.float32 else 0.98)
