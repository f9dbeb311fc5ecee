"""Layers put into a model folder that ships, of which nothing else may change."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from runnel import Embedder
from runnel.backbones.encoder.layout import EncoderConfig
from runnel.backbones.encoder.model import Encoder, EncoderLayer
from runnel.errors import CheckpointError
from runnel.models.base import BUILT_IN, load_model
from tools.train_pocket import export
from tools.train_pocket.export import add_judge, with_judge

POCKET = BUILT_IN["pocket"]


def new_layers(count: int) -> dict[str, Tensor]:
    torch.manual_seed(count)
    shipped = json.loads((POCKET / "config.json").read_text())["runnel"]["backbone"]["config"]
    layers = nn.ModuleList(EncoderLayer(EncoderConfig.from_dict(shipped)) for _ in range(count))
    return {f"judge_layers.{name}": tensor for name, tensor in layers.state_dict().items()}


def others(folder: Path) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    """What is stored of every tensor but the judge's."""
    tensors = load_file(folder / "model.safetensors").items()
    kept = {name: one for name, one in tensors if not name.startswith("backbone.judge_layers.")}
    return {name: (one.dtype, one.shape, one.numpy().tobytes()) for name, one in kept.items()}


def test_a_judge_in_the_folder_that_ships_leaves_every_other_tensor_as_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(export, "fit_judge", lambda model, data: None)
    target = tmp_path / "pocket"
    shutil.copytree(POCKET, target)
    for count in (4, 3):  # the second in place of the first
        layers = new_layers(count)
        save_file(layers, tmp_path / "judge.safetensors")
        add_judge(tmp_path, tmp_path, target)
        assert others(target) == others(POCKET)
        stored = load_file(target / "model.safetensors")
        for name, tensor in layers.items():
            kept = stored[f"backbone.{name}"]
            if tensor.ndim == 2:
                assert kept.dtype == torch.int8
                close = kept * stored[f"backbone.{name}.scale"][:, None]
                assert float((close - tensor).abs().max()) <= float(tensor.abs().max()) / 127 * 0.51
            else:
                assert torch.equal(kept, tensor)
    files = {path.name for path in POCKET.iterdir() if path.is_file()}
    assert {path.name for path in target.iterdir()} == files
    same = files - {"config.json", "model.safetensors"}
    assert all((target / name).read_bytes() == (POCKET / name).read_bytes() for name in same)
    config, before = (json.loads((folder / "config.json").read_text())["runnel"] for folder in (target, POCKET))
    assert config["backbone"]["config"].pop("judge_layers") == 3
    before["backbone"]["config"].pop("judge_layers", None)
    assert config == before
    texts = ["A tuple cannot be changed.", "The train leaves at noon."]
    vectors = [Embedder.load(folder, "float32").encode(texts) for folder in (target, POCKET)]
    assert np.array_equal(*vectors)


def test_what_is_no_judge_layer_is_refused() -> None:
    model, layers = load_model("pocket", "float32", "cpu"), new_layers(1)
    assert isinstance(model.backbone, Encoder)
    del layers["judge_layers.0.norm.bias"]
    with pytest.raises(CheckpointError, match=r"judge_layers\.0\.norm\.bias.*judge\.weight"):
        with_judge(model, layers | {"judge.weight": torch.zeros(3)})
    layers = new_layers(1)
    assert with_judge(model, layers).engine_for("judge") is not model.engine_for("judge")
