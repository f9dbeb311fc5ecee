"""Read Markdown. The canonical text is the file's own; blocks are marks in it."""

import re

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, straighten

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*\Z")


class _Marks:
    """The blocks of a Markdown text: lines are collected until the block ends."""

    def __init__(self, text: str, canonical: Canonical) -> None:
        self.text = text
        self.canonical = canonical
        self.title: str | None = None  # the first heading of level 1
        self.start: int | None = None
        self.end = 0
        self.kind = "paragraph"

    def take(self, start: int, end: int, kind: str) -> None:
        """Add a line to the open block, or open a block."""
        if self.start is None:
            self.start = start
            self.kind = kind
        self.end = end

    def close(self) -> None:
        """End the open block, if there is one."""
        if self.start is not None:
            block = self.text[self.start : self.end]
            start = self.start + len(block) - len(block.lstrip())
            if block.strip():
                self.canonical.mark(start, start + len(block.strip()), self.kind)
        self.start = None

    def close_heading(self, level: int, words: str) -> None:
        """End the open block, which is a heading."""
        self.canonical.open_heading(level, words)
        if level == 1:
            self.title = self.title or words
        self.kind = "heading"
        self.close()


def read_markdown(decoded: Decoded) -> DocumentText:
    """Read Markdown: headings (`# ...`, or underlined), code, list items, table rows, paragraphs;
    front matter is code.
    """
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    marks = _Marks(text, canonical)
    fence: str | None = None  # the closing fence of open code
    end = -1
    for number, line in enumerate(text.split("\n")):
        start = end + 1
        end = start + len(line)
        if fence is not None:
            marks.take(start, end, "code")
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                marks.close()
                fence = None
            continue
        opening = _FENCE.match(line) or (re.match("(---)$", line) if number == 0 else None)
        if opening:
            marks.close()
            fence = opening[1]
            marks.take(start, end, "code")
        elif not line.strip():
            marks.close()
        elif heading := _ATX.match(line):
            marks.close()
            words = line[heading.end() :].strip()
            bare = words.rstrip("#")  # # signs may close a heading
            words = bare.strip() if not bare or bare[-1] in " \t" else words
            marks.take(start, end, "heading")
            marks.close_heading(len(heading[1]), words)
        elif (
            marks.start is not None
            and marks.kind == "paragraph"
            and (rule := _UNDERLINE.match(line))
        ):
            words = text[marks.start : marks.end].strip()
            marks.take(start, end, "heading")
            marks.close_heading(1 if rule[1][0] == "=" else 2, words)
        else:
            kind = "paragraph"
            if _ROW.match(line):
                kind = "row"
            elif _ITEM.match(line):
                kind = "item"
            if kind != "paragraph" or marks.kind == "row":
                marks.close()
            marks.take(start, end, kind)
    marks.close()
    return canonical.finish("md", text=text, title=marks.title, encoding=decoded.encoding)
