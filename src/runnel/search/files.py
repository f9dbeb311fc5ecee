"""Read files as documents of an index; find new, changed and removed files.

A document's id is the absolute path of its file; for a row of jsonl, csv or tsv, "#" and the row's
id follow.
"""

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runnel.checks import expect_series, utf8
from runnel.errors import InputError, MissingDependency, ReadError, UnsupportedKind
from runnel.files import write
from runnel.search.records import ContentHashes, DocumentRow
from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.reader import NO_ROWS, DocumentReader
from runnel.text.folders import Root, other_kinds

_FORMAT = 1
# the coarsest clock of a file system: a file may change twice within it, with one time
_TICK_NS = 2_000_000_000


class FileHashes:
    """The hashes of files that one caller reads again and again; kept at `path` between processes,
    if it is given.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        # size, times of change of content and of status, SHA-256
        self._entries: dict[str, tuple[int, int, int, str]] = {}
        # SHA-256 of each file asked for since this object was made, by path
        self.current: dict[str, str] = {}
        # of each file that could not be read in full, and need not be tried again
        self.failures: dict[str, str] = {}
        self._text = ""  # of the file
        # a damaged file counts as missing
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._text = path.read_text(encoding="utf-8") if path is not None else "{}"
            stored = json.loads(self._text)
            if stored.get("format") == _FORMAT:
                self._entries = {name: tuple(entry) for name, entry in stored["files"].items()}
                self.failures = dict(stored["failures"])

    def sha256(self, file: Path) -> str:
        """Return the SHA-256 of a file's content; of a pipe, a socket or a device, which are not
        read, the same word.
        """
        name, found = str(file), file.stat()
        signature = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        old = self._entries.get(name)
        if not stat.S_ISREG(found.st_mode):
            digest = "special"
        elif old is not None and old[:3] == signature:
            digest = old[3]
        else:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            self._entries.pop(name, None)
            # otherwise the next change might not show
            if max(signature[1:]) + _TICK_NS < time.time_ns():
                self._entries[name] = (*signature, digest)
        self.current[name] = digest
        return digest

    def save(self) -> None:
        """Store the hashes of the files in `current`, if there is a path."""
        if self._path is None:
            return
        files = {name: entry for name, entry in self._entries.items() if name in self.current}
        failures = {
            name: digest
            for name, digest in self.failures.items()
            if self.current.get(name) == digest
        }
        text = json.dumps(
            {"format": _FORMAT, "files": files, "failures": failures}, separators=(",", ":")
        )
        if text != self._text:
            write(self._path, text)


log = logging.getLogger("runnel")
# path of a file -> the documents of it that an index has, by id
Stored = Mapping[str, Mapping[str, ContentHashes]]
# after the file's hash in all rows but the last: a file is complete once its last row is stored
_MORE = "+"


@dataclass(slots=True)
class Scan:
    """The results of reading files so far."""

    # ids of documents whose file has not changed
    unchanged: list[str] = field(default_factory=list)
    # file, folder, or "path, line N" of a row -> why it was skipped
    failed: dict[str, str] = field(default_factory=dict)
    # ids of documents whose file no longer exists; complete at the end
    gone: list[str] = field(default_factory=list)
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
                if not self.failed.keys() & set(map(str, file.parents)):
                    self.gone += documents

    def fail_folder(self, error: OSError) -> None:
        """Record and log a folder, or a .gitignore file, that cannot be read."""
        name = str(error.filename)
        self.failed[name] = f"{name}: {error.strerror}"
        log.warning("%s", left_out(name, self.failed[name]))


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
        what = (
            "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        )
        raise ReadError(f"{file} is {what}, which may never end; save its content to a file first")
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise ReadError(f"{file} has a name that is not UTF-8; rename the file") from error


def by_file(known: Mapping[str, ContentHashes]) -> Stored:
    """Return the documents of an index by their file."""
    stored: dict[str, dict[str, ContentHashes]] = {}
    for name, have in known.items():
        stored.setdefault(have.source, {})[name] = have
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
    file with the content of one that failed before counts as unchanged; one of another kind fails
    if it is `named`.
    """
    hashes = FileHashes() if hashes is None else hashes
    with DocumentReader(limits, ocr=ocr) as reader:
        for file in files:
            name, digest = str(file), ""
            try:
                digest = hashes.sha256(file)
                old = stored.get(name, {})
                have = {one.source_hash for one in old.values()}
                if (digest in have and have <= {digest, digest + _MORE}) or hashes.failures.get(
                    name
                ) == digest:
                    scan.unchanged += old
                else:
                    yield from _read_file(file, digest, list(old), reader, scan, hashes)
            except (ReadError, MissingDependency, OSError) as error:
                if isinstance(error, UnsupportedKind) and file not in named and name not in stored:
                    scan.other_kinds.append(name)
                else:
                    scan.failed[name] = str(error)
                    log.warning("%s", left_out(name, str(error)))
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
    name, failed, fresh = str(file), len(scan.failed), set[str]()
    for read, last in _with_last(_distinct_rows(name, reader.read(file), scan.failed)):
        # otherwise the next run reads it and reports the rows again
        whole = last and len(scan.failed) == failed
        row = name if read.id is None else f"{name}#{read.id}"
        for warning in read.warnings:
            log.warning("%s: %s", row, warning)
        fresh.add(row)
        its_hash = digest if whole else digest + _MORE
        yield DocumentRow(
            row,
            read.text,
            read.title or "",
            name,
            its_hash,
            "",
            0,
            {"kind": read.kind},
            read.places().blocks,
        )
    if not fresh and len(scan.failed) == failed:
        log.warning("%s: %s", name, NO_ROWS)
    if not fresh or len(scan.failed) > failed:
        hashes.failures[name] = digest
    scan.gone += sorted(set(old) - fresh)


def _distinct_rows(
    name: str, reads: Iterable[DocumentText], failed: dict[str, str]
) -> Iterator[DocumentText]:
    """Drop rows whose id is not UTF-8 or was used before; log them and record them in `failed`."""
    lines: dict[str, int] = {}  # by id
    for read in reads:
        if read.id is None or read.line is None:
            yield read
            continue
        line, problem = read.line, ""
        if read.id in lines:
            problem = (
                f"the id {read.id!r} is already used in line {lines[read.id]}; give each row"
                " its own"
            )
        try:
            utf8(read.id, f"the id {read.id!r}")
        except InputError as error:
            problem = str(error)
        if problem:
            row = f"{name}, line {line}"
            failed[row] = f"{row}: {problem}"
            log.warning("%s", left_out(row, failed[row]))
        else:
            lines[read.id] = line
            yield read


def _with_last(documents: Iterator[DocumentText]) -> Iterator[tuple[DocumentText, bool]]:
    """Each with whether it is the last of its file: known once the file was read to its end without
    an error.
    """
    held = None
    try:
        for document in documents:
            if held is not None:
                yield held, False
            held = document
    except ReadError:
        if held is not None:
            yield held, False
        raise
    if held is not None:
        yield held, True


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
