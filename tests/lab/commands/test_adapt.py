"""`runnel lab adapt`: from documents to a measured model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_encoder

import runnel.lab.training.adaptation
from runnel.models.base import BUILT_IN, load_model

pytestmark = pytest.mark.slow

TOPICS = ("mill", "river", "bakers", "wheel", "flour", "keeper", "winter", "stones", "market", "bridge")


@pytest.fixture
def manuals(tmp_path):
    """Write ten documents with eight sections each, whose sentences share no word with their heading."""
    folder = tmp_path / "manuals"
    folder.mkdir()
    for n in range(10):
        sections = [f"## The {TOPICS[k]} of {n}\n\nItem {k} has number {n}{k} in the list.\n" for k in range(8)]
        (folder / f"{n}.md").write_text("\n".join(sections))
    return folder


@pytest.fixture
def tiny(tmp_path):
    tiny_encoder(tmp_path / "parts", block=24, longest=40, sentence_layers=1).save(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def contrary(tmp_path):
    """Write a model that ranks the sentences with the words of a question last."""
    model = tiny_encoder(tmp_path / "parts", block=24, longest=40, sentence_layers=1)
    head = model.head("sentences")
    with torch.no_grad():
        head.out.weight.zero_()
        head.direct.fill_(-1.0)
    model.save(tmp_path / "contrary")


@pytest.fixture
def trained(monkeypatch):
    def by(source: Path) -> list[int]:
        calls: list[int] = []

        def train(model, data, seed, to):
            calls.append(seed)
            shutil.copytree(source, to / "run" / "model", dirs_exist_ok=True)
            return to / "run" / "model"

        monkeypatch.setattr(runnel.lab.training.adaptation, "_train", train)
        return calls

    return by


def test_documents_are_split_trained_on_and_measured(run, manuals, tiny, tmp_path):
    ended = run("lab", "adapt", "manuals", "--to", "out", "-m", "tiny", "--json")
    facts = json.loads(ended.out)
    rows = {name: [json.loads(line) for line in open(tmp_path / "out" / f"{name}.jsonl")] for name in ("train", "held-back")}
    sources = {name: {row["source"] for row in part} for name, part in rows.items()}
    assert (len(rows["train"]), len(rows["held-back"])) == (72, 8) and not sources["train"] & sources["held-back"]
    (measured,) = facts["measured"].values()
    assert measured["queries"] == 8 and measured["difference"] == pytest.approx(measured["b"] - measured["a"])
    better = measured["difference"] > 0
    assert ended.code == (not better) and (facts["model"] is not None) == better == (tmp_path / "out" / "model").exists()
    start, end = (load_model(folder, "float32").backbone.state_dict() for folder in (tiny, tmp_path / "out" / "run" / "model"))
    assert {name.partition(".")[0] for name in start if not (start[name] == end[name]).all()} == {"sentence_layers"}
    again = run("lab", "adapt", "manuals", "--to", "out", "-m", "tiny", "--json")
    assert (again.code, json.loads(again.out)) == (ended.code, facts), "nothing is computed twice"


@pytest.mark.usefixtures("contrary")
def test_a_better_model_is_written_and_opens(run, manuals, trained, tmp_path):
    trained(BUILT_IN["pocket"])
    row = {"question": "a tuple that changes", "document": "It rains. " * 30 + "Tuples are immutable.", "evidence": [[300, 321]]}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row))
    ended = run("lab", "adapt", "manuals", "--to", "out", "-m", "contrary", "--dev", "dev.jsonl")
    assert ended.code == 0, ended.err
    held, dev, last = ended.out.splitlines()
    assert held.startswith("held-back.jsonl: recall@10 1.0000 before"), "documents of 8 sentences"
    assert dev.startswith("dev.jsonl: recall@10 0.0000 before, 1.0000 after") and "-m out/model" in last
    assert run("find", "number 3", "manuals", "-m", "out/model").code == 0


def test_a_model_that_is_not_better_is_not_written(run, manuals, trained, tmp_path):
    trained(BUILT_IN["pocket"])
    ended = run("lab", "adapt", "manuals", "--to", "out")
    assert ended.code == 1 and "difference +0.0000" in ended.out and "out/run/model is not better than pocket" in ended.err
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    ("source", "dev", "message"),
    [
        ("a.txt", "", "the structure of 1 document asks 0 questions; expected at least 30"),
        ("manuals", "missing.jsonl", "missing.jsonl"),
        ("manuals", "dev.jsonl", "dev.jsonl has no question with evidence"),
    ],
)
def test_what_is_refused_before_training(run, manuals, trained, tmp_path, source, dev, message):
    calls = trained(BUILT_IN["pocket"])
    (tmp_path / "a.txt").write_text("A plain paragraph is all there is. It has two sentences.")
    (tmp_path / "dev.jsonl").write_text('{"question": "q", "document": "d", "evidence": []}\n')
    ended = run("lab", "adapt", source, "--to", "out", *(["--dev", dev] if dev else []))
    assert ended.code == 1 and message in ended.err and calls == []
