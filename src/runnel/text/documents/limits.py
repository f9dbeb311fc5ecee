"""Limits on the size and cost of a file."""

from __future__ import annotations

from dataclasses import dataclass

from runnel.errors import ReadError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one file. A file beyond a limit is refused with a `ReadError` that names the limit.

    Attributes:
        file_bytes: size of the file; files of rows, which are read as a stream, may be larger.
        unpacked_bytes: size of the unpacked content (gzip, docx, epub) and of the text; for rows, the longest line.
        entries: files in an archive.
        seconds: time to parse html, pdf, docx and epub.
        memory_bytes: address space of the process that parses them, if the system can limit it (not on macOS and Windows).
    """

    file_bytes: int = 1 << 30
    unpacked_bytes: int = 1 << 28
    entries: int = 10_000
    seconds: float = 120.0
    memory_bytes: int = 4 << 30

    def check_unpacked(self, count: int, what: str) -> None:
        """Raise ReadError for more than `unpacked_bytes`."""
        if count > self.unpacked_bytes:
            raise ReadError(f"{what} is larger than {self.unpacked_bytes:,} bytes; raise Limits.unpacked_bytes if you trust it")
