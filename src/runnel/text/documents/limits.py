"""What a file may cost before it is refused."""

from __future__ import annotations

from dataclasses import dataclass

from runnel.errors import ReadError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one file. A file beyond one of them is refused with a `ReadError` that names the bound.

    Attributes:
        file_bytes: size of the file; rows, which are read as a stream, may be in a larger one.
        unpacked_bytes: what it unpacks to (gzip, docx, epub), and its text; for rows, the longest line.
        entries: files in an archive.
        seconds: time to parse html, pdf, docx and epub.
        memory_bytes: address space of the process that parses them, where the system can limit it (not on macOS and Windows).
    """

    file_bytes: int = 1 << 30
    unpacked_bytes: int = 1 << 28
    entries: int = 10_000
    seconds: float = 120.0
    memory_bytes: int = 4 << 30

    def check_unpacked(self, count: int, what: str) -> None:
        """Refuse more than `unpacked_bytes`."""
        if count > self.unpacked_bytes:
            raise ReadError(f"{what} is larger than {self.unpacked_bytes:,} bytes; raise Limits.unpacked_bytes if it is trusted")
