"""`runnel lab evaluate` on marked evidence: metrics, interrupted work resumed, bad input named."""

import json

import pytest
from helpers.judged_tasks import ToyEmbedder, results

from runnel.lab.evaluation import retrieval
from runnel.lab.evaluation.retrieval import _model


@pytest.fixture(autouse=True)
def no_models_of_other_tests():
    retrieval._model.cache_clear()


DOCUMENT = "The red cat sat. A dog ran. The blue bird flew away."
EVIDENCE = [
    {"id": "a", "question": "red cat", "document": DOCUMENT, "evidence": [[0, 16]]},
    {"question": "dog", "document": DOCUMENT, "evidence": [[19, 22]]},
    {"id": "c", "question": "who flew", "document": DOCUMENT, "evidence": [[36, 40]]},
    {"id": "d", "question": "zebra", "document": DOCUMENT, "evidence": []},
]


@pytest.fixture
def evidence(tmp_path):
    (tmp_path / "evidence.jsonl").write_text("".join(json.dumps(row) + "\n" for row in EVIDENCE))
    _model.cache_clear()
    return "evidence.jsonl"


def test_rows_with_units_are_ranked_by_them(run, tmp_path):
    units = [[0, 17], [17, 21], [21, 28], [28, len(DOCUMENT)]]  # of the first row; the others have three sentences
    rows = [EVIDENCE[0] | {"units": units}, *EVIDENCE[1:]]
    (tmp_path / "evidence.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = json.loads(run("lab", "evaluate", "bm25", "evidence.jsonl", "--json", "--out", "out").out)["results"]
    ranked = [json.loads(line)["sentences"] for line in (tmp_path / "out" / "evidence.ranks.jsonl").read_text().splitlines()]
    assert found["sentences"] == 13 and ranked == [4, 3, 3, 3]


def test_evidence(run, evidence, fake, tmp_path):
    command = ("lab", "evaluate", "toy", evidence, "--out", "out")
    done = run(*command)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "out" / "evidence.json").read_text())
    assert (result["kind"], result["as"], result["queries"], result["unanswered"]) == ("sentences", "sentences", 3, 1)
    assert result["metrics"]["Recall@1"] == 1 and result["by_position"][0]["name"] == "0 to 20 %"
    assert [row["sentences"] for row in result["calibration"]] == [1, 2, 9]  # scores 2, 1 and 0
    assert "evidence at 0 to 20 %" in done.out and "sigmoid" in done.out
    values = [json.loads(line) for line in (tmp_path / "out" / "evidence.queries.jsonl").read_text().splitlines()]
    assert [value["query"] for value in values] == ["a", "2", "c"]
    again = run(*command, "--metrics", "P@1")
    assert "evidence.ranks.jsonl is finished already" in again.err and "P@1" in again.out


def test_baselines_on_the_same_sentences(run, evidence, beir, fake):
    fake.embed = ToyEmbedder()
    fake.embed.encode_document = fake.embed.encode_query
    both = results(run("lab", "evaluate", "bm25", evidence, "beir", "--json", "--metrics", "MRR@10"))
    assert both["evidence"]["metrics"] == {"MRR@10": 1.0} and both["beir"]["kind"] == "retrieval"
    found = results(run("lab", "evaluate", "toy", evidence, "--as", "embed", "--json"))["evidence"]
    assert found["as"] == "embed" and found["calibration"] == [] and found["metrics"]["Recall@5"] == 1


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        (EVIDENCE[3:], ["bm25"], "no question has evidence"),
        ([EVIDENCE[0]] * 2, ["bm25"], "'a'"),
        ([EVIDENCE[0] | {"evidence": [[40, 99]]}], ["bm25"], "line 1: span [40, 99]"),
    ],
)
def test_bad_evidence(run, evidence, tmp_path, rows, arguments, message):
    (tmp_path / evidence).write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("lab", "evaluate", arguments[0], evidence, *arguments[1:])
    assert done.code == 1 and message in done.err
