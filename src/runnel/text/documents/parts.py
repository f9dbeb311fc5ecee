"""Read untrusted zip archives within limits, into memory, and their XML parts by local names:
versions differ in namespaces.
"""

import posixpath
import re
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from xml.etree.ElementTree import Element

from runnel.errors import ReadError, damage_in
from runnel.text.documents.document import Limits

# methods allowed in Office files and epub; others decompress without a bound
_READABLE_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
_ENCRYPTED = 0x1  # a flag of an entry
OFF = ("0", "false", "none")  # values of a property that is off
_T = TypeVar("_T")


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
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _READABLE_METHODS:
                how = f"packed with method {entry.compress_type}; use deflate"
                how = "encrypted; decrypt it first" if entry.flag_bits & _ENCRYPTED else how
                raise ReadError(f"{entry.filename!r} in the archive is {how}")
        self.names = frozenset(entry.filename for entry in entries)

    def __enter__(self) -> "Archive":
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


def is_on(element: Element | None) -> bool:
    """Return whether a property that is on or off is there and on; without a value it is on."""
    return element is not None and attribute(element, "val") not in OFF


def title_of(archive: Archive, name: str) -> str | None:
    """Return the title in a part with a document's properties, which may be missing."""
    if name not in archive.names:
        return None
    return next((e.text for e in parse(archive, name).iter() if tag(e) == "title"), None)


def walk(
    root: _T, children_of: Callable[[_T], Iterator[_T]], left_out: Callable[[_T], bool]
) -> Iterator[tuple[str, _T]]:
    """Yield ("start" | "end", element) in document order, without recursion, because documents can
    be nested without bound; ("skip", element) for one that is left out.
    """
    open_elements = [(root, children_of(root))]
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
            open_elements.append((child, children_of(child)))
            yield "start", child


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
