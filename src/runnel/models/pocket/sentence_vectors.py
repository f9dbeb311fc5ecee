"""The stored vectors of a document's sentences: one reading for every later question.

A sentence's vector is the normalized sum of the hidden vectors of its tokens. Sums are stored in 8
bits, and scores are always computed from the stored sums, so a remembered document has the same
scores as a document that has just been read.

    T  tokens      S  sentences of a document      P  passages      D  width of the vectors
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from runnel.backbones.config import Blocks
from runnel.models.memory import Remembered
from runnel.models.model import Model
from runnel.models.pocket.layout import lay_out, passages_of
from runnel.request import Array
from runnel.text.sentences import SentenceTokens

_WIDEST = 127  # the largest 8-bit number
# names of the stored arrays of `SentenceVectors`: what it always has, and what it may have
_ARRAYS = ("spans", "ids", "bounds", "vectors", "scales", "kinds")
_PASSAGES = ("passages", "passage_scales")


@dataclass(frozen=True, slots=True, eq=False)
class SentenceVectors(Remembered):
    """A remembered document."""

    text: str
    spans: np.ndarray  # (S, 2) int64 characters
    ids: np.ndarray  # (T,) int32 token ids of the text
    bounds: np.ndarray  # (S+1,) int64: sentence s has the tokens [bounds[s], bounds[s+1])
    vectors: np.ndarray  # (S, D) int8; zero for a sentence without a token
    # (S,) float32: vectors * scales are the sums of the hidden vectors of each sentence
    scales: np.ndarray
    kinds: np.ndarray  # (S,) uint8: as `SentenceTokens.kinds`
    # (P, D) int8 and (P,) float32, the same of each passage
    passages: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.spans)

    def sums(self) -> np.ndarray:
        """Return the sums of hidden vectors, (S, D) float32."""
        return self.vectors.astype(np.float32) * self.scales[:, None]

    def passage_sums(self, backbone: Blocks, prompt: int = 0) -> np.ndarray:
        """Return the sums of the hidden vectors of each passage as a text, (P, D) float32.
        `prompt`: tokens of the prompt.
        """
        if self.passages is not None:
            vectors, scales = self.passages
            return vectors.astype(np.float32) * scales[:, None]
        return np.add.reduceat(self.sums(), passages_of(self.bounds, backbone, prompt=prompt)[:-1])

    def arrays(self) -> Mapping[str, np.ndarray]:
        values = {name: getattr(self, name) for name in _ARRAYS}
        values["ids"] = (
            self.ids.astype(np.uint16) if self.ids.max(initial=0) < 1 << 16 else self.ids
        )
        for name in ("spans", "bounds"):
            if values[name].max(initial=0) < 1 << 32:
                values[name] = values[name].astype(np.uint32)
        return values | dict(zip(_PASSAGES, self.passages or (), strict=False))

    @classmethod
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> Self:
        spans, ids, bounds, vectors, scales, kinds = (arrays[name] for name in _ARRAYS)
        passages = (arrays[_PASSAGES[0]], arrays[_PASSAGES[1]]) if _PASSAGES[0] in arrays else None
        wide = spans.astype(np.int64), ids.astype(np.int32), bounds.astype(np.int64)
        return cls(text, *wide, vectors, scales, kinds, passages)


class SentenceSums:
    """Sums the hidden vectors of a document's sentences, and rounds each sum to 8 bits when its
    sentence or passage is complete.

    `passages`: also sum the vectors of passages, because sentences have layers of their own. Then a
    token has two hidden vectors side by side, (2 D,): first the one for passages, then the one for
    sentences.
    """

    def __init__(self, model: Model, tokens: SentenceTokens, *, passages: bool) -> None:
        backbone = model.backbone
        full = np.flatnonzero(tokens.full)
        self.layout = row = lay_out(
            tokens.ids,
            tokens.bounds,
            backbone,
            model.tokenizer.markers(),
            prompt=model.prompt_ids("document"),
        )
        inside = np.zeros(len(row.ids), np.float32)
        inside[row.places] = 1  # 0 for markers and prompts
        self._tokens = tokens
        width = backbone.hidden_size
        sentences = np.stack([row.starts, row.ends], axis=1)[full]
        self._sums = [_Rounded(len(tokens.spans), width, sentences, inside, full)]
        if passages:
            blocks = np.stack([row.edges[:-1], row.edges[1:]], axis=1)
            self._sums.insert(
                0, _Rounded(len(blocks), width, blocks, inside, np.arange(len(blocks)))
            )

    def take(self, start: int, hidden: Array) -> None:
        """Take the hidden vectors (n, D or 2 D) of tokens [start, start + n), whole blocks in
        order.
        """
        parts = np.hsplit(np.asarray(hidden), len(self._sums))
        for sums, part in zip(self._sums, parts, strict=True):
            sums.add(start, part)

    def result(self) -> SentenceVectors:
        """Return the document with its vectors; call it after the last token."""
        tokens = self._tokens
        *passages, sentences = [(sums.vectors, sums.scales) for sums in self._sums]
        return SentenceVectors(
            tokens.text,
            tokens.spans,
            tokens.ids,
            tokens.bounds,
            *sentences,
            tokens.kinds,
            *passages,
        )


class _Rounded:
    """Sums over k ranges of tokens in 8 bits, as rows of an array (count, D) with scales (count,);
    zeros before they are known.

    The edges of the ranges cut the row into stretches: stretch 0 before the first edge, then ranges
    and the gaps between them. A stretch is summed in fp32 as far as it is taken at a time, and in
    fp64 beyond that.
    """

    def __init__(
        self, count: int, width: int, ranges: np.ndarray, weights: np.ndarray, places: np.ndarray
    ) -> None:
        """Begin to sum the ranges (k, 2), which are in order, with the `weights` of all tokens;
        `places` (k,) says which rows of the result they are.
        """
        self.vectors = np.zeros((count, width), dtype=np.int8)
        self.scales = np.zeros(count, dtype=np.float32)
        self._ranges, self._weights = ranges, weights
        edges = np.unique(ranges)
        self._stretch_of = np.searchsorted(edges, np.arange(len(weights)), side="right")
        self._places = np.full(len(edges) + 1, -1)  # of each stretch; -1: a gap
        self._places[np.searchsorted(edges, ranges[:, 0], side="right")] = places
        self._open = (-1, np.zeros(width))  # the last stretch so far, and its sum

    def add(self, start: int, hidden: np.ndarray) -> None:
        """Add the hidden vectors (n, D) of tokens [start, start + n)."""
        # 1. The sums of the stretches.
        inside = slice(start, start + len(hidden))
        stretches, firsts = np.unique(self._stretch_of[inside], return_index=True)
        if len(self._ranges) == 1:  # usual for short texts, and faster
            first, last = np.clip(self._ranges[0], start, inside.stop)
            sums = (self._weights[first:last] @ hidden[first - start : last - start])[None]
            stretches = np.array([1])  # the range; before it is stretch 0
        else:
            sums = np.add.reduceat(self._weights[inside, None] * hidden, firsts)
        sums = sums.astype(np.float64)
        stretch, before = self._open
        if stretch == stretches[0]:
            sums[0] += before
        self._open = (int(stretches[-1]), sums[-1])
        # 2. The ranges among them, in 8 bits; a range that goes on is rounded again.
        places = self._places[stretches]
        own = sums[places >= 0].astype(np.float32)
        scale = np.abs(own).max(axis=-1, keepdims=True, initial=0) / np.float32(_WIDEST)
        self.vectors[places[places >= 0]] = np.rint(
            own / np.maximum(scale, np.finfo(np.float32).tiny)
        ).astype(np.int8)
        self.scales[places[places >= 0]] = scale[:, 0]
