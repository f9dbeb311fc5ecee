"""Text that a terminal cannot act on."""

import unicodedata

_JOINERS = "\u200c\u200d"  # join or separate letters, and join emoji; invisible


def printable(text: str) -> str:
    """Replace characters that a terminal would act on by U+FFFD, keeping the length.

    Control characters would move the cursor or worse, and direction marks would reorder the text.
    Spaces, tabs and line feeds are kept, other line ends become spaces. Joiners are kept after
    letters and emoji of the scripts that use them.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable, text, " " + text))  # each character with the one before it


def _printable(c: str, before: str) -> str:
    if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs":
        return c
    if c.isspace():
        return " "
    joins = c in _JOINERS and not before.isascii() and unicodedata.category(before)[0] in "LMS"
    return c if joins else "\ufffd"
