"""BERT's encoder with Mamba-2 in place of attention: token ids -> hidden vectors.

    T  tokens           S  texts           D  hidden_size = num_heads P
    H  num_heads        P  head_size       N  state_size
    L  num_layers       Cd conv_channels = D + 2 N        w  conv_width

The model, with h the residual stream:

    h = norm(embeddings(ids) + positions)
    for each layer:
        m = forwards(h) + backwards(h) + out_bias
        h = attention_norm(h + m)
        h = norm(h + down(gelu(up(h))))                   the exact gelu, with erf

`forwards` and `backwards` are Mamba-2 mixers (`backbones/mamba2/model.py`). A text is read in
passages, each between the markers [CLS] and [SEP], as an encoder reads it. `forwards` goes through
the whole text, so what earlier passages say is in its state; `backwards` goes through each passage
from its last token to its first, and forgets it. So a token sees its passage and all passages
before it, and a text is read once, from its start, in memory that does not grow.

A step may end after any passage. The state is that of `forwards` in each layer.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.config import EncoderBlocks, EncoderConfig
from runnel.backbones.layers import LayerNorm, WideBiasLinear, run_layers
from runnel.backbones.mamba2.model import Mamba2Config, Mamba2Mixer
from runnel.backbones.state import State


@dataclass(frozen=True)
class Mamba2EncoderConfig(EncoderConfig):
    """The sizes of an encoder with Mamba-2 mixers; `num_heads` are the heads of a mixer."""

    state_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sentence_layers", "judge_layers", "pair_layers"):
            self.expect(getattr(self, name) == 0, name, rule="0, because there is only one form")

    @property
    def mixer(self) -> Mamba2Config:
        """The sizes of a mixer."""
        return Mamba2Config(
            vocab_size=1,  # it has no embeddings
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            state_size=self.state_size,
            head_size=self.hidden_size // self.num_heads,
            expand=1,
        )


class Passages(NamedTuple):
    """Where the texts of a step and their passages are, made once for all layers."""

    texts: Tensor  # (S+1,) int64, the bounds of texts, on the CPU
    passages: Tensor  # the bounds of all their passages
    positions: Tensor  # (T,) int64, of each token in its passage, from 0
    turned: Tensor  # (T,) int64, the tokens with each passage turned around

    @classmethod
    def of(cls, ids: Tensor, texts: Tensor, begin_id: int | None) -> Self:
        """Return the passages of ids (T,), of texts with these bounds. A passage begins with
        `begin_id`; None: each text is one passage.
        """
        texts = texts.to("cpu", torch.int64)
        begins = torch.nonzero(ids.cpu() == begin_id)[:, 0] if begin_id is not None else texts[:0]
        passages = torch.cat([begins, texts]).unique()
        lengths = passages.diff().repeat_interleave(passages.diff())
        starts = passages[:-1].repeat_interleave(passages.diff())
        positions = torch.arange(len(ids)) - starts
        turned = starts + lengths - 1 - positions
        return cls(texts, passages, positions.to(ids.device), turned.to(ids.device))


class Mamba2EncoderLayer(nn.Module):
    """Two mixers and a feed-forward network; the residual addition and a norm follow each."""

    def __init__(self, config: Mamba2EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.forwards = Mamba2Mixer(config.mixer)
        self.backwards = Mamba2Mixer(config.mixer)
        self.out_bias = nn.Parameter(torch.zeros(width))
        self.attention_norm = LayerNorm(width, config.layer_norm_eps)
        self.up = WideBiasLinear(width, config.intermediate_size)
        self.down = WideBiasLinear(config.intermediate_size, width)
        self.norm = LayerNorm(width, config.layer_norm_eps)
        for linear in (self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def mix(
        self, hidden: Tensor, places: Passages, conv: Tensor | None, ssm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what stands for the output of attention (T, D), and the new states of
        `forwards`.
        """
        before, conv, ssm = self.forwards(hidden, places.texts, conv, ssm)
        after, _, _ = self.backwards(hidden[places.turned], places.passages, None, None)
        return before + after[places.turned] + self.out_bias, conv, ssm

    def forward(
        self, hidden: Tensor, places: Passages, conv: Tensor | None, ssm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden (T, D) -> the new hidden and the new states of `forwards`."""
        mixed, conv, ssm = self.mix(hidden, places, conv, ssm)
        hidden = self.attention_norm(hidden + mixed)
        return self.norm(hidden + self.down(F.gelu(self.up(hidden)))), conv, ssm


class Mamba2Encoder(EncoderBlocks, Backbone):
    """An encoder with Mamba-2 mixers and fp32 weights, freshly initialized as its parts are."""

    architecture = "mamba2_encoder"
    title = "Mamba-2 encoder"
    config_class = Mamba2EncoderConfig
    matrices = (
        "in_proj.weight",
        "out_proj.weight",
        "up.weight",
        "down.weight",
        "embeddings.weight",
    )
    recurrent = True  # a state goes from passage to passage
    config: Mamba2EncoderConfig

    def __init__(self, config: Mamba2EncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(Mamba2EncoderLayer(config) for _ in range(config.num_layers))
        nn.init.normal_(self.embeddings.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        mixer = self.config.mixer
        return {
            "conv": (self.num_layers, mixer.conv_channels, mixer.conv_width - 1),
            "ssm": (self.num_layers, mixer.num_heads, mixer.head_size, mixer.state_size),
        }

    @property
    def step_bytes_per_token(self) -> int:
        """The residual stream and the outputs of both mixers; and a mixer's projection, x, B and C
        after the convolution, and y before and after its norm, or the feed-forward layer before and
        after its gelu, fp32.
        """
        mixer = self.config.mixer
        mixing = mixer.projection_size + mixer.conv_channels + 2 * mixer.inner_size
        return 4 * (4 * self.hidden_size + max(mixing, 2 * self.config.intermediate_size))

    @property
    def flops_per_token(self) -> int:
        """Linear layers; and of each mixer the convolution and the recurrence, as Mamba-2 counts
        them.
        """
        mixer = self.config.mixer
        linear = 2 * self.hidden_size * (mixer.projection_size + mixer.inner_size)
        scan = 2 * mixer.conv_width * mixer.conv_channels + 5 * mixer.inner_size * mixer.state_size
        network = 4 * self.hidden_size * self.config.intermediate_size
        return self.num_layers * (2 * (linear + scan) + network)

    def flops(self, tokens: int) -> int:
        return Backbone.flops(self, tokens)

    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        places, hidden = self.begin(ids, added, cu_seqlens)
        return run_layers(self.layers, ["conv", "ssm"], hidden, places, state, recompute)

    def step_rows(
        self, ids: np.ndarray, cu_seqlens: np.ndarray, state: State | None
    ) -> tuple[np.ndarray, State]:
        """Read whole passages of texts, laid end to end; the first text goes on from `state`.

        Args:
            ids: (T,) int64; cu_seqlens: (S+1,) int64, of texts.
            state: of one row; None: the first text begins here, as all others do. It is changed.

        Returns:
            hidden (T, D) fp32, and the state after the last text.
        """
        pool = self.new_state(1) if state is None else state
        read_rows = torch.full((len(cu_seqlens) - 1,), -1)
        write_rows = read_rows.clone()
        if state is not None:
            read_rows[0] = 0
        write_rows[-1] = 0
        row = torch.from_numpy(ids).to(self.device)
        hidden = self.step(row, torch.from_numpy(cu_seqlens), pool, read_rows, write_rows)
        return hidden.float().cpu().numpy(), pool

    def begin(
        self, ids: Tensor, added: Tensor | None, cu_seqlens: Tensor
    ) -> tuple[Passages, Tensor]:
        """Return where the tokens are, and what enters the first layer (T, D). Arguments as for
        `forward`.
        """
        places = Passages.of(ids, cu_seqlens, self.config.begin_id)
        self.check_whole(places.passages, continues=False)
        hidden = self.embed_with(ids, added)
        positions = F.embedding(places.positions, self.positions.weight).to(hidden.dtype)
        return places, self.norm(hidden + positions)
