"""Training examples, corpora and queries from every format; what is dropped, what is an error."""

import logging
import re
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.files import write_files, write_rows
from helpers.tiny import tiny_model
from helpers.tokenizers_for_tests import build

from runnel.errors import InputError, ReadError
from runnel.lab.training.corpus import Texts, read_corpus, read_queries
from runnel.lab.training.data import Dropped, Evidence, Triple
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.generator import read_exchanges
from runnel.lab.training.tables import SentenceData
from runnel.lab.training.triples import read_triples
from runnel.records import Document
from runnel.text.sentences import read_spans


@pytest.mark.parametrize(
    "lines",
    [
        [
            {"_id": "7", "title": "T", "text": "one"},
            {"_id": "8", "title": "", "text": "two"},
            {"_id": "9", "title": "U", "text": ""},
        ],
        [
            {"docid": 7, "title": "T", "document_text": "one"},
            {"docid": 8, "document_text": "two"},
            {"docid": 9, "contents": "U"},
        ],
        [{"id": "7", "contents": "T one"}, {"id": "8", "text": "two"}, {"id": "9", "text": "U"}],
        ["7\thttp://x\tT\tone", "8\thttp://y\t\ttwo", "9\thttp://z\tU\t"],
        ["7\thttp://x\tT\tone", "8\ttwo", "9\thttp://z\tU\t"],
    ],
    ids=["beir", "tevatron", "pyserini", "documents", "mixed"],
)
def test_corpus_formats(tmp_path, lines):
    found = list(read_corpus(write(tmp_path / "corpus", *lines)))
    assert found == [Document("7", "T one"), Document("8", "two"), Document("9", "U")]


def test_queries(tmp_path):
    assert read_queries(
        write(tmp_path / "q", {"_id": "q", "text": "y"}, {"_id": "r", "text": ""})
    ) == {"q": "y", "r": ""}
    with pytest.raises(InputError, match="two have the id 'q'"):
        read_queries(write(tmp_path / "queries.tsv", "q\tx", "r\ty", "q\tz"))


@pytest.mark.parametrize(
    "line",
    [
        {"text": "no id"},
        {"_id": "", "text": "x"},
        {"_id": "b"},
        {},
        "no tab",
        "a\tb\tc",
        "\ttext without id",
        "a\tb\tc\td\te",
    ],
)
def test_bad_rows(tmp_path, line):
    first = "a\tx" if isinstance(line, str) else {"_id": "a", "text": "x"}
    with pytest.raises(InputError, match="corpus, line 2: "):
        list(read_corpus(write(tmp_path / "corpus", first, line)))


def test_texts():
    documents = [Document("b", "x\0\u2028"), Document("a", ""), Document("ü", "🜨")]
    texts = Texts(iter(documents))
    assert len(texts) == 3 and list(texts) == documents
    assert [texts.get(name) for name in ("ü", "b", "a", "c")] == ["🜨", "x\0\u2028", "", None]
    assert (
        [texts.at(row) for row in (2, 0)] == ["🜨", "x\0\u2028"]
        and texts.row("ü") == 2
        and texts.row("c") is None
    )
    assert len(Texts([])) == 0
    with pytest.raises(InputError, match="two documents of the corpus have the id 'b'"):
        Texts([Document(name, "") for name in "abcb"])


def write(path, *lines):
    return write_rows(path, list(lines))


def kept(path, *arguments, **options):
    dropped = Dropped()
    triples = list(read_triples(path, *arguments, dropped=dropped, **options))
    assert dropped.kept == len(triples)
    return [(t.query, t.positives, t.negatives) for t in triples], dict(dropped.counts)


@pytest.fixture
def beir(tmp_path):
    head = "query-id\tcorpus-id\tscore\n"
    texts = [{"_id": name, "title": name.upper(), "text": f"text {name}"} for name in "abcd"]
    write_files(
        tmp_path,
        {
            "corpus.jsonl": [*texts, {"_id": "e", "text": " "}],
            "queries.jsonl": [{"_id": name, "text": f"query {name}"} for name in "qrs"],
            "qrels/train.tsv": f"{head}q\ta\t1\nq\tb\t0\nr\tc\t2\nq\td\t1\n",
            "qrels/test.tsv": f"{head}s\ta\t1\n",
        },
    )
    return tmp_path


A, B, C, D = (f"{name.upper()} text {name}" for name in "abcd")
TRAIN = [("query q", (A, D), (B,)), ("query r", (C,), ())]


def test_beir_and_its_splits(beir):
    assert kept(beir) == (TRAIN, {})
    assert [t.id for t in read_triples(beir)] == ["q", "r"]
    assert kept(beir / "qrels" / "test.tsv") == ([("query s", (A,), ())], {})
    (beir / "qrels" / "train.tsv").rename(beir / "qrels" / "dev.tsv")
    with pytest.raises(InputError, match=r"dev\.tsv, test\.tsv"):
        list(read_triples(beir))
    (beir / "qrels" / "dev.tsv").unlink()
    assert kept(beir) == ([("query s", (A,), ())], {})
    (beir / "qrels" / "test.tsv").unlink()
    with pytest.raises(ReadError, match=re.escape(str(beir))):
        list(read_triples(beir))


def test_qrels_need_a_corpus_and_queries(beir, tmp_path):
    corpus = write(
        beir / "m" / "collection.tsv", *(f"{name}\t{name.upper()} text" for name in "abcd")
    )
    queries = write(beir / "m" / "queries.tsv", "q\tquery q", "r\tquery r")
    qrels = write(beir / "m" / "qrels.tsv", "q\t0\ta\t1", "r\t0\tc\t1")
    found = kept(qrels, corpus=corpus, queries=str(queries))
    assert found == ([("query q", ("A text",), ()), ("query r", ("C text",), ())], {})
    path = write(tmp_path / "qrels.tsv", "q 0 a 1")
    with pytest.raises(InputError, match=r"ids .*corpus and queries"):
        list(read_triples(path))


def test_rows_of_mine(tmp_path):
    rows = [
        {"query": "q", "pos": ["a", "b", "a"], "neg": ["c"], "prompt": "p: "},
        {"query": "r", "pos": ["d"], "id": 5},
    ]
    assert list(read_triples(write(tmp_path / "x.jsonl", *rows))) == [
        Triple("q", ("a", "b"), ("c",), instruction="p: "),
        Triple("r", ("d",), (), "5"),
    ]
    found = read_triples(write(tmp_path / "both.jsonl", rows[1], {**rows[0], "instruction": "i"}))
    assert next(found).query == "r", "one at a time"
    with pytest.raises(InputError, match="line 2: 'prompt' and 'instruction'"):
        next(found)


def test_parquet(tmp_path):
    rows = [
        {"query": "q", "positive": ["a"], "negative": ["b", "c"]},
        {"query": "r", "positive": ["d"], "negative": None},
    ]
    assert list(read_triples(write_rows(tmp_path / "x.parquet", rows))) == [
        Triple("q", ("a",), ("b", "c")),
        Triple("r", ("d",)),
    ]
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-9])
    with pytest.raises(ReadError, match=r"x\.parquet"):
        list(read_triples(tmp_path / "x.parquet"))
    write_rows(tmp_path / "null.parquet", [{"query": "q", "positive": None}])
    with pytest.raises(InputError, match=r"null\.parquet, row 1: .*positive"):
        list(read_triples(tmp_path / "null.parquet"))


@pytest.mark.parametrize(
    ("lines", "triples"),
    [
        (["query;positive", "q, r;a"], [("q, r", ("a",), ())]),
        (
            ["query,positive", "q,a", '"r, s","b\nc ""d"""'],
            [("q", ("a",), ()), ("r, s", ('b\nc "d"',), ())],
        ),
        (["Anchor,Positive,Negative", "q,a,b"], [("q", ("a",), ("b",))]),
        (["query\tpositive\tnegative_1\tnegative_2", "q\ta\tb\tc"], [("q", ("a",), ("b", "c"))]),
        (
            [{"positive": "a", "anchor": "q"}, {"anchor": "r", "positive": "b"}],
            [("q", ("a",), ()), ("r", ("b",), ())],
        ),
        (
            [{"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}],
            [("q", ("a",), ("b", "c"))],
        ),
        (
            [{"query": "q", "positives": ["a", "b"], "negatives": ["c"]}],
            [("q", ("a", "b"), ("c",))],
        ),
        (
            [{"query": "q", "docs": ["a", "b", "c"], "labels": [1, 0, 0.5]}],
            [("q", ("a", "c"), ("b",))],
        ),
        (
            [{"id": "1", "pid": "1_0", "input": "a report", "output": "its summary"}],
            [("its summary", ("a report",), ())],
        ),
    ],
)
def test_columns_by_name(tmp_path, lines, triples):
    assert kept(write(tmp_path / "data", *lines)) == (triples, {})


def test_evidence(tmp_path):
    rows = [
        {
            "id": "1",
            "question": "q",
            "document": "a 🜨 c",
            "evidence": [[0, 1], [2, 3]],
            "answers": ["x"],
        },
        {"query": "s", "document": "abc", "evidence": [[0, 1]], "units": [[0, 2], [2, 3]]},
    ]
    assert list(read_evidence(write(tmp_path / "e.jsonl", *rows))) == [
        Evidence("q", "a 🜨 c", ((0, 1), (2, 3)), "1"),
        Evidence("s", "abc", ((0, 1),), units=((0, 2), (2, 3))),
    ]


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
    assert (
        f"1 example kept, left out: 3 empty positive texts (first: {path}, line 2); " in caplog.text
    )


def test_documents_without_text_and_copies(beir):
    write(
        beir / "qrels" / "train.tsv",
        "query-id\tcorpus-id\tscore",
        "q\ta\t0",
        "r\te\t1",
        "s\tb\t1",
        "s\te\t1",
    )
    triples, dropped = kept(beir)
    assert triples == [("query s", (B,), ())]
    assert dropped == {"examples without a positive": 2, "empty positive texts": 2}
    # two ids with one text: common in corpora, so no error, but no negative either
    with (beir / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "a2", "title": "A", "text": "text a"}\n')
    write(beir / "qrels" / "train.tsv", "q\t0\ta\t1", "q\t0\ta2\t0", "q\t0\tb\t0")
    assert kept(beir) == (
        [("query q", (A,), (B,))],
        {"negative texts that are a positive's under another id": 1},
    )


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("x.jsonl", [{"query": "q", "pos": ["a"], "neg": ["b", "a"]}], "line 1: .*'q': 'a'"),
        ("x.tsv", ["q 0 a 1", "z 0 a 1"], r"query 'z': .*queries\.jsonl"),
        ("x.tsv", ["q\ta\tb"], "line 1: "),
        ("x.tsv", ["q 0 a 1", "q 0 z 1"], "query 'q': document 'z'"),
        ("x.tsv", ["q 0 a 1", "q 0 a 0"], "line 2: document 'a' is judged 0"),
        ("x.csv", ["What is it?,It is that."], "line 1: .* got 'What is it"),
        (
            "x.csv",
            ["query,positive", '"q","a\nb"', "r"],
            r"line 4: expected 2 fields \(query, positive\), got 1",
        ),
        (
            "x.csv",
            ["query,positive", "q,a,b"],
            "line 2: 3 values in 2 columns; quote what holds ','",
        ),
        ("x.csv", ["query,positive,score", "q,a,1"], "line 2: 'score'"),
        ("x.csv", ["query,answer,document", "q,a,1"], "'query', 'answer', 'document'"),
        ("x.json", ["[", "{}]"], "line 1: .* got '\\['"),
        ("x.txt", [""], r"x\.txt: expected jsonl"),
        (
            "x.jsonl",
            [{"query": "q", "pos": "a"}, {"query": 1, "pos": ["a"]}],
            "line 2: .*\"query\", got int '1'",
        ),
        (
            "x.jsonl",
            [{"query": "q", "docs": ["a"], "labels": [1, 0]}],
            r"line 1: 'labels' is \[1, 0\]",
        ),
        ("x.jsonl", [{"question": "q", "document": "d", "evidence": []}], "line 1: .*'evidence'"),
    ],
)
def test_what_contradicts_itself_is_an_error(beir, name, lines, message):
    path = write(beir / name, *lines)
    with pytest.raises(InputError, match=message):
        list(read_triples(path, corpus=beir / "corpus.jsonl", queries=beir / "queries.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": None}, "'document'"),
        *(({"evidence": [span]}, rf"span \[{span[0]}, {span[1]}\]") for span in ([0, 4], [1, 1])),
        ({"document": "a c", "evidence": [[0, 1], [1, 2]]}, r"span \[1, 2\]"),
        *(
            ({"evidence": spans}, "'evidence'")
            for spans in ([[0, 1.0]], [0, 1], [[-1, 1]], [[0, 1, 2]])
        ),
        ({"units": 3}, "units"),
        ({"units": [[0, 3], [3, 3]]}, r"span \[3, 3\]"),
        *(
            ({"units": units}, r"\d units")
            for units in ([[0, 2]], [[1, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]])
        ),
    ],
)
def test_bad_evidence(tmp_path, change, message):
    row = {"question": "q", "document": "abc", "evidence": [[0, 1]]}
    path = write_rows(tmp_path / "e.jsonl", [row, row | change])
    with pytest.raises(InputError, match=rf"e\.jsonl, line 2: .*{message}"):
        list(read_evidence(path))


def test_evidence_that_is_dropped(tmp_path, caplog):
    rows = [
        ("q", "a b", [[0, 1]]),
        (" ", "a", [[0, 1]]),
        ("q", "\n", [[0, 1]]),
        ("q", "a b", []),
        ("q", "a b", [[1, 2]]),
    ]
    path = write(
        tmp_path / "e.jsonl", *({"question": q, "document": d, "evidence": e} for q, d, e in rows)
    )
    assert len(list(read_evidence(path))) == 1
    assert (
        "1 example kept, left out: 2 examples without evidence" in caplog.text
        and "line 4" in caplog.text
    )
    assert (
        "1 examples with an empty query" in caplog.text
        and "1 examples with an empty document" in caplog.text
    )
    # all evidence must lie there: one span across its border is enough to leave an example out
    spans = {
        "first": [[0, 2], [2, 3]],
        "across": [[6, 7], [5, 8]],
        "last": [[7, 10]],
        "both": [[0, 1], [9, 10]],
    }
    rows = [
        {"id": name, "question": "q", "document": "abcdefghij", "evidence": one}
        for name, one in spans.items()
    ]
    path = write(tmp_path / "e.jsonl", *rows)
    kept = {
        part: [one.id for one in read_evidence(path, within=part)]
        for part in ((0, 1), (0, 0.33), (0.33, 0.7), (0.67, 1))
    }
    assert kept == {(0, 1): list(spans), (0, 0.33): ["first"], (0.33, 0.7): [], (0.67, 1): ["last"]}
    assert (
        "1 example kept, left out: 3 examples with evidence outside 67% to 100% of the document"
        in caplog.text
    )


PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page(tmp_path):
    files = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    for name, content in files.items():
        write(tmp_path / name, content.rstrip("\n"))
    assert len(files) == 7
    assert [
        one.reply
        for one in read_exchanges(tmp_path / "answers.jsonl", "answer", Decontaminator([]))
    ] == ["ANSWER: 15 years"]
    assert next(read_evidence(tmp_path / "evidence.jsonl")).spans == ((17, 36),)
    for name in files.keys() - {"evidence.jsonl", "answers.jsonl", "corpus.jsonl", "queries.jsonl"}:
        triples = list(
            read_triples(
                tmp_path / name,
                corpus=tmp_path / "corpus.jsonl",
                queries=tmp_path / "queries.jsonl",
            )
        )
        assert triples and all(
            "herons live" in t.query and "15 years" in t.positives[0] for t in triples
        ), name
    assert list(read_triples(tmp_path)) == [
        Triple("how long do herons live", ("Heron Herons live 15 years.",), (), "1")
    ]


def test_the_other_formats_of_the_page(tmp_path, monkeypatch):
    (program,) = re.findall(r"^```python\n(import json\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    passages = {
        kind: [{"docid": "1", "title": kind, "text": '"text'}]
        for kind in ("positive_passages", "negative_passages")
    }
    ids = {"positive_document_ids": ["p"], "negative_document_ids": ["n"]}
    flag = {"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [1], "type": ""}
    write_files(
        tmp_path,
        {
            "flagembedding.jsonl": [flag],
            "tevatron.jsonl": [{"query_id": "1", "query": "q", **passages}],
            "tevatron2.jsonl": [{"query_id": "1", "query_text": "q", "query_image": None, **ids}],
            "corpus2.jsonl": [{"docid": "p", "text": "a text"}, {"docid": "n", "text": "another"}],
            "triples.train.small.tsv": 'q\t"p\tn\n',
            "qidpidtriples.train.full.2.tsv": "1\tp\tn\n",
            "collection.tsv": "p\ta text\nn\tanother\n",
            "queries.train.tsv": "1\tq\n",
        },
    )
    with warnings.catch_warnings(action="ignore"):  # open files
        exec(program, {})
    by_id = Triple("q", ("a text",), ("another",))
    titled = Triple("q", ('positive_passages "text',), ('negative_passages "text',))
    assert [list(read_triples(f"{name}.jsonl")) for name in "abcde"] == [
        [Triple("q", ("p",), ("n",))],
        [titled],
        [Triple("q", ('"p',), ("n",))],
        [by_id],
        [by_id],
    ]


UNITS = ["The café is long; the dogs, they run. ", "Rivers run to the sea,\n", "in 2024 (or so)."]


@pytest.fixture(scope="module")
def tokenizer():
    return build("neox_like")


def released(tokenizer, units=UNITS, question="Where do rivers run?\n", **changes):
    """Tokens and ends as the authors make them: the document in one piece, a unit's end at the last
    token that starts in it.
    """
    asked = tokenizer.encode(question).ids
    text = tokenizer.encode("".join(units))
    edges = [sum(map(len, units[: i + 1])) for i in range(len(units))]
    made = {
        "input_ids": [*asked.tolist(), *text.ids.tolist()],
        "sentence_indices": [len(asked) + int((text.starts < edge).sum()) - 1 for edge in edges],
        "sentence_labels": [0, 1, 1],
        "context": units,
        "datapoint_id": "book*7",
    }
    return made | changes


def read_released(folder, tokenizer, *rows):
    tokenizer.save(folder)
    return list(read_evidence(write_rows(folder / "mambaretriever_train.jsonl", list(rows))))


def test_released_rows(tmp_path, tokenizer, caplog):
    rows = (
        released(tokenizer),
        released(tokenizer, question="Two\nlines?\n", sentence_labels=[1, 0, 0]),
    )
    first, second = read_released(tmp_path, tokenizer, *rows)
    units = ((0, 38), (38, 61), (61, 77))
    assert first == Evidence("Where do rivers run?", "".join(UNITS), units[1:], "book*7", units)
    assert [first.document[a:b] for a, b in first.spans] == UNITS[1:]
    assert (second.query, second.spans) == ("Two\nlines?", ((0, 38),))
    assert caplog.messages == [
        f"{tmp_path / 'mambaretriever_train.jsonl'}: released under CC-BY-NC, not for"
        " commercial use"
    ]


@pytest.mark.parametrize("lengths", [None, (60,)])
def test_training_scores_exactly_the_units_of_a_row(tmp_path, tokenizer, lengths):
    """Neither sentences nor clauses: the authors' units end inside sentences, and have no white
    space at their ends.
    """
    units = [f"keeper {n} saw the dog. She sat on, and on{';' if n % 2 else ''}" for n in range(20)]
    labels = [int(n in (7, 8)) for n in range(20)]
    (example,) = read_released(
        tmp_path, tokenizer, made := released(tokenizer, units, sentence_labels=labels)
    )
    model = tiny_model(tmp_path / "model")
    _, item = SentenceData.write(tmp_path / "t.arrow", model, [example], tokens=lengths)[0]
    bounds = item.sentences.bounds.tolist()
    scored = [item.sentences.ids[a:b].tolist() for a, b in pairwise(bounds)]
    read = read_spans(
        example.document, [model.tokenizer.encode(example.document)], np.array(example.units)
    )
    in_tokens = [read.ids[a:b].tolist() for a, b in pairwise(read.bounds)]
    first = in_tokens.index(scored[0])
    assert scored == in_tokens[first : first + len(scored)]
    assert (len(scored) < 20) == (lengths is not None)
    assert item.labels.tolist() == labels[first : first + len(scored)] and item.labels.sum() == 2
    # each at its last token, which in the authors' tokens is where the released says
    tokens = read_spans(
        example.document, [tokenizer.encode(example.document)], np.array(example.units)
    )
    asked = len(made["input_ids"]) - len(tokens.ids)
    assert (tokens.ends + asked).tolist() == made["sentence_indices"]
    np.testing.assert_array_equal(
        item.request.positions - (len(item.request.ids) - len(item.sentences.ids)),
        item.sentences.ends,
    )


@pytest.mark.parametrize("off", [-4, 4])
def test_ends_that_are_off_by_a_few_tokens_and_text_that_is_not_normalized(
    tmp_path, tokenizer, off
):
    """As the authors' code warns; and GPT-NeoX's tokens are of text in NFC."""
    units = [UNITS[0].replace("é", "e\u0301"), *UNITS[1:]]
    made = released(tokenizer, units)
    made["sentence_indices"][0] += off
    (one,) = read_released(tmp_path, tokenizer, made)
    assert (one.query, one.document) == ("Where do rivers run?", "".join(units))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentence_labels": [0, 1]}, "line 2: "),
        ({"sentence_labels": [0, 1, 2]}, "line 2: "),
        ({"sentence_indices": [9999, 1, 2]}, "line 2: "),
        ({"context": ["Another text.", "b", "c"]}, "line 2: .*'Where do rivers run"),
    ],
)
def test_malformed_rows(tmp_path, tokenizer, changes, message):
    with pytest.raises(InputError, match=message):
        read_released(tmp_path, tokenizer, released(tokenizer), released(tokenizer, **changes))
