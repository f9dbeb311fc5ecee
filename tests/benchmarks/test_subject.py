"""What is timed: the model agrees with the plain path, its linear layers are all of them, and other systems have its weights."""

import pytest
import torch
from helpers.tiny_training import BACKBONES

from benchmarks import shapes
from benchmarks.measure import compare
from benchmarks.shapes import load_subject
from benchmarks.subject import LinearLayers, Subject
from benchmarks.systems import EqualBert, TransformersLibrary
from runnel.backbones.int8 import int8_problem
from runnel.errors import InputError

INT8_PROBLEM = int8_problem(torch.device("cpu"))
NEEDS_INT8 = pytest.mark.skipif(INT8_PROBLEM is not None, reason=f"8-bit products cannot run: {INT8_PROBLEM}")
TEXTS = [torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)) for length in (40, 9)]


def same(found, expected, dtype="fp32"):
    checked = compare("s", "m", dtype, found.numpy(), expected.numpy())
    assert checked.passed, checked


@pytest.mark.parametrize("dtype", ["fp32", "bf16", pytest.param("int8", marks=NEEDS_INT8)])
def test_ours_agrees_with_the_plain_path_unless_one_weight_is_wrong(dtype):
    system = Subject("tiny", dtype, "cpu")
    assert system.backbone.fast is not None
    expected = system.plain_hidden(TEXTS)
    same(system.hidden(TEXTS), expected, dtype)
    if dtype == "fp32":
        with torch.no_grad():
            system.backbone.get_parameter("layers.1.mixer.out_proj.weight")[0, 0] += 0.5
        system.backbone.eval()  # the kernels read the weights again
        assert not compare("s", "m", "fp32", system.hidden(TEXTS).numpy(), expected.numpy()).passed


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.int8, marks=NEEDS_INT8)])
def test_linear_layers_are_those_of_the_model_in_bf16(dtype):
    backbone = load_subject("tiny", dtype)
    linear = LinearLayers(backbone)
    c = backbone.config
    assert linear.flops_per_token == 2 * c.num_layers * c.hidden_size * (c.projection_size + c.inner_size)
    assert {weight.dtype for weight in linear.weights} == {torch.bfloat16}
    assert linear.error() < 0.05


def test_linear_layers_of_sentence_layers_do_not_count():
    backbone = load_subject("pocket", torch.float32)
    assert backbone.config.sentence_layers and LinearLayers(backbone).flops_per_token == backbone.flops_per_token


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "xlstm"])
def test_the_transformers_library_has_the_same_weights(monkeypatch, architecture):
    monkeypatch.setattr(shapes, "SHAPES", {name: (name, config) for name, (_, config) in BACKBONES.items()})
    same(TransformersLibrary(architecture, "fp32", "cpu").hidden(TEXTS), Subject(architecture, "fp32", "cpu").plain_hidden(TEXTS))
    with pytest.raises(InputError, match="the library has no RWKV-7"):
        TransformersLibrary("rwkv7", "fp32", "cpu")


def test_bert_of_equal_size():
    system = EqualBert("pocket-mamba2", "bf16", "cpu")
    weights = sum(p.numel() for name, p in system.model.named_parameters() if "encoder" in name)
    ours = sum(m.weight.numel() for m in load_subject("pocket-mamba2", torch.float32).modules() if isinstance(m, torch.nn.Linear))
    assert 0.75 < weights / ours < 1.33
    assert system.title == "BERT, 3 layers of 384"
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), "bf16")
