"""Mamba-1: token ids -> hidden vectors.

    T  tokens           S  sequences                          N  state_size
    Dm hidden_size      Di inner_size = expand Dm             w  conv_width

One block, with h the residual stream:

    u = norm(h)
    x, z = in_proj(u)
    x = silu(conv1d(x))
    r, B, C = x_proj(x)                       r: of dt_rank numbers
    dt = softplus(dt_proj(r))
    y = selective_scan(x, dt, -exp(A_log), B, C, D)       see `ops.selective_scan`
    h += out_proj(y silu(z))

A, B, C, D and dt have their published names; D (Di,) weighs x in y. Source: Gu and Dao, "Mamba",
2023.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Markers
from runnel.backbones.config import BackboneConfig
from runnel.backbones.layers import (
    BlockBackbone,
    MixerLayer,
    WideBiasLinear,
    apply_linear,
    init_dt_bias,
    init_out_proj,
)
from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.selective_scan import selective_scan


@dataclass(frozen=True)
class Mamba1Config(BackboneConfig):
    """Shape of a Mamba-1 backbone. `dt_rank` 0: hidden_size / 16, rounded up, as published."""

    state_size: int = 16
    conv_width: int = 4
    expand: int = 2
    dt_rank: int = 0
    norm_eps: float = 1e-5
    proj_bias: bool = False
    conv_bias: bool = True

    def __post_init__(self) -> None:
        if not self.dt_rank:
            object.__setattr__(self, "dt_rank", -(-self.hidden_size // 16))
        super().__post_init__()

    @property
    def inner_size(self) -> int:
        return self.expand * self.hidden_size


class Mamba1Mixer(nn.Module):
    """The part of a block between its norm and the residual addition."""

    def __init__(self, config: Mamba1Config) -> None:
        super().__init__()
        self.config = config
        channels, states = config.inner_size, config.state_size
        self.in_proj = nn.Linear(config.hidden_size, 2 * channels, bias=config.proj_bias)
        self.conv1d = nn.Conv1d(
            channels, channels, config.conv_width, groups=channels, bias=config.conv_bias
        )
        self.x_proj = nn.Linear(channels, config.dt_rank + 2 * states, bias=False)
        self.dt_proj = WideBiasLinear(config.dt_rank, channels)
        self.A_log = nn.Parameter(
            torch.arange(1, states + 1, dtype=torch.float32, device="cpu").log().repeat(channels, 1)
        )
        self.D = nn.Parameter(torch.ones(channels))
        self.out_proj = nn.Linear(channels, config.hidden_size, bias=config.proj_bias)
        nn.init.uniform_(self.dt_proj.weight, -(config.dt_rank**-0.5), config.dt_rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(init_dt_bias(channels))
        init_out_proj(self.out_proj, config.num_layers)

    def forward(
        self, u: Tensor, cu_seqlens: Tensor, conv: Tensor | None, ssm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """u (T, Dm), conv (S, Di, w-1), ssm (S, Di, N) -> out (T, Dm) and both new states, all in
        u's dtype.
        """
        c = self.config
        x, z = apply_linear(self.in_proj, u).chunk(2, dim=-1)
        x, conv = causal_conv1d(
            x, self.conv1d.weight.squeeze(1), self.conv1d.bias, cu_seqlens, conv
        )
        low_rank, B, C = apply_linear(self.x_proj, x).split(
            [c.dt_rank, c.state_size, c.state_size], dim=-1
        )
        dt = F.softplus(self.dt_proj(low_rank))
        y, ssm = selective_scan(x, dt, -torch.exp(self.A_log), B, C, self.D, cu_seqlens, ssm)
        return apply_linear(self.out_proj, y * F.silu(z)), conv, ssm


class Mamba1(BlockBackbone[MixerLayer[Mamba1Mixer]]):
    """A Mamba-1 backbone with fp32 weights, freshly initialized as published."""

    architecture = "mamba1"
    title = "Mamba-1"
    config_class = Mamba1Config
    matrices = (
        "in_proj.weight",
        "x_proj.weight",
        "dt_proj.weight",
        "out_proj.weight",
        "embeddings.weight",
    )
    int8_layers = ("in_proj", "out_proj")
    stays_wide = ("x_proj", "dt_proj")
    has_kernels = True
    model_types = ("mamba",)
    markers: ClassVar[Markers] = {"GPT-NeoX": (None, 0)}  # trained on documents with 0 between them
    begins = False
    ties_lm_head = True
    config: Mamba1Config

    def __init__(self, config: Mamba1Config) -> None:
        super().__init__(config, lambda c: MixerLayer(c, Mamba1Mixer))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        return {
            "conv": (c.num_layers, c.inner_size, c.conv_width - 1),
            "ssm": (c.num_layers, c.inner_size, c.state_size),
        }

    @property
    def step_bytes_per_token(self) -> int:
        c = self.config
        # residual, norms, projections, conv, dt, y
        rows = 6 * c.hidden_size + 6 * c.inner_size + c.dt_rank + 4 * c.state_size
        # Without the fast step, `selective_scan` in plain torch also holds the decays and states of
        # a chunk. A model on the meta device stands for the one that will run, which has the fast
        # step: `runnel info` asks it.
        plain = self.fast is None and self.device.type != "meta"
        scan = 8 * c.inner_size * (c.state_size + 1) if plain else 0
        return 4 * (rows + scan)

    @property
    def flops_per_token(self) -> int:
        """Linear layers, the convolution, and for each number of the state about 9 operations: dt
        A, its exponential, dt B x, the update, and the product with C.
        """
        c = self.config
        linear = 2 * c.inner_size * (3 * c.hidden_size + 2 * c.dt_rank + 2 * c.state_size)
        return c.num_layers * (
            linear + 2 * c.conv_width * c.inner_size + 9 * c.inner_size * c.state_size
        )

    def kernel_problem(self) -> str | None:
        if self.config.inner_size % 16:
            return f"its inner width {self.config.inner_size} is not a multiple of 16"
        return super().kernel_problem()
