"""Files that were opened on the page: in memory, the latest ones, until the server ends."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runnel.errors import InputError
from runnel.search.finding import FileDocument
from runnel.text.documents.document import DocumentText
from runnel.text.documents.pdf_picture import PagePart, PagePicture
from runnel.text.documents.reader import DocumentReader
from runnel.work import Recent

OWN = "opened-here:"  # begins the id of an opened file, and hardly that of a document of an index
_BYTES = 512 << 20  # of all files together; the latest one is kept, however large
_ID_DIGITS = 24


@dataclass(frozen=True)
class Opened(FileDocument):
    """A file that was opened."""

    pdf: bytes = b""  # the file itself, if its pages can be shown


def opened_files(most: int = _BYTES) -> Recent[Opened]:
    """Return the place of opened files, by id."""
    return Recent(lambda one: one.bytes + len(one.pdf), most)


def opened_id(name: str, data: bytes) -> str:
    """Return the id of a file: the same for the same name and content, so that links to it last."""
    return OWN + hashlib.sha256(name.encode("utf-8", "surrogatepass") + b"\0" + data).hexdigest()[:_ID_DIGITS]


def read_opened(reader: DocumentReader, name: str, data: bytes) -> DocumentText:
    """Read a file in memory, by way of a temporary file that is removed at once; an empty one and rows are refused."""
    with _as_file(data) as path:
        document = next(reader.read(path, name=name), None)
    if document is None or document.id is not None or not document.text.strip():
        empty = document is not None and document.id is None
        rows = "has rows, a document each; index it with runnel index, and search the index"
        raise InputError(f"{name} {'is empty' if empty else rows}")
    return document


def picture_of(reader: DocumentReader, name: str, data: bytes, part: PagePart) -> PagePicture:
    """Return a page of a PDF file in memory."""
    with _as_file(data) as path:
        return reader.picture(path, part, name=name)


@contextmanager
def _as_file(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        yield path
