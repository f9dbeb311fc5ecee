"""Raised text (superscript) in a document's plain text, where no sign can be higher than another.

Its kind is decided by what it is and by what is before it. In examples, a comma separates the text
before from the raised text:

    an exponent                           x, 2        x², with superscript signs
    the mark of a footnote                Paris, 2    Paris[2]
    an index, or the end of an ordinal    4, th       4th, unchanged
"""

import re

_SUPERSCRIPT = str.maketrans(
    "0123456789+-\u2212",
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b",
)
# 1. The raised text itself, whole.
_EXPONENT = re.compile(r"[+\u2212-]?\d{1,3}")  # 2, 10, -3
_NUMBERS = re.compile(r"\d{1,3}(?:\s?[,;\u2013-]\s?\d{1,3})*")  # of footnotes: 1; 2,3; 4-6
_LETTERS = re.compile(r"[a-h](?:\s?,\s?[a-h])*")  # of the notes of a table: a; a, b
# 2. The end of the text before it. None of these looks at more than the last five characters.
# of an exponent with a sign, any letter or digit: m, -2; 10, -3
_SIGNED_BASE = re.compile(r"[^\W_]\Z")
# of an exponent without a sign: 10 and single digits, but no end of a longer number (3.5, 25)
_NUMBER_BASE = re.compile(r"(?<!\d)(?<!\d[.,])(?:10|[2-9])\Z")
# of an exponent of one digit: a single letter, a Greek letter and another, a unit of length; up to
# three letters after an operator
_SYMBOL_BASE = re.compile(
    r"(?:(?<![^\W\d_])"  # not inside a word: the "s" of "Paris" is none
    r"(?:[^\W\d_]|[\u0370-\u03ff][^\W\d_]|[mcdk\u00b5\u03bcn]m|ft|in|yd|mi)"  # x; Δx, 4πr; 5 km
    r"|[=+*/^\u00b7\u00d7]\s?[^\W\d_]{1,3})\Z"  # E = mc
)
# of a note's letter: two letters or digits, or a punctuation mark. Total, a; 12 %, b; but not x, a
_NOTED = re.compile(r"[^\W_]{2}\Z|[^\w\s]\Z")


def raised(before: str, text: str) -> str:
    """Return raised text as it is read after `before`, the text of its paragraph so far: an
    exponent in raised signs, the mark of a note in brackets, all else unchanged.
    """
    mark = text.strip()
    before = before[-8:]  # more than any pattern looks at: the whole may be long
    # Nobody writes a power of 1: a raised 1 is the first footnote, also after "x".
    if _EXPONENT.fullmatch(mark) and mark != "1":
        if mark[0].isdigit():
            base = _NUMBER_BASE.search(before) or (len(mark) == 1 and _SYMBOL_BASE.search(before))
        else:
            base = _SIGNED_BASE.search(before)
        if base:
            return mark.translate(_SUPERSCRIPT)
    if not (_NUMBERS.fullmatch(mark) or _LETTERS.fullmatch(mark)):
        return text  # 4, th
    if not before.strip():
        return f"[{mark}] "  # the note itself, which begins with its mark
    ordinal = before[-1].isdigit() and mark in ("d", "e")  # 2d, 19e
    note = mark[0].isdigit() or (_NOTED.search(before) and not ordinal)  # Paris, 2; Total, a
    return f"[{mark}]" if note else text
