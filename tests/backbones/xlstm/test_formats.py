"""xLSTM checkpoints: transformers' layout, the official folder, runnel's own; and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import assert_holds, refused, write_checkpoint
from torch import Tensor

from runnel.backbones.checkpoint.load import load_backbone, load_checkpoint
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.xlstm.formats import read
from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

SMALL = XlstmConfig(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, qk_size=12, v_size=24, ffn_size=64)
TRANSFORMERS: dict[str, Any] = {
    "model_type": "xlstm",
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_heads": 2,
}
OFFICIAL = {"vocab_size": 40, "embedding_dim": 24, "num_blocks": 2, "num_heads": 2}


def module_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.rand(tensor.shape) for name, tensor in Xlstm(SMALL).state_dict().items()}


def published(prefix: str = "backbone.", embedding: str = "backbone.embeddings.weight") -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in module_tensors().items():
        plain = name.replace("layers.", "blocks.").replace("norm_f.", "out_norm.")
        tensors[embedding if plain == "embeddings.weight" else prefix + plain] = tensor
    return tensors | {"lm_head.weight": torch.rand(40, 24)}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None, file: str = "model.safetensors") -> Path:
    if config is not None and "model_type" not in config:
        (folder / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in config.items()))
        config = None
    return write_checkpoint(folder, tensors, config, file)


def assert_same(backbone: Any, config: XlstmConfig = SMALL) -> None:
    assert_holds(backbone, config, module_tensors())


@pytest.mark.parametrize("prefix", ["backbone.", ""])
def test_transformers(tmp_path: Path, prefix: str) -> None:
    write(tmp_path, published(prefix, prefix + "embeddings.weight"), TRANSFORMERS)
    found = load_checkpoint(tmp_path, dtype="float32")
    assert_same(found.backbone)
    assert found.layout == "xLSTM, transformers layout" and found.heads == {}


def test_official_folder(tmp_path: Path) -> None:
    tensors = published("backbone.", "embedding.weight")
    for number in range(3):
        part = dict(list(tensors.items())[number::3])
        write(tmp_path, part, OFFICIAL | {"norm_eps": "1e-6"}, f"model_{number}.safetensors")
    found = load_checkpoint(tmp_path, dtype="float32")
    assert_same(found.backbone)
    assert found.layout == "xLSTM, official layout"


def test_shapes_alone_tell_the_config(tmp_path: Path) -> None:
    found = load_checkpoint(write(tmp_path, published(), None), dtype="float32")
    assert_same(found.backbone)
    assert found.layout == "xLSTM, bare tensors layout"


def test_both_names_of_sizes_and_other_values(tmp_path: Path) -> None:
    """Everything that the module takes from the config, and options that choose kernels."""
    both = {"embedding_dim": 24, "num_blocks": 2, "qk_dim_factor": 0.5, "v_dim_factor": 1.0, "ffn_round_up_to_multiple_of": 32}
    values = {"gate_soft_cap": 4.0, "norm_eps": 1e-4, "eps": 1e-3, "output_logit_soft_cap": 7.0}
    unread = {"chunkwise_kernel": "chunkwise--triton_xl_chunk", "add_out_norm": False, "tie_word_embeddings": True, "head_dim": 5}
    backbone = load_backbone(write(tmp_path, published(), TRANSFORMERS | both | values | unread), "float32")
    assert_same(backbone, XlstmConfig(40, 24, 2, 2, 12, 24, 64, gate_cap=4.0, norm_eps=1e-4, cell_eps=1e-3))


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 64, "num_heads": 2, "qk_dim_factor": 1.0, "v_dim_factor": 2.0},
        {"hidden_size": 96, "num_heads": 4, "ffn_proj_factor": 1.7, "gate_soft_cap": 6.0, "norm_eps": 1e-3, "eps": 1e-2},
    ],
)
@torch.no_grad()
def test_transformers_agrees(tmp_path: Path, options: dict[str, Any]) -> None:
    """A sharded folder as `save_pretrained` writes it; a length that is no multiple of any chunk."""
    import transformers

    declared = transformers.xLSTMConfig(vocab_size=40, num_hidden_layers=2, embedding_dim=options["hidden_size"], **options)
    theirs = transformers.xLSTMForCausalLM(declared)
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():  # gates are zero at the start
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    theirs.eval().save_pretrained(tmp_path, max_shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    ids = torch.arange(37) * 5 % 40
    expected = theirs.backbone(ids[None], use_cache=False).last_hidden_state[0]
    backbone = load_backbone(tmp_path, dtype="float32", device="cpu")
    torch.testing.assert_close(backbone(ids)[0], expected, atol=1e-4, rtol=1e-4)


def test_fused_rows_are_split_in_order() -> None:
    fused = fuse(published())
    assert "backbone.blocks.1.mlstm_layer.q.weight" not in fused
    found = read(TRANSFORMERS | {"weight_mode": "fused"}, from_tensors(fused, "memory"), "here")
    assert found.config == SMALL
    named = found.backbone
    assert named.keys() == module_tensors().keys()
    for name, tensor in module_tensors().items():
        assert named[name].shape == tuple(tensor.shape) and torch.equal(named[name].read(), tensor), name


def fuse(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    tensors = dict(tensors)
    for i in range(2):
        mixer, ffn = f"backbone.blocks.{i}.mlstm_layer.", f"backbone.blocks.{i}.ffn."
        parts = [tensors.pop(f"{mixer}{name}.weight") for name in ("q", "k", "v", "ogate_preact")]
        tensors[mixer + "qkv_opreact.weight"] = torch.cat(parts)
        for kind in ("weight", "bias"):
            gates = [tensors.pop(f"{mixer}{name}gate_preact.{kind}") for name in "if"]
            tensors[f"{mixer}ifgate_preact.{kind}"] = torch.cat(gates)
        tensors[ffn + "proj_up_gate_z.weight"] = torch.cat([tensors.pop(f"{ffn}{x}.weight") for x in ("proj_up_gate", "proj_up")])
    return tensors


def test_only_matrices_take_the_dtype(tmp_path: Path) -> None:
    backbone = load_backbone(write(tmp_path, published(), TRANSFORMERS), "bfloat16")
    low = {name for name, parameter in backbone.named_parameters() if parameter.dtype == torch.bfloat16}
    assert low == {name for name in backbone.state_dict() if not re.search(r"norm|[if]gate_preact", name)}
    assert backbone(torch.arange(9))[0].isfinite().all()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"use_bias": True}, "use_bias is True"),
        ({"weight_mode": "shared"}, "weight_mode is 'shared'"),
        ({"chunkwise_kernel": "chunkwise--triton_xl_chunk_siging"}, "chunkwise_kernel is"),
        ({"gate_soft_cap": None}, "gate_soft_cap is None"),
        ({"gate_soft_cap": 0}, "gate_cap 0"),
        ({"embedding_dim": 32}, "embedding_dim is 32 in its config, in the weights it is 24"),
        ({"num_heads": 5}, "num_heads is 5 in its config, in the weights it is 2"),
        ({"model_type": "mamba2"}, "'Mamba-2' in its config, in the weights it is 'xLSTM'"),
    ],
)
def test_transformers_near_misses(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    refused(write(tmp_path, published(), TRANSFORMERS | options), part)


@pytest.mark.parametrize(
    ("options", "part"), [({"add_out_norm": "false"}, "add_out_norm is False"), ({"use_bias": "true"}, "use_bias is True")]
)
def test_official_near_misses(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    refused(write(tmp_path, published(embedding="embedding.weight"), OFFICIAL | options), part)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t.pop("backbone.blocks.1.ffn.proj_down.weight"), ["missing tensor 'layers.1.ffn.proj_down.weight'"]),
        (lambda t: t.pop("backbone.blocks.0.mlstm_layer.q.weight"), ["missing tensor 'layers.0.mlstm_layer.q.weight'"]),
        (lambda t: t.update({"backbone.blocks.0.mlstm_layer.q.bias": torch.zeros(12)}), ["unexpected tensor", "q.bias"]),
        (lambda t: t.update({"embedding.weight": torch.zeros(40, 24)}), ["the same tensor twice", "keep one"]),
        (lambda t: t.update({"backbone.out_norm.weight": torch.zeros(23)}), ["mis-shaped tensor 'norm_f.weight' is (23,)"]),
    ],
)
def test_wrong_tensors(tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], parts: list[str]) -> None:
    tensors = published()
    change(tensors)
    refused(write(tmp_path, tensors, TRANSFORMERS), *parts)


@pytest.mark.parametrize(
    ("name", "tensor", "parts"),
    [
        ("mlstm_layer.ifgate_preact.bias", torch.zeros(5), ["is (5,), its rows must divide into 2 parts"]),
        ("ffn.proj_up_gate_z.weight", torch.zeros(130, 24), ["mis-shaped tensor 'layers.1.ffn.proj_up_gate.weight' is (65, 24)"]),
        (
            "mlstm_layer.qkv_opreact.weight",
            torch.zeros(73, 24),
            ["mis-shaped tensor", "layers.1.mlstm_layer.ogate_preact.weight"],
        ),
    ],
)
def test_wrong_fused_tensors(tmp_path: Path, name: str, tensor: Tensor, parts: list[str]) -> None:
    tensors = fuse(published()) | {f"backbone.blocks.1.{name}": tensor}
    refused(write(tmp_path, tensors, TRANSFORMERS | {"weight_mode": "fused"}), *parts)
