"""Find parts of a document by its lines, pages or characters; and, in a file whose rows are
documents, one of them by its id.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

from runnel.errors import InputError
from runnel.text.documents.document import DocumentText

By = Literal["character", "line", "page"]
_ROWS_NAMED = 5  # ids in an error, at most
_NAME_CHARS = 100  # of the beginning of a long id


def span_of(
    document: DocumentText, name: str, by: By, start: int | None, end: int | None
) -> tuple[int, int]:
    """Return the characters [start, end) of a range.

    `start` and `end` are characters [start, end) from 0, or lines or pages from 1 with both ends;
    None: from or to the end. A page begins with its first block and ends where a block of a later
    page begins.
    """
    count = {
        "character": len(document.text),
        "line": document.text.count("\n") + 1,
        "page": document.pages or 0,
    }[by]
    least = 0 if by == "character" else 1
    if not count and by == "page":
        raise InputError(f"{name} has no pages; give lines or characters")
    first = least if start is None else start
    last = count if end is None else end
    if not least <= first <= last <= count:
        raise InputError(
            f"{name} has {count} {by}s, from {least}: {by}s {first} to {last} are outside of it"
        )
    if by == "character":
        return first, last
    if by == "line":
        starts = [
            0,
            *(match.end() for match in re.finditer("\n", document.text)),
            len(document.text),
        ]
        return starts[first - 1], starts[last]
    pages = [(block.page or 0, block.start) for block in document.blocks]
    stop = next((at for page, at in pages if page > last), len(document.text))
    return next((at for page, at in pages if page >= first), stop), stop


def short_name(name: str) -> str:
    """Return a name, or the beginning of a long one, with a digest that tells
    it from other names.
    """
    if len(name) <= _NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_NAME_CHARS]}…{digest[:12]}"


def choose_row(documents: Iterable[DocumentText], name: str, row: str | None) -> DocumentText:
    """Return the document of a file, or of the row with an id, which may be given as its
    `short_name`.

    All documents are read, so that a file that is damaged after the row is an error, but only one
    is kept.
    """
    chosen: DocumentText | None = None
    ids: list[str] = []
    rows = 0
    for document in documents:
        shown = None if document.id is None else short_name(document.id)
        if chosen is None and row in (document.id, shown):
            chosen = document
        rows += shown is not None
        if shown is not None and rows <= _ROWS_NAMED:
            ids.append(repr(shown))
    if chosen is not None:
        return chosen
    if rows > _ROWS_NAMED:
        ids.append("...")
    problem = "name one of them by its id"
    if row is not None:
        problem = f"none has the id {short_name(row)!r}"
    raise InputError(f"{name} has {rows or 'no'} rows; {problem}: {', '.join(ids) or 'none'}")
