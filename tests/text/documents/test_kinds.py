"""Recognizing files by content before name."""

import pytest

from runnel.errors import ReadError
from runnel.text.documents.document import recognize


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
