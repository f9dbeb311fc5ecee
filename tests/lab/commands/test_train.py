"""`runnel lab train`: recipes of a user, and what is said of mistakes."""

import json
import re

import pytest
from helpers.files import write_rows
from helpers.tiny_examples import tiny_checkpoint, tiny_recipe

from runnel.commands import display
from runnel.lab.training import recipes


def test_recipes_of_ones_own(run, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "_FIRST_S", 0.001)
    recipes.write(tiny_recipe("embed"), tmp_path / "pairs.toml")
    done = run("lab", "train", "pairs.toml", "--set", "train.max_steps=1", "--set", "train.seed=3")
    assert re.search(r"^runnel: training: .*\d s$", done.err, re.MULTILINE)
    assert done.code == 0 and re.match(
        r"runs/pairs/model: 1 step, loss \d+\.\d{4}; [\d,]+ tokens in ", done.out
    ), done.err
    assert "seed = 3" in (tmp_path / "runs" / "pairs" / "recipe.toml").read_text()
    again = run(
        "lab",
        "train",
        "pairs.toml",
        "--set",
        "train.max_steps=1",
        "--set",
        "train.seed=3",
        "--json",
    )
    assert "runs/pairs is finished already" in again.err and json.loads(again.out)["steps"] == 1
    write_rows(tmp_path / "here" / "p.csv", ["query,positive", "what,this", "who,that"])
    recipe = [
        'job = "embed"',
        "[[data.sets]]",
        'path = "p.csv"',
        "[train]",
        "max_steps = 1",
        "batch = 2",
    ]
    write_rows(tmp_path / "here" / "mine.toml", recipe)
    done = run("lab", "train", "here/mine.toml", "--to", "out")
    assert done.code == 0 and done.out.startswith("out/model: 1 step,"), done.err


@pytest.mark.parametrize(
    ("rows", "batch", "cause"),
    [("a,b\n", 2, "one document answers"), ("a,b\nc,d\n", 1, "train.batch is 1")],
)
def test_examples_that_leave_nothing_to_learn(run, tmp_path, rows, batch, cause):
    (tmp_path / "p.csv").write_text("query,positive\n" + rows)
    run(
        "lab", "train", "pairs", "--data", "p.csv", "--to", "run", "--set", f"train.batch={batch}"
    ).refused(f"p leaves nothing to learn: {cause}")


MISTAKES = {
    ("nothing",): "'nothing'; expected one of",
    ("pairs", "--size", "big"): "pairs.toml is 'big'; expected one of none",
    ("pairs",): "is missing; --data names",
    ("pairs", "--data", "none.csv"): "none.csv is missing",
    ("pairs", "--data", "p.csv", "--model", "no-such-folder"): "no-such-folder",
    (
        "evidence",
        "--data",
        "e.jsonl",
        "--model",
        "embedder",
    ): "embedder has no head for 'sentences' (it has: embed, generate)",
    ("pairs", "--data", "p.csv", "--to", "p.csv"): "p.csv is a file; name a folder",
    ("evidence", "--data", "empty.jsonl"): "empty.jsonl: data.held_out = 0 leaves no example",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_one_line_and_leave_no_model(run, tmp_path, arguments):
    (tmp_path / "embedder").symlink_to(tiny_checkpoint("mamba2"))
    write_rows(tmp_path / "p.csv", ["query,positive", "a,b"])
    for name, rows in (("e", [[0, 2]]), ("empty", [])):
        write_rows(
            tmp_path / f"{name}.jsonl",
            [{"query": "a", "document": "b c.", "evidence": [span]} for span in rows],
        )
    done = run("lab", "train", *arguments)
    assert done.code == 1 and done.out == "" and MISTAKES[arguments] in done.err
    assert len(done.err.splitlines()) == 1 and done.err.startswith("runnel: error: ")
    assert not list(tmp_path.glob("runs/*/model"))


def test_without_the_packages_for_training(run, monkeypatch):
    monkeypatch.setattr("runnel.lab.commands.train.find_spec", lambda name: None)
    run("lab", "train", "pairs", "--data", "p.csv").refused("[lab]")
