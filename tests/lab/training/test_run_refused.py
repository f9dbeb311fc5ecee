"""What runs of recipes refuse."""

import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers.tiny import tiny_encoder
from helpers.tiny_examples import TINY, tiny_checkpoint, tiny_recipe

from runnel.errors import CheckpointError, InputError, MissingDependency, StoreBusy
from runnel.lab.training import recipes
from runnel.lab.training.progress import Recorder
from runnel.lab.training.run import LOCK, RunData, prepared, train

pytestmark = pytest.mark.usefixtures("one_thread", "bare")


def test_other_settings_in_the_same_folder(tmp_path):
    train(tiny_recipe("embed", "train.max_steps=1"), tmp_path)
    with pytest.raises(InputError, match=r"different settings \(train.seed: 0, 5: stored, given\)"):
        train(tiny_recipe("embed", "train.max_steps=1", "train.seed=5"), tmp_path)


def test_a_run_that_has_failed_on_its_data_is_not_in_the_way(tmp_path):
    pairs = [json.dumps({"query": "a", "pos": [text]}) for text in "bc"]
    for name, lines in (("bad", ["{]"]), ("good", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines * 2))
    given = recipes.read("pairs", changes=(*TINY["pairs"][1].split(), "train.max_steps=1"))
    with pytest.raises(InputError, match=r"bad.jsonl"):
        train(given, tmp_path / "run", data=tmp_path / "bad.jsonl")
    assert train(given, tmp_path / "run", data=tmp_path / "good.jsonl").steps == 1
    with pytest.raises(InputError, match="different settings"):
        train(given, tmp_path / "run", data=tmp_path / "bad.jsonl")


@pytest.mark.parametrize("job", ["sentences", "generate"])
def test_held_out_data_that_leave_none_to_train_on(job, tmp_path):
    with pytest.raises(InputError, match=r"data\.held_out = 9999"):
        train(tiny_recipe(job, "data.held_out=9999"), tmp_path)


@pytest.mark.parametrize(
    ("recipe", "message", "left_out"),
    [("evidence", r"data\.jsonl", "1 document with sentences of a test set"), ("pairs", r"data\.jsonl", "1 query in a test set")],
)
def test_what_was_left_out_is_reported_where_nothing_is_left(recipe, message, left_out, tmp_path, caplog):
    evidence = {"question": "q", "document": "The river runs down to the sea. It is cold.", "evidence": [[0, 9]]}
    (tmp_path / "data.jsonl").write_text(json.dumps({"evidence": evidence, "pairs": {"query": "q", "positive": "a"}}[recipe]))
    new_head = ["new_head=true"] * (recipe == "evidence")
    changes = (f"model.name={tiny_checkpoint('mamba2')}", *new_head, 'data.exclude=["data.jsonl"]', "data.held_out=0")
    with pytest.raises(InputError, match=message):
        train(recipes.read(recipe, changes=changes), tmp_path / "run", data=tmp_path / "data.jsonl", home=tmp_path)
    assert f"left out: {left_out}" in caplog.messages


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=str(tmp_path)):
        train(tiny_recipe("embed"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_second_trainer_in_a_run_folder(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).write_text("process 1\n")
    once, refused = Recorder.on_step_end, []

    def train_again(self, args, state, control, **more):
        once(self, args, state, control, **more)
        with pytest.raises(StoreBusy, match=rf"process {os.getpid()}") as caught:
            train(recipe, tmp_path / "run")
        refused.append(caught)

    monkeypatch.setattr(Recorder, "on_step_end", train_again)
    recipe = tiny_recipe("embed", "train.max_steps=1")
    assert train(recipe, tmp_path / "run").steps == len(refused) == 1
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("world", [1, 2])
def test_rows_that_fill_no_batch(world, tmp_path, monkeypatch):
    from runnel.lab.training import run

    def make(*_):
        state = SimpleNamespace(global_step=0)
        args = SimpleNamespace(world_size=world)
        return SimpleNamespace(
            is_fsdp_enabled=False, is_world_process_zero=lambda: False, add_callback=lambda _: None, args=args, state=state,
            train=lambda **_: None,
        )  # fmt: skip

    monkeypatch.setattr(run, "make_trainer", make)
    sets = {"a": Dataset.from_dict({"query": ["q"] * 1200}), "b": Dataset.from_dict({"query": ["q"] * 3})}
    with pytest.raises(InputError, match=r"1,203 rows \(a: 1,200, b: 3\).*train\.batch = 4") as caught:
        run._fit(tiny_recipe("embed", "train.batch=4"), None, RunData(sets, None), tmp_path)
    assert ("2 processes" in str(caught.value)) == (world == 2)


@pytest.mark.parametrize(
    ("model", "change", "error", "message"),
    [
        ("mamba2", {"name": "evidence"}, CheckpointError, r"'sentences' \(it has: embed, generate\)"),
        ("encoder", {"job": "rerank", "name": "evidence"}, InputError, r"'rerank' scores stored"),
        ("bert", {"set": "long.segment_tokens=9"}, InputError, r"segment_tokens = 9"),
        ("mamba2", {"set": "lora.four_bit=true"}, MissingDependency, r"pip install .*\[lab\]"),
    ],
)
def test_models_that_cannot_be_trained_so(model, change, error, message, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    tiny_encoder(tmp_path / "tiny").save(tmp_path / "encoder")
    changes = [
        f"model.name={tmp_path / 'encoder' if model == 'encoder' else tiny_checkpoint(model)}",
        change.get("set", "seed=0"),
    ]
    recipe = recipes.read(change.get("name", "pairs"), changes=tuple(changes))
    with pytest.raises(error, match=message):
        prepared(replace(recipe, job=change.get("job", recipe.job)))


def test_missing_data(tmp_path):
    recipe = recipes.read("pairs")
    with pytest.raises(InputError, match="--data"):
        train(recipe, tmp_path / "run")
    with pytest.raises(InputError, match=r"none\.csv"):
        train(recipe, tmp_path / "run", data=tmp_path / "none.csv")
    assert not (tmp_path / "run").exists()


def test_fsdp_where_saving_would_lose_weights(monkeypatch, tmp_path):
    from runnel.lab.training import run

    monkeypatch.setattr(run, "make_trainer", lambda *_: SimpleNamespace(is_fsdp_enabled=True))
    with pytest.raises(InputError, match=r"'rerank'.*FSDP"):
        run._fit(tiny_recipe("rerank"), None, RunData({}, None), tmp_path)


def test_batches_that_cannot_be_shared():
    from runnel.lab.training.trainers import _accumulated

    with pytest.raises(InputError, match=r"train\.batch = 5; .* 3"):
        _accumulated(tiny_recipe("rerank", "train.batch=5", "train.group=3"))
