"""Judgements and runs."""

import gzip

import pytest

from runnel.errors import InputError
from runnel.text.trec import read_qrels, read_run, read_scores


def write(path, *lines):
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))  # whatever the name
    return path


@pytest.mark.parametrize(
    "lines",
    [
        ["query-id\tcorpus-id\tscore", "q\ta\t2", "q\tb\t0", "r\ta\t1", "r\ta\t1"],
        ["q 0 a 2", "q 0 b 0", "r 0 a 1"],
        ["q\t0\ta\t2", "r\t0\ta\t1", "q\t0\tb\t0"],
    ],
)
def test_qrels_formats(tmp_path, lines):
    assert read_qrels(write(tmp_path / "qrels", *lines)) == {"q": {"a": 2, "b": 0}, "r": {"a": 1}}


@pytest.mark.parametrize(
    "line", ["q 0 b high", "q b", "q 0 b 99999999999", "q 0 b -1000001", "q 0 1 b 1", "q 0 a 0"]
)
def test_bad_qrels(tmp_path, line):
    with pytest.raises(InputError, match=r"qrels, line 3: "):
        read_qrels(write(tmp_path / "qrels", "query-id corpus-id score", "q 0 a 1", line))


@pytest.mark.parametrize(
    ("lines", "scores"),
    [
        (
            ["q Q0 c 3 1.0 x", "q Q0 b 1 9.5 x", "r Q0 b 1 -2 x", "q Q0 a 2 1.0 x"],
            [1.0, 9.5, -2.0, 1.0],
        ),
        (["q\tc\t3", "q\tb\t1", "r\tb\t1", "q\ta\t2"], [-3.0, -1.0, -1.0, -2.0]),
        (
            [
                "q\tb\tthe query\ttext",
                "q\ta\tthe query\ta",
                "r\tb\tother\ttext",
                "q\tc\tthe query\tc",
            ],
            [0.0, -1.0, 0.0, -2.0],
        ),
    ],
)
def test_formats_of_runs(tmp_path, lines, scores):
    path = write(tmp_path / "run", *lines)
    assert read_run(path) == {"q": ["b", "a", "c"], "r": ["b"]}
    assert read_run(path, 2) == {"q": ["b", "a"], "r": ["b"]}
    run = read_scores(path)
    assert sorted(score for row in run.values() for score in row.values()) == sorted(scores)
    assert {
        query: sorted(row, key=lambda name: (-row[name], name)) for query, row in run.items()
    } == read_run(path)


@pytest.mark.parametrize(
    "line", ["q Q0 a 1 high x", "q a", "q\ta\tfirst", "q Q0 a 1 1 x y", "q Q0 c 2 nan x"]
)
def test_bad_runs(tmp_path, line):
    path = write(tmp_path / "run", "q Q0 b 1 9.5 x", line)
    for read in (read_run, read_scores):
        with pytest.raises(InputError, match="run, line 2: "):
            read(path)
    with pytest.raises(InputError, match=r"run, line 2: document 'b' .*query 'q'"):
        read_scores(write(tmp_path / "run", "q Q0 b 1 9.5 x", "q Q0 b 2 3 x"))
