"""Plain and compressed files, line by line."""

import gzip
import sys

import pytest

from runnel.errors import InputError, MissingDependency, ReadError
from runnel.training.lines import find, open_text, read_json, read_lines

zstandard = pytest.importorskip("zstandard")
COMPRESS = {".txt": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


@pytest.mark.parametrize("ending", COMPRESS)
def test_only_line_feeds_end_lines(tmp_path, ending):
    text = "\ufeffone\u2028still one\x0cstill\rone\r\n\n  \nfour\n\x85five"
    path = tmp_path / f"data{ending}"
    path.write_bytes(COMPRESS[ending](text.encode()))
    assert list(read_lines(path)) == [
        (f"{path}, line 1", "one\u2028still one\x0cstill\rone"),
        (f"{path}, line 4", "four"),
        (f"{path}, line 5", "\x85five"),
    ]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_by_content_whatever_the_name_and_in_several_parts(tmp_path, ending):
    path = tmp_path / "data.jsonl"
    path.write_bytes(COMPRESS[ending](b'{"a": 1}\n{"a"') + COMPRESS[ending](b": 2}\n"))
    assert [row for _, row in read_json(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_cut_short_or_damaged_is_an_error(tmp_path, ending):
    import random

    path = tmp_path / f"data{ending}"
    data = COMPRESS[ending](b"".join(b"%d\n" % random.Random(i).getrandbits(64) for i in range(20_000)))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ReadError, match=r"data.* is damaged or incomplete .*\(after line \d+\)"):
        list(read_lines(path))
    path.write_bytes(data[:2000] + b"\xff" * 2000 + data[4000:])
    with pytest.raises(ReadError, match="is damaged or incomplete"):
        list(read_lines(path))


def test_zstd_needs_a_package(tmp_path, monkeypatch):
    path = tmp_path / "data.zst"
    path.write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match=r"pip install 'runnel\[train\]'"), open_text(path):
        pass


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ReadError, match=r"no file .*nothing.txt; check the path"):
        list(read_lines(tmp_path / "nothing.txt"))
    with pytest.raises(ReadError, match="is a directory"):
        list(read_lines(tmp_path))
    (tmp_path / "latin").write_bytes(b"good\n" * 10_000 + b"caf\xe9\n")
    with pytest.raises(ReadError, match=r"not UTF-8 .*0xe9\); convert it \(after line \d+\)"):
        list(read_lines(tmp_path / "latin"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"rows.jsonl, line 2: not valid JSON"),
        ("[1]", r"rows.jsonl, line 2: expected an object in braces, got list"),
        (r'{"a": ["\ud83d"]}', r"rows.jsonl, line 2: half of a surrogate pair"),
    ],
)
def test_bad_json(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "\\ud83d\\ude00"}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        list(read_json(path))


def test_find(tmp_path):
    (tmp_path / "b.tsv.gz").touch()
    assert find(tmp_path, "a.jsonl", "b.tsv") == tmp_path / "b.tsv.gz"
    assert find(tmp_path, "a.jsonl") is None


def test_json_that_is_too_deep_is_named(tmp_path):
    (tmp_path / "deep.jsonl").write_text('{"a": 1}\n' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"deep.jsonl, line 2: not valid JSON \(maximum recursion depth exceeded"):
        list(read_json(tmp_path / "deep.jsonl"))
