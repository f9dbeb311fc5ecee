"""Make found sentences readable: show equal sentences once, and headings with the text below them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from runnel.records import Sentence
from runnel.text.sentences import MAX_CHARS, split_sentences

_TITLE_CHARS = 80
_AHEAD = 4 * MAX_CHARS  # enough text to split its first sentence as in the whole document
_NESTED = 3  # headings that may follow a heading before there is text
_UNDERLINE = re.compile(r"[ \t]*([^\w\s])\1{2,}[ \t]*")
_BULLET = re.compile(r"[-*+\u2022\u2023\u25e6\u2013\u2014|>]")
_ENDS = re.compile(r"[.!?;,\u2026\u3002\uff01\uff1f\uff1b\uff0c][\"')\]\u201d\u2019]*\Z")
_LETTER = re.compile(r"[^\W\d_]")


def normalize(text: str) -> str:
    """Return a text without line breaks and repeated spaces."""
    return " ".join(text.split())


def group_repeats(sentences: Iterable[Sentence], count: int, also: Collection[str] = ()) -> list[list[Sentence]]:
    """Group sentences that differ only in whitespace.

    Args:
        sentences: best first.
        count: the number of groups to return, best sentences first.
        also: normalized texts whose groups are also returned, wherever they rank.

    Returns:
        Groups in the order of their best sentence, sentences in the order given.
    """
    groups: dict[str, list[Sentence]] = {}
    wanted = 0
    for sentence in sentences:
        key = normalize(sentence.text)
        if key in groups:
            groups[key].append(sentence)
        elif wanted < count or key in also:
            groups[key] = [sentence]
            wanted += 1
    return list(groups.values())


def end_of_text_below(text: str, start: int, end: int, kind_at: Callable[[int], str | None]) -> int:
    """Return where the first sentence below a heading ends; `end` if `text[start:end]` is not a heading or no text follows.

    A heading is a block of kind "heading", or a line of its own of at most 80 characters that does not end like a sentence.
    Up to three more headings may follow before the text.

    Args:
        kind_at: returns the kind of the block at a character (`DocumentText.block_at`); None if unknown.
    """
    if not _is_heading(text, start, end, kind_at):
        return end
    at = end
    for _ in range(_NESTED + 1):
        ahead = text[at : at + _AHEAD]
        if not ahead.strip():
            return end
        first = at + int(split_sentences(ahead)[0, 1])
        if not _is_heading(text, at, first, kind_at):
            return first
        at = first
    return end


def _is_heading(text: str, start: int, end: int, kind_at: Callable[[int], str | None]) -> bool:
    core = text[start:end].strip()
    first = text.find(core, start)
    kind = kind_at(first)
    if not core or kind == "heading":
        return bool(core)
    lines = [line.strip() for line in core.splitlines() if not _UNDERLINE.fullmatch(line)]
    if kind not in (None, "paragraph") or len(lines) != 1 or len(lines[0]) > _TITLE_CHARS:
        return False
    line_end = text.find("\n", first + len(core))
    alone = text[text.rfind("\n", 0, first) + 1 : line_end if line_end >= 0 else len(text)].strip() == core
    return alone and bool(_LETTER.search(lines[0])) and not _BULLET.match(lines[0]) and not _ENDS.search(lines[0])
