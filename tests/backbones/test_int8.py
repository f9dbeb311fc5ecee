"""8-bit linear layers: their weights, and where they are refused. How they run is in tests/contracts/test_backbones.py."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import numba
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel import Embedder
from runnel.backbones import checkpoint, int8
from runnel.backbones.checkpoint import build_backbone, check_int8, load_backbone
from runnel.backbones.int8 import Int8Linear, int8_problem, quantize
from runnel.backbones.mamba2 import Mamba2, Mamba2Config
from runnel.backbones.transformer import Transformer
from runnel.errors import BackendUnavailable, InputError, NumericalError

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = Mamba2Config(40, 32, 2, state_size=16, head_size=16)
IDS = torch.arange(30) % 40
PROBLEM = int8_problem(torch.device("cpu"))
needs_kernels = pytest.mark.skipif(PROBLEM is not None, reason=f"8-bit products cannot run here: {PROBLEM}")


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return Mamba2(CONFIG).state_dict()


def test_weights_in_8_bits() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3e-3, 1e-3, -1e-3]])
    q, scale = quantize(weight)
    assert q.tolist() == [[64, -127, 32], [0, 0, 0], [127, 42, -42]]
    assert ((q * scale[:, None] - weight).abs() <= scale[:, None] / 2).all()


@needs_kernels
@pytest.mark.parametrize("native", [True, False])
def test_only_linear_layers_take_8_bits(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(checkpoint, "has_native_bf16", lambda: native)
    tensors = weights()
    model = build_backbone("mamba2", CONFIG.to_dict(), tensors, "int8", "cpu")
    assert model.fast is not None
    for name, tensor in model.state_dict().items():
        if name.endswith("_proj.weight"):
            q, scale = quantize(tensors[name])
            assert torch.equal(tensor, q)
            assert torch.equal(model.state_dict()[name + "_scale"], scale)
        elif not name.endswith("_scale"):
            assert tensor.dtype == (torch.bfloat16 if native and name == "embeddings.weight" else torch.float32)
    with torch.no_grad():
        assert torch.isfinite(model(IDS)[0]).all()


@needs_kernels
def test_a_saved_state_does_not_fit_another_precision() -> None:
    prints = {build_backbone("mamba2", CONFIG.to_dict(), weights(), dtype).fingerprint() for dtype in ("int8", "bfloat16")}
    assert len(prints) == 2


@needs_kernels
def test_no_gradients_in_8_bits_but_through_them() -> None:
    model = build_backbone("mamba2", CONFIG.to_dict(), weights(), "int8", "cpu")
    hidden, _ = model(IDS)  # the embeddings still ask for them, so that this is plain torch
    hidden.square().sum().backward()
    assert model.get_parameter("layers.0.mixer.A_log").grad is not None
    layer = model.get_submodule("layers.0.mixer.in_proj")
    assert isinstance(layer, Int8Linear)
    assert layer.weight.grad is None


def test_a_layer_rounds_its_weight_alone() -> None:
    layer = Int8Linear(5, 3, bias=True)
    weight = torch.randn(3, 5)
    layer.weight.data, layer.weight_scale = quantize(weight)
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = x @ (layer.weight.double() * layer.weight_scale.double()[:, None]).T + layer.bias.double()
    torch.testing.assert_close(layer(x), expected)


@needs_kernels
def test_without_the_kernels_plain_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_backbone("mamba2", CONFIG.to_dict(), weights(), "int8", "cpu")
    monkeypatch.setattr("runnel.backbones.mamba2.int8_problem", lambda device: "of a test")
    model.prepare()
    assert model.fast is None


@needs_kernels
def test_pocket_on_real_text() -> None:
    """Python's own reference: the vectors of its chapters, and of its words, point where fp32's do."""
    exact, small = (Embedder.load("pocket", dtype=dtype, device="cpu") for dtype in ("float32", "int8"))
    chapters = [topics[name].strip() for name in sorted(topics)[:12]]
    vectors = [embedder.encode_document(chapters) for embedder in (exact, small)]
    assert (vectors[0] * vectors[1]).sum(1).min() > 0.9995
    ids = torch.as_tensor(exact.model.tokenizer.encode("\n\n".join(chapters)).ids[:4096])
    with torch.no_grad():
        cosine = F.cosine_similarity(*(embedder.model.backbone(ids)[0] for embedder in (exact, small)))
    assert cosine.mean() > 0.9995
    assert cosine.quantile(0.01) > 0.999


# ---- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("CPU_NAME", "generic", "numba is told to make code for another processor"),
        ("DISABLE_JIT", 1, "NUMBA_DISABLE_JIT is set"),
    ],
)
def test_numba_does_not_make_the_code(monkeypatch: pytest.MonkeyPatch, setting: str, value: object, reason: str) -> None:
    int8.numba_problem.cache_clear()
    monkeypatch.setattr(numba.config, setting, value)
    try:
        with pytest.raises(BackendUnavailable, match=rf"8-bit products cannot run because {reason}.*dtype=\"bfloat16\""):
            load_backbone(GOLDEN / "mamba2-tiny-hf", "int8", "cpu")
    finally:
        int8.numba_problem.cache_clear()


def test_processor_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.ops.int8_matmul._FEATURES", {"avx512f": True})
    with pytest.raises(BackendUnavailable, match="the processor has no VNNI instructions"):
        load_backbone(GOLDEN / "mamba2-tiny-hf", "int8", "cpu")


def test_other_device() -> None:
    assert int8_problem(torch.device("cuda:1")) == "they are for CPUs and the device is 'cuda:1'"


def test_backbones_without_8_bit_kernels() -> None:
    with pytest.raises(InputError, match=r"a folder: .* has no 8-bit kernels"):
        check_int8(Transformer, torch.device("cpu"), "a folder")
    with pytest.raises(InputError, match="RWKV-7 has no 8-bit kernels; use"):
        load_backbone(GOLDEN / "rwkv7-tiny-fla", "int8", "cpu")


@needs_kernels
def test_damaged_weights() -> None:
    tensors = weights()
    tensors["layers.1.mixer.out_proj.weight"][3, 4] = float("nan")
    with pytest.raises(NumericalError, match=r"layers\.1\.mixer\.out_proj\.weight.*NaN"):
        build_backbone("mamba2", CONFIG.to_dict(), tensors, "int8", "cpu")


def test_names_of_the_layers_are_those_of_the_module() -> None:
    linear = {name for name, module in Mamba2(CONFIG).named_modules() if isinstance(module, nn.Linear)}
    assert all(any(name.endswith(end) for name in linear) for end in Mamba2.int8_layers)
