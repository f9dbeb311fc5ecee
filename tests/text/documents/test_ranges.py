"""Parts of a document by characters, lines and pages; rows by id."""

import pytest

from runnel.errors import InputError
from runnel.text.documents.document import DocumentText, choose_row, read_plain, span_of
from runnel.text.reading import Decoded

TEXT = "one\ntwo\n\nfour\fpage two\n\fpage three"


def part(by, start, end, text=TEXT):
    first, stop = span_of(read_plain(Decoded(text, "utf-8")), "a.txt", by, start, end)
    return text[first:stop]


@pytest.mark.parametrize(
    ("by", "start", "end", "expected"),
    [
        ("character", 4, 7, "two"),
        ("character", 4, 4, ""),
        ("character", 4, None, TEXT[4:]),
        ("line", 2, 4, "two\n\nfour\fpage two\n"),
        ("line", None, 1, "one\n"),
        ("page", 2, 2, "page two\n\f"),
        ("page", 2, None, "page two\n\fpage three"),
    ],
)
def test_spans(by, start, end, expected):
    assert part(by, start, end) == expected


def test_lines_and_pages_tile_the_text():
    assert "".join(part("line", line, line) for line in range(1, 6)) == TEXT
    assert "".join(part("page", page, page) for page in range(1, 4)) == TEXT
    text = "one\f\fthree"
    assert [part("page", page, page, text) for page in (1, 2, 3)] == ["one\f\f", "", "three"]
    assert part("line", 1, 1, "") == part("character", 0, 0, "") == ""
    assert [part("line", line, line, "a\n") for line in (1, 2)] == ["a\n", ""]


@pytest.mark.parametrize(
    ("by", "start", "end", "count"),
    [("line", 0, 1, 5), ("line", 3, 2, 5), ("line", 6, None, 5), ("page", 4, 4, 3), ("character", -1, 2, len(TEXT))],
)
def test_ranges_outside(by, start, end, count):
    with pytest.raises(InputError, match=rf"a\.txt has {count} {by}s"):
        part(by, start, end)
    with pytest.raises(InputError, match=r"a\.txt has no pages"):
        part("page", 1, 1, "no form feed")


def test_rows():
    first, second, *_ = rows = [DocumentText("text", (), "jsonl", "", id=name) for name in "abcdef"]
    assert choose_row([first, second], "x.jsonl", "b") is second
    whole = read_plain(Decoded(TEXT, "utf-8"))
    assert choose_row([whole], "a.txt", None) is whole
    for documents, row, named in (
        ([whole], "b", "a.txt has no rows"),
        ([first, second], None, "2 rows; .*'a', 'b'$"),
        (rows, "x", "'x': 'a', 'b', 'c', 'd', 'e', ...$"),
        ([], None, "no rows"),
    ):
        with pytest.raises(InputError, match=named):
            choose_row(documents, "a.txt", row)
