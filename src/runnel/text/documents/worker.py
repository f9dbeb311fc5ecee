"""The process that parses untrusted files, and draws pages of PDF files: one JSON request per line of standard input, one
JSON answer per line of output.

A hostile file may crash it, fill its memory or keep it busy forever, without affecting the calling process (`reader.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runnel.errors import ReadError, RunnelError, UnsupportedKind
from runnel.text.documents.archive import Archive
from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.docx import read_docx
from runnel.text.documents.epub import read_epub
from runnel.text.documents.html import read_html
from runnel.text.documents.odf import read_odf
from runnel.text.documents.pdf import read_pdf
from runnel.text.documents.pdf_picture import PagePart, draw_page
from runnel.text.documents.pptx import read_pptx
from runnel.text.documents.xlsx import read_xlsx
from runnel.text.reading import decode

Request = dict[str, Any]
_GRACE_S = 5
# Kinds of zip files by the parts that they have (or parts in a folder), and their suffixes.
_ZIPPED: tuple[tuple[tuple[str, ...], Callable[[Archive, Limits], DocumentText], str], ...] = (
    (("META-INF/container.xml",), read_epub, ".epub"),
    (("word/",), read_docx, ".docx"),
    (("ppt/presentation.xml",), read_pptx, ".pptx"),
    (("xl/workbook.xml",), read_xlsx, ".xlsx"),
    (("content.xml", "mimetype"), read_odf, ".odt .ods .odp"),
)


def _parse_html(path: str, limits: Limits, request: Request) -> DocumentText:
    data = Path(path).read_bytes()
    limits.check_unpacked(len(data), "the file")
    return read_html(decode(data, "it", request["encoding"], markup=True))


def _parse_pdf(path: str, limits: Limits, request: Request) -> DocumentText:
    recognized = request.get("recognized")
    return read_pdf(path, limits, recognized and {int(number): text for number, text in recognized.items()})


def _parse_zip(path: str, limits: Limits, request: Request) -> DocumentText:
    with Archive(path, limits) as archive:
        for parts, read, _ in _ZIPPED:
            if all(any(name.startswith(part) for name in archive.names) for part in parts):
                return read(archive, limits)
        held = f"it holds {', '.join(sorted(archive.names)[:3]) or 'nothing'}"
    if (suffix := Path(path).suffix.lower()) in " ".join(suffixes for _, _, suffixes in _ZIPPED).split():
        raise ReadError(f"the file is damaged or no {suffix[1:]} document ({held}); save it again with the program it comes from")
    raise UnsupportedKind(f"a zip archive that is no document of a known kind ({held}); unpack or convert it first")


PARSERS: dict[str, Callable[[str, Limits, Request], DocumentText]] = {"html": _parse_html, "pdf": _parse_pdf, "zip": _parse_zip}


def _answer(request: Request) -> dict[str, Any]:
    path, limits = request["path"], Limits(**request["limits"])
    try:
        if "part" in request:
            return {"picture": draw_page(path, PagePart(**request["part"]), request["pixels"])}
        return {"document": PARSERS[request["kind"]](path, limits, request).to_wire()}
    except RunnelError as error:
        return {"refused": str(error), "error": type(error).__name__, "scanned": getattr(error, "pages", None)}
    except MemoryError:
        return {"refused": f"it needs more than {limits.memory_bytes:,} bytes of memory (Limits.memory_bytes)"}
    except Exception as error:  # damaged files make parsers raise anything; the caller reports it with the file's name
        return {"refused": f"it cannot be parsed ({type(error).__name__}: {error}); it is damaged, or in an unknown format"}


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
    """Answer requests until standard input ends. Output of libraries is redirected to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")  # escapes half a surrogate pair as in JSON
    os.dup2(2, 1)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        limits = Limits(**request["limits"])
        if number == 0:
            _confine(limits)
        _end_after(limits.seconds, limits.wait_s + _GRACE_S)  # the latter in case that the caller has died
        answer = json.dumps(_answer(request), ensure_ascii=False)
        _end_after(0, 0)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
