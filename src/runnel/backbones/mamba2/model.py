"""Mamba-2: token ids -> hidden vectors.

    T  tokens           S  sequences        N  state_size
    Dm hidden_size      Di inner_size = expand Dm = H P
    H  num_heads        P  head_size        Cd conv_channels = Di + 2 groups N
    w  conv_width

One block, with h the residual stream:

    u = norm(h)
    z, xBC, dt = in_proj(u)                   xBC: x (Di), B and C (groups N each), side by side
    x, B, C = silu(conv1d(xBC))
    dt = softplus(dt + dt_bias)
    y = ssd(x, dt, -exp(A_log), B, C, D)      see `ops.ssd`
    h += out_proj(gated_rms_norm(y, z))       see `ops.gated_rms_norm`

A, B, C, D and dt have their published names; D (H,) weighs x in y. Source: Dao and Gu,
"Transformers are SSMs", 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Markers, PlainForm
from runnel.backbones.config import BackboneConfig
from runnel.backbones.layers import (
    BlockBackbone,
    MixerLayer,
    RMSNorm,
    apply_linear,
    init_dt_bias,
    init_out_proj,
    scan_dtype,
)
from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.gated_rms_norm import gated_rms_norm
from runnel.ops.ssd import ssd
from runnel.ops.ssd.torch import CHUNK


@dataclass(frozen=True)
class Mamba2Config(BackboneConfig):
    """Sizes of a Mamba-2 backbone. Its inner channels are divided into heads, and several heads
    share one group of B and C. `dt_min` and `dt_max` clamp the time step after softplus (published
    models do not).
    """

    state_size: int = 128
    head_size: int = 64
    groups: int = 1
    expand: int = 2
    norm_eps: float = 1e-5
    conv_width: int = 4
    conv_bias: bool = True
    proj_bias: bool = False
    dt_min: float = 0.0
    dt_max: float = float("inf")
    unchecked = ("dt_min", "dt_max")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect_multiple("inner_size", "head_size")
        self.expect_multiple("num_heads", "groups")
        self.expect(0 <= self.dt_min < self.dt_max, "dt_min", "dt_max", rule="0 <= dt_min < dt_max")

    @property
    def inner_size(self) -> int:
        return self.expand * self.hidden_size

    @property
    def num_heads(self) -> int:
        return self.inner_size // self.head_size

    @property
    def conv_channels(self) -> int:
        return self.inner_size + 2 * self.groups * self.state_size

    @property
    def projection_size(self) -> int:
        """Rows of in_proj: z, x, B, C, dt."""
        return self.inner_size + self.conv_channels + self.num_heads

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON; an infinite `dt_max` becomes None."""
        return super().to_dict() | {"dt_max": None if self.dt_max == float("inf") else self.dt_max}

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "the config") -> Self:
        """Return the inverse of `to_dict`; see `BackboneConfig.from_dict`."""
        # None means infinite, where a missing value means the default
        infinite = {"dt_max": float("inf")} if values.get("dt_max", 0.0) is None else {}
        return super().from_dict({**values, **infinite}, where)


class Mamba2Mixer(nn.Module):
    """The part of a block between its norm and the residual addition."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        channels = config.conv_channels
        self.config = config
        self.in_proj = nn.Linear(config.hidden_size, config.projection_size, bias=config.proj_bias)
        self.conv1d = nn.Conv1d(
            channels, channels, config.conv_width, groups=channels, bias=config.conv_bias
        )
        self.dt_bias = nn.Parameter(init_dt_bias(config.num_heads))
        self.A_log = nn.Parameter(torch.empty(config.num_heads, device="cpu").uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(config.num_heads))
        self.norm = RMSNorm(config.inner_size, config.norm_eps)
        self.out_proj = nn.Linear(config.inner_size, config.hidden_size, bias=config.proj_bias)
        init_out_proj(self.out_proj, config.num_layers)

    def forward(
        self, u: Tensor, cu_seqlens: Tensor, conv: Tensor | None, ssm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """u (T, Dm), conv (S, Cd, w-1), ssm (S, H, P, N) -> out (T, Dm) and both new states, all in
        u's dtype.
        """
        c = self.config
        z, xbc, dt = apply_linear(self.in_proj, u).split(
            [c.inner_size, c.conv_channels, c.num_heads], dim=-1
        )
        xbc, conv = causal_conv1d(
            xbc, self.conv1d.weight.squeeze(1), self.conv1d.bias, cu_seqlens, conv
        )
        x, B, C = xbc.split(
            [c.inner_size, c.groups * c.state_size, c.groups * c.state_size], dim=-1
        )
        dt = F.softplus(dt + self.dt_bias).clamp(c.dt_min, c.dt_max)
        dtype = scan_dtype(self.in_proj, u)
        y, ssm = ssd(
            x.unflatten(-1, (c.num_heads, c.head_size)).to(dtype),
            dt,
            -torch.exp(self.A_log),
            B.unflatten(-1, (c.groups, c.state_size)).to(dtype),
            C.unflatten(-1, (c.groups, c.state_size)).to(dtype),
            self.D,
            cu_seqlens,
            ssm,
        )
        y = gated_rms_norm(y.flatten(-2).to(u.dtype), z, self.norm.weight, self.norm.eps, c.groups)
        return apply_linear(self.out_proj, y), conv, ssm


class Mamba2(BlockBackbone[MixerLayer[Mamba2Mixer]]):
    """A Mamba-2 backbone with fp32 weights, freshly initialized as published."""

    architecture = "mamba2"
    title = "Mamba-2"
    config_class = Mamba2Config
    matrices = ("in_proj.weight", "out_proj.weight", "embeddings.weight")
    int8_layers = ("in_proj", "out_proj")
    has_kernels = True
    plain = PlainForm("ssd", chunk=CHUNK, copies=7)  # copies as measured
    model_types = ("mamba2",)
    markers: ClassVar[Markers] = {
        "GPT-NeoX": (None, 0),  # trained on documents with 0 between them
        # the tokenizer's own <s> and </s>; the configs have other ids
        "Mistral v3": (1, 2),
    }
    begins = False
    ties_lm_head = True
    config: Mamba2Config

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config, lambda c: MixerLayer(c, Mamba2Mixer))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        return {
            "conv": (c.num_layers, c.conv_channels, c.conv_width - 1),
            "ssm": (c.num_layers, c.num_heads, c.head_size, c.state_size),
        }

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, normed, output and hidden (D each), the projection, x, B and C after the
        convolution, and y before and after its norm, at most fp32 each.
        """
        c = self.config
        return 4 * (4 * c.hidden_size + c.projection_size + c.conv_channels + 2 * c.inner_size)

    @property
    def flops_per_token(self) -> int:
        """Linear layers, the convolution, and for each number of the state 5 operations: 1 for its
        decay, and 2 each for the input and the product with C.
        """
        c = self.config
        linear = 2 * c.hidden_size * (c.projection_size + c.inner_size)
        return c.num_layers * (
            linear + 2 * c.conv_width * c.conv_channels + 5 * c.inner_size * c.state_size
        )
