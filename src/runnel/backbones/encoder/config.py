"""The sizes of an encoder, the forms of its upper layers, and the blocks in which it reads a text,
with torch (`model.py`) and without (`arrays.py`).

A form is the encoder with one set of upper layers; all forms share the lower ones. Each is for one
use in pocket (`models/pocket/looks.py`), and any other encoder has only "texts":

    texts       a text by itself, such as a query or a passage
    sentences   the vectors of a text's sentences
    judge       sentences that are scored a second time, each with some text around it
    pair        the query and a sentence in one sequence

A block is what must be read together: a passage, which is whole sentences of a long text between
the markers [CLS] and [SEP]; or the whole text, in an encoder that does not read in passages.

    EncoderConfig   the sizes, and the names of a form's layers
    EncoderBlocks   the blocks of a text, and what a step costs; a base of `Encoder` and of:
    EncoderShape    an encoder without torch
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal, get_args

import numpy as np

from runnel.backbones.config import BackboneConfig, Blocks

MARKER_COUNT = 2  # [CLS] and [SEP] around a passage
Form = Literal["texts", "sentences", "judge", "pair"]
FORMS: tuple[Form, ...] = get_args(Form)
# the name of a form's own layers in the config and in the model; "texts" has the plain `layers`
_LAYERS: dict[Form, str] = {
    "sentences": "sentence_layers",
    "judge": "judge_layers",
    "pair": "pair_layers",
}


@dataclass(frozen=True)
class EncoderConfig(BackboneConfig):
    """The sizes of an encoder."""

    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    layer_norm_eps: float = 1e-12
    passage_tokens: int = 160  # the most tokens of a passage, without its markers
    # the marker [CLS], which begins each passage; None: the encoder reads any text whole
    begin_id: int | None = None
    # how many of the upper layers the forms "sentences", "judge" and "pair" replace by their own
    sentence_layers: int = 0
    judge_layers: int = 0
    pair_layers: int = 0
    unchecked = ("begin_id", *_LAYERS.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect_multiple("hidden_size", "num_heads")
        self.expect(
            self.passage_tokens + MARKER_COUNT <= self.max_positions,
            "passage_tokens",
            "max_positions",
            rule=f"passages and their {MARKER_COUNT} markers to fit the positions",
        )
        for name in _LAYERS.values():
            self.expect(
                0 <= getattr(self, name) <= self.num_layers,
                name,
                "num_layers",
                rule="at most all layers",
            )

    def layer_names(self, form: Form) -> list[str]:
        """Return the names of all layers of a form in order."""
        own = self.own_layers(form)
        return [f"layers.{i}" for i in range(self.num_layers - own)] + [
            f"{_LAYERS[form]}.{i}" for i in range(own)
        ]

    def own_layers(self, form: Form) -> int:
        """Return how many upper layers a form has of its own."""
        return getattr(self, _LAYERS[form]) if form in _LAYERS else 0

    def shared_layers(self, forms: Sequence[Form]) -> int:
        """Return how many lower layers all these forms have in common."""
        return self.num_layers - max(map(self.own_layers, forms))


class EncoderBlocks(Blocks):
    """The blocks of an encoder, and the memory and the operations that it needs for a token."""

    title = "Encoder"
    recurrent = False
    config: EncoderConfig
    max_tokens: int

    def set_config(self, config: EncoderConfig) -> None:
        super().set_config(config)
        self.max_tokens = config.max_positions
        self.own_sentences = config.sentence_layers > 0
        self.block = None if config.begin_id is None else config.passage_tokens

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    @property
    def step_bytes_per_token(self) -> int:
        c = self.config
        # attention: queries, keys and values, and their copy by sequences; or the feed-forward
        # layer, before and after its gelu
        halves = max(6 * c.hidden_size, 2 * c.intermediate_size)
        # bytes of fp32: residual, normed, input and output of a layer
        return 4 * (4 * c.hidden_size + halves)

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the sequence."""
        c = self.config
        return 2 * c.num_layers * c.hidden_size * (4 * c.hidden_size + 2 * c.intermediate_size)

    def flops(self, tokens: int) -> int:
        """Return what `Backbone.flops` returns, for a text that is read as one sequence, or, if it
        is too long, as several of the longest allowed.
        """
        seen = min(tokens, self.config.max_positions)
        return tokens * (self.flops_per_token + 4 * self.num_layers * self.hidden_size * seen)

    def block_ends(self, ids: np.ndarray) -> np.ndarray:
        """See `Blocks.block_ends`: a block ends before each marker that begins the next one."""
        if self.config.begin_id is None:
            return np.array([len(ids)])
        return np.append(np.flatnonzero(ids[1:] == self.config.begin_id) + 1, len(ids))


class EncoderShape(EncoderBlocks):
    """An encoder without torch. By itself it has no weights, only sizes and costs, from which an
    engine chooses the length of a step; `ArrayEncoder` adds weights.
    """

    architecture = "encoder"
    without_torch = True
    plain = None
    state_bytes = 0
    device = SimpleNamespace(type="meta")  # what torch calls the device of a module without memory

    def __init__(self, config: EncoderConfig) -> None:
        self.set_config(config)
