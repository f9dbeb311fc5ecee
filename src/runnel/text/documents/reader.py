"""Read documents of all kinds. Files that may crash or hang their parser are parsed in a separate
process (`worker.py`).
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
from collections.abc import Callable, Iterable, Iterator
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
from runnel.files import check_encoding, decode, open_bytes, signature
from runnel.formats import FORMATS, ROWS
from runnel.text.documents.document import (
    HEAD_BYTES,
    DocumentText,
    Limits,
    reader_of,
    recognize,
)
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.page_part import OCR_PIXELS, PIXELS, PagePart, PagePicture
from runnel.text.documents.rows import read_row_documents
from runnel.text.lines import DAMAGED, unpacked

if TYPE_CHECKING:
    from runnel.text.folders import Selection

log = logging.getLogger("runnel")
_COMMAND = (sys.executable, "-P", "-m", "runnel.text.documents.worker")
_PIECE = 1 << 20  # bytes that are copied at a time


def read_document(
    path: str | Path, *, limits: Limits | None = None, encoding: str | None = None
) -> DocumentText:
    """Read one document of any kind; `DocumentReader` is faster for many.

    Raises:
        ReadError: it cannot be read; the message has the file, the cause and what to do.
        InputError: a file of rows, which has many documents, or an unknown encoding.
    """
    with DocumentReader(limits, encoding=encoding) as reader:
        first = next(reader.read(path), None)
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
        self.limits = limits or Limits()
        self.encoding = encoding
        self.ocr = ocr
        self._worker: subprocess.Popen[bytes] | None = None
        self._last_words = ""  # the last line of its standard error: why it could not start
        self._stopped = False

    def __enter__(self) -> DocumentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the second process. The reader can still be used: it then starts another."""
        if self._worker is not None:
            self._worker.kill()
            _, words = self._worker.communicate()
            self._last_words = words.decode(errors="replace").strip().rpartition("\n")[2]
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
        # 1. The open file; a stream is copied.
        # 2. Its kind, by its first bytes and its name: `_read`. A packed file is copied, unpacked.
        # 3. Its documents: text and rows here, other kinds in the second process: `_ask`.
        name = name or ("standard input" if str(path) == "-" else str(path))
        with errors_as(
            ReadError, f"{name} cannot be read", OSError, advice="check the file and its disk"
        ):
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
            yield from read_row_documents(file, kind, name, self.limits, self.encoding)
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
            yield self._parsed(kind, path, name)

    def _read_packed(self, file: BinaryIO, name: str) -> Iterator[DocumentText]:
        with damage_in(name, *DAMAGED):
            kind = recognize(unpacked(file, name).read(HEAD_BYTES), name)
            file.seek(0)
            if kind == "packed":
                raise ReadError(f"{name} is packed twice; unpack it first")
            if kind in ROWS:
                yield from read_row_documents(file, kind, name, self.limits, self.encoding)
                return
            with _copied(
                unpacked(file, name), f"{name}, unpacked,", self.limits, "unpacked_bytes"
            ) as copy:
                yield from self._read(copy, Path(copy.name), name)

    def _read_scan(self, path: Path, name: str, ocr: Ocr) -> DocumentText:
        """Read a PDF, with the texts that OCR finds on pages that are pictures."""
        # 1. The document without OCR, which has the numbers of the pictures.
        try:
            document = self._parsed("pdf", path, name)
            pages = document.scanned
            if not pages:
                return document
        except ScannedPdf as error:
            pages = error.pages
        # 2. The text of each picture.
        texts: dict[int, str] = {}
        failed: list[str] = []
        for page in pages:
            try:
                drawn = self._drawn(path, name, PagePart(page, "", ""), OCR_PIXELS)
                texts[page] = ocr.read(drawn.png)
            except ReadError as error:
                failed.append(f"page {page} was not read by the OCR command: {error}")
        # 3. The document again, with these texts.
        try:
            document = self._parsed("pdf", path, name, recognized=texts)
        except ScannedPdf as error:
            reason = f"; {failed[0]}" if failed else ""
            raise ReadError(
                f"{name}: a scan; OCR found no text on its {len(pages):,} pages{reason}"
            ) from error
        return replace(document, warnings=(*document.warnings, *failed))

    def picture(self, path: str | Path, part: PagePart, *, name: str | None = None) -> PagePicture:
        """Return the page of a PDF with a part of its text (`page_part`), and where the
        part is on it.
        """
        name = name or str(path)
        with open_bytes(path) as file:
            kind = recognize(file.read(HEAD_BYTES), name)
        if kind != "pdf":
            raise ReadError(f"{name} is not a PDF file; only these have pages as pictures")
        return self._drawn(Path(path), name, part, PIXELS)

    def _parsed(self, kind: str, path: Path, name: str, **more: object) -> DocumentText:
        document = DocumentText.from_wire(self._ask(kind, path, name, more)["document"])
        silent = not document.blocks and not document.warnings
        return replace(document, warnings=("no text in it",)) if silent else document

    def _drawn(self, path: Path, name: str, part: PagePart, pixels: int) -> PagePicture:
        answer = self._ask("pdf", path, name, {"part": asdict(part), "pixels": pixels})["picture"]
        return PagePicture(
            answer["page"], base64.b64decode(answer["png"]), tuple(map(tuple, answer["boxes"]))
        )

    def _ask(self, kind: str, path: Path, name: str, more: dict[str, object]) -> dict[str, Any]:
        """Have the second process do a task (`worker.py`), and return its answer."""
        task = {
            "kind": kind,
            "path": str(path.absolute()),
            "encoding": self.encoding,
            "limits": asdict(self.limits),
        }
        if self._worker is None:
            self._worker = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
                worker.stdin.write(json.dumps(task | more).encode() + b"\n")
                worker.stdin.flush()
            line = b"" if self._stopped else worker.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
            # also after Ctrl-C: no later file may receive this one's answer
            if late.is_set() or not line.endswith(b"\n"):
                self.close()
        if not line.endswith(b"\n"):
            raise ReadError(f"{name} {self._failure(late.is_set(), worker.returncode)}")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            message = f"{name}: {answer['refused']}"
            if answer.get("scanned"):
                raise ScannedPdf(message, answer["scanned"])
            unsupported = answer.get("error") == UnsupportedKind.__name__
            raise (UnsupportedKind if unsupported else ReadError)(message)
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
            return (
                f"was not parsed in {self.limits.seconds:g} s of processor time; if you trust it,"
                " raise the limit with --parse-seconds (Limits.seconds)"
            )
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._last_words:
            return (
                f"was not parsed: the process that parses documents could not start ({reason},"
                f" {self._last_words!r}); install runnel again"
            )
        return (
            f"crashed the process that parsed it ({reason}); it is damaged, hostile, or needs more"
            f" than {self.limits.memory_bytes:,} bytes of memory (Limits.memory_bytes)"
        )


@contextmanager
def _copied(source: BinaryIO, name: str, limits: Limits, limit: str) -> Iterator[BinaryIO]:
    """Copy a stream to a temporary file, up to a limit."""
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
    """Yield the name of each file at `paths`, once, and whether it is one of `paths`: other files
    were found in folders.

    A folder that cannot be read, a glob without files, and pipes and devices in folders are added
    to `skipped`. `report` receives a line for each folder without files ("note: ...") and each
    error ("error: ...").
    """

    def fail(name: str, reason: str) -> None:
        report(f"error: {reason}")
        skipped.append(Skipped(name, reason))

    seen: set[str] = set()  # absolute paths
    for path in paths:
        is_glob = not os.path.lexists(path) and any(sign in path for sign in "*?[")
        if not is_glob and not os.path.isdir(path):
            if path == "-":
                yield path, True
            elif os.path.abspath(path) not in seen:
                seen.add(os.path.abspath(path))
                yield path, True
            continue
        from runnel.text.folders import EVERYTHING, find_files

        count = 0
        failures = len(skipped)
        try:
            files = find_files(
                [path],
                selection or EVERYTHING,
                lambda error: fail(str(error.filename), describe(error)),
            )
            for name in map(str, files):
                count += 1
                if not os.path.isfile(name):
                    skipped.append(
                        Skipped(name, f"{name} is a pipe, a socket or a device", error=False)
                    )
                elif os.path.abspath(name) not in seen:
                    seen.add(os.path.abspath(name))
                    yield name, False
        except InputError as error:
            fail(path, describe(error))
        if count == 0 and failures == len(skipped):
            if is_glob:
                fail(path, f"no file matches {path}; check the pattern, and put it in quotes")
            else:
                report(f"note: {path} has no files to read")
