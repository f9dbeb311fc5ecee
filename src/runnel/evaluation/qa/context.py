"""The text of a document that a language model reads to answer a question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

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
    """Return those of the `ranked` spans whose joined text has at most `max_tokens` tokens; one that does not fit is left out."""
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
