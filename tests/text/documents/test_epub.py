"""EPUB books, and zip archives of all sorts."""

import io
import struct
import zipfile

import pytest
from helpers.document_checks import check, paths, shown
from helpers.document_files import epub, replace_in_zip

from runnel.errors import ReadError
from runnel.text.documents.archive import Archive
from runnel.text.documents.document import Limits
from runnel.text.documents.epub import read_epub

CHAPTERS = [
    "<h1>One</h1><p>Caf&#233; text.</p>",
    "<h2>Inside one</h2><p>More.<br/>Lines.</p>",
    "<h1>Two</h1><nav>menu</nav><p>End.</p>",
]


def read(path, limits=None):
    limits = limits or Limits()
    with Archive(path, limits) as archive:
        return check(read_epub(archive, limits))


@pytest.fixture
def path(tmp_path):
    epub(tmp_path / "a.epub", CHAPTERS)
    return tmp_path / "a.epub"


def test_pages_in_reading_order(path):
    document = read(path)
    assert document.title == "A book" and document.warnings == ()
    assert [text for _, text in shown(document)] == ["One", "Café text.", "Inside one", "More.\nLines.", "Two", "End."]
    assert paths(document)["More.\nLines."] == ("One", "Inside one") and paths(document)["End."] == ("Two",)


def test_missing_pages_are_told_and_no_name_leaves_the_archive(tmp_path):
    (tmp_path / "secret.xhtml").write_text("<p>secret</p>")
    outside = [
        "../../secret.xhtml",
        str(tmp_path / "secret.xhtml"),
        "text/chapter%200.xhtml",
        "../../../etc/passwd",
        "file:///etc/passwd",
    ]
    epub(
        tmp_path / "a.epub",
        ["<p>fine</p>"],
        spine=outside,
        more={"../../secret.xhtml": "<p>reached by its name in the archive</p>"},
    )
    document = read(tmp_path / "a.epub")
    assert "secret" not in document.text and "root:" not in document.text
    assert document.text.endswith("fine")
    outside = f"'../secret.xhtml', {str(tmp_path / 'secret.xhtml')!r}, '../../etc/passwd' and 1 more"
    assert document.warnings == (f"pages are missing from the book (4): {outside}",)


@pytest.mark.parametrize("part", ["META-INF/container.xml", "OEBPS/book.opf"])
def test_damaged_books(path, tmp_path, part):
    for change, message in (
        (lambda xml: xml[:40], "is not valid XML"),
        (lambda xml: xml.replace(b"?>", b'?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>', 1), "declares XML entities"),
        (lambda xml: b"<?xml version='1.0' encoding='nonsense'?><x/>", "is not valid XML"),
    ):
        replace_in_zip(path, tmp_path / "b.epub", {part: change})
        with pytest.raises(ReadError, match=message):
            read(tmp_path / "b.epub")
    replace_in_zip(path, tmp_path / "b.epub", {"META-INF/container.xml": lambda xml: xml.replace(b"book.opf", b"none.opf")})
    with pytest.raises(ReadError, match=r"without its part 'OEBPS/none\.opf'"):
        read(tmp_path / "b.epub")


def test_protected_books_are_refused_but_encrypted_fonts_do_not_matter(tmp_path):
    def encryption(uri):
        return {"META-INF/encryption.xml": f'<e xmlns:c="x"><c:CipherReference URI="{uri}"/></e>'}

    epub(tmp_path / "a.epub", CHAPTERS, more=encryption("OEBPS/font.otf"))
    assert len(read(tmp_path / "a.epub").text) > 40
    epub(tmp_path / "a.epub", CHAPTERS, more=encryption("OEBPS/text/chapter%201.xhtml"))
    with pytest.raises(ReadError, match="copy protection"):
        read(tmp_path / "a.epub")


def test_references_to_nothing_are_told(path, tmp_path):
    replace_in_zip(
        path, tmp_path / "b.epub", {"OEBPS/book.opf": lambda xml: xml.replace(b'itemref idref="c1"', b'itemref idref="zz"')}
    )
    document = read(tmp_path / "b.epub")
    assert "'zz'" in document.warnings[0] and "Inside one" not in document.text


# ---- archives --------------------------------------------------------------------------------------------------------


def test_flipped_bytes_are_noticed(path):
    data = bytearray(path.read_bytes())
    at = data.index(b"chapter 0.xhtml") + 30
    data[at : at + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(ReadError, match="damaged in its part"):
        read(path)


def test_bombs_are_refused_by_what_they_declare(tmp_path):
    bomb = tmp_path / "bomb.epub"
    epub(bomb, ["<p>x</p>"], more={f"zeros{i}": bytes(1 << 20) for i in range(8)})
    assert bomb.stat().st_size < 20_000
    with pytest.raises(ReadError, match="unpacked content is larger than 4,194,304 bytes"):
        Archive(bomb, Limits(unpacked_bytes=4 << 20))


def test_a_false_declaration_yields_no_more_than_it_says(tmp_path):
    """A bomb that declares a size of 100: what is read ends there, and its checksum does not match."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(1 << 22))
    data = packed.getvalue().replace(struct.pack("<I", 1 << 22), struct.pack("<I", 100))
    (tmp_path / "a.zip").write_bytes(data)
    with (
        Archive(tmp_path / "a.zip", Limits(unpacked_bytes=1000)) as archive,
        pytest.raises(ReadError, match="damaged in its part"),
    ):
        archive.read("big")


def test_many_entries_encryption_and_rare_packing_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20):
            archive.writestr(str(number), "")
    with pytest.raises(ReadError, match="an archive of 20 files; expected at most 19"):
        Archive(path, Limits(entries=19))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x", "abc")
    with pytest.raises(ReadError, match="packed with method 14"):
        Archive(path, Limits())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "abc")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match="an encrypted archive"):
        Archive(path, Limits())
