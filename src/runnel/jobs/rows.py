"""Rows of jsonl, csv, tsv and txt files, plain, .gz or .zst: an id and a text each, read as a
stream, from a whole file or a shard of it.

    Shard                   one of n parts of a file
    RowFile                 a file or a part of it: its lines, its digest, whether it has changed
    read_rows, read_texts   rows as `Document`s; texts by id

Shard i of n owns the lines that begin in its part of the bytes. Splitting by bytes lets a job find
its share without reading the others'; the shares differ by at most one line.
"""

import hashlib
import io
import os
import re
import stat
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from runnel.errors import InputError, counted
from runnel.files import naming, signature
from runnel.jobs.progress import notify
from runnel.records import Document
from runnel.text.lines import GZIP, ZSTD, LinePlace, Lines, parse_document, parse_object
from runnel.text.tables import has_names, read_table, row_text

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 1 << 16
_HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "txt"}


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `number` of `count`, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a shard written as 2/8."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard must be I/N with 1 <= I <= N, like 2/8, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def output_path(self, path: Path) -> Path:
        """Return the name of this shard of an output file: vectors.npy becomes
        vectors-00002-of-00008.npy.
        """
        return path.with_name(f"{path.stem}-{self.number:05d}-of-{self.count:05d}{path.suffix}")

    def of(self, size: int) -> tuple[int, int]:
        """Return this shard's part [start, end) of `size` things, such as bytes."""
        return (self.number - 1) * size // self.count, self.number * size // self.count


def line_start(file: BinaryIO, at: int) -> int:
    """Return the first offset from `at` on where a line starts, else the end of the file; lines end
    at newlines.
    """
    if at <= 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return file.tell()


def count_lines(file: BinaryIO, end: int) -> int:
    """Return how many lines, as Python reads text, end before byte `end`, which starts a line."""
    before = io.BufferedReader(FileRange(file, 0, end), _BUFFER)
    return sum(1 for _ in io.TextIOWrapper(before, "latin-1"))


class FileRange(io.RawIOBase):
    """The bytes [start, end) of an open file, as a file to be read once. Closing it also closes the
    open file.
    """

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file = file
        self._left = end - start
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        target = memoryview(buffer)
        data = self._file.read(min(len(target), self._left))
        target[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class RowFile:
    """A file of rows, or the lines that begin in a shard's part of its bytes; "-" is standard
    input.
    """

    def __init__(self, name: str, shard: Shard | None = None) -> None:
        self.name = name
        self.on_disk = name != "-" and stat.S_ISREG(os.stat(name).st_mode)
        self.kind = "" if name == "-" else _kind(name)  # "": the first line will tell
        # Whether the first line of a tsv file has the names of its columns. None: not known yet,
        # `read_table` decides when it reads the line.
        self.has_names: bool | None = None
        self._range = (0, 0)  # the first byte to read and the one after the last; not of a pipe
        self._signature = signature(name) if self.on_disk else None
        if shard is not None:
            self._find_shard(shard)
        elif self.on_disk:
            self._range = (0, os.stat(name).st_size)

    def _find_shard(self, shard: Shard) -> None:
        """Find the bytes of the shard's lines; raise InputError for a file that has no shards."""
        where = f"{'standard input' if self.name == '-' else self.name}: --shard needs"
        if not self.on_disk:
            raise InputError(
                f"{where} a file on disk, because each job reads its own part; write it to one"
                " first"
            )
        with open(self.name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.peek(4).startswith((GZIP, ZSTD)):
                raise InputError(
                    f"{where} plain text, because each job reads its own part; unpack it first"
                )
            first_line = file.readline().decode("utf-8-sig", errors="replace")
            self.has_names = self.kind == "tsv" and has_names(first_line)
            if self.kind == "csv" or self.has_names:
                raise InputError(
                    f"{where} rows of one line each, without column names; write it as jsonl first"
                )
            start, end = shard.of(size)
            self._range = (line_start(file, start), line_start(file, end))

    def sha256(self) -> str | None:
        """Return the digest of the part's bytes; None for an input that can be read only once."""
        if not self.on_disk:
            return None
        with naming(Path(self.name)), open(self.name, "rb") as file:
            return hashlib.file_digest(FileRange(file, *self._range), "sha256").hexdigest()

    def has_changed(self) -> bool:
        """Return whether a file on disk has changed since this object was made."""
        return self.on_disk and signature(self.name) != self._signature

    @cached_property
    def lines_before(self) -> int:
        if not self._range[0]:
            return 0
        with open(self.name, "rb") as file:
            return count_lines(file, self._range[0])

    def lines(self) -> Lines:
        """Return the part's lines; a byte order mark at the beginning of the file is dropped."""
        file: BinaryIO = sys.stdin.buffer if self.name == "-" else open(self.name, "rb")
        if self.on_disk:
            file = io.BufferedReader(FileRange(file, *self._range), _BUFFER)
        encoding = "utf-8" if self._range[0] else "utf-8-sig"
        return Lines(
            file, self.name, encoding=encoding, newline=None, before=lambda: self.lines_before
        )


def read_rows(source: str | RowFile) -> Iterator[Document]:
    """Yield the rows of a file, of a part of it, or of standard input for "-". Ids may repeat.

    A jsonl row has "id" (or "_id") and "text", and may have a "title", which is put before the
    text. `runnel.text.tables` describes rows of csv and tsv; without an id, the id is the row's
    number, from 1. A row of a txt file is a text, its id the line number from 1. Standard input is
    jsonl if it starts with "{", txt otherwise. Blank lines are skipped. JSON can contain halves of
    surrogate pairs: in texts they are replaced by U+FFFD, rows with such ids are skipped, and a
    warning reports both.
    """
    file = source if isinstance(source, RowFile) else RowFile(source)
    return (row for _, row in _placed_rows(file))


def read_texts(name: str, ids: Container[str] | None = None) -> dict[str, str]:
    """Read the texts of a file by id, or only the texts with one of these ids."""
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for place, row in _placed_rows(RowFile(name)):
        if ids is not None and row.id not in ids:
            continue
        if row.id in texts:
            raise InputError(
                f"{name}, lines {lines[row.id]} and {place.line}: both have the id {row.id!r}; an"
                " id names one text"
            )
        texts[row.id] = row.text
        lines[row.id] = place.line
    return texts


def _placed_rows(file: RowFile) -> Iterator[tuple[LinePlace, Document]]:
    return _read_table(file) if file.kind in ("csv", "tsv") else _read_lines(file)


def _read_table(file: RowFile) -> Iterator[tuple[LinePlace, Document]]:
    lines = file.lines()
    table = read_table(lines, file.kind, names=file.has_names)
    if file.kind == "tsv" and len(table.names) == 1 and "text" not in table.names:
        raise InputError(
            f"{lines.place(1)}: expected an id, a tab and a text, got no tab in"
            f" {table.names[0][:40]!r}"
        )
    if table.names and "text" not in table.names:
        notify(
            f"note: {file.name}: its columns are {', '.join(map(repr, table.names))}, none is"
            " 'text'; a text is all values with their column's name"
        )
    for number, (line, values) in enumerate(table.rows, start=1):
        place = lines.place(line)
        if problem := table.problems.pop(line, None):
            notify(f"warning: {place}: {problem}")
        key = values.get("id", values.get("_id", str(number)))
        _check_id(key, place)
        yield place, Document(key, row_text(values))


def _read_lines(file: RowFile) -> Iterator[tuple[LinePlace, Document]]:
    replaced: list[LinePlace] = []
    left_out: list[LinePlace] = []
    kind = file.kind
    lines = file.lines()
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\n")
        if line.isspace() or not line:
            continue
        kind = kind or ("jsonl" if line.startswith("{") else "txt")
        place = lines.place(number)
        if kind == "txt":
            row = Document(str(place.line), line)
        else:
            row = parse_document(parse_object(line, place), place)
        _check_id(row.id, place)
        # in JSON only an escape can be half a character; looking for "\\u" first is quick
        if "\\u" in line and _HALF.search(row.id):
            left_out.append(place)
            continue
        if "\\u" in line and _HALF.search(row.text):
            replaced.append(place)
            row = replace(row, text=_HALF.sub("\ufffd", row.text))
        yield place, row
    _report(
        file.name,
        replaced,
        "with halves of surrogate pairs, which are no characters: these were replaced by U+FFFD",
    )
    _report(file.name, left_out, "left out, as the id holds half of a surrogate pair")


def _report(name: str, places: Sequence[LinePlace], problem: str) -> None:
    if places:
        notify(
            f"warning: {name}: {counted(len(places), 'row')} {problem}; the first is in line"
            f" {places[0].line:,}"
        )


def _kind(name: str) -> str:
    suffix = Path(name.lower().removesuffix(".gz").removesuffix(".zst")).suffix
    if suffix not in _SUFFIXES or Path(name).is_dir():
        problem = f"has the ending {suffix!r}" if suffix else "has no ending"
        raise InputError(
            f"{name} {'is a folder' if Path(name).is_dir() else problem}; expected a file named"
            " .jsonl, .csv, .tsv or .txt. `runnel index` reads folders"
        )
    return _SUFFIXES[suffix]


def _check_id(key: str, where: LinePlace) -> None:
    if not key or any(c.isspace() for c in key):
        raise InputError(
            f"{where}: an id must not be empty or contain whitespace, which separates ids in run"
            f" files; got {key!r}"
        )
