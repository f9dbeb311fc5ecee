"""Paragraphs of Word and PowerPoint files: what is written in their runs, which are pieces of text
in one format.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from xml.etree.ElementTree import Element

from runnel.text.documents.formulas import formula
from runnel.text.documents.parts import tag, walk
from runnel.text.documents.raised import raised
from runnel.text.documents.symbols import in_unicode

# by the name of an element in a paragraph, what it stands for; "": its own text
_WRITTEN = {"t": "", "tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class Run(NamedTuple):
    """The format of a run.

    Attributes:
        raised: its text is superscript.
        font: of its letters; only the names of symbol fonts matter.
        symbols: the font of its symbols, if it is another one.
    """

    raised: bool = False
    font: str = ""
    symbols: str = ""


def paragraphs(
    root: Element,
    left_out: Callable[[Element], bool] = lambda element: False,
    format_of: Callable[[Element], Run] = lambda run: Run(),
    written: Callable[[Element], str | None] = lambda element: None,
) -> Iterator[tuple[str, Element, str]]:
    """Yield ("start" | "end", element, "") for the elements of a part that are no text, and
    ("text", paragraph, its text) at the end of each paragraph (p).

    A paragraph in a paragraph, as of a text box, comes before it. Tab stops, which are before a
    paragraph's words, are read as tabs, and formulas in one line. Of alternatives one is read.

    Args:
        left_out: whether an element is not read, with all that is in it.
        format_of: returns the format of a run (r): a piece of text in one format.
        written: returns the text that an element of a paragraph stands for, if the name of the
            element does not say it.
    """
    unused = unused_alternatives(root)

    def is_skipped(element: Element) -> bool:
        return id(element) in unused or left_out(element) or tag(element) == "oMath"

    open_paragraphs: list[list[tuple[bool, str]]] = []  # pieces, and whether they are raised
    run = Run()
    for event, element in walk(root, iter, is_skipped):
        name = tag(element)
        sign: str | None = None
        if open_paragraphs and name == "oMath":  # once, as it is skipped
            sign = formula(element)
        elif open_paragraphs and event == "start" and name not in _WRITTEN:
            sign = written(element)
        if sign is not None:
            open_paragraphs[-1].append((False, sign))
        elif event == "start" and name == "p":
            open_paragraphs.append([])
        elif event == "end" and name == "p":
            yield "text", element, joined(open_paragraphs.pop())
        elif event == "start" and name == "r":
            run = format_of(element)
        elif event == "start" and open_paragraphs and name in _WRITTEN:
            text = in_unicode(element.text or "", run.font, run.symbols)
            open_paragraphs[-1].append((run.raised, _WRITTEN[name] or text))
        elif event != "skip":
            yield event, element, ""


def joined(pieces: Iterable[tuple[bool, str]]) -> str:
    """Return the text of pieces, each with whether it is raised; raised pieces beside each other
    are one.
    """
    text = ""
    for is_raised, group in groupby(filter(itemgetter(1), pieces), key=itemgetter(0)):
        words = "".join(piece for _, piece in group)
        text += raised(text, words) if is_raised else words
    return text


def unused_alternatives(root: Element) -> set[int]:
    """Return the ids of the alternatives (mc:AlternateContent) that are not shown: of the choices
    the first one with text is, or else the fallback for old programs.
    """
    unused = set()
    for element in root.iter():
        if tag(element) == "AlternateContent":
            used = next(filter(_has_text, element), None)
            unused |= {id(choice) for choice in element if choice is not used}
    return unused


def _has_text(element: Element) -> bool:
    return any(
        tag(part) == "relIds" or (tag(part) == "t" and part.text and not part.text.isspace())
        for part in element.iter()
    )


def length_of(element: Element) -> int:
    """Return the number of characters in an element."""
    return sum(len(part.text or "") for part in element.iter() if tag(part) == "t")
