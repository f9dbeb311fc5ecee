"""Find the files, and lines of files, that a shard owns, and read their documents.

Files are weighted by their estimated bytes of text, in the order in which `runnel index` reads them. A shard owns the
files that begin in its part of the total weight; jsonl files, which can be large, are cut at lines.
"""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from runnel.errors import MissingDependency, ReadError
from runnel.search.files import check_file, distinct_rows, left_out, to_row
from runnel.search.records import DocumentRow
from runnel.text.documents.document import HEAD_BYTES, DocumentText, recognize
from runnel.text.documents.reader import DocumentReader
from runnel.text.documents.rows import NO_ROWS, Before, read_rows
from runnel.text.folders import Root, find_files
from runnel.text.shards import FileRange, Shard, byte_range, line_range, range_sha256

log = logging.getLogger("runnel")
# Percent: bytes of text per byte of a file; for docx and epub, per unpacked byte of the parts with text. docs/shards.md
# describes how they were measured.
_TEXT_SHARE = {".html": 40, ".htm": 40, ".xhtml": 40, ".pdf": 40, ".docx": 30, ".epub": 50}
_UNPACKED_SHARE = 350  # for kinds that are not packed themselves
_TEXT_PARTS = {".docx": ("word/document.xml", "notes.xml"), ".epub": (".xhtml", ".html", ".htm")}
_MOST_PACKED = 30  # times: an archive may declare a false size, which would leave the other shards empty
_PACKED = (".pdf", *_TEXT_PARTS)
_CUT = (".jsonl", ".ndjson")
_BUFFER = 1 << 16


@dataclass(frozen=True, slots=True)
class Unit:
    """A file, or the lines in bytes [start, end) of a jsonl file.

    Attributes:
        end: None: all of the file.
        size: bytes of the unit, and their `sha256`, when the shard was begun.
    """

    file: Path
    start: int = 0
    end: int | None = None
    size: int = 0
    sha256: str = ""


class ShardPlan:
    """All files to divide among shards. Every shard computes the same plan.

    Attributes:
        files: all files at `paths`, in order, with their weights.
        weight: of all files.
        digest: of names and weights, equal if two shards have the same plan.
    """

    def __init__(self, paths: Iterable[str | Path | Root]) -> None:
        self.files = {file: _weigh(file) for file in find_files(Root.parse(path).resolve() for path in paths)}
        digest = hashlib.sha256()
        for file, weight in self.files.items():
            digest.update(f"{file}\0{weight}\n".encode("utf-8", "surrogateescape"))
        self.digest = digest.hexdigest()
        self.weight = sum(self.files.values())

    def units(self, shard: Shard) -> list[Unit]:
        """Return the units of a shard, in order."""
        start, end = byte_range(self.weight, shard)
        units, at = [], 0
        for file, weight in self.files.items():
            if at < end and at + weight > start and _is_cut(file):
                units += _lines_of(file, max(start - at, 0), min(end - at, weight))
            elif start <= at < end:
                units.append(Unit(file))
            at += weight
        return [_hashed(unit) for unit in units]


def units_digest(units: Iterable[Unit]) -> str:
    """Return the digest of names and contents of units."""
    digest = hashlib.sha256()
    for unit in units:
        digest.update(f"{unit.file}\0{unit.start}\0{unit.size}\0{unit.sha256}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def unit_changed(unit: Unit) -> bool:
    """Return whether a unit's bytes have changed."""
    return _hashed(unit) != unit


def read_units(units: Iterable[Unit], failed: dict[str, str]) -> Iterator[DocumentRow]:
    """Yield documents as `files.read_files` does. Unreadable files and rows are logged and recorded in `failed`."""
    with DocumentReader() as reader:
        for unit in units:
            name = str(unit.file)
            before = cache(partial(_before, unit))
            try:
                check_file(unit.file)
                reads = reader.read(unit.file) if unit.end is None else _read_lines(reader, unit, unit.end, before)
                read, before_it = None, len(failed)
                for read in distinct_rows(name, reads, failed, before):
                    yield to_row(name, unit.sha256, read)
                if read is None and unit.end is None and len(failed) == before_it:
                    log.warning("%s: %s", name, NO_ROWS)
            except (ReadError, MissingDependency, OSError) as error:
                failed[name] = str(error)
                log.warning("%s", left_out(name, str(error)))


def _before(unit: Unit) -> Before:
    """Count the lines and rows before a unit, for the numbers of rows without an id and of lines in messages."""
    if not unit.start:
        return Before()
    with open(unit.file, "rb") as file:
        head = io.TextIOWrapper(io.BufferedReader(FileRange(file, 0, unit.start)), "utf-8-sig", "replace", newline="")
        lines = rows = 0
        for line in head:
            lines, rows = lines + 1, rows + bool(line.strip())
        return Before(lines, rows)


def _read_lines(reader: DocumentReader, unit: Unit, end: int, before: Callable[[], Before]) -> Iterator[DocumentText]:
    encoding = "utf-8" if unit.start else None
    with open(unit.file, "rb") as file:
        part = io.BufferedReader(FileRange(file, unit.start, end), _BUFFER)
        yield from read_rows(part, "jsonl", str(unit.file), reader.limits, encoding, before)


def _lines_of(path: Path, start: int, end: int) -> list[Unit]:
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start, end = line_range(file, start, end)
    if start == 0 and end >= size:
        return [Unit(path)]
    return [Unit(path, start, end)] if start < end else []


def _is_cut(path: Path) -> bool:
    if path.suffix.lower() not in _CUT or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return recognize(file.read(HEAD_BYTES), path.name) == "jsonl"
    except (ReadError, OSError):
        return False  # reported when it is read


def _hashed(unit: Unit) -> Unit:
    if not unit.file.is_file():  # opening a pipe would block
        return replace(unit, size=0, sha256="unreadable: not a file")  # reported when it is read
    try:
        with unit.file.open("rb") as file:
            end = file.seek(0, io.SEEK_END) if unit.end is None else unit.end
            return replace(unit, size=end - unit.start, sha256=range_sha256(file, unit.start, end))
    except OSError as error:
        return replace(unit, size=0, sha256=f"unreadable: {error.strerror}")  # reported when it is read


def _weigh(path: Path) -> int:
    """Estimate a file's bytes of text cheaply; at least 1, so that every file belongs to a shard."""
    suffix, packed = path.suffix.lower(), 100
    size = path.stat().st_size
    if suffix in _TEXT_PARTS:
        size = min(_text_parts(path, _TEXT_PARTS[suffix]), _MOST_PACKED * size) or size
    if suffix in (".gz", ".zst"):
        suffix = Path(path.stem).suffix.lower()
        packed = 100 if suffix in _PACKED else _UNPACKED_SHARE
    return max(1, size * packed * _TEXT_SHARE.get(suffix, 100) // 10_000)


def _text_parts(path: Path, endings: tuple[str, ...]) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist() if entry.filename.lower().endswith(endings))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError):
        return 0  # reported when it is read
