"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: extreme gates,
steps and decays, long sequences, shares of threads, chunks of other sizes."""

import math
from collections.abc import Callable

import pytest
import torch
from helpers.operators import OPERATORS
from torch import Tensor

from runnel.ops.mlstm import mlstm
from runnel.ops.wkv7 import wkv7
from runnel.ops.wkv7.torch import wkv7_torch

State = tuple[Tensor, Tensor, Tensor]
CU = torch.tensor([0, 40, 40, 41, 70])
FLOOR = 0.6065306597126334  # RWKV-7's log decays lie in (-FLOOR, 0)


def _error(actual: Tensor, truth: Tensor) -> float:
    assert actual.shape == truth.shape
    actual = actual.detach().double()
    truth = truth.detach().double()
    return float((actual - truth).abs().max() / truth.abs().max().clamp(min=1e-30))


def _inputs(name: str, tokens: int, dtype: torch.dtype) -> dict[str, Tensor]:
    made = OPERATORS[name].make(tokens, torch.Generator().manual_seed(0))
    return {key: value.to(dtype) for key, value in made.items()}


def _gates(tokens: int, i: float, f: float) -> list[Tensor]:
    ones = torch.ones(tokens, 1, 2, dtype=torch.float64)
    return [
        ones,
        ones,
        ones,
        torch.full((tokens, 1), i, dtype=torch.float64),
        torch.full((tokens, 1), f, dtype=torch.float64),
    ]


def _run_mlstm(
    inputs: list[Tensor], backend: str, state: State | None = None
) -> tuple[Tensor, State]:
    """In fp64, or in fp32 where the backend knows no other."""
    if backend == "cpu":
        inputs = [x.float() for x in inputs]
        state = None if state is None else (state[0].float(), state[1].float(), state[2].float())
    return mlstm(*inputs, None, state, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize(("i", "f"), [(15.0, -15.0), (-15.0, 15.0), (15.0, 15.0), (-15.0, -15.0)])
def test_gates_at_their_caps_for_thousands_of_tokens(i: float, f: float, backend: str) -> None:
    tokens = 5000
    h, (C, n, m) = _run_mlstm(_gates(tokens, i, f), backend)
    lf = -math.log1p(math.exp(-f))
    # m falls by lf with every token until it meets i; then every token takes m to i, since lf < 0
    top = max(tokens * lf, i)
    # the sum of a geometric series
    terms = math.exp(i - top) * -math.expm1(tokens * lf) / -math.expm1(lf)
    torch.testing.assert_close(
        m.double(), torch.full((1, 1), top, dtype=torch.float64), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        n.double(), torch.full((1, 1, 2), terms, dtype=torch.float64), rtol=1e-4, atol=0.0
    )
    torch.testing.assert_close(
        C.double(), torch.full((1, 1, 2, 2), terms, dtype=torch.float64), rtol=1e-4, atol=0.0
    )
    weight = terms * math.sqrt(2)
    assert float(h[-1, 0, 0]) == pytest.approx(
        weight / (max(weight, math.exp(-top)) + 1e-6), rel=1e-4
    )
    assert h.isfinite().all()


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_one_strong_token_fades_as_it_should(backend: str) -> None:
    """m shrinks by less than its own rounding step at each token; the memory
    must not stand still.
    """
    tokens = 20_000
    q, k, v, i, f = _gates(tokens, -15.0, 9.0)
    i[0] = 15.0
    _, (_, _, m) = _run_mlstm([q, k, v, i, f], backend)
    start = (
        torch.ones(1, 1, 2, 2).double(),
        torch.ones(1, 1, 2).double(),
        torch.full((1, 1), 15.0).double(),
    )
    _, (_, n, end_m) = _run_mlstm([q, k, v, i, f], backend, start)
    faded = 15.0 - (tokens - 1) * math.log1p(math.exp(-9.0))
    assert float(m) == pytest.approx(faded, abs=2e-3)
    # exp(m) n at the end, where the first token and the state have both come from 15
    kept = math.exp(-tokens * math.log1p(math.exp(-9.0)))
    total = float(end_m) + math.log(float(n[0, 0, 0]))
    later = math.exp(-30.0) / math.expm1(math.log1p(math.exp(-9.0)))
    assert total == pytest.approx(15.0 + math.log(2 * kept + later * (1 - kept)), abs=2e-3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_columns_of_one_head_are_shared_between_threads(
    set_threads: Callable[[int], None], threads: int
) -> None:
    inputs = _inputs("mlstm-wide", 70, torch.float32)
    truth, (true_C, true_n, true_m) = mlstm(
        **{name: x.double() for name, x in inputs.items()}, backend="reference"
    )
    set_threads(threads)
    h, (C, n, m) = mlstm(**inputs, backend="cpu")
    for ours, other in ((h, truth), (C, true_C), (n, true_n), (m, true_m)):
        torch.testing.assert_close(ours.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_any_decay(dtype: torch.dtype, tolerance: float) -> None:
    """From no decay to a full stop, also side by side; what comes after a full stop is as exact as
    without one.
    """
    inputs = list(_inputs("wkv7-odd", 70, dtype).values())
    decays = torch.tensor(
        [0.0, -1e-7, -0.3, -FLOOR, -5.0, -80.0, -1e3, -1e6, float("-inf")], dtype=dtype
    )
    mixed = decays[torch.randint(9, inputs[1].shape, generator=torch.Generator().manual_seed(1))]
    stop = inputs[1].clone() * 1e-3
    stop[[3, 40]] = -1e6
    for w in (mixed, stop, *(torch.full_like(mixed, float(d)) for d in decays)):
        values = [x.clone().requires_grad_() for x in (inputs[0], w, *inputs[2:])]
        truth = [x.detach().double().requires_grad_() for x in values]
        results = []
        for given, chosen in ((values, "torch"), (truth, "reference")):
            o, end = wkv7(*given, backend=chosen)
            results.append((o, end, *torch.autograd.grad(o.sum() + end.square().sum(), given)))
        for name, actual, expected in zip("o end r w k v a b".split(), *results, strict=True):
            assert actual.isfinite().all(), name
            assert _error(actual, expected) < tolerance, name


def test_long_sequences_stay_stable() -> None:
    """With weak decays the state remembers thousands of tokens; rounding
    neither grows nor drifts.
    """
    inputs = _inputs("wkv7-odd", 4000, torch.float32)
    inputs["w"] *= 1e-3
    o, end = wkv7(**inputs, backend="torch")
    true_o, true_end = wkv7(**{name: x.double() for name, x in inputs.items()}, backend="reference")
    assert _error(o[-100:], true_o[-100:]) < 5e-6
    assert _error(end, true_end) < 5e-6


@pytest.mark.parametrize("chunk", [1, 2, 8, 64])
def test_chunk_size_changes_nothing(chunk: int) -> None:
    inputs = _inputs("wkv7-odd", 100, torch.float64).values()
    cu = torch.tensor([0, 65, 65, 66, 100])
    start = torch.randn(4, 3, 5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = wkv7(*inputs, cu, start, backend="reference")
    assert all(
        _error(*pair) < 1e-13
        for pair in zip(wkv7_torch(*inputs, cu, start, chunk), truth, strict=True)
    )
