"""Read files and standard input as bytes, and decode bytes: detect their encoding."""

from __future__ import annotations

import codecs
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runnel.errors import InputError, ReadError, UnsupportedKind

# Longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_DECLARED = re.compile(rb"<(?:meta[^>]*?\scharset\s*=|\?xml[^>]*?\sencoding\s*=)\s*[\"']?\s*([A-Za-z0-9_:.-]+)", re.IGNORECASE)
_WEB_NAMES = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "ascii": "cp1252"}
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
_HEAD_BYTES = 1 << 16
_DECLARED_WITHIN = 4096
_CONTROL_SHARE = 0.05
_ACCENT_SHARE = 0.15  # of bytes above ASCII in Western European text; other scripts in old encodings have more


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, its original encoding, and a warning if that is a guess."""

    text: str
    encoding: str
    warning: str | None = None


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading; "-" is standard input."""
    name = str(path)
    try:
        return sys.stdin.buffer if name == "-" else open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        message = f"{name} cannot be read: {error}; check the path and the disk"
        if name.startswith(("http://", "https://")):
            message = f"{name} is an address; download it and give the file"
        elif isinstance(error, FileNotFoundError):
            message = f"no file {name}; check the path (relative paths start at {Path.cwd()})"
        elif isinstance(error, IsADirectoryError):
            message = f"{name} is a directory; give the files in it, for example {Path(name) / '*.txt'}"
        elif isinstance(error, PermissionError):
            message = f"no permission to read {name}; change its mode or run as its owner"
        raise ReadError(message) from error


def check_encoding(encoding: str | None) -> None:
    """Raise InputError if Python does not know the encoding, or knows it as something other than text, such as 'hex'."""
    error: Exception | None = None
    try:
        if encoding is None or codecs.lookup(encoding)._is_text_encoding:
            return
    except (LookupError, ValueError) as failure:  # ValueError: a NUL character in it
        error = failure
    raise InputError(f"unknown encoding {encoding!r}; expected a name such as 'utf-8', 'cp1252' or 'latin-1'") from error


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding of a byte order mark at the beginning of these bytes; None without a mark."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def decode(data: bytes, name: str, encoding: str | None = None, *, markup: bool = False) -> Decoded:
    """Decode a file's bytes.

    The encoding is `encoding`; else that of a byte order mark; else UTF-8 if the bytes are valid UTF-8; else the one declared
    in `markup` (html, xml); else UTF-16 without a mark if every second byte is NUL; else Windows' Western European encoding
    (cp1252), with a warning, if there are few bytes above ASCII. A byte order mark is dropped. Characters are never replaced.
    """
    known = encoding or marked_encoding(data)
    if known is None and markup:
        utf8 = None
        with suppress(UnicodeDecodeError):
            utf8 = data.decode()
        known = _declared(data) if utf8 is None or data.isascii() else None
    if known is not None:
        return Decoded(_decode(data, known, name), known)
    wide = _wide(data)
    if wide is not None:
        return Decoded(_decode(data, wide, name), wide, f"taken for {wide} text without a byte order mark")
    at, head = data.find(0), data[:_HEAD_BYTES]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if at >= 0 or controls > _CONTROL_SHARE * len(head):
        sign = f"NUL at byte {at}" if at >= 0 else f"{controls / len(head):.0%} of its first bytes are control characters"
        raise UnsupportedKind(f"{name} is binary ({sign}); expected text, or a document of a kind in docs/documents.md")
    try:
        return Decoded(data.decode(), "utf-8")
    except UnicodeDecodeError as error:
        return _guess(data, name, error)


def _declared(data: bytes) -> str | None:
    match = _DECLARED.search(data[:_DECLARED_WITHIN])
    if match is None:
        return None
    declared = match[1].decode().lower()
    declared = _WEB_NAMES.get(declared, declared)  # as browsers do
    try:
        codec = codecs.lookup(declared)
    except LookupError:
        return None
    # Text with an ASCII declaration cannot be UTF-16; and some of Python's codecs yield no text.
    return declared if codec._is_text_encoding and not declared.startswith(("utf-16", "utf-32")) else None


def _wide(data: bytes) -> str | None:
    head = data[:_HEAD_BYTES]
    nuls = [head[side::2].count(0) / max(1, len(head[side::2])) for side in (0, 1)]
    if len(data) % 2 or min(nuls) > 0.01 or max(nuls) < 0.4:
        return None
    return "utf-16-be" if nuls[0] > nuls[1] else "utf-16-le"


def _guess(data: bytes, name: str, error: UnicodeDecodeError) -> Decoded:
    if len(data.translate(None, bytes(range(128)))) <= _ACCENT_SHARE * len(data):
        with suppress(UnicodeDecodeError):
            problem = f"not valid utf-8 ({_place(data, error)}), read as cp1252; if that is wrong, give its encoding"
            return Decoded(data.decode("cp1252"), "cp1252", problem)
    return Decoded(_decode(data, "utf-8", name, ", and does not look like cp1252"), "utf-8")  # raises the error again


def _decode(data: bytes, encoding: str, name: str, more: str = "") -> str:
    try:
        return data.decode(encoding)
    except (UnicodeError, ValueError) as error:  # some codecs raise their own errors
        place = f"{_place(data, error)}, {error.reason}" if isinstance(error, UnicodeDecodeError) else error
        advice = "give its encoding, for example --encoding cp1251 or encoding='shift_jis'"
        raise ReadError(f"{name} is not valid {encoding} ({place}){more}; {advice}") from error


def _place(data: bytes, error: UnicodeDecodeError) -> str:
    line = data.count(b"\n", 0, error.start) + 1
    return f"byte 0x{data[error.start]:02x} at offset {error.start}, line {line}"
