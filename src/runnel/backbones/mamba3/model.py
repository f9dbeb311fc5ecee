"""Mamba-3: token ids -> hidden vectors.

    T  tokens           S  sequences        N  state_size
    Dm hidden_size      H  num_heads        P  head_size
    G  groups of B and C                    Na angles of a head
    R  rank, the inputs and outputs of a head for each token (1 without mimo)

One block, with h the residual stream:

    u = norm(h)
    z, x, B, C, dt, A, trap, angles = in_proj(u)
    dt = softplus(dt + dt_bias)
    A = -(1 + A) for A >= 0, -1 / (1 - A) below   (the "softplus" activation: A = -softplus(A));
        at most -decay_floor
    turn = the sum of pi dt tanh(angles) over all tokens so far
    k = B_norm(B) + B_bias, pairs of its channels turned by `turn`
    q = C_norm(C) + C_bias, likewise
    v = x mimo_x
    y = trapezoid(q, k, v, dt, A, sigmoid(trap)) + D v            see `ops.trapezoid`
    y = the sum over the ranks of mimo_o norm(y) silu(z mimo_z)   norm: only with `out_norm`
    h += out_proj(y)
    h += mlp(norm2(h))                            only in a model with feed-forward layers

Without mimo (multiple inputs, multiple outputs) R is 1 and mimo_x, mimo_z and mimo_o are left out.
A, B, C, D and dt have their published names; D (H,) weighs v in y.

Source: Lahoti et al., "Mamba-3", 2026 (arXiv 2603.15569); mamba_ssm/modules/mamba3.py in
    state-spaces/mamba e9594ce; A = -softplus(A) in its release 2.3.2.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import PlainForm
from runnel.backbones.layers import (
    BlockBackbone,
    HeadsConfig,
    RMSNorm,
    apply_linear,
    init_dt_bias,
    init_out_proj,
)
from runnel.ops.packed import Grid, States, last_tokens, power_of_two
from runnel.ops.trapezoid import trapezoid
from runnel.ops.trapezoid.torch import CHUNK

Activation = Literal["heavy-tailed", "softplus"]  # of A
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True)
class Mamba3Config(HeadsConfig):
    """Shape of a Mamba-3 backbone, and the activation of A."""

    ranks: int | None = None  # None: without mimo
    angles: int = 0  # 0: a quarter of `state_size`, as published
    ffn_size: int | None = None  # None: no feed-forward layers
    out_norm: bool = False
    decay_floor: float = 1e-4  # the least -A
    activation: Activation = "heavy-tailed"

    def __post_init__(self) -> None:
        if not self.angles:
            object.__setattr__(self, "angles", self.state_size // 4)
        super().__post_init__()
        fits = self.state_size % 2 == 0 and 2 * self.angles <= self.state_size
        self.expect(fits, "state_size", "angles", rule="an even size of at least twice the angles")

    @property
    def rank(self) -> int:
        """R: `ranks`, or 1 without mimo."""
        return self.ranks or 1

    @property
    def projections(self) -> list[int]:
        """Rows of in_proj: z, x, B, C, dt, A, trap, angles."""
        both = self.rank * self.groups * self.state_size
        return [self.inner_size, self.inner_size, both, both, *[self.num_heads] * 3, self.angles]


class Mamba3Mixer(nn.Module):
    """The part of a block between its first norm and the residual addition."""

    def __init__(self, config: Mamba3Config) -> None:
        super().__init__()
        c = self.config = config
        self.in_proj = nn.Linear(c.hidden_size, sum(c.projections), bias=False)
        self.dt_bias = nn.Parameter(init_dt_bias(c.num_heads))
        self.B_bias = nn.Parameter(torch.ones(c.num_heads, c.rank, c.state_size))
        self.C_bias = nn.Parameter(torch.ones(c.num_heads, c.rank, c.state_size))
        self.B_norm = RMSNorm(c.state_size, c.norm_eps)
        self.C_norm = RMSNorm(c.state_size, c.norm_eps)
        if c.ranks is not None:
            self.mimo_x = nn.Parameter(torch.full((c.num_heads, c.rank, c.head_size), 1 / c.rank))
            self.mimo_z = nn.Parameter(torch.ones(c.num_heads, c.rank, c.head_size))
            self.mimo_o = nn.Parameter(torch.full((c.num_heads, c.rank, c.head_size), 1 / c.rank))
        self.D = nn.Parameter(torch.ones(c.num_heads))
        if c.out_norm:
            self.norm = RMSNorm(c.inner_size, c.norm_eps)
        self.out_proj = nn.Linear(c.inner_size, c.hidden_size, bias=False)
        init_out_proj(self.out_proj, c.num_layers)

    def forward(
        self, u: Tensor, cu_seqlens: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """u (T, Dm) and this layer's part of `Mamba3.state_shapes` -> out (T, Dm) and the layer's
        new state, all in u's dtype.
        """
        c = self.config
        mimo = self.config.ranks is not None
        z, x, B, C, dt, A, trap, angles = apply_linear(self.in_proj, u).split(c.projections, dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        if c.activation == "softplus":
            decay = F.softplus(A)
        else:
            decay = A.clamp(min=0) + 1 / (1 - A.clamp(max=0))
        A = -decay.clamp(min=c.decay_floor)
        k = self._keys(B, self.B_norm, self.B_bias)
        q = self._keys(C, self.C_norm, self.C_bias)
        z = z.unflatten(-1, (c.num_heads, c.head_size))
        x = x.unflatten(-1, (c.num_heads, c.head_size))
        ssm, key, last_x, angle = state or (None, None, None, None)
        before = (
            None
            if ssm is None or key is None or last_x is None
            else (ssm, key, self._inputs(last_x))
        )
        angle, last_angle = _sums(
            math.pi * torch.tanh(angles)[:, None] * dt[..., None], cu_seqlens, angle
        )
        k, q = (_turn(part, angle[:, :, None], neighbors=not mimo) for part in (k, q))
        v = self._inputs(x)
        y, (ssm, key, _) = trapezoid(q, k, v, dt, A, torch.sigmoid(trap), cu_seqlens, before)
        y = y + self.D[:, None, None] * v
        if c.out_norm:
            y = F.rms_norm(y, (c.head_size,), None, c.norm_eps) * self.norm.weight.view(
                c.num_heads, 1, c.head_size
            )
        y = y * F.silu(z[:, :, None] * self.mimo_z if mimo else z[:, :, None])
        y = (y * self.mimo_o).sum(2) if mimo else y.squeeze(2)
        last_x = last_tokens(
            x, cu_seqlens.to("cpu"), torch.zeros_like(ssm[..., 0]) if last_x is None else last_x
        )
        return apply_linear(self.out_proj, y.flatten(1)), ssm, key, last_x, last_angle

    def _keys(self, x: Tensor, norm: RMSNorm, bias: Tensor) -> Tensor:
        """x (T, R G N) -> (T, H, R, N)."""
        c = self.config
        normed = norm(x.unflatten(-1, (c.rank, c.groups, c.state_size))).transpose(1, 2)
        return normed.repeat_interleave(c.num_heads // c.groups, dim=1) + bias

    def _inputs(self, x: Tensor) -> Tensor:
        """x (..., H, P) -> (..., H, R, P)."""
        return x[..., None, :] * self.mimo_x if self.config.ranks is not None else x[..., None, :]


class Mamba3Layer(nn.Module):
    """One block: norms, mixer, feed-forward layer and residuals."""

    def __init__(self, config: Mamba3Config) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer = Mamba3Mixer(config)
        self.mlp: Any = None
        if config.ffn_size is not None:
            self.norm2 = RMSNorm(config.hidden_size, config.norm_eps)
            fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_size, bias=False)
            self.mlp = nn.ModuleDict(
                {"fc1": fc1, "fc2": nn.Linear(config.ffn_size, config.hidden_size, bias=False)}
            )

    def forward(
        self, hidden: Tensor, cu_seqlens: Tensor, *state: Tensor | None
    ) -> tuple[Tensor, ...]:
        """hidden (T, Dm) and this layer's part of `Mamba3.state_shapes`, each None for zeros -> the
        new hidden and the new state.
        """
        out, *after = self.mixer(self.norm(hidden), cu_seqlens, None if state[0] is None else state)
        hidden = hidden + out
        if self.mlp is not None:
            value, gate = apply_linear(self.mlp["fc1"], self.norm2(hidden)).chunk(2, dim=-1)
            hidden = hidden + apply_linear(self.mlp["fc2"], value * F.silu(gate))
        return (hidden, *after)


class Mamba3(BlockBackbone[Mamba3Layer]):
    """A Mamba-3 backbone with fp32 weights, freshly initialized as published."""

    architecture = "mamba3"
    title = "Mamba-3"
    config_class = Mamba3Config
    matrices = (
        "in_proj.weight",
        "out_proj.weight",
        "fc1.weight",
        "fc2.weight",
        "embeddings.weight",
    )
    config: Mamba3Config

    def __init__(self, config: Mamba3Config) -> None:
        super().__init__(config, Mamba3Layer)
        # `ops.trapezoid` shortens the chunks by the ranks; copies as measured
        chunk = CHUNK // power_of_two(config.rank)
        self.plain = PlainForm("trapezoid", chunk=chunk, copies=11)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The state, the last token's turned keys and values, and the angles modulo a full turn."""
        c = self.config
        return {
            "ssm": (c.num_layers, c.num_heads, c.head_size, c.state_size),
            "k": (c.num_layers, c.num_heads, c.rank, c.state_size),
            "v": (c.num_layers, c.num_heads, c.head_size),
            "angle": (c.num_layers, c.num_heads, c.angles),
        }

    @property
    def step_bytes_per_token(self) -> int:
        c = self.config
        # B and C after their norms, the angles, and dt, A and trap of each head
        shared = 2 * c.rank * c.groups * c.state_size + c.angles + 3 * c.num_heads
        # of each head: q and k, before and after their turn, v, y and its stages; sums of angles
        heads = c.num_heads * (4 * c.rank * (c.state_size + c.head_size) + 6 * c.angles)
        return 4 * (  # bytes of fp32
            4 * c.hidden_size  # residual, normed, output, hidden
            + sum(c.projections)
            + shared
            + heads
            + c.inner_size  # the gated output
            + 3 * (c.ffn_size or 0)  # value, gate and their product
        )

    @property
    def flops_per_token(self) -> int:
        """Linear layers, and for each number of the state 1 operation for its decay and 6 for each
        rank: two inputs and the product with q.
        """
        c = self.config
        linear = c.hidden_size * (sum(c.projections) + c.inner_size + 3 * (c.ffn_size or 0))
        return c.num_layers * (2 * linear + (1 + 6 * c.rank) * c.inner_size * c.state_size)


def _sums(x: Tensor, cu_seqlens: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the angles at each token (T, H, Na) and after each sequence (S, H, Na): sums of x over
    the tokens so far, mod 2 pi.

    The sums are in fp64, because a sum grows with the text while only its rest modulo a full turn
    matters.
    """
    grid = Grid(cu_seqlens.to("cpu", torch.int64), CHUNK, torch.float64, x.device)
    start = x.new_zeros(cu_seqlens.numel() - 1, *x.shape[1:]) if before is None else before
    chunks = grid.put(x).cumsum(1)
    sums = chunks[:, -1]

    def advance(index: Tensor, states: States) -> States:
        return (states[0] + sums[index],)

    (entering,), (end,) = grid.carry((start.double(),), advance)
    at_token, at_end = (
        angle - 2 * math.pi * (angle / (2 * math.pi)).round()
        for angle in (chunks + entering[:, None], end)
    )
    return grid.take(at_token).to(x.dtype), at_end.to(x.dtype)


def _turn(x: Tensor, angle: Tensor, *, neighbors: bool) -> Tensor:
    """Turn pairs of the channels of x (T, H, R, N) by angle (T, H, 1, Na): channels 2i and 2i + 1,
    or i and i + N/2.
    """
    pairs = x.unflatten(-1, (-1, 2)) if neighbors else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    a, b = pairs[..., : angle.shape[-1], :].unbind(-1)
    cos = angle.cos()
    sin = angle.sin()
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    pairs = torch.cat([turned, pairs[..., angle.shape[-1] :, :]], dim=-2)
    return (pairs if neighbors else pairs.transpose(-1, -2)).flatten(-2)
