"""LoRA adapters: seen by every path, merged without a trace, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder
from helpers.tiny_training import BACKBONES, DOCUMENTS, QUERY, training_model
from torch import Tensor, nn

from runnel import Embedder
from runnel.backbones.base import Backbone
from runnel.models.base import Model
from runnel.training.adapters import FILE, add_lora, load_adapter, merge, save_adapter
from runnel.training.forward import (
    finished,
    make_item,
    make_pair,
    pair_scores,
    render_document,
    sentence_scores,
    trainable,
    vectors,
)
from runnel.training.segments import Long


def outputs(model: Model, long: Long | None = None) -> Tensor:
    """All numbers of all jobs."""
    long = long or Long()
    found = (
        vectors(model, [render_document(model, text) for text in DOCUMENTS], long),
        pair_scores(model, [make_pair(model, QUERY, text) for text in DOCUMENTS], long),
        *sentence_scores(model, [make_item(model, QUERY, DOCUMENTS[0])], long),
    )
    return torch.cat([tensor.reshape(-1) for tensor in found])


def lora(backbone: Backbone) -> dict[str, nn.Parameter]:
    return {name: p for name, p in backbone.named_parameters() if "lora_" in name}


def train_a_little(model: Model) -> None:
    """Adapters as training leaves them: none of their matrices zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lora(model.backbone).values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


def adapted(folder: Path, architecture: str, *, four_bit: bool = False) -> Model:
    model = training_model(folder, architecture)
    add_lora(model, r=4, alpha=8, four_bit=four_bit)
    trainable(model)
    return model


@pytest.mark.parametrize("architecture", BACKBONES)
def test_adapters_act_and_learn(tmp_path: Path, architecture: str) -> None:
    """Each one alone changes the outputs, and all get gradients; the weights they stand on get none. Kernels stay out."""
    model = training_model(tmp_path, architecture)
    before = outputs(model)
    linear = [name for name, module in model.backbone.named_modules() if isinstance(module, nn.Linear)]
    add_lora(model, r=4, alpha=8)
    assert model.backbone.fast is None
    model.backbone.eval()
    model.backbone.prepare()
    assert model.backbone.fast is None
    np.testing.assert_allclose(outputs(model).detach(), before, atol=1e-5)
    trainable(model)
    train_a_little(model)
    seen = outputs(model)
    (seen * torch.linspace(-1, 1, len(seen))).sum().backward()
    for name, parameter in model.backbone.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
        if parameter.requires_grad:
            assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert all(parameter.requires_grad for parameter in model.heads.parameters())
    layers = [name for name, module in model.backbone.named_modules() if hasattr(module, "base_layer")]
    assert layers == linear and len(lora(model.backbone)) == 2 * len(layers)
    with torch.no_grad():
        for name in layers:
            up = model.backbone.get_submodule(name).lora_B["default"].weight
            kept = up.clone()
            up.zero_()
            assert not torch.allclose(outputs(model), seen, atol=1e-6), f"{name}: its adapter is bypassed"
            up.copy_(kept)


@pytest.mark.parametrize("four_bit", [False, True], ids=["plain", "four-bit"])
@pytest.mark.parametrize("architecture", BACKBONES)
def test_merging(tmp_path: Path, architecture: str, four_bit: bool) -> None:
    """The merged model is a plain one that runs on the kernels and gives what the adapted one gave."""
    model = adapted(tmp_path, architecture, four_bit=four_bit)
    names = set(training_model(tmp_path, architecture).backbone.state_dict())
    train_a_little(model)
    wanted = outputs(model).detach()
    merge(model)
    assert model.backbone.fast is None  # still training
    np.testing.assert_allclose(outputs(model).detach(), wanted, atol=1e-5, rtol=1e-5)
    finished(model)
    assert (model.backbone.fast is not None) == model.backbone.has_kernels
    assert set(model.backbone.state_dict()) == names
    found = Embedder(model).encode(DOCUMENTS)
    np.testing.assert_allclose(found.reshape(-1), wanted[: found.size], atol=1e-5)
    model.save(tmp_path / "merged")
    again = Embedder.load(tmp_path / "merged", dtype="float32").encode(DOCUMENTS)
    np.testing.assert_allclose(again, found, atol=1e-6)


@pytest.mark.parametrize("four_bit", [False, True], ids=["plain", "four-bit"])
@pytest.mark.parametrize("architecture", BACKBONES)
def test_saving(tmp_path: Path, architecture: str, four_bit: bool) -> None:
    model = adapted(tmp_path / "model", architecture, four_bit=four_bit)
    train_a_little(model)
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter += 0.1
    save_adapter(model, tmp_path / "adapter")
    assert [path.name for path in (tmp_path / "adapter").iterdir()] == [FILE]
    other = training_model(tmp_path / "model", architecture)
    load_adapter(other, tmp_path / "adapter")
    with torch.no_grad():
        for parameter in lora(other.backbone).values():
            parameter.zero_()
    load_adapter(other, tmp_path / "adapter")  # into those that are there
    other.backbone.train()
    np.testing.assert_allclose(outputs(other).detach(), outputs(model).detach(), atol=1e-6)
    finished(other)
    finished(model)
    np.testing.assert_allclose(Embedder(other).encode(DOCUMENTS), Embedder(model).encode(DOCUMENTS), atol=1e-6)


@pytest.mark.parametrize(("sentences", "judge"), [(0, 0), (1, 0), (0, 1), (1, 2)])
def test_an_encoders_layers_for_texts_alone_get_adapters(tmp_path: Path, sentences: int, judge: int) -> None:
    model = tiny_encoder(tmp_path, sentence_layers=sentences, judge_layers=judge)
    add_lora(model, r=2, alpha=2)
    assert {name.partition(".")[0] for name in lora(model.backbone)} == {"layers"}
