"""Rows of jsonl, csv and tsv as documents."""

import gzip

import pytest
from helpers.document_checks import check

from runnel.errors import InputError, ReadError, UnsupportedKind
from runnel.text.documents.document import Limits
from runnel.text.documents.reader import DocumentReader, read_document


@pytest.fixture
def rows(tmp_path):
    def read(name, content, limits=None, encoding=None):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with DocumentReader(limits, encoding=encoding) as reader:
            return [(row.id, row.text) for row in map(check, reader.read(path))]

    return read


def test_jsonl(rows, tmp_path):
    content = '\ufeff{"id": "a b", "text": "one\\r\\ntwo", "more": [1]}\n\n{"_id": 7, "title": "T", "text": "x"}\r\n{"text": ""}'
    assert rows("a.jsonl", content) == [("a b", "one\ntwo"), ("7", "T x"), ("3", "")]
    assert rows("a.ndjson", "") == []
    with pytest.raises(InputError, match=r"a\.jsonl contains rows"):
        read_document(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"body": "x"}', "row 1: .*'body'"),
        ('{"text": "x"}\n{"body": "x"}', "row 2: .*'body'"),
        ('{"text": 7}', "row 1: .*'text'"),
        (b'{"text": "x"}\n{"text": "\xe9"}', "not UTF-8"),
        ('{"text": "x"}\nbad', "line 2"),
        ('{"text": "' + "x" * 1000, "line 1 .*1,000 bytes"),
    ],
)
def test_bad_rows_are_named_after_those_before(rows, content, place, tmp_path):
    with pytest.raises(ReadError, match=rf"bad\.jsonl.*{place}"):
        rows("bad.jsonl", content, Limits(unpacked_bytes=1000))
    with DocumentReader() as reader, pytest.raises(ReadError):
        read = reader.read(tmp_path / "bad.jsonl")
        assert "\n" not in str(content) or next(read).text == "x"
        next(read)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('{"question": "q", "file": "a.txt", "text": "x"}', "a question"),
        ('{"query": "q", "document": "d", "evidence": []}', "a question"),
        ('{"query": "q", "positive": "d"}', "the keys 'query', 'positive'"),
    ],
)
def test_a_first_row_that_is_no_document_makes_the_file_another_kind(rows, row, what):
    with pytest.raises(UnsupportedKind, match=rf"a\.jsonl, row 1: .*{what}"):
        rows("a.jsonl", f'\n{row}\n{{"text": "x"}}')
    with pytest.raises(ReadError) as error:  # the file is one of documents
        rows("a.jsonl", '{"text": "x"}\n{"body": "x"}')
    assert not isinstance(error.value, UnsupportedKind)
    assert rows("b.jsonl", '{"question": "q", "text": "x"}') == [("1", "x")]


def test_csv(rows):
    content = 'id,title,text\n1,T,"a, ""b""\nc"\n\n2,,plain\n'
    assert rows("a.csv", content) == [("1", 'T a, "b"\nc'), ("2", "plain")]
    western = "id;text\nx;caf\xe9\n".encode("cp1252")
    assert rows("a.csv", western, encoding="cp1252") == [("x", "café")]
    for content, encoding, reason in (
        (western, None, " .*0xe9"),
        (western, "utf-16", " .*BOM"),
        ('{"text": "a"}', "punycode", " .*Invalid"),
        ("a,b\n1,2,3\n", None, ", line 2"),
        ('a,b\n1,"2"x\n', None, ", line 2"),
    ):
        with pytest.raises(ReadError, match=rf"a\.csv{reason}"):
            rows("a.csv", content, encoding=encoding)
    named = [("1", "name: ox\nsize: 3"), ("2", "name: ant\nsize: 1\nnote: small")]
    assert rows("a.csv", "name;size;note\nox;3;\nant;1;small\n") == named  # without a column "text"
    assert rows("a.csv", "") == [] and rows("a.csv", "only,names\n") == []
    assert rows("a.csv", "text\n" + "x" * 200_000) == [("1", "x" * 200_000)]  # longer than Python's limit


def test_tsv_with_and_without_names(rows):
    assert rows("a.tsv", "d1\tone\td2\n") == []  # three names, no row
    assert rows("a.tsv", "d1\tone text\nd2\ttwo \t tabs\n\n") == [("d1", "one text"), ("d2", "two \t tabs")]
    assert rows("a.tsv", "id\ttext\nd1\tone\n") == [("d1", "one")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_tables_are_read_in_the_encoding_of_their_byte_order_mark(tmp_path, encoding, pack):
    (tmp_path / "a.csv").write_bytes(pack("id\ttext\r\nx\tgrün 灯\r\n".encode(encoding)))  # Excel's "Unicode text"
    with DocumentReader() as reader:
        (row,) = map(check, reader.read(tmp_path / "a.csv"))
    assert (row.id, row.text, row.encoding) == ("x", "grün 灯", encoding.removesuffix("-sig"))


def test_rows_stream_out_of_gzip_and_files_of_any_size(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "row of text"}\n' * 20_000))
    (tmp_path / "a.jsonl").write_text('{"text": "row of text"}\n' * 20_000)
    small = Limits(file_bytes=1000, unpacked_bytes=1000)
    for name in ("a.jsonl.gz", "a.jsonl"):
        with DocumentReader(small) as reader:
            assert sum(1 for _ in reader.read(tmp_path / name)) == 20_000
