"""`describe_model` tells what loading would give, without reading weights, and what of it fits."""

from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model, write_tokenizer
from safetensors.torch import save_file

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.models import describe
from runnel.models.base import load_model
from runnel.models.describe import describe_model
from runnel.planning import ENOUGH

SMALL = Mamba2Config(vocab_size=128, hidden_size=32, num_layers=2, state_size=16, head_size=16)
KEYS = [
    *("model", "path", "architecture", "title", "layout", "layers", "width", "vocabulary", "config"),
    *("parameters", "embedding_parameters", "files", "file_bytes", "stored_bytes", "device", "dtype", "weight_bytes"),
    *("recurrent", "max_tokens", "passage_tokens", "state_bytes_per_sequence", "state"),
    *("flops_per_token", "standard_flops_per_token", "attention"),
    *("tokenizer", "markers", "heads", "templates", "prompts", "problem"),
    *("cores", "threads", "native_bf16", "memory_free_bytes", "fits", "states_that_fit", "step_tokens", "longest_step_tokens"),
    "gpu",
]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any tensor fails."""

    def read(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("runnel.backbones.checkpoint.load.read_tensor", read)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_model(path / "tokenizer").save(path / "tiny")
    return path / "tiny"


def bare(folder: Path) -> Path:
    tensors = {f"backbone.{name}": tensor for name, tensor in Mamba2(SMALL).state_dict().items()}
    save_file(tensors | {"binary_head.weight": torch.ones(1, 32)}, folder / "model.safetensors")
    return folder


def test_the_same_as_loading(folder: Path, unread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = describe_model(str(folder))
    monkeypatch.undo()  # now tensors may be read
    model, weights = load_model(folder), list(load_model(folder).backbone.parameters())
    assert list(facts) == KEYS
    assert (facts["model"], facts["path"], facts["problem"]) == (str(folder), str(folder), None)
    assert (facts["architecture"], facts["layout"], facts["title"]) == ("mamba2", "Mamba-2, runnel layout", "Mamba-2")
    assert (facts["layers"], facts["width"], facts["vocabulary"], facts["embedding_parameters"]) == (2, 32, 128, 128 * 32)
    assert facts["config"] == model.backbone.config.to_dict()
    assert facts["tokenizer"] == {"kind": "library", "file": "tokenizer.json", "tokens": 123}
    assert facts["markers"] == {"begin": {"id": 2, "token": "[CLS]"}, "end": {"id": 3, "token": "[SEP]"}}
    assert facts["prompts"] == model.prompts
    assert facts["weight_bytes"] == sum(p.numel() * p.element_size() for p in weights)
    assert facts["parameters"] == sum(p.numel() for p in weights)
    assert facts["dtype"] == str(model.backbone.embeddings.weight.dtype).removeprefix("torch.")
    assert facts["device"] == model.backbone.device.type
    assert facts["state_bytes_per_sequence"] == model.backbone.state_bytes
    assert facts["heads"] == {
        name: {"kind": type(head).__name__, "parameters": sum(p.numel() for p in head.parameters())}
        | ({"unit": model.unit} if name == "sentences" else {})
        for name, head in model.heads.items()
    }
    assert facts["templates"] == {name: str(template) for name, template in model.templates.items()}
    assert facts["step_tokens"] == model.engine.step_tokens
    assert facts["gpu"] is None or facts["gpu"]["memory_bytes"] > 1e9


def test_the_built_in_model(unread: None) -> None:
    facts = describe_model("pocket-mamba2")
    assert (facts["model"], facts["parameters"], facts["problem"]) == ("pocket-mamba2", 17_385_816, None)
    assert facts["stored_bytes"].keys() == {"int8", "float32"}
    assert set(facts["heads"]) == {"features", "embed", "sentences", "rerank"}


def test_a_bare_checkpoint_with_and_without_a_tokenizer(tmp_path: Path, unread: None) -> None:
    facts = describe_model(str(bare(tmp_path)))
    assert list(facts) == KEYS
    assert "tokenizer" in facts["problem"] and str(tmp_path) in facts["problem"]
    assert facts["tokenizer"] is None and facts["markers"] is None and facts["heads"] == {}
    assert facts["parameters"] == sum(p.numel() for p in Mamba2(SMALL).parameters())
    write_tokenizer(tmp_path)
    facts = describe_model(str(tmp_path))
    assert list(facts) == KEYS and facts["problem"] is None
    assert facts["heads"]["sentences"] == {"kind": "EndScore", "parameters": 32, "unit": "clauses"}
    assert facts["heads"]["embed"] == {"kind": "EndVector", "parameters": 0}
    assert set(facts["templates"]) == {"document", "rerank", "sentences"}


@pytest.mark.parametrize("free", [1, 10**5, 10**6, 10**12])
def test_what_fits(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(describe, "available_memory", lambda: free)
    monkeypatch.setattr("runnel.ops.backend.has_native_bf16", lambda: False)
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


def test_an_encoder(tmp_path: Path, unread: None) -> None:
    from helpers.tiny_transformers import LONGEST, write_transformer

    write_transformer(tmp_path, "bert")
    write_tokenizer(tmp_path)
    facts = describe_model(str(tmp_path))
    assert list(facts) == KEYS and facts["problem"] is None
    assert (facts["recurrent"], facts["max_tokens"], facts["states_that_fit"], facts["state"]) == (False, LONGEST, None, {})
    assert facts["passage_tokens"] is None
    assert facts["heads"] == {"embed": {"kind": "FirstVector", "parameters": 0}} and set(facts["templates"]) == {"document"}
