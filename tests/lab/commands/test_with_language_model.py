"""Paper E's pipeline with a real language model: synthesize, decontaminate, train, evaluate, and
questions that are answered and judged.

$RUNNEL_TEST_LLM is the endpoint of a chat model, e.g. http://127.0.0.1:8080/v1; half a billion
parameters are enough. The ten documents are this project's pages.
"""

import json
import os
import urllib.request

import pytest
from helpers.children import TESTS
from helpers.files import read_rows, write_rows

from runnel.lab.training.evidence import read_evidence

pytestmark = pytest.mark.slow
URL = os.environ.get("RUNNEL_TEST_LLM", "")
PAGES = sorted((TESTS.parent / "docs").glob("*.md"))[:10]
PROMPTS = '''
[synthesis]
system = "You write questions for a search engine. Reply with one JSON object and nothing else."
chunk = """
Choose one of the numbered passages. Write one short question that this passage answers, in the \
words of a person who has not read it. Use names, not "he", "she" or "it". Give the answer in at \
most five words, and the number of the passage.
Reply: {"question": "...", "answer": "...", "sentences": [number]}

{sentences}"""
'''
CHUNKS = ("--strategy", "chunk", "--unit", "clauses", "--lengths", "1000", "--reply-tokens", "120")


@pytest.fixture(autouse=True)
def reached():
    """Skip the tests if no language model answers."""
    try:
        with urllib.request.urlopen(f"{URL}/models", timeout=10) as answer:
            assert json.load(answer)["data"]
    except (OSError, ValueError) as error:
        pytest.skip(f"$RUNNEL_TEST_LLM is {URL!r}: no language model answers there ({error})")


def test_questions_train_and_are_answered(run, tmp_path):
    for page in PAGES:
        write_rows(tmp_path / "pages" / f"{page.stem}.txt", [page.read_text(encoding="utf-8")])
    prompts = write_rows(tmp_path / "prompts.toml", [PROMPTS])
    synthesize = ("lab", "synthesize", "pages", "--to", "examples", *CHUNKS, "--llm", URL)
    synthesize = (*synthesize, "--prompts", prompts, "--threads", 2, "--json")
    # 1. Synthesize: every subsequence has an example, or a reason why not.
    facts = json.loads(run(*synthesize, "--limit", 8).ok().out)
    assert facts["documents"] and facts["examples"] == 8 and facts["stopped"] is None, facts
    assert facts["subsequences"] == 8 + sum(facts["rejected"].values())
    rows = read_rows(tmp_path / "examples" / "chunk.jsonl")
    for row in rows:
        shown = [row["document"][start:end] for start, end in row["evidence"]]
        assert all(text.strip() == text != "" for text in shown) and row["question"], row
    # 2. Decontaminate: the first two questions are the test set, and the others train.
    test = rows[:2]
    write_rows(tmp_path / "test.jsonl", test)
    again = json.loads(run(*synthesize, "--limit", 6, "--exclude", "test.jsonl").ok().out)
    left_out = again["rejected"]["subsequences that overlap with a test set"]
    train = list(read_evidence(tmp_path / "examples" / "chunk.jsonl"))
    assert left_out >= 2 and len(train) == 6
    assert {row["document"] for row in test}.isdisjoint(example.document for example in train)
    # 3. Train the sentence scores on them, and measure them on the test set.
    data = ("--data", "examples/chunk.jsonl", "--set", "train.max_steps=4")
    run("lab", "train", "evidence-vectors", *data, "--to", "trained").ok()
    measured = run("lab", "evaluate", "trained/model", "test.jsonl", "--metrics", "Recall@10")
    # 4. Let the model answer the test questions from what the trained model finds, and judge.
    asked = [{key: row[key] for key in ("question", "document")} for row in test]
    answers = [entry | {"answers": [row["answer"]]} for entry, row in zip(asked, test, strict=True)]
    write_rows(tmp_path / "questions.jsonl", answers)
    reading = ("-k", 5, "--answer-tokens", 100, "--limit", 2, "--threads", 2)
    qa = run("lab", "qa", "trained/model", "questions.jsonl", "--out", "qa", "--llm", URL, *reading)
    answered = read_rows(tmp_path / "qa" / "questions.answers.jsonl")
    assert len(answered) == 2 and all(row["verdicts"] for row in answered)
    for text in (json.dumps(facts["rejected"]), json.dumps(left_out), measured.ok().out, qa.out):
        print(text)
    for row in [*rows, *answered]:
        print(row["question"], "->", row["answer"])
