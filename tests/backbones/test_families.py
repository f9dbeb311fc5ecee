"""One line registers a family: its checkpoints then load, are described, and serve every kind of
model.
"""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tiny import tiny_model
from helpers.toy import Toy, ToyConfig
from safetensors.torch import save_file

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.backbones.checkpoint.load import load_backbone, load_checkpoint
from runnel.backbones.checkpoint.tensors import Recognized, Stored
from runnel.backbones.families import BACKBONES, FAMILIES
from runnel.errors import BackendUnavailable, CheckpointError
from runnel.models.recurrent.describe import describe_checkpoint

CONFIG = ToyConfig(vocab_size=128, hidden_size=32)


def test_a_family_is_known_by_its_own_name() -> None:
    assert all(family.architecture == name for name, family in BACKBONES.items())
    for family in BACKBONES.values():
        assert family.__module__ == f"runnel.backbones.{family.architecture}.model"


def test_a_registered_family_serves_every_kind_of_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path / "source", backbone=Toy(CONFIG))
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="the architecture is 'toy'; expected one of"):
        load_backbone(tmp_path / "model")
    monkeypatch.setitem(BACKBONES, "toy", Toy)  # the line in families.py
    loaded = load_backbone(tmp_path / "model", "float32", "cpu")
    assert isinstance(loaded, Toy) and loaded.config == CONFIG
    with torch.no_grad():
        assert torch.equal(loaded(torch.arange(9))[0], model.backbone(torch.arange(9))[0])
    assert describe_checkpoint(tmp_path / "model").layout == "Toy, runnel layout"
    with pytest.raises(BackendUnavailable, match="Toy has no 8-bit kernels"):
        load_backbone(tmp_path / "model", "int8")
    documents = ["the cat sat on the mat", "a river runs to the sea. the dog sat."]
    assert Embedder.load(tmp_path / "model").encode(documents).shape == (2, 32)
    assert len(Reranker.load(tmp_path / "model").rank("a river", documents)) == 2
    assert len(SentenceRetriever.load(tmp_path / "model").score("a river", documents[1])) == 2


def test_published_checkpoints_are_offered_to_each_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(config: dict[str, Any], tensors: dict[str, Stored], where: str) -> Recognized:
        named = {name.removeprefix("toys."): tensor for name, tensor in tensors.items()}
        return Recognized("toy", "published", ToyConfig(**config), named, {})

    def recognizes(config: dict[str, Any], names: Collection[str]) -> bool:
        return any(name.startswith("toys.") for name in names)

    # beside Toy's module
    monkeypatch.setitem(
        sys.modules, "helpers.formats", SimpleNamespace(read=read, recognizes=recognizes)
    )
    # the line in families.py
    monkeypatch.setattr("runnel.backbones.checkpoint.load.FAMILIES", (*FAMILIES, Toy))
    monkeypatch.setitem(BACKBONES, "toy", Toy)
    toy = Toy(CONFIG)
    save_file(
        {f"toys.{name}": tensor for name, tensor in toy.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    loaded = load_checkpoint(tmp_path, dtype="float32", device="cpu")
    assert (
        loaded.layout == "Toy, published layout"
        and loaded.backbone.fingerprint() == toy.fingerprint()
    )
