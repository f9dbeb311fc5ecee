"""Mamba-3 checkpoints of state-spaces: with and without config, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import built, refused
from helpers.tiny_backbones import assert_close, token_ids

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.mamba3.model import Mamba3Config

GOLDEN = Path(__file__).parents[2] / "golden"
SISO, MIMO = (GOLDEN / f"mamba3-{name}tiny-original" for name in ("", "mimo-"))
TENSORS = {folder: torch.load(folder / "pytorch_model.bin", weights_only=True) for folder in (SISO, MIMO)}
DECLARED = json.loads((MIMO / "config.json").read_text())


@pytest.mark.parametrize(
    ("folder", "own"), [(SISO, {"ffn_size": 128}), (MIMO, {"ranks": 2, "out_norm": True})], ids=["siso", "mimo"]
)
def test_the_sizes_are_those_of_the_tensors_also_without_config(folder: Path, own: dict[str, Any]) -> None:
    found, whole = built(TENSORS[folder], None), load_backbone(folder, "float32", "cpu")
    shape = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "state_size": 16, "head_size": 16}
    assert whole.config == found.backbone.config == Mamba3Config(**shape, **own)
    assert whole.fingerprint() == found.backbone.fingerprint()
    assert found.layout == "Mamba-3, state-spaces original layout"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba2"}}, "layer is 'Mamba2' in its config, in the weights it is 'Mamba3'"),
        ({"ssm_cfg": {"is_mimo": False}}, "is_mimo is False in its config, in the weights it is True"),
        ({"ssm_cfg": {"mimo_rank": 4}}, "mimo_rank is 4 in its config, in the weights it is 2"),
        ({"ssm_cfg": {"is_outproj_norm": False}}, "is_outproj_norm is False"),
        ({"ssm_cfg": {"rope_fraction": 1.0}}, "rope_fraction is 1.0 in its config, in the weights it is 0.5"),
        ({"ssm_cfg": {"d_state": 32}}, "d_state is 32 in its config, in the weights it is 16"),
        ({"ssm_cfg": {"ngroups": 2}}, "2 ranks of 16 states, 2 groups"),
        ({"ssm_cfg": {"speed": 2}}, "options that runnel does not know: speed"),
        ({"n_layer": 3}, "n_layer is 3 in its config, in the weights it is 2"),
        ({"d_intermediate": 64}, "d_intermediate is True in its config, in the weights it is False"),
        ({"vocab_size": 65}, "vocab_size is 80 in its config, in the weights it is 64"),
        ({"attn_layer_idx": [1]}, "attn_layer_idx is [1]"),
        ({"rms_norm": False}, "rms_norm is False"),
    ],
)
def test_configs_that_say_otherwise(config: dict[str, Any], message: str) -> None:
    refused((TENSORS[MIMO], DECLARED | config | {"ssm_cfg": DECLARED["ssm_cfg"] | config.get("ssm_cfg", {})}), message)


def test_angles_of_long_texts_stay_close() -> None:
    """After 5,000 tokens an angle differs by the rounding of its steps alone: a sum in fp32 would be off by 0.002."""
    model, ids = load_backbone(SISO, "float32"), token_ids(5000)
    with torch.no_grad():
        whole, end = model(ids)
        first, state = model(ids[:4711])
        rest, last = model(ids[4711:], None, state)
    assert_close(rest, whole[4711:])
    assert_close((last["angle"] - end["angle"]).sin(), torch.zeros_like(end["angle"]), 3e-4)
    assert end["angle"].abs().max() <= torch.pi and first.shape == (4711, 32)
