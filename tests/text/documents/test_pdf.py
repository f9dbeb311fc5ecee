"""PDF: pages, paragraphs, hyphens, outline; and what is said of files without text."""

import pytest
from document_checks import check, paths, shown
from document_files import pdf

from runnel.errors import ReadError
from runnel.text.documents import pdf as module
from runnel.text.documents.limits import Limits
from runnel.text.documents.pdf import read_pdf


@pytest.fixture
def read(tmp_path):
    def call(pages, **options):
        path = tmp_path / "a.pdf"
        path.write_bytes(pages if isinstance(pages, bytes) else pdf(pages, **options))
        return check(read_pdf(path, Limits()))

    return call


def test_pages_and_paragraphs(read):
    document = read([["First line", "and second.", None, None, "A new paragraph", "goes on."], ["Page two (café)."]])
    assert [(block.page, document.text[block.start : block.end]) for block in document.blocks] == [
        (1, "First line\nand second."),
        (1, "A new paragraph\ngoes on."),
        (2, "Page two (café)."),
    ]
    assert document.pages == 2 and document.warnings == () and document.kind == "pdf"


def test_a_sentence_over_a_page_end_stays_whole(read):
    document = read([["This sentence goes"], ["over the page. Another."], ["New page."]])
    assert document.text == "This sentence goes\nover the page. Another.\n\nNew page."
    assert [block.page for block in document.blocks] == [1, 2, 3]


def test_hyphens_at_line_ends(read):
    document = read(
        [
            [
                "an exam-",
                "ple of a state-",
                "space model. It is",
                "a state-space model, or well-",
                "known. In 2020-",
                "2021, pages 3-",
                "4.",
            ]
        ]
    )
    text = " ".join(document.text.split())
    assert text.startswith("an example of a state-space model. It is a state-space model, or wellknown.")
    assert "2020- 2021" in text or "2020-2021" in text


def test_pages_without_text_are_told(read):
    document = read([["one"], [], [], ["four"], []])
    assert [block.page for block in document.blocks] == [1, 4]
    assert document.warnings == ("pages 2-3, 5 without text (3 of 5 pages)",)


def test_a_scan_is_refused_and_told(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([["x"], ["y"]], image_only=True))
    with pytest.raises(ReadError, match="without text on its 2 pages, which hold pictures: a scan; run OCR"):
        read_pdf(path, Limits())
    path.write_bytes(pdf([[]]))
    with pytest.raises(ReadError, match=r"a PDF without text on its 1 pages$"):
        read_pdf(path, Limits())


def test_encrypted_and_damaged_files(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([["secret"]], encrypted=True))
    with pytest.raises(ReadError, match="encrypted PDF that asks for a password"):
        read_pdf(path, Limits())
    for data in (b"%PDF-1.4\n", pdf([["x"]])[:200], b"%PDF-1.7" + bytes(range(256)) * 20):
        path.write_bytes(data)
        with pytest.raises(ReadError, match=r"damaged or cut-off PDF|without"):
            read_pdf(path, Limits())


def test_a_file_without_its_end_is_repaired(read):
    whole = pdf([["Page one"], ["Page two"]])
    document = read(whole[: whole.rindex(b"startxref")])  # PDFium finds the objects without their table
    assert document.text == "Page one\n\nPage two"


def test_outline_entries_are_headings(read):
    pages = [
        ["Contents"],
        ["1 Getting started", None, None, "Some words."],
        ["More words.", None, None, "1.1 Tools", None, None, "End."],
    ]
    document = read(pages, outline=[("Getting  started", 1), ("Tools", 2), ("Not on its page", 2)])
    path = paths(document)
    assert path["Contents"] == () and path["Some words."] == path["More words."] == ("Getting started",)
    assert path["End."] == ("Tools",)  # all entries of this writer are of one level
    assert ("heading", "1.1 Tools") in shown(document)


def test_characters_without_meaning_are_told():
    document = module._build(["word \ufffd\ufffd\ufffd"], {}, [], 0, None)
    assert "3 characters have no meaning" in document.warnings[0]


def test_damaged_pages_are_told():
    document = module._build(["one", "", "three"], {}, [2], 0, None)
    assert document.warnings == ("page 2 could not be read: damaged",)
    with pytest.raises(ReadError, match="none of which can be read"):
        module._build(["", ""], {}, [1, 2], 0, None)


def test_ligatures_become_letters():
    assert module._build(["of\ufb01ce \ufb02ow"], {}, [], 0, None).text == "office flow"


def test_the_text_of_a_page_is_bounded(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([["x" * 500]]))
    with pytest.raises(ReadError, match="the text of the PDF is larger than 100 bytes"):
        read_pdf(path, Limits(unpacked_bytes=100))


def test_page_ranges_stay_short():
    assert module._pages([3]) == "page 3"
    assert module._pages(list(range(1, 101, 2))).endswith("and 38 more ranges")
