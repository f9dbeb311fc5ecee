"""Read files as documents of an index; find new, changed and removed files.

A document's id is the absolute path of its file; for a row of jsonl, csv or tsv, "#" and the row's
id follow.

`read_found` yields the documents of new and changed files and fills a `Scan` with all other
results; `Scan.finish` then finds the files that are gone. A file is read unless

1. it is stored whole: all its stored documents have its present hash, and one has it without
   `_MORE`, which only the last document of a file read without a failure gets; or
2. `FileHashes.failures` says that the same content failed before. So with a `FileHashes` that is
   kept, failures are reported once; without one, each time.
"""

import logging
import os
import stat
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runnel.checks import expect_series, utf8
from runnel.errors import InputError, MissingDependency, ReadError, UnsupportedKind
from runnel.search.file_hashes import FileHashes
from runnel.search.records import ContentHashes, DocumentRow
from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.reader import DocumentReader
from runnel.text.documents.rows import NO_ROWS
from runnel.text.folders import Root, other_kinds

log = logging.getLogger("runnel")
# path of a file -> the documents of it that an index has, by id; "" -> documents given as text
Stored = Mapping[str, Mapping[str, ContentHashes]]
# follows the file's hash in all documents of a file but the last, and in the last if one failed
_MORE = "+"


@dataclass(slots=True)
class Scan:
    """The results of reading files so far."""

    # ids of documents whose file has not changed
    unchanged: list[str] = field(default_factory=list)
    # file, folder, or "path, line N" of a row -> why it was skipped
    failed: dict[str, str] = field(default_factory=dict)
    # ids of stored documents that no longer exist: their file is gone (complete after `finish`), or
    # it no longer has this row or any text
    gone: list[str] = field(default_factory=list)
    # files without text, which are no documents of the index
    empty: list[str] = field(default_factory=list)
    # files in folders that are no documents, such as images
    other_kinds: list[str] = field(default_factory=list)

    def finish(self, roots: Sequence[Root], stored: Stored, seen: Container[str]) -> None:
        """Note the stored documents whose file is gone; `seen`: the paths of all files that were
        found at `roots`.
        """
        if self.other_kinds:
            log.warning("note: %s", other_kinds(self.other_kinds))
        for name, documents in stored.items():
            file = Path(name)
            if name not in seen and any(root.covers(file) for root in roots):
                # in a folder that could not be read, the file may still be
                if not self.failed.keys() & set(map(str, file.parents)):
                    self.gone += documents

    def fail_folder(self, error: OSError) -> None:
        """Record and log a folder, or a .gitignore file, that cannot be read."""
        name = str(error.filename)
        leave_out(self.failed, name, f"{name}: {error.strerror}")


def check_paths(paths: Iterable[str | Path | Root]) -> list[Root]:
    """Return the roots of paths; raise InputError if a path does not exist, or for one path in
    place of several.
    """
    expect_series(paths, "paths", "a list of paths")
    return [Root.parse(path) for path in paths]


def _check_file(file: Path) -> None:
    """Raise ReadError for a file that is not a regular one, or whose name is not UTF-8."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise ReadError(f"{file} is {kind}, which may never end; save its content to a file first")
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise ReadError(f"{file} has a name that is not UTF-8; rename the file") from error


def by_file(hashes: Mapping[str, ContentHashes]) -> Stored:
    """Return the documents of an index by their file."""
    stored: dict[str, dict[str, ContentHashes]] = {}
    for name, content in hashes.items():
        stored.setdefault(content.source, {})[name] = content
    return stored


def read_found(
    files: Iterable[Path],
    stored: Stored,
    scan: Scan,
    named: Container[Path],
    hashes: FileHashes | None = None,
    limits: Limits | None = None,
    ocr: Ocr | None = None,
) -> Iterator[DocumentRow]:
    """Yield documents of those files that are new or changed; fill `scan` with the other results
    meanwhile.

    What cannot be read is logged and recorded in `scan.failed`, and its stored content is kept. A
    file whose present content failed before counts as unchanged.

    Args:
        named: the files that the user named, and did not only name a folder of. One of a kind that
            is not read fails; others of such a kind go to `scan.other_kinds`.
    """
    hashes = FileHashes() if hashes is None else hashes
    with DocumentReader(limits, ocr=ocr) as reader:
        for file in files:
            name = str(file)
            digest = ""
            try:
                digest = hashes.sha256(file)
                old = stored.get(name, {})
                stored_hashes = {content.source_hash for content in old.values()}
                # 1. of the module's docstring; then 2.
                complete = digest in stored_hashes <= {digest, digest + _MORE}
                if complete or hashes.failures.get(name) == digest:
                    scan.unchanged += old
                else:
                    yield from _read_file(file, digest, list(old), reader, scan, hashes)
            except (ReadError, MissingDependency, OSError) as error:
                if isinstance(error, UnsupportedKind) and file not in named and name not in stored:
                    scan.other_kinds.append(name)
                else:
                    leave_out(scan.failed, name, str(error))
                if digest:
                    hashes.failures[name] = digest


def _read_file(
    file: Path,
    digest: str,
    old: Sequence[str],
    reader: DocumentReader,
    scan: Scan,
    hashes: FileHashes,
) -> Iterator[DocumentRow]:
    """Yield the documents of one file; `old` are the ids of those that are stored."""
    _check_file(file)
    name = str(file)
    failed_before = len(scan.failed)
    fresh: set[str] = set()
    for read, last in _with_last(_distinct_rows(name, reader.read(file), scan.failed)):
        # A file with a failed row is never complete: the next run reads it and reports the row
        # again, unless it knows of the failure from `hashes`.
        complete = last and len(scan.failed) == failed_before
        if read.id is None and not read.text.strip():
            scan.empty.append(name)
            continue
        row = name if read.id is None else f"{name}#{read.id}"
        for warning in read.warnings:
            log.warning("%s: %s", row, warning)
        fresh.add(row)
        yield DocumentRow(
            id=row,
            text=read.text,
            title=read.title or "",
            source=name,
            source_hash=digest if complete else digest + _MORE,
            content_hash="",
            tokens=0,
            metadata={"kind": read.kind},
            blocks=read.places().blocks,
        )
    empty = scan.empty[-1:] == [name]  # the file was added above
    if not fresh and not empty and len(scan.failed) == failed_before:
        log.warning("%s: %s", name, NO_ROWS)
    if (not fresh and not empty) or len(scan.failed) > failed_before:
        hashes.failures[name] = digest
    scan.gone += sorted(set(old) - fresh)


def _distinct_rows(
    name: str, reads: Iterable[DocumentText], failed: dict[str, str]
) -> Iterator[DocumentText]:
    """Drop rows whose id is not UTF-8 or was used before; log them and record them in `failed`."""
    lines: dict[str, int] = {}  # by id, the line where it was seen first
    for read in reads:
        if read.id is None or read.line is None:
            yield read
            continue
        try:
            utf8(read.id, f"the id {read.id!r}")
            if read.id in lines:
                raise InputError(
                    f"the id {read.id!r} is already used in line {lines[read.id]}; give each row"
                    " its own"
                )
        except InputError as error:
            row = f"{name}, line {read.line}"
            leave_out(failed, row, f"{row}: {error}")
            continue
        lines[read.id] = read.line
        yield read


def _with_last(documents: Iterator[DocumentText]) -> Iterator[tuple[DocumentText, bool]]:
    """Yield each document with whether it is the last of its file, which is known once the file
    was read to its end without an error.
    """
    last = None
    try:
        for document in documents:
            if last is not None:
                yield last, False
            last = document
    except ReadError:
        if last is not None:
            yield last, False
        raise
    if last is not None:
        yield last, True


def leave_out(failed: dict[str, str], name: str, reason: str) -> None:
    """Record in `failed`, and log, why a file or document is left out."""
    failed[name] = reason
    log.warning("%s", left_out(name, reason))


def left_out(name: str, reason: str) -> str:
    """Return the message about a file or document that was left out, in well-formed text; many
    reasons name it already.
    """
    line = " ".join(reason.split())
    # an id such as "a" occurs in many words
    named = repr(name) in line or (os.sep in name and name in line)
    message = f"left out: {line}" if named else f"left out: {name}: {line}"
    # names may not be UTF-8, and log files take no half characters
    return message.encode("utf-8", "backslashreplace").decode()
