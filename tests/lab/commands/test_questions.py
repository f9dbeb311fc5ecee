"""`runnel lab questions`: about an index; with patterns and a folder of documents, ranks by hand."""

import json

import pytest
from helpers.files import write_files, write_rows
from helpers.judged_tasks import ToyEmbedder
from helpers.tiny import tiny_encoder

from runnel.lab.evaluation import retrieval
from runnel.records import probability

ABOUT_FILES = [
    {"question": "the river runs", "file": "river.txt", "text": "to the sea"},
    {"question": "cat on the mat", "file": "notes/cat.txt"},
    {"question": "cat", "file": "bird.txt"},
]


def test_questions_about_an_index(run, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    write_files(
        tmp_path,
        {
            "notes/cat.txt": "The cat sat on the mat. The dog sat.\n",
            "notes/river.txt": "A river runs to the sea.\n",
            "q.jsonl": ABOUT_FILES,
        },
    )
    assert run("index", "notes", "--to", "library", "--model", "tiny").code == 0
    command = ("lab", "questions", "q.jsonl", "--in", "library")
    done = run(*command, "--weight", 0, "--rerank", 0, "--out", "out", "-k", 1).ok()
    assert "2 of 3 questions answered by the first 1 of 2 documents in library" in done.out
    assert (
        "what went wrong: 1 not in the index" in done.out
        and "bird.txt is not in the index" in done.out
    )
    result = json.loads((tmp_path / "out" / "q.json").read_text())
    assert (result["version"], result["kind"], result["queries"], result["places"]) == (
        1,
        "questions",
        3,
        1,
    )
    assert (
        result["metrics"]["hits@1"] == pytest.approx(2 / 3)
        and result["metrics"]["place hits@1"] == 1
    )
    assert run(*command, "-m", "tiny", "--out", "other").code == 0
    compared = json.loads(run("lab", "compare", "out", "other", "--json").out)["rows"]
    assert {"hits@1", "MRR"} <= {row["value"] for row in compared if row["comparison"]}


# FakeRetriever scores a sentence by the number of the question's words in it; ties are in the order
# of the documents.
CATS = "The red cat sat. A red dog ran. A  bird flew.\n\nA bird flew. The red cat ate the fish."
BIRDS = "A red bird sang. A bird\nflew. Nothing else happened."
BIRD_FILE, FISH = "sub/birds.txt", "ate the fish[.]$"
QUESTIONS = [
    # 3: 1st and 1st
    {"id": "a", "question": "red cat fish", "file": "cats.txt", "patterns": [FISH], "kind": "fact"},
    {
        "id": "b",
        "question": "red dog",
        "file": "cats.txt",
        "patterns": ["^The red cat ate"],
        "kind": "why",
    },
    {
        "id": "c",
        "question": "red bird flew",
        "file": BIRD_FILE,
        "patterns": ["^A bird flew[.]$", "sang"],
        "kind": "fact",
    },
    {
        "id": "d",
        "question": "nothing flew",
        "file": BIRD_FILE,
        "patterns": ["^Nothing"],
        "kind": "fact",
    },
    {
        "id": "e",
        "question": "blue elephant",
        "file": "cats.txt",
        "patterns": [],
        "kind": "unanswerable",
    },
    {"id": "f", "question": "red whale", "file": BIRD_FILE, "patterns": [], "kind": "unanswerable"},
]
# b: "A red dog" has 2, both red cats have 1: rank 3 in cats.txt; with "A red bird" (1, of the later
# file) 3 too. d: 1 for "A bird flew." and for "Nothing ...": rank 2 in birds.txt and, "A bird
# flew." of both files being one sentence, 2.
RANKS = {"a": (1, 1), "b": (3, 3), "c": (1, 1), "d": (2, 2), "e": (None, None), "f": (None, None)}
BEST = {"a": 3, "b": 2, "c": 2, "d": 1, "e": 0, "f": 1}


@pytest.fixture
def ask(run, fake, tmp_path):
    retrieval._model.cache_clear()
    write_files(tmp_path / "docs", {"cats.txt": f"{CATS}\n", BIRD_FILE: f"{BIRDS}\n"})

    def evaluate(rows, *arguments, model="toy"):
        write_rows(tmp_path / "q.jsonl", rows)
        return run("lab", "questions", "q.jsonl", "-m", model, "--in", "docs", *arguments)

    return evaluate


def test_ranks_areas_and_kinds(ask, run, fake):
    done = ask(QUESTIONS, "--json", "--out", "out")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert {
        a["id"]: tuple(a["model"][place]["rank"] for place in ("document", "folder"))
        for a in result["answers"]
    } == RANKS
    assert {a["id"]: a["model"]["document"]["best"] for a in result["answers"]} == BEST
    assert (result["queries"], result["unanswerable"], result["documents"], result["left_out"]) == (
        4,
        2,
        2,
        [],
    )
    assert [(one["system"], one["place"]) for one in result["rankings"]] == [
        (system, place) for place in ("document", "folder") for system in ("toy", "BM25")
    ]
    own = result["rankings"][0]
    means = {
        "first": 0.5,
        "first 5": 1,
        "first 10": 1,
        "MRR": (1 + 1 / 3 + 1 + 1 / 2) / 4,
        "area": 7.5 / 8,
    }
    assert {name: value[0] for name, value in own["metrics"].items()} == pytest.approx(means)
    assert all(low <= mean <= high for mean, low, high in own["metrics"].values()) and own[
        "metrics"
    ]["first 5"] == [1, 1, 1]
    assert own["metrics"]["first"][1] < 0.5 < own["metrics"]["first"][2]
    assert {kind: one["queries"] for kind, one in own["kinds"].items()} == {"fact": 3, "why": 1}
    assert own["kinds"]["why"]["metrics"]["MRR"][0] == pytest.approx(1 / 3)
    shown = ask(QUESTIONS, "--out", "out")
    assert (
        "0.500 (" in shown.out
        and "why" in shown.out
        and "q.ranks.jsonl is finished already" in shown.err
    )
    fake.find.answers = -1.0  # the logit of a model that knows whether there is an answer
    knows = json.loads(ask(QUESTIONS, "--json").out)
    assert {
        one["model"][place]["best"] for one in knows["answers"] for place in ("document", "folder")
    } == {probability(-1.0)}
    assert knows["rankings"][0]["metrics"]["area"][0] == 0.5
    assert ask(QUESTIONS, "--out", "other", model="bm25").code == 0
    compared = json.loads(run("lab", "compare", "out", "other", "--json").out)["rows"]
    assert {"first", "MRR", "all documents MRR"} <= {
        row["value"] for row in compared if row["comparison"]
    }


def test_baselines_on_the_same_sentences(ask, fake):
    words = json.loads(ask(QUESTIONS[:2], "--json", model="bm25").out)
    assert [one["system"] for one in words["rankings"]] == ["BM25", "BM25"]
    # "fish" is in one sentence; of "red dog", the shorter of two sentences with "red" comes first.
    assert [one["BM25"]["document"]["rank"] for one in words["answers"]] == [1, 3]
    fake.embed = ToyEmbedder()
    found = json.loads(ask(QUESTIONS[:2], "--json", "--as", "embed").out)
    assert found["sentences"] == words["sentences"] == 8
    # "red cat fish" is red + cat: the two red cats have 2, in order; "red dog" is best for "A red
    # dog", then red cats with 1.
    assert [one["model"]["document"]["rank"] for one in found["answers"]] == [2, 3]


def test_options_of_the_other_form_and_patterns_without_a_sentence(ask):
    assert [ask(QUESTIONS, *option).code for option in (("-k", 5), ("--weight", 1))] == [1, 1]
    done = ask([{"question": "red", "file": "cats.txt"}], "--as", "embed")
    assert done.code == 1 and "--as" in done.err
    rows = [
        QUESTIONS[0] | {"patterns": [FISH, "no such text"]},
        QUESTIONS[1] | {"patterns": ["nor this"]},
    ]
    done = ask(rows, "--json")
    result = json.loads(done.out)
    assert (
        "a: no sentence of cats.txt matches 'no such text'" in done.err
        and "b: no sentence" in done.err
    )
    assert (result["queries"], result["left_out"]) == (1, ["b"])
    assert ask(rows[1:]).code == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patterns": ["sat", "(red"]}, "'(red'"),
        ({"patterns": "red"}, "'red'"),
        ({"patterns": []}, "[] and the kind 'fact'"),
        ({"kind": "unanswerable"}, "and the kind 'unanswerable'"),
        ({"file": "dogs.txt"}, "'dogs.txt'"),
        ({"file": "empty.txt"}, "empty.txt has no text"),
        ({"question": " "}, '"question"'),
        ({"id": "b"}, "'b'"),
    ],
)
def test_bad_questions(ask, tmp_path, change, message):
    (tmp_path / "docs" / "empty.txt").write_text(" \n")
    done = ask([QUESTIONS[1], QUESTIONS[0] | change])
    errors = [line for line in done.err.splitlines() if "note:" not in line]
    assert done.code == 1 and len(errors) == 1 and message in errors[0], done.err
