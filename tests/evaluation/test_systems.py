"""The systems that are compared: same weights, same results."""

import numpy as np
import pytest
import torch

from runnel.backbones.int8 import int8_problem
from runnel.errors import BackendUnavailable, InputError
from runnel.evaluation import shapes, systems
from runnel.evaluation.processes import Spec
from runnel.evaluation.shapes import load_subject
from runnel.evaluation.speed import compare
from runnel.evaluation.systems import EqualBert, LinearLayers, Runnel, TransformersLibrary, check_device

INT8_PROBLEM = int8_problem(torch.device("cpu"))
TEXTS = [torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)) for length in (40, 9)]


@pytest.fixture
def tiny_shapes(monkeypatch):
    """One tiny shape of every architecture."""
    found = {
        "tiny-mamba1": ("mamba1", shapes.Mamba1Config(64, 32, 2)),
        "tiny-mamba2": ("mamba2", shapes.Mamba2Config(64, 32, 2, state_size=16, head_size=16, groups=2)),
        "tiny-rwkv7": ("rwkv7", shapes.Rwkv7Config(64, 64, 2, decay_rank=8, a_rank=8, v_rank=8, gate_rank=8)),
        "tiny-xlstm": ("xlstm", shapes.XlstmConfig(64, 128, 2, num_heads=2, qk_size=64, v_size=128, ffn_size=192)),
    }
    monkeypatch.setattr(shapes, "SHAPES", found)


def same(found, expected, dtype="fp32"):
    checked = compare(Spec("s", "m", dtype), found.numpy(), expected.numpy())
    assert checked.passed, checked


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "rwkv7", "xlstm"])
def test_ours_agrees_with_the_plain_path(tiny_shapes, architecture, dtype):
    system = Runnel(f"tiny-{architecture}", dtype, "cpu")
    assert system.backbone.fast is not None  # what is timed are the kernels
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), dtype)


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "rwkv7", "xlstm"])
def test_the_check_sees_one_wrong_number_in_a_weight(tiny_shapes, architecture):
    system = Runnel(f"tiny-{architecture}", "fp32", "cpu")
    expected = system.plain_hidden(TEXTS)
    weight = next(p for name, p in system.backbone.named_parameters() if name.endswith(("out_proj.weight", "output.weight")))
    with torch.no_grad():
        weight[0, 0] += 0.5
    system.backbone.eval()  # the kernels take the weights anew
    assert not compare(Spec("s", "m", "fp32"), system.hidden(TEXTS).numpy(), expected.numpy()).passed


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "xlstm"])
def test_the_transformers_library_has_the_same_weights(tiny_shapes, architecture):
    pytest.importorskip("transformers", reason="the comparison needs transformers")
    name = f"tiny-{architecture}"
    same(TransformersLibrary(name, "fp32", "cpu").hidden(TEXTS), Runnel(name, "fp32", "cpu").plain_hidden(TEXTS))


def test_the_transformers_library_has_no_rwkv7(tiny_shapes):
    pytest.importorskip("transformers", reason="the comparison needs transformers")
    with pytest.raises(InputError, match="the library has no RWKV-7"):
        TransformersLibrary("tiny-rwkv7", "fp32", "cpu")


def test_bert_of_equal_size():
    pytest.importorskip("transformers", reason="the comparison needs transformers")
    system = EqualBert("pocket-mamba2", "bf16", "cpu")
    weights = sum(p.numel() for name, p in system.model.named_parameters() if "encoder" in name)
    ours = sum(m.weight.numel() for m in load_subject("pocket-mamba2", torch.float32).modules() if isinstance(m, torch.nn.Linear))
    assert 0.75 < weights / ours < 1.33
    assert system.title == "BERT, 3 layers of 384"
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), "bf16")


def test_linear_layers_are_those_of_the_model():
    backbone = load_subject("tiny", torch.bfloat16)
    linear = LinearLayers(backbone)
    c = backbone.config
    assert linear.flops_per_token == 2 * c.num_layers * c.hidden_size * (c.projection_size + c.inner_size)
    assert {weight.dtype for weight in linear.weights} == {torch.bfloat16}
    assert linear.error() < 0.05


@pytest.mark.skipif(INT8_PROBLEM is not None, reason=f"8-bit products cannot run: {INT8_PROBLEM}")
@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "rwkv7"])
def test_eight_bits_agree_with_the_plain_path_and_are_held_against_bf16(tiny_shapes, architecture):
    system = Runnel(f"tiny-{architecture}", "int8", "cpu")
    assert system.backbone.fast is not None
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), "int8")
    linear, whole = (LinearLayers(load_subject(f"tiny-{architecture}", dtype)) for dtype in (torch.int8, torch.bfloat16))
    assert {weight.dtype for weight in linear.weights} == {torch.bfloat16}
    assert linear.flops_per_token == whole.flops_per_token
    assert linear.error() < 0.05


def test_linear_layers_see_every_token_in_segments(monkeypatch):
    linear = LinearLayers(load_subject("tiny", torch.float32))
    seen = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda x, w, out: (seen.append(len(x)), product(x, w, out=out))[1])
    linear.run(torch.zeros(3, 50, dtype=torch.int64), 64)
    assert sum(seen) == 150 * len(linear.weights)
    assert set(seen) == {64, 22}


@pytest.mark.parametrize(("segment", "steps"), [(None, [100]), (32, [32, 32, 32, 4]), (1024, [100])])
def test_segments_of_a_run(monkeypatch, segment, steps):
    system = Runnel("tiny", "fp32", "cpu")
    seen, step = [], system.backbone.step
    monkeypatch.setattr(system.backbone, "step", lambda ids, *rest: (seen.append(len(ids)), step(ids, *rest))[1])
    system.run(torch.zeros(2, 50, dtype=torch.int64), segment)
    assert seen == steps


def test_a_check_that_does_not_fit_memory_says_so(monkeypatch):
    system = Runnel("tiny", "fp32", "cpu")
    monkeypatch.setattr(systems, "available_memory", lambda: 100_000)
    with pytest.raises(MemoryError, match=r"the check needs 0\.0 GiB for the weights in fp64"):
        system.plain_hidden(TEXTS)


def test_budget():
    system = Runnel("tiny", "fp32", "cpu", budget=1 << 20)
    assert system.plan is not None and system.plan.memory_bytes == 1 << 20
    with pytest.raises(InputError, match="too small"):
        Runnel("tiny", "fp32", "cpu", budget=100)


def test_devices(monkeypatch):
    check_device("cpu")
    with pytest.raises(InputError, match="must be"):
        check_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable):
        check_device("cuda")


def test_hidden_vectors_are_of_every_token():
    system = Runnel("tiny", "fp32", "cpu")
    assert np.isfinite(system.hidden(TEXTS).numpy()).all()
    assert system.hidden(TEXTS).shape == (49, 64)
