"""The stored vectors of a document's sentences: one reading for every later question.

A sentence's vector is the normalized sum of the hidden vectors of its tokens. Sums are stored in 8
bits, and scores are always computed from the stored sums, so a remembered document has the same
scores as a document that has just been read.

    T  tokens      S  sentences of a document      P  passages      D  width of the vectors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runnel.backbones.config import Blocks
from runnel.models.memory import Remembered
from runnel.models.model import Model
from runnel.models.pocket.layout import lay_out, passages_of
from runnel.request import Array, RangeSums
from runnel.text.sentences import SentenceTokens

_WIDEST = 127  # the largest 8-bit number
_ARRAYS = ("spans", "ids", "bounds", "vectors", "scales", "kinds")  # of `SentenceVectors`, ...
_PASSAGES = ("passages", "passage_scales")  # ... and those that it may have


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
        return _wide(self.vectors, self.scales)

    def passage_sums(self, backbone: Blocks, prompt: int = 0) -> np.ndarray:
        """Return the sums of the hidden vectors of each passage as a text, (P, D) float32.
        `prompt`: tokens of the prompt.
        """
        if self.passages is not None:
            return _wide(*self.passages)
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
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> SentenceVectors:
        spans, ids, bounds, vectors, scales, kinds = (arrays[name] for name in _ARRAYS)
        passages = (arrays[_PASSAGES[0]], arrays[_PASSAGES[1]]) if _PASSAGES[0] in arrays else None
        wide = spans.astype(np.int64), ids.astype(np.int32), bounds.astype(np.int64)
        return cls(text, *wide, vectors, scales, kinds, passages)


class SentenceSums:
    """Sums the hidden vectors of a document's sentences, and rounds each sum to 8 bits when its
    sentence or passage is complete.

    `passages`: sentences have layers of their own. Then a token has two hidden vectors side by
    side, (2 D,): first the one for passages, then the one for sentences.
    """

    def __init__(self, model: Model, tokens: SentenceTokens, *, passages: bool) -> None:
        backbone = model.backbone
        markers = model.tokenizer.markers()
        full = np.flatnonzero(tokens.full)
        prompt = model.prompt_ids("document")
        self.layout = row = lay_out(tokens.ids, tokens.bounds, backbone, markers, prompt=prompt)
        inside = np.zeros(len(row.ids), np.float32)
        inside[row.places] = 1  # 0 for markers and prompts
        self._tokens = tokens
        sentences = np.stack([row.starts, row.ends], axis=1)[full]
        blocks = np.stack([row.edges[:-1], row.edges[1:]], axis=1)
        self._sentences = _Rounded(len(tokens.spans), backbone.hidden_size, sentences, inside, full)
        self._passages: _Rounded | None = None
        if passages:
            self._passages = _Rounded(
                len(blocks), backbone.hidden_size, blocks, inside, np.arange(len(blocks))
            )

    def take(self, start: int, hidden: Array) -> None:
        """Take the hidden vectors (n, D or 2 D) of tokens [start, start + n);
        see `Request.take`.
        """
        read = np.asarray(hidden)
        if self._passages is not None:
            whole, read = np.hsplit(read, 2)
            self._passages.add(start, whole)
        self._sentences.add(start, read)

    def result(self) -> SentenceVectors:
        """Return the document with its vectors; call it after the last token."""
        tokens = self._tokens
        passages = None
        if self._passages is not None:
            passages = (self._passages.vectors, self._passages.scales)
        return SentenceVectors(
            tokens.text,
            tokens.spans,
            tokens.ids,
            tokens.bounds,
            self._sentences.vectors,
            self._sentences.scales,
            tokens.kinds,
            passages,
        )


class _Rounded:
    """Sums over ranges in 8 bits, (n, D), with scales (n,); zeros before they are known."""

    def __init__(
        self, count: int, width: int, ranges: np.ndarray, weights: np.ndarray, places: np.ndarray
    ) -> None:
        """Begin to sum: `places` (k,) says which rows the ranges (k, 2) are."""
        self.vectors = np.zeros((count, width), dtype=np.int8)
        self.scales = np.zeros(count, dtype=np.float32)
        self._sums = RangeSums(ranges)
        self._weights = weights
        self._places = places

    def add(self, start: int, hidden: np.ndarray) -> None:
        stop = start + len(hidden)
        self._sums.add(stop, self._sums.part(start, hidden, self._weights[start:stop]))
        first, complete = self._sums.take_complete()
        places = self._places[first : first + len(complete)]
        sums = complete[:, :-1].astype(np.float32)
        scale = np.abs(sums).max(axis=-1, keepdims=True, initial=0) / np.float32(_WIDEST)
        self.vectors[places] = np.rint(sums / np.maximum(scale, np.finfo(np.float32).tiny)).astype(
            np.int8
        )
        self.scales[places] = scale[:, 0]


def _wide(vectors: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float32) * scales[:, None]
