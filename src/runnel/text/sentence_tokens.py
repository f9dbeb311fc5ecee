"""The units that sentence retrieval scores, their tokens, and the token at which each is scored.

Tokens are counted as they come from the tokenizer, piece by piece, so only their ids (4 bytes each) are kept.

S  units of a text   T  its tokens
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from runnel.errors import InputError
from runnel.text.encoded import Encoded
from runnel.text.sentences import split_clauses, split_paragraphs, split_sentences, tile

Unit = Literal["sentence", "clauses", "paragraph"]
UNITS: tuple[Unit, ...] = get_args(Unit)
CLAUSE_TOKENS = 20  # the fewest tokens of a unit of clauses


@dataclass(frozen=True, slots=True, eq=False)
class SentenceTokens:
    """The units of a text as ranges of its tokens.

    Attributes:
        text: the text.
        spans: (S, 2) int64 characters; they tile the text.
        ids: (T,) int32 token ids of the whole text.
        bounds: (S+1,) int64: unit s has the tokens [bounds[s], bounds[s+1]) that start in it; a unit of only control characters,
            say, may have none.
        ends: (S,) int64: the token at which a unit is scored: its last token with a visible character, or its last token
            if none is visible. Meaningless for a unit without tokens.
    """

    text: str
    spans: np.ndarray
    ids: np.ndarray
    bounds: np.ndarray
    ends: np.ndarray

    @property
    def full(self) -> np.ndarray:
        """(S,) bool: the units with a token."""
        return np.diff(self.bounds) > 0

    def part(self, first: int, last: int) -> SentenceTokens:
        """Return the units [first, last); their spans still refer to the whole text."""
        a, b = int(self.bounds[first]), int(self.bounds[last])
        bounds, ends = self.bounds[first : last + 1] - a, self.ends[first:last] - a
        return SentenceTokens(self.text, self.spans[first:last], self.ids[a:b], bounds, ends)


def check_unit(unit: str) -> None:
    """Raise InputError if this is not a known unit."""
    if unit not in UNITS:
        raise InputError(f"unit is {unit!r}; expected one of {', '.join(UNITS)}")


def read_sentences(text: str, pieces: Iterable[Encoded], *, unit: Unit = "sentence", language: str = "en") -> SentenceTokens:
    """Split a text into units and find their tokens.

    Source: paper E scores a sentence at its last token. Its released weights were trained on "clauses": clauses joined until
    they have `CLAUSE_TOKENS` tokens, without whitespace at their ends.
    Differs: no text is dropped, so a unit's span may end with whitespace; the scored position ignores it.

    Args:
        pieces: the tokens of `text` in order, with offsets into it.
        unit: "sentence" (`split_sentences`), "clauses", or "paragraph" (`split_paragraphs`).
        language: for sentence boundaries.

    Raises:
        InputError: an unknown unit or language.
    """
    check_unit(unit)
    if unit == "paragraph":
        spans = split_paragraphs(text)
    else:
        spans = split_clauses(text, language) if unit == "clauses" else split_sentences(text, language)
    units = read_spans(text, pieces, spans)
    return _joined(units, CLAUSE_TOKENS) if unit == "clauses" else units


def whole_spans(spans: object) -> np.ndarray:
    """Return a user's spans as an array (n, 2) int64.

    Raises:
        InputError: they are not pairs of whole numbers.
    """
    try:
        array = np.asarray(spans)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if not array.size:
        return np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu" or array.max() >= 1 << 62:
        raise InputError(f"spans are {reprlib.repr(spans)}; expected pairs of whole numbers, (n, 2)")
    return array.astype(np.int64)


def read_spans(text: str, pieces: Iterable[Encoded], spans: np.ndarray) -> SentenceTokens:
    """Find the tokens of spans (S, 2) that tile a text; `pieces` as in `read_sentences`."""
    visible = np.fromiter((start + len(text[start:end].rstrip()) for start, end in spans.tolist()), np.int64, len(spans))
    ids, counts = _count(pieces, np.stack([spans[:, 0], visible], axis=1).ravel())
    bounds = np.append(counts[::2], len(ids))
    bounds[0] = 0
    last = counts[1::2] - 1
    ends = np.where(last >= bounds[:-1], last, bounds[1:] - 1)
    return SentenceTokens(text, spans, ids, bounds, ends)


def sentence_of_tokens(spans: np.ndarray, encoded: Encoded) -> np.ndarray:
    """Assign each token to the sentence it starts in.

    Args:
        spans: (S, 2) int64 from a `split_` function, tiling the text.
        encoded: the tokens of the same text.

    Returns:
        (S + 1,) int64 as `SentenceTokens.bounds`.
    """
    bounds = np.append(_count([encoded], spans[:, 0])[1], len(encoded))
    bounds[0] = 0
    return bounds if len(spans) else np.zeros(1, dtype=np.int64)


def _count(pieces: Iterable[Encoded], offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids (T,) int32 and, per ascending offset (n,), the number of tokens before the first at or after it."""
    ids: list[np.ndarray] = []
    counts = np.empty(len(offsets), dtype=np.int64)
    total = done = furthest = 0
    for piece in pieces:
        if not len(piece):
            continue
        starts = np.maximum(np.maximum.accumulate(piece.starts), furthest)
        furthest = int(starts[-1])
        stop = int(np.searchsorted(offsets, furthest, side="right"))
        counts[done:stop] = total + np.searchsorted(starts, offsets[done:stop], side="left")
        done, total = stop, total + len(piece)
        ids.append(piece.ids)
    counts[done:] = total
    return np.concatenate(ids) if ids else np.zeros(0, np.int32), counts


def _joined(parts: SentenceTokens, least: int) -> SentenceTokens:
    """Join neighboring units until they have `least` tokens; a short last unit joins the one before."""
    count = len(parts.spans)
    if not count:
        return parts
    first, tokens = [0], 0
    for number, length in enumerate(np.diff(parts.bounds).tolist(), start=1):
        tokens += length
        if tokens >= least and number < count:
            first.append(number)
            tokens = 0
    if len(first) > 1 and tokens < least:
        first.pop()
    last = np.array([*first[1:], count]) - 1
    spans = tile(parts.spans[first, 0].tolist(), int(parts.spans[-1, 1]))
    return SentenceTokens(parts.text, spans, parts.ids, parts.bounds[[*first, count]], parts.ends[last])
