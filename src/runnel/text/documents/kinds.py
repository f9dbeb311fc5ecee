"""Recognize a file's kind by its first bytes, and by its name only if they leave a choice."""

from __future__ import annotations

import re
from pathlib import PurePath

from runnel.errors import ReadError
from runnel.text.lines import GZIP, ZSTD

PARSED_APART = ("html", "pdf", "docx", "epub")  # parsed by libraries that a hostile file may crash
ROWS = ("jsonl", "csv", "tsv")
HEAD_BYTES = 4096

_SUFFIXES = {
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # an empty archive
    (GZIP, "packed"),
    (ZSTD, "packed"),
)
# Unsupported kinds that users may try, and what to do about them.
_REFUSED = (
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an Office file from before 2007, or encrypted",
        "save it as docx without a password",
    ),
    (b"{\\rtf", "an RTF file", "save it as docx or txt"),
    (b"BZh", "compressed by bzip2", "unpack it first"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"\x89PNG", "an image", "read its text by OCR first"),
    (b"\xff\xd8\xff", "an image", "read its text by OCR first"),
    (b"%!PS", "a PostScript file", "make a PDF of it, for example with ps2pdf"),
    (b"AT&TFORM", "a DjVu file", "make a PDF of it, for example with ddjvu"),
)
_HTML = re.compile(rb"\s*+(?:<\?xml[^>]*+>\s*+)?(?><!--.*?-->\s*+)*+<(!doctype\s+html|html)[\s>]", re.IGNORECASE | re.DOTALL)


def recognize(head: bytes, name: str) -> str:
    """Return the kind of a file from its first `HEAD_BYTES`.

    The kind is one of `DocumentText.kind`, "zip" (docx, epub or another) or "packed" (gzip, zstd).

    Raises:
        ReadError: a kind that cannot be read; the message says what to do.
    """
    if head.lstrip(b"\0\t\n\r \xef\xbb\xbf").startswith(b"%PDF-"):
        return "pdf"
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    for magic, what, advice in _REFUSED:
        if head.startswith(magic):
            raise ReadError(f"{name} is {what}; {advice}")
    by_name = _SUFFIXES.get(PurePath(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower(), "txt")
    if _HTML.match(head.removeprefix(b"\xef\xbb\xbf").replace(b"\0", b"")) and by_name != "md":
        return "html"
    return by_name
