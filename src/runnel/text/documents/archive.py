"""Read untrusted zip files within limits. Entries are read into memory by name; nothing is ever written to disk."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from runnel.errors import ReadError, damage_in
from runnel.text.documents.document import Limits

_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # methods allowed in Office files and epub; others decompress without a bound
_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
_ENCRYPTED = 0x1


class Archive:
    """A zip file opened for reading, as a context manager. No entry yields more than the directory declares."""

    def __init__(self, path: str | Path, limits: Limits) -> None:
        self.path = path
        with damage_in("a zip archive that", zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
            self._zip = zipfile.ZipFile(path)
        entries = self._zip.infolist()
        limits.check(len(entries), "entries", "the archive")
        limits.check(sum(entry.file_size for entry in entries), "unpacked_bytes", "the archive's unpacked content")
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
        """Read an entry."""
        kinds = (KeyError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError)
        with damage_in(f"its part {name!r}", *kinds):
            return self._zip.read(name)

    def read_xml(self, name: str) -> bytes:
        """Read an XML entry; refuse it if it declares entities, which can expand without bound or refer to other files."""
        data = self.read(name)
        if _ENTITY.search(data.replace(b"\0", b"")):  # in UTF-8 or UTF-16
            raise ReadError(f"its part {name!r} declares XML entities, which such a file does not need; reading it is not safe")
        return data

    def xml_parts(self) -> Iterator[bytes]:
        """Yield all XML entries, as `read_xml` does."""
        for name in sorted(self.names):
            if name.endswith((".xml", ".rels")):
                yield self.read_xml(name)
