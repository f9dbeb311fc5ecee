r"""Find a quote in a text: word for word, equal up to typography, or the nearest stretch with the
words that differ.

Two texts are compared by their letters (`_letters`): the characters left after whitespace and
dashes are removed, folded by compatibility decomposition (NFKD), typographic quotation marks and
case. Equal letters are a match if the gap before each letter agrees too (`_equal`, `_AGREE`):

    gap of one text       agrees with, in the other
    nothing               nothing                         "cannot"          "cannot"
    a space               a space, however wide           "can  not"        "can not"
    a dash                a dash, whichever               "well-known"      "well–known"
    a hyphen at a         nothing, or a dash: the layout  "conti-\nnued"    "continued"
      line end            hyphenated a word or broke it   "well-\nknown"    "well-known"
                          at its own hyphen
    a minus at the start  itself (`_signed`)              "-5"              "−5"

Without a match, the nearest stretch is found in three steps; the time is linear in the text:

    _windows    the parts of the text with the most rare words of the quote
    _align      word by word, the tokens that quote and window have in the same order, as blocks of
                equal tokens; of these `_dense` keeps a run without much text between
    _changes    the words in which quote and stretch differ, between the blocks

S  letters of a text
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np

from runnel.checks import expect_text
from runnel.errors import InputError

LONGEST_QUOTE = 20_000  # characters: bounds the time to compare the words of a quote with a stretch
# A quote such as "a a a" has its letters at many places of a text where only the gaps differ. The
# most letters that are compared at such places, which takes one or two seconds; each place counts
# as `_CALL` letters more, for the time of the call.
_WORK = 1 << 29
_CALL = 1 << 12

# Chinese and Japanese have no spaces: a line break between two such characters is no gap.
UNSPACED = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))

_NONE, _SPACE, _DASH, _LINE_END = range(4)  # kinds of gap
# whether two gaps agree, as above: rows and columns in the order of the kinds
_AGREE = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 1]], dtype=bool)

# kinds of character: a hyphen is any dash, _SOFT a soft hyphen
_LETTER, _BLANK, _NEWLINE, _HYPHEN, _SOFT, _UNSEEN = range(6)
_KINDS = {
    **dict.fromkeys("\n\r\v\f\u2028\u2029\u0085", _NEWLINE),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", _UNSEEN),  # of no width
    **{"\u00ad": _SOFT, "\u2212": _HYPHEN},
}
# typographic quotation marks, and the plain one that each is compared as
_MARKS = {**dict.fromkeys("‘’‚‛‹›′´`", "'"), **dict.fromkeys("“”„‟«»″", '"')}


@dataclass(frozen=True, slots=True)
class Change:
    """Words in which a quote differs from the characters [start, end) of a text; "" where words
    were added or left out.
    """

    quote: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QuotePlace:
    """A place of a quote: `text` is the characters [start, end) of the text.

    Attributes:
        match: "exact": the same characters. "normalized": the same words; whitespace, quotation
            marks, dashes, hyphenation at line ends, Unicode forms or case differ. "changed": other
            words, listed in `changes`.
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
    """The places of a quote in a text, in reading order; for a changed quote only the nearest
    stretch.

    Attributes:
        match: the best of the places; "absent" without one.
        similarity: the share of the letters of the quote's words that the nearest stretch has in
            the same order; 1 if it occurs.
    """

    match: Literal["exact", "normalized", "changed", "absent"]
    places: tuple[QuotePlace, ...]
    similarity: float

    @property
    def word_for_word(self) -> bool:
        """Whether the text has all words of the quote in order, without others between them."""
        return self.match in ("exact", "normalized")


def verify_quote(quote: str, text: str) -> Verification:
    """Find all places of a quote in a text, or else the nearest stretch.

    The time grows linearly with the text. Places do not overlap.

    Raises:
        InputError: the quote is empty, longer than `LONGEST_QUOTE`, or so repetitive that it cannot
            be compared.
    """
    expect_text(quote, "the quote")
    expect_text(text, "the text")
    if not quote.strip() or len(quote) > LONGEST_QUOTE:
        came = f"has {len(quote):,} characters" if quote.strip() else "is empty"
        raise InputError(
            f"the quote {came}; expected 1 to {LONGEST_QUOTE:,} characters: verify a long one in"
            " parts"
        )
    # 1. Places with the same characters.
    exact = [
        QuotePlace(quote, *match.span(), "exact") for match in re.finditer(re.escape(quote), text)
    ]
    # 2. Places with the same words, unless they overlap with one of the first kind.
    letters = _letters(quote)
    normalized = []
    for start, end in _equal(quote, letters, text) if letters.folded else ():
        before = bisect_left(exact, end, key=lambda place: place.start)
        if before == 0 or exact[before - 1].end <= start:
            differs = (
                _letters(text[start:end], fold_case=False).folded
                != _letters(quote, fold_case=False).folded
            )
            normalized.append(
                QuotePlace(text[start:end], start, end, "normalized", case_differs=differs)
            )
    if exact or normalized:
        places = sorted([*exact, *normalized], key=lambda place: place.start)
        return Verification("exact" if exact else "normalized", tuple(places), 1.0)
    # 3. Without either, the nearest stretch with other words.
    words = _tokens(quote)
    tokens = _tokens(text)
    aligned = (_align(words, tokens, first, stop) for first, stop in _windows(words, tokens))
    nearest = max(
        filter(None, aligned),
        key=lambda verification: verification.similarity,
        default=Verification("absent", (), 0.0),
    )
    # A stretch can be near, have no changes and yet not be equal, because an accent follows an
    # invisible character: then the quote is absent.
    changed = nearest.similarity >= _LEAST_SIMILARITY and any(
        place.changes for place in nearest.places
    )
    return nearest if changed else Verification("absent", (), nearest.similarity)


def _equal_words(stretch: str, other: str) -> bool:
    """Return whether two stretches have the same words: they differ at most in
    typography and case.
    """
    first = _letters(stretch)
    second = _letters(other)
    same = _signed(stretch) == _signed(other) and first.folded == second.folded
    # the gap before the first letter is outside of the stretch
    return same and bool(_AGREE[first.gaps[1:], second.gaps[1:]].all())


@dataclass(frozen=True, eq=False)
class _Letters:
    """The letters of a text, by which it is compared."""

    folded: str
    origin: np.ndarray  # (S,) int64, the character of the text that each letter comes from
    first: np.ndarray  # (S,) bool, whether a letter is the first one of its character
    gaps: np.ndarray  # (S,) uint8, the kind of gap before each letter


def _letters(text: str, *, fold_case: bool = True) -> _Letters:
    # 1. The kind and the letters of each different character, and of all characters by these.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    folds = {ord(character): _fold(character, fold_case) for character in set(text)}
    kind_of, length_of = np.zeros((2, max(folds, default=0) + 1), dtype=np.uint8)  # by code
    for code, (kind, letters) in folds.items():
        kind_of[code] = kind
        length_of[code] = len(letters)
    folded = text.translate({code: letters for code, (_, letters) in folds.items()})
    kinds = kind_of[codes]
    # 2. Which of the characters that have letters each letter is from: a character may have several
    # ("ß" has "ss").
    sources = np.flatnonzero(kinds == _LETTER)
    source_of = np.repeat(np.arange(len(sources)), length_of[codes[sources]])
    first = np.diff(source_of, prepend=-1) > 0
    # 3. The gap before each letter; there is none between the letters of one character.
    unspaced = np.logical_or.reduce(
        [(codes[sources] >= low) & (codes[sources] <= high) for low, high in UNSPACED]
    )
    gaps = np.where(first, _gaps(kinds, sources, unspaced)[source_of], _NONE).astype(np.uint8)
    return _Letters(folded, sources[source_of], first, gaps)


@cache
def _fold(character: str, fold_case: bool) -> tuple[int, str]:
    """Return the kind of a character, and its letters."""
    if character in _KINDS:
        return _KINDS[character], ""
    if character.isspace():
        return _BLANK, ""
    if unicodedata.category(character) == "Pd":
        return _HYPHEN, ""
    letters = unicodedata.normalize("NFKD", _MARKS.get(character, character))
    if fold_case:
        letters = unicodedata.normalize("NFKD", letters.casefold())
    # NFKD makes a space and a combining character of an accent that stands alone, such as ¨
    letters = "".join(letters.split())
    return _LETTER if letters else _UNSEEN, letters


def _gaps(kinds: np.ndarray, places: np.ndarray, unspaced: np.ndarray) -> np.ndarray:
    """Return the kind of gap before each letter.

    Args:
        kinds: of all characters of the text.
        places: of the characters that have letters.
        unspaced: whether each of these is of a script without spaces; blanks and line breaks
            between two of them are no gap.
    """
    if not len(places):
        return np.zeros(0, np.int64)
    gap_starts = np.concatenate([[0], places[:-1] + 1])  # the character after the letter before

    def between(kind: int) -> np.ndarray:
        """Return how many characters of a kind are in the gap before each letter."""
        counts = np.concatenate([[0], np.cumsum(kinds == kind)])
        return counts[places] - counts[gap_starts]

    newline = between(_NEWLINE) > 0
    dashes = between(_HYPHEN)
    begins_with_dash = kinds[gap_starts] == _HYPHEN
    # "conti-\nnued"; but not "yes -\nno"
    hyphenated = (dashes == 1) & begins_with_dash
    softly = (dashes == 0) & (between(_SOFT) > 0)  # by a soft hyphen
    line_end = newline & (hyphenated | softly)
    in_unspaced = unspaced & np.concatenate([[False], unspaced[:-1]])
    blank = (newline | (between(_BLANK) > 0)) & ~in_unspaced
    return np.select([line_end, dashes > 0, blank], [_LINE_END, _DASH, _SPACE], _NONE)


def _equal(quote: str, wanted: _Letters, text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters [start, end) of each stretch of the text with the letters of the quote
    (`wanted`) and gaps that agree. `at` and `end` are letters of the text.
    """
    letters = _letters(text)
    signed = _signed(quote)
    length = len(wanted.folded)
    compared = 0
    at = letters.folded.find(wanted.folded)
    while at >= 0:
        end = at + length
        start = int(letters.origin[at])
        # no part of a character such as "ß", which has two letters
        matches = letters.first[at] and (end == len(letters.folded) or letters.first[end])
        # the next letter must not be an accent of the last one
        if matches and end < len(letters.folded) and letters.gaps[end] == _NONE:
            matches = not unicodedata.category(letters.folded[end]).startswith("M")
        if signed:
            start -= 1  # the minus, directly before the first letter
            matches = matches and start >= 0 and _fold(text[start], False)[0] == _HYPHEN
        if matches and _AGREE[letters.gaps[at + 1 : end], wanted.gaps[1:]].all():
            yield start, int(letters.origin[end - 1]) + 1
            at = letters.folded.find(wanted.folded, end)
            continue
        compared += length + _CALL
        if compared > _WORK:
            raise InputError(
                "the quote is too repetitive to compare with this text; give a shorter or more"
                " specific quote"
            )
        at = letters.folded.find(wanted.folded, at + 1)


def _signed(text: str) -> bool:
    """Whether a text begins with a dash that belongs to its first word, as in -5."""
    core = text.lstrip()
    return core[1:2].isalnum() and _fold(core[0], False)[0] == _HYPHEN


# ---- the nearest stretch -------------------------------------------------------------------------

_CANDIDATES = 8  # windows to align
# of a changed quote. Below it, sentences share no more than frequent words and a topic.
_LEAST_SIMILARITY = 0.6
_CHARACTERS = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
_WORD = f"(?:[^\\W{_CHARACTERS}]|[\u0300-\u036f])+"  # with its accents
_AROUND = 4  # tokens around a stretch to align once more, as for quotation marks
# A character of such a script, a word, also hyphenated at a line end, or a punctuation mark.
_TOKEN = re.compile(rf"[{_CHARACTERS}]|{_WORD}(?:[-\u2010\u00ad][^\S\n]*+\n\s*+{_WORD})*|[^\w\s]")


@dataclass(frozen=True)
class _Tokens:
    """The words and punctuation marks of a text, numbered from 0."""

    text: str
    spans: list[tuple[int, int]]  # characters of each token
    words: list[str]  # each token as it is compared: its letters, folded

    def slice(self, first: int, stop: int) -> tuple[int, int]:
        """Return the characters of tokens [first, stop); an empty range is the place before token
        `first`, or after the last.
        """
        if first < stop:
            return self.spans[first][0], self.spans[stop - 1][1]
        if first < len(self.spans):
            at = self.spans[first][0]
        else:
            at = self.spans[-1][1] if self.spans else 0
        return at, at

    def count(self, first: int, stop: int) -> int:
        """Return the number of words among the tokens [first, stop): punctuation does not count."""
        return sum(word[:1].isalnum() for word in self.words[first:stop])


def _tokens(text: str) -> _Tokens:
    @cache
    def fold(word: str) -> str:
        return "".join(_fold(character, True)[1] for character in word)

    spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        # an accent, a vowel sign
        if spans and spans[-1][1] == start and unicodedata.category(text[start]).startswith("M"):
            start = spans.pop()[0]
        spans.append((start, end))
    return _Tokens(text, spans, [fold(text[start:end]) for start, end in spans])


def _windows(quote: _Tokens, tokens: _Tokens) -> list[tuple[int, int]]:
    """Return the tokens [first, stop) of the windows with the most rare words of the quote, the
    best first.
    """
    words = {word for word in quote.words if word[:1].isalnum()} or set(quote.words)
    number = {word: i for i, word in enumerate(sorted(words))}
    ids = np.array([number.get(word, -1) for word in tokens.words], dtype=np.int64)
    counts = np.bincount(ids[ids >= 0], minlength=len(number))
    # of each word of the quote, above 0 even if all tokens are this word; the last entry, -1, is
    # the rarity of all other words
    rarity = np.append(np.log((1 + len(ids)) / (1 + counts)) + 1e-9, 0.0)
    width = len(quote.words) + len(quote.words) // 4 + _AROUND
    sums = np.concatenate([[0.0], np.cumsum(rarity[ids])])
    stops = np.minimum(np.arange(len(ids)) + width, len(ids))
    scores = sums[stops] - sums[:-1]
    windows = []
    for _ in range(_CANDIDATES):
        if not len(scores) or scores[at := int(np.argmax(scores))] <= 0:
            break
        windows.append((max(0, at - _AROUND), min(len(ids), at + width + _AROUND)))
        # the next window is another part of the text
        scores[max(0, at - width // 2) : at + width // 2 + 1] = 0
    return windows


def _align(quote: _Tokens, tokens: _Tokens, first: int, stop: int) -> Verification | None:
    """Return the stretch of tokens [first, stop) with the most words of the quote in order; None if
    they share no word.

    A block is a run of equal tokens: (its first token in the quote, its first token in the text,
    their number).
    """
    blocks: list[tuple[int, int, int]] = []
    begin, finish = first, stop
    # Twice, the second time only in the stretch that was found: of several equal words, the matcher
    # takes the first.
    for _ in range(2):
        matcher = SequenceMatcher(None, quote.words, tokens.words[first:stop])
        equal = [(i, first + j, size) for i, j, size in matcher.get_matching_blocks() if size]
        blocks = _dense(quote, tokens, equal)
        if not blocks:
            return None
        # Words of the quote before the first and after the last block replace as many words of the
        # text.
        begin = max(0, blocks[0][1] - blocks[0][0])
        finish = min(len(tokens.words), blocks[-1][1] + len(quote.words) - blocks[-1][0])
        first = max(first, begin - _AROUND)
        stop = min(stop, finish + _AROUND)
    total = sum(len(word) for word in quote.words if word[:1].isalnum()) or len(quote.words)
    same = sum(
        len(word)
        for at, _, size in blocks
        for word in quote.words[at : at + size]
        if word[:1].isalnum()
    )
    start, end = tokens.slice(begin, finish)
    changes = tuple(_changes(quote, tokens, blocks, begin, finish))
    place = QuotePlace(tokens.text[start:end], start, end, "changed", changes=changes)
    return Verification("changed", (place,), same / total)


def _changes(
    quote: _Tokens, text: _Tokens, blocks: list[tuple[int, int, int]], begin: int, finish: int
) -> list[Change]:
    """Return the changes between the quote and the tokens [begin, finish) of the text; `blocks` are
    the tokens that are equal.
    """

    def change(said: tuple[int, int], says: tuple[int, int]) -> Change:
        here = text.slice(*says)
        return Change(quote.text[slice(*quote.slice(*said))], text.text[slice(*here)], *here)

    changes = []
    # Between each two blocks: `said` are tokens [first, stop) of the quote, `says` of the text.
    for before, after in pairwise([(0, begin, 0), *blocks, (len(quote.words), finish, 0)]):
        said = (before[0] + before[2], after[0])
        says = (before[1] + before[2], after[1])
        differs = said[0] < said[1] or says[0] < says[1]
        if differs and not _equal_words(*_widened(quote, said, text, says)):
            changes.append(change(said, says))
    if changes:
        return changes
    # A change with equal words and marks: in one of the two texts they have a space between them.
    changes = [
        change((i + k, i + k + 2), (j + k, j + k + 2))
        for i, j, size in blocks
        for k in range(size - 1)
    ]
    return [pair for pair in changes if not _equal_words(pair.quote, pair.text)]


def _widened(
    quote: _Tokens, said: tuple[int, int], text: _Tokens, says: tuple[int, int]
) -> tuple[str, str]:
    """Return the characters of two ranges of tokens, each with its neighbors: whether a dash counts
    depends on them.
    """
    before = min(1, said[0], says[0])
    after = min(1, len(quote.words) - said[1], len(text.words) - says[1])
    return (
        quote.text[slice(*quote.slice(said[0] - before, said[1] + after))],
        text.text[slice(*text.slice(says[0] - before, says[1] + after))],
    )


def _dense(
    quote: _Tokens, text: _Tokens, blocks: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Return the consecutive blocks with the most tokens: two points for each token in them, less a
    point for each word that the text has between them beyond the quote's.
    """
    best: list[tuple[int, int, int]] = []
    current: list[tuple[int, int, int]] = []
    score = highest = 0
    for block in blocks:
        if current:
            i, j, size = current[-1]
            score -= max(0, text.count(j + size, block[1]) - quote.count(i + size, block[0]))
        if score <= 0:
            current = []
            score = 0
        current.append(block)
        score += 2 * block[2]
        if score > highest:
            best = list(current)
            highest = score
    return best
