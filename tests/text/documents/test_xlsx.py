"""Excel workbooks, written by openpyxl."""

import datetime
import functools
import re
import sys

import openpyxl
import pytest
from helpers.document_checks import paths, read_zip, shown
from helpers.document_files import replace_in_zip

from runnel.errors import MissingDependency, ReadError
from runnel.text.documents.document import Limits
from runnel.text.documents.parts import Archive
from runnel.text.documents.reader import read_document
from runnel.text.documents.xlsx import read_xlsx

read = functools.partial(read_zip, read_xlsx)


@pytest.fixture
def path(tmp_path):
    """A workbook with something of everything."""
    book = openpyxl.Workbook()
    book.properties.title = "Prices"
    sheet = book.active
    sheet.title = "Goods"
    sheet.append(["name", None, "price", "share", "day", "at", "sold"])
    sheet.append(["ox\n and cow", None, 0.1 + 0.2, 0.125, datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 2, 3, 4), True])
    sheet["D2"].number_format = "0.0%"
    sheet.append([None, " "])
    sheet.append([123456789012345, 3.0, -1])
    hidden = book.create_sheet("Hidden")
    hidden.sheet_state = "hidden"
    hidden["XFD9"] = "far away"
    book.create_sheet("Empty")
    book.create_chartsheet("Chart").add_chart(openpyxl.chart.BarChart())
    book.save(tmp_path / "a.xlsx")
    return tmp_path / "a.xlsx"


def test_sheets_and_rows(path):
    document = read(path)
    assert (document.kind, document.title, document.pages, document.warnings) == ("xlsx", "Prices", None, ())
    assert shown(document) == [
        ("heading", "Goods"), ("row", "name | price | share | day | at | sold"),
        ("row", "ox and cow | 0.3 | 12.5% | 2024-02-29 | 2024-01-02 03:04:00 | TRUE"), ("row", "123456789012345 | 3 | -1"),
        ("heading", "Hidden"), ("row", "far away"), ("heading", "Empty"),
    ]  # fmt: skip
    assert paths(document)["far away"] == ("Hidden",)
    assert read_document(path) == document


def test_results_of_formulas_are_read_and_missing_ones_are_reported(path, tmp_path):
    book = openpyxl.load_workbook(path)
    book["Empty"].append(["=1+1", "=A1", "text"])
    book.save(tmp_path / "b.xlsx")
    document = read(tmp_path / "b.xlsx")
    assert shown(document)[-1] == ("row", "text")
    assert document.warnings == ("formulas without a stored result were left out (2); save the file with a spreadsheet program",)

    def change(old, new):
        replace_in_zip(tmp_path / "b.xlsx", tmp_path / "c.xlsx", {"xl/worksheets/sheet3.xml": lambda xml: xml.replace(old, new)})
        return read(tmp_path / "c.xlsx")

    assert shown(change(b"<v></v>", b"<v>2</v>"))[-1] == ("row", "2 | 2 | text")
    assert change(b'"><f>', b'" t="str"><f>').warnings == ()


def test_wrong_dimensions_do_not_hide_rows(path, tmp_path):
    change = functools.partial(re.sub, rb"<dimension [^/]*", b'<dimension ref="A1"')
    replace_in_zip(path, tmp_path / "b.xlsx", {"xl/worksheets/sheet1.xml": change})
    assert shown(read(tmp_path / "b.xlsx")) == shown(read(path))


def test_what_cannot_be_read(path, monkeypatch):
    with Archive(path, Limits()) as archive, pytest.raises(ReadError, match=r"text .* 40 bytes"):
        read_xlsx(archive, Limits(unpacked_bytes=40))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependency, match="openpyxl"):
        read(path)
