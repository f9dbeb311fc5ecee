"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: extreme steps and decays."""

import pytest
import torch

from runnel.ops.trapezoid import trapezoid

T, H, N, P = 70, 2, 6, 5
CU = torch.tensor([0, 40, 40, 41, T])


def drawn() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(T, H, 1, size, generator=g) for name, size in (("q", N), ("k", N), ("v", P))}
    gates = {"dt": torch.rand(T, H, generator=g), "trap": torch.rand(T, H, generator=g)}
    return inputs | gates | {"A": -torch.rand(T, H, generator=g) - 0.1}


@pytest.mark.parametrize(
    ("steps", "decay", "tolerance"),
    [(0.0, -1.0, 2e-5), (1e-30, -1e-4, 2e-5), (1e-3, -1e-4, 2e-5), (50.0, -1e-4, 2e-5), (80.0, -20.0, 1e-3)],
)
def test_extreme_steps(steps: float, decay: float, tolerance: float) -> None:
    """Half of the tokens have such a step: none, hardly any, no decay, or a state that is forgotten at once.

    For the last one decays are differences of sums of -1600 a token, in ssd too.
    """
    i = drawn()
    i["dt"][::2], i["A"][::2] = steps, decay
    truth, end = trapezoid(**{name: x.double() for name, x in i.items()}, cu_seqlens=CU, backend="reference")
    y, state = trapezoid(**i, cu_seqlens=CU, backend="torch")
    for actual, expected in ((y, truth), *zip(state, end, strict=True)):
        assert float((actual - expected).abs().max() / expected.abs().max()) < tolerance


def test_gradients_where_hardly_anything_decays() -> None:
    """What the inputs and what the decay contribute to the gradient of a step is summed apart, or its digits would cancel."""
    i = drawn()
    i["A"] = torch.full((T, H), -1e-4)

    def gradients(values: dict[str, torch.Tensor], backend: str) -> tuple[torch.Tensor, ...]:
        leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
        y, _ = trapezoid(**leaves, cu_seqlens=CU, backend=backend)
        return torch.autograd.grad(y.square().sum(), list(leaves.values()))

    truth = gradients({name: x.double() for name, x in i.items()}, "reference")
    for actual, expected in zip(gradients(i, "torch"), truth, strict=True):
        assert float((actual - expected).abs().max() / expected.abs().max()) < 2e-5
