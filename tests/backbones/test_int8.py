"""8-bit linear layers: their weights, and where they are refused. How they run is in
tests/contracts/test_backbones.py.
"""

import copy
import gc
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_backbones import needs_int8
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.backbones.checkpoint.load import build_backbone, load_backbone
from runnel.backbones.families import BACKBONES
from runnel.backbones.int8 import Int8Linear, int8_problem, quantize
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.errors import BackendUnavailable, NumericalError
from runnel.ops import backend

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = Mamba2Config(40, 32, 2, state_size=16, head_size=16)
IDS = torch.arange(30) % 40


def filled(outputs: int, inputs: int, bias: bool = False) -> Int8Linear:
    torch.manual_seed(0)
    layer = Int8Linear(inputs, outputs, bias)
    q, scale = quantize(torch.randn(outputs, inputs))
    layer.load_state_dict(
        {"weight": q, "weight_scale": scale, **({"bias": torch.randn(outputs)} if bias else {})}
    )
    return layer


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return Mamba2(CONFIG).state_dict()


def built(tensors: dict[str, Tensor] | None = None, dtype: str = "int8") -> Mamba2:
    return build_backbone("mamba2", CONFIG.to_dict(), tensors or weights(), dtype, "cpu")


def test_weights_in_8_bits() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3e-3, 1e-3, -1e-3]])
    q, scale = quantize(weight)
    assert q.tolist() == [[64, -127, 32], [0, 0, 0], [127, 42, -42]]
    assert ((q * scale[:, None] - weight).abs() <= scale[:, None] / 2).all()


@needs_int8
@pytest.mark.parametrize("native", [True, False])
def test_only_linear_layers_take_8_bits(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(backend, "has_native_bf16", lambda: native)
    tensors = weights()
    model = built()
    assert model.fast is not None
    for name, tensor in model.state_dict().items():
        if name.endswith("_proj.weight"):
            assert all(
                map(
                    torch.equal,
                    (tensor, model.state_dict()[name + "_scale"]),
                    quantize(tensors[name]),
                )
            )
        elif not name.endswith("_scale"):
            assert tensor.dtype == (
                torch.bfloat16 if native and name == "embeddings.weight" else torch.float32
            )
    assert torch.isfinite(model(IDS)[0]).all()
    assert model.fingerprint() != built(dtype="bfloat16").fingerprint()
    monkeypatch.setattr("runnel.backbones.base.int8_problem", lambda device: "of a test")
    model.prepare()
    assert model.fast is None


def test_a_layer_rounds_its_weight_alone_and_passes_gradients_on() -> None:
    layer = filled(3, 5, bias=True)
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weight = layer.weight.double() * layer.weight_scale.double()[:, None]
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias.double())
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 5))


@needs_int8
@pytest.mark.parametrize(
    ("outputs", "inputs", "groups"),
    [(70, 40, 1), (32, 64, 4), (1, 9, 3), (33, 6, 6), (3352, 768, 1)],
)
def test_packed_weights_come_back_bit_by_bit(outputs: int, inputs: int, groups: int) -> None:
    layer = filled(outputs, inputs, bias=True)
    expected = filled(outputs, inputs, bias=True).state_dict()
    for count in (groups, 1, groups):
        layer.packed(count)
        for module in (layer, copy.deepcopy(layer)):
            state = module.state_dict()
            assert state.keys() == expected.keys() == {"weight", "weight_scale", "bias"}
            assert all(
                torch.equal(state[n], t) and state[n].dtype == t.dtype for n, t in expected.items()
            )
    assert torch.equal(copy.deepcopy(layer).to(torch.bfloat16).weight, expected["weight"])
    copied = copy.deepcopy(layer).packed(groups).words
    assert np.array_equal(copied, layer.packed(groups).words)
    assert not np.shares_memory(copied, layer.packed(groups).words)


SLOW = pytest.mark.slow  # they compile the kernels of three precisions
LARGE = {
    "mamba1": Mamba1Config(64, 512, 2),
    "mamba2": Mamba2Config(64, 512, 2),
    "rwkv7": Rwkv7Config(
        64, 512, 2, ffn_size=2048, decay_rank=32, a_rank=32, v_rank=16, gate_rank=64
    ),
}


@needs_int8
@pytest.mark.parametrize(
    "name", [pytest.param("mamba1", marks=SLOW), "mamba2", pytest.param("rwkv7", marks=SLOW)]
)
def test_weights_are_held_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What kernels keep beside them is small. 8 bits take half of bf16, but for sums of groups and
    what fills the last panel.
    """
    monkeypatch.setattr(backend, "has_native_bf16", lambda: True)
    tensors = BACKBONES[name](LARGE[name]).state_dict()
    held = {}
    for dtype in ("float32", "bfloat16", "int8"):
        model = build_backbone(name, LARGE[name].to_dict(), tensors, dtype, "cpu")
        assert model.fast is not None
        own = sum(p.numel() * p.element_size() for p in model.parameters())
        held[dtype] = held_bytes(model)
        assert dtype == "int8" or own <= held[dtype] < 1.06 * own
        with torch.inference_mode():
            model(IDS[:1])
        held[dtype] = held_bytes(model)
    layers = [module for module in model.modules() if isinstance(module, Int8Linear)]
    assert held["bfloat16"] - held["int8"] >= 0.45 * sum(
        2 * layer.in_features * layer.out_features for layer in layers
    )


def held_bytes(model: nn.Module) -> int:
    """Of all tensors and arrays that can be reached, each memory counted once."""
    seen: dict[int, object] = {}  # keeps them alive, so that no two have the same id
    sizes = {}
    stack = [model]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, np.ndarray):
            sizes.setdefault(thing.ctypes.data, thing.nbytes)
        else:
            stack += gc.get_referents(thing)
    return sum(sizes.values())


@needs_int8
def test_new_weights_in_a_prepared_model() -> None:
    model = built()
    other = built(
        {
            name: tensor if "out_proj" not in name else tensor.flip(0)
            for name, tensor in weights().items()
        }
    )
    with torch.inference_mode():
        before = model(IDS)[0]
        expected = other(IDS)[0]
        model.load_state_dict(other.state_dict())
        assert torch.equal(model(IDS)[0], expected)
    assert not torch.equal(before, expected)


def test_weights_that_do_not_fit() -> None:
    layer = filled(3, 5)
    state = layer.state_dict()
    weight = state.pop("weight")
    for wrong, message in (
        ({"weight": weight.T}, r"weight is torch.int8 \(5, 3\), expected torch.int8 \(3, 5\)"),
        ({"weight": weight.float()}, r"weight is torch.float32 \(3, 5\), expected torch.int8"),
        ({}, r'Missing key.*"weight"'),
    ):
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(state | wrong)


@needs_int8
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        pytest.param(Mamba1Config(40, 32, 2, state_size=5), marks=SLOW),
        pytest.param(Rwkv7Config(40, 32, 2, head_size=16), marks=SLOW),
    ],
)
def test_kernels_round_inputs_as_said(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Against plain torch with inputs rounded group by group; few land on another whole number."""
    monkeypatch.setattr(backend, "has_native_bf16", lambda: False)
    name = next(
        name for name, backbone in BACKBONES.items() if backbone.config_class is type(config)
    )
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
    assert isinstance(layer, Int8Linear) and layer._offsets is not None
    x = given[0].unflatten(-1, (layer._offsets.shape[1], -1))
    scale = x.abs().amax(-1, keepdim=True) / 127
    return ((x / scale.clamp(min=1e-30)).round() * scale).flatten(-2)


@pytest.mark.parametrize(
    ("place", "value", "folder", "message"),
    [
        (
            "runnel.ops.numba_math.PROBLEM",
            "NUMBA_DISABLE_JIT is set",
            "mamba2-tiny-hf",
            r"NUMBA_DISABLE_JIT is set.*dtype=\"bfloat16\"",
        ),
        (
            "runnel.ops.int8_matmul.FEATURES",
            frozenset({"avx512f"}),
            "mamba2-tiny-hf",
            "the processor has no VNNI instructions",
        ),
        (
            "runnel.ops.int8_matmul.FEATURES",
            frozenset({"avx512f"}),
            "xlstm-tiny-hf",
            "xLSTM has no 8-bit kernels; use",
        ),
    ],
)
def test_where_8_bits_cannot_run(
    monkeypatch: pytest.MonkeyPatch, place: str, value: object, folder: str, message: str
) -> None:
    monkeypatch.setattr(place, value)
    with pytest.raises(BackendUnavailable, match=message):
        load_backbone(GOLDEN / folder, "int8", "cpu")
    assert int8_problem(torch.device("cuda:1")) == "they are for CPUs and the device is 'cuda:1'"


@needs_int8
def test_damaged_weights() -> None:
    tensors = weights()
    tensors["layers.1.mixer.out_proj.weight"][3, 4] = float("nan")
    with pytest.raises(NumericalError, match=r"layers\.1\.mixer\.out_proj\.weight.*NaN"):
        built(tensors)
