"""OpenDocument texts, spreadsheets and presentations."""

from functools import partial

import pytest
from helpers.document_checks import paths, read_zip, shown
from helpers.document_files import odf

from runnel.errors import ReadError, UnsupportedKind
from runnel.text.documents.document import Limits
from runnel.text.documents.odf import read_odf
from runnel.text.documents.reader import read_document

TEXT = """
<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h text:outline-level="1">Part <text:span>one</text:span></text:h>
<text:p>First<text:note><text:note-citation>1</text:note-citation><text:note-body>
<text:p>A <text:span>foot</text:span>note.</text:p>
</text:note-body></text:note>, <office:annotation><text:p>comment</text:p></office:annotation>then<text:s text:c="3"/>more
 text.<text:line-break/>New<text:tab/>line: <text:page-number>12</text:page-number>.</text:p>
<text:list><text:list-item><text:p>An item</text:p></text:list-item></text:list>
<text:h text:outline-level="2">Detail</text:h>
<table:table table:name="T"><table:table-row><table:table-cell><text:p>Name</text:p></table:table-cell><table:table-cell/>
</table:table-row><table:table-row><table:table-cell><text:p>ox</text:p><text:p>cow</text:p></table:table-cell>
<table:table-cell><text:list><text:list-item><text:p>3</text:p></text:list-item></text:list></table:table-cell></table:table-row>
</table:table><text:p>With <draw:frame><draw:image><office:binary-data>AAAA</office:binary-data></draw:image>
<desc>alternative</desc></draw:frame>picture.</text:p>
<text:p> </text:p><text:h>Part two</text:h><text:table-of-content><text:index-body><text:p>Part<text:tab/>3</text:p>
</text:index-body></text:table-of-content><text:p>Last.</text:p>
"""
SHEETS = """
<table:table table:name="Prices"><table:table-row><table:table-cell><text:p>item</text:p></table:table-cell><table:table-cell/>
<table:table-cell office:value="0.5"><text:p>50 %</text:p></table:table-cell>
<table:table-cell table:number-columns-repeated="16000"/></table:table-row>
<table:table-row table:number-rows-repeated="1000000"><table:table-cell/></table:table-row></table:table>
<table:table table:name="Empty"/>
"""
SLIDES = """
<draw:page draw:name="page1"><draw:frame><draw:text-box><text:p>Before</text:p></draw:text-box></draw:frame>
<draw:frame presentation:class="title"><draw:text-box>
<text:p>The<text:line-break/>pl<text:span>an</text:span></text:p></draw:text-box>
</draw:frame><presentation:notes>
<draw:frame><draw:text-box><text:p>Say this.</text:p></draw:text-box></draw:frame></presentation:notes></draw:page>
<draw:page><draw:frame><draw:text-box><text:list><text:list-item><text:p>point</text:p></text:list-item></text:list></draw:text-box>
</draw:frame></draw:page>
"""
DEEP = "<text:list><text:list-item>" * 2000 + "<text:p>deep</text:p>" + "</text:list-item></text:list>" * 2000
read = partial(read_zip, read_odf)


def test_a_text(tmp_path):
    odf(tmp_path / "a.odt", "text", TEXT)
    document = read(tmp_path / "a.odt")
    assert (document.kind, document.title, document.pages, document.warnings) == ("odt", "A title", None, ())
    assert shown(document) == [
        ("heading", "Part one"), ("paragraph", "First, then more text.\nNew line: 12."), ("item", "An item"),
        ("heading", "Detail"), ("row", "Name |"), ("row", "ox cow | 3"), ("paragraph", "With picture."),
        ("heading", "Part two"), ("contents", "Part 3"), ("paragraph", "Last."), ("note", "A footnote."),
    ]  # fmt: skip
    assert paths(document)["ox cow | 3"] == ("Part one", "Detail") and paths(document)["Last."] == ("Part two",)
    assert read_document(tmp_path / "a.odt") == document
    odf(tmp_path / "a.odt", "text", DEEP)
    assert shown(read(tmp_path / "a.odt")) == [("item", "deep")]


def test_a_spreadsheet(tmp_path):
    odf(tmp_path / "a.ods", "spreadsheet", SHEETS)
    document = read(tmp_path / "a.ods")
    assert shown(document) == [("heading", "Prices"), ("row", "item | 50 %"), ("heading", "Empty")]
    assert document.kind == "ods" and document.pages is None


def test_a_presentation(tmp_path):
    odf(tmp_path / "a.odp", "presentation", SLIDES)
    document = read(tmp_path / "a.odp")
    assert shown(document) == [("heading", "The plan"), ("paragraph", "Before"), ("note", "Say this."), ("item", "point")]
    assert [block.page for block in document.blocks] == [1, 1, 1, 2] and (document.kind, document.pages) == ("odp", 2)
    assert paths(document)["Say this."] == ("The plan",) and paths(document)["point"] == ("Slide 2",)


def test_what_cannot_be_read(tmp_path):
    odf(tmp_path / "a.odt", "text", TEXT, more={"META-INF/manifest.xml": "<m><e><encryption-data/></e></m>"})
    with pytest.raises(ReadError, match="encrypted"):
        read(tmp_path / "a.odt")
    odf(tmp_path / "a.odg", "drawing", "")
    with pytest.raises(UnsupportedKind, match="'drawing'"):
        read(tmp_path / "a.odg")
    odf(tmp_path / "a.ods", "spreadsheet", SHEETS.replace("item", "word " * 5000))
    with pytest.raises(ReadError, match="20,000 bytes"):
        read(tmp_path / "a.ods", Limits(unpacked_bytes=20_000))
