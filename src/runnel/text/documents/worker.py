"""The process that parses untrusted files, and draws pages of PDF files: a task in JSON per line of
standard input, an answer in JSON per line of output.

A hostile file may crash it, fill its memory or keep it busy forever, without affecting the calling
process (`reader.py`).
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from runnel.errors import ReadError, RunnelError, UnsupportedKind
from runnel.files import decode
from runnel.formats import FORMATS
from runnel.text.documents.document import DocumentText, Limits, reader_of
from runnel.text.documents.page_part import PagePart
from runnel.text.documents.parts import Archive

_GRACE_S = 5  # after the time at which the caller would have ended this process


class _Task(TypedDict):
    """A line of standard input, as `reader.py` writes it."""

    kind: str  # one of `FORMATS`, or "zip"
    path: str
    encoding: str | None
    limits: dict[str, Any]  # the fields of `Limits`
    part: NotRequired[dict[str, Any]]  # the fields of a `PagePart`: draw this page
    pixels: NotRequired[int]
    recognized: NotRequired[dict[str, str]]  # the text that OCR found, by page


def _parse(path: str, limits: Limits, task: _Task) -> DocumentText:
    """Read a file with the reader of its kind, or of the archive that it is."""
    if task["kind"] == "zip":
        return _parse_archive(path, limits)
    entry = FORMATS[task["kind"]]
    if entry.takes == "markup":
        data = Path(path).read_bytes()
        limits.check(len(data), "unpacked_bytes", "the file")
        return reader_of(entry)(decode(data, "it", task["encoding"], markup=True))
    if "recognized" not in task:
        return reader_of(entry)(path, limits)
    texts = {int(page): text for page, text in task["recognized"].items()}
    return reader_of(entry)(path, limits, texts)


def _parse_archive(path: str, limits: Limits) -> DocumentText:
    archives = [entry for entry in FORMATS.values() if entry.takes == "archive"]
    with Archive(path, limits) as archive:
        for entry in archives:
            if all(any(name.startswith(part) for name in archive.names) for part in entry.parts):
                return reader_of(entry)(archive, limits)
        content = f"it holds {', '.join(sorted(archive.names)[:3]) or 'nothing'}"
    suffix = Path(path).suffix.lower()
    if suffix in " ".join(entry.suffixes for entry in archives).split():
        raise ReadError(
            f"the file is damaged or no {suffix[1:]} document ({content}); save it again with the"
            " program it comes from"
        )
    raise UnsupportedKind(
        f"a zip archive that is no document of a known kind ({content}); unpack or convert it"
    )


def _answer(task: _Task, limits: Limits) -> dict[str, object]:
    path = task["path"]
    try:
        if "part" in task:
            from runnel.text.documents.pdf_picture import draw_page  # imports PDFium

            return {"picture": draw_page(path, PagePart(**task["part"]), task["pixels"])}
        return {"document": _parse(path, limits, task).to_wire()}
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
    """Do tasks until standard input ends. What libraries print is discarded: nobody reads the pipes
    of standard output and error while a file is parsed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    # escapes half a surrogate pair as in JSON
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for number, line in enumerate(sys.stdin):
        task: _Task = json.loads(line)
        limits = Limits(**task["limits"])
        # 1. Limits of memory, once, and of time; of the clock in case that the caller has died.
        if number == 0:
            _confine(limits)
        _end_after(limits.seconds, limits.wait_s + _GRACE_S)
        # 2. The answer, or what is wrong with the file.
        answer = json.dumps(_answer(task, limits), ensure_ascii=False)
        _end_after(0, 0)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
