"""Read EPUB: a zip archive whose package file lists XHTML pages in reading order."""

import posixpath
from urllib.parse import unquote

from runnel.errors import ReadError
from runnel.files import decode
from runnel.text.documents.document import Canonical, DocumentText, Limits
from runnel.text.documents.html import add_page
from runnel.text.documents.parts import Archive, first, parse, tag

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/x-dtbook+xml")
_SHOWN = 3  # names in a warning


def read_epub(archive: Archive, limits: Limits) -> DocumentText:
    """Read the pages of the spine in order, each once. Missing pages are reported as warnings."""
    package_name = first(archive, _CONTAINER, "rootfile").get("full-path", "")
    package = parse(archive, package_name)
    # in many books only fonts are encrypted, which does no harm
    encrypted = parse(archive, _ENCRYPTION).iter() if _ENCRYPTION in archive.names else ()
    locked = {unquote(e.get("URI", "")) for e in encrypted if tag(e) == "CipherReference"}
    items = {e.get("id"): e for e in package.iter() if tag(e) == "item"}
    pages = frozenset(unquote(e.get("href", "")).rpartition("/")[2] for e in items.values())
    canonical = Canonical(limits=limits)
    references = [e.get("idref") for e in package.iter() if tag(e) == "itemref"]
    missing = [repr(reference) for reference in references if reference not in items]
    chosen = (items[reference] for reference in references if reference in items)
    # pages that are no pictures, by their names in the archive; the package has paths from its own
    # folder
    names = (
        posixpath.join(
            posixpath.dirname(package_name), unquote(item.get("href", "").partition("#")[0])
        )
        for item in chosen
        if item.get("media-type", _PAGES[0]) in _PAGES
    )
    # a page of several sections is read once
    for name in dict.fromkeys(map(posixpath.normpath, names)):
        if name in locked:
            raise ReadError("a book under copy protection (DRM); its pages are encrypted")
        if name not in archive.names:
            missing.append(repr(name))
            continue
        add_page(canonical, decode(archive.read(name), name, markup=True).text, others=pages)
    if missing:
        more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
        canonical.warnings.append(
            f"pages are missing from the book ({len(missing):,}):"
            f" {', '.join(missing[:_SHOWN])}{more}"
        )
    return canonical.finish(
        "epub", title=next((e.text for e in package.iter() if tag(e) == "title"), None)
    )
