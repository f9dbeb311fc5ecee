"""Judgements and runs."""

import gzip

import pytest

from runnel.errors import InputError, ReadError
from runnel.text.trec import read_qrels, read_run, read_scores


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "lines",
    [
        ["query-id\tcorpus-id\tscore", "q\ta\t2", "q\tb\t0", "r\ta\t1", "r\ta\t1"],
        ["q 0 a 2", "q 0 b 0", "r 0 a 1"],
        ["q\t0\ta\t2", "r\t0\ta\t1", "q\t0\tb\t0"],
    ],
    ids=["beir", "trec", "ms marco"],
)
def test_qrels_formats(tmp_path, lines):
    assert read_qrels(write(tmp_path / "qrels", *lines)) == {"q": {"a": 2, "b": 0}, "r": {"a": 1}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q 0 b high", "line 3: expected query, document, grade"),
        ("q b", "line 3: expected query, document, grade"),
        ("q 0 b 99999999999", "line 3: expected .*99999999999"),
        ("q 0 b -1000001", "line 3: expected .*-1000001"),
        ("q 0 1 b 1", "line 3: expected query, document, grade"),
        ("q 0 a 0", "line 3: document 'a' is judged 0 for query 'q', but 1 on an earlier line; keep one"),
    ],
)
def test_bad_qrels(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_qrels(write(tmp_path / "qrels", "query-id corpus-id score", "q 0 a 1", line))


@pytest.mark.parametrize(
    "lines",
    [
        ["q Q0 c 3 1.0 x", "q Q0 b 1 9.5 x", "r Q0 b 1 -2 x", "q Q0 a 2 1.0 x"],
        ["q\tb\t1", "r\tb\t1", "q\tc\t3", "q\ta\t2"],
        ["q\tb\tthe query\ttext of b", "r\tb\tother\ttext of b", "q\ta\tthe query\ta", "q\tc\tthe query\tc"],
    ],
    ids=["trec", "ms marco", "top 1000"],
)
def test_run_formats(tmp_path, lines):
    path = write(tmp_path / "run", *lines)
    assert read_run(path) == {"q": ["b", "a", "c"], "r": ["b"]}
    assert read_run(path, 2) == {"q": ["b", "a"], "r": ["b"]}


@pytest.mark.parametrize("line", ["q Q0 a 1 high x", "q a", "q\ta\tfirst", "q Q0 a 1 1 x y"])
def test_bad_run(tmp_path, line):
    with pytest.raises(InputError, match=r"run, line 2: expected a line of a TREC run"):
        read_run(write(tmp_path / "run", "q Q0 b 1 9.5 x", line))


@pytest.mark.parametrize(("content", "ranked"), [(b"", {}), (b"q Q0 a 1 1 x\n", {"q": ["a"]})])
def test_compressed_runs_and_empty_ones(tmp_path, content, ranked):
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress(content))
    assert read_run(path) == ranked
    with pytest.raises(ReadError, match=r"no file .*nothing"):
        read_qrels(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("lines", "scores"),
    [
        (["q Q0 c 3 1.0 x", "q Q0 b 1 9.5 x", "r Q0 b 1 -2 x"], {"q": {"c": 1.0, "b": 9.5}, "r": {"b": -2.0}}),
        (["q\tb\t1", "q\tc\t3"], {"q": {"b": -1.0, "c": -3.0}}),
        (["q\tb\tthe query\ttext", "q\ta\tthe query\ta"], {"q": {"b": 0.0, "a": -1.0}}),
    ],
    ids=["trec", "ms marco", "top 1000"],
)
def test_scores_of_a_run(tmp_path, lines, scores):
    assert read_scores(write(tmp_path / "run", *lines)) == scores


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 b 2 3 x", "run, line 2: document 'b' is listed twice for query 'q'; expected each document once"),
        ("q Q0 c 2 nan x", "run, line 2: expected a line of a TREC run"),
    ],
)
def test_bad_scores(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_scores(write(tmp_path / "run", "q Q0 b 1 9.5 x", line))
