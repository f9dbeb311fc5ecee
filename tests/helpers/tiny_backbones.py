"""What tests of backbones share: tiny ones off their start values, packed token ids for them, and
how close is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.config import EncoderConfig
from runnel.backbones.int8 import int8_problem
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.state import State
from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

NO_INT8 = int8_problem(torch.device("cpu"))
needs_int8 = pytest.mark.skipif(
    NO_INT8 is not None, reason=f"8-bit products cannot run here: {NO_INT8}"
)
AnyBackbone = TypeVar("AnyBackbone", bound=Backbone)

VOCABULARY = 50  # of every tiny config
# what does not depend on the shape is tested at the one named "tiny"
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba1": {
        "tiny": Mamba1Config(VOCABULARY, 24, 3, state_size=5),
        "biases": Mamba1Config(
            VOCABULARY, 32, 2, state_size=16, dt_rank=3, proj_bias=True, conv_bias=False
        ),
        "narrow": Mamba1Config(VOCABULARY, 32, 2, state_size=16, conv_width=2),
        "smallest": Mamba1Config(VOCABULARY, 16, 1, state_size=1, conv_width=1, expand=1),
        "many-states": Mamba1Config(VOCABULARY, 24, 1, state_size=35),
    },
    "mamba2": {
        "tiny": Mamba2Config(VOCABULARY, 24, 3, state_size=6, head_size=8, groups=3),
        "one-group": Mamba2Config(VOCABULARY, 32, 2, state_size=16, head_size=16),
        "biases": Mamba2Config(
            VOCABULARY, 24, 2, state_size=5, head_size=12, proj_bias=True, conv_bias=False
        ),
        "narrow": Mamba2Config(
            VOCABULARY, 24, 2, state_size=5, head_size=12, conv_width=2, conv_bias=False
        ),
        "clamped": Mamba2Config(
            VOCABULARY, 32, 1, state_size=16, head_size=16, dt_min=0.3, dt_max=0.4
        ),
        "wide-heads": Mamba2Config(VOCABULARY, 60, 2, state_size=20, head_size=40, groups=3),
        "odd-heads": Mamba2Config(VOCABULARY, 15, 1, state_size=6, head_size=10),
        "published-heads": Mamba2Config(VOCABULARY, 64, 1, state_size=128),
    },
    "rwkv7": {
        "tiny": Rwkv7Config(
            VOCABULARY, 24, 3, head_size=8, decay_rank=4, a_rank=4, v_rank=4, gate_rank=4
        ),
        "uneven-ranks": Rwkv7Config(
            VOCABULARY, 48, 2, 16, ffn_size=50, decay_rank=5, a_rank=3, v_rank=1, gate_rank=17
        ),
        "smallest": Rwkv7Config(
            VOCABULARY, 16, 1, head_size=1, ffn_size=1, decay_rank=1, a_rank=1, gate_rank=1
        ),
        "odd-heads": Rwkv7Config(
            VOCABULARY,
            74,
            2,
            head_size=37,
            ffn_size=50,
            decay_rank=5,
            a_rank=3,
            v_rank=1,
            gate_rank=7,
        ),
        "published-heads": Rwkv7Config(
            VOCABULARY, 64, 2, decay_rank=16, a_rank=33, v_rank=16, gate_rank=40
        ),
    },
    "xlstm": {
        "tiny": XlstmConfig(
            VOCABULARY, 16, 3, num_heads=4, qk_size=32, v_size=64, ffn_size=32, norm_eps=0.01
        ),
        "wide-values": XlstmConfig(
            VOCABULARY, 32, 2, 2, qk_size=68, v_size=140, ffn_size=48, gate_cap=4.0, norm_eps=0.01
        ),
        "smallest": XlstmConfig(
            VOCABULARY, 16, 1, num_heads=1, qk_size=1, v_size=2, ffn_size=1, norm_eps=0.01
        ),
    },
    "encoder": {
        "tiny": EncoderConfig(
            VOCABULARY,
            24,
            3,
            num_heads=3,
            intermediate_size=40,
            max_positions=72,
            passage_tokens=16,
        ),
        "odd-heads": EncoderConfig(VOCABULARY, 72, 2, 2, 130, max_positions=70, passage_tokens=16),
        "one-head": EncoderConfig(
            VOCABULARY, 32, 2, 1, 256, max_positions=70, layer_norm_eps=0.01, passage_tokens=16
        ),
        "smallest": EncoderConfig(
            VOCABULARY, 16, 1, 16, 1, max_positions=70, layer_norm_eps=0.01, passage_tokens=16
        ),
    },
}


def tiny_backbone(
    architecture: Callable[[Any], AnyBackbone], config: Any, dtype: torch.dtype = torch.float32
) -> AnyBackbone:
    """Always the same weights, none at a start value that could hide a mistake (norms and D of 1,
    biases of 0).

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
    """A backbone's class and the shapes it is tested at."""

    backbone: Callable[[Any], Backbone]
    # with VOCABULARY rows of embeddings, and such that the fused kernels take them
    configs: dict[str, Any]

    def build(self, config: str = "tiny", dtype: torch.dtype = torch.float32) -> Backbone:
        """Without kernels until `prepare`; every call gives the same weights."""
        return tiny_backbone(self.backbone, self.configs[config], dtype)


def open_xlstm(config: XlstmConfig) -> Xlstm:
    """Input gates at exp(-5) to exp(-1): those of a fresh model are shut, and an empty memory would
    hide mistakes.

    A large norm_eps: a head norm magnifies rounding errors where a query is orthogonal to what it
    reads.
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
