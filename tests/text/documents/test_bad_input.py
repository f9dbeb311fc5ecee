"""Input that files should not hold: it is read, left out with a sentence, or refused by one."""

import json

import openpyxl
import pytest
from helpers.document_checks import check, shown
from helpers.document_files import Placed, docx, drawn_pdf
from helpers.memory import with_peak
from helpers.texts import repeat

from runnel.errors import ReadError, UnsupportedKind
from runnel.files import Decoded
from runnel.text.documents.document import read_plain
from runnel.text.documents.reader import DocumentReader

MOST_COLUMNS = 10_000


@pytest.fixture(scope="module")
def reader():
    with DocumentReader() as reader:
        yield reader


@pytest.fixture
def read(reader, tmp_path):
    """Read a file with a name and a content."""

    def read(name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return list(map(check, reader.read(tmp_path / name)))

    return read


def word_table(*cells: str) -> str:
    row = "".join(f"<w:tc><w:p><w:r><w:t>{cell}</w:t></w:r></w:p></w:tc>" for cell in cells)
    return f"<w:tbl><w:tr>{row}</w:tr></w:tbl>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<table><tr><td>Boxed.</table>"),
        ("a.md", "| Boxed. |\n|---|\n"),
        ("a.rst", "+--------+\n| Boxed. |\n+--------+\n"),
        ("a.adoc", "|===\n| Boxed.\n|===\n"),
        ("a.csv", "text\nBoxed.\n"),
    ],
)
def test_a_table_of_one_cell(read, name, content):
    (document,) = read(name, content)
    assert "Boxed." in document.text and document.warnings == ()


def test_a_table_of_one_cell_in_office_files(reader, tmp_path):
    docx(tmp_path / "a.docx", word_table("Boxed."))
    book = openpyxl.Workbook()
    book.active["C3"] = "Boxed."
    book.save(tmp_path / "a.xlsx")
    for name in ("a.docx", "a.xlsx"):
        (document,) = reader.read(tmp_path / name)
        assert shown(document)[-1][1] == "Boxed." and document.warnings == ()


COLUMNS = [f"c{n}" for n in range(MOST_COLUMNS)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.html",
            f"<table><tr><td>{'<td>'.join(COLUMNS)}<tr>{repeat('<td>7', MOST_COLUMNS)}</table>",
        ),
        (
            "a.md",
            f"| {' | '.join(COLUMNS)} |\n|{repeat('-|', MOST_COLUMNS)}\n|{repeat('7|', MOST_COLUMNS)}\n",
        ),
        ("a.csv", f"{','.join(COLUMNS)}\n{','.join(['7'] * MOST_COLUMNS)}\n"),
        ("a.tsv", f"{chr(9).join(COLUMNS)}\n{chr(9).join(['7'] * MOST_COLUMNS)}\n"),
    ],
)
def test_a_table_of_10_000_columns(read, name, content):
    (document,) = read(name, content)
    assert document.text.count("7") >= MOST_COLUMNS and "c9999" in document.text


def test_a_numbering_that_refers_to_nothing(reader, tmp_path):
    listed = '<w:pPr><w:numPr><w:ilvl w:val="7"/><w:numId w:val="99"/></w:numPr></w:pPr>'
    docx(tmp_path / "a.docx", f"<w:p>{listed}<w:r><w:t>A clause.</w:t></w:r></w:p>")
    (document,) = reader.read(tmp_path / "a.docx")
    assert shown(document) == [("item", "A clause.")]


@pytest.mark.parametrize("body", ["", "\r\n", "\r\n\r\n"])
def test_a_mail_without_a_body(read, body):
    (document,) = read("a.eml", f"From: a@example.org\r\nSubject: Hay\r\n{body}")
    assert "Hay" in document.text and "body" in document.warnings[0]


@pytest.mark.parametrize("version", [1, 2, 5, "4", None])
def test_a_notebook_of_another_version(read, version):
    cells = [{"cell_type": "markdown", "source": "Some words."}]
    (document,) = read("a.ipynb", json.dumps({"nbformat": version, "cells": cells}))
    assert document.text == "Some words." and str(version) in document.warnings[0]


def test_a_pdf_whose_font_map_lies(read):
    lines = ["A term is de\256ned in the \256rst list of", "fine fields, and it is fine."]
    placed = [Placed(60, 700 - 14 * n, line, font="F4") for n, line in enumerate(lines)]
    (document,) = read("a.pdf", drawn_pdf([placed]))
    assert "defined in the first list" in document.text and document.warnings == ()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"A text.\n" + bytes(range(256)), UnsupportedKind),
        (b"\x7fELF\x02\x01\x01\0\0\0", UnsupportedKind),
        (b"word " * 2000 + b"\0", UnsupportedKind),
        ("名前は田中です。\n".encode("shift_jis") * 9, ReadError),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.log", "a.md", "a.py", "a.html", "a.json", "a.csv"])
def test_binary_in_a_text_is_refused(read, name, content, error):
    with pytest.raises(ReadError, match=name) as caught:
        read(name, content)
    assert isinstance(caught.value, error)


def test_a_long_log_takes_memory_in_proportion():
    """A log of 200 MB took 2.8 GB in all; here one of 2 MB may take as much for each byte."""
    row = "2026-01-03 12:00:05 INFO worker[%d]: request for /v1/upload took 12 ms, queue 4\n"
    text = "".join(row % n for n in range(25_000))
    document, peak = with_peak(lambda: read_plain(Decoded(text, "utf-8")))
    assert len(document.blocks) == 25_000 and peak < 20 * len(text)
