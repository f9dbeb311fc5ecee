"""Encoders that read a document in passages and carry a state from one passage to the next.

T  tokens of packed passages, markers counted   S  sentences   D  width   U  upper layers

Both read a document once, from its start, in memory that does not grow: within a passage each token
sees all others, and a Mamba-2 mixer brings what earlier passages left in its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.encoder.model import Encoder, EncoderLayer, Packing
from runnel.backbones.mamba2.model import Mamba2Config, Mamba2Mixer
from runnel.backbones.mamba2_encoder.model import (
    Mamba2Encoder,
    Mamba2EncoderConfig,
    Mamba2EncoderLayer,
)
from runnel.models.folder import load_model
from runnel.models.pocket.layout import lay_out

_MARKERS = (101, 102)
_STATE = 64  # numbers of a channel's state
_HEAD = 64  # channels of a mixer's head


class Text(NamedTuple):
    """Token ids (T,), and the token bounds (S+1,) of its sentences."""

    ids: np.ndarray
    bounds: np.ndarray


class Packed(NamedTuple):
    """Texts as they are read together: ids (T,), bounds of blocks and of texts, the range of
    each sentence, and which tokens are no markers. All but the bounds are on the model's device.
    """

    ids: Tensor
    blocks: Tensor
    texts: Tensor
    starts: Tensor
    ends: Tensor
    inside: Tensor


def packed(texts: Sequence[Text], encoder: Encoder, *, apart: bool = False) -> Packed:
    """Lay texts out in blocks, one text after another; with `apart` each sentence is a block."""
    parts = [_apart(text) if apart else [text] for text in texts]
    rows = [lay_out(*part, encoder, _MARKERS) for text in parts for part in text]
    at = np.cumsum([0, *(len(row.ids) for row in rows)])
    inside = torch.zeros(int(at[-1]))
    for row, start in zip(rows, at.tolist(), strict=False):
        inside[torch.from_numpy(row.places + start)] = 1.0
    ids = torch.from_numpy(np.concatenate([row.ids for row in rows])).long()
    begins = torch.nonzero((ids == _MARKERS[0]) & (inside == 0))[:, 0]
    blocks = torch.cat([begins, torch.tensor([int(at[-1])])])
    starts = np.concatenate([row.starts + start for row, start in zip(rows, at, strict=False)])
    ends = np.concatenate([row.ends + start for row, start in zip(rows, at, strict=False)])
    bounds = at[np.cumsum([0, *(len(text) for text in parts)])]
    device = encoder.device
    return Packed(
        ids.to(device),
        blocks,
        torch.from_numpy(bounds),
        torch.from_numpy(starts).to(device),
        torch.from_numpy(ends).to(device),
        inside.to(device),
    )


def _apart(text: Text) -> list[Text]:
    """Return the sentences of a text as texts."""
    edges = pairwise(text.bounds.tolist())
    return [Text(text.ids[a:b], np.array([0, b - a])) for a, b in edges]


class WithMemory(nn.Module):
    """Pocket's encoder for sentences with Mamba-2 mixers before its upper layers. Their output
    projections are zero at first, so that training starts with pocket's vectors.

    Only the mixers are trained, so that whatever is gained comes from the memory.

    Args:
        apart: each sentence is a block of its own, so that only the memory knows what is around it.
    """

    def __init__(self, *, apart: bool = False) -> None:
        super().__init__()
        self.apart = apart
        encoder = load_model("pocket", "float32", "cpu").backbone
        assert isinstance(encoder, Encoder)
        self.encoder = encoder.requires_grad_(False)
        count = encoder.config.sentence_layers
        self.lower = encoder.blocks[: encoder.num_layers - count]
        self.upper = encoder.sentence_layers
        width = encoder.hidden_size
        config = Mamba2Config(
            vocab_size=1, hidden_size=width, num_layers=count, state_size=_STATE, expand=1
        )
        self.mixers = nn.ModuleList(Mamba2Mixer(config) for _ in range(count))
        for mixer in self.mixers:
            nn.init.zeros_(mixer.get_submodule("out_proj").get_parameter("weight"))

    def begin(self, row: Packed) -> tuple[Packing, Tensor]:
        """Return where the tokens of packed texts are, and what enters the upper layers (T, D)."""
        with torch.no_grad():
            packing, hidden = self.encoder._begin(self.encoder.embed(row.ids), row.blocks)
            for layer in self.lower:
                hidden = layer(hidden, packing)
        return packing, hidden

    def end(self, row: Packed, packing: Packing, hidden: Tensor, *, memory: bool = True) -> Tensor:
        """Return the unit vectors (S, D) of all sentences; zeros for one without tokens."""
        for layer, mixer in zip(self.upper, self.mixers, strict=True):
            if memory:
                hidden = hidden + mixer(hidden, row.texts, None, None)[0]
            hidden = layer(hidden, packing)
        return sentence_vectors(hidden, row)

    def forward(self, texts: Sequence[Text]) -> Tensor:
        """Return the unit vectors (S, D) of all sentences of the texts."""
        row = packed(texts, self.encoder, apart=self.apart)
        return self.end(row, *self.begin(row))


def sentence_vectors(hidden: Tensor, row: Packed) -> Tensor:
    """Return unit vectors (S, D): the mean over the tokens of each sentence, without markers."""
    sums = F.pad((hidden * row.inside[:, None]).double().cumsum(0), (0, 0, 1, 0))
    return F.normalize((sums[row.ends] - sums[row.starts]).float(), dim=-1)


class Replaced(nn.Module):
    """MiniLM with its attention replaced by mixers: embeddings, feed-forward networks and norms are
    kept, and only the mixers are trained. A mixer's x begins as attention's values, and leaves
    through attention's output projection.
    """

    def __init__(self) -> None:
        super().__init__()
        encoder = load_model("pocket", "float32", "cpu").backbone
        assert isinstance(encoder, Encoder)
        self.encoder = encoder.requires_grad_(False)
        c = encoder.config
        config = Mamba2EncoderConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            num_layers=c.num_layers,
            num_heads=c.hidden_size // _HEAD,
            intermediate_size=c.intermediate_size,
            max_positions=c.max_positions,
            layer_norm_eps=c.layer_norm_eps,
            passage_tokens=c.passage_tokens,
            begin_id=c.begin_id,
            state_size=_STATE,
        )
        self.reader = Mamba2Encoder(config).requires_grad_(False)
        self.reader.load_state_dict(encoder.state_dict(), strict=False)
        for own, layer in self._pairs():
            own.out_bias.copy_(layer.out.bias)
            for mixer in (own.forwards, own.backwards):
                mixer.in_proj.weight[c.hidden_size : 2 * c.hidden_size] = layer.qkv.weight[
                    2 * c.hidden_size :
                ]
                mixer.out_proj.weight.copy_(layer.out.weight)
                mixer.requires_grad_(True)

    def _pairs(self) -> Iterator[tuple[Mamba2EncoderLayer, EncoderLayer]]:
        """Yield each layer with the encoder's."""
        for own, layer in zip(self.reader.layers, self.encoder.layers_of("texts"), strict=True):
            assert isinstance(own, Mamba2EncoderLayer)
            yield own, layer

    def block_loss(self, row: Packed) -> Tensor:
        """Return the mean over layers of the squared distance between what stands for the
        attention's output and that output, as a share of its square; each layer reads what the
        encoder's layer reads.
        """
        places, _ = self.reader.begin(row.ids, None, row.texts)
        packing, hidden = self.encoder._begin(self.encoder.embed(row.ids), row.blocks)
        losses = []
        for own, layer in self._pairs():
            with torch.no_grad():
                attended = layer.out(layer._attend(layer.qkv(hidden), packing))
            away = (own.mix(hidden, places, None, None)[0] - attended).square().mean()
            losses.append(away / attended.square().mean())
            with torch.no_grad():
                hidden = layer(hidden, packing)
        return torch.stack(losses).mean()

    def hidden(self, row: Packed) -> Tensor:
        """Return the hidden vectors (T, D) of packed texts."""
        hidden, _ = self.reader(row.ids, row.texts)
        return hidden

    def teacher(self, row: Packed) -> Tensor:
        """Return the encoder's own hidden vectors (T, D)."""
        with torch.no_grad():
            hidden, _ = self.encoder(row.ids, row.blocks)
        return hidden

    def forward(self, texts: Sequence[Text]) -> Tensor:
        """Return the unit vectors (S, D) of all sentences of the texts."""
        row = packed(texts, self.encoder)
        return sentence_vectors(self.hidden(row), row)
