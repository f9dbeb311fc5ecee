"""xLSTM (the blocks of xLSTM-7B): token ids -> hidden vectors.

    T  tokens           S  sequences        H  num_heads
    D  hidden_size      L  num_layers
    K  key_size, of one head; H K = qk_size      V  value_size, of one head; H V = v_size

One block, with h the residual stream:

    u = norm_mlstm(h)
    q, k, v, o = q(u), k(u), v(u), ogate_preact(u)
    i = cap(igate_preact(u))                              cap(x) = gate_cap tanh(x / gate_cap)
    f = cap(fgate_preact(u))
    y = mlstm(q, k, v, i, f)                              see `ops.mlstm`
    h += out_proj(sigmoid(o) multihead_norm(y))           multihead_norm: a LayerNorm of each head
    u = norm_ffn(h)
    h += proj_down(silu(proj_up_gate(u)) proj_up(u))

The state has, for each head, the memory matrix C (K, V), its normalizer n (K,), and the number m,
the logarithm of their scale. Source: Beck et al., "xLSTM 7B", 2025.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Markers, PlainForm
from runnel.backbones.config import BackboneConfig
from runnel.backbones.layers import BlockBackbone, RMSNorm, apply_linear, to_weight_dtype
from runnel.ops.mlstm import mlstm
from runnel.ops.mlstm.torch import CHUNK

MlstmState = tuple[Tensor, Tensor, Tensor]  # C (S, H, K, V), n (S, H, K), m (S, H)

# Biases of the gates before training. The input gate starts almost closed.
_INPUT_GATE_BIAS = -10.0
# Of the first and the last head: the memory fades over about 20 and 400 tokens, because a token
# keeps sigmoid(3) = 0.953 and sigmoid(6) = 0.9975 of it.
_FORGET_GATE_BIAS = 3.0, 6.0


@dataclass(frozen=True)
class XlstmConfig(BackboneConfig):
    """Shape of an xLSTM backbone."""

    num_heads: int
    # width of the queries of all heads together, and of the keys (published: hidden_size / 2)
    qk_size: int
    v_size: int  # width of the values of all heads together (published: hidden_size)
    # width of the feed-forward layers (published: 8/3 hidden_size, rounded up to a multiple of 64)
    ffn_size: int
    # input and forget gates stay within +- this, before their exponential and sigmoid
    gate_cap: float = 15.0
    norm_eps: float = 1e-6  # of all norms
    cell_eps: float = 1e-6  # added to the divisor of the memory's output

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect_multiple("qk_size", "num_heads")
        self.expect_multiple("v_size", "num_heads")

    @property
    def key_size(self) -> int:
        return self.qk_size // self.num_heads

    @property
    def value_size(self) -> int:
        return self.v_size // self.num_heads


class CappedGate(nn.Module):
    """One number per head, within +- cap.

    Its weights stay fp32, and autocast leaves it alone: an exponential follows, and errors of all
    earlier tokens add up in it.
    """

    def __init__(self, hidden_size: int, bias: Tensor, cap: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(bias.numel(), hidden_size))
        self.bias = nn.Parameter(bias)
        self.cap = cap

    def forward(self, u: Tensor) -> Tensor:
        """u (T, D) -> (T, H) in u's dtype."""
        with torch.autocast(u.device.type, enabled=False):
            return self.cap * torch.tanh(
                F.linear(u, self.weight.to(u.dtype), self.bias.to(u.dtype)) / self.cap
            )


class HeadNorm(nn.Module):
    """LayerNorm over each head, with a weight per channel and no bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, y: Tensor) -> Tensor:
        """y (T, H, V) -> (T, H V) in y's dtype."""
        return F.layer_norm(y, y.shape[-1:], eps=self.eps).flatten(-2) * self.weight.to(y.dtype)


class MlstmLayer(nn.Module):
    """The first half of a block, between its norm and the residual addition."""

    def __init__(self, config: XlstmConfig) -> None:
        super().__init__()
        c = self.config = config
        self.q = nn.Linear(c.hidden_size, c.qk_size, bias=False)
        self.k = nn.Linear(c.hidden_size, c.qk_size, bias=False)
        self.v = nn.Linear(c.hidden_size, c.v_size, bias=False)
        self.ogate_preact = nn.Linear(c.hidden_size, c.v_size, bias=False)
        # On the CPU even where the default device is meta: see `init_dt_bias`.
        bias = torch.full((c.num_heads,), _INPUT_GATE_BIAS, device="cpu")
        self.igate_preact = CappedGate(c.hidden_size, bias, c.gate_cap)
        self.fgate_preact = CappedGate(
            c.hidden_size, torch.linspace(*_FORGET_GATE_BIAS, c.num_heads, device="cpu"), c.gate_cap
        )
        self.multihead_norm = HeadNorm(c.v_size, c.norm_eps)
        self.out_proj = nn.Linear(c.v_size, c.hidden_size, bias=False)
        for layer in (self.q, self.k, self.v, self.ogate_preact):
            nn.init.normal_(layer.weight, std=_small_std(c.hidden_size))
        _init_output(self.out_proj, c)

    def forward(
        self, u: Tensor, cu_seqlens: Tensor, state: MlstmState | None
    ) -> tuple[Tensor, MlstmState]:
        """u (T, D) and the state -> out (T, D) in the weights' dtype and the new state in u's."""
        heads = (self.config.num_heads, -1)
        inputs = to_weight_dtype(self.q, u)
        q, k, v = (
            apply_linear(layer, inputs).unflatten(-1, heads) for layer in (self.q, self.k, self.v)
        )
        y, state = mlstm(
            q,
            k,
            v,
            self.igate_preact(u),
            self.fgate_preact(u),
            cu_seqlens,
            state,
            eps=self.config.cell_eps,
        )
        y = torch.sigmoid(apply_linear(self.ogate_preact, inputs)) * self.multihead_norm(y)
        return apply_linear(self.out_proj, y), state


class FeedForward(nn.Module):
    """The second half of a block, between its norm and the residual addition."""

    def __init__(self, config: XlstmConfig) -> None:
        super().__init__()
        self.proj_up_gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.proj_up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.proj_down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)
        for layer in (self.proj_up_gate, self.proj_up):
            nn.init.normal_(layer.weight, std=_small_std(config.hidden_size))
        _init_output(self.proj_down, config)

    def forward(self, u: Tensor) -> Tensor:
        """u (T, D) -> (T, D) in the weights' dtype."""
        u = to_weight_dtype(self.proj_up, u)
        return apply_linear(
            self.proj_down,
            F.silu(apply_linear(self.proj_up_gate, u)) * apply_linear(self.proj_up, u),
        )


class XlstmLayer(nn.Module):
    """One block: both halves, their norms and residuals."""

    def __init__(self, config: XlstmConfig) -> None:
        super().__init__()
        self.norm_mlstm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlstm_layer = MlstmLayer(config)
        self.norm_ffn = RMSNorm(config.hidden_size, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(
        self,
        hidden: Tensor,
        cu_seqlens: Tensor,
        C: Tensor | None,
        n: Tensor | None,
        m: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hidden (T, D) and the state C, n, m -> the new hidden (T, D) and the new C, n, m."""
        before = None if C is None or n is None or m is None else (C, n, m)
        out, state = self.mlstm_layer(self.norm_mlstm(hidden), cu_seqlens, before)
        hidden = hidden + out
        return hidden + self.ffn(self.norm_ffn(hidden)), *state


class Xlstm(BlockBackbone[XlstmLayer]):
    """An xLSTM backbone with fp32 weights, freshly initialized as published."""

    architecture = "xlstm"
    title = "xLSTM"
    config_class = XlstmConfig
    matrices = (  # names of weights, or ends of names in each layer
        "embeddings.weight",
        *(f".mlstm_layer.{name}.weight" for name in ("q", "k", "v", "ogate_preact", "out_proj")),
        *(f".ffn.{name}.weight" for name in ("proj_up_gate", "proj_up", "proj_down")),
    )
    plain = PlainForm("mlstm", chunk=CHUNK, copies=5)  # of a chunk's tensors, as measured
    model_types = ("xlstm",)
    # The config forces a begin marker. The config's end marker, 2, is "!" in this vocabulary: 0 is
    # used instead.
    markers: ClassVar[Markers] = {"GPT-NeoX": (0, 0)}
    logit_cap = 30.0
    config: XlstmConfig

    def __init__(self, config: XlstmConfig) -> None:
        super().__init__(config, XlstmLayer, _small_std(config.hidden_size))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        heads = (c.num_layers, c.num_heads)
        return {"C": (*heads, c.key_size, c.value_size), "n": (*heads, c.key_size), "m": heads}

    @property
    def step_bytes_per_token(self) -> int:
        c = self.config
        return 4 * (  # bytes of fp32
            6 * c.hidden_size  # residual, normed, output, hidden, and inputs of two products
            + 4 * c.qk_size  # q and k, each also in the order of chunks
            + 4 * c.v_size  # v, o, y, gated y
            + 4 * c.ffn_size  # proj_up_gate, proj_up, silu, their product
            # weights of the tokens of a chunk; i, f and their sums
            + (CHUNK + 8) * c.num_heads
            + 32  # ids and indices, rounded up
        )

    @property
    def flops_per_token(self) -> int:
        c = self.config
        linear = c.hidden_size * (2 * c.qk_size + 3 * c.v_size + 2 * c.num_heads + 3 * c.ffn_size)
        return c.num_layers * (2 * linear + 5 * c.num_heads * c.key_size * c.value_size)


def _small_std(hidden_size: int) -> float:
    """Return the deviation of small weights: their variance is 2 / (5 D), as published (Nguyen and
    Salazar 2019).
    """
    return (2 / (5 * hidden_size)) ** 0.5


def _init_output(layer: nn.Linear, config: XlstmConfig) -> None:
    """Fill with normal numbers of deviation 2 / (L sqrt(D)), so that the residual stream does not
    grow with depth.
    """
    nn.init.normal_(layer.weight, std=2 / (config.num_layers * config.hidden_size**0.5))
