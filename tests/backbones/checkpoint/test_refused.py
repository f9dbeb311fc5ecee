"""Checkpoints that do not load, and what the message says."""

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

GOLDEN = Path(__file__).parents[2] / "golden"
SMALL = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)
ORIGINAL = {"d_model": 32, "n_layer": 2, "vocab_size": 64, "ssm_cfg": {"layer": "Mamba2", "d_state": 8, "headdim": 16}}
TRANSFORMERS = {"model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8}
TRANSFORMERS |= {"num_heads": 4, "head_dim": 16, "n_groups": 1}


def tensors_of(prefix: str = "backbone.") -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {prefix + name: tensor.detach().clone() for name, tensor in Mamba2(SMALL).state_dict().items()}


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


NONE = torch.zeros(0)  # in place of a tensor that is taken away
HEAD = {"binary_head.weight": torch.ones(1, 32), "binary_head.bias": torch.ones(1)}


@pytest.mark.parametrize(
    ("config", "changed", "parts"),
    [
        (TRANSFORMERS, {"backbone.layers.1.mixer.dt_bias": NONE}, ["missing tensor 'layers.1.mixer.dt_bias'"]),
        (None, {"backbone.embeddings.weight": NONE}, ["missing tensor 'embeddings.weight'"]),
        (
            TRANSFORMERS,
            {"backbone.a": torch.zeros(3), "score.weight": torch.zeros(2)},
            ["unexpected tensors 'a', 'score"],
        ),
        (TRANSFORMERS, {"backbone.layers.1.mixer.out_proj.weight": torch.zeros(32, 63)}, ["is (32, 63) in", "expected (32, 64)"]),
        (
            TRANSFORMERS,
            {"backbone.norm_f.weight": torch.zeros(31), "backbone.a": torch.zeros(1), "backbone.layers.0.norm.weight": NONE},
            ["missing tensor", "unexpected tensor", "mis-shaped tensor"],
        ),
        (TRANSFORMERS | {"num_hidden_layers": 3}, {}, ["num_hidden_layers is 3 in its config, in the weights it is 2"]),
        (TRANSFORMERS | {"num_hidden_layers": 10**9}, {}, ["num_hidden_layers is 1000000000"]),
        (ORIGINAL | {"vocab_size": 65, "pad_vocab_size_multiple": 16}, {}, ["vocab_size is 80", "in the weights it is 64"]),
        (None, {"backbone.embedding.weight": torch.zeros(64, 32)}, ["the same tensor twice, as 'backbone.embedding", "keep one"]),
        (None, HEAD | {"binary_head.weight": NONE}, ["missing tensor 'binary_head.weight'"]),
        (None, HEAD | {"binary_head.weight": torch.zeros(1, 31)}, ["'binary_head.weight' is (1, 31)", "expected (1, 32)"]),
        (None, HEAD | {"binary_head.bias": torch.zeros(2)}, ["'binary_head.bias' is (2,)", "expected (1,)"]),
        (None, HEAD | {"binary_head.scale": torch.zeros(1)}, ["unexpected tensor 'binary_head.scale'"]),
        (None, {"backbone.embeddings.weight": torch.ones(64, 32).to(torch.float8_e4m3fn)}, ["torch.float8_e4m3fn", "originals"]),
        (None, {"backbone.embeddings.weight": torch.ones(64, 32, dtype=torch.int8)}, ["stored as torch.int8", "originals"]),
        (ORIGINAL, {"backbone.layers.1.self_attn.q_proj.weight": torch.zeros(2)}, ["unexpected tensor", "q_proj.weight"]),
    ],
)
def test_tensors(tmp_path: Path, config: object, changed: dict[str, Tensor], parts: list[str]) -> None:
    tensors = {name: tensor for name, tensor in (tensors_of() | changed).items() if tensor.numel()}
    refused(write_checkpoint(tmp_path, tensors, config), *parts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["backbone.layers.1.mixer.A_log", "backbone.embeddings.weight", "binary_head.weight"])
def test_not_a_number(tmp_path: Path, name: str, value: float) -> None:
    tensors = tensors_of() | {"binary_head.weight": torch.ones(1, 32)}
    tensors[name].view(-1)[-1] = value
    write_checkpoint(tmp_path, {key: tensor.half() for key, tensor in tensors.items()})
    with pytest.raises(NumericalError, match=rf"{tmp_path.name}: tensor '.*{name.split('.')[-1]}' in model.safetensors"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("name", ["blocks.0.xlstm.mlstm_cell.igate.weight", "blocks.0.attention.time_decay", "encoder.x"])
def test_foreign_tensors_without_config(tmp_path: Path, name: str) -> None:
    refused(write_checkpoint(tmp_path, {name: torch.zeros(2)}), name)


@pytest.mark.parametrize(
    ("base", "options", "part"),
    [
        (TRANSFORMERS, {"model_type": "falcon_mamba"}, "'falcon_mamba'"),
        (TRANSFORMERS, {"model_type": "rwkv7"}, "'RWKV-7' in its config, in the weights it is 'Mamba-2'"),
        (TRANSFORMERS, {"model_type": "gpt_bigcode"}, "'gpt_bigcode' model, expected Encoder, RWKV-7, xLSTM, Mamba-3"),
        (TRANSFORMERS, {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (TRANSFORMERS, {"num_heads": 5}, "num_heads is 5 in its config, in the weights it is 4"),
        (TRANSFORMERS, {"n_groups": 3}, "3 groups"),
        (TRANSFORMERS, {"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
        (TRANSFORMERS, {"vocab_size": True}, "vocab_size is True"),
        (TRANSFORMERS, {"quantization_config": {"load_in_4bit": True}}, "quantized weights"),
        ({key: value for key, value in TRANSFORMERS.items() if key not in ("n_groups", "state_size")}, {}, "state_size is 128"),
        (ORIGINAL, {"attn_layer_idx": [1]}, "attn_layer_idx is [1]"),
        (ORIGINAL, {"d_intermediate": 64}, "d_intermediate is 64"),
        (ORIGINAL, {"rms_norm": False}, "rms_norm is False"),
        (ORIGINAL, {"vocab_size": None}, "vocab_size is missing"),
        (ORIGINAL, {"d_model": "32"}, "d_model is '32' in its config, in the weights it is 32"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba3"}}, "layer is 'Mamba3'"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim is True"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba2", "d_ssm": 16}}, "d_ssm is 16"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba2", "speed": 2}}, "does not know: speed"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba2", "d_state": 8, "headdim": 5}}, "headdim is 5 in its config, in the weights"),
        (ORIGINAL, {"ssm_cfg": {"layer": "Mamba2", "d_state": 8, "dt_limit": [1]}}, "dt_limit is [1]"),
        # of models that may read both ways
        (TRANSFORMERS, {"is_causal": False}, "is_causal is False"),
        (TRANSFORMERS, {"bidirectional": True}, "bidirectional is True"),
        (TRANSFORMERS, {"bidirectional_strategy": "add"}, "bidirectional_strategy is 'add'"),
        (TRANSFORMERS, {"architectures": ["BiMamba2ForMaskedLM"]}, "BiMamba2ForMaskedLM"),
        (TRANSFORMERS, {"auto_map": {"AutoModel": "modeling.BidirectionalMamba2"}}, "modeling.BidirectionalMamba2"),
        (TRANSFORMERS, {"auto_map": {"AutoModel": "modeling.EmbedMamba2"}}, "names code, modeling.EmbedMamba2"),
        (TRANSFORMERS, {"auto_map": "modeling.EmbedMamba2"}, "names code, modeling.EmbedMamba2"),
    ],
)
def test_near_misses(tmp_path: Path, base: dict[str, Any], options: dict[str, Any], part: str) -> None:
    refused(write_checkpoint(tmp_path, tensors_of(), base | options), part)


@pytest.mark.parametrize(
    "stray",
    [  # a circulating Codestral config says norm_before_gate; transformers and the published model gate first
        {"norm_before_gate": True, "rms_norm": False, "intermediate_size": 5, "time_step_limit": [0.0, "inf"], "d_inner": 9},
        {"is_causal": True},
        {"bidirectional": False, "architectures": ["Mamba2ForCausalLM"]},
        {"auto_map": {"AutoConfig": "configuration.Mamba2Config", "AutoModel": "owner/code--modeling.Mamba2Model"}},
        {"auto_map": {"AutoTokenizer": ["tokenization.BiTokenizer", None]}},
    ],
)
def test_ignored_as_transformers_ignores_it(tmp_path: Path, stray: dict[str, Any]) -> None:
    assert load_backbone(write_checkpoint(tmp_path, tensors_of(), TRANSFORMERS | stray), "float32").config == SMALL


def test_groups_are_not_guessed(tmp_path: Path) -> None:
    config = Mamba2Config(vocab_size=8, hidden_size=32, num_layers=1, state_size=128, head_size=16, groups=4)
    tensors = {name: tensor.detach() for name, tensor in Mamba2(config).state_dict().items()}
    refused(write_checkpoint(tmp_path, tensors), "n_groups is missing in its config")


@pytest.mark.parametrize(
    ("name", "part"),
    [("embeddings.weight.scale", "scale' is (1,), expected (64,)"), ("more.scale", "unexpected tensor 'more.scale'")],
)
def test_scales_in_a_runnel_folder(tmp_path: Path, name: str, part: str) -> None:
    """What its config may say wrongly: tests/models/test_model_folder.py."""
    declared = {"runnel": {"backbone": {"architecture": "mamba2", "config": SMALL.to_dict()}}}
    refused(write_checkpoint(tmp_path, tensors_of() | {f"backbone.{name}": torch.ones(1)}, declared), part)
