"""Read source code. The canonical text is the file's own; classes and functions are the headings of
the lines in them.

Definitions are recognized by their keywords, and end where a later line has their indentation:
nothing is parsed. So functions of languages without a keyword for them (C, Java) are no headings,
but their classes are.
"""

import re

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, straighten

# characters of a line in which a definition is looked for: generated code has lines of megabytes
_LONGEST = 300
_BEFORE = (
    r"(?:(?:abstract|async|data|default|export|final|internal|local|open|override|partial|private"
    r"|protected|pub|pub\(\w+\)|public|sealed|static|unsafe)\s+)*"
)
_KINDS = (
    "class|def|defmodule|defp|enum|fn|fun|func|function|impl|interface|module|namespace|object"
    "|protocol|struct|sub|trait"
)
_DEFINITION = re.compile(
    rf"{_BEFORE}(?:{_KINDS})\b\*?\s*(?:<[^<>]*>\s*|\([^()]*\)\s*)?"
    r"(?P<name>[\w$]+(?:(?:\.|::)[\w$]+)*[?!]?(?:<[^<>]*>)?(?: for [\w:]+)?)"
    # a function that is assigned to a name, as in JavaScript
    r"|(?:export\s+)?(?:const|let)\s+(?P<assigned>[\w$]+)"
    r"\s*=\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*=>|\w+\s*=>)"
)
# begins a line that may have the indentation of a definition and not end it
_GOES_ON = re.compile(r"[)\]{}#@*]|//|/\*|end\b")
_QUOTES = re.compile(r"\"{3}|'{3}")  # of a string of several lines
# characters of statements after which the next one begins a block; twice, if it is indented
_LONG = 200


def read_code(decoded: Decoded) -> DocumentText:
    """Read source code: blocks begin at definitions, after them, and after blank lines; long
    ones outside of definitions also at lines.
    """
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    at = 0  # of the line
    start = end = 0  # of the open block
    quoted = False  # the line begins inside a string
    for line in text.split("\n"):
        words = line.strip()
        first = at + len(line) - len(line.lstrip())
        indentation = len(line[: first - at].expandtabs())
        definition = _DEFINITION.match(words[:_LONGEST])
        begins = bool(words) and not _GOES_ON.match(words)
        leaves = begins and canonical.deepest > indentation
        long = end - start >= (2 * _LONG if indentation else _LONG)
        next_one = begins and long and not (quoted or canonical.deepest)
        if end > start and (definition or leaves or next_one or not words):
            canonical.mark(start, end, "code")
            start = end
        if leaves:
            canonical.close_headings(indentation + 1)
        if definition:
            canonical.open_heading(indentation + 1, definition["name"] or definition["assigned"])
        if words:
            start = start if end > start else first
            end = first + len(words)
        quoted ^= len(_QUOTES.findall(line)) % 2 == 1
        at += len(line) + 1
    if end > start:
        canonical.mark(start, end, "code")
    return canonical.finish("code", text=text, encoding=decoded.encoding)
