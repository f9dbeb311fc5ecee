"""Read untrusted zip archives within limits, into memory, and their XML parts by local names:
versions differ in namespaces.
"""

from __future__ import annotations

import posixpath
import re
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from xml.etree.ElementTree import Element

from runnel.errors import ReadError, damage_in
from runnel.text.documents.document import Limits
from runnel.text.documents.raised import raised

# methods allowed in Office files and epub; others decompress without a bound
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
_ENCRYPTED = 0x1  # a flag of an entry
# by the name of an element in a paragraph of an Office file, what it stands for; "": its own text
_WRITTEN = {"t": "", "tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class Archive:
    """A zip file opened for reading, as a context manager. No entry yields more than the directory
    declares.
    """

    def __init__(self, path: str | Path, limits: Limits) -> None:
        self.path = path
        with damage_in(
            "a zip archive that", zipfile.BadZipFile, NotImplementedError, ValueError, EOFError
        ):
            self._zip = zipfile.ZipFile(path)
        entries = self._zip.infolist()
        limits.check(len(entries), "entries", "the archive")
        limits.check(
            sum(entry.file_size for entry in entries),
            "unpacked_bytes",
            "the archive's unpacked content",
        )
        for entry in entries:
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _PLAIN:
                how = f"packed with method {entry.compress_type}; use deflate"
                how = "encrypted; decrypt it first" if entry.flag_bits & _ENCRYPTED else how
                raise ReadError(f"{entry.filename!r} in the archive is {how}")
        self.names = frozenset(entry.filename for entry in entries)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        kinds = (KeyError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError)
        with damage_in(f"its part {name!r}", *kinds):
            return self._zip.read(name)

    def read_xml(self, name: str) -> bytes:
        """Read an XML entry; refuse it if it declares entities, which can expand without bound or
        refer to other files.
        """
        data = self.read(name)
        # finds it in UTF-8 and in UTF-16, whose characters have a zero byte
        if _ENTITY.search(data.replace(b"\0", b"")):
            raise ReadError(
                f"its part {name!r} declares XML entities, which such a file does not need; reading"
                " it is not safe"
            )
        return data


def parse(archive: Archive, name: str) -> Element:
    """Return the root element of a part."""
    # the last: an encoding that the parser does not know
    with damage_in(f"its part {name!r}", ElementTree.ParseError, ValueError, LookupError):
        return ElementTree.fromstring(archive.read_xml(name))


def first(archive: Archive, name: str, child: str) -> Element:
    """Return the first element of a part with a local name; ReadError if there is none."""
    element = parse(archive, name).find(f".//{{*}}{child}")
    if element is None:
        raise ReadError(
            f"its part {name!r} has no {child}: not a complete document; save it again with the"
            " program it comes from"
        )
    return element


def tag(element: Element) -> str:
    """Return an element's name without its namespace."""
    return element.tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    """Return an attribute by its name in a namespace, without the namespace; empty if there is
    none.
    """
    return next((value for key, value in element.attrib.items() if key.endswith("}" + name)), "")


def value_of(element: Element | None, path: str) -> str:
    """Return the value of a property, which is an element below; empty if it is missing."""
    child = (
        None if element is None else element.find("/".join(f"{{*}}{x}" for x in path.split("/")))
    )
    return "" if child is None else attribute(child, "val")


def title_of(archive: Archive, name: str) -> str | None:
    """Return the title in a part with a document's properties, which may be missing."""
    if name not in archive.names:
        return None
    return next((e.text for e in parse(archive, name).iter() if tag(e) == "title"), None)


def walk(root: Element, left_out: Callable[[Element], bool]) -> Iterator[tuple[str, Element]]:
    """Yield ("start" | "end", element) in document order, without recursion; ("skip", element) for
    one that is left out.
    """
    open_elements = [(root, iter(root))]
    yield "start", root
    while open_elements:
        element, children = open_elements[-1]
        child = next(children, None)
        if child is None:
            open_elements.pop()
            yield "end", element
        elif left_out(child):
            yield "skip", child
        else:
            open_elements.append((child, iter(child)))
            yield "start", child


def paragraphs(
    root: Element,
    left_out: Callable[[Element], bool] = lambda element: False,
    written: Callable[[Element], str | None] = lambda element: None,
    is_raised: Callable[[Element], bool] = lambda run: False,
) -> Iterator[tuple[str, Element, str]]:
    """Yield ("start" | "end", element, "") for the elements of an Office part that are no text, and
    ("text", paragraph, its text) at the end of each paragraph (p).

    A paragraph in a paragraph, as of a text box, comes before it. Tab stops, which are before a
    paragraph's words, are read as tabs.

    Args:
        written: returns the text that an element of a paragraph stands for, if the name of the
            element does not say it.
    """
    open_paragraphs: list[list[tuple[bool, str]]] = []  # pieces, and whether they are raised
    above = False  # the open run is raised
    for event, element in walk(root, left_out):
        name = tag(element)
        if event == "start" and name == "p":
            open_paragraphs.append([])
        elif event == "end" and name == "p":
            yield "text", element, _joined(open_paragraphs.pop())
        elif event == "start" and name == "r":
            above = is_raised(element)
        elif event == "start" and open_paragraphs and name in _WRITTEN:
            text = _WRITTEN[name] or written(element) or element.text or ""
            open_paragraphs[-1].append((above, text))
        elif event == "start" and open_paragraphs and (sign := written(element)) is not None:
            open_paragraphs[-1].append((False, sign))
        elif event != "skip":
            yield event, element, ""


def _joined(pieces: list[tuple[bool, str]]) -> str:
    """Return the text of a paragraph; raised pieces beside each other are one."""
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
            choices = list(element)
            used = next((choice for choice in choices if _has_text(choice)), None)
            unused |= {id(choice) for choice in choices if choice is not used}
    return unused


def length_of(element: Element) -> int:
    """Return the number of characters in an element of an Office file."""
    return sum(len(part.text or "") for part in element.iter() if tag(part) == "t")


def _has_text(element: Element) -> bool:
    return any(
        tag(part) == "relIds" or (tag(part) == "t" and part.text and not part.text.isspace())
        for part in element.iter()
    )


def related(archive: Archive, name: str) -> dict[str, tuple[str, str]]:
    """Return the parts that a part of an Office file refers to, or with "" the file: {id: (the last
    word of the type, name)}.
    """
    folder, base = posixpath.split(name)
    relations = posixpath.join(folder, "_rels", f"{base}.rels")
    if relations not in archive.names:
        return {}
    targets = {}
    for relation in parse(archive, relations):
        if relation.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, relation.get("Target", "")))
            word = posixpath.basename(relation.get("Type", ""))
            targets[relation.get("Id", "")] = (word, target.lstrip("/"))
    return targets
