"""Reading files: encodings, line ends, and a message for each kind of unusable input."""

import io
import os
import sys

import pytest

from runnel.errors import InputError, ReadError
from runnel.text.reading import read_text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_and_line_ends(tmp_path, encoding):
    text = "one\r\ntwo\rthree\n\nfour 😀 \x0c end"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    assert read_text(path) == text
    assert read_text(str(path)) == text


def test_a_named_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("café".encode("cp1252"))
    assert read_text(path, encoding="cp1252") == "café"
    path.write_bytes("café".encode("utf-16-le"))
    assert read_text(path, encoding="utf-16-le") == "café"
    with pytest.raises(InputError, match="unknown encoding 'utf-99'"):
        read_text(path, encoding="utf-99")


def test_empty_files_are_empty_texts(tmp_path):
    path = tmp_path / "a.txt"
    path.touch()
    assert read_text(path) == ""


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\r\nb é".encode())))
    assert read_text("-") == "a\r\nb é"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(ReadError, match="standard input is not valid utf-8"):
        read_text("-")


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(ReadError, match=r"no file .*nothing\.txt; check the path"):
        read_text(tmp_path / "nothing.txt")
    with pytest.raises(ReadError, match="is a directory; give the files in it"):
        read_text(tmp_path)
    with pytest.raises(ReadError, match="cannot be read"):
        read_text("a\0b")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_files(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(ReadError, match="no permission to read"):
        read_text(path)


def test_unreadable_files_by_the_error(monkeypatch):
    def refuse(_):
        raise PermissionError("denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(ReadError, match=r"no permission to read a\.txt"):
        read_text("a.txt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc\0def", "is binary \\(a NUL byte at offset 3\\)"),
        (b"\x89PN\x01\x02\x03\x04\x05\x06", "of its first bytes are control characters"),
        (b"%PDF-1.7 text", "is a PDF file"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"\x1f\x8brest", "is a gzip file"),
    ],
)
def test_binary_files(tmp_path, data, message):
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    with pytest.raises(ReadError, match=f"{message}.*expected plain text"):
        read_text(path)


def test_terminal_logs_are_text(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"\x1b[31mred\x1b[0m and a bell \x07 in many ordinary words of text\n" * 9)
    assert read_text(path).startswith("\x1b[31m")


def test_undecodable_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\nbad \xe9 byte")
    with pytest.raises(ReadError, match=r"not valid utf-8: byte 0xe9 at offset 14 \(line 2.*encoding='cp1252'"):
        read_text(path)
    path.write_bytes(b"\xff\xfea\0b")
    with pytest.raises(ReadError, match="not valid utf-16"):
        read_text(path)
