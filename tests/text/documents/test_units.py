"""Units of every kind of document: they tile its text, and their places lead back to it.

Each suffix of the table of formats has a sample, with what is awkward in files of its kind.
"""

import gzip
import json
from base64 import b64encode
from email.message import EmailMessage

import openpyxl
import pytest
from helpers.document_checks import check
from helpers.document_files import Placed, docx, drawn_pdf, epub, odf, pptx, shape
from helpers.texts import repeat
from helpers.tokenizers_for_tests import letters
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runnel.files import Decoded
from runnel.formats import FORMATS
from runnel.search.finding import locate
from runnel.text.documents.document import DocumentText, reader_of
from runnel.text.documents.reader import DocumentReader
from runnel.text.ranked import RankedText
from runnel.text.sentences import UNITS, read_sentences

# soft hyphens, combining characters, emoji of several characters, right-to-left text, wide spaces
WORDS = (
    "Soft\u00adly e\u0301te\u0301 \U0001f1f3\U0001f1f4 \U0001f469\u200d\U0001f467 left. "
    "\u05e9\u05dc\u05d5\u05dd 123 \u0645\u0631\u062d\u0628\u0627. Dr. Ada\u00a0paid 4\u2009% \u202e!"
)
LONG = repeat("very long, ", 400) + repeat("x", 3000) + "."  # longer than any unit
ENCODED = b64encode(bytes(range(256)) * 2).decode()
TEXT = f"1. Fees\r\n\r\n{WORDS}\r\n\1{WORDS}\r\r\n- a\r\n  - b\r\n\f{LONG}\n\n{ENCODED}\n\nEnd\1"
MARKED = (
    f"---\ntitle: A\n---\r\n# H &amp; <b>x</b>\r\n\r\n{WORDS} &shy;&#x1F600;[^1] \\*a\\*  \r\nb<br>c\r\n"
    f"\r\n| a | b |\r\n|---|:-:|\r\n| 1 |  |\r\n| \\| | {WORDS} |\r\n\r\n* x\r\n  1. y\r\n     > z\r\n"
    "\r\n```py\r\nx = 1\r\n```\r\n\r\n<table><tr><td rowspan=2>m<td>n<tr><td>o</table>\r\n\r\n"
    f"[^1]: The *note*.\r\n\r\n![p](data:image/png;base64,{ENCODED})\r\n{LONG}"
)
HTML = (
    f"<html><head><title>T &amp; t</title></head><body><h1>H&shy;ead</h1><p>{WORDS}&nbsp;&zwj;"
    "<sup>1</sup><p hidden>no<ul><li>a<ul><li>b<li></ul><li>c</ul><table><caption>Table 1. C"
    "<tr><th colspan=2>N<th>M<tr><td rowspan=2>m<td><td>1<tr><td>n<td>\U0001f600</table>"
    f"<pre>x\r\n  y\1</pre><p>{LONG}<p>l<br>m<br><ol><li>i<p>k</ol><p>End"
)
CUES = f"00:00:01.000 --> 00:00:02.000\r\n<i>{WORDS}</i>\r\n- and\r\n\r\n00:00:03.000 --> 00:00:04.000\r\n<v Ann>on {WORDS}\r\n"
STAMPED = "".join(
    f"2026-01-0{day} 10:00:00 WARN worker[{day}]: {text}\r\n\tat more({day})\r\n"
    for day, text in enumerate(("up", WORDS, "\1\2 control", LONG, ""), start=1)
)
XML = (
    '\ufeff<?xml version="1.0"?><r><name>A &amp; b</name><t>A <b>bold</b>ly. &#x1F600;</t><list>'
    f"<i>1</i><i/><i>{WORDS}</i></list><c><![CDATA[<x> {WORDS}]]></c><l>{LONG}</l></r>"
)
JSON = json.dumps(
    {"a": WORDS, "b": [1, None, "", {"c": "x\r\ny\0", "d": LONG}], "\u00e9": "\ud800"}
)
ROWS = [{"text": TEXT}, {"id": "b", "text": WORDS, "title": "T"}, {"text": LONG}]
TABLE = [["id", "text"], ["1", WORDS], ["2", 'a "q"\nb'], ["3", ""], ["4", LONG]]
CODE = f'def f(x):\r\n\t"""{WORDS}"""\r\n\r\n\treturn "{ENCODED}"  # {LONG}\r\n\r\nclass A {{\r\n}}\r\n'


def table_text(separator: str) -> str:
    quoted = (['"{}"'.format(cell.replace('"', '""')) for cell in row] for row in TABLE)
    return "\ufeff" + "\r\n".join(separator.join(row) for row in quoted) + "\r\n5\r\n"


def mail(*, html: bool = False) -> bytes:
    message = EmailMessage()
    message["From"] = "N\u00f6ra <nora@example.org>"
    message["Subject"] = f"{WORDS[:40]}"
    message["Message-ID"] = "<1@example.org>"
    message.set_content(f"Hi,\r\n\r\n{WORDS}\r\n> {WORDS}\r\n-- \r\nN", cte="quoted-printable")
    if html:
        message.add_alternative(HTML, subtype="html", cte="base64")
    message.add_attachment(b"\0\1", "application", "octet-stream", filename="a \u05e9.bin")
    return message.as_bytes()


def mailbox() -> bytes:
    return b"".join(b"From a Mon Jan  1 10:00:00 2026\n" + mail() + b"\n" for _ in range(2))


def saved_page() -> bytes:
    page = EmailMessage()
    page["MIME-Version"] = "1.0"
    page.set_content(HTML, subtype="html", cte="quoted-printable")
    return page.as_bytes()


def notebook() -> str:
    output = {"output_type": "stream", "text": [WORDS, "\r\n", LONG, "\x1b[1mred\x1b[0m\0"]}
    cells = [
        {"cell_type": "markdown", "source": MARKED},
        {"cell_type": "code", "source": CODE, "outputs": [output]},
        {"cell_type": "code", "source": [], "outputs": []},
        {"cell_type": "raw", "source": [TEXT]},
    ]
    return json.dumps({"nbformat": 4, "cells": cells})


def subtitles(suffix: str) -> str:
    if suffix in (".ass", ".ssa"):
        line = f"Dialogue: 0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,{{\\i1}}{WORDS}\\Nb, c"
        return f"[Script Info]\r\n\r\n[Events]\r\nFormat: Layer, Start, End, Style, Name, A, B, C, D, Text\r\n{line}\r\n"
    if suffix == ".sbv":
        return f"0:00:01.000,0:00:02.000\r\n{WORDS}\r\n\r\n0:00:03.000,0:00:04.000\r\n{LONG}\r\n"
    return "\ufeffWEBVTT\r\n\r\nNOTE x\r\n\r\n" + CUES if suffix == ".vtt" else f"1\r\n{CUES}"


def pdf() -> bytes:
    prose = [
        Placed(50, 700 - 14 * n, f"The line {n} of it goes on and on, and it") for n in range(9)
    ]
    rows = [
        Placed(x, 500 - 14 * n, f"{text} {n}")
        for n in range(5)
        for x, text in ((50, "Oak"), (200, "Room"), (350, "12,00"))
        if n != 3 or x != 200
    ]
    right = Placed(550, 60, "Turned text.", angle=90)
    end = [
        Placed(50, 700, "ends here.\xad Caf\xe9 de\256ned.", font="F4"),
        Placed(50, 600, LONG[:90]),
    ]
    return drawn_pdf([[Placed(50, 750, "1 Fees", 18), *prose, *rows, right], [], end])


def save_docx(path):
    def p(text, properties=""):
        return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"

    def cell(text, properties=""):
        return f"<w:tc><w:tcPr>{properties}</w:tcPr>{p(text)}</w:tc>"

    wide, first, further = '<w:gridSpan w:val="2"/>', '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    table = (
        f"<w:tr>{cell('N', wide)}{cell('M')}</w:tr>"
        f"<w:tr>{cell(WORDS, first)}{cell('')}{cell('1')}</w:tr>"
        f"<w:tr>{cell('', further)}{cell('&#x1F600;')}{cell('2')}</w:tr>"
    )
    note = '<w:r><w:footnoteReference w:id="1"/></w:r>'
    body = (
        p("Head", '<w:outlineLvl w:val="0"/>')
        + p("item", '<w:numPr><w:ilvl w:val="3"/><w:numId w:val="9"/></w:numPr>')
        + f"<w:p><w:r><w:t>{WORDS}</w:t><w:br/></w:r>{note}<w:r><w:sym w:char='F0FC'/></w:r></w:p>"
        + f"<w:tbl>{table}</w:tbl>{p(LONG)}{p('')}"
    )
    docx(path, body, parts={"footnotes": f'<w:footnote w:id="1">{p(WORDS)}</w:footnote>'})


def save_pptx(path):
    cells = "<a:tc gridSpan='2'><a:txBody><a:p><a:r><a:t>m</a:t></a:r></a:p></a:txBody></a:tc>"
    empty = "<a:tc hMerge='1'><a:txBody><a:p/></a:txBody></a:tc>"
    frame = f"<p:graphicFrame><a:tbl><a:tr>{cells}{empty}{cells}</a:tr><a:tr>{empty}</a:tr></a:tbl></p:graphicFrame>"
    slides = [
        shape(["Head"], "title") + shape([WORDS, "", LONG], "body") + frame,
        shape([""]),
        frame,
    ]
    pptx(path, slides, notes={1: shape([WORDS], "body")})


def save_xlsx(path):
    book = openpyxl.Workbook()
    for row in (["N", None, "M"], [WORDS, None, 1.5], [None, "x\r\ny", True], [], [LONG, "=1/0"]):
        book.active.append(row)
    book.active.merge_cells("A1:B1")
    book.active.merge_cells("A2:A3")
    book.create_sheet("Empty")
    book.save(path)


def save_odf(path):
    kind = {".odt": "text", ".ods": "spreadsheet", ".odp": "presentation"}[path.suffix]
    p = f"<text:p>{WORDS}<text:s text:c='3'/>x<text:line-break/>y<text:note><text:note-body><text:p>n</text:p></text:note-body></text:note></text:p>"
    cell = f"<table:table-cell table:number-columns-spanned='2'><text:p>{WORDS}</text:p></table:table-cell>"
    empty = "<table:table-cell table:number-columns-repeated='1000'/>"
    rows = f"<table:table-row>{cell}{cell}{empty}</table:table-row>" * 2
    table = f"<table:table table:name='T'>{rows}</table:table>"
    listed = (
        f"<text:list><text:list-item>{p}<text:list>{p}</text:list></text:list-item></text:list>"
    )
    content = f"<text:h text:outline-level='1'>H</text:h>{p}{listed}{table}<text:p>{LONG}</text:p>"
    if kind == "presentation":
        content = f"<draw:page><draw:frame><draw:text-box>{p}{listed}</draw:text-box></draw:frame></draw:page>"
    odf(path, kind, table if kind == "spreadsheet" else content)


def save_epub(path):
    chapter = HTML.partition("<body>")[2].replace("&nbsp;&zwj;", "&#160;")
    note = "<p>old<a href='#n' role='doc-noteref'>1</a></p><aside id='n'>1 N.</aside>"
    epub(path, [note, f"<p>{WORDS}</p><table><tr><td>a</td><td/></tr></table>", chapter, ""])


ARCHIVES = {".docx": save_docx, ".pptx": save_pptx, ".xlsx": save_xlsx, ".epub": save_epub}
ARCHIVES |= dict.fromkeys((".odt", ".ods", ".odp"), save_odf)
# by kind or suffix, the content of a file
CONTENTS = {
    "txt": TEXT,
    ".log": STAMPED,
    "md": MARKED,
    "code": CODE,
    "jsonl": "".join(json.dumps(row) + "\r\n" for row in ROWS),
    "csv": table_text(";"),
    "tsv": table_text("\t"),
    "html": HTML,
    "xml": XML,
    "json": JSON,
    "ipynb": notebook(),
    "pdf": pdf(),
    "mail": mail(html=True),
    ".mbox": mailbox(),
    ".mbx": mailbox(),
    ".mht": saved_page(),
    ".mhtml": saved_page(),
    **{suffix: subtitles(suffix) for suffix in FORMATS["srt"].suffixes.split()},
}
# each suffix of the table, and files that are recognized without one
SAMPLES = [
    (kind, suffix)
    for kind, entry in FORMATS.items()
    for suffix in (*entry.suffixes.split(), *((".txt", ".log", "") if kind == "txt" else ()))
] + [("pdf", ".pdf"), ("html", ".txt"), ("mail", "")]


def write_sample(path, kind: str) -> None:
    """Write the sample of a kind; a kind without one is a KeyError."""
    if FORMATS[kind].takes == "archive":
        ARCHIVES[path.suffix](path)
        return
    content = CONTENTS.get(path.suffix) or CONTENTS[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))


def check_units(document: DocumentText) -> None:
    """Units of each size tile the text, and each one's place holds its own text."""
    check(document)
    text = document.text
    ranked = RankedText.of(document)
    for unit in UNITS:
        if not ranked.text:
            continue
        spans = read_sentences(ranked, [letters(ranked.text)], unit=unit, language="auto").spans
        assert spans[0, 0] == 0 and spans[-1, 1] == len(text) and (spans[:, 0] < spans[:, 1]).all()
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        for place in locate("a", document, spans.tolist()):
            assert text[place.start : place.end] == place.text
            assert 1 <= place.line <= text.count("\n") + 1
            assert place.page is None or 1 <= place.page <= document.pages
            assert all(place.headings)


@pytest.fixture(scope="module")
def reader():
    with DocumentReader() as reader:
        yield reader


@pytest.mark.parametrize(("kind", "suffix"), SAMPLES)
def test_units_tile_the_text_of_every_kind_and_lead_back_to_it(tmp_path, reader, kind, suffix):
    path = tmp_path / f"sample{suffix}"
    write_sample(path, kind)
    documents = list(reader.read(path))
    assert documents and {document.kind for document in documents} <= {kind, suffix[1:]}
    for document in documents:
        check_units(document)
    assert any("left" in document.text or "goes on" in document.text for document in documents)
    assert documents == list(reader.read(path))
    if FORMATS[kind].takes != "archive":
        (tmp_path / f"sample{suffix}.gz").write_bytes(gzip.compress(path.read_bytes()))
        assert documents == list(reader.read(tmp_path / f"sample{suffix}.gz"))


PIECES = [*(TEXT + MARKED + HTML + CUES + STAMPED).split(" "), "\n\n", "\n", "  ", WORDS, ENCODED]
PIECES += ["---\n", "| ", " |\n", "```\n", "<table>", "<tr>", "<td>", "</table>", "<li>", "\ud800"]
PIECES += ["From: a\n", "1\n", "{", "}", '"a": ', "[", "]", "<a>", "</a>", "&amp;", "\f", "\x85"]


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=40))
@example(pieces=[])
@pytest.mark.parametrize("kind", [k for k, e in FORMATS.items() if e.takes in ("text", "markup")])
def test_units_tile_any_text_of_a_kind(kind, pieces):
    check_units(reader_of(FORMATS[kind])(Decoded("".join(pieces), "utf-8")))
