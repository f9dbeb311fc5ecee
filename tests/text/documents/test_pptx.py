"""PowerPoint files."""

from functools import partial
from operator import methodcaller

import pytest
from helpers.document_checks import paths, read_zip, shown
from helpers.document_files import pptx, replace_in_zip, shape

from runnel.errors import ReadError
from runnel.text.documents.document import Limits
from runnel.text.documents.pptx import read_pptx
from runnel.text.documents.reader import read_document

TABLE = (
    "<p:graphicFrame><a:tbl><a:tr><a:tc><a:p><a:r><a:t>Name</a:t></a:r></a:p></a:tc><a:tc/></a:tr>"
    "<a:tr><a:tc><a:p><a:r><a:t>ox</a:t></a:r></a:p></a:tc><a:tc><a:p><a:r><a:t>3</a:t></a:r></a:p><a:p><a:r><a:t>feet</a:t></a:r>"
    "</a:p></a:tc></a:tr><a:tr><a:tc/><a:tc/></a:tr></a:tbl></p:graphicFrame>"
)
SPLIT = "<a:p><a:r><a:t>Re</a:t></a:r><a:r><a:t>sults</a:t></a:r><a:br/><a:fld><a:t>2024</a:t></a:fld></a:p>"
SLIDES = [
    shape(["7"], "sldNum") + shape(["Plan", "of work"], "ctrTitle") + shape(["by Ann"], "subTitle"),
    shape(["First.", "", "Second."], "") + f"<p:grpSp><p:grpSp>{shape(['In a box &amp; group.'])}</p:grpSp></p:grpSp>{TABLE}",
    shape(["Body before the title."]) + shape(SPLIT, "title") + shape(["footer"], "ftr"),
    "",
    f"<mc:AlternateContent><mc:Choice>{shape(['New.'])}</mc:Choice><mc:Fallback>{shape(['Old.'])}</mc:Fallback></mc:AlternateContent>",
]
NOTES = {2: shape(["Say this."], "body") + shape(["2"], "sldNum") + shape(["picture"], "sldImg"), 5: shape([""], "body")}
read = partial(read_zip, read_pptx)


@pytest.fixture
def path(tmp_path):
    pptx(tmp_path / "a.pptx", SLIDES, notes=NOTES)
    return tmp_path / "a.pptx"


def test_slides_in_order(path):
    document = read(path)
    assert (document.kind, document.title, document.pages, document.warnings) == ("pptx", "A deck", 5, ())
    assert shown(document) == [
        ("heading", "Plan of work"), ("paragraph", "by Ann"), ("item", "First."), ("item", "Second."),
        ("paragraph", "In a box & group."), ("row", "Name |"), ("row", "ox | 3 feet"), ("note", "Say this."),
        ("heading", "Results 2024"), ("paragraph", "Body before the title."), ("paragraph", "New."),
    ]  # fmt: skip
    assert [block.page for block in document.blocks] == [1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 5]
    assert paths(document)["Say this."] == ("Slide 2",) and paths(document)["New."] == ("Slide 5",)
    assert paths(document)["by Ann"] == ("Plan of work",) and paths(document)["Body before the title."] == ("Results 2024",)
    assert read_document(path.rename(path.with_name("slides.pdf"))) == document  # by content


def test_smartart_is_read_and_links_are_not_followed(tmp_path):
    relations = (
        '<r><Relationship Id="rId0" Type="x/diagramData" Target="/ppt/diagrams/data1.xml"/>'
        '<Relationship Id="rId1" Type="x/notesSlide" TargetMode="External" Target="file:///etc/passwd"/>'
        '<Relationship Id="rId2" Type="x/image" Target="../../../../etc/passwd"/></r>'
    )
    data = '<d xmlns:a="y" xmlns:d="z"><d:pt><d:t><a:p><a:r><a:t>Step one</a:t></a:r></a:p></d:t></d:pt></d>'
    more = {"ppt/slides/_rels/slide1.xml.rels": relations, "ppt/diagrams/data1.xml": data}
    pptx(tmp_path / "a.pptx", [shape(["Title"], "title")], more=more)
    assert shown(read(tmp_path / "a.pptx")) == [("heading", "Title"), ("paragraph", "Step one")]


def test_slides_that_are_missing(path, tmp_path):
    relations = "ppt/_rels/presentation.xml.rels"
    for old, new, named in ((b"slide2.xml", b"gone.xml", r"'ppt/slides/gone\.xml'"), (b'"rId2"', b'"none"', "slide 3")):
        replace_in_zip(path, tmp_path / "b.pptx", {relations: methodcaller("replace", old, new)})
        with pytest.raises(ReadError, match=named):
            read(tmp_path / "b.pptx")


def test_deep_groups_long_texts_and_no_slides(tmp_path):
    pptx(tmp_path / "a.pptx", ["<p:grpSp>" * 3000 + shape(["deep"]) + "</p:grpSp>" * 3000])
    assert read(tmp_path / "a.pptx").text == "deep"
    pptx(tmp_path / "a.pptx", [shape(["word " * 2000])] * 3)
    with pytest.raises(ReadError, match="20,000 bytes"):
        read(tmp_path / "a.pptx", Limits(unpacked_bytes=20_000))
    pptx(tmp_path / "a.pptx", [])
    assert (read(tmp_path / "a.pptx").text, read(tmp_path / "a.pptx").pages) == ("", 0)
