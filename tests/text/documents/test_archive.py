"""Zip archives of all sorts: bombs, damage, and parts that no reader may trust."""

import io
import struct
import zipfile

import docx
import openpyxl
import pytest
from helpers.document_files import epub, odf, pptx, replace_in_zip, shape

from runnel.errors import ReadError
from runnel.text.documents.document import Limits
from runnel.text.documents.parts import Archive
from runnel.text.documents.reader import DocumentReader, read_document

ENTITY = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY e SYSTEM "file:///etc/passwd">]>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("zipped")
    document, book = docx.Document(), openpyxl.Workbook()
    document.add_paragraph("A sentence.")
    book.active.append(["A sentence."])
    document.save(folder / "a.docx")
    book.save(folder / "a.xlsx")
    pptx(folder / "a.pptx", [shape(["A sentence."])])
    odf(folder / "a.odt", "text", "<text:p>A sentence.</text:p>")
    epub(folder / "a.epub", ["<p>A sentence.</p>"])
    return folder


@pytest.fixture(scope="module")
def reader():
    with DocumentReader() as reader:
        yield reader


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.docx", "word/document.xml"),
        ("a.docx", "word/styles.xml"),
        ("a.docx", "_rels/.rels"),
        ("a.pptx", "ppt/presentation.xml"),
        ("a.pptx", "ppt/slides/slide1.xml"),
        ("a.xlsx", "xl/workbook.xml"),
        ("a.xlsx", "xl/worksheets/sheet1.xml"),
        ("a.odt", "content.xml"),
        ("a.epub", "META-INF/container.xml"),
        ("a.epub", "OEBPS/book.opf"),
    ],
)
def test_parts_with_entities_or_damage_are_refused(folder, tmp_path, reader, name, part):
    for change, reason in (
        (lambda xml: b"<?xml version='1.0'?>" + ENTITY + xml.partition(b"?>")[2], "declares XML entities"),
        (lambda xml: (ENTITY + b"<x/>").decode().encode("utf-16"), "declares XML entities"),
        (lambda xml: b"<?xml version='1.0' encoding='nonsense'?><x/>", "is damaged|not a complete"),
        (lambda xml: xml[: len(xml) - 20], "is damaged|not a complete"),
    ):
        replace_in_zip(folder / name, tmp_path / name, {part: change})
        with pytest.raises(ReadError, match=reason):
            list(reader.read(tmp_path / name))


def test_flipped_bytes_are_noticed(folder, tmp_path):
    data = bytearray((folder / "a.epub").read_bytes())
    at = data.index(b"chapter 0.xhtml") + 30
    data[at : at + 8] = bytes(8)
    (tmp_path / "b.epub").write_bytes(data)
    with pytest.raises(ReadError, match=r"its part .* is damaged"):
        read_document(tmp_path / "b.epub")


def test_bombs_are_refused_by_what_they_declare(tmp_path):
    bomb = tmp_path / "bomb.epub"
    epub(bomb, ["<p>x</p>"], more={f"zeros{i}": bytes(1 << 20) for i in range(8)})
    assert bomb.stat().st_size < 20_000
    with pytest.raises(ReadError, match="unpacked content has more than 4,194,304 bytes"):
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
        pytest.raises(ReadError, match=r"its part .* is damaged"),
    ):
        archive.read("big")


def test_many_entries_encryption_and_rare_packing_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20):
            archive.writestr(str(number), "")
    with pytest.raises(ReadError, match="the archive has more than 19 entries"):
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
    with pytest.raises(ReadError, match="is encrypted"):
        Archive(path, Limits())
