"""Raised text: marks of notes are told from powers and endings of numbers."""

import re

_SUPERSCRIPT = str.maketrans(
    "0123456789+-\u2212",
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b",
)
_POWER = re.compile(r"[+\u2212-]?\d{1,3}")
# Numbers of notes, also several: 1; 2,3; 4-6. Letters mark notes of tables.
_NUMBERS = re.compile(r"\d{1,3}(?:\s?[,;\u2013-]\s?\d{1,3})*")
_LETTERS = re.compile(r"[a-h](?:\s?,\s?[a-h])*")
_UNIT = re.compile(r"[^\W_]\Z")  # the end of what can have an exponent with a sign
# What can have an exponent without one: ten and single digits; letters, and units of length.
_NUMBER = re.compile(r"(?<!\d)(?<!\d[.,])(?:10|[2-9])\Z")
_LETTER = re.compile(
    r"(?:(?<![^\W\d_])(?:[^\W\d_]|[\u0370-\u03ff][^\W\d_]|[mcdk\u00b5\u03bcn]m|ft|in|yd|mi)"
    r"|[=+*/^\u00b7\u00d7]\s?[^\W\d_]{1,3})\Z"
)
_WORD = re.compile(r"[^\W_]{2}\Z|[^\w\s]\Z")


def raised(before: str, text: str) -> str:
    """Return raised text as it is read after `before`, the text of its paragraph so far: an
    exponent in raised signs, the mark of a note in brackets, all else unchanged.
    """
    mark = text.strip()
    before = before[-8:]
    if _POWER.fullmatch(mark) and mark != "1":
        base = _NUMBER.search(before) or (len(mark) == 1 and _LETTER.search(before))
        if base if mark[0].isdigit() else _UNIT.search(before):
            return mark.translate(_SUPERSCRIPT)
    if not (_NUMBERS.fullmatch(mark) or _LETTERS.fullmatch(mark)):
        return text
    if not before.strip():
        return f"[{mark}] "
    ordinal = before[-1].isdigit() and mark in ("d", "e")  # 2d, 19e
    note = mark[0].isdigit() or (_WORD.search(before) and not ordinal)
    return f"[{mark}]" if note else text
