"""RWKV-7 "Goose": token ids -> hidden vectors.

    T  tokens         S  sequences      H  num_heads       N  head_size
    D  hidden_size = H N

The model, with x the residual stream:

    x = norm_0(embeddings(ids))
    for each layer:
        x += att(norm_att(x))
        x += ffn(norm_ffn(x))

Both halves of a layer mix each normed token y with y', the token before it in its sequence (zero
before the first): mix(name) = y + (y' - y) * x_name, with a weight x_name (D,) of its own for each
use.

    att:  r = receptance(mix(r))
          k = key(mix(k))
          v = value(mix(v))
          w = -exp(-0.5) sigmoid(w0 + w_up(tanh(w_down(mix(w)))))     the logarithm of the decay
          a = sigmoid(a0 + a_up(a_down(mix(a))))
          g = g_up(sigmoid(g_down(mix(g))))
          v += (v of the first layer - v) * sigmoid(v0 + v_up(v_down(mix(v))))
          kk = k * k_k / |k * k_k|, the length of each head
          k *= 1 + (a - 1) * k_a
          o = wkv7(r, w, k, v, -kk, kk * a)                           see `ops.wkv7`
          out = output(g * (group_norm(o) + (sum over N of r * k * r_k) * v))

    ffn:  out = value(relu(key(mix(k))) ** 2)

Source: Peng et al., "RWKV-7 Goose with expressive dynamic state evolution", 2025; BlinkDL/RWKV-LM
    524481d.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Backbone, Markers, PlainForm, stream_dtype
from runnel.backbones.config import BackboneConfig
from runnel.backbones.layers import LayerNorm, apply_linear, run_layer, scan_dtype
from runnel.backbones.state import State
from runnel.ops.wkv7 import wkv7
from runnel.ops.wkv7.torch import CHUNK

_LOG_DECAY = -math.exp(-0.5)  # the fastest decay is exp(_LOG_DECAY) = 0.545 per token
_KK_FLOOR = 1e-12  # least length that removal keys are divided by, as in the official code


@dataclass(frozen=True)
class Rwkv7Config(BackboneConfig):
    """Shape of an RWKV-7 backbone, by default with the ranks of the published
    0.1B and 0.4B models.
    """

    head_size: int = 64
    ffn_size: int = 0  # 0: 4 x hidden_size, as published
    decay_rank: int = 64
    a_rank: int = 64
    v_rank: int = 32  # without effect on a model of one layer
    gate_rank: int = 128
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if not self.ffn_size:
            object.__setattr__(self, "ffn_size", 4 * self.hidden_size)
        super().__post_init__()
        self.expect_multiple("hidden_size", "head_size")

    @property
    def num_heads(self) -> int:
        return self.hidden_size // self.head_size

    @property
    def group_norm_eps(self) -> float:
        """eps of the norm of each head's output: 64e-5 in every published model."""
        return self.head_size * self.norm_eps


class Shift(NamedTuple):
    """Finds each token's predecessor.

    A sequence carries its last token from step to step. The rows to look in are the S carried
    tokens and then the T tokens of this step.
    """

    previous: Tensor  # (T,) int64, the row of each token's predecessor
    last: Tensor  # (S,) int64, the row to carry on; of an empty sequence, its carried token

    @classmethod
    def of(cls, cu_seqlens: Tensor, device: torch.device) -> Self:
        """Return it for packed sequences with the bounds cu_seqlens (S+1,)."""
        cu = cu_seqlens.to(device, torch.int64)
        rows = torch.arange(cu.numel() - 1, device=device)
        filled = cu.diff() > 0
        previous = torch.arange(int(cu[-1]), device=device) + rows.numel() - 1
        previous[cu[:-1][filled]] = rows[filled]
        return cls(previous, torch.where(filled, rows.numel() + cu[1:] - 1, rows))

    def __call__(self, x: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """x (T, D), carried (S, D) -> the predecessor of each token minus the token (T, D), and the
        tokens to carry on (S, D).
        """
        both = torch.cat([carried, x])
        return both[self.previous] - x, both[self.last]


class Rwkv7TimeMix(nn.Module):
    """The part of a layer with the recurrence. `v0`, `v_down` and `v_up` are absent in the first
    layer.
    """

    def __init__(self, config: Rwkv7Config, first: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.config, self.first = config, first
        # the weights of the token before in the mixes of r, w, k, v, a and g
        self.x_r = nn.Parameter(torch.zeros(width))
        self.x_w = nn.Parameter(torch.zeros(width))
        self.x_k = nn.Parameter(torch.zeros(width))
        self.x_v = nn.Parameter(torch.zeros(width))
        self.x_a = nn.Parameter(torch.zeros(width))
        self.x_g = nn.Parameter(torch.zeros(width))
        self.w0 = nn.Parameter(torch.zeros(width))
        self.a0 = nn.Parameter(torch.zeros(width))
        self.k_k = nn.Parameter(torch.zeros(width))
        self.k_a = nn.Parameter(torch.zeros(width))
        self.r_k = nn.Parameter(torch.zeros(config.num_heads, config.head_size))
        self.receptance = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.w_down, self.w_up = _low_rank(width, config.decay_rank)
        self.a_down, self.a_up = _low_rank(width, config.a_rank)
        self.g_down, self.g_up = _low_rank(width, config.gate_rank)
        if not first:
            self.v0 = nn.Parameter(torch.zeros(width))
            self.v_down, self.v_up = _low_rank(width, config.v_rank)
        self.ln_x = nn.GroupNorm(config.num_heads, width, config.group_norm_eps)

    def forward(
        self,
        x: Tensor,
        step_back: Tensor,
        cu_seqlens: Tensor,
        wkv: Tensor | None,
        v_first: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (T, D) and step_back (T, D) (the token before minus the token), wkv (S, H, N, N),
        v_first (T, D), the v of the first layer (None in that layer) -> out (T, D), the new wkv,
        v_first.
        """
        mixes = (self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g)
        x_r, x_w, x_k, x_v, x_a, x_g = (x + step_back * mix for mix in mixes)
        r = apply_linear(self.receptance, x_r)
        k = apply_linear(self.key, x_k)
        v = apply_linear(self.value, x_v)
        w = apply_linear(self.w_up, torch.tanh(apply_linear(self.w_down, x_w)))
        a = torch.sigmoid(self.a0 + apply_linear(self.a_up, apply_linear(self.a_down, x_a)))
        g = apply_linear(self.g_up, torch.sigmoid(apply_linear(self.g_down, x_g)))
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(
                self.v0 + apply_linear(self.v_up, apply_linear(self.v_down, x_v))
            )
        log_decay = _LOG_DECAY * torch.sigmoid(self.w0 + w)
        removed = k * self.k_k  # before k changes in the next line
        k = k * (1 + (a - 1) * self.k_a)
        heads = (self.config.num_heads, self.config.head_size)
        r, log_decay, k, v, a, removed = (
            y.unflatten(-1, heads) for y in (r, log_decay, k, v, a, removed)
        )
        kk = F.normalize(removed, dim=-1, eps=_KK_FLOOR)
        o, wkv = wkv7(
            r, log_decay, k, v.to(scan_dtype(self.value, v)), -kk, kk * a, cu_seqlens, wkv
        )
        # This is torch's group norm of each head, which refuses T = 0.
        weight, bias = (p.to(v.dtype).view(o.shape[1:]) for p in (self.ln_x.weight, self.ln_x.bias))
        o = F.layer_norm(o.to(v.dtype), o.shape[-1:], eps=self.ln_x.eps) * weight + bias
        o = o + (r * k * self.r_k).sum(-1, keepdim=True) * v
        return apply_linear(self.output, o.flatten(-2) * g), wkv, v_first


class Rwkv7ChannelMix(nn.Module):
    """The feed-forward part of a layer."""

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.value = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, step_back: Tensor) -> Tensor:
        """x and step_back (T, D) -> out (T, D)."""
        return apply_linear(
            self.value, F.relu(apply_linear(self.key, x + step_back * self.x_k)).square()
        )


class Rwkv7Layer(nn.Module):
    """Norms, both parts of a layer, and residuals."""

    def __init__(self, config: Rwkv7Config, first: bool) -> None:
        super().__init__()
        self.norm_att = LayerNorm(config.hidden_size, config.norm_eps)
        self.att = Rwkv7TimeMix(config, first)
        self.norm_ffn = LayerNorm(config.hidden_size, config.norm_eps)
        self.ffn = Rwkv7ChannelMix(config)

    def forward(
        self,
        hidden: Tensor,
        cu_seqlens: Tensor,
        shift: Shift,
        before: dict[str, Tensor],
        v_first: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """hidden (T, D), this layer's state by name (empty: zeros), v of the first layer (None in
        that layer) -> the new hidden, the new state, v of the first layer.
        """
        nothing = hidden.new_zeros(len(shift.last), hidden.shape[-1])
        normed = self.norm_att(hidden)
        back, att_shift = shift(normed, before.get("att_shift", nothing))
        out, wkv, v_first = self.att(normed, back, cu_seqlens, before.get("wkv"), v_first)
        hidden = hidden + out
        normed = self.norm_ffn(hidden)
        back, ffn_shift = shift(normed, before.get("ffn_shift", nothing))
        return (
            hidden + self.ffn(normed, back),
            {"att_shift": att_shift, "wkv": wkv, "ffn_shift": ffn_shift},
            v_first,
        )


class Rwkv7(Backbone):
    """An RWKV-7 backbone with fp32 weights, freshly initialized as published."""

    architecture = "rwkv7"
    title = "RWKV-7"
    config_class = Rwkv7Config
    matrices = (
        "embeddings.weight",
        "receptance.weight",
        "key.weight",
        "value.weight",
        "output.weight",
        "_down.weight",
        "_up.weight",
    )
    int8_layers = ("receptance", "key", "value", "output")
    stays_wide = ("_down", "_up")
    has_kernels = True
    plain = PlainForm("wkv7", chunk=CHUNK, copies=20)  # copies as measured
    model_types = ("rwkv7", "rwkv7_fla")
    markers: ClassVar[Markers] = {"RWKV World": (0, 0), "GPT-NeoX": (0, 0)}
    config: Rwkv7Config

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm_0 = LayerNorm(config.hidden_size, config.norm_eps)
        self.layers = nn.ModuleList(
            Rwkv7Layer(config, index == 0) for index in range(config.num_layers)
        )
        self.norm_f = LayerNorm(config.hidden_size, config.norm_eps)
        if not self.embeddings.weight.is_meta:
            _initialize(self)

    @property
    def blocks(self) -> list[Rwkv7Layer]:
        """The layers in order."""
        return [layer for layer in self.layers if isinstance(layer, Rwkv7Layer)]

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the last normed token of each half of a layer ("shift"), and of the
        recurrence's matrix, keys first.
        """
        c = self.config
        return {
            "att_shift": (c.num_layers, c.hidden_size),
            "wkv": (c.num_layers, c.num_heads, c.head_size, c.head_size),
            "ffn_shift": (c.num_layers, c.hidden_size),
        }

    @property
    def step_bytes_per_token(self) -> int:
        c = self.config
        # The two halves of a layer use the same memory in turn. att: r, w, k, v, a, g and o; ffn:
        # the mixed token and the inner vector.
        halves = max(7 * c.hidden_size, c.hidden_size + c.ffn_size)
        # embedding, residual, normed, output and v of the first layer; the low-rank vectors
        numbers = 5 * c.hidden_size + halves + c.decay_rank + c.a_rank + c.v_rank + c.gate_rank
        # in 8 bits also the bytes of a half's inputs, with the scales of the heads
        in_8_bits = max(3 * c.hidden_size, c.ffn_size) + 7 * c.num_heads + 12
        return 4 * numbers + in_8_bits

    @property
    def flops_per_token(self) -> int:
        c = self.config
        ranks = (
            c.num_layers * (c.decay_rank + c.a_rank + c.gate_rank) + (c.num_layers - 1) * c.v_rank
        )
        square = c.num_layers * (4 * c.hidden_size + 2 * c.ffn_size)
        recurrence = 9 * c.num_layers * c.hidden_size * c.head_size
        return 2 * c.hidden_size * (square + 2 * ranks) + recurrence

    def embed(self, ids: Tensor) -> Tensor:
        """Return normed embeddings (T, D), which enter the first layer. Vectors that are added to
        them need the scale of the residual stream.
        """
        return self.norm_0(
            F.embedding(ids, self.embeddings.weight).to(stream_dtype(self.embeddings.weight))
        )

    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.embed_with(ids, added).to(stream_dtype(self.embeddings.weight))
        shift = Shift.of(cu_seqlens, hidden.device)
        ends: dict[str, list[Tensor]] = {name: [] for name in self.state_shapes()}
        v_first: Tensor | None = None
        for index, layer in enumerate(self.blocks):
            before = (
                {}
                if state is None
                else {name: state[name][:, index].to(hidden.dtype) for name in ends}
            )
            hidden, after, v_first = run_layer(
                layer, recompute, hidden, cu_seqlens, shift, before, v_first
            )
            for name, end in after.items():
                ends[name].append(end)
        return self.norm_f(hidden), {
            name: torch.stack(layers, dim=1) for name, layers in ends.items()
        }


def _low_rank(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
    """Return the two factors of a matrix (D, D) of low rank: down (rank, D) and up (D, rank)."""
    return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)


@torch.no_grad()
def _initialize(model: Rwkv7) -> None:
    """Initialize as published: each layer adds nothing yet, the decays of the channels spread from
    slow to fast, and the low-rank parts give their biases alone. The numbers are the authors'.

    Source: RWKV_Tmix_x070, RWKV_CMix_x070 and generate_init_weight in
        RWKV-v7/train_temp/src/model.py of BlinkDL/RWKV-LM.
    """
    c = model.config
    # so small that training decides the embeddings
    nn.init.uniform_(model.embeddings.weight, -1e-4, 1e-4)
    channel = torch.arange(c.hidden_size, dtype=torch.float32)
    part = channel / c.hidden_size  # from 0 to almost 1 over the channels
    even = channel / max(1, c.hidden_size - 1)  # from 0 to 1 over the channels
    # from -1 to 1 within each head
    zigzag = (channel % c.head_size) / max(1, c.head_size - 1) * 2 - 1
    zigzag = zigzag * zigzag.abs()
    for index, layer in enumerate(model.blocks):
        depth = index / max(1, c.num_layers - 1)  # from 0 to 1 over the layers
        height = 1 - index / c.num_layers  # from 1 to almost 0 over the layers
        att, ffn = layer.att, layer.ffn
        bound = 0.5 * c.hidden_size**-0.5
        # shares of the token before in a mix: 1 in the first channel, less in each next one
        for mix, power in (
            (att.x_r, 0.2),
            (att.x_w, 0.9),
            (att.x_k, 0.7),
            (att.x_v, 0.7),
            (att.x_a, 0.9),
            (att.x_g, 0.2),
        ):
            mix.copy_(1 - part ** (power * height))
        att.w0.copy_(-5.5 + 6 * even ** (1 + depth**0.3) + 2.5 * zigzag)
        att.a0.copy_(-0.19 + 0.3 * zigzag + 0.4 * (even - 0.5))
        att.k_k.copy_(0.71 - 0.1 * (even - 0.5))
        att.k_a.fill_(1.02)
        att.r_k.fill_(-0.04)
        att.ln_x.weight.fill_(((1 + index) / c.num_layers) ** 0.7)
        pairs = [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        if not att.first:
            att.v0.copy_(0.73 - 0.4 * (even - 0.5))
            pairs.append((att.v_down, att.v_up))
        for down, up in pairs:
            nn.init.zeros_(down.weight)
            nn.init.orthogonal_(up.weight, 0.1)
        for linear, scale in (
            (att.receptance, 1.0),
            (att.key, 0.1),
            (att.value, 1.0),
            (ffn.key, 1.0),
        ):
            nn.init.uniform_(linear.weight, -scale * bound, scale * bound)
        ffn.x_k.copy_(1 - part ** (height**4))
        nn.init.zeros_(att.output.weight)
        nn.init.zeros_(ffn.value.weight)
