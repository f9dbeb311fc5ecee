"""What tests of backbones share: tiny ones off their start values, packed token ids for them, and how close is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.state import State

AnyBackbone = TypeVar("AnyBackbone", bound=Backbone)

VOCABULARY = 50  # of every tiny config


def tiny_backbone(architecture: Callable[[Any], AnyBackbone], config: Any, dtype: torch.dtype = torch.float32) -> AnyBackbone:
    """Always the same weights, none at a start value that could hide a mistake (norms and D of 1, biases of 0).

    Linear layers are in `dtype`, all else in fp32; without kernels until `prepare`.
    """
    torch.manual_seed(0)
    model = architecture(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.to(dtype)
    return model


def token_ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed))


def cumulative(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def assert_states_close(actual: State, expected: State, tolerance: float = 2e-5) -> None:
    assert actual.tensors.keys() == expected.tensors.keys()
    assert actual.tokens.tolist() == expected.tokens.tolist()
    for name in expected.tensors:
        assert_close(actual[name], expected[name], tolerance)
