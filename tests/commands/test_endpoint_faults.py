"""Synthesis, question answering and `ask`, end to end, with an endpoint that does everything wrong that endpoints do.

The language models misbehave too: one judgment has no verdict, one answer cites an excerpt that does not exist, and one of the
documents is too short for links.
"""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import exams, synthesis
from helpers.stub_endpoint import serve

from runnel.generation.endpoint import Endpoint

FAULTS = [429, None, 500, 503, "slow", None, "malformed", None, "no text", None, 400, None, "truncated", "truncated"]
FAILED = 5  # one repeat is allowed here: 429 and "slow" are survived, the others fail, each in another piece of work


def follow(messages):
    prompt = messages[-1]["content"]
    if "Excerpts:" in prompt:
        return "Wheel 12 was painted blue [1][9]."
    if "wheel number 12 " in prompt and "Candidate's answer:" in prompt:
        return "I cannot decide."
    return (exams if "wheel number" in prompt else synthesis).follow(messages)


@dataclass(frozen=True)
class Job:
    """A command that asks many questions, the file that it writes, the number of its requests, and its note on what failed."""

    command: tuple[object, ...]
    to: str
    result: str
    requests: int
    note: str

    def into(self, folder):
        return (*self.command, self.to, folder, "--threads", 1, "--llm-model", "stub", "--json")

    def text(self, folder):
        return Path(folder, self.result).read_text(encoding="utf-8")


JOBS = {
    "synthesize": Job(
        ("lab", "synthesize", "books", "--limit", 4, "--lengths", "500,100"),
        "--to",
        "link.jsonl",
        12,
        "note: rejected: {} requests ",
    ),
    "qa": Job(("lab", "qa", "bm25", "mills.jsonl", "-k", 2), "--out", "mills.answers.jsonl", 12, "in no score: {} questions"),
}


@pytest.fixture
def stub(monkeypatch, tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "long.txt").write_text(synthesis.story(400), encoding="utf-8")
    (tmp_path / "books" / "short.txt").write_text(synthesis.story(5), encoding="utf-8")
    rows = exams.rows(exams.mill_set(documents=1))
    (tmp_path / "mills.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "mill.txt").write_text(exams.mill(6), encoding="utf-8")
    for name, value in (("retries", 1), ("timeout_s", 1.0)):
        monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, name, value)
    with serve(follow) as one:
        one.slow_s = 1.5
        monkeypatch.setenv("OPENAI_BASE_URL", one.url)
        yield one


@pytest.fixture(params=JOBS)
def job(request):
    return JOBS[request.param]


def stored(folder):
    if not (store := Path(folder, "replies.sqlite")).exists():
        return 0
    with sqlite3.connect(store) as file:
        return file.execute("SELECT COUNT(*) FROM rows").fetchone()[0]


def test_every_fault_is_survived_or_counted_and_repaired_by_a_repeat(run, stub, job):
    clean = run(*job.into("clean"))
    assert clean.code == 0 and len(stub.asked) == job.requests == stored("clean"), clean.err
    stub.faults.extend(FAULTS)
    ended = run(*job.into("out"))
    assert not stub.faults and job.note.format(FAILED) in ended.err, ended.err
    assert f"{stub.url} broke the connection (peer closed" in ended.err and job.text("out") != job.text("clean")
    sent, before = len(stub.asked), stored("out")
    ended = run(*job.into("out"))
    assert ended.code == 0 and job.text("out") == job.text("clean"), ended.err
    assert len(stub.asked) - sent == stored("out") - before, "only what has no reply is asked"


@pytest.mark.parametrize("how", ["refused", 429])
def test_an_endpoint_that_is_down_for_long(run, stub, job, how, monkeypatch):
    assert run(*job.into("clean")).code == 0
    stub.asked.clear()
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "retries", 0)
    if how == "refused":
        ended = run(*job.into("out"), "--llm", "http://127.0.0.1:9/v1")
    else:
        stub.faults.extend([how] * 99)
        ended = run(*job.into("out"))
        stub.faults.clear()
    assert ended.code == 1 and len(stub.asked) <= 5 and stored("out") == 0
    assert "failed 5 requests in a row; no more were sent" in ended.err
    assert ("cannot be reached" if how == "refused" else f"did not answer: {how}") in ended.err
    assert run(*job.into("out")).code == 0 and job.text("out") == job.text("clean")


def test_what_the_language_models_do_wrong_is_reported(run, stub):
    report = json.loads(run(*JOBS["qa"].into("qa")).out)
    assert (report["all"]["unreadable"], report["all"]["correct"]) == (1, 5)
    assert report["notes"] == {"judgments without YES or NO": 1}
    facts = json.loads(run(*JOBS["synthesize"].into("links")).out)
    assert facts["examples"] == 4 and facts["rejected"]["subsequences with too few units"] >= 1


ASK = ("ask", "Which color was wheel 12 painted?", "mill.txt", "-k", 2)


@pytest.mark.parametrize("fault", [429, "slow"])
def test_ask_survives(run, fake, stub, fault):
    stub.faults.append(fault)
    ended = run(*ASK)
    assert ended.code == 0 and ended.out.startswith("Wheel 12 was painted blue [1].\n"), ended.err
    assert "note: removed from the answer: [9]" in ended.err


@pytest.mark.parametrize(
    ("faults", "shown", "message"),
    [
        (["no text"], "", "the reply has no text"),
        ([429, 429], "", "did not answer: 429"),
        (["truncated"], "Wheel 12 was", "the reply ended early"),
    ],
)
def test_ask_reports(run, fake, stub, faults, shown, message):
    stub.faults.extend(faults)
    ended = run(*ASK)
    assert ended.code == 2 and ended.out.startswith(shown) and bool(ended.out.strip()) == bool(shown)
    assert ended.err.count("error: ") == 1 and message in ended.err and "[1] mill.txt" not in ended.out
