"""What is known of a checkpoint without reading its weights: the published sizes, and what loading then really takes."""

import json
import time
from pathlib import Path

import pytest
import torch
from helpers.checkpoint_writing import shapes_of, write_checkpoint, write_sparse
from safetensors.torch import save_file

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import load_backbone, load_checkpoint, meta_backbone
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.errors import CheckpointError
from runnel.models.describe import describe_checkpoint

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.safetensors"))
MIB = 2**20
SMALL = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)


def rwkv7(hidden: int, layers: int, *ranks: int) -> Rwkv7Config:
    named = dict(zip(("decay_rank", "a_rank", "v_rank", "gate_rank"), ranks, strict=True))
    return Rwkv7Config(65536, hidden, layers, ffn_size=4 * hidden, **named)


# As published: config; parameters, with the LM head where it is a matrix of its own; and for one token in one layer millions of
# operations in linear layers, in the convolution and in the recurrence.
PUBLISHED = {
    "mamba-130m": (Mamba1Config(50280, 768, 24), 129_135_360, 7.47, 0.012, 0.221),
    "mamba-370m": (Mamba1Config(50280, 1024, 48), 371_516_416, 13.24, 0.016, 0.295),
    "mamba-790m": (Mamba1Config(50280, 1536, 48), 793_204_224, 29.69, 0.025, 0.442),
    "mamba-1.4b": (Mamba1Config(50280, 2048, 48), 1_372_178_432, 52.69, 0.033, 0.590),
    "mamba2-130m": (Mamba2Config(50288, 768, 24), 128_989_632, 7.51, 0.014, 0.98),
    "mamba2-370m": (Mamba2Config(50288, 1024, 48), 368_346_624, 13.17, 0.018, 1.31),
    "mamba2-780m": (Mamba2Config(50288, 1536, 48), 780_161_280, 29.25, 0.027, 1.97),
    "mamba2-1.3b": (Mamba2Config(50288, 2048, 48), 1_343_757_312, 51.64, 0.035, 2.62),
    "mamba2-2.7b": (Mamba2Config(50288, 2560, 64), 2_702_599_680, 80.36, 0.043, 3.28),
    "codestral-7b": (Mamba2Config(32768, 4096, 64, groups=8), 7_285_403_648, 219.15, 0.082, 5.24),
    "rwkv7-0.1b": (rwkv7(768, 12, 64, 64, 32, 128), 191_034_624, 15.04, 0, 0.44),
    "rwkv7-0.4b": (rwkv7(1024, 24, 64, 64, 32, 128), 450_767_872, 26.35, 0, 0.59),
    "rwkv7-1.5b": (rwkv7(2048, 24, 96, 96, 64, 256), 1_527_404_544, 104.9, 0, 1.18),
    "rwkv7-2.9b": (rwkv7(2560, 32, 96, 96, 64, 320), 2_947_735_040, 163.2, 0, 1.47),
    "rwkv7-7.2b": (rwkv7(4096, 32, 128, 128, 96, 480), 7_199_141_888, 416.3, 0, 2.36),
    "xlstm-7b": (XlstmConfig(50304, 4096, 32, 8, qk_size=2048, v_size=4096, ffn_size=10944), 6_865_424_896, 403.3, 0, 5.24),
}
UNTIED = ("codestral", "rwkv7", "xlstm")
STATE_MIB = {"mamba-130m": 2.67, "mamba2-130m": 18.5, "codestral-7b": 263.5, "rwkv7-7.2b": 33.0, "xlstm-7b": 128.25}  # all fp32


def published(name: str) -> Backbone:
    config = PUBLISHED[name][0]
    kinds = {Mamba1Config: "mamba1", Mamba2Config: "mamba2", Rwkv7Config: "rwkv7", XlstmConfig: "xlstm"}
    return meta_backbone(kinds[type(config)], config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    backbone = published(name)
    config, parameters, linear, conv, recurrence = PUBLISHED[name]
    head = config.vocab_size * config.hidden_size if name.startswith(UNTIED) else 0
    assert sum(p.numel() for p in backbone.parameters()) + head == parameters
    per_token = config.num_layers * (linear + conv + recurrence) * 1e6
    if isinstance(config, Rwkv7Config):  # the first layer lacks what mixes its values
        per_token -= 4 * config.hidden_size * config.v_rank
    assert backbone.flops_per_token == pytest.approx(per_token, rel=1e-3)


@pytest.mark.parametrize("name", STATE_MIB)
def test_published_states(name: str) -> None:
    assert published(name).state_bytes == pytest.approx(STATE_MIB[name] * MIB, rel=0.002)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any tensor fails."""

    def read(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("runnel.backbones.checkpoint.load.read_tensor", read)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_told_is_what_loads(folder: str) -> None:
    facts = describe_checkpoint(GOLDEN / folder)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        found = load_checkpoint(GOLDEN / folder, dtype=dtype)
        assert facts.layout == found.layout and facts.backbone.config == found.backbone.config
        parameters = dict(found.backbone.named_parameters())
        assert facts.parameters == sum(p.numel() for p in parameters.values())
        assert facts.embedding_parameters == parameters["embeddings.weight"].numel()
        assert facts.weight_bytes(dtype) == sum(p.numel() * p.element_size() for p in parameters.values())
    assert facts.files == {path.name: path.stat().st_size for path in (GOLDEN / folder).iterdir() if path.name in facts.files}
    stored = {torch.bfloat16, torch.int64} if folder.startswith("embedding-rwkv") else {torch.float32}
    assert facts.stored.keys() == stored and facts.folder == GOLDEN / folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_read(folder: str, unread: None) -> None:
    assert describe_checkpoint(GOLDEN / folder).backbone.embeddings.weight.is_meta
    with pytest.raises(AssertionError, match="a tensor was read"):
        load_backbone(GOLDEN / folder)


def test_several_dtypes_parts_and_heads(tmp_path: Path, unread: None) -> None:
    tensors = {f"backbone.{name}": tensor.bfloat16() for name, tensor in Mamba2(SMALL).state_dict().items()}
    save_file(tensors, tmp_path / "model-00001-of-00002.safetensors")
    head = {"binary_head.weight": torch.zeros(1, 32), "binary_head.bias": torch.zeros(1)}
    save_file(head, tmp_path / "model-00002-of-00002.safetensors")
    facts = describe_checkpoint(tmp_path)
    assert facts.layout == "Mamba-2, single-pass scanner layout"
    assert facts.heads == {"weight": (1, 32), "bias": (1,)}
    assert list(facts.files) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert facts.stored == {torch.bfloat16: 2 * facts.parameters, torch.float32: 4 * 33}
    assert facts.checkpoint == facts.folder == tmp_path


def test_a_file_is_described_too() -> None:
    (path,) = (GOLDEN / "rwkv7-tiny-official").glob("*.pth")
    facts = describe_checkpoint(str(path))
    assert (facts.checkpoint, facts.folder, list(facts.files)) == (path, path.parent, [path.name])


def test_refusals_are_those_of_the_loader(tmp_path: Path) -> None:
    tensors = {f"backbone.{name}": tensor for name, tensor in Mamba2(SMALL).state_dict().items()}
    del tensors["backbone.layers.1.mixer.norm.weight"]
    original = {"d_model": 32, "n_layer": 2, "vocab_size": 64, "ssm_cfg": {"layer": "Mamba2"}}
    for declared in (original, {"model_type": "rwkv6"}, "{"):
        write_checkpoint(tmp_path, tensors, declared)
        with pytest.raises(CheckpointError) as told:
            describe_checkpoint(tmp_path)
        with pytest.raises(CheckpointError) as loading:
            load_backbone(tmp_path)
        assert str(told.value) == str(loading.value)


def test_seven_billion_parameters_in_two_seconds(tmp_path: Path) -> None:
    """A folder of Codestral's size in three parts, which takes no place on the disk."""
    shapes = shapes_of(PUBLISHED["codestral-7b"][0]) | {"lm_head.weight": (32768, 4096)}
    names = list(shapes)
    for part in range(3):
        chosen = {name: shapes[name] for name in names[part::3]}
        write_sparse(tmp_path / f"model-0000{part + 1}-of-00003.safetensors", chosen, torch.bfloat16)
    native = {"dim": 4096, "n_layers": 64, "vocab_size": 32768, "n_groups": 8, "pad_vocab_size_multiple": 1}
    (tmp_path / "config.json").write_text(json.dumps(native))
    seconds = []
    for _ in range(3):  # the best of them: other work on the machine slows one down
        start = time.process_time()
        facts = describe_checkpoint(tmp_path)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 2
    assert facts.parameters == 7_285_403_648 - 32768 * 4096
    assert sum(facts.files.values()) == pytest.approx(2 * 7_285_403_648, rel=1e-4)
    assert 2 * facts.parameters < facts.weight_bytes(torch.bfloat16) < 2.01 * facts.parameters


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_encoders(tmp_path: Path, unread: None, kind: str) -> None:
    from helpers.tiny_transformers import LONGEST, write_transformer

    model = write_transformer(tmp_path, kind)
    facts = describe_checkpoint(tmp_path)
    assert (facts.backbone.architecture, facts.layout) == ("encoder", "Encoder, transformers layout")
    assert (facts.backbone.max_tokens, facts.backbone.state_bytes) == (LONGEST, 0)
    types = model.embeddings.token_type_embeddings.weight.numel() + 64 * (kind != "bert")  # and two positions
    assert facts.parameters == sum(p.numel() for name, p in model.named_parameters() if "pooler" not in name) - types
