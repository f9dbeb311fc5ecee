"""Text files and standard input as str. Offsets everywhere in runnel refer to the string returned here."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

from runnel.errors import InputError, ReadError

# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_FORMATS = ((b"%PDF-", "a PDF file"), (b"PK\x03\x04", "a zip archive (or docx, epub, xlsx)"), (b"\x1f\x8b", "a gzip file"))
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
_HEAD_BYTES = 1 << 16
_CONTROL_SHARE = 0.05


def read_text(path: str | Path, *, encoding: str | None = None) -> str:
    """Read a plain text file, or standard input for "-".

    Line ends are kept as they are. Without `encoding` the file is UTF-8, or UTF-16/UTF-32 where it starts with a byte order
    mark; the mark itself is dropped.

    Raises:
        ReadError: missing, a directory, not readable, binary, or not decodable; the message has the place and what to do.
        InputError: Python knows no such encoding.
    """
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError as error:
            raise InputError(f"unknown encoding {encoding!r}; expected a name such as 'utf-8', 'cp1252' or 'latin-1'") from error
    name = "standard input" if str(path) == "-" else str(path)
    data = _read_bytes(path, name)
    if encoding is None:
        encoding = next((coding for mark, coding in _MARKS if data.startswith(mark)), None)
    if encoding is None:
        _refuse_binary(data, name)
    return _decode(data, encoding or "utf-8", name)


def _read_bytes(path: str | Path, name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ReadError(f"no file {name}; check the path (relative paths start at {Path.cwd()})") from error
    except IsADirectoryError as error:
        raise ReadError(f"{name} is a directory; give the files in it, for example {Path(name) / '*.txt'}") from error
    except PermissionError as error:
        raise ReadError(f"no permission to read {name}; change its mode or run as its owner") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise ReadError(f"{name} cannot be read: {error}; check the path and the disk") from error


def _refuse_binary(data: bytes, name: str) -> None:
    advice = "expected plain text: convert it first, or give encoding= if it is text in another encoding"
    for magic, kind in _FORMATS:
        if data.startswith(magic):
            raise ReadError(f"{name} is {kind}; {advice}")
    at = data.find(0)
    if at >= 0:
        raise ReadError(f"{name} is binary (a NUL byte at offset {at}); {advice}")
    head = data[:_HEAD_BYTES]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > _CONTROL_SHARE * len(head):
        raise ReadError(f"{name} is binary ({controls / len(head):.0%} of its first bytes are control characters); {advice}")


def _decode(data: bytes, encoding: str, name: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        byte, line = data[error.start], data.count(b"\n", 0, error.start) + 1
        raise ReadError(
            f"{name} is not valid {encoding}: byte 0x{byte:02x} at offset {error.start} (line {line}, {error.reason}); "
            "give its encoding, for example encoding='cp1252' or encoding='latin-1'"
        ) from error
