"""Read untrusted zip files within limits. Entries are read into memory by name; nothing is ever written to disk."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from runnel.errors import ReadError
from runnel.text.documents.document import Limits

_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # methods allowed in Office files and epub; others decompress without a bound
_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
_ENCRYPTED = 0x1


class Archive:
    """A zip file opened for reading, as a context manager. No entry yields more than the directory declares."""

    def __init__(self, path: str | Path, limits: Limits) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise ReadError(f"a damaged or truncated zip archive ({error}); download it again or repair it") from error
        entries = self._zip.infolist()
        limits.check(len(entries), "entries", "the archive")
        limits.check(sum(entry.file_size for entry in entries), "unpacked_bytes", "the archive's unpacked content")
        for entry in entries:
            if entry.flag_bits & _ENCRYPTED:
                raise ReadError("an encrypted archive; decrypt it first")
            if entry.compress_type not in _PLAIN:
                raise ReadError(f"{entry.filename!r} in the archive is packed with method {entry.compress_type}; use deflate")
        self.names = frozenset(entry.filename for entry in entries)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """Read an entry."""
        if name not in self.names:
            raise ReadError(f"a file without its part {name!r}; download it again or repair it")
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise ReadError(f"damaged in its part {name!r} ({error}); download it again or repair it") from error

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
