"""Styles of HTML pages, as far as they hide, raise or strike text."""

import re

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

# in a rule or an attribute "style": display: none; visibility: hidden; font-size: 0; and what moves
# text off the screen, or clips it
UNSHOWN = re.compile(
    r"(?:\A|;)\s*(?:display\s*:\s*none\b|visibility\s*:\s*(?:hidden|collapse)\b"
    r"|font-size\s*:\s*0+(?:\.0+)?(?:[a-z]+|%)?\s*(?:[;!]|\Z)"
    r"|(?:left|top|right|text-indent)\s*:\s*-\d{4,}|clip\s*:\s*rect\(\s*[01](?:px)?[\s,]"
    r"|clip-path\s*:\s*inset\(\s*(?:50|100)%\s*\))",
    re.IGNORECASE,
)
# display: block; visibility: visible
SHOWN = re.compile(
    r"(?:\A|;)\s*(?:display\s*:\s*(?!none\b)|visibility\s*:\s*(?!hidden\b|collapse\b))[a-z]",
    re.IGNORECASE,
)
RAISED = re.compile(r"vertical-align\s*:\s*super\b", re.IGNORECASE)
LEVEL = re.compile(r"vertical-align\s*:\s*(?!super\b)[a-z]", re.IGNORECASE)
STRUCK = re.compile(r"text-decoration(?:-line)?\s*:[^;]{0,60}?\bline-through\b", re.IGNORECASE)
UNSTRUCK = re.compile(
    r"text-decoration(?:-line)?\s*:(?![^;]{0,60}?\bline-through\b)", re.IGNORECASE
)
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
# rules for some screens only, and others that name no elements
_AT_RULE = re.compile(r"@[^{};]*+(?:;|\{(?:[^{}]*+\{[^{}]*+\})*+[^{}]*+\})")
# p.note, li { display: none }: the selectors, and what holds for them
_RULE = re.compile(r"([^{}]*+)\{([^{}]*+)\}")
_SCREENS = ("", "all", "screen")  # media


def styled_nodes(tree: LexborHTMLParser, on: re.Pattern[str], off: re.Pattern[str]) -> set[int]:
    """Return the `mem_id` of the elements that the styles of a page hide, raise or strike: `on`
    finds it in a rule, `off` the opposite. What is in these elements is hidden with them, but is
    not in the set.

    Of several rules for an element the last holds. Rules for some screens only, and for states of
    an element, are not applied.
    """
    sheets = [
        style.text()
        for style in tree.css("style")
        if (style.attributes.get("media") or "").strip().lower() in _SCREENS
    ]
    styled: set[int] = set()
    css = _COMMENT.sub("", "\n".join(sheets))
    for selectors, body in _RULE.findall(_AT_RULE.sub("", css)):
        is_on = on.search(body) is not None
        if not is_on and not (styled and off.search(body)):
            continue
        for selector in selectors.split(","):
            try:
                nodes = [] if ":" in selector else tree.css(selector)
            except SelectolaxError:  # a selector that the parser does not know
                continue
            found = {node.mem_id for node in nodes if node.tag not in ("html", "body")}
            styled = styled | found if is_on else styled - found
    return styled
