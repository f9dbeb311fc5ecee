"""Files that do not load, and what the message says. Models and tensors of other kinds: tests/backbones/test_formats.py."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import refused, write_checkpoint
from safetensors.torch import save_file
from torch import Tensor

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError, NumericalError

SMALL = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)


def tensors_of() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"backbone.{name}": tensor.detach().clone() for name, tensor in Mamba2(SMALL).state_dict().items()}


def test_unknown_hub_id_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"unknown model 'nobody/nothing': .* hub cache /.*download it once while online"):
        load_backbone("nobody/nothing")


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "\x00\x01"])
def test_broken_config(tmp_path: Path, text: str) -> None:
    refused(write_checkpoint(tmp_path, tensors_of(), text), "config.json")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0, 4, 200, -1, -5000])
def test_truncated_weights(tmp_path: Path, keep: int, file: str) -> None:
    path = write_checkpoint(tmp_path, tensors_of(), None, file) / file
    path.write_bytes(path.read_bytes()[:keep])
    refused(tmp_path, file, "damaged")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    refused(tmp_path, file, "is a Git LFS pointer, not the weights", "git lfs pull")


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if zipped:
        torch.save({"x": Harmful()}, tmp_path / "pytorch_model.bin")
    else:
        (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Harmful()}, protocol=2))
    refused(tmp_path, "never runs code from a checkpoint", "model.safetensors")
    assert not (tmp_path / "harm").exists()


def test_training_checkpoint(tmp_path: Path) -> None:
    torch.save({"model": tensors_of(), "step": torch.tensor(3)}, tmp_path / "pytorch_model.bin")
    refused(tmp_path, "not a flat dict of tensors (it holds model, step)", "save only the model's state dict")


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    tensors, files = tensors_of(), {}
    for name, file in weight_map.items():
        files.setdefault(file, {})[name] = tensors.get(name, torch.zeros(1))
    for file, content in files.items():
        if "/" not in file:
            save_file(content, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_missing_shard_and_index_of_other_shards(tmp_path: Path) -> None:
    names = list(tensors_of())
    write_shards(tmp_path, dict.fromkeys(names[:5], "a.safetensors") | dict.fromkeys(names[5:], "b.safetensors"))
    (tmp_path / "b.safetensors").unlink()
    refused(tmp_path, "lacks 1 of the 2 files", "b.safetensors")
    write_shards(tmp_path, dict.fromkeys([*names[1:], "backbone.more"], "a.safetensors"))
    refused(tmp_path, "missing tensor 'embeddings.weight'")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, "weight_map")


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", ".."])
def test_index_cannot_leave_its_folder(tmp_path: Path, shard: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    refused(tmp_path, repr(shard))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["backbone.layers.1.mixer.A_log", "backbone.embeddings.weight", "binary_head.weight"])
def test_not_a_number(tmp_path: Path, name: str, value: float) -> None:
    tensors = tensors_of() | {"binary_head.weight": torch.ones(1, 32)}
    tensors[name].view(-1)[-1] = value
    write_checkpoint(tmp_path, {key: tensor.half() for key, tensor in tensors.items()})
    with pytest.raises(NumericalError, match=rf"{tmp_path.name}: tensor '.*{name.split('.')[-1]}' in model.safetensors"):
        load_backbone(tmp_path)
