"""Read text files: plain text, Markdown and source code. The canonical text is the file's own; blocks are marks in it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate, chain

from runnel.text.documents.document import Canonical, DocumentText, straighten
from runnel.text.reading import Decoded

# ---- plain text ------------------------------------------------------------------------------------------------------

_PARAGRAPH_END = re.compile(r"\n[^\S\n\f]*\n\s*|\f")


def read_plain(decoded: Decoded) -> DocumentText:
    """Read plain text. Paragraphs end at blank lines, pages at form feeds; `_titles` describes headings."""
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    pages = text.count("\f") + (not text.endswith("\f")) if "\f" in text else None
    canonical.page = 1 if pages else None
    titles = deque(_titles(text))
    start = 0

    def mark(last: int, kind: str) -> None:  # what is before `last`
        nonlocal start
        if words := text[start:last].strip():
            first = last - len(text[start:last].lstrip())
            if canonical.page is not None:
                canonical.page += text.count("\f", start, first)
            canonical.mark(first, first + len(words), kind)
            start = first
        if canonical.page is not None:
            canonical.page += text.count("\f", start, last)
        start = last

    for end in chain((match.end() for match in _PARAGRAPH_END.finditer(text)), [len(text)]):
        while titles and titles[0][0] < end:
            first, last, level, title = titles.popleft()
            mark(first, "paragraph")
            canonical.open_heading(level, title)
            mark(last, "heading")
        mark(end, "paragraph")
    return canonical.finish("txt", text=text, pages=pages, encoding=decoded.encoding)


_TITLE_RULE = re.compile(r"([=\-~^*+#\"])\1{2,}")
_ADOC = re.compile(r"(={1,6})[ \t]+(?=[^\s=])")
_NUMBERED = re.compile(r"(?:(?:Chapter|Part|Appendix|Section)[ \t]+)?(\d{1,3}(?:\.\d{1,3})*|[A-Z](?=\.))[.:]?[ \t]+(?=\w)")
_CAPITALS = re.compile(r"[A-Z][^a-z_=<>{}$|]*[A-Z]{2}[^a-z_=<>{}$|]*")


def _titles(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Yield (start, end, level, title) of headings: `== Title`, underlined, and lines of their own, numbered or in capitals."""
    lines = re.split("[\n\f]", text)
    at = list(accumulate((len(line) + 1 for line in lines), initial=0))
    full = [-2, *(number for number, line in enumerate(lines) if line.strip()), len(lines) + 1]
    alone = {  # levels; a line stands alone between blank ones, or flush left above indented text
        n: _level(lines[n])
        for before, n, after in zip(full, full[1:], full[2:], strict=False)
        if before < n - 1 and (after > n + 1 or (lines[after][0].isspace() and not lines[n][0].isspace()))
    }
    styles: list[str] = []
    free = -1  # the last line of the last heading
    for before, n, after in zip(full, full[1:], full[2:], strict=False):
        words, first, last, level = lines[n].strip(), n, n, 0
        rule = lines[n + 1].rstrip() if after == n + 1 else ""
        if not _LETTER.search(words) or len(words) > _TITLE_CHARS:
            continue
        if marked := _ADOC.match(lines[n]):
            level, words = len(marked[1]), words[marked.end() :]
        elif _TITLE_RULE.fullmatch(rule.strip()) and len(words) - 2 <= len(rule) <= 2 * len(words) + 20:
            over = free < before == n - 1 and lines[before].strip() == rule.strip()
            first, last, style = n - over, n + 1, rule[-1] * (1 + over)
            styles += [style] if style not in styles else []
            level = 1 + styles.index(style)
        elif n in alone and (alone[n] == 1 or alone[n] not in (alone.get(before), alone.get(after))):  # no list
            level = alone[n]
        if level:
            free = last
            yield at[first] + len(lines[first]) - len(lines[first].lstrip()), at[last] + len(lines[last].rstrip()), level, words


def _level(line: str) -> int:
    """Return the level of a line that is numbered (2; 1.1: 3) or in capitals, flush left or centered (1); 0 for other lines."""
    words, indent = line.strip(), len(line) - len(line.lstrip())
    numbered = _NUMBERED.match(words)
    names = not re.search(r"(?<!\w)[^\W\dA-Z](?:\w{4}|\w*\W*\Z)", words)  # 1. Source Code.
    if len(words) > _TITLE_CHARS or (_ENDS.search(words) and not (numbered and names and words[-1] == ".")):
        return 0
    capitals = indent not in range(1, 11) and _CAPITALS.fullmatch(words)  # fewer spaces are before a line of code
    return 2 + numbered[1].count(".") if numbered else int(bool(capitals))


# ---- headings --------------------------------------------------------------------------------------------------------

_TITLE_CHARS = 80
_UNDERLINE = re.compile(r"[ \t]*([^\w\s])\1{2,}[ \t]*")
_BULLET = re.compile(r"[-*+\u2022\u2023\u25e6\u2013\u2014|>]")
_ENDS = re.compile(r"[.!?;,\u2026\u3002\uff01\uff1f\uff1b\uff0c][\"')\]\u201d\u2019]*\Z")
_LETTER = re.compile(r"[^\W\d_]")


def is_heading(text: str, start: int, end: int, kind_at: Callable[[int], str | None]) -> bool:
    """Return whether `text[start:end]`, a sentence, is a heading: a "heading" block, or a line of its own, as `is_title`."""
    core = text[start:end].strip()
    first = text.find(core, start)
    kind = kind_at(first)
    if not core or kind == "heading" or not is_title(core, kind):
        return bool(core) and kind == "heading"
    line_end = text.find("\n", first + len(core))
    return text[text.rfind("\n", 0, first) + 1 : line_end if line_end >= 0 else len(text)].strip() == core


def is_title(words: str, kind: str | None) -> bool:
    """Return whether a sentence alone on its line, in a block of this kind, is a heading: short, and it does not end like one."""
    if kind not in (None, "paragraph") or (len(words) > _TITLE_CHARS and "\n" not in words):
        return False
    lines = [line for line in map(str.strip, words.splitlines()) if not _UNDERLINE.fullmatch(line)]
    if len(lines) != 1 or len(lines[0]) > _TITLE_CHARS:
        return False
    return bool(_LETTER.search(lines[0])) and not _BULLET.match(lines[0]) and not _ENDS.search(lines[0])


# ---- Markdown --------------------------------------------------------------------------------------------------------

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|\Z)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*\Z")


class _Marks:
    """The blocks of a text: lines are collected until the block ends."""

    def __init__(self, text: str, canonical: Canonical) -> None:
        self.text, self.canonical = text, canonical
        self.start: int | None = None
        self.end = 0
        self.kind = ""

    def take(self, start: int, end: int, kind: str) -> None:
        """Add a line to the open block, or open a block."""
        if self.start is None:
            self.start, self.kind = start, kind
        self.end = end

    def close(self) -> None:
        """End the open block, if there is one, and mark what it has between whitespace."""
        block = "" if self.start is None else self.text[self.start : self.end]
        if self.start is not None and block.strip():
            start = self.start + len(block) - len(block.lstrip())
            self.canonical.mark(start, start + len(block.strip()), self.kind)
        self.start = None


def read_markdown(decoded: Decoded) -> DocumentText:
    """Read Markdown: headings (`# ...`, or underlined), code, list items, table rows, paragraphs; front matter is code."""
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    marks = _Marks(text, canonical)
    title: str | None = None
    fence: str | None = None  # the closing fence of open code
    at = 0
    for number, whole in enumerate(text.split("\n")):
        start, end = at, at + len(whole)
        at = end + 1
        if fence is not None:
            marks.take(start, end, "code")
            if whole.strip().startswith(fence) and not whole.strip().strip(fence[0]):
                marks.close()
                fence = None
            continue
        level, words = 0, ""  # of a heading
        if opening := _FENCE.match(whole) or (re.match("(---)$", whole) if number == 0 else None):
            marks.close()
            fence = opening[1]
            marks.take(start, end, "code")
        elif not whole.strip():
            marks.close()
        elif heading := _ATX.match(whole):
            marks.close()
            level, words = len(heading[1]), whole[heading.end() :].strip()
            bare = words.rstrip("#")  # # signs may close a heading
            words = bare.strip() if not bare or bare[-1] in " \t" else words
        elif marks.start is not None and marks.kind == "paragraph" and (line := _SETEXT.match(whole)):
            start, level, words = marks.start, 1 if line[1][0] == "=" else 2, text[marks.start : marks.end].strip()
            marks.start = None
        else:
            kind = "row" if _ROW.match(whole) else "item" if _ITEM.match(whole) else "paragraph"
            if kind != "paragraph" or marks.kind == "row":
                marks.close()
            marks.take(start, end, kind)
        if level:
            canonical.open_heading(level, words)
            marks.take(start, end, "heading")
            marks.close()
            title = title or (words if level == 1 else None)
    marks.close()
    return canonical.finish("md", text=text, title=title, encoding=decoded.encoding)


# ---- source code -----------------------------------------------------------------------------------------------------
# Definitions are recognized by their keywords, and end where a later line has their indentation: nothing is parsed. So functions
# of languages without a keyword for them (C, Java) are no headings, but their classes are.

_LONGEST = 300  # characters of a line in which a definition is looked for: generated code has lines of megabytes
_BEFORE = (
    r"(?:(?:abstract|async|data|default|export|final|internal|local|open|override|partial|private|protected|pub|pub\(\w+\)|public|"
    r"sealed|static|unsafe)\s+)*"
)
_KEYWORDS = "class|def|defmodule|defp|enum|fn|fun|func|function|impl|interface|module|namespace|object|protocol|struct|sub|trait"
_DEFINITION = re.compile(
    rf"{_BEFORE}(?:{_KEYWORDS})\b\*?\s*(?:<[^<>]*>\s*|\([^()]*\)\s*)?"
    r"(?P<name>[\w$]+(?:(?:\.|::)[\w$]+)*[?!]?(?:<[^<>]*>)?(?: for [\w:]+)?)"
    r"|(?:export\s+)?(?:const|let)\s+(?P<assigned>[\w$]+)\s*=\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*=>|\w+\s*=>)"
)
_GOES_ON = re.compile(r"[)\]}#@*]|//|/\*|end\b")  # begins a line that may have the indentation of a definition and not end it


def read_code(decoded: Decoded) -> DocumentText:
    """Read source code: classes and functions are headings; blocks begin at them, after them, and after blank lines."""
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    marks = _Marks(text, canonical)
    at = 0
    for whole in text.split("\n"):
        words = whole.strip()
        indentation = len(whole[: len(whole) - len(whole.lstrip())].expandtabs())
        definition = _DEFINITION.match(words[:_LONGEST])
        leaves = canonical.deepest > indentation and not _GOES_ON.match(words)
        if definition or leaves or not words:
            marks.close()
        if words and leaves:
            canonical.close_headings(indentation + 1)
        if definition:
            canonical.open_heading(indentation + 1, definition["name"] or definition["assigned"])
        if words:
            marks.take(at, at + len(whole), "code")
        at += len(whole) + 1
    marks.close()
    return canonical.finish("code", text=text, encoding=decoded.encoding)
