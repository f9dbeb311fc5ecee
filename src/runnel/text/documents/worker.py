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

from runnel.errors import MissingDependency, ReadError, RunnelError, ScannedPdf, UnsupportedKind
from runnel.text.documents.archive import Archive
from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.docx import read_docx
from runnel.text.documents.odf import CONTENT, read_odf
from runnel.text.documents.pptx import PRESENTATION, read_pptx
from runnel.text.documents.xlsx import WORKBOOK, read_xlsx
from runnel.text.reading import decode

Parser = Callable[[str, Limits, str | None], DocumentText]
_GRACE_S = 5
_ZIPPED = {".docx", ".epub", ".odp", ".ods", ".odt", ".pptx", ".xlsx"}


def _parse_html(path: str, limits: Limits, encoding: str | None) -> DocumentText:
    from runnel.text.documents.html import read_html

    data = Path(path).read_bytes()
    limits.check_unpacked(len(data), "the file")
    return read_html(decode(data, "it", encoding, markup=True))


def _parse_zip(path: str, limits: Limits, encoding: str | None) -> DocumentText:
    with Archive(path, limits) as archive:
        if "META-INF/container.xml" in archive.names:
            from runnel.text.documents.epub import read_epub

            return read_epub(archive, limits)
        if any(name.startswith("word/") for name in archive.names):
            return read_docx(archive, limits)
        if PRESENTATION in archive.names:
            return read_pptx(archive, limits)
        if WORKBOOK in archive.names:
            return read_xlsx(path, archive, limits)
        if archive.names >= {CONTENT, "mimetype"}:
            return read_odf(archive, limits)
        held = ", ".join(sorted(archive.names)[:3])
    held = f"it holds {held or 'nothing'}"
    if (suffix := Path(path).suffix.lower()) in _ZIPPED:
        raise ReadError(f"the file is damaged or no {suffix[1:]} document ({held}); save it again with the program it comes from")
    raise UnsupportedKind(f"a zip archive that is no document of a known kind ({held}); unpack or convert it first")


PARSERS: dict[str, Parser] = {"html": _parse_html, "zip": _parse_zip}


def _parse_pdf(path: str, limits: Limits, recognized: dict[str, str] | None) -> DocumentText:
    from runnel.text.documents.pdf import read_pdf

    return read_pdf(path, limits, None if recognized is None else {int(number): text for number, text in recognized.items()})


def _draw(path: str, part: dict[str, Any], pixels: int) -> dict[str, Any]:
    from runnel.text.documents.pdf_picture import PagePart, draw_page

    return draw_page(path, PagePart(**part), pixels)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    try:
        if "part" in request:
            return {"picture": _draw(request["path"], request["part"], request["pixels"])}
        if request["kind"] == "pdf":
            return {"document": _parse_pdf(request["path"], limits, request.get("recognized")).to_wire()}
        return {"document": PARSERS[request["kind"]](request["path"], limits, request["encoding"]).to_wire()}
    except MissingDependency as error:
        return {"missing": str(error)}
    except UnsupportedKind as error:
        return {"unsupported": str(error)}
    except ScannedPdf as error:
        return {"scanned": error.pages, "refused": str(error)}
    except RunnelError as error:
        return {"refused": str(error)}
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
