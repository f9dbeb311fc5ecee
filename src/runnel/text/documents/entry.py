"""An entry: lines of a paragraph of plain text that belong together (`entries.py`,
`drawn_tables.py`).
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

LOOK = 200  # how many characters of a line are looked at
# what is between two columns; also "Valve ... 7"
COLUMNS = re.compile(r"[^\s.](?:[ ]{3,}|[ ]*\t|[ ]?\.{2,}[ ])[^\s.]")


class Entry(NamedTuple):
    """The lines [first, last) of a paragraph.

    Attributes:
        kind: "line"; "heading" is the name of a section of settings. A table has "heads" and
            "row", and "contents" for the lines drawn in it.
        level: of such a heading; of a line, the level of the sections that end before it; or 0.
        lead: of a row, as of `Block`.
    """

    first: int
    last: int
    kind: str = "line"
    level: int = 0
    title: str = ""
    lead: tuple[str, ...] = ()


def entries_from(starts: Iterable[int], end: int) -> list[Entry]:
    """Return entries that begin at these lines, and before the first of them."""
    return [Entry(first, last) for first, last in pairwise(sorted({0, *starts, end}))]
