"""LoRA adapters: seen by every path, merged without a trace, saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder
from helpers.tiny_training import (
    BACKBONES,
    DOCUMENTS,
    QUERY,
    make_item,
    render_document,
    training_model,
)
from torch import Tensor, nn

from runnel import Embedder
from runnel.backbones.base import Backbone
from runnel.backbones.int8 import int8_problem
from runnel.errors import CheckpointError, InputError
from runnel.lab.training.forward import freeze, sentence_scores, unfreeze
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.recurrent.adapters import FILE, add_lora, load_adapter, merge, save_adapter
from runnel.models.recurrent.graph import Long, make_pair, pair_scores, vectors


def outputs(model: Model, long: Long | None = None) -> Tensor:
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
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lora(model.backbone).values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


def adapted(folder: Path, architecture: str, *, four_bit: bool = False) -> Model:
    model = training_model(folder, architecture)
    add_lora(model, r=4, alpha=8, four_bit=four_bit)
    unfreeze(model)
    return model


@pytest.mark.parametrize("architecture", BACKBONES)
def test_adapters_act_and_learn(tmp_path: Path, architecture: str) -> None:
    """Each one alone changes the outputs, and all get gradients; the weights they stand on get
    none. Kernels stay out.
    """
    model = training_model(tmp_path, architecture)
    before = outputs(model)
    linear = [
        name for name, module in model.backbone.named_modules() if isinstance(module, nn.Linear)
    ]
    add_lora(model, r=4, alpha=8)
    assert model.backbone.fast is None
    model.backbone.eval()
    model.backbone.prepare()
    assert model.backbone.fast is None
    np.testing.assert_allclose(outputs(model).detach(), before, atol=1e-5)
    unfreeze(model)
    train_a_little(model)
    seen = outputs(model)
    (seen * torch.linspace(-1, 1, len(seen))).sum().backward()
    for name, parameter in model.backbone.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
        if parameter.requires_grad:
            assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert all(parameter.requires_grad for parameter in model.heads.parameters())
    layers = [
        name for name, module in model.backbone.named_modules() if hasattr(module, "base_layer")
    ]
    ids = [np.arange(5, 14)]
    assert layers == linear and len(lora(model.backbone)) == 2 * len(layers)
    with torch.no_grad():
        vector = vectors(model, ids, Long())
        for name in layers:
            up = model.backbone.get_submodule(name).lora_B["default"].weight
            kept = up.clone()
            up.zero_()
            assert not torch.allclose(vectors(model, ids, Long()), vector, atol=1e-6), (
                f"{name}: its adapter is bypassed"
            )
            up.copy_(kept)


@pytest.mark.parametrize("four_bit", [False, True], ids=["plain", "four-bit"])
@pytest.mark.parametrize("architecture", BACKBONES)
def test_saving_and_merging(tmp_path: Path, architecture: str, four_bit: bool) -> None:
    model = adapted(tmp_path / "model", architecture, four_bit=four_bit)
    other = training_model(tmp_path / "model", architecture)
    names = set(other.backbone.state_dict())
    train_a_little(model)
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter += 0.1
    save_adapter(model, tmp_path / "adapter")
    assert [path.name for path in (tmp_path / "adapter").iterdir()] == [FILE]
    load_adapter(other, tmp_path / "adapter")
    with torch.no_grad():
        for parameter in lora(other.backbone).values():
            parameter.zero_()
    load_adapter(other, tmp_path / "adapter")  # into those that are there
    other.backbone.train()
    wanted = outputs(model).detach()
    np.testing.assert_allclose(outputs(other).detach(), wanted, atol=1e-6)
    merge(model)
    assert model.backbone.fast is None  # still training
    np.testing.assert_allclose(outputs(model).detach(), wanted, atol=1e-5, rtol=1e-5)
    for one in (model, other):
        freeze(one)
        found = Embedder(one).encode(DOCUMENTS)
        np.testing.assert_allclose(found.reshape(-1), wanted[: found.size], atol=1e-5)
    assert (model.backbone.fast is not None) == model.backbone.has_kernels
    assert set(model.backbone.state_dict()) == names
    model.save(tmp_path / "merged")
    again = Embedder.load(tmp_path / "merged", dtype="float32").encode(DOCUMENTS)
    np.testing.assert_allclose(again, Embedder(model).encode(DOCUMENTS), atol=1e-6)


@pytest.mark.parametrize(
    "architecture", ["mamba1", "mamba2", "rwkv7", pytest.param("xlstm", marks=pytest.mark.slow)]
)
def test_four_bits(tmp_path: Path, architecture: str) -> None:
    plain = outputs(training_model(tmp_path, architecture))
    model = adapted(tmp_path, architecture, four_bit=True)
    layers = {
        name: m.base_layer for name, m in model.backbone.named_modules() if hasattr(m, "base_layer")
    }
    small = {name for name, layer in layers.items() if layer.weight.dtype == torch.uint8}
    wide = {"mamba1": ("x_proj", "dt_proj"), "rwkv7": ("_down", "_up")}.get(architecture, ())
    assert small == {n for n in layers if not n.endswith(wide)}
    assert 1e-4 < (outputs(model) - plain).abs().max() < 5
    train_a_little(model)
    gradients = []
    for long in (Long(), Long(segment_tokens=8, recompute=True)):
        model.backbone.zero_grad()
        outputs(model, long).sum().backward()
        gradients.append([p.grad.clone() for p in lora(model.backbone).values()])
    assert all(bool(gradient.any()) for gradient in gradients[0])
    for whole, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, whole, atol=1e-4, rtol=1e-3)


def test_bad_input(tmp_path: Path) -> None:
    model = training_model(tmp_path, "mamba2")
    for call in (lambda: merge(model), lambda: save_adapter(model, tmp_path)):
        with pytest.raises(InputError, match="no adapters"):
            call()
    if int8_problem(torch.device("cpu")) is None:
        with pytest.raises(InputError, match="8-bit"):
            add_lora(load_model("pocket-mamba2", dtype="int8"), 4, 8)
    add_lora(model, 4, 8)
    with pytest.raises(InputError, match="already"):
        add_lora(model, 4, 8)
    with pytest.raises(InputError, match="merge"):
        model.save(tmp_path / "adapted")
    assert not (tmp_path / "adapted").exists()
    save_adapter(model, tmp_path)
    other = training_model(tmp_path, "mamba2")
    add_lora(other, 4, 9)
    for wrong, message in (
        (training_model(tmp_path, "rwkv7"), "a mamba2 of 2 layers, 32 wide.*; tiny is a rwkv7"),
        (other, r"'alpha': 8.*'alpha': 9"),
        (training_model(tmp_path, "mamba2", papers_heads=True), "heads"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_adapter(wrong, tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        load_adapter(training_model(tmp_path, "mamba2"), tmp_path / "nowhere")
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=FILE):
        load_adapter(training_model(tmp_path, "mamba2"), tmp_path)


def test_an_encoders_layers_for_texts_alone_get_adapters(tmp_path: Path) -> None:
    for sentences, judge in ((0, 0), (1, 0), (0, 1), (1, 2)):
        model = tiny_encoder(tmp_path, sentence_layers=sentences, judge_layers=judge)
        add_lora(model, r=2, alpha=2)
        assert {name.partition(".")[0] for name in lora(model.backbone)} == {"layers"}
