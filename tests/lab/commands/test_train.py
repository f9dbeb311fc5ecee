"""`runnel lab train`: the two commands of the README on real files, and what is said of mistakes."""

import csv
import json
import re

import numpy as np
import pytest
from helpers.tiny_examples import tiny_checkpoint, tiny_recipe, write_examples
from helpers.tiny_training import read_metrics

from runnel import SentenceRetriever
from runnel.commands import display
from runnel.lab.training import recipes
from tests.helpers.qa_files import read_rows, write_rows


@pytest.mark.slow
def test_pocket_learns_from_a_csv_of_pairs(run, tmp_path):
    write_examples(tmp_path / "triples.jsonl", evidence=False)
    rows = read_rows(tmp_path / "triples.jsonl")[:32]
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("query", "positive"), *((row["query"], row["positive"]) for row in rows)])
    options = ("--set=batch=16", "--set=data.held_out=8")
    command = ("lab", "train", "pairs", "--data", "pairs.csv", "--to", "tuned", *options)
    done = run(*command)
    assert done.code == 0, done.err
    assert done.out.startswith("tuned/model: 6 steps, loss ")
    losses = [row["loss"] for row in read_metrics(tmp_path / "tuned")]
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])
    again = run(*command, "--json")
    assert "tuned is finished already" in again.err and json.loads(again.out)["steps"] == 6
    other = run(*command[:-1], "--set=data.held_out=4")
    assert other.code == 1 and "different settings" in other.err and "finished already" not in other.err


@pytest.mark.slow
def test_pocket_adapts_to_evidence(run, tmp_path):
    write_examples(tmp_path / "evidence.jsonl", evidence=True)
    rows = read_rows(tmp_path / "evidence.jsonl")[:16]
    write_rows(tmp_path / "evidence.jsonl", rows)
    done = run("lab", "train", "evidence", "--data", "evidence.jsonl", "--to", "tuned", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["steps"] == 6 and summary["last_loss"] < summary["first_loss"]

    def margin(name):
        """Return by how much the sentences of evidence score above the others."""
        retriever, margins = SentenceRetriever.load(name), []
        for row in rows:
            (start, end), scored = row["evidence"][0], retriever.score(row["query"], row["document"])
            inside = np.array([start <= one.start < end for one in scored])
            scores = np.array([one.score for one in scored])
            margins.append(scores[inside].mean() - scores[~inside].mean())
        return np.mean(margins)

    assert margin(summary["model"]) > margin("pocket-mamba2") + 0.2


def test_recipes_of_ones_own(run, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "_FIRST_S", 0.001)
    recipes.write(tiny_recipe("embed"), tmp_path / "pairs.toml")
    done = run("lab", "train", "pairs.toml", "--set", "max_steps=1", "--set", "train.seed=3")
    assert re.search(r"^runnel: training: .*\d s$", done.err, re.MULTILINE)
    assert done.code == 0 and re.match(r"runs/pairs/model: 1 step, loss \d+\.\d{4}; [\d,]+ tokens in ", done.out), done.err
    assert "seed = 3" in (tmp_path / "runs" / "pairs" / "recipe.toml").read_text()
    write_rows(tmp_path / "here" / "p.csv", ["query,positive", "what,this", "who,that"])
    recipe = ['job = "embed"', "[[data.sets]]", 'path = "p.csv"', "[train]", "max_steps = 1", "batch = 2"]
    write_rows(tmp_path / "here" / "mine.toml", recipe)
    done = run("lab", "train", "here/mine.toml", "--to", "out")
    assert done.code == 0 and done.out.startswith("out/model: 1 step,"), done.err


@pytest.mark.parametrize(
    ("rows", "batch", "cause"), [("a,b\n", 2, "one document answers"), ("a,b\nc,d\n", 1, "train.batch is 1")]
)
def test_examples_that_leave_nothing_to_learn(run, tmp_path, rows, batch, cause):
    (tmp_path / "p.csv").write_text("query,positive\n" + rows)
    done = run("lab", "train", "pairs", "--data", "p.csv", "--to", "run", "--set", f"train.batch={batch}")
    assert done.code == 1 and f"p leaves nothing to learn: {cause}" in done.err


MISTAKES = {
    ("nothing",): "'nothing'; expected one of",
    ("pairs", "--set", "batsh=3"): "'batsh'; expected one of batch",
    ("pairs", "--set", "data.max_tokens=3"): "the job 'embed' does not use max_tokens",
    ("pairs", "--size", "big"): "pairs.toml is 'big'; expected one of none",
    ("pairs",): "is missing; --data names",
    ("pairs", "--data", "none.csv"): "none.csv is missing",
    ("pairs", "--data", "p.csv", "--model", "no-such-folder"): "no-such-folder",
    ("evidence", "--data", "e.jsonl", "--model", "embedder"): "embedder has no head for 'sentences' (it has: embed, generate)",
    ("pairs", "--data", "p.csv", "--to", "p.csv/run"): "p.csv is a file",
    ("pairs", "--data", "p.csv", "--to", "p.csv"): "p.csv is a file; name a folder",
    ("evidence", "--data", "empty.jsonl"): "empty.jsonl: data.held_out = 0 leaves no example",
    ("pairs", "--data", "bad.csv"): "bad.csv, line 2: 3 values in 2 columns; quote what holds ','",
    ("evidence", "--data", "bad.jsonl"): "bad.jsonl, line 1: span [3, 99] is empty or not inside",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_one_line_and_leave_no_model(run, tmp_path, arguments):
    (tmp_path / "embedder").symlink_to(tiny_checkpoint("mamba2"))
    write_rows(tmp_path / "p.csv", ["query,positive", "a,b"])
    write_rows(tmp_path / "bad.csv", ["query,positive", "a,b,c"])
    for name, rows in (("e", [[0, 2]]), ("bad", [[3, 99]]), ("empty", [])):
        write_rows(tmp_path / f"{name}.jsonl", [{"query": "a", "document": "b c.", "evidence": [span]} for span in rows])
    done = run("lab", "train", *arguments)
    assert done.code == 1 and done.out == "" and MISTAKES[arguments] in done.err
    assert len(done.err.splitlines()) == 1 and done.err.startswith("runnel: error: ")
    assert not list(tmp_path.glob("runs/*/model"))


def test_without_the_packages_for_training(run, monkeypatch):
    monkeypatch.setattr("runnel.lab.commands.train.find_spec", lambda name: None)
    done = run("lab", "train", "pairs", "--data", "p.csv")
    assert done.code == 1 and "[lab]" in done.err
