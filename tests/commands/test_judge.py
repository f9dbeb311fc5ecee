"""`runnel judge` with a language model that judges by rule and fails on order."""

import json

import pytest
from helpers.exams import follow
from helpers.stub_endpoint import serve

ROWS = [
    {"question": "Which color?", "answers": ["scarlet", "red"], "attempt": "red, I think", "right": True},
    {"question": "Which color?", "answers": "blue", "attempt": "red", "right": False},
    {"question": "Which color?", "answers": "blue", "attempt": "azure", "right": True},
    {"question": "Which color?", "answers": "green", "attempt": "green"},
]


@pytest.fixture
def stub(monkeypatch, tmp_path):
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with serve(follow) as one:
        monkeypatch.setenv("OPENAI_BASE_URL", one.url)
        yield one


def test_answers_are_judged_and_compared_with_labels(run, stub, tmp_path):
    ended = run("judge", "answers.jsonl", "--out", "out")
    assert ended.code == 0 and ended.out == (
        "2 of 4 answers are right, by stub\n"
        "agreement with 3 labels: macro F1 0.667 (yes 0.667, no 0.667), 66.7% of verdicts equal\n"
        "judgments: 5 requests, 35 tokens read, 25 written\n"
    )
    rows = [json.loads(line) for line in (tmp_path / "out" / "judge.jsonl").read_text().splitlines()]
    assert [(row["id"], row["verdicts"], row["correct"]) for row in rows] == [
        ("1", [False, True], True), ("2", [False], False), ("3", [False], False), ("4", [True], True),
    ]  # fmt: skip
    assert run("judge", "answers.jsonl", "--out", "out").out == ended.out and len(stub.asked) == 5


def test_missing_and_unreadable_verdicts(run, stub):
    stub.faults.extend([400, None, "cut"])
    ended = run("judge", "answers.jsonl", "--out", "out", "--threads", 1, "--json")
    report = json.loads(ended.out)
    assert ended.code == 1 and (report["unanswered"], report["unreadable"], report["correct"]) == (1, 1, 1)
    assert report["agreement"]["labeled"] == 2 and "note: without a reply yet, and in no score: 1 question;" in ended.err
    assert report["notes"] == {"judgments cut at their limit of tokens": 1}
    assert json.loads(run("judge", "answers.jsonl", "--out", "out", "--json").out)["unanswered"] == 0


def test_without_labels(run, stub, tmp_path):
    (tmp_path / "plain.jsonl").write_text(json.dumps(ROWS[3]) + "\n")
    assert run("judge", "plain.jsonl", "--out", "out").out.startswith("1 of 1 answers are right, by stub\njudgments: 1 request,")
