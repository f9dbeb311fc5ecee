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


PARTS = {
    "a.docx": "word/document.xml word/styles.xml _rels/.rels", "a.pptx": "ppt/presentation.xml ppt/slides/slide1.xml",
    "a.xlsx": "xl/workbook.xml xl/worksheets/sheet1.xml", "a.odt": "content.xml",
    "a.epub": "META-INF/container.xml OEBPS/book.opf",
}  # fmt: skip


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in PARTS.items() for part in parts.split()])
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


def test_bombs_many_entries_encryption_and_rare_packing_are_refused(tmp_path):
    def refused(reason, **limits):
        with pytest.raises(ReadError, match=reason):
            Archive(tmp_path / "a.zip", Limits(**limits))

    epub(tmp_path / "a.zip", ["<p>x</p>"], more={f"zeros{i}": bytes(1 << 20) for i in range(8)})
    assert (tmp_path / "a.zip").stat().st_size < 20_000
    refused("unpacked content has more than 4,194,304 bytes", unpacked_bytes=4 << 20)
    epub(tmp_path / "a.zip", [], more={str(number): "" for number in range(17)})
    refused("the archive has more than 19 entries", entries=19)
    for packing in (zipfile.ZIP_LZMA, zipfile.ZIP_STORED):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", packing) as archive:
            archive.writestr("x", "abc")
        if packing:
            refused("packed with method 14")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    refused("is encrypted")
