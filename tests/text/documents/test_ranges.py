"""Parts of a document by characters, lines and pages; rows by id."""

import pytest

from runnel.errors import InputError
from runnel.text.documents.document import DocumentText, read_plain
from runnel.text.documents.ranges import choose_row, span_of
from runnel.text.reading import Decoded

TEXT = "one\ntwo\n\nfour\fpage two\n\fpage three"


def document(text=TEXT):
    return read_plain(Decoded(text, "utf-8"))


def part(by, start, end, text=TEXT):
    first, stop = span_of(document(text), "a.txt", by, start, end)
    return text[first:stop]


@pytest.mark.parametrize(
    ("by", "start", "end", "expected"),
    [
        ("character", None, None, TEXT),
        ("character", 4, 7, "two"),
        ("character", 4, 4, ""),
        ("character", 4, None, TEXT[4:]),
        ("character", len(TEXT), None, ""),
        ("line", 1, 1, "one\n"),
        ("line", 2, 4, "two\n\nfour\fpage two\n"),
        ("line", 5, 5, "\fpage three"),
        ("line", None, 1, "one\n"),
        ("line", None, None, TEXT),
        ("page", 1, 1, "one\ntwo\n\nfour\f"),
        ("page", 2, 2, "page two\n\f"),
        ("page", 2, None, "page two\n\fpage three"),
    ],
)
def test_spans(by, start, end, expected):
    assert part(by, start, end) == expected


def test_lines_and_pages_tile_the_text():
    assert "".join(part("line", line, line) for line in range(1, 6)) == TEXT
    assert "".join(part("page", page, page) for page in range(1, 4)) == TEXT


def test_a_page_without_text_and_texts_without_lines():
    text = "one\f\fthree"
    assert [part("page", page, page, text) for page in (1, 2, 3)] == ["one\f\f", "", "three"]
    assert part("line", 1, 1, "") == part("character", 0, 0, "") == ""
    assert [part("line", line, line, "a\n") for line in (1, 2)] == ["a\n", ""]


@pytest.mark.parametrize(
    ("by", "start", "end", "message"),
    [
        ("line", 0, 1, "lines 0 to 1 are outside of a.txt, which has lines 1 to 5"),
        ("line", 3, 2, "lines 3 to 2 are outside of a.txt"),
        ("line", 6, None, "lines 6 to 5 are outside of a.txt, which has lines 1 to 5"),
        ("page", 4, 4, "pages 4 to 4 are outside of a.txt, which has pages 1 to 3"),
        ("character", 0, len(TEXT) + 1, f"which has characters 0 to {len(TEXT)}"),
        ("character", -1, 2, "characters -1 to 2 are outside"),
    ],
)
def test_ranges_outside(by, start, end, message):
    with pytest.raises(InputError, match=message):
        part(by, start, end)


def test_no_pages():
    with pytest.raises(InputError, match=r"a.txt has no pages; read it by line or character"):
        part("page", 1, 1, "no form feed")


def rows(*ids):
    return [DocumentText("text", (), "jsonl", "", id=name) for name in ids]


def test_rows():
    one, two = rows("a", "b")
    assert choose_row([one, two], "x.jsonl", "b") is two
    whole = document()
    assert choose_row([whole], "a.txt", None) is whole
    with pytest.raises(InputError, match=r"a.txt has no rows; omit the row"):
        choose_row([whole], "a.txt", "b")
    with pytest.raises(InputError, match=r"x.jsonl has 2 rows; name one of them by its id: 'a', 'b'$"):
        choose_row([one, two], "x.jsonl", None)
    with pytest.raises(InputError, match=r"has 6 rows; none has the id 'x': 'a', 'b', 'c', 'd', 'e', \.\.\.$"):
        choose_row(rows(*"abcdef"), "x.jsonl", "x")
    with pytest.raises(InputError, match=r"has 0 rows; name one of them by its id: none"):
        choose_row([], "x.jsonl", None)
