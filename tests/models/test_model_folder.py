"""Model folders: saved and loaded without loss, in 8 bits with little, and refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError
from runnel.models.base import load_model


def test_one_folder_does_three_jobs_bit_exactly(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tokenizer")
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model", dtype="float32")
    assert np.array_equal(Embedder(model).encode("cat sat"), Embedder(again).encode("cat sat"))
    assert np.array_equal(Reranker(model).score("cat", ["a cat", "dog"]), Reranker(again).score("cat", ["a cat", "dog"]))
    assert SentenceRetriever(model).score("cat", "A cat sat. A dog.") == SentenceRetriever(again).score(
        "cat", "A cat sat. A dog."
    )
    assert again.backbone.fingerprint() == model.backbone.fingerprint()


def test_int8_is_small_and_close(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tokenizer")
    model.save(tmp_path / "model")
    with torch.no_grad():  # wider than the threshold below which matrices are left alone
        assert model.backbone.layers[0].mixer.out_proj.weight.shape[1] >= 64
    model.save(tmp_path / "small", weights="int8")
    assert (tmp_path / "small/model.safetensors").stat().st_size < (tmp_path / "model/model.safetensors").stat().st_size
    a, b = Embedder(model).encode("the cat sat"), Embedder.load(tmp_path / "small", dtype="float32").encode("the cat sat")
    assert float(a @ b) > 0.999
    with pytest.raises(InputError, match='"as_is" or "int8", got \'int4\''):
        model.save(tmp_path / "x", weights="int4")


def test_unknown_models_and_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Embedder.load(tmp_path / "nothing-here")
    model = tiny_model(tmp_path / "tokenizer")
    model.save(tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged or was cut short"):
        load_model(tmp_path / "model")
    weights.write_bytes(whole)
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["runnel"]["version"] = 99
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="model format 99, this runnel reads 1"):
        load_model(tmp_path / "model")
    del config["runnel"]["heads"]["rerank"]
    config["runnel"]["version"] = 1
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="head tensors do not fit"):
        load_model(tmp_path / "model")
    (tmp_path / "model/config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_model(tmp_path / "model")
