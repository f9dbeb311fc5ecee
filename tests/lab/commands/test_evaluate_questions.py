"""`runnel lab questions` with an index: what is printed and written, and the advice of a sweep."""

import json
import shlex
from pathlib import Path

import pytest
from helpers.tiny import tiny_encoder

from runnel.lab.evaluation.own import advice
from tests.helpers.qa_files import read_rows, write_rows

QUESTIONS = [
    {"question": "the river runs", "file": "river.txt", "text": "to the sea"},
    {"question": "cat on the mat", "file": "notes/cat.txt"},
    {"question": "cat", "file": "bird.txt"},
]


def test_questions_and_a_sweep_that_prints_the_command_to_use(run, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    write_rows(tmp_path / "notes" / "cat.txt", ["The cat sat on the mat. The dog sat."])
    write_rows(tmp_path / "notes" / "river.txt", ["A river runs to the sea."])
    write_rows(tmp_path / "q.jsonl", QUESTIONS)
    assert run("index", "notes", "--to", "library", "--model", "tiny").code == 0
    command = ("lab", "questions", "q.jsonl", "--in", "library")
    done = run(*command, "--weight", 0, "--rerank", 0, "--out", "out", "-k", 1)
    assert done.code == 0, done.err
    assert "2 of 3 questions answered by the first 1 of 2 documents in library" in done.out
    assert "what went wrong: 1 not in the index" in done.out and "bird.txt is not in the index" in done.out
    result = json.loads((tmp_path / "out" / "q.json").read_text())
    assert (result["version"], result["kind"], result["queries"], result["places"]) == (1, "questions", 3, 1)
    assert result["metrics"]["hits@1"] == pytest.approx(2 / 3) and result["metrics"]["place hits@1"] == 1
    assert run(*command, "-m", "tiny", "--out", "other").code == 0
    compared = json.loads(run("lab", "compare", "out", "other", "--json").out)["rows"]
    assert {"hits@1", "MRR"} <= {row["value"] for row in compared if row["comparison"]}
    result = json.loads(run(*command, "--sweep", "--json", "--out", "swept").out)
    ranks = read_rows(tmp_path / "swept" / "q.sweep.jsonl")
    assert result["settings"][0]["name"] == "default" and len(result["settings"]) == 10
    words = next(one for one in result["settings"] if one["name"] == "words only")
    assert words["arguments"] == "--words-only" and words["metrics"]["MRR"] == pytest.approx(2 / 3)
    others = [one["metrics"]["MRR"] for one in result["settings"][1:]]
    assert others == sorted(others, reverse=True)
    for setting in result["settings"]:  # as measured: in each, "river.txt" is where the sweep found it
        hits = json.loads(run("search", "the river runs", "--in", "library", "--json", *setting["arguments"].split()).out)
        found = [Path(hit["id"]).name for hit in hits["documents"]]
        (rank,) = (row["rank"] for row in ranks if (row["setting"], row["id"]) == (setting["name"], "1"))
        assert (found.index("river.txt") + 1 if "river.txt" in found else None) == rank, setting["name"]
    shown = run(*command, "--sweep").out
    assert "words only" in shown and " ".join(result["advice"].split()) in " ".join(shown.split())


def setting(name, mrr, difference, p):
    return {"name": name, "arguments": "--weight 0.5 --no-rerank", "metrics": {"MRR": mrr}, "difference": difference, "p": p}


def test_advice_and_a_command_that_works_in_a_shell():
    default = setting("default", 0.5, 0.0, 1.0)
    for mrr, difference, p, expected in (
        (0.4, -0.1, 0.2, "No setting"),
        (0.6, 0.1, 0.04, "Highest MRR: x (MRR 0.600 instead of 0.500, p = 0.040), but"),
        (0.7, 0.2, 0.01, "Better than the default: x (MRR 0.700 instead of 0.500, p = 0.010)"),
    ):
        settings = [default, setting("x", mrr, difference, p), setting("y", 0.1, -0.4, 0.1)]
        assert advice(settings, 20, "library", None).startswith(expected)
    command = shlex.split(advice(settings, 20, "my library", "models/it's").partition("Use: ")[2])
    options = ["--in", "my library", "--model", "models/it's", "--weight", "0.5", "--no-rerank"]
    assert command == ["runnel", "search", "...", *options]
