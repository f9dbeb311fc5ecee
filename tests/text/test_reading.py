"""Bytes as text and as lines: encodings, compressed files, and a message for each kind of unusable input."""

import gzip
import random
import re
import sys

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from runnel.commands.rows import read_rows
from runnel.errors import InputError, MissingDependency, ReadError, UnsupportedKind
from runnel.lab.training.data import read_corpus
from runnel.text.documents.reader import DocumentReader
from runnel.text.lines import find, read_head, read_json, read_lines
from runnel.text.reading import check_encoding, decode, open_bytes


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff")))
def test_utf8_is_never_taken_for_anything_else_and_other_encodings_have_marks(text):
    decoded = decode(text.encode(), "a.txt")
    assert (decoded.text, decoded.encoding, decoded.warning) == (text, "utf-8", None)
    text += "one\r\ntwo\rthree\n\nfour 😀 \x0c end"
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        decoded = decode(text.encode(encoding), "a.txt")
        assert (decoded.text, decoded.encoding, decoded.warning) == (text, encoding, None)


def test_a_named_encoding_and_guesses():
    assert decode("café".encode("cp1252"), "a", "cp1252").text == "café"
    for encoding in ("utf-16-le", "utf-16-be"):
        data = "Plain words, no mark.".encode(encoding)
        decoded = decode(data, "a")
        assert decoded.text == decode(data, "a", encoding).text == "Plain words, no mark." and encoding in decoded.warning
    decoded = decode(b"good line\nA na\xefve caf\xe9 \x96 it costs 3 \x80.", "a")
    assert decoded.text == "good line\nA naïve café – it costs 3 €."
    assert decoded.encoding == "cp1252" and "byte 0xef at offset 14, line 2" in decoded.warning


GUESS = r"a is not valid utf-8 \(byte 0x.*does not look like cp1252; give its encoding"


@pytest.mark.parametrize(
    ("data", "encoding", "error", "named"),
    [
        ("Сегодня в столице хорошая погода".encode("cp1251"), None, ReadError, GUESS),
        ("ずっと日本語の文です".encode("shift_jis"), None, ReadError, GUESS),
        (b"one \x81 byte, and", None, ReadError, GUESS),
        (b"caf\nspaa\xe9", "ascii", ReadError, r"a .*ascii.* 0xe9 at offset 8, line 2"),
        (b"\xff\xfea\0b", None, ReadError, "utf-16"),
        (b"abc\0def", None, UnsupportedKind, "a is binary"),
        (b"\x89PN\x01\x02\x03\x04\x05\x06", None, UnsupportedKind, "a is binary"),
    ],
)
def test_what_is_no_text_of_an_encoding_is_refused(data, encoding, error, named):
    with pytest.raises(error, match=named):
        decode(data, "a", encoding)


def test_markup_declares_its_encoding_and_a_false_or_odd_declaration_does_no_harm():
    for markup, encoding, words in (
        ('<meta charset="{}">', "shift_jis", "日本語"),
        ('<meta charset="{}">', "iso-2022-jp", "日本語"),  # in bytes of ASCII
        ("<meta http-equiv='Content-Type' content='text/html; charset={}'>", "koi8-r", "Привет всем"),
        ('<?xml version="1.0" encoding="{}"?>', "cp1251", "Привет всем"),
    ):
        data = (markup.format(encoding) + words).encode(encoding)
        assert decode(data, "a", markup=True).text.endswith(words)
    assert decode("<meta charset=cp1252>Привет".encode(), "a", markup=True).text.endswith("Привет")
    assert decode(b"<meta charset=latin1>\x80 5", "a", markup=True).text.endswith("€ 5")  # as browsers take it
    for name in ("rot13", "utf-16", "no-such", "zlib"):
        assert decode(f"<meta charset={name}>plain".encode(), "a", markup=True).text.endswith("plain")
    log = b"\x1b[31mred\x1b[0m and a bell \x07 in many ordinary words of text\n"  # of a terminal
    assert decode(log, "log.txt").text.startswith("\x1b[31m")


def test_files_that_cannot_be_opened_and_encodings_that_are_none(tmp_path, monkeypatch):
    for path in (tmp_path / "nothing.txt", tmp_path, "a\0b", "https://a.org/b"):
        with pytest.raises(ReadError, match=re.escape(str(path))):
            open_bytes(path)

    def refuse(*_):
        raise PermissionError("denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ReadError, match=r"permission .*a\.txt"):
        open_bytes("a.txt")
    for encoding in ("hex", "utf-99", "utf\0", ""):
        with pytest.raises(InputError, match="unknown encoding"):
            check_encoding(encoding)


COMPRESS = {".txt": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


@pytest.mark.parametrize("ending", COMPRESS)
def test_only_line_feeds_end_lines_also_of_files_compressed_in_several_parts(tmp_path, ending):
    data = "\ufeffone\u2028still one\x0cstill\rone\r\n\n  \nfour\n\x85five".encode()
    path = tmp_path / "data.jsonl"  # whatever the name
    path.write_bytes(COMPRESS[ending](data[:9]) + COMPRESS[ending](data[9:]))
    assert list(read_lines(path)) == [
        (f"{path}, line 1", "one\u2028still one\x0cstill\rone"),
        (f"{path}, line 4", "four"),
        (f"{path}, line 5", "\x85five"),
    ]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_cut_short_or_damaged_is_an_error(tmp_path, ending):
    path = tmp_path / f"data{ending}"
    data = COMPRESS[ending](b"".join(b"%d\n" % random.Random(i).getrandbits(64) for i in range(20_000)))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ReadError, match=r"data.* damaged .* after line \d+"):
        list(read_lines(path))
    path.write_bytes(data[:2000] + b"\xff" * 2000 + data[4000:])
    with pytest.raises(ReadError, match="is damaged or incomplete"):
        list(read_lines(path))


def test_what_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "latin").write_bytes(b"good\n" * 10_000 + b"caf\xe9\n")
    with pytest.raises(ReadError, match=r"latin is not UTF-8 .*0xe9.* after line \d+"):
        list(read_lines(tmp_path / "latin"))
    (tmp_path / "half").write_text('{"a": "\\ud83d\\ude00"}\n{"a": ["\\ud83d"]}')
    with pytest.raises(ReadError, match=r"half, line 2 .*U\+D83D"):
        list(read_json(tmp_path / "half"))
    (tmp_path / "data.zst").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match=r"data\.zst .*zstandard"):
        list(read_lines(tmp_path / "data.zst"))


# ---- whoever reads rows ------------------------------------------------------------------------------------------------


def indexed(path):
    with DocumentReader() as reader:
        return list(reader.read(path))


READERS = pytest.mark.parametrize(
    "read", [lambda path: read_rows(str(path)), indexed, read_corpus], ids=["embed", "index", "train"]
)


@READERS
@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("jsonl", '{"id": "a", "title": "T", "text": "x"}\r\n\n{"_id": 7, "text": "ü"}'),
        ("tsv", "a\tT x\n7\tü\n"),
        ("tsv", "a\thttps://a.org\tT\tx\n7\thttps://b.org\t\tü\n"),
        ("tsv", "id\ttitle\ttext\na\tT\tx\n7\t\tü\n"),
        ("tsv", "text\t_id\nT x\ta\nü\t7\n"),
        ("csv", 'id,title,text\na,T,x\n\n7,,"ü"\n'),
        ("csv", "_id;text\na;T x\n7;ü\n"),
    ],
)
def test_all_readers_read_rows_alike(tmp_path, read, ending, kind, content):
    path = tmp_path / f"rows.{kind}{ending.removeprefix('.txt')}"
    path.write_bytes(COMPRESS[ending](b"\xef\xbb\xbf" + content.encode()))
    assert [(row.id, row.text) for row in read(path)] == [("a", "T x"), ("7", "ü")]


@READERS
@pytest.mark.parametrize("ending", COMPRESS)
def test_all_readers_report_a_bad_row_and_a_file_that_is_cut_short_alike(tmp_path, read, ending):
    path = tmp_path / f"rows.jsonl{ending.removeprefix('.txt')}"
    good = b'{"id": "a", "text": "x"}\n'
    for line, message in (
        (b'{"id": 1', "rows.*, line 2: not valid JSON"),
        (b"[" * 100_000, "rows.*, line 2: not valid JSON"),
        (b"[1]", "rows.*, line 2: .*got list"),
        (b'{"id": "caf\xe9"}', "rows.* not UTF-8 .*0xe9"),
    ):
        path.write_bytes(COMPRESS[ending](good + line + b"\n"))
        with pytest.raises(ReadError, match=message):
            list(read(path))
    path.write_bytes(COMPRESS[ending](good * 9)[:-5])
    with pytest.raises(ReadError, match=r"rows\.jsonl.* (damaged|not valid JSON)"):
        list(read(path))


def test_the_head_of_a_file_and_the_first_that_exists(tmp_path):
    for ending, compress in COMPRESS.items():
        (tmp_path / f"data{ending}").write_bytes(compress(b"0123456789"))
        assert read_head(tmp_path / f"data{ending}", 3) == b"012"
    (tmp_path / "data.gz").write_bytes(COMPRESS[".gz"](b"0123456789")[:8])
    with pytest.raises(ReadError, match="damaged or incomplete"):
        read_head(tmp_path / "data.gz", 3)
    assert find(tmp_path, "a.jsonl", "data") == tmp_path / "data.gz" and find(tmp_path, "a.jsonl") is None
