"""Read documents of all kinds. Files that may crash or hang their parser are parsed in a separate
process.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from runnel.errors import (
    InputError,
    ReadError,
    ScannedPdf,
    UnsupportedKind,
    damage_in,
    describe,
    errors_as,
)
from runnel.files import Decoded, check_encoding, decode, open_bytes, signature
from runnel.formats import FORMATS, ROWS
from runnel.text.documents.document import (
    HEAD_BYTES,
    DocumentText,
    Limits,
    read_plain,
    reader_of,
    recognize,
)
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.pdf_picture import OCR_PIXELS, PIXELS, PagePart, PagePicture
from runnel.text.lines import DAMAGED, Lines, keys, parse_object, unpacked
from runnel.text.tables import read_table, row_text

if TYPE_CHECKING:
    from runnel.text.folders import Selection

log = logging.getLogger("runnel")
_COMMAND = (sys.executable, "-P", "-m", "runnel.text.documents.worker")
_PIECE = 1 << 20


def read_document(
    path: str | Path, *, limits: Limits | None = None, encoding: str | None = None
) -> DocumentText:
    """Read one document of any kind; `DocumentReader` is faster for many.

    Raises:
        ReadError: it cannot be read; the message has the file, the cause and what to do.
        InputError: a file of rows, which has many documents, or an unknown encoding.
    """
    with DocumentReader(limits, encoding=encoding) as reader:
        documents = reader.read(path)
        first = next(documents, None)
        if first is None or first.id is not None:
            raise InputError(
                f"{path} contains rows, one document each; read it with DocumentReader.read"
            )
        return first


class DocumentReader:
    """A reader of documents. Use as a context manager, from one thread at a time.

    Plain text, Markdown and rows are read in this process. The other kinds are parsed in a second
    process, which starts when first needed, is reused, and is replaced after a file that crashed it
    or took too long: such a file raises a `ReadError` like any other.

    Args:
        limits: see `Limits`.
        encoding: of text, rows and html (default: detected, see `runnel.files.decode`).
        ocr: reads the pages of PDF files that are pictures without text (default: a warning names
            them).
    """

    def __init__(
        self, limits: Limits | None = None, *, encoding: str | None = None, ocr: Ocr | None = None
    ) -> None:
        check_encoding(encoding)
        self.limits, self.encoding, self.ocr = limits or Limits(), encoding, ocr
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __enter__(self) -> DocumentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the second process. The reader can still be used: it then starts another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def stop(self) -> None:
        """End the second process for good, from any thread: parsing, now or later, raises
        `ReadError`.
        """
        self._stopped = True
        if (worker := self._worker) is not None:
            worker.kill()

    def read(self, path: str | Path | int, *, name: str | None = None) -> Iterator[DocumentText]:
        """Yield the document of a file, or of each row of jsonl, csv and tsv; "-" is standard
        input; gzip and zstd are unpacked.

        Args:
            path: or the descriptor of an open file, which stays open: no name is followed any more.
            name: the file's name in messages, whose suffix decides between kinds of text (default:
                the path).

        Raises:
            ReadError: as `read_document`.
            MissingDependency: it is compressed or parquet, which need an extra.
        """
        name = name or ("standard input" if str(path) == "-" else str(path))
        with errors_as(
            ReadError, f"{name} cannot be read", OSError, advice="check the file and its disk"
        ):
            yield from self._read_file(path, name)

    def _read_file(self, path: str | Path | int, name: str) -> Iterator[DocumentText]:
        file = open(path, "rb", closefd=False) if isinstance(path, int) else open_bytes(path)
        standard = file is sys.stdin.buffer
        with nullcontext(file) if standard else file:
            if standard or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                yield from self._read_stream(file, name)
                return
            before = signature(file.fileno())
            yield from self._read(file, None if isinstance(path, int) else Path(path), name)
            if signature(path) != before:
                raise ReadError(f"{name} changed while it was read; read it again")

    def _read_stream(self, stream: BinaryIO, name: str) -> Iterator[DocumentText]:
        """Copy a stream first: a pipe can be read only once, and the second process needs a name
        that leads to the file.
        """
        with _copied(stream, name, self.limits, "file_bytes") as copy:
            yield from self._read(copy, Path(copy.name), name)

    def _read(self, file: BinaryIO, path: Path | None, name: str) -> Iterator[DocumentText]:
        head = file.read(HEAD_BYTES)
        kind = recognize(head, name)
        file.seek(0)
        takes = FORMATS[kind].takes if kind in FORMATS else kind
        if takes == "packed":
            yield from self._read_packed(file, name)
            return
        if takes == "rows":
            yield from read_rows(file, kind, name, self.limits, self.encoding)
            return
        self.limits.check(os.fstat(file.fileno()).st_size, "file_bytes", name)
        if takes == "text":
            data = file.read()
            self.limits.check(len(data), "unpacked_bytes", name)
            yield reader_of(FORMATS[kind])(decode(data, name, self.encoding))
        elif path is None:
            yield from self._read_stream(file, name)
        elif kind == "pdf" and self.ocr is not None:
            yield self._read_scan(path, name, self.ocr)
        else:
            yield DocumentText.from_wire(self._ask(kind, path, name)["document"])

    def _read_packed(self, file: BinaryIO, name: str) -> Iterator[DocumentText]:
        with damage_in(name, *DAMAGED):
            kind = recognize(unpacked(file, name).read(HEAD_BYTES), name)
            file.seek(0)
            if kind == "packed":
                raise ReadError(f"{name} is packed twice; unpack it first")
            if kind in ROWS:
                yield from read_rows(file, kind, name, self.limits, self.encoding)
                return
            with _copied(
                unpacked(file, name), f"{name}, unpacked,", self.limits, "unpacked_bytes"
            ) as copy:
                yield from self._read(copy, Path(copy.name), name)

    def _read_scan(self, path: Path, name: str, ocr: Ocr) -> DocumentText:
        try:
            document = DocumentText.from_wire(self._ask("pdf", path, name)["document"])
            pages = document.scanned
            if not pages:
                return document
        except ScannedPdf as error:
            pages = error.pages
        texts: dict[int, str] = {}
        failed: list[str] = []
        for page in pages:
            try:
                drawn = self._ask(
                    "pdf", path, name, part=asdict(PagePart(page, "", "")), pixels=OCR_PIXELS
                )
                texts[page] = ocr.read(base64.b64decode(drawn["picture"]["png"]))
            except ReadError as error:
                failed.append(f"page {page} was not read by the OCR command: {error}")
        try:
            read = DocumentText.from_wire(
                self._ask("pdf", path, name, recognized=texts)["document"]
            )
        except ScannedPdf as error:
            reason = f"; {failed[0]}" if failed else ""
            raise ReadError(
                f"{name}: a scan; OCR found no text on its {len(pages):,} pages{reason}"
            ) from error
        return replace(read, warnings=(*read.warnings, *failed))

    def picture(self, path: str | Path, part: PagePart, *, name: str | None = None) -> PagePicture:
        """Return the page of a PDF with a part of its text (`pdf_picture.page_part`), and where the
        part is on it.
        """
        name = name or str(path)
        with open_bytes(path) as file:
            kind = recognize(file.read(HEAD_BYTES), name)
        if kind != "pdf":
            raise ReadError(f"{name} is not a PDF file; only these have pages as pictures")
        found = self._ask(kind, Path(path), name, part=asdict(part), pixels=PIXELS)["picture"]
        return PagePicture(
            found["page"], base64.b64decode(found["png"]), tuple(map(tuple, found["boxes"]))
        )

    def _ask(self, kind: str, path: Path, name: str, **more: object) -> dict[str, Any]:
        request = {
            "kind": kind,
            "path": str(path.absolute()),
            "encoding": self.encoding,
            "limits": asdict(self.limits),
        }
        if self._worker is None:
            self._worker = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        worker = self._worker
        assert worker.stdin is not None and worker.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(self.limits.wait_s, stop)
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):  # the process has died; the reason is reported below
                worker.stdin.write(json.dumps(request | more).encode() + b"\n")
                worker.stdin.flush()
            line = b"" if self._stopped else worker.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
            # also after Ctrl-C: no later file may receive this one's answer
            if late.is_set() or not line.endswith(b"\n"):
                self.close()
        whole = line.endswith(b"\n")
        answer: dict[str, Any] = (
            json.loads(line)
            if whole
            else {"refused": self._failure(late.is_set(), worker.returncode)}
        )
        if "refused" in answer:
            message, pages = f"{name}{':' * whole} {answer['refused']}", answer.get("scanned")
            unsupported = answer.get("error") == UnsupportedKind.__name__
            refusal = UnsupportedKind if unsupported else ReadError
            raise ScannedPdf(message, pages) if pages else refusal(message)
        return answer

    def _failure(self, late: bool, code: int) -> str:
        if self._stopped:
            return "was not parsed: reading was stopped"
        if late:
            return (
                f"was not parsed within {self.limits.wait_s:g} s; it may be damaged or hostile; or"
                " the machine is too busy"
            )
        if code == -getattr(signal, "SIGPROF", 0):
            advice = "if you trust it, raise the limit with --parse-seconds (Limits.seconds)"
            return f"was not parsed in {self.limits.seconds:g} s of processor time; {advice}"
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        memory = f"{self.limits.memory_bytes:,} bytes of memory (Limits.memory_bytes)"
        return (
            f"crashed the process that parsed it ({why}); it is damaged, hostile, or needs more"
            f" than {memory}"
        )


@contextmanager
def _copied(source: BinaryIO, name: str, limits: Limits, limit: str) -> Iterator[BinaryIO]:
    with (
        tempfile.TemporaryDirectory(prefix="runnel-") as folder,
        open(Path(folder) / "copy", "w+b") as copy,
    ):
        size = 0
        while piece := source.read(_PIECE):
            size += len(piece)
            limits.check(size, limit, name)
            copy.write(piece)
        copy.flush()
        copy.seek(0)
        yield copy


# ---- files, folders and globs --------------------------------------------------------------------


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was not read, and why."""

    file: str
    reason: str
    error: bool = True  # False for a file of a kind that is not read, if it was found in a folder


def files_at(
    paths: Iterable[str],
    skipped: list[Skipped],
    *,
    selection: Selection | None = None,
    report: Callable[[str], None] = log.warning,
) -> Iterator[tuple[str, bool]]:
    """Yield the names of the files at `paths`, each file once, and whether the user named it: those
    of folders were found.

    A folder that cannot be read, a glob without files, and pipes and devices in folders are added
    to `skipped`. `report` receives a line for each folder without files ("note: ...") and each
    error ("error: ...").
    """

    def fail(name: str, reason: str) -> None:
        report(f"error: {reason}")
        skipped.append(Skipped(name, reason))

    seen: set[str] = set()
    for path in paths:
        is_glob = not os.path.lexists(path) and any(sign in path for sign in "*?[")
        if not is_glob and not os.path.isdir(path):
            if path == "-" or _is_new(path, seen):
                yield path, True
            continue
        from runnel.text.folders import EVERYTHING, find_files

        count, failures = 0, len(skipped)
        try:
            found = find_files(
                [path],
                selection or EVERYTHING,
                lambda error: fail(str(error.filename), describe(error)),
            )
            for name in map(str, found):
                count += 1
                if not os.path.isfile(name):
                    skipped.append(
                        Skipped(name, f"{name} is a pipe, a socket or a device", error=False)
                    )
                elif _is_new(name, seen):
                    yield name, False
        except InputError as error:
            fail(path, describe(error))
        if count == 0 and failures == len(skipped):
            if is_glob:
                fail(path, f"no file matches {path}; check the pattern, and put it in quotes")
            else:
                report(f"note: {path} has no files to read")


def _is_new(name: str, seen: set[str]) -> bool:
    path = os.path.abspath(name)
    if path in seen:
        return False
    seen.add(path)
    return True


# ---- rows of jsonl, csv and tsv files: a stream of documents, whatever the size of the file ------

NO_ROWS = "no rows; the first line of a csv or tsv file contains the column names"


def read_rows(
    file: BinaryIO, kind: str, name: str, limits: Limits, encoding: str | None
) -> Iterator[DocumentText]:
    """Yield the rows of an open file, then close it.

    A jsonl row has "text", an "id" (or "_id") and optionally a "title", which is put before the
    text. `runnel.text.tables` describes csv and tsv. Without an id, the id is the row's number,
    from 1.
    """
    lines = Lines(
        file,
        name,
        # jsonl is UTF-8; spreadsheets also write UTF-16
        encoding=encoding or ("utf-8-sig" if kind == "jsonl" else None),
        newline="",
        longest=limits.unpacked_bytes,
        advice="give its encoding or convert it",
    )
    objects = (
        (n, parse_object(line, lines.place(n)))
        for n, line in enumerate(lines, start=1)
        if line.strip()
    )
    rows: Iterable[tuple[int, Mapping[str, object]]]
    rows = (
        objects if kind == "jsonl" else read_table(lines, kind, longest=limits.unpacked_bytes).rows
    )
    for number, (line, values) in enumerate(rows, start=1):
        yield replace(
            _document(values, number, kind, name, (lines.encoding or "utf-8").removesuffix("-sig")),
            line=line,
        )


def _document(
    values: Mapping[str, object], number: int, kind: str, name: str, encoding: str
) -> DocumentText:
    key, title = values.get("id", values.get("_id")), values.get("title")
    title = title if isinstance(title, str) and title else None
    question = not values.keys().isdisjoint(("question", "query")) and not values.keys().isdisjoint(
        ("file", "document")
    )
    asks = question and number == 1  # of `runnel lab questions`, or evidence
    if kind == "jsonl" and (asks or not isinstance(values.get("text"), str)):
        other = number == 1 and (asks or "text" not in values)  # of rows that are no documents
        came = "a question about other files" if asks else keys(values)
        raise (UnsupportedKind if other else ReadError)(
            f'{name}, row {number}: expected a document with "text", got {came}'
        )
    document = read_plain(Decoded(row_text(values), encoding))
    return replace(
        document, kind=kind, id=str(number if key is None or key == "" else key), title=title
    )
