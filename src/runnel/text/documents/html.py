"""Read HTML and XHTML: the visible text of a page, without scripts, styles and navigation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from runnel.errors import ReadError
from runnel.files import Decoded
from runnel.text.documents.document import CONTENTS, Canonical, DocumentText

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_LEFT_OUT = frozenset(
    "head script style template noscript svg annotation iframe object embed canvas audio video "
    "select datalist button nav dialog rp rt".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details div dl dt fieldset figcaption"
    " figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu ol p pre search"
    " section summary table tbody td tfoot th thead tr ul".split()
)
_KINDS = {"li": "item", "dt": "item", "dd": "item", "pre": "code", "blockquote": "paragraph"}
_CELLS = ("td", "th")
_HEADING = re.compile(r"h([1-6])\Z")
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
_TAG = re.compile(r"<(/?)([A-Za-z][^\s/>]*)")
# Nothing is inside of these elements for long: they are empty, or the next of their kind ends them.
_SHORT = frozenset(
    [
        *_VOID.split("|"),
        *"a p li dt dd option optgroup colgroup caption thead tbody tfoot tr td th".split(),
        *"rb rt rp rtc".split(),
    ]
)
# elements open at a tag, on average over the characters (a million at least): 2 seconds of Lexbor a
# million
_MOST_OPEN = 1000
_SELF_CLOSED = re.compile(rf"<(?!(?:{_VOID})[\s/])([A-Za-z][\w:-]*)((?:\s[^<>]*)?)/>")
_XHTML = re.compile(r"\s*<\?xml|[^<]*<!doctype[^>]*xhtml", re.IGNORECASE)
_UNSHOWN = re.compile(
    r"(?:\A|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE
)
_ROLES = ("navigation", "contentinfo", "search")
# A link that leads through the pages of a manual, in a block that only has links.
_NAVIGATION = re.compile(
    r"[\W_]*(?:"
    r"(?:prev(?:ious)?|next|up|top|home|index|(?:table of )?contents|main page)"
    r"(?: (?:page|chapter|section|topic))?"
    r"|(?:back|go|return)(?: to\b.*)?"
    r")[\W_]*",
    re.IGNORECASE,
)
_SIGNS = re.compile(r"[\W_]+")
_NUMBERS = re.compile(r"[\W\d_]+")
_ROWS = 3  # of a table of contents, at least, if no heading repeats them
_BASE = re.compile(r"(?:\d|(?<![^\W\d_])[^\W\d_]{1,2})\Z")  # of a power
_SUPERSCRIPT = str.maketrans(
    "0123456789+-\u2212",
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b",
)
_POWER = re.compile(r"[+\u2212-]?\d+")
_INLINE = ("a", "sup")
_SPANS = ("colspan", "rowspan")
_WIDEST = 20  # columns or rows of a cell
_CELL_BREAK = " | "
_LINE_BREAK = "\v"  # <br>; a line end of the file is only a space


def read_html(decoded: Decoded) -> DocumentText:
    """Read blocks as a browser shows them, tables row by row, without scripts, navigation, form
    controls, hidden elements.
    """
    canonical = Canonical(decoded.warning)
    title = add_page(canonical, decoded.text)
    if not canonical.length:
        canonical.warnings.append(
            "no text: the page is empty, has only navigation, or is filled by scripts"
        )
    return canonical.finish("html", title=title, encoding=decoded.encoding)


def add_page(canonical: Canonical, markup: str) -> str | None:
    """Add the blocks of a page to a text; return the page's title."""
    from selectolax.lexbor import LexborHTMLParser

    # HTML has no <title/>: its rules would read everything after it as the title
    if _XHTML.match(markup):
        markup = _SELF_CLOSED.sub(r"<\1\2></\1>", markup)
    _expect_flat(markup)
    tree = LexborHTMLParser(markup.replace("\0", ""))
    head = tree.css_first("title")
    if tree.body is not None:
        _Page(canonical).read(tree.body)
    return head.text() if head is not None else None


def _expect_flat(markup: str) -> None:
    """Raise ReadError for markup so deep that Lexbor would take long: it looks through the open
    elements at each tag.
    """
    opened: Counter[str] = Counter()
    depth = 0
    left = _MOST_OPEN * max(len(markup), 10**6)
    for match in _TAG.finditer(markup):
        name = match[2].lower()
        if name not in _SHORT:
            step = -min(1, opened[name]) if match[1] else 1
            opened[name] += step
            depth += step
        left -= depth
        if left < 0:
            raise ReadError(
                f"its elements are nested too deeply: {depth:,} are open at character"
                f" {match.start():,}; simplify it, or save its text"
            )


def _walk(root: LexborNode) -> Iterator[tuple[str, LexborNode]]:
    """Yield ("text" | "start" | "end", node) in document order, without recursion: pages can be
    nested without bound.
    """
    node: Any = root
    while True:
        down = None
        if node.tag == "-text":
            yield "text", node
        elif not (node.tag in _LEFT_OUT or node.tag.startswith(("-", "!")) or _hidden(node)):
            yield "start", node
            down = node.child
            if down is None:
                yield "end", node
        while down is None:
            if node.mem_id == root.mem_id:
                return
            down = node.next
            if down is None:
                node = node.parent
                yield "end", node
        node = down


def _hidden(node: LexborNode) -> bool:
    # of the page, not of an article
    if node.tag == "footer" and node.parent is not None and node.parent.tag == "body":
        return True
    attributes = node.attributes
    if not attributes:
        return False
    style = _UNSHOWN.search(attributes.get("style") or "")
    unseen = "hidden" in attributes or attributes.get("aria-hidden") == "true" or style is not None
    return unseen or attributes.get("role") in _ROLES


class _Page:
    """A collector of inline text up to the start or end of a block element."""

    def __init__(self, canonical: Canonical) -> None:
        self.canonical = canonical
        self.inline: list[str] = []
        # where the last link and the last raised text begin in `inline`
        self.opened: dict[str | None, int] = {}
        self.kinds = ["paragraph"]  # kinds of the open elements that set one
        self.cells: int | None = None  # columns up to the last cell of the open row
        self.bars = 0  # written in it: as many before a cell as it has columns to its left
        # by column: rows, from the open one on, that its last cell fills
        self.rows: dict[int, int] = {}
        self.links: list[str] = []  # texts of links in `inline`
        self.inner = 0  # of these, links to a part of a page
        # by their numbers, blocks that are only such links: how many, words
        self.leading: dict[int, tuple[int, str]] = {}
        self.titles: set[str] = set()  # words of headings
        self.parts: frozenset[str] = frozenset()  # the names of the page's parts

    def read(self, body: LexborNode) -> None:
        named = [node.attributes for node in body.css("[id], a[name]")]
        self.parts = frozenset(part.get("id") or part.get("name") or "" for part in named) - {""}
        for event, node in _walk(body):
            if event == "text":
                self.inline.append(node.text_content or "")
            elif node.tag in _INLINE:
                self._inline(event, node)
            elif node.tag == "br" and event == "start":
                self.inline.append(_LINE_BREAK)
            elif node.tag in _BLOCKS and event == "start":
                self._start(node)
            elif node.tag in _BLOCKS:
                self._end(node)
        self._flush()
        self._mark_contents()

    def _inline(self, event: str, node: LexborNode) -> None:
        """Keep the text of a link at its end; write a raised number as a power or a note."""
        if event == "start":
            self.opened[node.tag] = len(self.inline)
            return
        start = self.opened.get(node.tag, 0)
        text = "".join(self.inline[start:]).strip()
        if node.tag == "a":
            self.links.append(text)
            self.inner += (node.attributes.get("href") or "").partition("#")[2] in self.parts
            if text == "\u00b6":  # to the heading itself
                del self.inline[start:]
        elif _POWER.fullmatch(text):
            power = _BASE.search("".join(self.inline[:start][-3:]))
            self.inline[start:] = [text.translate(_SUPERSCRIPT) if power else f"[{text}]"]

    def _start(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "tr" and self.cells is None and node.css_first("table") is None:
            self._flush()
            self.cells = self.bars = 0
            self.rows = {column: rows - 1 for column, rows in self.rows.items() if rows > 1}
            self.kinds.append("row")
            return
        if self.cells is not None:  # a row is one block
            self.inline.append((self._cell(node) or " ") if tag in _CELLS else " ")
            return
        self._flush()
        if tag == "table":
            self.rows.clear()
        if tag in _KINDS or _HEADING.match(tag):
            self.kinds.append(_KINDS.get(tag, tag))

    def _cell(self, node: LexborNode) -> str:
        """Return the bars before a cell: it keeps its column next to merged cells."""
        column = self.cells or 0
        while self.rows.get(column):
            column += 1
        wide, high = (
            min(int(size), _WIDEST) if (size := node.attributes.get(name) or "").isdecimal() else 1
            for name in _SPANS
        )
        self.cells = column + max(wide, 1)
        if high > 1:
            self.rows |= dict.fromkeys(range(column, self.cells), high)
        bars = _CELL_BREAK * (column - self.bars)
        self.bars = column
        return bars

    def _end(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if self.cells is not None and tag != "tr":
            self.inline.append(" ")
            return
        self._flush()
        if self.cells is not None:
            self.cells = None
            self.kinds.pop()
        elif tag in _KINDS or _HEADING.match(tag):
            self.kinds.pop()

    def _flush(self) -> None:
        if not self.inline:
            return
        text = "".join(self.inline)
        linked = "".join(self.links)
        navigates = any(map(_NAVIGATION.fullmatch, self.links))
        only_inner = 0 < len(self.links) == self.inner
        inner = self.inner
        self.inline = []
        self.links = []
        self.inner = 0
        if navigates and _SIGNS.sub("", text) == _SIGNS.sub("", linked):
            return
        kind = self.kinds[-1]
        if kind == "code":
            text = text.replace(_LINE_BREAK, "\n").strip("\n")
        elif kind == "row":
            text = " ".join(text.split()) if text.replace("|", "").strip() else ""
        else:
            text = "\n".join(" ".join(line.split()) for line in text.split(_LINE_BREAK))
        words = _NUMBERS.sub("", text)
        if heading := _HEADING.match(kind):
            self.titles.add(words)
            self.canonical.add(" ".join(text.split()), level=int(heading[1]))
            return
        number = len(self.canonical.blocks)
        self.canonical.add(text, kind)
        added = len(self.canonical.blocks) > number
        if added and only_inner and words == _NUMBERS.sub("", linked):
            self.leading[number] = inner, words

    def _mark_contents(self) -> None:
        """Mark the blocks of tables of contents: links to parts of the page, several in a row, or
        with the words of a heading.
        """
        blocks = self.canonical.blocks
        for _, run in groupby(enumerate(self.leading), lambda pair: pair[1] - pair[0]):
            rows = [(number, *self.leading[number]) for _, number in run]
            several = sum(links for _, links, _ in rows) >= _ROWS
            for number, _, words in rows:
                if several or words in self.titles:
                    blocks[number] = replace(blocks[number], kind=CONTENTS)
