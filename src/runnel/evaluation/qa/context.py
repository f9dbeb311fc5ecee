"""The text of a document that a language model reads to answer a question: excerpts that were retrieved, or windows of all of it.

S  sentences of a document, or other units that tile it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from runnel.errors import InputError
from runnel.text.dialogue import GAP

Span = tuple[int, int]
"""Characters [start, end) of a document."""


def merge(document: str, spans: Iterable[Span]) -> list[Span]:
    """Return spans in document order; overlapping ones and those with only white space between them are joined."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and (start <= merged[-1][1] or not document[merged[-1][1] : start].strip()):
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def join(document: str, spans: Iterable[Span]) -> str:
    """Return the text of spans in document order, with `GAP` in a line of its own where text is left out between them.

    Source: paper E, section 3, and the authors' code. Differs: gaps are marked; there they are line ends, as in the document.
    """
    texts = (document[start:end].strip() for start, end in merge(document, spans))
    return f"\n{GAP}\n".join(text for text in texts if text)


def locate(document: str, lines: Iterable[str]) -> tuple[Span, ...]:
    """Return where copied lines first occur, in document order; a line that is not in the document has no place."""
    found = (re.search(r"\s+".join(map(re.escape, line.split())), document) for line in lines)
    return tuple(sorted({match.span() for match in found if match}))


def fit(document: str, ranked: Sequence[Span], max_tokens: int, count: Callable[[str], int]) -> list[Span]:
    """Return the best spans whose joined text has at most `max_tokens` tokens; one that does not fit is passed over.

    Args:
        ranked: best first.
        count: returns the number of tokens of a text.

    Raises:
        InputError: none fits.
    """
    chosen: list[Span] = []
    for span in ranked:
        if count(join(document, [*chosen, span])) <= max_tokens:
            chosen.append(span)
    if ranked and not chosen:
        raise InputError(
            f"the best excerpt has {count(join(document, ranked[:1])):,} tokens; the budget of {max_tokens:,} has room for none: "
            "raise it"
        )
    return chosen


def windows(bounds: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return windows [first, last) of units, each of at most `size` tokens or one unit, that together have every unit.

    A window begins `stride` tokens after the one before it, or where that ends, whichever is first; the last ends with the text.

    Source: paper E, section 5.4: 120,000 and 60,000 tokens.

    Args:
        bounds: int64 (S + 1,), tokens before each unit, and of all; `np.arange(S + 1)` to count units.

    Raises:
        InputError: the stride is not from 1 to the size.
    """
    if not 1 <= stride <= size:
        raise InputError(f"the stride is {stride:,}; expected 1 to the window's size, {size:,}")
    found: list[tuple[int, int]] = []
    first = end = 0
    while end < len(bounds) - 1:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, side="right")) - 1)
        if last <= end:  # a long unit comes next, and the window would add nothing
            first += 1
            continue
        found.append((first, last))
        following = max(first + 1, int(np.searchsorted(bounds, bounds[first] + stride)))
        first, end = min(last, following), last
    return found
