"""Published benchmarks are read as their authors publish them, and what fits no known form is
named.
"""

import pytest
from helpers.files import write_files, write_rows

from runnel.errors import InputError, ReadError
from runnel.lab.evaluation.published import find_sets
from runnel.lab.evaluation.tasks import read_task

JUDGED = {"query-id": "q", "corpus-id": "d"}


def read_set(one, folder):
    task = read_task(one.source(folder))
    return {d.id: d.text for d in task.corpus}, dict(task.queries), task.qrels, task.notes


def names(path, **texts):
    return [one.name for one in find_sets(str(path), **texts)]


def tables(**changes):
    rows = {"corpus": {"_id": "d", "text": "x"}, "queries": {"_id": "q", "text": "y"}}
    rows |= {"qrels": JUDGED} | changes
    return {f"{name}.jsonl": [row] for name, row in rows.items()}


def nano(folder, split="train"):
    write_files(
        folder,
        {
            name.replace(".jsonl", f"/{split}-00000-of-00001.parquet"): rows
            for name, rows in tables().items()
        },
    )


def test_sets_of_nanobeir_alone_in_one_data_set_or_as_folders(tmp_path):
    nano(tmp_path / "NanoNQ")
    (one,) = find_sets(str(tmp_path / "NanoNQ"))
    assert (one.name, one.metrics, one.group) == ("NanoNQ", ("nDCG@10",), "")
    assert read_set(one, tmp_path) == ({"d": "x"}, {"q": "y"}, {"q": {"d": 1}}, ())
    for split in ("NanoNQ", "NanoMSMARCO"):
        nano(tmp_path / "one", split)
        nano(tmp_path / "many" / split)
    (tmp_path / "many" / ".cache").mkdir()
    assert sorted(names(tmp_path / "one")) == names(tmp_path / "many") == ["NanoMSMARCO", "NanoNQ"]
    assert names(tmp_path / "one" / "NanoNQ") == ["NanoNQ"]
    (tmp_path / "many" / "notes").mkdir()
    with pytest.raises(InputError, match="notes is no task in a known form"):
        find_sets(str(tmp_path / "many"))


def test_a_table_in_several_files_of_which_the_test_split_is_judged(tmp_path):
    folder = tmp_path / "scifact"
    end = "00000-of-00001.parquet"
    for part in range(2):
        rows = [{"_id": f"d{part + 1}", "title": "A title", "text": "some text"}]
        write_rows(folder / "corpus" / f"corpus-{part:05}-of-00002.parquet", rows)
        write_rows(
            folder / "default" / f"{('train', 'test')[part]}-{end}",
            [JUDGED | {"corpus-id": f"d{part + 1}", "score": 2}],
        )
    write_rows(folder / "queries" / f"corpus-{end}", [{"_id": "q", "text": "cat"}])
    (one,) = find_sets(str(folder))
    documents, _, judged, _ = read_set(one, tmp_path)
    assert documents == {"d1": "A title some text", "d2": "A title some text"} and judged == {
        "q": {"d2": 2}
    }


def test_longembed_has_a_set_for_each_length_of_needle(tmp_path):
    folder = tmp_path / "LongEmbed"
    lengths = (256, 32768)
    texts = [
        {"doc_id": f"{n}-{i}", "text": f"fact {i}", "context_length": n}
        for n in lengths
        for i in range(3)
    ]
    asked = [
        {"qid": f"q{n}-{i}", "text": f"which {i}", "context_length": n}
        for n in lengths
        for i in range(2)
    ]
    judged = [
        {"qid": f"q{n}-{i}", "doc_id": f"{n}-{i}", "context_length": n}
        for n in lengths
        for i in range(2)
    ]
    files = {
        "qmsum/corpus.jsonl": [
            {"doc_id": "doc 1", "text": "red cat"},
            {"doc_id": "doc 2", "text": "dog"},
        ],
        "qmsum/queries.jsonl": [{"qid": "q 1", "text": "cat"}],
        "qmsum/qrels.jsonl": [{"qid": "q 1", "doc_id": "doc 1"}],
    } | {"needle/corpus.jsonl": texts, "needle/queries.jsonl": asked, "needle/qrels.jsonl": judged}
    write_files(folder, files)
    sets = find_sets(str(folder))
    assert [(one.name, one.group, one.metrics) for one in sets] == [
        ("needle-256", "needle", ("nDCG@1",)),
        ("needle-32768", "needle", ("nDCG@1",)),
        ("qmsum", "", ("nDCG@10",)),
    ]
    assert names(folder / "needle" / "256") == ["needle-256"] and names(folder / "qmsum") == [
        "qmsum"
    ]
    documents, queries, judged, _ = read_set(sets[1], tmp_path)
    assert documents == {f"32768-{i}": f"fact {i}" for i in range(3)}
    assert queries == {f"q32768-{i}": f"which {i}" for i in range(2)} and judged["q32768-1"] == {
        "32768-1": 1
    }
    assert read_set(sets[2], tmp_path)[2] == {"q_1": {"doc_1": 1}}


def test_the_validation_split_of_scrolls_and_folders_of_beir(tmp_path):
    rows = [
        {"id": "a", "input": "a long report", "output": "summary"},
        {"id": "b", "input": "another", "output": "short"},
    ]
    write_rows(tmp_path / "gov_report" / "validation.jsonl", rows)
    (one,) = find_sets(str(tmp_path / "gov_report"))
    documents, queries, judged, _ = read_set(one, tmp_path)
    assert documents == {"Passage_0": "a long report", "Passage_1": "another"}
    assert queries == {"Query_0": "summary", "Query_1": "short"} and judged["Query_1"] == {
        "Passage_1": 1
    }
    for name in ("nq", "fiqa"):
        write_files(
            tmp_path / "beir" / name,
            tables() | {"qrels/test.tsv": ["query-id\tcorpus-id\tscore", "q\td\t1"]},
        )
    assert names(tmp_path / "beir") == ["fiqa", "nq"] and names(tmp_path / "beir" / "nq") == ["nq"]
    (one,) = find_sets(str(tmp_path / "beir" / "nq"))
    assert (
        one.source(tmp_path).corpus == tmp_path / "beir" / "nq" / "corpus.jsonl"
        and not (tmp_path / "nq.beir").exists()
    )


SECTIONS = [("Intro", ["One.", "Two."]), (None, ["Three."]), ("End", [])]
QASPER = {  # as it was released, and as in the data set of the hub
    "qasper-test-v0.3.json": [
        {"section_name": name, "paragraphs": found} for name, found in SECTIONS
    ],
    "test-00000-of-00001.parquet": {
        "section_name": [n for n, _ in SECTIONS],
        "paragraphs": [p for _, p in SECTIONS],
    },
}


@pytest.mark.parametrize("file", QASPER)
def test_qasper_has_two_sets_of_locov0(tmp_path, file):
    papers = [{"title": "A paper", "abstract": "It is short.", "full_text": QASPER[file]}] * 2
    path = tmp_path / "locov0" / "qasper" / file
    if path.suffix == ".json":
        write_rows(path, [{f"19{n}": paper for n, paper in enumerate(papers)}])
    else:
        write_rows(path, [{"id": "190", **paper} for paper in papers])
    write_rows(
        tmp_path / "locov0" / "qmsum" / "validation.jsonl",
        [{"id": "a", "input": "a meeting", "output": "who"}],
    )
    assert names(tmp_path / "locov0") == ["qasper_title", "qasper_abstract", "qmsum"]
    title, abstract = find_sets(str(path.parent))
    documents, queries, judged, notes = read_set(title, tmp_path)
    assert documents == dict.fromkeys(["Passage_0", "Passage_1"], "Intro\nOne. Two.\nThree.\nEnd")
    assert queries == dict.fromkeys(["Query_0", "Query_1"], "A paper") and judged["Query_1"] == {
        "Passage_1": 1
    }
    assert read_set(abstract, tmp_path)[1]["Query_0"] == "It is short." and (
        title.metrics,
        notes,
    ) == (("nDCG@10",), ())
    assert names(path.parent / "qasper_abstract") == ["qasper_abstract"]
    with pytest.raises(InputError, match=r"'qasper_titel'; expected one of .*qasper_title"):
        find_sets(str(path.parent / "qasper_titel"))


def test_msmarco_by_the_names_of_its_files(tmp_path):
    folder = tmp_path / "msmarco"
    files = {
        "collection.tsv": ["0\tred cat", "1\tblue dog"],
        "queries.dev.small.tsv": ["7\tcat", "8\tdog"],
        "qrels.dev.small.tsv": ["7\t0\t0\t1"],
        "msmarco-test2019-queries.tsv": ["9\tcat"],
        "2019qrels-pass.txt": ["9 Q0 0 1", "9 Q0 1 2"],
        "msmarco-docs.tsv": ["D0\thttp://a.b\tA cat\tIt is red."],
        "2019qrels-docs.txt": ["9 Q0 D0 1"],
    }
    write_files(folder, files)
    sets = find_sets(str(folder))
    assert [(one.name, one.metrics) for one in sets] == [
        ("msmarco-passage-dev", ("MRR@10", "Recall@1000")),
        ("msmarco-passage-dl19", ("nDCG@10", "R(rel=2)@1000")),
        ("msmarco-document-dl19", ("nDCG@10", "Recall@100")),
    ]
    documents, queries, judged, notes = read_set(sets[0], tmp_path)
    assert (
        documents == {"0": "red cat", "1": "blue dog"}
        and queries == {"7": "cat"}
        and judged == {"7": {"0": 1}}
    )
    assert notes == ("1 queries are judged; the papers' set has 6,980",)
    assert read_set(sets[2], tmp_path)[0] == {"D0": "A cat It is red."}
    assert names(folder / "passage-dl19") == ["msmarco-passage-dl19"]


QASPER_FILE = "qasper-test-v0.3.json"
PAPER = {"190": {"title": "a", "abstract": "b", "full_text": [{"name": 1}]}}

TWO_SPLITS = {name.replace(".", "/train."): rows for name, rows in tables().items()} | {
    "qrels/dev.jsonl": [JUDGED]
}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({QASPER_FILE: [PAPER]}, "paper 190: expected sections"),
        ({QASPER_FILE: [{"190": 5}]}, "paper 190: .*got int"),
        ({QASPER_FILE: ['{"190": {']}, "not valid JSON at character"),
        (
            tables(qrels=JUDGED | {"score": 1 << 32}),
            r"qrels\.jsonl, line 1: .*\"score\", got '4294967296'",
        ),
        (tables(qrels=JUDGED | {"score": float("inf")}), "got 'inf'"),
        (
            tables(corpus={"_id": "d1", "body": "red cat"}),
            "line 1: expected 'text' .*, got the keys '_id', 'body'",
        ),
        (TWO_SPLITS, "judgments of dev, train, and texts of train; expected texts of each"),
        (
            tables(queries={"_id": "q", "text": "y", "context_length": [256]}),
            "queries.jsonl, line 1: 'context_length' is .256.",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, files, named):
    write_files(tmp_path, files)
    with pytest.raises((InputError, ReadError), match=named):
        [one.source(tmp_path) for one in find_sets(str(tmp_path))]
