"""BERT's encoder: token ids -> hidden vectors, each token seen together with all others of its
sequence.

    T  tokens           S  sequences      H  num_heads      P  head_size
    D  hidden_size = H P
    B  sequences of one padded sub-batch      n  length of the longest of them

The model, with h the residual stream:

    h = norm(embeddings(ids) + positions)
    for each layer:
        q, k, v = qkv(h)
        h = attention_norm(h + out(softmax(q k^T / sqrt(P)) v))     within a sequence, both ways
        h = norm(h + down(gelu(up(h))))                             the exact gelu, with erf

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", 2018.

A sequence is a passage: whole sentences between the markers [CLS] and [SEP]. It is read whole,
there is no state.

The upper layers may exist in several forms (docs/pocket.md). The form "texts" has the layers in
`layers`. Another form replaces the last few of them by layers of its own and shares the lower ones:
"sentences" has `sentence_layers`, trained for sentences; "judge" has `judge_layers`, trained to
judge the best sentences a second time; "pair" has `pair_layers`, which read the query and a
sentence together. `forward` and `step` run the form "texts", `step_forms` any.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.encoder.config import MARKER_COUNT, EncoderBlocks, EncoderConfig, Form
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.layers import LayerNorm, WideBiasLinear, run_layer, sub_batches
from runnel.backbones.state import State
from runnel.ops.backend import inference, plain_numbers


class Packing(NamedTuple):
    """Where the tokens of packed sequences are, made once for all layers.

    Attention runs on sub-batches of sequences of similar length, padded to a rectangle.
    """

    positions: Tensor  # (T,) int64, from 0 in each sequence
    # Of each sub-batch, `tokens` (B, n) int64, the packed token at each place, and `valid` (B, n)
    # bool, False where the place is padding, where `tokens` repeats the sequence's last one; None:
    # no padding.
    batches: list[tuple[Tensor, Tensor | None]]
    # (T,) int64: where each packed token is in the sub-batches' tokens laid end to end
    order: Tensor


def pack(cu_seqlens: Tensor, device: torch.device) -> Packing:
    """Return the sub-batches of sequences given by cu_seqlens (S+1,)."""
    cu = cu_seqlens.to("cpu", torch.int64)
    lengths = cu.diff()
    positions = torch.arange(int(cu[-1])) - cu[:-1].repeat_interleave(lengths)
    batches = []
    read = [positions[:0]]  # `cat` needs a tensor if there is no token
    for batch in sub_batches(lengths.tolist()):
        own = lengths[batch, None]
        place = torch.arange(int(own.max()))
        tokens = cu[batch, None] + place.clamp(max=own - 1)
        valid = place < own
        read.append(tokens[valid])
        batches.append((tokens.to(device), None if bool(valid.all()) else valid.to(device)))
    return Packing(positions.to(device), batches, torch.cat(read).argsort().to(device))


class EncoderLayer(nn.Module):
    """Attention and feed-forward network, each followed by the residual addition and a norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.heads = config.num_heads
        # its outputs: the queries of all heads, then the keys of all heads, then the values
        self.qkv = WideBiasLinear(width, 3 * width)
        self.out = WideBiasLinear(width, width)
        self.attention_norm = LayerNorm(width, eps)
        self.up = WideBiasLinear(width, config.intermediate_size)
        self.down = WideBiasLinear(config.intermediate_size, width)
        self.norm = LayerNorm(width, eps)
        for linear in (self.qkv, self.out, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """hidden (T, D) -> (T, D) in its dtype."""
        hidden = self.attention_norm(hidden + self.out(self._attend(self.qkv(hidden), packing)))
        return self.norm(hidden + self.down(F.gelu(self.up(hidden))))

    def _attend(self, qkv: Tensor, packing: Packing) -> Tensor:
        """Run attention within each sequence: qkv (T, 3 D) -> (T, D)."""
        values = [qkv[:0, : qkv.shape[1] // 3]]  # (0, D): `cat` needs a tensor if T is 0
        for tokens, valid in packing.batches:
            # each (B, H, n, P)
            q, k, v = qkv[tokens].unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mask = None if valid is None else valid[:, None, None]
            seen = (
                F.scaled_dot_product_attention(q, k, v, mask)
                .to(qkv.dtype)
                .transpose(1, 2)
                .flatten(-2)
            )
            values.append(seen.flatten(0, 1) if valid is None else seen[valid])
        return torch.cat(values)[packing.order]


class Encoder(EncoderBlocks, Backbone):
    """BERT's encoder with fp32 weights, freshly initialized as published. `formats` reads published
    weights.

    `positions` is the sum of BERT's position embeddings and of its embedding of the first token
    type: no other type is used here.
    """

    architecture = "encoder"
    config_class = EncoderConfig
    model_types = ("bert", "roberta", "xlm-roberta", "camembert")
    matrices = ("qkv.weight", "out.weight", "up.weight", "down.weight", "embeddings.weight")
    int8_layers = ("qkv", "out", "up", "down")
    has_kernels = True
    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.sentence_layers = nn.ModuleList(
            EncoderLayer(config) for _ in range(config.sentence_layers)
        )
        self.judge_layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.judge_layers))
        self.pair_layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.pair_layers))
        nn.init.normal_(self.embeddings.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    @property
    def blocks(self) -> list[EncoderLayer]:
        """The layers for texts in order."""
        return self.layers_of("texts")

    def layers_of(self, form: Form) -> list[EncoderLayer]:
        """Return all layers of a form in order."""
        names = self.config.layer_names(form)
        return [cast("EncoderLayer", self.get_submodule(name)) for name in names]

    def shorten(self, longest: int) -> None:
        """Read sequences of at most `longest` tokens, as the model's makers do; drop the embeddings
        of the positions after them.
        """
        self.set_config(replace(self.config, max_positions=min(longest, self.config.max_positions)))
        table = self.positions.weight
        self.positions.weight = nn.Parameter(
            table.detach()[: self.max_tokens], requires_grad=table.requires_grad
        )

    def in_passages(self, begin_id: int) -> Self:
        """Return this encoder, with the same weights in memory, reading long texts in passages of
        up to 160 tokens.
        """
        other = copy.copy(self)
        passage = min(160, self.config.max_positions - MARKER_COUNT)
        other.set_config(replace(self.config, begin_id=begin_id, passage_tokens=passage))
        return other

    def linear_layers(self) -> list[nn.Linear | Int8Linear]:
        """Return the linear layers of `step`, without those of forms other than "texts"."""
        own = {module for layer in self.blocks for module in layer.modules()}
        return [layer for layer in super().linear_layers() if layer in own]

    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        packing, hidden = self._begin(self.embed_with(ids, added), cu_seqlens)
        for layer in self.blocks:
            hidden = run_layer(layer, recompute, hidden, packing)
        return hidden, {}

    def _begin(self, hidden: Tensor, cu_seqlens: Tensor) -> tuple[Packing, Tensor]:
        """Return where the tokens are, and what enters the first layer (T, D)."""
        packing = pack(cu_seqlens, hidden.device)
        hidden = hidden.to(stream_dtype(self.embeddings.weight))
        return packing, self.norm(
            hidden + F.embedding(packing.positions, self.positions.weight).to(hidden.dtype)
        )

    @inference()
    @plain_numbers()
    def step_forms(
        self, ids: np.ndarray, cu_seqlens: np.ndarray, forms: Sequence[Form]
    ) -> np.ndarray:
        """Read whole sequences with one or more forms, their common lower layers once.

        Args:
            ids: (T,) int64; cu_seqlens: (S+1,) int64.

        Returns:
            hidden (T, D) fp32 of each form, side by side. The form "texts", and a form without
            layers of its own, give what `step` returns.
        """
        self.check_whole(cu_seqlens, continues=False)
        bounds = torch.from_numpy(cu_seqlens)
        hidden = self.embed(torch.from_numpy(ids).to(self.device))
        if self.fast is not None:
            fast: Any = self.fast  # an `EncoderCpu`
            return fast.step_forms(hidden, bounds, forms).numpy()
        packing, hidden = self._begin(hidden, bounds)
        shared = self.config.shared_layers(forms)
        hidden = _run(self.blocks[:shared], hidden, packing)
        rows = [_run(self.layers_of(form)[shared:], hidden, packing) for form in forms]
        return torch.cat(rows, dim=1).float().cpu().numpy()

    def read_with(self, upper: nn.ModuleList, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Run sequences through the lower layers and then `upper`, a form's own layers, in
        training; gradients reach only `upper`, because all forms share the lower layers.

        ids (T,) and cu_seqlens (S+1,) int64, no sequence longer than `max_tokens` -> hidden (T, D)
        fp32.
        """
        with torch.no_grad():
            packing, hidden = self._begin(self.embed(ids), cu_seqlens)
            hidden = _run(self.blocks[: self.num_layers - len(upper)], hidden, packing)
        return _run(upper, hidden, packing).float()


def _run(layers: Iterable[nn.Module], hidden: Tensor, packing: Packing) -> Tensor:
    for layer in layers:
        hidden = layer(hidden, packing)
    return hidden
