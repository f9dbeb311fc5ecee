"""What is known of a checkpoint or a model without reading its weights: published sizes, and what
loading then really gives.
"""

from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model, write_tokenizer
from helpers.tiny_transformers import LONGEST, write_transformer
from safetensors.torch import save_file

from runnel.backbones.checkpoint.load import load_backbone, load_checkpoint, meta_backbone
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.models import describe
from runnel.models.describe import describe_model
from runnel.models.folder import load_model
from runnel.models.recurrent.describe import describe_checkpoint
from runnel.ops import backend
from runnel.planning import ENOUGH

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.safetensors"))


def rwkv7(hidden: int, layers: int, *ranks: int) -> Rwkv7Config:
    named = dict(zip(("decay_rank", "a_rank", "v_rank", "gate_rank"), ranks, strict=True))
    return Rwkv7Config(65536, hidden, layers, ffn_size=4 * hidden, **named)


# As published: config; parameters, with the LM head where it is a matrix of its own; and for one
# token in one layer millions of operations in linear layers, in the convolution and in the
# recurrence.
PUBLISHED = {
    "mamba-130m": (Mamba1Config(50280, 768, 24), 129_135_360, 7.47, 0.012, 0.221),
    "mamba-1.4b": (Mamba1Config(50280, 2048, 48), 1_372_178_432, 52.69, 0.033, 0.590),
    "mamba2-130m": (Mamba2Config(50288, 768, 24), 128_989_632, 7.51, 0.014, 0.98),
    "mamba2-2.7b": (Mamba2Config(50288, 2560, 64), 2_702_599_680, 80.36, 0.043, 3.28),
    "codestral-7b": (Mamba2Config(32768, 4096, 64, groups=8), 7_285_403_648, 219.15, 0.082, 5.24),
    "rwkv7-0.1b": (rwkv7(768, 12, 64, 64, 32, 128), 191_034_624, 15.04, 0, 0.44),
    "rwkv7-1.5b": (rwkv7(2048, 24, 96, 96, 64, 256), 1_527_404_544, 104.9, 0, 1.18),
    "rwkv7-7.2b": (rwkv7(4096, 32, 128, 128, 96, 480), 7_199_141_888, 416.3, 0, 2.36),
    "xlstm-7b": (
        XlstmConfig(50304, 4096, 32, 8, qk_size=2048, v_size=4096, ffn_size=10944),
        6_865_424_896,
        403.3,
        0,
        5.24,
    ),
}
UNTIED = ("codestral", "rwkv7", "xlstm")
# all fp32
STATE_MIB = {
    "mamba-130m": 2.67,
    "mamba2-130m": 18.5,
    "codestral-7b": 263.5,
    "rwkv7-7.2b": 33.0,
    "xlstm-7b": 128.25,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    config, parameters, linear, conv, recurrence = PUBLISHED[name]
    kinds = {
        Mamba1Config: "mamba1",
        Mamba2Config: "mamba2",
        Rwkv7Config: "rwkv7",
        XlstmConfig: "xlstm",
    }
    backbone = meta_backbone(kinds[type(config)], config)
    head = config.vocab_size * config.hidden_size if name.startswith(UNTIED) else 0
    assert sum(p.numel() for p in backbone.parameters()) + head == parameters
    per_token = config.num_layers * (linear + conv + recurrence) * 1e6
    if isinstance(config, Rwkv7Config):  # the first layer lacks what mixes its values
        per_token -= 4 * config.hidden_size * config.v_rank
    assert backbone.flops_per_token == pytest.approx(per_token, rel=1e-3)
    assert name not in STATE_MIB or backbone.state_bytes == pytest.approx(
        STATE_MIB[name] * 2**20, rel=0.002
    )


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("runnel.backbones.checkpoint.load.read_tensor", read)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_told_without_reading_is_what_loads(
    folder: str, unread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = describe_checkpoint(GOLDEN / folder)
    assert facts.backbone.embeddings.weight.is_meta
    with pytest.raises(AssertionError, match="a tensor was read"):
        load_backbone(GOLDEN / folder)
    monkeypatch.undo()
    if folder == "rwkv7-tiny-official":
        (path,) = (GOLDEN / folder).glob("*.pth")
        one = describe_checkpoint(str(path))
        assert (one.checkpoint, one.folder, list(one.files)) == (path, path.parent, [path.name])
    for name in ("float32", "bfloat16", "float64"):
        found = load_checkpoint(GOLDEN / folder, dtype=getattr(torch, name))
        assert facts.layout == found.layout and facts.backbone.config == found.backbone.config
        parameters = dict(found.backbone.named_parameters())
        assert facts.parameters == sum(p.numel() for p in parameters.values())
        assert facts.embedding_parameters == parameters["embeddings.weight"].numel()
        assert facts.weight_bytes(name) == sum(
            p.numel() * p.element_size() for p in parameters.values()
        )
    assert facts.files == {
        path.name: path.stat().st_size
        for path in (GOLDEN / folder).iterdir()
        if path.name in facts.files
    }
    stored = {"bfloat16", "int64"} if folder.startswith("embedding-rwkv") else {"float32"}
    assert facts.stored.keys() == stored and facts.folder == GOLDEN / folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_model(path / "tokenizer").save(path / "tiny")
    return path / "tiny"


def test_the_same_as_loading(folder: Path, unread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = describe_model(str(folder))
    monkeypatch.undo()  # now tensors may be read
    model = load_model(folder)
    weights = list(model.backbone.parameters())
    backbone = model.backbone
    heads = {
        name: {"kind": type(head).__name__, "parameters": sum(p.numel() for p in head.parameters())}
        | ({"unit": model.unit} if name == "sentences" else {})
        for name, head in model.heads.items()
    }
    expected = {
        "model": str(folder),
        "path": str(folder),
        "problem": None,
        "architecture": "mamba2",
        "layout": "Mamba-2, runnel layout",
        "title": "Mamba-2",
        "layers": 2,
        "width": 32,
        "vocabulary": 128,
        "embedding_parameters": 128 * 32,
        "config": backbone.config.to_dict(),
        "tokenizer": {"kind": "library", "file": "tokenizer.json", "tokens": 123},
        "markers": {"begin": {"id": 2, "token": "[CLS]"}, "end": {"id": 3, "token": "[SEP]"}},
        "prompts": model.prompts,
        "weight_bytes": sum(p.numel() * p.element_size() for p in weights),
        "parameters": sum(p.numel() for p in weights),
        "dtype": str(weights[0].dtype).removeprefix("torch."),
        "device": backbone.device.type,
        "state_bytes_per_sequence": backbone.state_bytes,
        "heads": heads,
        "templates": {name: str(template) for name, template in model.templates.items()},
        "step_tokens": model.engine.step_tokens,
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["gpu"] is None or facts["gpu"]["memory_bytes"] > 1e9


def test_a_bare_checkpoint_in_two_parts_with_and_without_a_tokenizer(
    tmp_path: Path, folder: Path, unread: None
) -> None:
    backbone = Mamba2(
        Mamba2Config(vocab_size=128, hidden_size=32, num_layers=2, state_size=16, head_size=16)
    )
    parts = [tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    save_file(
        {f"backbone.{name}": tensor.bfloat16() for name, tensor in backbone.state_dict().items()},
        parts[0],
    )
    save_file(
        {"binary_head.weight": torch.ones(1, 32), "binary_head.bias": torch.zeros(1)}, parts[1]
    )
    known = describe_checkpoint(tmp_path)
    facts = describe_model(str(tmp_path))
    assert known.layout == "Mamba-2, single-pass scanner layout" and known.heads == {
        "weight": (1, 32),
        "bias": (1,),
    }
    assert (
        list(known.files) == [path.name for path in parts]
        and known.checkpoint == known.folder == tmp_path
    )
    assert known.stored == {"bfloat16": 2 * known.parameters, "float32": 4 * 33}
    assert "tokenizer" in facts["problem"] and str(tmp_path) in facts["problem"]
    assert facts["tokenizer"] is None and facts["markers"] is None and facts["heads"] == {}
    write_tokenizer(tmp_path)
    again = describe_model(str(tmp_path))
    assert (
        list(facts) == list(again) == list(describe_model(str(folder))) and again["problem"] is None
    )
    assert again["heads"]["sentences"] == {"kind": "EndScore", "parameters": 33, "unit": "clauses"}
    assert again["heads"]["embed"] == {"kind": "EndVector", "parameters": 0}
    assert set(again["templates"]) == {"document", "rerank", "sentences"}


@pytest.mark.parametrize("free", [1, 10**5, 10**6, 10**12])
def test_what_fits(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(describe, "available_memory", lambda: free)
    for module in (describe, backend):
        monkeypatch.setattr(module, "has_native_bf16", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = describe_model(str(folder))
    assert facts["dtype"] == "float32" and facts["weight_bytes"] == 4 * facts["parameters"]
    room = free - facts["weight_bytes"]
    state = facts["state_bytes_per_sequence"]
    backbone = load_model(folder).backbone
    steps = min(max(0, (room - 4 * state) // backbone.step_bytes_per_token), ENOUGH)
    assert facts["memory_free_bytes"] == free
    assert facts["states_that_fit"] == max(0, room) // state
    assert facts["longest_step_tokens"] == (steps if steps < 64 else steps - steps % 64)
    assert facts["fits"]["float32"] == (steps > 0)
    assert facts["fits"]["bfloat16"] == (free >= 10**5)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_encoders(tmp_path: Path, unread: None, kind: str) -> None:
    model = write_transformer(tmp_path, kind)
    write_tokenizer(tmp_path)
    facts = describe_model(str(tmp_path))
    assert facts["problem"] is None
    assert (facts["architecture"], facts["layout"], facts["recurrent"]) == (
        "encoder",
        "Encoder, transformers layout",
        False,
    )
    assert (facts["max_tokens"], facts["passage_tokens"], facts["states_that_fit"]) == (
        LONGEST,
        None,
        None,
    )
    assert (facts["state"], facts["state_bytes_per_sequence"]) == ({}, 0)
    # and two positions
    types = model.embeddings.token_type_embeddings.weight.numel() + 64 * (kind != "bert")
    assert (
        facts["parameters"]
        == sum(p.numel() for name, p in model.named_parameters() if "pooler" not in name) - types
    )
    assert facts["heads"] == {"embed": {"kind": "FirstVector", "parameters": 0}} and set(
        facts["templates"]
    ) == {"document"}
