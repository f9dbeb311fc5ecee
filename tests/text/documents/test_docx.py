"""Word documents, written by python-docx."""

import zipfile
from functools import partial

import docx
import pytest
from helpers.document_checks import paths, read_zip, shown
from helpers.document_files import replace_in_zip

from runnel.errors import ReadError
from runnel.text.documents.docx import read_docx

_BODY = "word/document.xml"
read = partial(read_zip, read_docx)


def read_with(path, more):
    """Read a document with more at the end of its body."""
    replace_in_zip(
        path, path.with_name("b.docx"), {_BODY: lambda xml: xml.replace(b"<w:sectPr", more.encode() + b"<w:sectPr", 1)}
    )
    return read(path.with_name("b.docx"))


@pytest.fixture
def path(tmp_path):
    """A document with something of everything."""
    document = docx.Document()
    document.core_properties.title = "A title"
    document.add_heading("The title", 0)
    document.add_heading("Part one", 1)
    document.add_paragraph("First ").add_run("bold\ttab").add_break()
    document.add_paragraph("An item", style="List Bullet")
    document.add_paragraph("  ")
    table = document.add_table(2, 2)
    for cell, text in zip((c for row in table.rows for c in row.cells), ("Name", "Size", "ox", "3\nfeet"), strict=True):
        cell.text = text
    document.add_heading("Detail", 2)
    style = document.styles.add_style("My own", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = document.styles["Heading 1"]
    document.add_paragraph("Part two", style="My own")
    document.add_paragraph("Last.")
    document.save(tmp_path / "a.docx")
    return tmp_path / "a.docx"


def test_blocks_and_headings(path):
    document = read(path)
    assert document.title == "A title" and document.pages is None
    assert shown(document) == [  # the item is one by its style alone
        ("heading", "The title"), ("heading", "Part one"), ("paragraph", "First bold\ttab"), ("paragraph", "An item"),
        ("row", "Name | Size"), ("row", "ox | 3 feet"), ("heading", "Detail"), ("heading", "Part two"), ("paragraph", "Last."),
    ]  # fmt: skip
    path_of = paths(document)
    assert path_of["Detail"] == ("The title", "Part one", "Detail") and path_of["Last."] == ("The title", "Part two")


def test_a_table_of_contents_is_known_by_its_styles(tmp_path):
    document = docx.Document()
    for name, base in (("toc 1", "Normal"), ("My contents", "toc 1")):
        style = document.styles.add_style(name, docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
        style.base_style = document.styles[base]
        document.add_paragraph(f"Part\t{len(name)}", style=name)
    document.add_paragraph("Index of all.")
    document.save(tmp_path / "a.docx")
    assert shown(read(tmp_path / "a.docx")) == [
        ("contents", "Part\t5"), ("contents", "Part\t11"), ("paragraph", "Index of all."),
    ]  # fmt: skip


def paragraph(text, properties=""):
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


BOX = paragraph("in a box")
MATH = "xmlns:m='http://schemas.openxmlformats.org/officeDocument/2006/math'"
FALLBACK = f'<x:Fallback xmlns:x="http://schemas.openxmlformats.org/markup-compatibility/2006">{BOX}</x:Fallback>'
TABLE = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p>{}</w:tc></w:tr></w:tbl>"
LEVEL = '<w:pPr><w:outlineLvl w:val="{}"/></w:pPr>'


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('<w:p><w:ins w:id="1" w:author="x"><w:r><w:t>inserted</w:t></w:r></w:ins>'
         '<w:del w:id="2" w:author="x"><w:r><w:delText>deleted</w:delText></w:r></w:del></w:p>', [("paragraph", "inserted")]),
        (f"<w:sdt><w:sdtContent>{paragraph('controlled')}</w:sdtContent></w:sdt>", [("paragraph", "controlled")]),
        (f"<w:p><m:oMath {MATH}><m:r><m:t>E=mc</m:t></m:r></m:oMath></w:p>", [("paragraph", "E=mc")]),
        (paragraph("counted", "<w:pPr><w:numPr/></w:pPr>"), [("item", "counted")]),
        (f"<w:p><w:r><w:t>around </w:t></w:r><w:pict>{BOX}</w:pict>{FALLBACK}</w:p>",
         [("paragraph", "in a box"), ("paragraph", "around")]),
        (TABLE.format("outer", TABLE.format("inner", "")), [("row", "outer inner")]),
        (paragraph("stop", "<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>"), [("paragraph", "stop")]),
        *((paragraph("level", LEVEL.format(value)), [("paragraph", "level")]) for value in ("9", "12", "x")),
        (paragraph("level", LEVEL.format("1")), [("heading", "level")]),
    ],
)  # fmt: skip
def test_what_a_body_may_hold(path, more, expected):
    assert shown(read_with(path, more))[8:] == [("paragraph", "Last."), *expected]


def test_page_breaks(path):
    document = read_with(path, "<w:p><w:r><w:br w:type='page'/><w:lastRenderedPageBreak/><w:t>on page two</w:t></w:r></w:p>")
    assert document.pages == 2 and document.blocks[0].page == 1
    assert shown(document)[-1] == ("paragraph", "on page two") and document.blocks[-1].page == 2


def test_footnotes_come_last(path, tmp_path):
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    notes = f"<w:footnotes {w}><w:footnote><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>"
    link = b'<Relationship Id="rId99" Type="x/footnotes" Target="footnotes.xml"/></Relationships>'
    more = {"word/_rels/document.xml.rels": lambda xml: xml.replace(b"</Relationships>", link)}
    replace_in_zip(path, tmp_path / "b.docx", more)
    with zipfile.ZipFile(tmp_path / "b.docx", "a") as archive:
        archive.writestr("word/footnotes.xml", notes)
    assert shown(read(tmp_path / "b.docx"))[-1] == ("note", "A note.")


def test_the_body_may_be_in_a_part_of_another_name(path, tmp_path):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "b.docx", "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("document.xml", "body.dat"), old.read(name).replace(b"word/document.xml", b"word/body.dat"))
    assert shown(read(tmp_path / "b.docx")) == shown(read(path))


def test_damaged_documents(path, tmp_path):
    replace_in_zip(path, tmp_path / "b.docx", {_BODY: lambda xml: b"<other/>"})
    with pytest.raises(ReadError, match=r"document\.xml.* no body"):
        read(tmp_path / "b.docx")
