"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: extreme gates for long, shares of threads."""

import math

import pytest
import torch
from torch import Tensor

from runnel.ops.mlstm import mlstm

State = tuple[Tensor, Tensor, Tensor]


def _gates(tokens: int, i: float, f: float) -> list[Tensor]:
    ones = torch.ones(tokens, 1, 2, dtype=torch.float64)
    return [ones, ones, ones, torch.full((tokens, 1), i, dtype=torch.float64), torch.full((tokens, 1), f, dtype=torch.float64)]


def _run(inputs: list[Tensor], backend: str, state: State | None = None) -> tuple[Tensor, State]:
    """In fp64, or in fp32 where the backend knows no other."""
    if backend == "cpu":
        inputs = [x.float() for x in inputs]
        state = None if state is None else (state[0].float(), state[1].float(), state[2].float())
    return mlstm(*inputs, None, state, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize(("i", "f"), [(15.0, -15.0), (-15.0, 15.0), (15.0, 15.0), (-15.0, -15.0)])
def test_gates_at_their_caps_for_thousands_of_tokens(i: float, f: float, backend: str) -> None:
    tokens = 5000
    h, (C, n, m) = _run(_gates(tokens, i, f), backend)
    lf = -math.log1p(math.exp(-f))
    # m falls by lf with every token until it meets i; then every token takes m to i, since lf < 0
    top = max(tokens * lf, i)
    terms = math.exp(i - top) * -math.expm1(tokens * lf) / -math.expm1(lf)  # the sum of a geometric series
    torch.testing.assert_close(m.double(), torch.full((1, 1), top, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(n.double(), torch.full((1, 1, 2), terms, dtype=torch.float64), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(C.double(), torch.full((1, 1, 2, 2), terms, dtype=torch.float64), rtol=1e-4, atol=0.0)
    weight = terms * math.sqrt(2)
    assert float(h[-1, 0, 0]) == pytest.approx(weight / (max(weight, math.exp(-top)) + 1e-6), rel=1e-4)
    assert h.isfinite().all()


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_one_strong_token_fades_as_it_should(backend: str) -> None:
    """m shrinks by less than its own rounding step at each token; the memory must not stand still."""
    tokens = 20_000
    q, k, v, i, f = _gates(tokens, -15.0, 9.0)
    i[0] = 15.0
    _, (_, _, m) = _run([q, k, v, i, f], backend)
    start = (torch.ones(1, 1, 2, 2).double(), torch.ones(1, 1, 2).double(), torch.full((1, 1), 15.0).double())
    _, (_, n, end_m) = _run([q, k, v, i, f], backend, start)
    faded = 15.0 - (tokens - 1) * math.log1p(math.exp(-9.0))
    assert float(m) == pytest.approx(faded, abs=2e-3)
    # exp(m) n at the end, where the first token and the state have both come from 15
    kept = math.exp(-tokens * math.log1p(math.exp(-9.0)))
    total = float(end_m) + math.log(float(n[0, 0, 0]))
    later = math.exp(-30.0) / math.expm1(math.log1p(math.exp(-9.0)))
    assert total == pytest.approx(15.0 + math.log(2 * kept + later * (1 - kept)), abs=2e-3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_columns_of_one_head_are_shared_between_threads(threads: int) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(70, 1, size, generator=g) for size in (9, 9, 200))
    i, f = 2 * torch.randn(2, 70, 1, generator=g)
    inputs = [1 + q / 2, 1 + k / 2, v, i, f + 2]
    truth, (true_C, true_n, true_m) = mlstm(*(x.double() for x in inputs), backend="reference")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        h, (C, n, m) = mlstm(*inputs, backend="cpu")
    finally:
        torch.set_num_threads(before)
    for ours, other in ((h, truth), (C, true_C), (n, true_n), (m, true_m)):
        torch.testing.assert_close(ours.double(), other, rtol=2e-5, atol=2e-5)
