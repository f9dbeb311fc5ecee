"""Training examples from every format; what is dropped, what is an error."""

import json
import logging
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.errors import InputError, ReadError
from runnel.training.data import Dropped, Evidence, Triple, read_evidence, read_triples
from runnel.training.decontaminate import Decontaminator
from runnel.training.generator import read_exchanges


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return path


def kept(path, *arguments, **options):
    """The triples without ids, and what was dropped."""
    dropped = Dropped()
    triples = list(read_triples(path, *arguments, dropped=dropped, **options))
    assert dropped.kept == len(triples)
    return [(t.query, t.positives, t.negatives) for t in triples], dict(dropped.counts)


@pytest.fixture
def beir(tmp_path):
    """Documents a to d and "e" without text; queries q, r, s."""
    write(tmp_path / "corpus.jsonl", *({"_id": name, "title": name.upper(), "text": f"text {name}"} for name in "abcd"))
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "e", "text": " "}\n')
    write(tmp_path / "queries.jsonl", *({"_id": name, "text": f"query {name}"} for name in "qrs"))
    write(tmp_path / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", "q\ta\t1", "q\tb\t0", "r\tc\t2", "q\td\t1")
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "s\ta\t1")
    return tmp_path


A, B, C, D = (f"{name.upper()} text {name}" for name in "abcd")
TRAIN = [("query q", (A, D), (B,)), ("query r", (C,), ())]


# ---- formats -----------------------------------------------------------------------------------------------------------


def test_beir(beir):
    assert kept(beir) == (TRAIN, {})
    assert [t.id for t in read_triples(beir)] == ["q", "r"]
    assert kept(beir / "qrels" / "test.tsv") == ([("query s", (A,), ())], {})


def test_rows_of_mine(tmp_path):
    rows = [{"query": "q", "pos": ["a", "b", "a"], "neg": ["c"], "prompt": "p: "}, {"query": "r", "pos": ["d"], "id": 5}]
    path = write(tmp_path / "x.jsonl", *rows)
    assert list(read_triples(path)) == [Triple("q", ("a", "b"), ("c",), instruction="p: "), Triple("r", ("d",), (), "5")]
    both = write(tmp_path / "both.jsonl", {**rows[0], "instruction": "i"})
    with pytest.raises(InputError, match="line 1: 'prompt' and 'instruction'"):
        list(read_triples(both))


def test_parquet(tmp_path):
    rows = [{"query": "q", "positive": ["a"], "negative": ["b", "c"]}, {"query": "r", "positive": ["d"], "negative": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert list(read_triples(tmp_path / "x.parquet")) == [Triple("q", ("a",), ("b", "c")), Triple("r", ("d",))]
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-9])
    with pytest.raises(ReadError, match=r"x\.parquet"):
        list(read_triples(tmp_path / "x.parquet"))
    pq.write_table(pa.Table.from_pylist([{"query": "q", "positive": None}]), tmp_path / "null.parquet")
    with pytest.raises(InputError, match=r"null\.parquet, row 1: .*positive"):
        list(read_triples(tmp_path / "null.parquet"))


@pytest.mark.parametrize(
    ("lines", "triples"),
    [
        (["query;positive", "q, r;a"], [("q, r", ("a",), ())]),
        (["query,positive", "q,a", '"r, s","b\nc ""d"""'], [("q", ("a",), ()), ("r, s", ('b\nc "d"',), ())]),
        (["Anchor,Positive,Negative", "q,a,b"], [("q", ("a",), ("b",))]),
        (["query\tpositive\tnegative_1\tnegative_2", "q\ta\tb\tc"], [("q", ("a",), ("b", "c"))]),
        ([{"positive": "a", "anchor": "q"}, {"anchor": "r", "positive": "b"}], [("q", ("a",), ()), ("r", ("b",), ())]),
        ([{"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}], [("q", ("a",), ("b", "c"))]),
        ([{"query": "q", "positives": ["a", "b"], "negatives": ["c"]}], [("q", ("a", "b"), ("c",))]),
        ([{"query": "q", "docs": ["a", "b", "c"], "labels": [1, 0, 0.5]}], [("q", ("a", "c"), ("b",))]),
        (
            [{"id": "1", "pid": "1_0", "input": "a long report", "output": "its summary"}],
            [("its summary", ("a long report",), ())],
        ),
    ],
)
def test_columns_by_name(tmp_path, lines, triples):
    assert kept(write(tmp_path / "data", *lines)) == (triples, {})


def test_evidence(tmp_path):
    rows = [
        {"id": "1", "question": "q", "document": "a 🜨 c", "evidence": [[0, 1], [2, 3]], "answers": ["x"]},
        {"query": "r", "document": "d", "evidence": [[0, 1]]},
        {"query": "s", "document": "abc", "evidence": [[0, 1]], "units": [[0, 2], [2, 3]]},
    ]
    assert list(read_evidence(write(tmp_path / "e.jsonl", *rows))) == [
        Evidence("q", "a 🜨 c", ((0, 1), (2, 3)), "1"),
        Evidence("r", "d", ((0, 1),)),
        Evidence("s", "abc", ((0, 1),), units=((0, 2), (2, 3))),
    ]


# ---- what cannot be used -----------------------------------------------------------------------------------------------


def test_empty_texts_are_dropped_and_counted(tmp_path, caplog):
    path = write(
        tmp_path / "x.jsonl",
        {"query": " ", "pos": ["a"], "neg": ["b"]},
        {"query": "q", "pos": ["", "\u3000"], "neg": ["b"]},
        {"query": "q", "pos": ["a", "\n"], "neg": ["b", ""]},
        {"query": "q", "pos": ["a"], "neg": [""]},
        {"query": "q", "pos": [], "neg": ["b"]},
    )
    triples, dropped = kept(path)
    assert triples == [("q", ("a",), ("b",))] and caplog.messages == []
    assert dropped == {
        "examples with an empty query": 1,
        "empty positive texts": 3,
        "examples without a positive": 2,
        "empty negative texts": 2,
        "examples without any of their negatives": 1,
    }
    assert len(list(read_triples(path))) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert f"1 example kept, left out: 3 empty positive texts (first: {path}, line 2); " in caplog.text


def test_queries_without_a_positive_are_dropped_and_counted(beir):
    write(beir / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", "q\ta\t0", "r\te\t1", "s\tb\t1", "s\te\t1")
    triples, dropped = kept(beir)
    assert triples == [("query s", (B,), ())]
    assert dropped == {"examples without a positive": 2, "empty positive texts": 2}


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("x.jsonl", [{"query": "q", "pos": ["a"], "neg": ["b", "a"]}], "line 1: .*'q': 'a'"),
        ("x.tsv", ["q 0 a 1", "z 0 a 1"], r"query 'z': .*queries\.jsonl"),
        ("x.tsv", ["q\ta\tb"], "line 1: "),
        ("x.tsv", ["q 0 a 1", "q 0 z 1"], "query 'q': document 'z'"),
        ("x.tsv", ["q 0 a 1", "q 0 a 0"], "line 2: document 'a' is judged 0"),
        ("x.csv", ["What is it?,It is that."], "line 1: .* got 'What is it"),
        ("x.csv", ["query,positive", '"q","a\nb"', "r"], r"line 4: expected 2 fields \(query, positive\), got 1"),
        ("x.csv", ["query,positive", 'q,"a"b'], "line 2: "),
        ("x.csv", ["query,positive,score", "q,a,1"], "line 2: 'score'"),
        ("x.csv", ["query,positive,source", "q,a,1"], "'source'"),
        ("x.csv", ["query,answer,document", "q,a,1"], "'query', 'answer', 'document'"),
        ("x.json", ["[", "{}]"], "line 1: a list"),
        ("x.txt", [""], r"x\.txt is empty"),
        ("x.jsonl", [{"query": "q", "pos": "a"}, {"query": 1, "pos": ["a"]}], "line 2: .*\"query\", got int '1'"),
        ("x.jsonl", [{"query": "q", "pos": [1]}], 'line 1: .*"pos", got list'),
        ("x.jsonl", [{"query": "q", "docs": ["a"], "labels": [1, 0]}], "line 1: .* 1 documents"),
        ("x.jsonl", [{"question": "q", "document": "d", "evidence": []}], "line 1: these are evidence"),
    ],
)
def test_what_contradicts_itself_is_an_error(beir, name, lines, message):
    path = write(beir / name, *lines)
    with pytest.raises(InputError, match=message):
        list(read_triples(path, corpus=beir / "corpus.jsonl", queries=beir / "queries.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": None}, '"document"'),
        *(({"evidence": [span]}, rf"span \[{span[0]}, {span[1]}\]") for span in ([0, 4], [1, 1], [-1, 1])),
        *(({"evidence": spans}, "spans") for spans in ([[0, 1.0]], [0, 1])),
        ({"units": 3}, "units"),
        ({"units": [[0, 3], [3, 3]]}, r"span \[3, 3\]"),
        *(({"units": units}, r"\d units") for units in ([[0, 2]], [[1, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]])),
    ],
)
def test_bad_evidence(tmp_path, change, message):
    row = {"question": "q", "document": "abc", "evidence": [[0, 1]]}
    path = write(tmp_path / "e.jsonl", row, row | change)
    with pytest.raises(InputError, match=rf"e\.jsonl, line 2: .*{message}"):
        list(read_evidence(path))


def test_evidence_that_is_dropped(tmp_path, caplog):
    rows = [("q", "a b", [[0, 1]]), (" ", "a", [[0, 1]]), ("q", "\n", [[0, 1]]), ("q", "a b", []), ("q", "a b", [[1, 2]])]
    path = write(tmp_path / "e.jsonl", *({"question": q, "document": d, "evidence": e} for q, d, e in rows))
    assert len(list(read_evidence(path))) == 1
    assert "1 example kept, left out: 2 examples without evidence" in caplog.text and "line 4" in caplog.text
    assert "1 examples with an empty query" in caplog.text and "1 examples with an empty document" in caplog.text


# ---- size and real data ------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page(tmp_path):
    """Every file shown in docs/data.md is read."""
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for name, content in files.items():
        write(tmp_path / name, content.rstrip("\n"))
    assert len(files) == 7
    assert [one.reply for one in read_exchanges(tmp_path / "answers.jsonl", "answer", Decontaminator([]))] == ["ANSWER: 15 years"]
    assert read_evidence(tmp_path / "evidence.jsonl").__next__().spans == ((17, 36),)
    others = {"evidence.jsonl", "answers.jsonl", "corpus.jsonl", "queries.jsonl"}
    for name in files.keys() - others:
        triples = list(read_triples(tmp_path / name, corpus=tmp_path / "corpus.jsonl", queries=tmp_path / "queries.jsonl"))
        assert triples and all("herons live" in t.query and "15 years" in t.positives[0] for t in triples), name
    assert list(read_triples(tmp_path)) == [Triple("how long do herons live", ("Heron Herons live 15 years.",), (), "1")]
