"""What the server's page at "/" shows, as values for JSON; the report of `runnel find --html`.

document_view, answers_view, picture_view    a document's blocks; the sentences that answer a
                                             query; a page of a PDF as a picture
Opened, read_opened                          files that were opened on the page, in memory
report_of                                    the page with a query, its results and their
                                             documents, in one file that fetches nothing
"""

import base64
import hashlib
import html
import json
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from runnel.batching import Recent
from runnel.errors import InputError, MissingDependency, ReadError
from runnel.models.scored import Scored
from runnel.records import unanswered
from runnel.search.finding import STANDARD_INPUT, FileDocument, Findings, answering
from runnel.text.documents.document import DocumentText
from runnel.text.documents.page_part import PagePicture, page_part
from runnel.text.documents.reader import DocumentReader
from runnel.text.sentences import split_paragraphs

log = logging.getLogger("runnel")
_MARKED = 20  # the most sentences of a document to mark, ...
_SHARE = 4  # ... and at most one in 4
_BINS = 400  # parts of the heat strip beside a document, which shows where it answers
_USUAL = 0.9  # the share of sentences without heat
# longer blocks are shown as several: a browser lays out only the blocks in sight
_BLOCK_CHARS = 4000

OWN = "opened-here:"  # the prefix of the id of an opened file; ids of documents hardly begin so
_BYTES = 512 << 20  # the most bytes of all files together; the latest file is kept, however large
_ID_DIGITS = 24
BlockRow = tuple[int, int, str, int | None]  # start, end, kind, page

# The modules of a report, each after the modules that it imports.
_MODULES = (
    "offsets",
    "address",
    "results",
    "document",
    "strip",
    "picture",
    "keys",
    "drop",
    "pane",
    "app",
    "report",
)
# what one script does not need of a module: whole imports, and the word "export"
_OF_MODULES = re.compile(r"^(?:import .*\n|export )", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")
_HEAD = re.compile(r'<link rel="icon".*?</script>\n', re.DOTALL)


def document_view(document: DocumentText) -> dict[str, object]:
    """Return the text of a document and its blocks as rows [start, end, kind, page], cut into
    pieces of bounded size.
    """
    text = document.text
    rows: list[BlockRow] = document.places().spans() or [
        (a, a + len(text[a:b].rstrip()), "paragraph", None)
        for a, b in split_paragraphs(text).tolist()
    ]
    return {
        "text": text,
        "characters": len(text),
        "blocks": [piece for row in rows if row[0] < row[1] for piece in _pieces(text, row)],
    }


def _pieces(text: str, row: BlockRow) -> list[BlockRow]:
    start, end, kind, page = row
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip():  # the first line of code has the indentation of the others
        start = line
    pieces = []
    while end - start > _BLOCK_CHARS:
        within = (start + _BLOCK_CHARS // 2, start + _BLOCK_CHARS)
        # at a line end, else at a space, else anywhere; `rfind` gives -1 for none
        cut = max(text.rfind("\n", *within), 0) or max(text.rfind(" ", *within), 0) or within[1] - 1
        pieces.append((start, cut + 1, kind, page))
        start = cut + 1
    return [*pieces, (start, end, kind, page)]


def answers_view(document: DocumentText, scored: Scored) -> dict[str, object]:
    """Return the best sentences of a document, best first, the relevance of all parts of its text
    (`heat`), and the probability that it answers at all (`answers`).
    """
    count = max(1, min(_MARKED, len(scored) // _SHARE))
    best = answering(
        FileDocument("", document), scored, count, calibrated=scored.answers is not None
    )
    return {
        "sentences": [sentence.as_json() for sentence, _ in best],
        "heat": _heat(scored),
        "count": len(scored),
        "answers": scored.answers,
    }


def _heat(scored: Scored) -> Sequence[float]:
    """Return the relevance of equal parts of a text, next to that of the best one; no part has any
    if nothing seems to answer.
    """
    scores = scored.scores.astype(np.float64)
    of_words = scores[scores > -np.inf]  # -inf: a sentence without words, or an aside
    if not len(of_words) or unanswered(scored.answers):
        return []
    usual = np.quantile(of_words, _USUAL)
    best = of_words.max()
    strengths = np.clip((scores - usual) / ((best - usual) or 1.0), 0, 1)
    heat = np.zeros(min(_BINS, len(scored.text)))
    # the first and the last part of each sentence, by its first and last character
    first, last = (scored.spans - [0, 1]).T * len(heat) // len(scored.text)
    for index in np.flatnonzero(strengths > 0).tolist():
        part = heat[first[index] : last[index] + 1]
        np.maximum(part, strengths[index], out=part)
    return [round(value, 3) for value in heat.tolist()]


def picture_view(picture: PagePicture) -> dict[str, Any]:
    """Return a page of a PDF for JSON, the picture in base64."""
    return {
        "page": picture.page,
        "png": base64.b64encode(picture.png).decode(),
        "boxes": picture.boxes,
    }


@dataclass(frozen=True)
class Opened(FileDocument):
    """A file that was opened."""

    pdf: bytes = b""  # the file itself, if its pages can be shown


def opened_files(most: int = _BYTES) -> Recent[Opened]:
    """Return the place of opened files, by id."""
    return Recent(lambda opened: opened.bytes + len(opened.pdf), most)


def opened_id(name: str, data: bytes) -> str:
    """Return the id of a file: the same for the same name and content, so that links to it last."""
    return (
        OWN
        + hashlib.sha256(name.encode("utf-8", "surrogatepass") + b"\0" + data).hexdigest()[
            :_ID_DIGITS
        ]
    )


def read_opened(reader: DocumentReader, path: Path, name: str) -> DocumentText:
    """Read a file that was opened under a name; an empty one and rows are refused."""
    document = next(reader.read(path, name=name), None)
    if document is None or document.id is not None:
        raise InputError(
            f"{name} has rows, a document each; index it with runnel index, and search the index"
        )
    if not document.text.strip():
        raise InputError(f"{name} is empty")
    return document


def report_of(query: str, findings: Findings, reader: DocumentReader) -> str:
    """Return the report of a query and what was found, as HTML, with the pages of PDF files that
    have results.
    """
    documents = {
        _id(source.file, source.document.id): (source, scored)
        for source, scored in findings.documents
    }
    sentences = defaultdict(list)
    for sentence in findings.sentences:
        sentences[_id(sentence.file, sentence.id)].append(sentence.as_json())
    hits = []
    views = {}
    for name, found in sentences.items():
        source, scored = documents[name]
        document = source.document
        hit = {"id": name, "name": name, "title": document.title or "", "sentences": found}
        view = {"pages": document.pages, "answers": answers_view(document, scored)}
        hits.append(hit)
        views[name] = hit | view | _pictures(source, found, reader) | document_view(document)
    read = [file for file in findings.files if file.sentences]
    scope = f"in {read[0].file}" if len(read) == 1 else f"in {len(read):,} files"
    held = {
        "query": query,
        "scope": scope,
        "answers": findings.answers,
        "hits": hits,
        "documents": views,
    }
    static = files("runnel.server") / "static"
    script = _OF_MODULES.sub(
        "", "".join((static / f"{name}.js").read_text(encoding="utf-8") for name in _MODULES)
    )
    style = (static / "page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri"
        " 'none'; form-action 'none'"
    )
    head = (
        '<meta http-equiv="Content-Security-Policy"'
        f' content="{html.escape(policy)}">\n<style>{style}</style>\n<script'
        f' type="application/json" id="held">{_json(held)}</script>\n<script'
        f' type="module">{script}</script>\n'
    )
    return _HEAD.sub(lambda _: head, (static / "index.html").read_text(encoding="utf-8"), count=1)


def _id(file: str, row: str | None) -> str:
    return file if row is None else f"{file}#{row}"


def _pictures(
    source: FileDocument, sentences: Sequence[Mapping[str, Any]], reader: DocumentReader
) -> dict[str, Any]:
    """Return the pages of a PDF with results, each once: {"pictures", "pngs": by page, "boxes": by
    "start-end"}.
    """
    pngs: dict[int, str] = {}
    boxes: dict[str, object] = {}
    if source.document.kind != "pdf" or source.file == STANDARD_INPUT:
        return {"pictures": False}
    try:
        for sentence in sentences:
            part = page_part(
                source.document.text, source.document.places(), sentence["start"], sentence["end"]
            )
            if part is not None:
                drawn = picture_view(reader.picture(source.file, part))
                pngs[drawn["page"]] = drawn.pop("png")
                boxes[f"{sentence['start']}-{sentence['end']}"] = drawn
    except (ReadError, MissingDependency) as error:
        log.warning("the report has no pictures of pages: %s", error)
        return {"pictures": False}
    return {"pictures": True, "pngs": pngs, "boxes": boxes}


def _json(value: object) -> str:
    """Return JSON that neither ends its element nor holds half of a surrogate pair, as the name of
    a file may.
    """
    return _SURROGATES.sub(
        lambda found: f"\\u{ord(found[0]):04x}",
        json.dumps(value, ensure_ascii=False).replace("<", "\\u003c"),
    )


def _source(text: str) -> str:
    """Return the source expression, a hash, by which a content security policy allows a script or
    style.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
