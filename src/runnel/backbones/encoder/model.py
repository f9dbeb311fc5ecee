"""BERT's encoder: token ids -> hidden vectors, each token seen together with all others of its sequence.

    T  tokens           S  sequences             L  layers              V  rows of the embedding table
    D  hidden_size      F  intermediate_size     H  num_heads           P  head size (D = H P)
    B  sequences of one padded sub-batch         n  length of the longest of them

One layer: h = norm(h + out(attention(qkv(h)))); h = norm(h + down(gelu(up(h)))). Attention is softmax(q k^T / sqrt(P)) v within
a sequence, in both directions, and gelu is the exact one. Before the first layer h = norm(embedding + position).
Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018.

A sequence is a passage: whole sentences between the markers [CLS] and [SEP]. It is read whole, there is no state.

The upper layers may have other forms: `layers` ends with those for texts as a whole, `sentence_layers` are others, trained for
sentences (docs/pocket.md), `judge_layers` others again, trained to judge the best sentences a second time, and `pair_layers`
read the query and a sentence together. Every form continues from the lower layers that it does not have itself, and only
`step_forms` runs the others than that of texts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.base import Backbone, BackboneConfig, stream_dtype
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.layers import LayerNorm, WideBiasLinear, run_layer, sub_batches
from runnel.backbones.state import State
from runnel.errors import InputError
from runnel.ops.backend import inference

MARKERS = 2  # [CLS] and [SEP] around a passage
Form = Literal["texts", "sentences", "judge", "pair"]
FORMS: tuple[Form, ...] = get_args(Form)
_LAYERS: dict[Form, str] = {"sentences": "sentence_layers", "judge": "judge_layers", "pair": "pair_layers"}  # a form's own


@dataclass(frozen=True)
class EncoderConfig(BackboneConfig):
    """Shape of an encoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    layer_norm_eps: float = 1e-12
    passage_tokens: int = 160  # the most of a passage, between the markers
    begin_id: int | None = None  # the token that begins a passage; None: any text is one sequence
    sentence_layers: int = 0  # how many upper layers have another form for sentences, ...
    judge_layers: int = 0  # ... for the best of them, ...
    pair_layers: int = 0  # ... and for the query and one of these together
    unchecked = ("begin_id", *_LAYERS.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.hidden_size % self.num_heads == 0, "hidden_size", "num_heads", rule="a multiple of the latter")
        fits = self.passage_tokens + MARKERS <= self.max_positions
        self.expect(fits, "passage_tokens", "max_positions", rule=f"passages and their {MARKERS} markers to fit the positions")
        for name in _LAYERS.values():
            self.expect(0 <= getattr(self, name) <= self.num_layers, name, "num_layers", rule="at most all layers")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def own_layers(self, form: Form) -> int:
        """Return how many upper layers of a form are not those of texts."""
        return getattr(self, _LAYERS[form]) if form in _LAYERS else 0

    def shared_layers(self, forms: Sequence[Form]) -> int:
        """Return how many lower layers all these forms have in common."""
        return self.num_layers - max(map(self.own_layers, forms))


class Packing(NamedTuple):
    """Where the tokens of packed sequences are, made once for all layers.

    A sub-batch of sequences side by side is tokens (B, n) int64, the packed token at each place, and valid (B, n) bool: where it
    is False, which token of the sequence does not matter; None: no padding.
    """

    positions: Tensor  # (T,) int64, from 0 in each sequence
    batches: list[tuple[Tensor, Tensor | None]]
    order: Tensor  # (T,) int64: where each packed token is in the sub-batches' tokens laid end to end


def pack(cu_seqlens: Tensor, device: torch.device) -> Packing:
    """Return the sub-batches of sequences given by cu_seqlens (S+1,)."""
    cu = cu_seqlens.to("cpu", torch.int64)
    lengths = cu.diff()
    positions = torch.arange(int(cu[-1])) - cu[:-1].repeat_interleave(lengths)
    batches, read = [], [positions[:0]]
    for batch in sub_batches(lengths.tolist()):
        own = lengths[batch, None]
        place = torch.arange(int(own.max()))
        tokens, valid = cu[batch, None] + place.clamp(max=own - 1), place < own
        read.append(tokens[valid])
        batches.append((tokens.to(device), None if bool(valid.all()) else valid.to(device)))
    return Packing(positions.to(device), batches, torch.cat(read).argsort().to(device))


class EncoderLayer(nn.Module):
    """Attention and feed-forward network, each followed by the residual addition and a norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.heads = config.num_heads
        self.qkv = WideBiasLinear(width, 3 * width)  # rows: all heads' queries, all keys, all values
        self.out = WideBiasLinear(width, width)
        self.attention_norm = LayerNorm(width, eps)
        self.up = WideBiasLinear(width, config.intermediate_size)
        self.down = WideBiasLinear(config.intermediate_size, width)
        self.norm = LayerNorm(width, eps)
        for linear in self.linears:
            nn.init.normal_(linear.weight, std=0.02)

    @property
    def linears(self) -> list[nn.Linear]:
        """The linear layers in order."""
        return [self.qkv, self.out, self.up, self.down]

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """hidden (T, D) -> (T, D) in its dtype."""
        hidden = self.attention_norm(hidden + self.out(self._attend(self.qkv(hidden), packing)))
        return self.norm(hidden + self.down(F.gelu(self.up(hidden))))

    def _attend(self, qkv: Tensor, packing: Packing) -> Tensor:
        """Attend: qkv (T, 3 D) -> (T, D)."""
        values = [qkv[:0, : qkv.shape[1] // 3]]
        for tokens, valid in packing.batches:
            q, k, v = qkv[tokens].unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, n, P)
            mask = None if valid is None else valid[:, None, None]
            seen = F.scaled_dot_product_attention(q, k, v, mask).to(qkv.dtype).transpose(1, 2).flatten(-2)
            values.append(seen.flatten(0, 1) if valid is None else seen[valid])
        return torch.cat(values)[packing.order]


class Encoder(Backbone):
    """BERT's encoder with fp32 weights, freshly initialized as published. `formats` reads published weights.

    `positions` holds the position embeddings and, added to each, the embedding of the first token type: there is no other here.
    """

    architecture = "encoder"
    title = "Encoder"
    config_class = EncoderConfig
    model_types = ("bert", "roberta", "xlm-roberta", "camembert")
    matrices = ("qkv.weight", "out.weight", "up.weight", "down.weight", "embeddings.weight")
    int8_layers = ("qkv", "out", "up", "down")
    has_kernels = True
    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.hidden_size, self.num_layers = config.vocab_size, config.hidden_size, config.num_layers
        self.block = None if config.begin_id is None else config.passage_tokens
        self.max_tokens = config.max_positions
        self.own_sentences = config.sentence_layers > 0
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.sentence_layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.sentence_layers))
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
        own = [*getattr(self, _LAYERS[form])] if form in _LAYERS else []
        layers = [*self.layers[: self.num_layers - len(own)], *own]
        return [layer for layer in layers if isinstance(layer, EncoderLayer)]

    def shorten(self, longest: int) -> None:
        """Read sequences of at most `longest` tokens, as the model's makers do; the other positions go."""
        self.max_tokens = min(longest, self.config.max_positions)
        self.config = replace(self.config, max_positions=self.max_tokens)
        table = self.positions.weight
        self.positions.weight = nn.Parameter(table.detach()[: self.max_tokens], requires_grad=table.requires_grad)

    def in_passages(self, begin_id: int) -> Encoder:
        """Return this encoder, with the same weights in memory, reading long texts in passages of up to 160 tokens."""
        other = copy.copy(self)
        other.config = replace(self.config, begin_id=begin_id, passage_tokens=min(160, self.config.max_positions - MARKERS))
        other.block = other.config.passage_tokens
        return other

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, queries, keys, values, what the heads see, and the wider of these and the feed-forward layer, all fp32."""
        c = self.config
        return 4 * (4 * c.hidden_size + max(6 * c.hidden_size, 2 * c.intermediate_size))

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the sequence."""
        c = self.config
        return 2 * c.num_layers * c.hidden_size * (4 * c.hidden_size + 2 * c.intermediate_size)

    def linear_layers(self) -> list[nn.Linear | Int8Linear]:
        """See `Backbone.linear_layers`: those of `step`, without other forms."""
        others = {module for name in _LAYERS.values() for module in getattr(self, name).modules()}
        return [layer for layer in super().linear_layers() if layer not in others]

    def flops(self, tokens: int) -> int:
        """As `Backbone.flops`, for a text that is read as one sequence, or as many of the longest allowed."""
        seen = min(tokens, self.config.max_positions)
        return tokens * (self.flops_per_token + 4 * self.num_layers * self.hidden_size * seen)

    def block_ends(self, ids: np.ndarray) -> np.ndarray:
        if self.config.begin_id is None:
            return np.array([len(ids)])
        return np.append(np.flatnonzero(ids[1:] == self.config.begin_id) + 1, len(ids))

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embeddings.weight).to(stream_dtype(self.embeddings.weight))

    def _forward(self, hidden: Tensor, cu_seqlens: Tensor, state: State | None, recompute: bool = False) -> tuple[Tensor, State]:
        packing, hidden = self._begin(hidden, cu_seqlens)
        for layer in self.blocks:
            hidden = run_layer(layer, recompute, hidden, packing)
        return hidden, State({}, torch.zeros(cu_seqlens.numel() - 1, dtype=torch.int64))

    def _begin(self, hidden: Tensor, cu_seqlens: Tensor) -> tuple[Packing, Tensor]:
        """Return where the tokens are, and what enters the first layer (T, D)."""
        packing = pack(cu_seqlens, hidden.device)
        hidden = hidden.to(stream_dtype(self.embeddings.weight))
        return packing, self.norm(hidden + F.embedding(packing.positions, self.positions.weight).to(hidden.dtype))

    @inference()
    def step_forms(self, ids: Tensor, cu_seqlens: Tensor, added: Tensor | None = None, *, forms: Sequence[Form]) -> Tensor:
        """Run one step of the engine with one or more forms, their common lower layers once; arguments as of `forward`.

        Returns:
            hidden (T, D) fp32 of each form, side by side. That of texts is what `step` returns, as is that of a form without
            layers of its own.
        """
        self.check_whole(cu_seqlens, continues=False)
        hidden = self.embed_with(ids, added)
        if self.fast is not None:
            fast: Any = self.fast  # an `EncoderCpu`
            out: Tensor = fast.step_forms(hidden, cu_seqlens, forms)
            return out
        packing, hidden = self._begin(hidden, cu_seqlens)
        shared = self.config.shared_layers(forms)
        hidden = _run(self.blocks[:shared], hidden, packing)
        return torch.cat([_run(self.layers_of(form)[shared:], hidden, packing) for form in forms], dim=1).float()

    def read_with(self, upper: nn.ModuleList, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Run sequences through the lower layers and then `upper`, those of a form in training; gradients reach only these.

        ids (T,) and cu_seqlens (S+1,) int64, no sequence longer than `max_tokens` -> hidden (T, D) fp32.
        """
        with torch.no_grad():
            packing, hidden = self._begin(self.embed(ids), cu_seqlens)
            hidden = _run(self.blocks[: self.num_layers - len(upper)], hidden, packing)
        return _run(upper, hidden, packing).float()


def _run(layers: Iterable[nn.Module], hidden: Tensor, packing: Packing) -> Tensor:
    for layer in layers:
        hidden = layer(hidden, packing)
    return hidden


NO_PROMPT = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A document as an encoder reads it. Markers are inside a sentence only if it is longer than the longest block."""

    ids: np.ndarray  # int32, of the text and the markers around its blocks
    places: np.ndarray  # (T,) int64, the index of each token of the text in `ids`
    starts: np.ndarray  # int64, the first token of each sentence in `ids`
    ends: np.ndarray  # int64, the token after its last
    passages: np.ndarray  # int64, the first sentence of each passage, and the number of sentences
    edges: np.ndarray  # int64, the start of each passage in `ids`, including its marker, and the length of `ids`


def whole_tokens(backbone: Backbone, prompt: int = 0) -> int:
    """Return the tokens, without markers and a prompt of `prompt` tokens, of the longest text that is read as a single block."""
    assert backbone.max_tokens is not None
    longest = backbone.max_tokens - MARKERS - prompt
    if longest < 1:
        raise InputError(f"the prompt has {prompt} tokens, and {backbone.title} reads {backbone.max_tokens} at once; shorten it")
    return longest


def lay_out(
    ids: np.ndarray,
    bounds: np.ndarray,
    backbone: Backbone,
    markers: tuple[int, int],
    *,
    prompt: np.ndarray = NO_PROMPT,
    begun: bool = False,
) -> Layout:
    """Lay out a document in blocks.

    A document that the backbone can read as one block is one passage. A longer one is cut into passages of up to `backbone.block`
    tokens. A sentence longer than the longest block is a passage of several blocks.

    Args:
        ids: (T,) token ids of the text; without one there is no passage.
        bounds: token bounds of its sentences, one more than these, as in `SentenceTokens`.
        markers: ids that begin and end a block (`Tokenizer.markers`).
        prompt: ids that follow the marker at the start of each block.
        begun: the text continues a document whose first passages are already laid out.
    """
    if not len(ids):
        none = np.zeros(len(bounds) - 1, dtype=np.int64)
        return Layout(ids, none[:0], none, none, np.zeros(1, np.int64), np.zeros(1, np.int64))
    longest, head = whole_tokens(backbone, len(prompt)), np.append(markers[0], prompt).astype(np.int32)
    passages = passages_of(bounds, backbone, prompt=len(prompt), begun=begun)
    cuts = bounds[passages]
    if (np.diff(cuts) > longest).any():
        cuts = np.unique(np.concatenate([cuts, *(np.arange(a, b, longest) for a, b in itertools.pairwise(cuts))]))
    block, around = np.arange(len(cuts) - 1), len(head) + 1
    row = np.empty(len(ids) + around * len(block), dtype=np.int32)
    row[(cuts[:-1] + around * block)[:, None] + np.arange(len(head))] = head
    row[cuts[1:] + around * block + len(head)] = markers[1]
    places = np.arange(len(ids)) + around * np.repeat(block, np.diff(cuts)) + len(head)
    row[places] = ids
    starts = np.append(places, places[-1] + 1)[bounds[:-1]]
    ends = np.where(np.diff(bounds) > 0, places[np.maximum(bounds[1:] - 1, 0)] + 1, starts)
    return Layout(row, places, starts, ends, passages, np.append(places[bounds[passages[:-1]]] - len(head), len(row)))


def passages_of(bounds: np.ndarray, backbone: Backbone, *, prompt: int = 0, begun: bool = False) -> np.ndarray:
    """Return the first sentence of each passage of `lay_out`, and the number of sentences. `prompt`: its tokens."""
    longest = whole_tokens(backbone, prompt)
    if bounds[-1] <= longest and not begun:
        return np.array([0, len(bounds) - 1])
    assert backbone.block is not None
    return passage_bounds(bounds, min(backbone.block, longest))


def passage_bounds(bounds: np.ndarray, most: int) -> np.ndarray:
    """Group sentences into passages, from the start, so that appended text changes only the last one; each holds a token.

    From the sentences' token bounds, one more than these, and the most tokens of a passage of several, return the first sentence
    of each passage, and the number of sentences.
    """
    chosen = [0]
    for sentence in range(1, len(bounds) - 1):
        begun = bounds[sentence] > bounds[chosen[-1]]
        if begun and bounds[sentence + 1] - bounds[chosen[-1]] > most and bounds[-1] > bounds[sentence]:
            chosen.append(sentence)
    return np.array([*chosen, len(bounds) - 1], dtype=np.int64)
