"""Recognizing files by content before name."""

import sys
import zipfile
from types import SimpleNamespace

import pytest

from runnel.errors import ReadError
from runnel.formats import FORMATS, Format
from runnel.text.documents import worker
from runnel.text.documents.document import Canonical, Limits, recognize
from runnel.text.documents.reader import read_document


@pytest.mark.parametrize(
    ("head", "name", "kind"),
    [
        (b"%PDF-1.7\n", "a.txt", "pdf"),
        (b"\xef\xbb\xbf\n %PDF-1.4", "a", "pdf"),
        (b"About %PDF- headers", "a.txt", "txt"),
        (b"PK\x03\x04", "a.pdf", "zip"),
        (b"\x28\xb5\x2f\xfd", "a.md", "packed"),
        (b"<!DOCTYPE html>", "a.txt", "html"),
        (b"\xef\xbb\xbf <!-- saved --> <HTML lang=en>", "page", "html"),
        (b'<?xml version="1.0"?>\n<html xmlns="x">', "a.xml", "html"),
        ("<html>".encode("utf-16-le"), "a", "html"),
        (b"<html> in markdown", "a.md", "md"),
        (b"<htmlish>", "a", "txt"),
        (b"<p>", "a.HTM", "html"),
        (b"", "a.markdown", "md"),
        (b"", "a.jsonl.gz", "jsonl"),
        (b"{}", "a.ndjson.zst", "jsonl"),
        (b"", "a.docx", "txt"),
        (b"import x", "a.py", "code"),
    ],
)
def test_kinds(head, name, kind):
    assert recognize(head, name) == kind


@pytest.mark.parametrize(
    ("head", "message"), [(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Office"), (b"{\\rtf1", "RTF"), (b"\x89PNG", "image")]
)
def test_what_cannot_be_read_is_named(head, message):
    with pytest.raises(ReadError, match=f"a.x is .*{message}"):
        recognize(head, "a.x")


def test_a_kind_is_a_reader_and_a_line_of_the_table(tmp_path, monkeypatch):
    def read_log(decoded):
        return Canonical().finish("log", text=decoded.text)

    def read_box(archive, limits):
        return Canonical().finish("box", text=archive.read("box.xml").decode())

    monkeypatch.setitem(sys.modules, "runnel.text.documents.new", SimpleNamespace(read_log=read_log, read_box=read_box))
    monkeypatch.setitem(FORMATS, "log", Format("new:read_log", "text", ".log"))
    monkeypatch.setitem(FORMATS, "box", Format("new:read_box", "archive", ".box", parts=("box.xml",)))
    (tmp_path / "a.log").write_text("words")
    document = read_document(tmp_path / "a.log")
    assert (document.kind, document.text) == ("log", "words")
    with zipfile.ZipFile(tmp_path / "a.box", "w") as archive:
        archive.writestr("box.xml", "more words")
    read = worker._parse(str(tmp_path / "a.box"), Limits(), {"kind": "zip"})
    assert (read.kind, read.text) == ("box", "more words")
