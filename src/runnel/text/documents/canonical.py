"""The canonical text of a document, and how readers build it: blocks one after another, with white space alone between them."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

_LINE_ENDS = re.compile(r"\r\n?")
_SURROGATES = re.compile("[\ud800-\udfff]")
# What converted files hold beside their text: control characters, break hints, byte order marks, and code points that are none.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u00ad\ufeff\ufffe\uffff]")
BREAK = "\n\n"


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph or the like: `text[start:end]`, neither empty nor with white space around it.

    Attributes:
        kind: "heading", "paragraph", "item" (of a list), "row" (of a table, cells joined by " | "), "code" or "note".
        page: from 1; None where the kind of file has no pages.
        headings: titles above this place, outermost first; a heading's own path ends with itself.
    """

    start: int
    end: int
    kind: str
    page: int | None = None
    headings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentText:
    """What was read of a document.

    Attributes:
        text: its line ends are newlines; all offsets in runnel are code points of it.
        blocks: in order; they do not overlap, and between them there is white space alone.
        kind: "txt", "md", "html", "pdf", "docx", "epub", "jsonl", "csv" or "tsv".
        sha256: of the text in UTF-8, in hexadecimal digits.
        id: of a row of jsonl, csv or tsv; None for a whole file.
        line: that a row ends in, from 1, in the part of the file that was read; None for a whole file.
        pages: how many there are; None where the kind of file has no pages.
        encoding: that the bytes were decoded with, where there was a choice.
        warnings: what a user should know, a sentence each.
    """

    text: str
    blocks: tuple[Block, ...]
    kind: str
    sha256: str
    title: str | None = None
    id: str | None = None
    line: int | None = None
    pages: int | None = None
    encoding: str | None = None
    warnings: tuple[str, ...] = ()

    def block_at(self, offset: int) -> Block | None:
        """The block that holds a character, or the last one before it; None before the first."""
        at = bisect_right(self.blocks, offset, key=lambda block: block.start)
        return self.blocks[at - 1] if at else None

    def to_wire(self) -> dict[str, Any]:
        """As JSON: the blocks as rows, each heading path once."""
        paths: dict[tuple[str, ...], int] = {}
        rows = [(b.start, b.end, b.kind, b.page, paths.setdefault(b.headings, len(paths))) for b in self.blocks]
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "blocks"}
        return fields | {"paths": list(paths), "blocks": rows}

    @staticmethod
    def from_wire(value: dict[str, Any]) -> DocumentText:
        """What `to_wire` made."""
        paths = [tuple(path) for path in value.pop("paths")]
        blocks = tuple(Block(start, end, kind, page, paths[path]) for start, end, kind, page, path in value.pop("blocks"))
        return DocumentText(blocks=blocks, warnings=tuple(value.pop("warnings")), **value)


def straighten(text: str) -> str:
    """A text whose line ends are newlines, be they Windows' or old ones."""
    return _LINE_ENDS.sub("\n", text) if "\r" in text else text


class Canonical:
    """A text under construction. Set `page` before adding what stands on it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.warnings: list[str] = []
        self.page: int | None = None
        self.length = 0
        self._parts: list[str] = []
        self._headings: list[tuple[int, str]] = []  # (level, title) of those that are open

    def open_heading(self, level: int, title: str) -> None:
        """From here on blocks stand under `title`, which closes the headings of its level and below."""
        while self._headings and self._headings[-1][0] >= level:
            self._headings.pop()
        self._headings.append((level, " ".join(title.split())))

    def add(self, text: str, kind: str = "paragraph", *, level: int | None = None, join: str = BREAK) -> None:
        """Put a block behind what is there, unless it is white space alone. `level`: it is a heading. `join`: white space."""
        text = _UNSEEN.sub("", straighten(text)).strip()
        if not text:
            return
        if level is not None:
            kind = "heading"
            self.open_heading(level, text)
        if self.length:
            self._parts.append(join)
            self.length += len(join)
        self._parts.append(text)
        self.mark(self.length, self.length + len(text), kind)
        self.length += len(text)

    def mark(self, start: int, end: int, kind: str) -> None:
        """A block of text that is known already."""
        self.blocks.append(Block(start, end, kind, self.page, tuple(title for _, title in self._headings)))

    def finish(self, kind: str, *, text: str | None = None, title: str | None = None, **more: Any) -> DocumentText:
        """The document. `text`: where the blocks are marks in a text that is kept as it was."""
        text = "".join(self._parts) if text is None else text
        text, lone = _SURROGATES.subn("\ufffd", text)
        if lone:
            self.warnings.append(f"{lone:,} halves of surrogate pairs, which are no characters, were replaced by U+FFFD")
        title = " ".join(_SURROGATES.sub("\ufffd", _UNSEEN.sub("", title or "")).split()) or None
        digest = hashlib.sha256(text.encode()).hexdigest()
        return DocumentText(text, tuple(self.blocks), kind, digest, title, warnings=tuple(self.warnings), **more)
