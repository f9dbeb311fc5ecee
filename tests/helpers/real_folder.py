"""A folder of more than a thousand files as people have them: what packages left on this machine, real texts of every kind,
and files that harm or mislead programs.
"""

from __future__ import annotations

import ast
import csv
import gzip
import inspect
import io
import json
import os
import re
import sys
import sysconfig
import textwrap
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from xml.sax.saxutils import escape

import pytest
from helpers.document_files import epub, pdf, replace_in_zip

DATA = Path(__file__).parents[3] / "shared" / "data" / "retrieval" / "medquad"
MACHINE = (Path("/usr/share/doc"), Path("/usr/share/man"), Path(sysconfig.get_paths()["purelib"]))


@dataclass(frozen=True)
class Text:
    """A real text of a few paragraphs, of which other texts hold nothing."""

    title: str
    body: str


@dataclass
class Folder:
    """What was written.

    Attributes:
        texts: {document id: its texts}; of those that were written from real texts.
        hostile: {file name: what the reason for leaving it out must say}.
        questions: {question: id of the document that answers it}; empty without the data folder.
        files: {kind, "gz" for what is packed: number of files}.
    """

    root: Path
    texts: dict[str, list[Text]] = field(default_factory=dict)
    hostile: dict[str, str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)


# ---- real texts --------------------------------------------------------------------------------------------------------


def read_packed(path: Path) -> Iterator[dict[str, str]]:
    """Lines of JSON, packed by zstd."""
    zstandard = pytest.importorskip("zstandard")
    with path.open("rb") as file, zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(file) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
            yield json.loads(line)


def real_texts() -> tuple[list[Text], dict[str, str]]:
    """Texts that differ, and {question: title of the one text that answers it}."""
    found = list(_medical() if DATA.is_dir() else _of_python())
    names = {old: f"Report {number}" for number, (old, _) in enumerate(found, start=1)}
    texts = [Text(names[old], body) for old, body in found]
    return texts, {question: names[one] for question, one in _questions() if one in names} if DATA.is_dir() else {}


def _medical() -> Iterator[tuple[str, str]]:
    seen = set()
    for row in read_packed(DATA / "corpus.jsonl.zst"):
        body = " ".join(row["text"].split())
        if 250 < len(body) < 900 and _plain(body) and body[:80] not in seen:
            seen.add(body[:80])
            yield row["_id"], body


def _questions() -> Iterator[tuple[str, str]]:
    rows = [line.split("\t") for line in (DATA / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    answers = Counter(query for query, _, _ in rows)
    wanted = {query: one for query, one, _ in rows if answers[query] == 1}
    for row in read_packed(DATA / "queries.jsonl.zst"):
        if row["_id"] in wanted:
            yield row["text"], wanted[row["_id"]]


def _of_python() -> Iterator[tuple[str, str]]:
    """Where the data folder is missing: what Python says of itself."""
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(path for pattern in ("*.py", "[a-z]*/*.py") for path in library.glob(pattern) if path.parent.name != "test")
    trees = (ast.parse(path.read_bytes()) for path in modules)
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    notes = (ast.get_docstring(node) or "" for tree in trees for node in ast.walk(tree) if isinstance(node, kinds))
    seen = set()
    for text in (*notes, *(piece for topic in topics.values() for piece in re.split(r"\n\n(?=\S)", inspect.cleandoc(topic)))):
        body = " ".join(text.split())[:900].strip()
        if len(body) > 80 and _plain(body) and body[:80] not in seen:
            seen.add(body[:80])
            yield str(len(seen)), body


def _plain(body: str) -> bool:
    """Whether every kind of file can hold it to the letter: PDFs here have Western letters, and join words at hyphens."""
    return body.isascii() and "- " not in body and body.isprintable()


# ---- files of every kind -----------------------------------------------------------------------------------------------


def write_files(folder: Folder, texts: Iterator[Text], of_each: int) -> None:
    """Files of each kind with a text or a few each, below `written`."""
    template = _word_template()
    for kind, (count, write) in WRITERS.items():
        place = folder.root / "written" / kind.partition(".")[0]
        place.mkdir(parents=True, exist_ok=True)
        for number in range(of_each if count < 3 else of_each // 5):
            chosen = [next(texts) for _ in range(count)]
            path = place / f"{kind.replace('.', '-')}{number}.{kind}"
            if kind == "docx":
                replace_in_zip(template, path, {"word/document.xml": partial(_word, texts=chosen)})
            else:
                write(path, chosen)
            rows = kind.partition(".")[0] in ("jsonl", "csv", "tsv")
            ids = [f"{path}#{row}" for row in range(count)] if rows else [str(path)]
            folder.texts |= dict(zip(ids, [[text] for text in chosen] if rows else [chosen], strict=True))
            folder.files["gz" if kind.endswith(".gz") else kind] += 1


def write_more(folder: Folder, texts: Iterator[Text], files: int) -> None:
    """Plain files until there are so many in all: not every machine has as many files of packages."""
    for number, text in enumerate(islice(texts, max(files - sum(folder.files.values()), 0))):
        path = folder.root / "written" / "txt" / f"more{number}.txt"
        path.write_text(_text([text]))
        folder.texts[str(path)] = [text]
        folder.files["txt"] += 1


def _lines(text: Text) -> str:
    return textwrap.fill(text.body, 90, break_long_words=False, break_on_hyphens=False)


def _text(texts: list[Text]) -> str:
    return "\n\n".join(f"{text.title}\n\n{_lines(text)}" for text in texts) + "\n"


def _markdown(texts: list[Text]) -> str:
    return "\n\n".join(f"# {text.title}\n\n{_lines(text)}" for text in texts) + "\n"


def _html(texts: list[Text]) -> str:
    body = "".join(f"<h1>{escape(text.title)}</h1>\n<p>{escape(text.body)}</p>\n" for text in texts)
    menu = "<nav><a href='/'>Home</a></nav><script>let unseen = 1;</script>"
    return f"<!DOCTYPE html>\n<html><head><title>{escape(texts[0].title)}</title></head><body>{menu}{body}</body></html>\n"


def _pages(texts: list[Text]) -> bytes:
    lines = [[text.title, None, *_lines(text).split("\n")] for text in texts]
    return pdf(lines, outline=[(text.title, page) for page, text in enumerate(texts)])


def _word_template() -> Path:
    docx = pytest.importorskip("docx")
    return Path(docx.__file__).parent / "templates" / "default.docx"


def _word(xml: bytes, texts: list[Text]) -> bytes:
    style, run = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>', "<w:r><w:t>{}</w:t></w:r>"
    body = "".join(f"<w:p>{style}{run.format(escape(t.title))}</w:p><w:p>{run.format(escape(t.body))}</w:p>" for t in texts)
    return re.sub(rb"<w:body>.*(?=<w:sectPr)", b"<w:body>" + body.encode().replace(b"\\", rb"\\"), xml, flags=re.DOTALL)


def _rows(texts: list[Text]) -> str:
    return "".join(json.dumps({"_id": str(i), "title": t.title, "text": t.body}) + "\n" for i, t in enumerate(texts))


def _table(texts: list[Text], delimiter: str) -> str:
    out = io.StringIO(newline="")
    rows = csv.writer(out, delimiter=delimiter)
    rows.writerow(["id", "text", "title"])
    rows.writerows((i, text.body, text.title) for i, text in enumerate(texts))
    return out.getvalue()


def _packed(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))


# texts in a file, and what writes it
WRITERS: dict[str, tuple[int, Callable[[Path, list[Text]], object]]] = {
    "txt": (1, lambda path, texts: path.write_text(_text(texts))),
    "md": (1, lambda path, texts: path.write_text(_markdown(texts))),
    "html": (1, lambda path, texts: path.write_text(_html(texts))),
    "pdf": (2, lambda path, texts: path.write_bytes(_pages(texts))),
    "docx": (1, lambda path, texts: None),
    "epub": (2, lambda path, texts: epub(path, [f"<h1>{escape(t.title)}</h1><p>{escape(t.body)}</p>" for t in texts])),
    "jsonl": (4, lambda path, texts: path.write_text(_rows(texts))),
    "csv": (4, lambda path, texts: path.write_text(_table(texts, ","), newline="")),
    "tsv": (4, lambda path, texts: path.write_text(_table(texts, "\t"), newline="")),
    "txt.gz": (1, lambda path, texts: _packed(path, _text(texts))),
    "jsonl.gz": (4, lambda path, texts: _packed(path, _rows(texts))),
}


# ---- files of this machine ---------------------------------------------------------------------------------------------

# how many of each kind, and how large they may be; rows and packed files hold more than their size tells
_TAKEN = {"html": (60, 3000), "md": (60, 2000), "txt": (300, 700), "gz": (200, 300), "pdf": (10, 150_000), "csv": (12, 600)}
_ENDINGS = {".htm": "html", ".html": "html", ".md": "md", ".gz": "gz", ".pdf": "pdf", ".csv": "csv", ".tsv": "csv"}
_TEXTS = re.compile(r"copyright|licen[sc]e|copying|readme|authors|metadata|notice|changelog|news|.*\.(txt|rst)", re.IGNORECASE)
_PACKED = re.compile(r".*\.\d\w*\.gz|.*\.(txt|md|html|rst)\.gz|(changelog|news|readme|copyright).*\.gz", re.IGNORECASE)


def copy_files(folder: Folder) -> None:
    """Copies of files from packages on this machine, below `machine`, spread evenly over what there is."""
    found: dict[str, list[Path]] = {kind: [] for kind in _TAKEN}
    for kind, path in (one for root in MACHINE for one in _walk(root)):
        if not path.is_symlink() and 60 < path.stat().st_size < _TAKEN[kind][1]:
            found[kind].append(path)
    for kind, paths in found.items():
        place = folder.root / "machine" / kind
        place.mkdir(parents=True)
        count = min(_TAKEN[kind][0], len(paths))
        for number in range(count):
            path = paths[number * len(paths) // count]
            (place / f"{number}-{path.name}").write_bytes(path.read_bytes())
        folder.files[kind] += count


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """(kind, file)"""
    for place, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            kind = _ENDINGS.get(os.path.splitext(name)[1].lower(), "txt" if _TEXTS.fullmatch(name) else "")
            if kind and (kind != "gz" or _PACKED.fullmatch(name)):
                yield kind, Path(place, name)


# ---- files that harm or mislead ----------------------------------------------------------------------------------------


def write_hostile(folder: Folder) -> None:
    """Files that cannot be read, below `hostile`, one beside which a planted one must not appear."""
    place = folder.root / "hostile"
    place.mkdir()
    whole = pdf([["A page that is cut off."] * 20] * 3)
    template = _word_template()
    (place / "cut off.pdf").write_bytes(whole[: len(whole) // 3])
    (place / "locked.pdf").write_bytes(pdf([["secret"]], encrypted=True))
    (place / "scan.pdf").write_bytes(pdf([["x"]], image_only=True))
    with zipfile.ZipFile(place / "bomb.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
        with bomb.open("word/document.xml", "w") as part:
            for _ in range(300):
                part.write(bytes(1 << 20))
    entity = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
    replace_in_zip(template, place / "entities.docx", {"word/document.xml": lambda xml: xml.replace(b"?>", b"?>" + entity, 1)})
    (place / "half.docx").write_bytes(template.read_bytes()[:5000])
    epub(place / "outside.epub", ["<p>x</p>"], spine=["../../../outside.txt"], more={"../../planted.txt": "a quokka"})
    (folder.root.parent / "outside.txt").write_text("a quokka outside the folder")
    (place / "empty.txt").write_bytes(b"")
    (place / "empty.pdf").write_bytes(b"")
    (place / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    (place / "program.txt").write_bytes(Path(sys.executable).read_bytes()[:20_000])
    (place / "twice.txt.gz").write_bytes(gzip.compress(gzip.compress(b"packed twice")))
    (place / "cut.txt.gz").write_bytes(gzip.compress(b"cut off before its end " * 50)[:40])
    (place / "broken.jsonl").write_text('{"text": "a row"}\n{"text": \n')
    (place / "office.doc").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000))
    folder.hostile |= {
        "cut off.pdf": "damaged or truncated PDF",
        "locked.pdf": "encrypted PDF",
        "scan.pdf": "run OCR",
        "bomb.docx": "unpacked content is larger",
        "entities.docx": "declares XML entities",
        "half.docx": "truncated zip archive",
        "outside.epub": "empty document",
        "empty.txt": "empty document",
        "empty.pdf": "empty document",
        "picture.txt": "is an image",
        "program.txt": "is binary",
        "twice.txt.gz": "packed twice",
        "cut.txt.gz": "damaged or incomplete",
        "broken.jsonl": "line 2: not valid JSON",
        "office.doc": "Office file from before 2007",
    }


def make_folder(root: Path, files: int = 1200) -> Folder:
    """All of it, below `root`: about so many files."""
    folder = Folder(root)
    texts, questions = real_texts()
    left = iter(texts)
    copy_files(folder)
    write_files(folder, left, files // 15)
    write_more(folder, left, files)
    write_hostile(folder)
    holds = {text.title: name for name, held in folder.texts.items() for text in held}
    folder.questions = {question: holds[title] for question, title in questions.items() if title in holds}
    return folder
