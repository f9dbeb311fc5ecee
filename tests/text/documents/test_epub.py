"""EPUB books."""

from functools import partial
from operator import methodcaller

import pytest
from helpers.document_checks import paths, read_zip, shown
from helpers.document_files import epub, replace_in_zip

from runnel.errors import ReadError
from runnel.text.documents.epub import read_epub

CHAPTERS = [
    "<h1>One</h1><p>Caf&#233; text.</p>",
    "<h2>Inside one</h2><p>More.<br/>Lines.</p>",
    "<h1>Two</h1><nav>menu</nav><p>End.</p>",
]
read = partial(read_zip, read_epub)


@pytest.fixture
def path(tmp_path):
    epub(tmp_path / "a.epub", CHAPTERS)
    return tmp_path / "a.epub"


def test_pages_in_reading_order_once(path, tmp_path):
    document = read(path)
    assert document.title == "A book" and document.warnings == ()
    assert [text for _, text in shown(document)] == ["One", "Café text.", "Inside one", "More.\nLines.", "Two", "End."]
    chapters = ["text/chapter%200.xhtml", "text/chapter%200.xhtml#part", "text/chapter%201.xhtml", "text/./chapter%200.xhtml"]
    epub(tmp_path / "b.epub", CHAPTERS, spine=chapters)  # an entry for each section
    assert shown(read(tmp_path / "b.epub")) == shown(document)[:4]
    assert paths(document)["More.\nLines."] == ("One", "Inside one") and paths(document)["End."] == ("Two",)


def test_missing_pages_are_told_and_no_name_leaves_the_archive(tmp_path):
    (tmp_path / "secret.xhtml").write_text("<p>secret</p>")
    named = str(tmp_path / "secret.xhtml")
    outside = ["../../secret.xhtml", named, "text/chapter%200.xhtml", "../../../etc/passwd", "file:///etc/passwd"]
    more = {"../../secret.xhtml": "<p>reached by its name in the archive</p>"}
    epub(tmp_path / "a.epub", ["<p>fine</p>"], spine=outside, more=more)
    document = read(tmp_path / "a.epub")
    assert "secret" not in document.text and "root:" not in document.text
    assert document.text.endswith("fine")
    (warning,) = document.warnings
    assert "(4): " in warning and named in warning and warning.endswith(" and 1 more")


def test_references_to_nothing(path, tmp_path):
    replace_in_zip(
        path, tmp_path / "b.epub", {"OEBPS/book.opf": methodcaller("replace", b'itemref idref="c1"', b'itemref idref="zz"')}
    )
    document = read(tmp_path / "b.epub")
    assert "'zz'" in document.warnings[0] and "Inside one" not in document.text
    replace_in_zip(path, tmp_path / "b.epub", {"META-INF/container.xml": lambda xml: xml.replace(b"book.opf", b"none.opf")})
    with pytest.raises(ReadError, match=r"its part 'OEBPS/none\.opf' is damaged"):
        read(tmp_path / "b.epub")


def test_protected_books_are_refused_but_encrypted_fonts_do_not_matter(tmp_path):
    def encryption(uri):
        return {"META-INF/encryption.xml": f'<e xmlns:c="x"><c:CipherReference URI="{uri}"/></e>'}

    epub(tmp_path / "a.epub", CHAPTERS, more=encryption("OEBPS/font.otf"))
    assert len(read(tmp_path / "a.epub").text) > 40
    epub(tmp_path / "a.epub", CHAPTERS, more=encryption("OEBPS/text/chapter%201.xhtml"))
    with pytest.raises(ReadError, match="copy protection"):
        read(tmp_path / "a.epub")
