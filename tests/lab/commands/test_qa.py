"""`runnel lab qa` with language models that answer and judge by rule."""

import json

import pytest
from helpers.exams import color, follow, mill_set, rows
from helpers.files import read_rows, write_rows
from helpers.stub_endpoint import serve

from runnel.lab.training.evidence import read_evidence
from runnel.models.folder import BUILT_IN
from runnel.text.dialogue import GAP
from runnel.text.tokenizers import read_tokenizer

BM25 = ("lab", "qa", "bm25", "mills.jsonl", "-k", 2, "--out", "out")
rule = follow  # of `stub`


@pytest.fixture
def mills(tmp_path):
    return write_rows(tmp_path / "mills.jsonl", rows(mill_set(documents=1)))


def test_a_set_is_answered_judged_and_reported(run, stub, mills, tmp_path):
    ended = run(*BM25)
    shown = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert (
        ended.code == 0
        and ended.err == f"runnel: note: asking stub at {stub.url}, judged by stub\n"
    )
    for name in ("mills", "creative", "up to 4,000 tokens"):
        assert f"{name} 6 100.0% 100.0% to 100.0% 1.000 0 0" in shown
    assert [
        line
        for line in shown
        if line.startswith(("answers: 6 requests, 42 ", "judgments: 6 requests, 42 "))
    ] == shown[-2:]
    found = read_rows(tmp_path / "out" / "mills.answers.jsonl")
    assert [one["question"] for one in found] == [f"d0-{n}" for n in range(10, 16)]
    assert found[0]["answer"] == "red" and found[0]["verdicts"] == [True]
    assert read_rows(tmp_path / "out" / "mills.queries.jsonl")[0] == {
        "query": "d0-10",
        "accuracy": 1.0,
        "F1": 1.0,
    }
    document = mill_set(documents=1).documents["d0"].text
    assert found[0]["tokens"] == len(read_tokenizer(BUILT_IN["pocket"]).encode(document))
    for row in read_rows(tmp_path / "out" / "mills.found.jsonl"):
        assert f"Wheel number {row['id'][3:]} was" in " ".join(
            document[start:end] for start, end in row["parts"][0]
        )
    asked = [
        one["messages"][-1]["content"]
        for one in stub.asked
        if "Sentences of the document" in str(one)
    ]
    assert len(asked) == 6 and all(
        prompt.count("Wheel number") == 2 and GAP in prompt for prompt in asked
    )
    assert {(one["temperature"], one["max_tokens"]) for one in stub.asked} == {(0, 2000), (0, 1000)}


def test_a_judge_with_prompts_of_the_users_own(run, stub, mills, tmp_path):
    assert run(*BM25).code == 0
    form = "Mine {0}.\\n\\nTrue answer: {truth}\\n\\nCandidate's answer: {attempt}\\n\\n{question}"
    own = write_rows(
        tmp_path / "own.toml",
        ["[judging]", 'system = "Mine."', f'free = "{form}"', f'choice = "{form}"'],
    )
    ended = run(*BM25, "--prompts", own, "--json")
    report = json.loads(ended.out)
    assert ended.code == 0 and report["all"]["accuracy"] == 1, ended.err
    assert report["judge_prompts"] and len(stub.asked) == 6 + 6 + 6, "answers are not asked again"
    for body in stub.asked[12:]:
        system, user = (message["content"] for message in body["messages"])
        assert system == "Mine." and user.startswith("Mine {0}.\n\nTrue answer: ")
    write_rows(own, ["[judging]", 'system = "Mine."', 'free = "Right?"', 'choice = "Right?"'])
    run(*BM25, "--prompts", own).refused("judging.free, lacks the field {")


def test_several_sets_and_their_means(run, stub, tmp_path):
    for name, wheels in (("small", 2), ("large", 8)):
        write_rows(tmp_path / f"{name}.jsonl", rows(mill_set(documents=1, wheels=wheels)))
    stub.rule = lambda messages: (
        "DECISION: NO" if "wheel number 11 " in str(messages) else follow(messages)
    )
    report = json.loads(
        run(
            "lab", "qa", "bm25", "small.jsonl", "large.jsonl", "--out", "out", "-k", 2, "--json"
        ).out
    )
    assert [(one["task"], one["accuracy"]) for one in report["sets"]] == [
        ("small", 0.5),
        ("large", 7 / 8),
    ]
    assert report["all"]["accuracy"] == 0.8 and report["mean_of_sets"]["accuracy"] == pytest.approx(
        11 / 16
    )
    assert report["notes"] == {"replies without ANSWER:, which are judged whole": 2}
    assert json.loads((tmp_path / "out" / "qa.json").read_text()) == report
    assert [one["top_k"] for one in report["sets"]] == [2, 2]


@pytest.mark.parametrize(
    ("options", "kind", "top_k", "correct"),
    [((), "sentences", 50, 6), (("--as", "embed", "--chunk-words", 30), "embed", 5, 5)],
)
def test_systems_that_retrieve(run, stub, mills, options, kind, top_k, correct):
    ended = run("lab", "qa", "pocket", mills, "--out", "out", *options, "--json")
    report = json.loads(ended.out)
    assert ended.code == 0 and (report["as"], report["top_k"], report["all"]["correct"]) == (
        kind,
        top_k,
        correct,
    ), ended.err


def test_what_was_copied_for_a_right_answer_is_evidence(run, stub, tmp_path):
    data = mill_set(documents=1)
    text = data.documents["d0"].text.replace("11 was painted", "11\n  was painted")
    write_rows(tmp_path / "mills.jsonl", [row | {"document": text} for row in rows(data)])

    def rule(messages):
        prompt = messages[-1]["content"]
        if "word for word" in prompt and "wheel number 11 " in prompt:
            return "Wheel number 11 was painted green.\nWheel number 99 was not copied."
        if "Candidate's answer:" in prompt and "wheel number 12 " in prompt:
            return "DECISION: NO"
        return follow(messages)

    stub.rule = rule
    assert run("lab", "qa", "copied", "mills.jsonl", "--out", "out").code == 0
    found = list(read_evidence(tmp_path / "out" / "mills.evidence.jsonl"))
    asked = [10, 11, 13, 14, 15]
    assert [one.query for one in found] == [
        f"Which color was wheel number {n} painted?" for n in asked
    ]
    assert all(one.document == text for one in found)
    assert [[" ".join(text[a:b].split()) for a, b in one.spans] for one in found] == [
        [f"Wheel number {n} was painted {color(n)}."] for n in asked
    ]
    metrics = json.loads(run("lab", "evaluate", "bm25", "out/mills.evidence.jsonl", "--json").out)[
        "results"
    ][0]
    assert metrics["queries"] == 5 and metrics["metrics"]["Recall@5"] == 1.0


def test_another_judge_and_what_people_say(run, stub, mills, tmp_path):
    with serve(lambda messages: "DECISION: NO") as strict:
        options = (
            "--llm-model",
            "small",
            "--judge",
            strict.url,
            "--judge-model",
            "strict",
            "--answer-tokens",
            700,
            "--json",
        )
        ended = run(*BM25[:-1], "strict", *options)
        assert json.loads(ended.out)["all"]["accuracy"] == 0.0 and {
            one["model"] for one in strict.asked
        } == {"strict"}
    assert {(one["model"], one["max_tokens"]) for one in stub.asked} == {("small", 700)}
    assert f"asking small at {stub.url}, judged by strict" in ended.err
    stub.rule = lambda messages: follow(messages).replace(
        "YES" if "wheel number 11 " in str(messages) else "?", "NO"
    )
    assert run(*BM25).code == 0
    given = [row | {"right": True} for row in read_rows(tmp_path / "out" / "mills.answers.jsonl")]
    assert given[1]["text"] == "Which color was wheel number 11 painted?" and given[1][
        "answers"
    ] == ["green"]
    given[3]["answer"] = "another"
    given[4]["right"] = False
    del given[5]["right"]
    write_rows(tmp_path / "labeled.jsonl", given)
    paid = len(stub.asked)
    ended = run(*BM25, "--labels", "labeled.jsonl")
    assert ended.code == 0 and len(stub.asked) == paid
    assert (
        "agreement with 4 labels: macro F1 0.333 (yes 0.667, no 0.000), 50.0% of verdicts equal\n"
        in ended.out
    )
    assert "note: 1 of 5 labels are of other answers" in ended.err
    assert json.loads((tmp_path / "out" / "qa.json").read_text())["agreement"]["judged_right"] == 3


def test_some_questions_are_drawn_from_all_documents(run, stub, tmp_path):
    # 6 about each document
    made = ((f"{n // 6}-{n}", f"wheel number {n}?", f"Mill {n // 6}.", ["red"]) for n in range(90))
    fields = ("id", "question", "document", "answers")
    write_rows(tmp_path / "mills.jsonl", [dict(zip(fields, row, strict=True)) for row in made])

    def asked(out, *options):
        assert (
            run("lab", "qa", "bm25", "mills.jsonl", "--limit", 20, "--out", out, *options).code == 0
        )
        return [one["question"] for one in read_rows(tmp_path / out / "mills.answers.jsonl")]

    drawn = asked("out")
    assert len(drawn) == 20 and len({name.partition("-")[0] for name in drawn}) >= 9
    assert drawn == sorted(drawn, key=lambda name: int(name.partition("-")[2])), (
        "in the order of the data"
    )
    assert asked("again") == drawn != asked("other", "--seed", 1) and set(drawn) < set(
        asked("out", "--limit", 30)
    )
