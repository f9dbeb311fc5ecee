"""Every operator x backend x dtype keeps one contract: a new operator is one entry in OPERATORS, a new backend one in BACKENDS.

The fp64 reference loop is the truth. Errors are the largest difference over the largest value of the true tensor.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from runnel import ops
from runnel.errors import BackendUnavailable, InputError

Inputs = dict[str, Tensor]
Call = Callable[[Inputs, Tensor | None, Tensor | None, str], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Operator:
    """One operator at one shape: how to make its inputs and how to call it."""

    make: Callable[[int, torch.Generator], Inputs]  # tokens -> inputs in fp64; those with T rows are per token
    run: Call  # (inputs, cu_seqlens, state, backend) -> (y, end state)
    state_shape: tuple[int, ...] | None  # None: the operator carries nothing between tokens
    per_token: tuple[str, ...]
    fp32_inputs: tuple[str, ...] = ()  # stay fp32 when the others are bf16, as the backbones pass them

    def call(self, inputs: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        """`run` on the backend's device, with results on the CPU."""
        device = DEVICE[backend]
        on_device = {k: v.to(device) for k, v in inputs.items()}
        y, end = self.run(on_device, cu, None if state is None else state.to(device), backend.partition(":")[0])
        return y.cpu(), end.cpu()


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _conv(channels: int, width: int, *, bias: bool, activation: str | None) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        inputs = {"x": _normal(g, tokens, channels), "weight": _normal(g, channels, width)}
        return inputs | ({"bias": _normal(g, channels)} if bias else {})

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        return ops.causal_conv1d(i["x"], i["weight"], i.get("bias"), cu, state, activation=activation, backend=backend)

    return Operator(make, call, (channels, width - 1), ("x",), ("weight", "bias"))


def _ssd(heads: int, size: int, groups: int, width: int, *, skip: bool) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        inputs = {
            "x": _normal(g, tokens, heads, size),
            "dt": F.softplus(_normal(g, tokens, heads) - 2),
            "A": -_normal(g, heads).exp() * 4,
        }
        inputs |= {"B": _normal(g, tokens, groups, width), "C": _normal(g, tokens, groups, width)}
        return inputs | ({"D": _normal(g, heads)} if skip else {})

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        return ops.ssd(i["x"], i["dt"], i["A"], i["B"], i["C"], i.get("D"), cu, state, backend=backend)

    return Operator(make, call, (heads, size, width), ("x", "dt", "B", "C"), ("dt", "A", "D"))


def _selective_scan(channels: int, width: int, *, skip: bool) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        inputs = {"x": _normal(g, tokens, channels), "dt": F.softplus(_normal(g, tokens, channels) - 2)}
        inputs |= {"A": -_normal(g, channels, width).exp() * 4, "B": _normal(g, tokens, width), "C": _normal(g, tokens, width)}
        return inputs | ({"D": _normal(g, channels)} if skip else {})

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        return ops.selective_scan(i["x"], i["dt"], i["A"], i["B"], i["C"], i.get("D"), cu, state, backend=backend)

    return Operator(make, call, (channels, width), ("x", "dt", "B", "C"), ("dt", "A", "D"))


def _wkv7(heads: int, key_size: int, value_size: int, *, strongest: float = 0.607) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        keys = (tokens, heads, key_size)
        removal = F.normalize(_normal(g, *keys), dim=-1)
        return {
            "r": _normal(g, *keys),
            "w": -strongest * _normal(g, *keys).sigmoid(),
            "k": _normal(g, *keys),
            "v": _normal(g, tokens, heads, value_size),
            "a": -removal,
            "b": removal * _normal(g, *keys).sigmoid(),
        }

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        return ops.wkv7(i["r"], i["w"], i["k"], i["v"], i["a"], i["b"], cu, state, backend=backend)

    return Operator(make, call, (heads, key_size, value_size), ("v", "r", "w", "k", "a", "b"), ("w",))


def _mlstm(heads: int, width: int, size: int, *, gates: tuple[tuple[float, float], tuple[float, float]]) -> Operator:
    """Gates are uniform in the ranges of i and f; the state is C, n and m in one tensor (H, K*V + K + 1)."""

    def make(tokens: int, g: torch.Generator) -> Inputs:
        # Keys and queries lean to one side: where n . q cancels, h and its gradients are as large as their rounding errors.
        inputs = {name: 1 + _normal(g, tokens, heads, width) / 2 for name in "kq"}
        inputs["v"] = _normal(g, tokens, heads, size)
        for name, (low, high) in zip("if", gates, strict=True):
            inputs[name] = low + (high - low) * torch.rand(tokens, heads, generator=g, dtype=torch.float64)
        return inputs

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        parts = None
        if state is not None:
            C, n, m = state.split((width * size, width, 1), dim=2)
            parts = (C.unflatten(2, (width, size)), n, m.squeeze(2))
        h, (C, n, m) = ops.mlstm(i["q"], i["k"], i["v"], i["i"], i["f"], cu, parts, backend=backend)
        return h, torch.cat([C.flatten(2), n, m[:, :, None]], 2)

    return Operator(make, call, (heads, width * size + width + 1), ("k", "q", "v", "i", "f"), ("i", "f"))


_MODERATE, _STRONG = ((-5.0, 8.0), (-3.0, 6.0)), ((-15.0, 15.0), (-15.0, 15.0))


def _gated_norm(channels: int, groups: int) -> Operator:
    def make(tokens: int, g: torch.Generator) -> Inputs:
        return {"y": _normal(g, tokens, channels), "z": _normal(g, tokens, channels), "weight": _normal(g, channels)}

    def call(i: Inputs, cu: Tensor | None, state: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
        no_state = torch.zeros(0, dtype=torch.float64 if i["y"].dtype == torch.float64 else torch.float32)
        return ops.gated_rms_norm(i["y"], i["z"], i["weight"], 1e-5, groups, backend=backend), no_state

    return Operator(make, call, None, ("y", "z"), ("weight",))


OPERATORS: dict[str, Operator] = {
    "causal_conv1d": _conv(70, 4, bias=True, activation="silu"),
    "causal_conv1d-plain": _conv(5, 4, bias=False, activation=None),
    "causal_conv1d-narrow": _conv(3, 2, bias=True, activation="silu"),
    "causal_conv1d-pointwise": _conv(3, 1, bias=True, activation=None),
    "ssd": _ssd(3, 5, 1, 6, skip=True),
    "ssd-groups": _ssd(6, 4, 2, 3, skip=True),
    "ssd-group-per-head": _ssd(4, 18, 4, 17, skip=False),
    "ssd-wide": _ssd(2, 32, 1, 32, skip=True),
    "selective_scan": _selective_scan(40, 16, skip=True),
    "selective_scan-narrow": _selective_scan(3, 5, skip=False),
    "wkv7": _wkv7(1, 64, 64),
    "wkv7-odd": _wkv7(3, 5, 7),
    "wkv7-wide": _wkv7(2, 6, 85),
    "wkv7-forgets": _wkv7(1, 33, 16, strongest=150.0),
    "mlstm": _mlstm(2, 16, 32, gates=_MODERATE),
    "mlstm-odd": _mlstm(3, 3, 5, gates=_MODERATE),
    "mlstm-wide": _mlstm(1, 34, 70, gates=_MODERATE),
    "mlstm-strong-gates": _mlstm(3, 5, 7, gates=_STRONG),
    "gated_rms_norm": _gated_norm(12, 1),
    "gated_rms_norm-groups": _gated_norm(36, 3),
}
BACKENDS = {
    "torch": (torch.float64, torch.float32, torch.bfloat16),
    "cpu": (torch.float32, torch.bfloat16),
    "gpu": (torch.float32, torch.bfloat16),
    "torch:cuda": (torch.float32,),  # what a GPU falls back on
}
THROUGH_FLA = ("ssd", "wkv7")  # their GPU kernels are flash-linear-attention's
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # the GPU kernels run on the CPU; see tests/ops/test_gpu.py
DEVICE = {"reference": "cpu", "torch": "cpu", "cpu": "cpu", "gpu": "cpu" if INTERPRETED else "cuda", "torch:cuda": "cuda"}


def _marks(backend: str) -> tuple[pytest.MarkDecorator, ...]:
    if backend not in ("gpu", "torch:cuda"):
        return ()
    missing = DEVICE[backend] == "cuda" and not torch.cuda.is_available()
    says = pytest.mark.filterwarnings("default")  # what Triton and flash-linear-attention say when they compile
    return pytest.mark.gpu, pytest.mark.skipif(missing, reason="there is no GPU"), says


CASES = [
    pytest.param(o, b, d, id=f"{o}-{b}-{str(d)[6:]}", marks=_marks(b))
    for o in OPERATORS
    for b, dtypes in BACKENDS.items()
    for d in dtypes
    if not (INTERPRETED and b == "gpu" and o.startswith(THROUGH_FLA))  # tests/ops/interpreted_fla.py has those
]
CARRYING = [c for c in CASES if OPERATORS[c.values[0]].state_shape is not None]  # type: ignore[index]

# How far an output of each dtype may lie from the truth, which starts from the same rounded inputs.
TOLERANCE = {
    torch.float64: 1e-10,  # the same arithmetic in another order
    torch.float32: 2e-5,  # 24 bits; sums over some hundred terms, and exp of sums of a whole chunk's steps
    torch.bfloat16: 4.2e-3,  # 2**-8 would be one step; arithmetic is fp32 and only the result is rounded, by half a step
}
if INTERPRETED:  # Triton's interpreter cuts off where a GPU rounds
    TOLERANCE[torch.bfloat16] = 8e-3
# flash-linear-attention's chunked kernels round factors and the states between chunks to bf16 too. Not measured on a GPU yet.
FLA_BF16_TOLERANCE = 1e-2
# Gradients of parameters are sums over all tokens whose terms partly cancel: single terms are far larger than the result.
PARAMETER_GRADIENT_TOLERANCE = 2e-4
LENGTHS = (5, 0, 1, 133, 3, 2, 64, 0, 33)


def _generate(name: str, dtype: torch.dtype, lengths: tuple[int, ...], seed: int = 0) -> tuple[Inputs, Tensor, Tensor | None]:
    """Inputs rounded to `dtype`, cu_seqlens and a start state."""
    operator, g = OPERATORS[name], torch.Generator().manual_seed(seed)
    inputs = {
        k: v.to(torch.float32 if dtype == torch.bfloat16 and k in operator.fp32_inputs else dtype)
        for k, v in operator.make(sum(lengths), g).items()
    }
    cu = torch.tensor([0, *lengths]).cumsum(0)
    if operator.state_shape is None:
        return inputs, cu, None
    return (
        inputs,
        cu,
        _normal(g, len(lengths), *operator.state_shape).to(torch.float64 if dtype == torch.float64 else torch.float32),
    )


def _double(inputs: Inputs) -> Inputs:
    return {k: v.double() for k, v in inputs.items()}


def _tolerance(name: str, backend: str, dtype: torch.dtype) -> float | None:
    """Where not that of the output's dtype."""
    rounds = backend == "gpu" and dtype == torch.bfloat16 and name.startswith(THROUGH_FLA)
    return FLA_BF16_TOLERANCE if rounds else None


def _assert_close(actual: Tensor, truth: Tensor, what: str, tolerance: float | None = None) -> None:
    assert actual.shape == truth.shape, what
    assert not actual.isnan().any(), f"{what} has unwritten or NaN elements"
    if truth.numel():
        error = float((actual.double() - truth.double()).abs().max() / truth.double().abs().max().clamp(min=1e-30))
        limit = TOLERANCE[actual.dtype] if tolerance is None else tolerance
        assert error <= limit, f"{what}: error {error:.2e}, allowed {limit:.1e}"


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_values_and_state_equal_the_reference(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, LENGTHS)
    kept = {k: v.clone() for k, v in inputs.items()}, None if state is None else state.clone()
    for start in (None, state) if operator.state_shape else (None,):
        y, end = operator.call(inputs, cu, start, backend)
        true_y, true_end = operator.call(_double(inputs), cu, None if start is None else start.double(), "reference")
        assert y.dtype == dtype
        assert end.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        _assert_close(y, true_y, "y", _tolerance(name, backend, dtype))
        _assert_close(end, true_end, "end state", _tolerance(name, backend, dtype))
    assert all(torch.equal(inputs[k], kept[0][k]) for k in inputs)
    assert state is None or torch.equal(state, kept[1])


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_gradients_equal_the_reference(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, LENGTHS)
    leaves = inputs | ({} if state is None else {"state": state})

    def gradients(values: Inputs, backend: str) -> dict[str, Tensor]:
        values = {k: v.clone().requires_grad_() for k, v in values.items()}
        y, end = operator.call({k: values[k] for k in inputs}, cu, values.get("state"), backend)
        g = torch.Generator().manual_seed(1)
        loss = (y * _normal(g, *y.shape).to(dtype).to(y.dtype)).sum().to(end.dtype)
        loss = loss + (end * _normal(g, *end.shape).float().to(end.dtype)).sum()
        return dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))

    truth = gradients(_double(leaves), "reference")
    for key, actual in gradients(leaves, backend).items():
        summed = key not in (*operator.per_token, "state") and actual.dtype == torch.float32
        tolerance = _tolerance(name, backend, dtype) or (PARAMETER_GRADIENT_TOLERANCE if summed else None)
        _assert_close(actual, truth[key], f"gradient of {key}", tolerance)


@pytest.mark.parametrize(("name", "backend", "dtype"), CARRYING)
def test_gradient_of_one_output_alone(name: str, backend: str, dtype: torch.dtype) -> None:
    """Only y, or only the end state, takes part in the loss; parameters that need no gradient get none."""
    operator = OPERATORS[name]
    inputs, cu, _ = _generate(name, dtype, (3, 20))
    for part in (0, 1):
        found = []
        for values, chosen in ((inputs, backend), (_double(inputs), "reference")):
            leaf = values[operator.per_token[0]].clone().requires_grad_()
            out = operator.call(values | {operator.per_token[0]: leaf}, cu, None, chosen)[part]
            found += torch.autograd.grad(out.square().sum() if part else out.sum(), leaf)
        _assert_close(found[0], found[1], "gradient", _tolerance(name, backend, dtype))


@pytest.mark.parametrize(("name", "backend", "dtype"), CARRYING)
def test_packing_and_splitting_change_nothing(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    tolerance = _tolerance(name, backend, dtype) or TOLERANCE[dtype]

    @settings(max_examples=4, deadline=None, derandomize=True)
    @given(st.lists(st.lists(st.sampled_from((0, 1, 2, 3, 5, 16, 31, 67)), min_size=1, max_size=4), min_size=1, max_size=4))
    def check(pieces: list[list[int]]) -> None:
        lengths = tuple(sum(p) for p in pieces)
        inputs, cu, state = _generate(name, dtype, lengths)
        whole, whole_end = operator.call(inputs, cu, state, backend)
        for s, (start, stop) in enumerate(pairwise(cu.tolist())):
            carried, position = (None if state is None else state[s : s + 1]), start
            for length in pieces[s]:
                part = {k: v[position : position + length] if k in operator.per_token else v for k, v in inputs.items()}
                y, carried = operator.call(part, None, carried, backend)
                _assert_close(y, whole[position : position + length], "y", tolerance)
                position += length
            assert position == stop
            state_tolerance = _tolerance(name, backend, dtype) or TOLERANCE[whole_end.dtype]
            _assert_close(carried, whole_end[s : s + 1], "end state", state_tolerance)

    check()


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_strided_inputs_and_int32_boundaries(name: str, backend: str, dtype: torch.dtype) -> None:
    """Every input may be some columns of a wider matrix."""
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, (7, 30))
    strided = {}
    for key, value in inputs.items():
        value = value.to(DEVICE[backend])
        flat = value.flatten(1) if value.ndim > 1 else value[:, None]
        strided[key] = F.pad(flat, (2, 3), value=float("nan"))[:, 2:-3].unflatten(1, value.shape[1:] or (1,)).reshape_as(value)
    strided = {k: v if v.ndim != 1 else F.pad(v[:, None], (0, 1))[:, 0] for k, v in strided.items()}
    y, end = operator.call(inputs, cu, state, backend)
    again, again_end = operator.call(strided, cu.to(torch.int32), state, backend)
    _assert_close(again, y, "y", _tolerance(name, backend, dtype))
    _assert_close(again_end, end, "end state", _tolerance(name, backend, dtype))


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_nothing_to_do(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    for lengths in ((), (0,), (0, 0)):
        inputs, cu, state = _generate(name, dtype, lengths)
        y, end = operator.call(inputs, cu, state, backend)
        assert y.shape[0] == 0
        assert state is None or torch.equal(end, state)


@pytest.mark.parametrize(("name", "backend", "dtype"), [c for c in CASES if c.values[1] in ("cpu", "gpu")])
def test_nan_inputs_stay_visible(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    for key in operator.per_token:
        inputs, cu, state = _generate(name, dtype, (4,))
        inputs[key][2] = float("nan")
        assert operator.call(inputs, cu, state, backend)[0][2].isnan().all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, torch.float32) for n in ("causal_conv1d", "ssd-groups", "selective_scan", "wkv7-odd", "mlstm", "gated_rms_norm-groups")],
)
def test_several_threads_at_once(name: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, LENGTHS)
    truth, _ = operator.call(inputs, cu, state, "cpu")
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
            y, _ = operator.call(leaves, cu, state, "cpu")
            y.sum().backward()
            if not torch.equal(y, truth):
                wrong.append("another result than alone")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bad_arguments_say_what_to_do() -> None:
    x, weight = torch.zeros(4, 3), torch.zeros(3, 4)
    with pytest.raises(InputError, match=r"cu_seqlens must rise from 0 to the 4 tokens of the input, got \[0, 3\]"):
        ops.causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(InputError, match=r"state must have shape \(1, 3, 3\) \(sequences first\), got \(2, 3, 3\)"):
        ops.causal_conv1d(x, weight, state=torch.zeros(2, 3, 3))
    with pytest.raises(InputError, match=r"weight must have shape \(3, 4\).*got \(2, 4\)"):
        ops.causal_conv1d(x, weight[:2])
    with pytest.raises(InputError, match="activation must be None or 'silu', got 'gelu'"):
        ops.causal_conv1d(x, weight, activation="gelu")
    with pytest.raises(InputError, match="no backend 'tpu'; expected 'auto' or one of reference, torch, cpu, gpu"):
        ops.causal_conv1d(x, weight, backend="tpu")
    with pytest.raises(BackendUnavailable, match="because the input is float64"):
        ops.causal_conv1d(x.double(), weight, backend="cpu")
    with pytest.raises(InputError, match="H a multiple of G"):
        ops.ssd(torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 2, 4), torch.zeros(2, 2, 4))
    with pytest.raises(InputError, match="groups must divide the 3 channels, got 2"):
        ops.gated_rms_norm(x, x, torch.ones(3), 1e-5, 2)
