"""What is timed: shapes by name; the model agrees with the plain path, its linear layers are all of
them, and other systems have its weights."""

import pytest
import torch
from helpers.tiny import tiny_model
from helpers.tiny_backbones import needs_int8
from helpers.tiny_training import BACKBONES

from benchmarks import shapes
from benchmarks.measure import compare
from benchmarks.shapes import (
    SHAPES,
    TransformerConfig,
    describe_subject,
    load_subject,
    random_backbone,
)
from benchmarks.subject import LinearLayers, Subject
from benchmarks.systems import EqualBert, TransformersLibrary
from runnel.errors import BackendUnavailable, InputError

TEXTS = [
    torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length))
    for length in (40, 9)
]


def same(found, expected, dtype="fp32"):
    checked = compare("s", "m", dtype, found.numpy(), expected.numpy())
    assert checked.passed, checked


@pytest.mark.parametrize("dtype", ["fp32", "bf16", pytest.param("int8", marks=needs_int8)])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.int8, marks=needs_int8)])
def test_linear_layers_are_those_of_the_model_in_bf16(dtype):
    backbone = load_subject("tiny", dtype)
    linear = LinearLayers(backbone)
    c = backbone.config
    assert linear.flops_per_token == 2 * c.num_layers * c.hidden_size * (
        c.projection_size + c.inner_size
    )
    assert {weight.dtype for weight in linear.weights} == {torch.bfloat16}
    assert linear.error() < 0.05


def test_linear_layers_of_sentence_layers_do_not_count():
    backbone = load_subject("pocket", torch.float32)
    assert (
        backbone.config.sentence_layers
        and LinearLayers(backbone).flops_per_token == backbone.flops_per_token
    )


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "xlstm"])
def test_the_transformers_library_has_the_same_weights(monkeypatch, architecture):
    monkeypatch.setattr(
        shapes, "SHAPES", {name: (name, config) for name, (_, config) in BACKBONES.items()}
    )
    same(
        TransformersLibrary(architecture, "fp32", "cpu").hidden(TEXTS),
        Subject(architecture, "fp32", "cpu").plain_hidden(TEXTS),
    )
    with pytest.raises(InputError, match="the library has no RWKV-7"):
        TransformersLibrary("rwkv7", "fp32", "cpu")


def test_bert_of_equal_size():
    system = EqualBert("pocket-mamba2", "bf16", "cpu")
    weights = sum(p.numel() for name, p in system.model.named_parameters() if "encoder" in name)
    ours = sum(
        m.weight.numel()
        for m in load_subject("pocket-mamba2", torch.float32).modules()
        if isinstance(m, torch.nn.Linear)
    )
    assert 0.75 < weights / ours < 1.33
    assert system.title == "BERT, 3 layers of 384"
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), "bf16")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as published, without an LM head
        ("mamba-130m", 129_135_360),
        ("llama-3.1-70b", 70_553_706_496 - 128256 * 8192),
        ("pythia-160m", 162_322_944 - 50304 * 768),
        ("opt-350m", 331_196_416),
        ("bert-base", 109_482_240 - 768 * 769),  # and without the pooler
        ("bart-base", 139_420_416),
        ("t5-base", 109_628_544),
        ("rwkv7-0.1b", 191_034_624 - 65536 * 768),
        ("xlstm-7b", 6_865_424_896 - 50304 * 4096),
    ],
)
def test_published_sizes(name, parameters):
    found = describe_subject(name)
    assert sum(p.numel() for p in found.parameters()) == parameters
    assert next(found.parameters()).device.type == "meta"


def test_every_shape_can_be_built():
    assert all(describe_subject(name).flops_per_token > 0 for name in SHAPES)


def test_a_transformer_keeps_its_positions_in_fp32_and_agrees_with_fp64():
    ids = torch.arange(40)
    found = load_subject("tiny-bert", torch.bfloat16)
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16}
    expected = load_subject("tiny-bert", torch.float64)(ids)[0]
    assert torch.cosine_similarity(found(ids)[0].double(), expected).min() > 0.999
    sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 2)
    llama = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    rotary = random_backbone("library", TransformerConfig(llama | sizes), torch.bfloat16)
    assert {b.dtype for b in rotary.buffers() if b.is_floating_point()} == {torch.float32}
    with pytest.raises(BackendUnavailable, match="has no 8-bit kernels"):
        load_subject("tiny-bert", torch.int8)


def test_a_model_folder_and_unknown_names(tmp_path):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "model")
    backbone = load_subject(str(tmp_path / "model"), torch.float64)
    assert (backbone.hidden_size, backbone.num_layers, backbone.fast) == (32, 2, None)
    assert describe_subject(str(tmp_path / "model")).hidden_size == 32
    with pytest.raises(InputError, match="'mamba2_130m'; the nearest shapes are mamba2-130m"):
        describe_subject("mamba2_130m")


@pytest.mark.parametrize("architecture", BACKBONES)
def test_every_weight_has_an_effect(architecture):
    """Else a check of the results would not see a mistake in what the weight is used for."""
    backbone = random_backbone(architecture, BACKBONES[architecture][1], torch.float64).train()
    hidden, _ = backbone(torch.randint(0, 64, (40,), generator=torch.Generator().manual_seed(0)))
    (hidden * torch.linspace(-1, 1, hidden.shape[1])).sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 1e-9, name
