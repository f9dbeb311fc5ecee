"""Mamba-3 checkpoints of state-spaces: with and without config, runnel's own folders, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import assert_close, token_ids

from runnel.backbones.checkpoint.load import load_backbone, load_checkpoint
from runnel.backbones.mamba3.model import Mamba3Config
from runnel.errors import CheckpointError, NumericalError

GOLDEN = Path(__file__).parents[2] / "golden"
SISO, MIMO = (GOLDEN / f"mamba3-{name}tiny-original" for name in ("", "mimo-"))


def write(folder: Path, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, source: Path = MIMO) -> Path:
    """A golden checkpoint with other values of config.json and ssm_cfg, and without the tensors that are None."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    stored = json.loads((source / "config.json").read_text())
    config = dict(config or {})
    stored["ssm_cfg"] |= config.pop("ssm_cfg", {})
    (folder / "config.json").write_text(json.dumps(stored | config))
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True) | (tensors or {})
    torch.save({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "pytorch_model.bin")
    return folder


def test_the_sizes_are_those_of_the_tensors() -> None:
    siso, mimo = (load_checkpoint(folder) for folder in (SISO, MIMO))
    shape = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "state_size": 16, "head_size": 16}
    assert siso.backbone.config == Mamba3Config(**shape, ffn_size=128)
    assert mimo.backbone.config == Mamba3Config(**shape, ranks=2, out_norm=True)
    assert siso.layout == "Mamba-3, state-spaces original layout"


@pytest.mark.parametrize("source", [SISO, MIMO])
def test_without_config(tmp_path: Path, source: Path) -> None:
    write(tmp_path, source=source)
    (tmp_path / "config.json").unlink()
    assert load_backbone(tmp_path, "float32").fingerprint() == load_backbone(source, "float32").fingerprint()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba2"}}, "layer is 'Mamba2' in its config, in the weights it is 'Mamba3'"),
        ({"ssm_cfg": {"is_mimo": False}}, "is_mimo is False in its config, in the weights it is True"),
        ({"ssm_cfg": {"mimo_rank": 4}}, "mimo_rank is 4 in its config, in the weights it is 2"),
        ({"ssm_cfg": {"is_outproj_norm": False}}, "is_outproj_norm is False"),
        ({"ssm_cfg": {"rope_fraction": 1.0}}, "rope_fraction is 1.0 in its config, in the weights it is 0.5"),
        ({"ssm_cfg": {"d_state": 32}}, "d_state is 32 in its config, in the weights it is 16"),
        ({"ssm_cfg": {"ngroups": 2}}, "mis-shaped first layer: .* 2 ranks of 16 states, 2 groups"),
        ({"ssm_cfg": {"speed": 2}}, "options that runnel does not know: speed"),
        ({"n_layer": 3}, "n_layer is 3 in its config, in the weights it is 2"),
        ({"d_intermediate": 64}, "d_intermediate is True in its config, in the weights it is False"),
        ({"vocab_size": 65}, "vocab_size is 80 in its config, in the weights it is 64"),
        ({"attn_layer_idx": [1]}, r"attn_layer_idx is \[1\]"),
        ({"rms_norm": False}, "rms_norm is False"),
    ],
)
def test_configs_that_say_otherwise(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_backbone(write(tmp_path, config))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"backbone.layers.1.mixer.mimo_o": None}, "missing tensor 'layers.1.mixer.mimo_o'"),
        ({"backbone.layers.1.mixer.conv1d.weight": torch.zeros(2)}, "unexpected tensor 'layers.1.mixer.conv1d.weight'"),
        ({"backbone.layers.0.mixer.D": torch.zeros(3)}, r"mis-shaped tensor 'layers.0.mixer.D' is \(3,\)"),
        ({"backbone.layers.1.mixer.dt_bias": torch.full((4,), torch.nan)}, "NaN"),
    ],
)
def test_damaged_tensors(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, NumericalError), match=message):
        load_backbone(write(tmp_path, tensors=tensors))


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
