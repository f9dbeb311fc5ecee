"""Bytes as lines, also compressed, and as rows, and a message for each kind of unusable input."""

import gzip
import random
import sys

import pytest
import zstandard

from runnel.errors import MissingDependency, ReadError
from runnel.jobs.rows import read_rows
from runnel.lab.training.corpus import read_corpus
from runnel.text.documents.reader import DocumentReader
from runnel.text.lines import find, read_head, read_json, read_lines

COMPRESS = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


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
    data = COMPRESS[ending](
        b"".join(b"%d\n" % random.Random(i).getrandbits(64) for i in range(20_000))
    )
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


# ---- whoever reads rows --------------------------------------------------------------------------


def indexed(path):
    with DocumentReader() as reader:
        return list(reader.read(path))


READERS = pytest.mark.parametrize(
    "read",
    [lambda path: read_rows(str(path)), indexed, read_corpus],
    ids=["embed", "index", "train"],
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
    assert (
        find(tmp_path, "a.jsonl", "data") == tmp_path / "data.gz"
        and find(tmp_path, "a.jsonl") is None
    )
