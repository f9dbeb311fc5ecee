"""Checkpoints that load: every layout, sharded or not, in every dtype, against transformers and
against each other.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import write_checkpoint
from torch import Tensor

from runnel.backbones.checkpoint.load import (
    NoRandomNumbers,
    build_backbone,
    load_backbone,
    load_checkpoint,
)
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import BackendUnavailable, InputError
from runnel.ops import backend

GOLDEN = Path(__file__).parents[2] / "golden"
IDS = torch.arange(37) * 5 % 64
SMALL_1 = Mamba1Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, dt_rank=3)
SMALL_2 = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)
GROUPED = Mamba2Config(
    vocab_size=64, hidden_size=48, num_layers=2, state_size=8, head_size=16, groups=3
)
CONFIGS = {"mamba1": SMALL_1, "mamba2": SMALL_2, "grouped": GROUPED}


def new_model(config: Mamba1Config | Mamba2Config) -> Mamba1 | Mamba2:
    torch.manual_seed(0)
    model = Mamba1(config) if isinstance(config, Mamba1Config) else Mamba2(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)  # not all ones, so that a mix-up of norms shows
    return model


def tensors_of(config: Mamba1Config | Mamba2Config, prefix: str = "") -> dict[str, Tensor]:
    return {
        prefix + name: tensor.detach().clone()
        for name, tensor in new_model(config).state_dict().items()
    }


def assert_same(backbone: Any, config: Mamba1Config | Mamba2Config) -> None:
    """Assert that a loaded backbone has this config and, bit by bit, the tensors of `new_model`."""
    assert backbone.config == config and not backbone.training
    found = backbone.state_dict()
    expected = tensors_of(config)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("prefix", ["", "backbone.", "model.backbone.", "model."])
@pytest.mark.parametrize(
    "file", ["model.safetensors", "pytorch_model.bin", "consolidated.safetensors"]
)
def test_shapes_alone_tell_the_config(tmp_path: Path, kind: str, prefix: str, file: str) -> None:
    config = CONFIGS[kind]
    declared = None
    if kind == "grouped":  # not told by shapes, unless Mistral's config gives n_groups
        declared = {
            "dim": 48,
            "n_layers": 2,
            "vocab_size": 64,
            "n_groups": 3,
            "model_type": "mamba",
        }
        declared["pad_vocab_size_multiple"] = 1
    found = load_checkpoint(
        write_checkpoint(tmp_path / "m", tensors_of(config, prefix), declared, file),
        dtype="float32",
    )
    assert_same(found.backbone, config)
    assert found.heads == {}
    assert ("Mamba-1" if kind == "mamba1" else "Mamba-2") in found.layout


def test_params_json_is_the_older_name(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path, tensors_of(GROUPED, "model.backbone."), None, "consolidated.safetensors"
    )
    declared = {
        "dim": 48,
        "n_layers": 2,
        "vocab_size": 60,
        "n_groups": 3,
        "pad_vocab_size_multiple": 8,
    }
    (folder / "params.json").write_text(json.dumps(declared))
    assert_same(load_backbone(folder, "float32"), GROUPED)


def test_original_options(tmp_path: Path) -> None:
    sizes = {"state_size": 8, "head_size": 16, "groups": 2, "conv_width": 3, "expand": 3}
    config = Mamba2Config(64, 32, 2, **sizes, conv_bias=False, dt_min=0.01, dt_max=0.2)
    declared = {
        "d_model": 32,
        "n_layer": 2,
        "vocab_size": 57,
        "pad_vocab_size_multiple": 16,
        "d_intermediate": 0,
    }
    options = {
        "layer": "Mamba2",
        "d_state": 8,
        "headdim": 16,
        "ngroups": 2,
        "d_conv": 3,
        "expand": 3,
        "conv_bias": False,
    }
    declared["ssm_cfg"] = options | {
        "dt_limit": [0.01, 0.2],
        "chunk_size": 64,
        "norm_before_gate": False,
        "d_ssm": None,
    }
    assert_same(
        load_backbone(
            write_checkpoint(tmp_path, tensors_of(config, "backbone."), declared), "float32"
        ),
        config,
    )


@pytest.mark.parametrize(("stem", "suffix"), [("model", "safetensors"), ("pytorch_model", "bin")])
def test_shards(tmp_path: Path, stem: str, suffix: str) -> None:
    tensors = tensors_of(SMALL_2, "backbone.")
    weight_map = {}
    for part in range(3):
        chosen = {name: tensors[name] for name in sorted(tensors)[part::3]}
        write_checkpoint(tmp_path, chosen, None, file := f"{stem}-0000{part + 1}-of-00003.{suffix}")
        weight_map |= dict.fromkeys(chosen, file)
    (tmp_path / f"{stem}.{suffix}.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
    assert_same(load_backbone(tmp_path, "float32"), SMALL_2)


HEADS = {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 32}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "MambaModel",
            {
                "hidden_size": 40,
                "state_size": 5,
                "time_step_rank": 7,
                "expand": 3,
                "layer_norm_epsilon": 1e-3,
            },
        ),
        (
            "MambaModel",
            {
                "hidden_size": 32,
                "state_size": 16,
                "use_bias": True,
                "use_conv_bias": False,
                "conv_kernel": 3,
            },
        ),
        (
            "Mamba2Model",
            {
                "hidden_size": 48,
                "num_heads": 6,
                "head_dim": 16,
                "n_groups": 3,
                "state_size": 12,
                "use_bias": True,
            },
        ),
        (
            "Mamba2Model",
            {
                "hidden_size": 32,
                "num_heads": 4,
                "head_dim": 16,
                "n_groups": 4,
                "use_conv_bias": False,
            },
        ),
        (
            "Mamba2Model",
            {
                "hidden_size": 32,
                "num_heads": 4,
                "head_dim": 16,
                "n_groups": 1,
                "time_step_limit": (0.02, 0.5),
            },
        ),
        (
            "xLSTMModel",
            {
                "embedding_dim": 64,
                "hidden_size": 64,
                "num_heads": 2,
                "qk_dim_factor": 1.0,
                "v_dim_factor": 2.0,
            },
        ),
        (
            "xLSTMModel",
            {
                "embedding_dim": 96,
                "hidden_size": 96,
                "ffn_proj_factor": 1.7,
                "gate_soft_cap": 6.0,
                "norm_eps": 1e-3,
                "eps": 1e-2,
            },
        ),
        *((name, {"hidden_size": 64}) for name in ("MambaModel", "MambaForCausalLM")),
        ("Mamba2Model", HEADS | {"n_groups": 1}),
        ("Mamba2ForCausalLM", HEADS | {"n_groups": 4}),
    ],
)
@torch.no_grad()
def test_transformers_agrees(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """A sharded folder as `save_pretrained` of the class writes it, with and without an LM head;
    lengths that are no multiple of any chunk.
    """
    import transformers

    torch.manual_seed(1)
    model_class = getattr(transformers, name)
    config = model_class.config_class(vocab_size=64, num_hidden_layers=2, **options)
    model = model_class(config).eval()
    tolerance = 1e-4 if name == "xLSTMModel" else 2e-5
    for parameter in model.parameters():  # some start as zeros or ones
        parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    without_head = getattr(model, "backbone", model)
    expected = without_head(IDS[None], use_cache=False).last_hidden_state[0]
    backbone = load_backbone(tmp_path, dtype="float32", device="cpu")
    torch.testing.assert_close(backbone(IDS)[0], expected, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("config", [SMALL_1, SMALL_2])
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [(torch.float16, "bfloat16"), (torch.bfloat16, torch.float32), (torch.float32, "float64")],
)
def test_only_matrices_take_the_dtype(
    tmp_path: Path, config: Any, stored: torch.dtype, dtype: str | torch.dtype
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in tensors_of(config).items()}
    backbone = load_backbone(write_checkpoint(tmp_path, tensors, None), dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    for name, parameter in backbone.named_parameters():
        small = torch.float64 if wanted == torch.float64 else torch.float32
        assert parameter.dtype == (
            wanted if name.endswith(("_proj.weight", "embeddings.weight")) else small
        ), name
        assert torch.equal(parameter.detach(), tensors[name].to(parameter.dtype)), name
    assert torch.isfinite(backbone(IDS)[0]).all()


@pytest.mark.parametrize("native", [True, False])
def test_auto_dtype_follows_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(backend, "has_native_bf16", lambda: native)
    backbone = load_backbone(write_checkpoint(tmp_path, tensors_of(SMALL_2), None), device="cpu")
    assert backbone.embeddings.weight.dtype == (torch.bfloat16 if native else torch.float32)
    assert backbone.layers[0].mixer.A_log.dtype == torch.float32


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_wanted_dtype_is_mapped_not_copied(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint in the wanted dtype takes its size once, and that is the file's pages."""
    # all matrices of this model are smaller than 64 KiB
    monkeypatch.setattr("runnel.backbones.checkpoint.tensors._SMALL", 256)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux lists a process's mapped files")
    write_checkpoint(
        tmp_path, {name: t.bfloat16() for name, t in tensors_of(SMALL_2).items()}, None, file
    )
    backbone = load_backbone(tmp_path, "bfloat16")
    address = backbone.layers[0].mixer.in_proj.weight.data_ptr()
    mapped = [line.split() for line in maps.read_text().splitlines() if line.endswith(file)]
    assert any(
        int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16) for span, *_ in mapped
    )


def test_given_tensors_are_used_as_they_are() -> None:
    tensors = tensors_of(SMALL_2)
    backbone = build_backbone("mamba2", SMALL_2.to_dict(), tensors, dtype="float32")
    assert_same(backbone, SMALL_2)
    assert backbone.embeddings.weight.data_ptr() == tensors["embeddings.weight"].data_ptr()


@pytest.mark.parametrize("dtype", ["float16", "bf16", "uint8", torch.float16, torch.int64, None])
def test_unknown_dtype(dtype: Any) -> None:
    with pytest.raises(
        InputError, match=r'dtype must be "auto", \'float32\', \'bfloat16\', \'float64\'.*got'
    ):
        load_backbone(GOLDEN / "mamba2-tiny-hf", dtype=dtype)


@pytest.mark.parametrize(
    ("device", "kind"), [("cuda:99", BackendUnavailable), ("mps", InputError), ("gpu", InputError)]
)
def test_absent_device(device: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"'{device}'"):
        load_backbone(GOLDEN / "mamba2-tiny-hf", device=device)


def test_random_initialization_is_skipped_whatever_the_memory_holds():
    """`trunc_normal_` draws again until no number is outside its limits, which skipping each draw
    would never end.
    """
    memory = torch.full((3,), 1e3)
    with NoRandomNumbers():
        assert torch.nn.init.trunc_normal_(memory, std=0.02, a=-0.04, b=0.04) is memory
    assert memory.eq(1e3).all()
