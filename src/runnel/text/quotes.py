"""Find a quote in a text: word for word, equal up to typography, or the nearest stretch with the words that differ.

Two texts are compared by their letters: the characters left after whitespace and dashes are removed, folded by compatibility
decomposition (NFKD), typographic quotation marks and case. Equal letters are a match if the gaps between them agree too:

    none, a space or a dash    equals the same, however wide, and whichever dash
    a hyphen at a line end     equals nothing or a dash: the layout hyphenated a word, or broke it at its own hyphen

    S  letters of a text
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from runnel.errors import InputError
from runnel.records import expect_text
from runnel.text.nearest import UNSPACED, Change, nearest

LONGEST_QUOTE = 20_000  # characters: bounds the time to compare the words of a quote with a stretch
_WORK = 1 << 29  # letters to compare where only the gaps differ: one or two seconds, ...
_CALL = 1 << 12  # ... with this many for each place, so that many short comparisons count too

_NONE, _SPACE, _DASH, _LINE_END = range(4)  # kinds of gap
_AGREE = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 1]], dtype=bool)

_LETTER, _BLANK, _NEWLINE, _HYPHEN, _SOFT, _UNSEEN = range(6)  # kinds of character
_SOFT_HYPHEN = "\u00ad"
_ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"
_MARKS = {**dict.fromkeys("‘’‚‛‹›′´`", "'"), **dict.fromkeys("“”„‟«»″", '"')}


@dataclass(frozen=True, slots=True)
class QuotePlace:
    """A place of a quote: `text` is the characters [start, end) of the text.

    Attributes:
        match: "exact": the same characters. "normalized": the same words; whitespace, quotation marks, dashes, hyphenation at
            line ends, Unicode forms or case differ. "changed": other words, listed in `changes`.
        case_differs: whether a normalized match also differs in case.
        changes: in reading order.
    """

    text: str
    start: int
    end: int
    match: Literal["exact", "normalized", "changed"]
    case_differs: bool = False
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The places of a quote in a text, in reading order; for a changed quote only the nearest stretch.

    Attributes:
        match: the best of the places; "absent" without one.
        similarity: the share of the letters of the quote's words that the nearest stretch has in the same order; 1 if it occurs.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    places: tuple[QuotePlace, ...]
    similarity: float

    @property
    def word_for_word(self) -> bool:
        """Whether the text has all words of the quote, in order and without others between them."""
        return self.match in ("exact", "normalized")


def verify_quote(quote: str, text: str) -> Verification:
    """Find all places of a quote in a text, or else the nearest stretch.

    The time grows linearly with the text. Places do not overlap.

    Raises:
        InputError: the quote is empty, longer than `LONGEST_QUOTE`, or so repetitive that it cannot be compared.
    """
    expect_text(quote, "the quote")
    expect_text(text, "the text")
    if not quote.strip() or len(quote) > LONGEST_QUOTE:
        came = f"has {len(quote):,} characters" if quote.strip() else "is empty"
        raise InputError(f"the quote {came}; expected 1 to {LONGEST_QUOTE:,} characters: verify a long one in parts")
    exact = [QuotePlace(quote, start, start + len(quote), "exact") for start in _occurrences(quote, text)]
    wanted = _letters(quote)
    taken = np.array([(place.start, place.end) for place in exact], dtype=np.int64).reshape(-1, 2)
    normalized = []
    for start, end in _equal(wanted, _letters(text), text, signed=_signed(quote)) if wanted.folded else ():
        before = int(np.searchsorted(taken[:, 0], end))
        if before == 0 or taken[before - 1, 1] <= start:
            differs = _letters(text[start:end], fold_case=False).folded != _letters(quote, fold_case=False).folded
            normalized.append(QuotePlace(text[start:end], start, end, "normalized", case_differs=differs))
    if exact or normalized:
        places = sorted([*exact, *normalized], key=lambda place: place.start)
        return Verification("exact" if exact else "normalized", tuple(places), 1.0)
    closest = nearest(quote, text, fold_word, equal_words)
    if closest is None:
        return Verification("absent", (), 0.0)
    if not closest.near or not closest.changes:  # without changes: an accent away, after a character that is not shown
        return Verification("absent", (), closest.similarity)
    place = QuotePlace(text[closest.start : closest.end], closest.start, closest.end, "changed", changes=closest.changes)
    return Verification("changed", (place,), closest.similarity)


def fold_word(word: str) -> str:
    """Return a word without the differences in typography and case that `verify_quote` ignores."""
    return "".join(_fold(character, True)[1] for character in word)


def equal_words(one: str, other: str) -> bool:
    """Whether two stretches have the same words: they differ at most in typography and case."""
    first, second = _letters(one), _letters(other)
    same = _signed(one) == _signed(other) and first.folded == second.folded
    return same and bool(_AGREE[first.gaps[1:], second.gaps[1:]].all())


def _occurrences(part: str, text: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


@dataclass(frozen=True, eq=False)
class _Letters:
    """The S letters of a text."""

    folded: str
    origin: np.ndarray  # (S,) int64, the character of the text that each comes from
    first: np.ndarray  # (S,) bool, whether it is the first letter of that character
    gaps: np.ndarray  # (S,) uint8, the kind of gap before each letter


def _letters(text: str, *, fold_case: bool = True) -> _Letters:
    codes = _codes(text)
    seen = np.zeros(int(codes.max(initial=0)) + 1, dtype=bool)
    seen[codes] = True
    distinct = np.flatnonzero(seen)
    folds = [_fold(chr(code), fold_case) for code in distinct.tolist()]
    row_of = np.zeros(len(seen), dtype=np.int32)
    row_of[distinct] = np.arange(len(distinct))
    kinds = np.array([kind for kind, _ in folds], dtype=np.uint8)[row_of[codes]]
    width = max((len(letters) for _, letters in folds), default=0)
    table = _codes("".join(letters.ljust(width, "\0") for _, letters in folds)).reshape(len(folds), width)
    lengths = np.array([len(letters) for _, letters in folds], dtype=np.int64)

    kept = np.flatnonzero(kinds == _LETTER)
    rows = row_of[codes[kept]]
    repeats = lengths[rows]
    which = np.repeat(np.arange(len(kept)), repeats)
    within = np.arange(len(which)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    folded = table[rows[which], within] if len(which) else np.zeros(0, dtype=np.uint32)
    unspaced = np.logical_or.reduce([(codes[kept] >= low) & (codes[kept] <= high) for low, high in UNSPACED])
    gaps = np.where(within == 0, _gaps(kinds, kept, unspaced)[which], _NONE).astype(np.uint8)
    return _Letters(folded.tobytes().decode("utf-32-le", "surrogatepass"), kept[which], within == 0, gaps)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


@cache
def _fold(character: str, fold_case: bool) -> tuple[int, str]:
    """Return the kind of a character, and its letters."""
    if character in "\n\r\v\f\u2028\u2029\u0085":
        return _NEWLINE, ""
    if character.isspace():
        return _BLANK, ""
    if character == _SOFT_HYPHEN:
        return _SOFT, ""
    if character in _ZERO_WIDTH:
        return _UNSEEN, ""
    if unicodedata.category(character) == "Pd" or character == "−":
        return _HYPHEN, ""
    letters = unicodedata.normalize("NFKD", _MARKS.get(character, character))
    if fold_case:
        letters = unicodedata.normalize("NFKD", letters.casefold())
    letters = "".join(letters.split())  # an accent of its own, as ¨, is a space and a combining character
    return _LETTER if letters else _UNSEEN, letters


def _gaps(kinds: np.ndarray, kept: np.ndarray, unspaced: np.ndarray) -> np.ndarray:
    """Return the kind of gap before each of the `kept` characters; a line break between `unspaced` characters is none."""
    previous = np.concatenate([[-1], kept[:-1]])[: len(kept)]

    def between(*wanted: int) -> np.ndarray:
        counts = np.concatenate([[0], np.cumsum(np.isin(kinds, wanted))])
        return counts[kept] - counts[previous + 1]

    newline, dashes = between(_NEWLINE) > 0, between(_HYPHEN)
    after_letter = kinds[previous + 1] == _HYPHEN
    line_end = newline & (((dashes == 1) & after_letter) | ((dashes == 0) & (between(_SOFT) > 0)))
    blank = (newline | (between(_BLANK) > 0)) & ~(unspaced & np.concatenate([[False], unspaced[:-1]])[: len(kept)])
    return np.select([line_end, dashes > 0, blank], [_LINE_END, _DASH, _SPACE], _NONE)


def _equal(quote: _Letters, text: _Letters, original: str, *, signed: bool) -> Iterator[tuple[int, int]]:
    """Yield the characters [start, end) of each stretch of the text (`original`) with the letters and gaps of the quote.

    `signed`: the quote begins with a dash that belongs to its first word.
    """
    length, compared = len(quote.folded), 0
    at = text.folded.find(quote.folded)
    while at >= 0:
        end, start = at + length, int(text.origin[at])
        whole = text.first[at] and (end == len(text.folded) or _starts_character(text, end))
        start -= signed
        whole = whole and (not signed or (start >= 0 and _fold(original[start], False)[0] == _HYPHEN))
        if whole and _AGREE[text.gaps[at + 1 : end], quote.gaps[1:]].all():
            yield start, int(text.origin[end - 1]) + 1
            at = text.folded.find(quote.folded, end)
            continue
        compared += length + _CALL
        if compared > _WORK:
            raise InputError("the quote is too repetitive to compare with this text; give a shorter or more specific quote")
        at = text.folded.find(quote.folded, at + 1)


def _signed(text: str) -> bool:
    """Whether a text begins with a dash that belongs to its first word, as in -5."""
    core = text.lstrip()
    return core[1:2].isalnum() and _fold(core[0], False)[0] == _HYPHEN


def _starts_character(text: _Letters, at: int) -> bool:
    """Whether a letter begins a character as readers see it: it is no accent of the letter before."""
    return bool(text.first[at]) and not (text.gaps[at] == _NONE and unicodedata.category(text.folded[at]).startswith("M"))
