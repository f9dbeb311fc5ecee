"""The stretch of a text that is nearest to a quote, and the words in which they differ.

The window of the text with the most rare words of the quote is aligned with it word by word. The time is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

import numpy as np

_CANDIDATES = 8  # windows to align
_NEAR = 0.6  # the least similarity of a changed quote: below it, sentences share no more than frequent words and a topic
UNSPACED = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # Chinese and Japanese: no spaces
_CHARACTERS = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
_WORD = f"(?:[^\\W{_CHARACTERS}]|[\u0300-\u036f])+"  # with its accents
_AROUND = 4  # tokens around a stretch to align once more, as for quotation marks
# A character of such a script, a word, also hyphenated at a line end, or a punctuation mark.
_TOKEN = re.compile(rf"[{_CHARACTERS}]|{_WORD}(?:[-\u2010\u00ad][^\S\n]*+\n\s*+{_WORD})*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Change:
    """Words in which a quote differs from the characters [start, end) of a text; "" where words were added or left out."""

    quote: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Nearest:
    """The stretch of a text nearest to a quote: characters [start, end).

    `similarity` is the share of the letters of the quote's words that the stretch has in the same order; `near` is whether
    that is enough to call the quote a changed copy.
    """

    start: int
    end: int
    similarity: float
    changes: tuple[Change, ...]

    @property
    def near(self) -> bool:
        return self.similarity >= _NEAR


@dataclass(frozen=True)
class _Tokens:
    text: str
    spans: list[tuple[int, int]]
    words: list[str]  # folded

    def slice(self, first: int, stop: int) -> tuple[int, int]:
        """Return the characters of tokens [first, stop); an empty range is the place before token `first`."""
        if first < stop:
            return self.spans[first][0], self.spans[stop - 1][1]
        at = self.spans[first][0] if first < len(self.spans) else len(self.text)
        return at, at

    def count(self, first: int, stop: int) -> int:
        """Return the number of words among tokens [first, stop): all but marks."""
        return sum(word[:1].isalnum() for word in self.words[first:stop])


def nearest(quote: str, text: str, fold: Callable[[str], str], equal: Callable[[str, str], bool]) -> Nearest | None:
    """Return the stretch of `text` with the most words of `quote` in order; None if they share no word.

    Words are compared in the form that `fold` returns. Stretches that are `equal` are not reported as changed.
    """
    fold = cache(fold)
    wanted, tokens = _tokens(quote, fold), _tokens(text, fold)
    best = None
    for first, stop in _windows(wanted, tokens):
        found = _align(wanted, tokens, first, stop, equal)
        if found is not None and (best is None or found.similarity > best.similarity):
            best = found
    return best


def _tokens(text: str, fold: Callable[[str], str]) -> _Tokens:
    spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if spans and spans[-1][1] == start and unicodedata.category(text[start]).startswith("M"):  # an accent, a vowel sign
            start = spans.pop()[0]
        spans.append((start, end))
    return _Tokens(text, spans, [fold(text[start:end]) for start, end in spans])


def _windows(wanted: _Tokens, tokens: _Tokens) -> list[tuple[int, int]]:
    """Return the tokens [first, stop) of the windows with the most rare words of the quote, the best first."""
    words = {word for word in wanted.words if word[:1].isalnum()} or set(wanted.words)
    number = {word: i for i, word in enumerate(sorted(words))}
    ids = np.array([number.get(word, -1) for word in tokens.words], dtype=np.int64)
    counts = np.bincount(ids[ids >= 0], minlength=len(number))
    rarity = np.append(np.log((1 + len(ids)) / (1 + counts)) + 1e-9, 0.0)  # the last is for other words
    width = len(wanted.words) + len(wanted.words) // 4 + _AROUND
    sums = np.concatenate([[0.0], np.cumsum(rarity[ids])])
    stops = np.minimum(np.arange(len(ids)) + width, len(ids))
    scores = sums[stops] - sums[:-1]
    windows = []
    for _ in range(_CANDIDATES):
        if not len(scores) or scores[at := int(np.argmax(scores))] <= 0:
            break
        windows.append((max(0, at - _AROUND), min(len(ids), at + width + _AROUND)))
        scores[max(0, at - width // 2) : at + width // 2 + 1] = 0
    return windows


def _align(wanted: _Tokens, tokens: _Tokens, first: int, stop: int, equal: Callable[[str, str], bool]) -> Nearest | None:
    """Align the quote with tokens [first, stop)."""
    blocks: list[tuple[int, int, int]] = []
    begin, finish = first, stop
    for _ in range(2):  # the second time in the nearest stretch alone: the matcher prefers the first of several equal words
        matcher = SequenceMatcher(None, wanted.words, tokens.words[first:stop])
        found = [(i, first + j, size) for i, j, size in matcher.get_matching_blocks() if size]
        blocks = _dense(wanted, tokens, found)
        if not blocks:
            return None
        # Words of the quote before the first and after the last block replace as many words of the text.
        head, tail = blocks[0], blocks[-1]
        begin = max(0, head[1] - head[0])
        finish = min(len(tokens.words), tail[1] + tail[2] + len(wanted.words) - tail[0] - tail[2])
        first, stop = max(first, begin - _AROUND), min(stop, finish + _AROUND)
    changes = _changes(wanted, tokens, blocks, begin, finish, equal)
    total = sum(len(word) for word in wanted.words if word[:1].isalnum()) or len(wanted.words)
    same = sum(len(word) for at, _, size in blocks for word in wanted.words[at : at + size] if word[:1].isalnum())
    start, end = tokens.slice(begin, finish)
    return Nearest(start, end, same / total, tuple(changes))


def _changes(
    quote: _Tokens, text: _Tokens, blocks: list[tuple[int, int, int]], begin: int, finish: int, equal: Callable[[str, str], bool]
) -> list[Change]:
    """Return what differs between the quote and tokens [begin, finish) of the text, of which `blocks` are the same."""

    def change(said: tuple[int, int], says: tuple[int, int]) -> Change:
        here = text.slice(*says)
        return Change(quote.text[slice(*quote.slice(*said))], text.text[slice(*here)], *here)

    changes = []
    i, j = 0, begin
    for quote_at, text_at, size in [*blocks, (len(quote.words), finish, 0)]:
        said, says = (i, quote_at), (j, text_at)
        if (i, j) != (quote_at, text_at) and not equal(*_widened(quote, said, text, says)):
            changes.append(change(said, says))
        i, j = quote_at + size, text_at + size
    if changes:
        return changes
    # The same words and marks: somewhere, only one of the two has a space.
    pairs = (((i + k, i + k + 2), (j + k, j + k + 2)) for i, j, size in blocks for k in range(size - 1))
    changes = [change(said, says) for said, says in pairs]
    return [one for one in changes if not equal(one.quote, one.text)]


def _widened(quote: _Tokens, said: tuple[int, int], text: _Tokens, says: tuple[int, int]) -> tuple[str, str]:
    """Return the characters of two ranges of tokens, each with its neighbors: whether a dash counts depends on them."""
    before = min(1, said[0], says[0])
    after = min(1, len(quote.words) - said[1], len(text.words) - says[1])
    there = quote.slice(said[0] - before, said[1] + after)
    here = text.slice(says[0] - before, says[1] + after)
    return quote.text[slice(*there)], text.text[slice(*here)]


def _dense(quote: _Tokens, text: _Tokens, blocks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the consecutive blocks with the most tokens: two for each in them, less one for each word that the text has more."""
    best: list[tuple[int, int, int]] = []
    current: list[tuple[int, int, int]] = []
    score = highest = 0
    for block in blocks:
        if current:
            i, j, size = current[-1]
            score -= max(0, text.count(j + size, block[1]) - quote.count(i + size, block[0]))
        if score <= 0:
            current, score = [], 0
        current.append(block)
        score += 2 * block[2]
        if score > highest:
            best, highest = list(current), score
    return best
