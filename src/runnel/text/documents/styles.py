"""Styles of HTML pages, as far as they hide text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

UNSHOWN = re.compile(
    r"(?:\A|;)\s*(?:display\s*:\s*none\b|visibility\s*:\s*(?:hidden|collapse)\b"
    r"|font-size\s*:\s*0+(?:\.0+)?(?:[a-z]+|%)?\s*(?:[;!]|\Z))",
    re.IGNORECASE,
)
_SHOWN = re.compile(
    r"(?:\A|;)\s*(?:display\s*:\s*(?!none\b)|visibility\s*:\s*(?!hidden\b|collapse\b))[a-z]",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_BRACE = re.compile(r"[{}]")
_SCREENS = ("", "all", "screen")  # media


def hidden_nodes(tree: LexborHTMLParser) -> set[int]:
    """Return the `mem_id` of the elements that the styles of a page hide, without their children.

    Of several rules for an element the last holds. Rules for some screens only, and for states of
    an element, are not applied.
    """
    from selectolax.lexbor import SelectolaxError

    sheets = [
        style.text()
        for style in tree.css("style")
        if (style.attributes.get("media") or "").strip().lower() in _SCREENS
    ]
    hidden: set[int] = set()
    for selectors, body in _rules(_COMMENT.sub("", "\n".join(sheets))):
        hides = UNSHOWN.search(body) is not None
        if not hides and not (hidden and _SHOWN.search(body)):
            continue
        for selector in selectors.split(","):
            try:
                nodes = [] if ":" in selector else tree.css(selector)
            except SelectolaxError:  # a selector that the parser does not know
                continue
            found = {node.mem_id for node in nodes if node.tag not in ("html", "body")}
            hidden = hidden | found if hides else hidden - found
    return hidden


def _rules(css: str) -> Iterator[tuple[str, str]]:
    """Yield (selectors, declarations) of the rules that hold on all screens."""
    depth = 0
    start = 0
    selectors = ""
    for brace in _BRACE.finditer(css):
        if brace[0] == "{":
            if depth == 0:
                selectors = css[start : brace.start()].rpartition(";")[2].strip()
                start = brace.end()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                if not selectors.startswith("@"):
                    yield selectors, css[start : brace.start()]
                start = brace.end()
