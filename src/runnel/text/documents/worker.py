"""The process that parses untrusted files, and draws pages of PDF files: one JSON request per line
of standard input, one JSON answer per line of output.

A hostile file may crash it, fill its memory or keep it busy forever, without affecting the calling
process (`reader.py`).
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from runnel.errors import ReadError, RunnelError, UnsupportedKind
from runnel.files import decode
from runnel.formats import FORMATS
from runnel.text.documents.document import DocumentText, Limits, reader_of
from runnel.text.documents.parts import Archive
from runnel.text.documents.pdf_picture import PagePart, draw_page

Request = dict[str, Any]
_GRACE_S = 5


def _parse(path: str, limits: Limits, request: Request) -> DocumentText:
    """Read a file with the reader of its kind, or of the archive that it is."""
    if request["kind"] == "zip":
        return _parse_archive(path, limits)
    entry = FORMATS[request["kind"]]
    if entry.takes == "markup":
        data = Path(path).read_bytes()
        limits.check(len(data), "unpacked_bytes", "the file")
        return reader_of(entry)(decode(data, "it", request["encoding"], markup=True))
    recognized = request.get("recognized")  # by OCR, by page
    texts = (
        {}
        if recognized is None
        else {"recognized": {int(number): text for number, text in recognized.items()}}
    )
    return reader_of(entry)(path, limits, **texts)


def _parse_archive(path: str, limits: Limits) -> DocumentText:
    archives = [entry for entry in FORMATS.values() if entry.takes == "archive"]
    with Archive(path, limits) as archive:
        for entry in archives:
            if all(any(name.startswith(part) for name in archive.names) for part in entry.parts):
                return reader_of(entry)(archive, limits)
        held = f"it holds {', '.join(sorted(archive.names)[:3]) or 'nothing'}"
    suffix = Path(path).suffix.lower()
    foreign = f"a zip archive that is no document of a known kind ({held}); unpack or convert it"
    damaged = (
        f"the file is damaged or no {suffix[1:]} document ({held}); save it again with the program"
        " it comes from"
    )
    known = suffix in " ".join(entry.suffixes for entry in archives).split()
    raise ReadError(damaged) if known else UnsupportedKind(foreign)


def _answer(request: Request) -> dict[str, Any]:
    path, limits = request["path"], Limits(**request["limits"])
    try:
        if "part" in request:
            return {"picture": draw_page(path, PagePart(**request["part"]), request["pixels"])}
        return {"document": _parse(path, limits, request).to_wire()}
    except RunnelError as error:
        return {
            "refused": str(error),
            "error": type(error).__name__,
            "scanned": getattr(error, "pages", None),
        }
    except MemoryError:
        return {
            "refused": (
                f"it needs more than {limits.memory_bytes:,} bytes of memory (Limits.memory_bytes)"
            )
        }
    except Exception as error:
        # damaged files make parsers raise anything; the caller reports it with the file's name
        return {
            "refused": (
                f"it cannot be parsed ({type(error).__name__}: {error}); it is damaged, or in an"
                " unknown format"
            )
        }


def _confine(limits: Limits) -> None:
    """Limit this process's memory, if the system can, and disable core dumps."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_after(processor_s: float, clock_s: float) -> None:
    """Have the system end this process after these seconds, whatever code it is in; 0: never."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_PROF, processor_s)
        signal.setitimer(signal.ITIMER_REAL, clock_s)


def main() -> None:
    """Answer requests until standard input ends. Output of libraries is redirected to standard
    error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    # escapes half a surrogate pair as in JSON
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        limits = Limits(**request["limits"])
        if number == 0:
            _confine(limits)
        # the latter in case that the caller has died
        _end_after(limits.seconds, limits.wait_s + _GRACE_S)
        answer = json.dumps(_answer(request), ensure_ascii=False)
        _end_after(0, 0)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
