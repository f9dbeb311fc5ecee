"""Read source code. The canonical text is the file's own; classes and functions are the headings of
the lines in them.

Definitions are recognized by their keywords, and end where a later line has their indentation:
nothing is parsed. So functions of languages without a keyword for them (C, Java) are no headings,
but their classes are.
"""

import re

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, straighten

# Characters at the start of a line in which a definition is looked for: generated code has lines of
# megabytes.
_SEARCHED = 300
_BEFORE = (
    r"(?:(?:abstract|async|data|default|export|final|internal|local|open|override|partial|private"
    r"|protected|pub|pub\(\w+\)|public|sealed|static|unsafe)\s+)*"
)
_KINDS = (
    "class|def|defmodule|defp|enum|fn|fun|func|function|impl|interface|module|namespace|object"
    "|protocol|struct|sub|trait"
)
# "async def read(path)", "pub struct Reader<T>", "func (r *Reader) read", "const read = (path) =>"
_DEFINITION = re.compile(
    rf"{_BEFORE}(?:{_KINDS})\b\*?\s*(?:<[^<>]*>\s*|\([^()]*\)\s*)?"
    r"(?P<name>[\w$]+(?:(?:\.|::)[\w$]+)*[?!]?(?:<[^<>]*>)?(?: for [\w:]+)?)"
    # a function that is assigned to a name, as in JavaScript
    r"|(?:export\s+)?(?:const|let)\s+(?P<assigned>[\w$]+)"
    r"\s*=\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*=>|\w+\s*=>)"
)
# The beginning of a line that does not end a definition, although it is not indented more than the
# definition's first line.
_GOES_ON = re.compile(r"[)\]{}#@*]|//|/\*|end\b")
_QUOTES = re.compile(r"\"{3}|'{3}")  # around a string of several lines
# Outside of definitions: once a block has this many characters, the next statement begins a new
# block. Twice as many if that statement is indented.
_BLOCK = 200


def read_code(decoded: Decoded) -> DocumentText:
    """Read source code. A block ends before a definition, after the last line of one, at a blank
    line, and, outside of definitions, when it has become long.
    """
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    at = 0  # where the line begins in `text`
    start = end = 0  # of the open block, which is empty if both are equal
    quoted = False  # the line begins inside a string of several lines
    for line in text.split("\n"):
        words = line.strip()
        first = at + len(line) - len(line.lstrip())
        indentation = len(line[: first - at].expandtabs())
        definition = _DEFINITION.match(words[:_SEARCHED])
        starts = bool(words) and not _GOES_ON.match(words)  # the line starts a statement
        # The heading of a definition has the level indentation + 1 (below). So a heading deeper
        # than this line's indentation is of a definition indented as much or more: it ends here.
        leaves = starts and canonical.deepest > indentation
        is_long = end - start >= (2 * _BLOCK if indentation else _BLOCK)
        cuts = starts and is_long and not (quoted or canonical.deepest)
        if end > start and (definition or leaves or cuts or not words):
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
