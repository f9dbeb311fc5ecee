"""Every operator x backend x dtype keeps one contract: a new operator is one entry in OPERATORS, a
new backend one in BACKENDS.

The fp64 reference loop is the truth. Errors are the largest difference over the largest value of
the true tensor.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers.operators import DEVICE, INTERPRETED, OPERATORS, Inputs, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from runnel.errors import BackendUnavailable
from runnel.ops.backend import _THROUGH_FLA, KERNELS
from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.selective_scan import selective_scan

BACKENDS = {
    "torch": (torch.float64, torch.float32, torch.bfloat16),
    "cpu": (torch.float32, torch.bfloat16),
    "gpu": (torch.float32, torch.bfloat16),
    "torch:cuda": (torch.float32,),  # what a GPU falls back on
}
IN_BF16 = ("ssd", "wkv7")  # what flash-linear-attention's chunked kernels round


def _marks(name: str, backend: str, dtype: torch.dtype) -> tuple[pytest.MarkDecorator, ...]:
    if backend not in ("gpu", "torch:cuda"):
        # Models read recurrences in fp32 on a CPU: the compilations for bf16, of minutes, are of
        # kernels tested in fp32.
        return (pytest.mark.slow,) * (
            backend == "cpu" and dtype == torch.bfloat16 and not name.startswith("gated_rms_norm")
        )
    missing = DEVICE[backend] == "cuda" and not torch.cuda.is_available()
    # what Triton and flash-linear-attention say when they compile
    says = pytest.mark.filterwarnings("default")
    return pytest.mark.gpu, pytest.mark.skipif(missing, reason="there is no GPU"), says


CASES = [
    pytest.param(o, b, d, id=f"{o}-{b}-{str(d)[6:]}", marks=_marks(o, b, d))
    for o in OPERATORS
    for b, dtypes in BACKENDS.items()
    for d in dtypes
    if b not in KERNELS or o.partition("-")[0] in KERNELS[b]
    # tests/programs/interpreted_fla.py has those
    if not (INTERPRETED and b == "gpu" and o.partition("-")[0] in _THROUGH_FLA)
]
CARRYING = [c for c in CASES if OPERATORS[c.values[0]].state_shape is not None]

# How far an output of each dtype may lie from the truth, which starts from the same rounded inputs.
TOLERANCE = {
    torch.float64: 1e-10,  # the same arithmetic in another order
    # 24 bits; sums over some hundred terms, and exp of sums of a whole chunk's steps
    torch.float32: 2e-5,
    # 2**-8 would be one step; arithmetic is fp32 and only the result is rounded, by half a step
    torch.bfloat16: 4.2e-3,
}
if INTERPRETED:  # Triton's interpreter cuts off where a GPU rounds
    TOLERANCE[torch.bfloat16] = 8e-3
# flash-linear-attention's chunked kernels round factors and the states between chunks to bf16 too.
FLA_BF16_TOLERANCE = 1e-2
# Gradients of parameters are sums over all tokens whose terms partly cancel: single terms are far
# larger than the result.
PARAMETER_GRADIENT_TOLERANCE = 2e-4
LENGTHS = (5, 0, 1, 133, 3, 2, 64, 0, 33)


def _generate(
    name: str, dtype: torch.dtype, lengths: tuple[int, ...], seed: int = 0
) -> tuple[Inputs, Tensor, Tensor | None]:
    """Numbers that fp32 has, in fp64 too: both have one truth."""
    operator = OPERATORS[name]
    g = torch.Generator().manual_seed(seed)
    inputs = {
        k: (
            v.float().to(
                torch.float32 if dtype == torch.bfloat16 and k in operator.fp32_inputs else dtype
            )
        )
        for k, v in operator.make(sum(lengths), g).items()
    }
    cu = torch.tensor([0, *lengths]).cumsum(0)
    if operator.state_shape is None:
        return inputs, cu, None
    state = normal(g, len(lengths), *operator.state_shape).float()
    return inputs, cu, state.double() if dtype == torch.float64 else state


def _values(name: str, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """Outputs and end states, without and with a start state."""
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, LENGTHS)
    kept = {k: v.clone() for k, v in inputs.items()}, None if state is None else state.clone()
    if backend == "reference":
        inputs = {k: v.double() for k, v in inputs.items()}
        state = None if state is None else state.double()
    starts = (None,) if state is None else (None, state)
    found = [tensor for start in starts for tensor in operator.call(inputs, cu, start, backend)]
    assert all(torch.equal(inputs[k], kept[0][k].to(inputs[k])) for k in inputs)
    assert state is None or torch.equal(state, kept[1].to(state))
    return found


def _gradients(name: str, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, LENGTHS)
    values = inputs | ({} if state is None else {"state": state})
    values = {
        k: (v.double() if backend == "reference" else v.clone()).requires_grad_()
        for k, v in values.items()
    }
    y, end = operator.call({k: values[k] for k in inputs}, cu, values.get("state"), backend)
    g = torch.Generator().manual_seed(1)
    loss = (y * normal(g, *y.shape).float().to(dtype).to(y.dtype)).sum().to(end.dtype)
    loss = loss + (end * normal(g, *end.shape).float().to(end.dtype)).sum()
    return dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))


@cache
def _truth(compute: Callable[..., Any], name: str, half: bool) -> Any:
    return compute(name, "reference", torch.bfloat16 if half else torch.float32)


def _tolerance(name: str, backend: str, dtype: torch.dtype) -> float | None:
    """Where not that of the output's dtype."""
    rounds = backend == "gpu" and dtype == torch.bfloat16 and name.startswith(IN_BF16)
    return FLA_BF16_TOLERANCE if rounds else None


def _assert_close(actual: Tensor, truth: Tensor, what: str, tolerance: float | None = None) -> None:
    assert actual.shape == truth.shape, what
    assert not actual.isnan().any(), f"{what} has unwritten or NaN elements"
    if truth.numel():
        error = float(
            (actual.double() - truth.double()).abs().max()
            / truth.double().abs().max().clamp(min=1e-30)
        )
        limit = TOLERANCE[actual.dtype] if tolerance is None else tolerance
        assert error <= limit, f"{what}: error {error:.2e}, allowed {limit:.1e}"


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_values_and_state_equal_the_reference(name: str, backend: str, dtype: torch.dtype) -> None:
    found = _values(name, backend, dtype)
    truth = _truth(_values, name, dtype == torch.bfloat16)
    for place, (actual, expected) in enumerate(zip(found, truth, strict=True)):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert actual.dtype == (wide if place % 2 else dtype)
        _assert_close(
            actual, expected, "end state" if place % 2 else "y", _tolerance(name, backend, dtype)
        )


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_gradients_equal_the_reference(name: str, backend: str, dtype: torch.dtype) -> None:
    if (name, backend, dtype) == ("wkv7-forgets", "gpu", torch.bfloat16):
        pytest.skip(
            "no model decays as fast, and flash-linear-attention's gradient of w is wrong there"
            " (runnel/ops/wkv7/gpu.py)"
        )
    truth = _truth(_gradients, name, dtype == torch.bfloat16)
    for key, actual in _gradients(name, backend, dtype).items():
        summed = key not in (*OPERATORS[name].per_token, "state") and actual.dtype == torch.float32
        tolerance = _tolerance(name, backend, dtype) or (
            PARAMETER_GRADIENT_TOLERANCE if summed else None
        )
        _assert_close(actual, truth[key], f"gradient of {key}", tolerance)


@pytest.mark.parametrize(("name", "backend", "dtype"), CARRYING)
def test_gradient_of_one_output_alone(name: str, backend: str, dtype: torch.dtype) -> None:
    """Only y, or only the end state, takes part in the loss; parameters that need no gradient get
    none.
    """
    operator = OPERATORS[name]
    inputs, cu, _ = _generate(name, dtype, (3, 20))
    for part in (0, 1):
        found = []
        for values, chosen in (
            (inputs, backend),
            ({k: v.double() for k, v in inputs.items()}, "reference"),
        ):
            leaf = values[operator.per_token[0]].clone().requires_grad_()
            out = operator.call(values | {operator.per_token[0]: leaf}, cu, None, chosen)[part]
            found += torch.autograd.grad(out.square().sum() if part else out.sum(), leaf)
        _assert_close(found[0], found[1], "gradient", _tolerance(name, backend, dtype))


@pytest.mark.parametrize(("name", "backend", "dtype"), CARRYING)
def test_packing_and_splitting_change_nothing(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    tolerance = _tolerance(name, backend, dtype) or TOLERANCE[dtype]

    @settings(max_examples=4, deadline=None, derandomize=True)
    @given(
        st.lists(
            st.lists(st.sampled_from((0, 1, 2, 3, 5, 16, 31, 67)), min_size=1, max_size=4),
            min_size=1,
            max_size=4,
        )
    )
    def check(pieces: list[list[int]]) -> None:
        inputs, cu, state = _generate(name, dtype, tuple(sum(p) for p in pieces))
        whole, whole_end = operator.call(inputs, cu, state, backend)
        for s, (start, stop) in enumerate(pairwise(cu.tolist())):
            carried = None if state is None else state[s : s + 1]
            position = start
            for length in pieces[s]:
                part = {
                    k: v[position : position + length] if k in operator.per_token else v
                    for k, v in inputs.items()
                }
                y, carried = operator.call(part, None, carried, backend)
                _assert_close(y, whole[position : position + length], "y", tolerance)
                position += length
            assert position == stop
            state_tolerance = _tolerance(name, backend, dtype) or TOLERANCE[whole_end.dtype]
            _assert_close(carried, whole_end[s : s + 1], "end state", state_tolerance)

    check()


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_strided_inputs_and_int32_boundaries(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    inputs, cu, state = _generate(name, dtype, (7, 30))
    strided = {}
    for key, value in inputs.items():
        value = value.to(DEVICE[backend])
        flat = value.flatten(1) if value.ndim > 1 else value[:, None]
        strided[key] = (
            F.pad(flat, (2, 3), value=float("nan"))[:, 2:-3]
            .unflatten(1, value.shape[1:] or (1,))
            .reshape_as(value)
        )
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


@pytest.mark.parametrize(
    ("name", "backend", "dtype"), [c for c in CASES if c.values[1] in ("cpu", "gpu")]
)
def test_nan_inputs_stay_visible(name: str, backend: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    for key in operator.per_token:
        inputs, cu, state = _generate(name, dtype, (4,))
        inputs[key][2] = float("nan")
        assert operator.call(inputs, cu, state, backend)[0][2].isnan().all()


def test_a_backend_that_cannot_run_says_why() -> None:
    x = torch.zeros(4, 3)
    weight = torch.zeros(3, 4)
    with pytest.raises(BackendUnavailable, match="float64"):
        causal_conv1d(x.double(), weight, backend="cpu")
    with pytest.raises(BackendUnavailable, match=r"selective_scan.*has none"):
        selective_scan(x, x, weight, x[:, :1].expand(4, 4), x[:, :1].expand(4, 4), backend="cpu")
