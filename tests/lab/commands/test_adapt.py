"""`runnel lab adapt`: from documents to a measured model."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers.files import read_rows, write_rows
from helpers.tiny import tiny_encoder

from runnel.models.folder import BUILT_IN

pytestmark = pytest.mark.slow

TOPICS = (
    "mill",
    "river",
    "bakers",
    "wheel",
    "flour",
    "keeper",
    "winter",
    "stones",
    "market",
    "bridge",
)


@pytest.fixture(autouse=True)
def manuals(tmp_path):
    """Write ten documents with eight sections each, whose sentences share no word with their
    heading.
    """
    for n in range(10):
        sections = [
            f"## The {TOPICS[k]} of {n}\n\nItem {k} has number {n}{k} in the list.\n"
            for k in range(8)
        ]
        write_rows(tmp_path / "manuals" / f"{n}.md", sections)


def save_tiny(folder, *, contrary=False):
    """Write a tiny model; a contrary one ranks the sentences with the words of a question last."""
    model = tiny_encoder(folder / "parts", block=24, longest=40, sentence_layers=1)
    if contrary:
        with torch.no_grad():
            model.heads["sentences"].out.weight.zero_()
            model.heads["sentences"].direct.fill_(-1.0)
    model.save(folder / "tiny")


@pytest.fixture
def seeds(monkeypatch):
    """Put pocket in place of what is trained; return the seeds of all trainings."""
    seeds: list[int] = []

    def train(recipe, folder, data):
        seeds.append(recipe.train.seed)
        model = shutil.copytree(BUILT_IN["pocket"], folder / "model", dirs_exist_ok=True)
        return SimpleNamespace(model=model)

    monkeypatch.setattr("runnel.lab.training.adaptation.run_recipe", train)
    return seeds


def test_documents_are_split_trained_on_and_measured(run, tmp_path):
    save_tiny(tmp_path)
    ended = run("lab", "adapt", "manuals", "--to", "out", "-m", "tiny", "--json")
    facts = json.loads(ended.out)
    rows = {name: read_rows(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "held-back")}
    sources = {name: {row["source"] for row in part} for name, part in rows.items()}
    assert (len(rows["train"]), len(rows["held-back"])) == (72, 8) and not sources[
        "train"
    ] & sources["held-back"]
    (measured,) = facts["measured"].values()
    assert measured["queries"] == 8 and measured["difference"] == pytest.approx(
        measured["b"] - measured["a"]
    )
    better = measured["difference"] > 0
    assert (
        ended.code == (not better)
        and (facts["model"] is not None) == better == (tmp_path / "out" / "model").exists()
    )
    again = run("lab", "adapt", "manuals", "--to", "out", "-m", "tiny", "--json")
    assert (again.code, json.loads(again.out)) == (ended.code, facts), "nothing is computed twice"


def test_a_model_is_written_only_if_it_is_better(run, seeds, tmp_path):
    ended = run("lab", "adapt", "manuals", "--to", "out")
    assert (
        ended.code == 1
        and "difference +0.0000" in ended.out
        and "out/run/model is not better than pocket" in ended.err
    )
    assert not (tmp_path / "out" / "model").exists()
    save_tiny(tmp_path, contrary=True)
    row = {
        "question": "a tuple that changes",
        "document": "It rains. " * 30 + "Tuples are immutable.",
        "evidence": [[300, 321]],
    }
    write_rows(tmp_path / "dev.jsonl", [row])
    ended = run(
        "lab", "adapt", "manuals", "--to", "better", "-m", "tiny", "--dev", "dev.jsonl"
    ).ok()
    held, dev, last = ended.out.splitlines()
    assert held.startswith("held-back.jsonl: recall@10 1.0000 before"), "documents of 8 sentences"
    assert (
        dev.startswith("dev.jsonl: recall@10 0.0000 before, 1.0000 after")
        and "-m better/model" in last
    )
    assert run("find", "number 3", "manuals", "-m", "better/model").code == 0


@pytest.mark.parametrize(
    ("source", "dev", "message"),
    [
        ("a.txt", "", "the structure of 1 document asks 0 questions; expected at least 30"),
        ("manuals", "missing.jsonl", "missing.jsonl"),
        ("manuals", "dev.jsonl", "dev.jsonl has no question with evidence"),
    ],
)
def test_what_is_refused_before_training(run, seeds, tmp_path, source, dev, message):
    write_rows(tmp_path / "a.txt", ["A plain paragraph is all there is. It has two sentences."])
    write_rows(tmp_path / "dev.jsonl", [{"question": "q", "document": "d", "evidence": []}])
    ended = run("lab", "adapt", source, "--to", "out", *(["--dev", dev] if dev else []))
    assert ended.code == 1 and message in ended.err and seeds == []
