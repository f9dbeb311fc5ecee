"""What tests of backbones share: tiny ones off their start values, packed token ids for them, and how close is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.state import State
from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

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
            parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.to(dtype)
    return model


@dataclass(frozen=True)
class Architecture:
    """A backbone's class and the shapes it is tested at. What does not depend on the shape is tested at the one named "tiny"."""

    backbone: Callable[[Any], Backbone]
    configs: dict[str, Any]  # with VOCABULARY rows of embeddings, and such that the fused kernels take them

    def build(self, config: str = "tiny", dtype: torch.dtype = torch.float32) -> Backbone:
        """Without kernels until `prepare`; every call gives the same weights."""
        return tiny_backbone(self.backbone, self.configs[config], dtype)


def open_xlstm(config: XlstmConfig) -> Xlstm:
    """Input gates at exp(-5) to exp(-1): those of a fresh model are shut, and an empty memory would hide mistakes.

    A large norm_eps: a head norm magnifies rounding errors where a query is orthogonal to what it reads.
    """
    model = Xlstm(config)
    for layer in model.blocks:
        torch.linspace(-5, -1, config.num_heads, out=layer.mlstm_layer.igate_preact.bias.data)
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
