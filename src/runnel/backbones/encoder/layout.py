"""What of an encoder needs no kernels: its shape, GELU in numpy, and a document as it reads it.

A long document is read in passages of whole sentences, each between markers.

T  tokens of a text
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import numpy as np

from runnel.config import BackboneConfig, Blocks
from runnel.errors import InputError

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

    def layer_names(self, form: Form) -> list[str]:
        """Return the names of all layers of a form in order."""
        own = self.own_layers(form)
        return [f"layers.{i}" for i in range(self.num_layers - own)] + [f"{_LAYERS[form]}.{i}" for i in range(own)]

    def own_layers(self, form: Form) -> int:
        """Return how many upper layers of a form are not those of texts."""
        return getattr(self, _LAYERS[form]) if form in _LAYERS else 0

    def shared_layers(self, forms: Sequence[Form]) -> int:
        """Return how many lower layers all these forms have in common."""
        return self.num_layers - max(map(self.own_layers, forms))


class EncoderBlocks(Blocks):
    """The blocks of an encoder."""

    title = "Encoder"
    config: EncoderConfig
    max_tokens: int
    vocab_size: int
    hidden_size: int
    num_layers: int

    def set_config(self, config: EncoderConfig) -> None:
        self.config, self.max_tokens, self.own_sentences = config, config.max_positions, config.sentence_layers > 0
        self.vocab_size, self.hidden_size, self.num_layers = config.vocab_size, config.hidden_size, config.num_layers
        self.block = None if config.begin_id is None else config.passage_tokens

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, queries, keys, values, what the heads see, and the wider of these and the feed-forward layer, all fp32."""
        c = self.config
        return 4 * (4 * c.hidden_size + max(6 * c.hidden_size, 2 * c.intermediate_size))

    def block_ends(self, ids: np.ndarray) -> np.ndarray:
        if self.config.begin_id is None:
            return np.array([len(ids)])
        return np.append(np.flatnonzero(ids[1:] == self.config.begin_id) + 1, len(ids))


# GELU, for the kernels too. Half of erf(x / sqrt 2) is x P(x^2) / Q(x^2) within 7.7e-9 up to |x| = END, and within 2e-8 of a half
# beyond; fitted by reweighted least squares in fp64. Highest powers first. In fp32 GELU has an error of at most 2e-7 max(1, |x|).
GELU_END = 5.5
GELU_P = (
    2.282993395499275e-08,
    6.3268574862180675e-06,
    1.667907649267483e-4,
    4.664966695949949e-3,
    3.366523478850658e-2,
    0.39894225854283266,
)
GELU_Q = (1.1979583582935856e-06, 7.29323578524655e-05, 1.8730919496306097e-3, 2.8536430754691915e-2, 0.25105241647376714, 1.0)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x Phi(x), Phi the normal distribution, of fp32 or fp64 numbers in their dtype; exactly 0 or x beyond `GELU_END`."""
    inside = np.clip(x, -GELU_END, GELU_END)
    square = inside * inside
    over, under = (reduce(lambda total, c: total * square + c, factors, np.zeros_like(x)) for factors in (GELU_P, GELU_Q))
    phi = np.where(np.abs(x) > GELU_END, x > 0, inside * (over / under) + 0.5)
    result: np.ndarray = x * phi.astype(x.dtype)
    return result


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


def whole_tokens(backbone: Blocks, prompt: int = 0) -> int:
    """Return the tokens, without markers and a prompt of `prompt` tokens, of the longest text that is read as a single block."""
    assert backbone.max_tokens is not None
    longest = backbone.max_tokens - MARKERS - prompt
    if longest < 1:
        raise InputError(f"the prompt has {prompt} tokens, and {backbone.title} reads {backbone.max_tokens} at once; shorten it")
    return longest


def lay_out(
    ids: np.ndarray,
    bounds: np.ndarray,
    backbone: Blocks,
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


def passages_of(bounds: np.ndarray, backbone: Blocks, *, prompt: int = 0, begun: bool = False) -> np.ndarray:
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
