"""Questions that survive a round trip: pocket finds their source, and a model prefers it."""

import json

import pytest
from helpers.files import read_rows, write_rows
from helpers.stub_endpoint import serve
from helpers.synthesis import NUMBERED, story

from runnel import SentenceRetriever
from runnel.journal import Journal
from tools.round_trip import make_trip, make_trips, whole_source


@pytest.fixture(scope="module")
def retriever():
    return SentenceRetriever.load("pocket")


def ask_about_first(messages):
    """Reply with a question about the first sentence shown, in its words."""
    number, text = NUMBERED.findall(messages[-1]["content"])[0]
    question = f"Who says: {text}?"
    return json.dumps({"question": question, "answer": "Berg", "sentences": [int(number)]})


@pytest.fixture
def examples(run, tmp_path, monkeypatch):
    """Rows about two texts in clauses, whose whitespace differs from the texts'."""
    for name in ("Berg", "Thal"):
        write_rows(tmp_path / "books" / f"{name}.txt", [story(400, name)])
    with serve(ask_about_first) as stub:
        monkeypatch.setenv("OPENAI_BASE_URL", stub.url)
        options = ("--strategy", "chunk", "--unit", "clauses", "--lengths", "1000", "--limit", 4)
        ended = run("lab", "synthesize", tmp_path / "books", "--to", "out", *options)
    assert ended.code == 0, ended.err
    return read_rows(tmp_path / "out" / "chunk.jsonl")


def texts_of(rows):
    return {row["source"]: open(row["source"], encoding="utf-8").read() for row in rows}


def test_evidence_is_the_same_in_the_whole_source(examples):
    texts = texts_of(examples)
    for row in examples:
        whole = whole_source(row, texts[row["source"]])
        assert whole["document"] == texts[row["source"]] and row["document"] not in texts.values()
        for (start, end), (a, b) in zip(row["evidence"], whole["evidence"], strict=True):
            before, after = row["document"][start:end], whole["document"][a:b]
            assert after.strip() == after and before.split() != [] and a >= row["source_start"]
            assert "".join(before.split()) == "".join(after.split())


def test_a_changed_source_is_refused(examples):
    row = examples[0]
    text = texts_of([row])[row["source"]].replace("wheel", "sail")
    with pytest.raises(ValueError, match="is not the text"):
        whole_source(row, text)


def test_trips_survive_and_are_made_once(examples, retriever, tmp_path):
    asked = []

    def likelihood(question, passage):
        asked.append(passage)
        return float(passage in question or len(asked) % 2)

    texts = texts_of(examples)
    with Journal(tmp_path / "kept.jsonl", {}) as journal:
        trips = list(make_trips(examples, texts, retriever, likelihood, journal))
    assert [trip.survives for trip in trips] == [True] * 4 and len(asked) == 8
    with Journal(tmp_path / "kept.jsonl", {}) as journal:
        assert list(make_trips(examples, texts, retriever, likelihood, journal)) == trips
    assert len(asked) == 8, "stored trips are not made again"


def test_what_does_not_survive(retriever):
    text = story(400)
    document = next(retriever.remember([text]))
    question = "Who repaired wheel 14 in year 2?"

    def prefer_answer(question, passage):
        return float("In year 2 " in passage)

    at = text.index("In year 390")
    far = make_trip(question, document, [[at, at + 20]], retriever, prefer_answer)
    assert far.place is None and not far.survives
    at = text.index("In year 2 ")
    evidence = [[at, at + 38]]
    right = make_trip(question, document, evidence, retriever, prefer_answer)
    assert 1 <= right.place <= 5 and right.survives and (right.source, right.other) == (1, 0)
    assert not make_trip(question, document, evidence, retriever, lambda *_: -1.0).survives
