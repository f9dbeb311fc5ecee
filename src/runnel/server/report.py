"""A report: the page with a query, its results and the documents, in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import logging
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from runnel.errors import MissingDependency, ReadError
from runnel.search.finding import STANDARD_INPUT, FileDocument, Findings
from runnel.server.view import answers_view, document_view, picture_view
from runnel.text.documents.pdf_picture import page_part
from runnel.text.documents.reader import DocumentReader

log = logging.getLogger("runnel")

# The modules of a report, each after the modules that it imports.
_MODULES = ("offsets", "address", "results", "document", "strip", "picture", "keys", "drop", "pane", "app", "report")
_IMPORT = re.compile(r"^import .*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")
_HEAD = re.compile(r'<link rel="icon".*?</script>\n', re.DOTALL)


def report_of(query: str, findings: Findings, reader: DocumentReader) -> str:
    """Return the report of a query and what was found, as HTML, with the pages of PDF files that have results."""
    documents = {_id(one.file, one.document.id): (one, scored) for one, scored in findings.documents}
    hits: dict[str, dict[str, Any]] = {}
    for sentence in findings.sentences:
        name = _id(sentence.file, sentence.id)
        title = documents[name][0].document.title or ""
        hit = hits.setdefault(name, {"id": name, "name": name, "title": title, "sentences": []})
        hit["sentences"].append(sentence.as_json())
    views = {}
    for name, hit in hits.items():
        source, scored = documents[name]
        view = {"pages": source.document.pages, "answers": answers_view(source.document, scored)}
        view |= _pictures(source, hit["sentences"], reader) | document_view(source.document)
        views[name] = hit | view
    read = [file for file in findings.files if file.sentences]
    scope = f"in {read[0].file}" if len(read) == 1 else f"in {len(read):,} files"
    held = {"query": query, "scope": scope, "answers": findings.answers, "hits": list(hits.values()), "documents": views}
    static = files("runnel.server") / "static"
    script = _EXPORT.sub("", _IMPORT.sub("", "".join((static / f"{name}.js").read_text(encoding="utf-8") for name in _MODULES)))
    style = (static / "page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f'<style>{style}</style>\n<script type="application/json" id="held">{_json(held)}</script>\n'
        f'<script type="module">{script}</script>\n'
    )
    page = (static / "index.html").read_text(encoding="utf-8")
    return _HEAD.sub(lambda _: head, page, count=1)


def _id(file: str, row: str | None) -> str:
    return file if row is None else f"{file}#{row}"


def _pictures(source: FileDocument, sentences: Sequence[Mapping[str, Any]], reader: DocumentReader) -> dict[str, Any]:
    """Return the pages of a PDF with results, each once: {"pictures", "pngs": by page, "boxes": by "start-end"}."""
    pngs, boxes = {}, {}
    if source.document.kind != "pdf" or source.file == STANDARD_INPUT:
        return {"pictures": False}
    try:
        for sentence in sentences:
            part = page_part(source.document.text, source.document.places(), sentence["start"], sentence["end"])
            if part is not None:
                drawn = picture_view(reader.picture(source.file, part))
                pngs[drawn["page"]] = drawn.pop("png")
                boxes[f"{sentence['start']}-{sentence['end']}"] = drawn
    except (ReadError, MissingDependency) as error:
        log.warning("the report has no pictures of pages: %s", error)
        return {"pictures": False}
    return {"pictures": True, "pngs": pngs, "boxes": boxes}


def _json(value: object) -> str:
    """Return JSON that neither ends its element nor holds half of a surrogate pair, as the name of a file may."""
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _source(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
