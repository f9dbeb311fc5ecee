"""Bytes as text: encodings, and a message for each kind of unusable input."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.errors import InputError, ReadError, UnsupportedKind
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
