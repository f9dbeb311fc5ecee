"""`runnel label` with a language model that chooses sentences by rule, fails on order, and is interrupted."""

import json
import re

import pytest
from helpers.exams import mill_set, rows
from helpers.stub_endpoint import serve

from runnel.training.data import read_evidence


def choose(messages):
    """Choose the sentences about the wheel of the question, and the first sentence of each window."""
    prompt = messages[-1]["content"]
    wheel = re.search(r"wheel number (\d+)", prompt)[1]
    if "Which of these sentences" in prompt:
        shown = dict(re.findall(r"^\[(\d+)\] (.*)$", prompt, re.MULTILINE))
        about = [int(number) for number, text in shown.items() if f"Wheel number {wheel} " in text]
        first = [min(map(int, shown))] if len(shown) > 50 else []
        return json.dumps({"sentences": about + first})
    return f"DECISION: {'YES' if f'Wheel number {wheel} ' in prompt else 'NO'}"


@pytest.fixture
def stub(monkeypatch, tmp_path):
    data = mill_set(documents=1, wheels=90)  # 361 sentences: windows of sentences 0-199, 100-299, 200-360
    (tmp_path / "mills.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(data)[:89:8]))
    with serve(choose) as one:
        monkeypatch.setenv("OPENAI_BASE_URL", one.url)
        yield one


def prompts(stub):
    return [one["messages"][-1]["content"] for one in stub.asked]


def test_the_sentences_that_answer_become_evidence(run, stub, tmp_path):
    ended = run("label", "mills.jsonl", "--out", "out")
    assert ended.code == 0 and ended.out.startswith(
        "out/mills.evidence.jsonl: 12 of 12 questions with evidence\nlabels: 60 requests"
    )
    found = list(read_evidence(tmp_path / "out" / "mills.evidence.jsonl"))
    document = mill_set(documents=1, wheels=90).documents["d0"].text
    for number, one in enumerate(found):
        ((start, end),) = one.spans
        wheel = 10 + 8 * number
        assert one.query == f"Which color was wheel number {wheel} painted?" and one.document == document
        assert re.fullmatch(rf"Wheel number {wheel} was painted \w+\.", document[start:end])
    shown = [re.findall(r"^\[(\d+)\]", prompt, re.MULTILINE) for prompt in prompts(stub) if "wheel number 10 " in prompt]
    assert sorted((int(one[0]), int(one[-1])) for one in shown if len(one) > 50) == [(0, 199), (100, 299), (200, 360)]
    metrics = json.loads(run("evaluate", "bm25", "out/mills.evidence.jsonl", "--json").out)["results"][0]
    assert metrics["queries"] == 12 and metrics["metrics"]["Recall@5"] == 1.0


def test_what_is_rejected_is_counted(run, stub, tmp_path):
    answers = {
        "10": '{"sentences": []}',
        "18": '{"sentences": [999]}',
        "26": "DECISION: NO",
        "34": "none",
        "42": "DECISION: MAYBE",
    }

    def rule(messages):
        prompt = messages[-1]["content"]
        reply = answers.get(re.search(r"wheel number (\d+)", prompt)[1], choose(messages))
        return reply if ("DECISION" in reply) == ("DECISION" in prompt) else choose(messages)

    stub.rule = rule
    ended = run("label", "mills.jsonl", "--out", "out", "--limit", 6, "--json")
    report = json.loads(ended.out)
    assert ended.code == 0 and report["sets"][0]["labeled"] == 1
    assert report["notes"] == {
        "questions rejected: no sentence was chosen in any window": 1,
        "questions rejected: replies that choose a sentence that was not shown": 1,
        "questions rejected: the answer does not follow": 1,
        "questions rejected: replies that are not JSON": 1,
        "questions rejected: a decision that cannot be read": 1,
    }


def test_faults_and_a_repeat(run, stub):
    stub.faults.extend([429, None, 400, None, None, "malformed"])
    ended = run("label", "mills.jsonl", "--out", "out", "--limit", 4, "--threads", 1)
    assert ended.code == 1 and "note: without a reply yet, and in no score: 2 questions;" in ended.err
    ended = run("label", "mills.jsonl", "--out", "out", "--limit", 4)
    assert ended.code == 0 and "4 of 4 questions with evidence" in ended.out
    sent = [prompt for prompt in prompts(stub)]
    assert len(set(sent)) == 20 and len(sent) == 23, "two failed, and one was repeated at once"


def test_long_documents_are_left_out(run, stub):
    ended = run("label", "mills.jsonl", "--out", "out", "--max-tokens", 100)
    assert ended.code == 0 and not stub.asked
    assert "note: mills: left out: 12 questions about documents of over 100 tokens" in ended.err
