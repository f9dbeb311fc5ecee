"""Parts of a document by lines, pages or characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from runnel.errors import InputError
from runnel.text.documents.document import DocumentText

By = Literal["character", "line", "page"]
_ROWS_NAMED = 5


def span_of(document: DocumentText, name: str, by: By, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the characters [start, end) of a range.

    `start` and `end` are characters [start, end) from 0, or lines or pages from 1 with both ends; None: from or to the end.
    A page begins with its first block and ends where a block of a later page begins.
    """
    count = {"character": len(document.text), "line": document.text.count("\n") + 1, "page": document.pages or 0}[by]
    least = 0 if by == "character" else 1
    first, last = least if start is None else start, count if end is None else end
    if not least <= first <= last <= count:
        raise InputError(f"{name} has {count or 'no'} {by}s, from {least}: {by}s {first} to {last} are outside of it")
    if by == "character":
        return first, last
    if by == "line":
        starts = [0, *(match.end() for match in re.finditer("\n", document.text)), len(document.text)]
        return starts[first - 1], starts[last]
    pages = [(block.page or 0, block.start) for block in document.blocks]
    stop = next((at for page, at in pages if page > last), len(document.text))
    return next((at for page, at in pages if page >= first), stop), stop


def choose_row(documents: Sequence[DocumentText], name: str, row: str | None) -> DocumentText:
    """Return the document of a file, or of the row with an id."""
    for document in documents:
        if document.id == row:
            return document
    ids = [repr(document.id) for document in documents if document.id is not None]
    names, more = ", ".join(ids[:_ROWS_NAMED]) or "none", ", ..." if len(ids) > _ROWS_NAMED else ""
    problem = "name one of them by its id" if row is None else f"none has the id {row!r}"
    raise InputError(f"{name} has {len(ids) or 'no'} rows; {problem}: {names}{more}")
