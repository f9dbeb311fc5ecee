"""Which paragraph above or below a table is its caption."""

import re

_CHARS = 200  # at most
# "Table 3. Costs", "Tabelle 2", but not "Table 3 shows the costs"
NUMBERED = re.compile(
    r"(?i:table|tabelle|tableau|tabla|tabella)\s+[\dA-Z][\w.-]*"
    r"(?:[.:)]|\s*[\u2013\u2014|-]|\s+[A-Z]|\s*\Z)"
)
# "**Table 2** Costs", "The costs:", ": Costs"
_ABOVE = re.compile(r"[*_]{0,2}(?:Table|Tabelle)\b|.*:\Z|:[ ]")
_BELOW = re.compile(rf"(?:Table)?:\s|[*_]{{0,2}}(?:{NUMBERED.pattern})")
# marked in Org and reStructuredText: "#+CAPTION: Costs", ".. table:: Costs"
_MARKED = re.compile(
    r"^[ \t]*(?:#\+CAPTION:|\.\. (?:[a-z]+-)?table::)[ \t]*(\S.*)", re.IGNORECASE | re.MULTILINE
)


def caption_in(paragraph: str, *, above: bool) -> str:
    """Return the caption that a paragraph above or below a table is, with its markup, or ""."""
    marked = _MARKED.search(paragraph) if above else None
    form = _ABOVE if above else _BELOW
    if marked or (len(paragraph) <= _CHARS and form.match(paragraph)):
        return marked[1] if marked else paragraph.strip(": ")
    return ""
