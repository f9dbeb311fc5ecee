"""8-bit linear layers: their weights, and where they are refused. How they run is in tests/contracts/test_backbones.py."""

import copy
from pathlib import Path
from pydoc_data.topics import topics
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel import Embedder
from runnel.backbones import int8
from runnel.backbones.checkpoint.load import build_backbone, load_backbone
from runnel.backbones.families import BACKBONES
from runnel.backbones.int8 import Int8Linear, check_int8, int8_problem, quantize
from runnel.backbones.library import Library
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import BackendUnavailable, NumericalError
from runnel.ops import backend

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = Mamba2Config(40, 32, 2, state_size=16, head_size=16)
IDS = torch.arange(30) % 40
PROBLEM = int8_problem(torch.device("cpu"))
needs_kernels = pytest.mark.skipif(PROBLEM is not None, reason=f"8-bit products cannot run here: {PROBLEM}")


def filled(outputs: int, inputs: int, bias: bool = False) -> Int8Linear:
    """A layer with random weights."""
    torch.manual_seed(0)
    layer = Int8Linear(inputs, outputs, bias)
    q, scale = quantize(torch.randn(outputs, inputs))
    layer.load_state_dict({"weight": q, "weight_scale": scale, **({"bias": torch.randn(outputs)} if bias else {})})
    return layer


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
    monkeypatch.setattr(backend, "has_native_bf16", lambda: native)
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
    layer = filled(3, 5, bias=True)
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = x @ (layer.weight.double() * layer.weight_scale.double()[:, None]).T + layer.bias.double()
    torch.testing.assert_close(layer(x), expected)


@needs_kernels
def test_without_the_kernels_plain_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_backbone("mamba2", CONFIG.to_dict(), weights(), "int8", "cpu")
    monkeypatch.setattr("runnel.backbones.base.int8_problem", lambda device: "of a test")
    model.prepare()
    assert model.fast is None


@needs_kernels
@pytest.mark.parametrize(("outputs", "inputs", "groups"), [(70, 40, 1), (32, 64, 4), (1, 9, 3), (33, 6, 6), (3352, 768, 1)])
def test_packed_weights_come_back_bit_by_bit(outputs: int, inputs: int, groups: int) -> None:
    layer, expected = filled(outputs, inputs, bias=True), filled(outputs, inputs, bias=True).state_dict()
    for count in (groups, 1, groups):
        layer.packed(count)
        for module in (layer, copy.deepcopy(layer)):
            state = module.state_dict()
            assert state.keys() == expected.keys() == {"weight", "weight_scale", "bias"}
            assert all(
                torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype for name, tensor in expected.items()
            )
    assert torch.equal(copy.deepcopy(layer).to(torch.bfloat16).weight, expected["weight"])
    copied = copy.deepcopy(layer).packed(groups).words
    assert np.array_equal(copied, layer.packed(groups).words)
    assert not np.shares_memory(copied, layer.packed(groups).words)


@needs_kernels
@pytest.mark.parametrize("name", ["mamba1", "mamba2", "rwkv7"])
def test_weights_are_held_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At half the size of bf16, but for the sums of each group and what fills the last panel of outputs."""
    monkeypatch.setattr(backend, "has_native_bf16", lambda: True)
    config = {
        "mamba1": Mamba1Config(40, 256, 2),
        "mamba2": Mamba2Config(40, 256, 2, state_size=64),
        "rwkv7": Rwkv7Config(40, 256, 2),
    }[name]
    tensors = BACKBONES[name](config).state_dict()
    half, small = (build_backbone(name, config.to_dict(), tensors, dtype, "cpu") for dtype in ("bfloat16", "int8"))
    layers = [module for module in small.modules() if isinstance(module, Int8Linear)]
    linear = sum(2 * layer.in_features * layer.out_features for layer in layers)
    with torch.inference_mode():
        for model in (half, small):
            model(IDS[:1])
    assert held_bytes(half) - held_bytes(small) >= 0.45 * linear


def held_bytes(model: nn.Module) -> int:
    """Of all tensors and arrays that can be reached, each memory counted once."""
    seen: dict[int, object] = {}  # keeps them alive, so that no two have the same id
    sizes, stack = {}, [model]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, np.ndarray):
            sizes.setdefault(thing.ctypes.data, thing.nbytes)
        elif isinstance(thing, dict | list | tuple | set):
            stack.extend(thing.values() if isinstance(thing, dict) else thing)
        elif hasattr(thing, "__dict__"):
            stack.append(vars(thing))
    return sum(sizes.values())


@needs_kernels
def test_new_weights_in_a_prepared_model() -> None:
    model = build_backbone("mamba2", CONFIG.to_dict(), weights(), "int8", "cpu")
    changed = {name: tensor if "out_proj" not in name else tensor / 2 for name, tensor in weights().items()}
    other = build_backbone("mamba2", CONFIG.to_dict(), changed, "int8", "cpu")
    with torch.inference_mode():
        before, expected = model(IDS)[0], other(IDS)[0]
        model.load_state_dict(other.state_dict())
        assert torch.equal(model(IDS)[0], expected)
    assert not torch.equal(before, expected)


def test_weights_that_do_not_fit() -> None:
    layer = filled(3, 5)
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match=r"weight is torch.int8 \(5, 3\), expected torch.int8 \(3, 5\)"):
        layer.load_state_dict(state | {"weight": state["weight"].T})
    with pytest.raises(RuntimeError, match=r"weight is torch.float32 \(3, 5\), expected torch.int8"):
        layer.load_state_dict(state | {"weight": state["weight"].float()})
    del state["weight"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight"'):
        layer.load_state_dict(state)


@needs_kernels
@pytest.mark.parametrize("config", [Mamba1Config(40, 32, 2, state_size=5), CONFIG, Rwkv7Config(40, 32, 2, head_size=16)])
def test_kernels_round_inputs_as_said(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Against plain torch with inputs rounded group by group; few land on another whole number."""
    monkeypatch.setattr(backend, "has_native_bf16", lambda: False)
    name = next(name for name, backbone in BACKBONES.items() if backbone.config_class is type(config))
    torch.manual_seed(0)
    whole = BACKBONES[name](config)
    for parameter in whole.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # some start as zeros
    model = build_backbone(name, config.to_dict(), whole.state_dict(), "int8", "cpu")
    with torch.inference_mode():
        fused = model(IDS)[0]
        model.fast = None
        rounding_weights = model(IDS)[0]
        for module in model.modules():
            if isinstance(module, Int8Linear):
                module.register_forward_pre_hook(round_input)
        plain = model(IDS)[0]
    assert F.cosine_similarity(fused, plain).min() > 0.99999
    assert F.cosine_similarity(fused, rounding_weights).min() < 0.99998


def round_input(layer: nn.Module, given: tuple[Tensor]) -> Tensor:
    assert isinstance(layer, Int8Linear)
    assert layer._offsets is not None
    x = given[0].unflatten(-1, (layer._offsets.shape[1], -1))
    scale = x.abs().amax(-1, keepdim=True) / 127
    return ((x / scale.clamp(min=1e-30)).round() * scale).flatten(-2)


@needs_kernels
def test_pocket_on_real_text() -> None:
    """Python's own reference: the vectors of its chapters, and of its words, point where fp32's do."""
    exact, small = (Embedder.load("pocket-mamba2", dtype=dtype, device="cpu") for dtype in ("float32", "int8"))
    chapters = [topics[name].strip() for name in sorted(topics)[:12]]
    vectors = [embedder.encode_document(chapters) for embedder in (exact, small)]
    assert (vectors[0] * vectors[1]).sum(1).min() > 0.9995
    ids = torch.as_tensor(exact.model.tokenizer.encode("\n\n".join(chapters)).ids[:4096])
    with torch.no_grad():
        cosine = F.cosine_similarity(*(embedder.model.backbone(ids)[0] for embedder in (exact, small)))
    assert cosine.mean() > 0.9995
    assert cosine.quantile(0.01) > 0.999


def test_numba_does_not_make_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    int8.numba_problem.cache_clear()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    refused = r"8-bit products cannot run because NUMBA_DISABLE_JIT is set.*dtype=\"bfloat16\""
    try:
        with pytest.raises(BackendUnavailable, match=refused):
            load_backbone(GOLDEN / "mamba2-tiny-hf", "int8", "cpu")
    finally:
        int8.numba_problem.cache_clear()


def test_processor_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.ops.int8_matmul.FEATURES", frozenset({"avx512f"}))
    with pytest.raises(
        BackendUnavailable, match="the processor has no VNNI instructions, or numba is configured not to use them"
    ):
        load_backbone(GOLDEN / "mamba2-tiny-hf", "int8", "cpu")


def test_other_device() -> None:
    assert int8_problem(torch.device("cuda:1")) == "they are for CPUs and the device is 'cuda:1'"


def test_backbones_without_8_bit_kernels() -> None:
    with pytest.raises(BackendUnavailable, match=r"a folder: .* has no 8-bit kernels"):
        check_int8(Library.title, Library.int8_layers, torch.device("cpu"), "a folder")
    with pytest.raises(BackendUnavailable, match="xLSTM has no 8-bit kernels; use"):
        load_backbone(GOLDEN / "xlstm-tiny-hf", "int8", "cpu")


@needs_kernels
def test_damaged_weights() -> None:
    tensors = weights()
    tensors["layers.1.mixer.out_proj.weight"][3, 4] = float("nan")
    with pytest.raises(NumericalError, match=r"layers\.1\.mixer\.out_proj\.weight.*NaN"):
        build_backbone("mamba2", CONFIG.to_dict(), tensors, "int8", "cpu")


def test_names_of_the_layers_are_those_of_the_module() -> None:
    for model in (Mamba1(Mamba1Config(40, 32, 1)), Mamba2(CONFIG), Rwkv7(Rwkv7Config(40, 64, 1))):
        linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        assert all(any(name.endswith(end) for name in linear) for end in model.int8_layers)
