"""Pieces of documents for what reads a part at a time: windows of tokens, windows of whole sentences, chunks of words.

S  units that tile a text: sentences, tokens
"""

from __future__ import annotations

import re
from itertools import islice, pairwise

import numpy as np

from runnel.errors import InputError
from runnel.records import expect_count
from runnel.text.sentences import split_sentences


def expect_stride(stride: int, size: int) -> None:
    """Raise InputError unless windows of `size` tokens that begin each `stride` tokens together have every token."""
    if not 1 <= stride <= size:
        raise InputError(f"the stride is {stride:,} tokens; expected 1 to {size:,}, the tokens of a window or segment")


def windows(bounds: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return windows [first, last) of units, each of at most `size` tokens or one unit, that together have every unit.

    A window begins `stride` tokens after the one before it, or where that ends, whichever is first; the last ends with the text.
    `bounds` is int64 (S + 1,): the tokens before each unit, and of all.

    Source: paper E, section 5.4: 120,000 and 60,000 tokens.
    """
    spans: list[tuple[int, int]] = []
    first = end = 0
    while end < len(bounds) - 1:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, side="right")) - 1)
        if last <= end:  # a long unit comes next, and the window would add nothing
            first += 1
            continue
        spans.append((first, last))
        at = bounds[first] + stride  # a unit without tokens there stays in this window
        following = max(int(np.searchsorted(bounds, at)), int(np.searchsorted(bounds, at, side="right")) - 1)
        first, end = min(last, max(first + 1, following)), last
    return spans


def cut_sentences(document: str, starts: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return the characters of `windows` of whole sentences; `starts` (T,): the character at which each token starts."""
    edges = np.append(split_sentences(document)[:, 0], len(document))
    return [(int(edges[first]), int(edges[last])) for first, last in windows(np.searchsorted(starts, edges), size, stride)]


def split_chunks(document: str, words: int) -> np.ndarray:
    """Return the spans (n, 2) of chunks that tile a document; all but the last have `words` words.

    Source: paper E, 5.2, whose embedders retrieve five chunks of 300 words.
    """
    expect_count(words, "the words of a chunk")
    starts = [0, *(match.start() for match in islice(re.finditer(r"\S+", document), words, None, words))]
    return np.array(list(pairwise([*starts, len(document)])), np.int64)
