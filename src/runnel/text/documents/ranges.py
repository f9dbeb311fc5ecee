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
    if by == "page" and not count:
        raise InputError(f"{name} has no pages; read it by line or character")
    least = 0 if by == "character" else 1
    first, last = least if start is None else start, count if end is None else end
    if not least <= first <= last <= count:
        raise InputError(f"{by}s {first} to {last} are outside of {name}, which has {by}s {least} to {count}")
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
    if len(documents) == 1 and documents[0].id is None:
        if row is not None:
            raise InputError(f"{name} has no rows; omit the row")
        return documents[0]
    for document in documents:
        if document.id == row:
            return document
    names = ", ".join(repr(document.id) for document in documents[:_ROWS_NAMED]) or "none"
    more = ", ..." if len(documents) > _ROWS_NAMED else ""
    problem = "name one of them by its id" if row is None else f"none has the id {row!r}"
    raise InputError(f"{name} has {len(documents):,} rows; {problem}: {names}{more}")
