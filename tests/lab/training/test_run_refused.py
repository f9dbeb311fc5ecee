"""What runs of recipes refuse."""

import json
import os
import sys
from unittest.mock import Mock

import pytest
from datasets import Dataset
from helpers.files import write_rows
from helpers.tiny import tiny_encoder
from helpers.tiny_examples import TINY, tiny_checkpoint, tiny_recipe

from runnel.errors import CheckpointError, InputError, MissingDependency, StoreBusy
from runnel.files import WriterLock
from runnel.lab.training import recipes, run, start
from runnel.lab.training.run import LOCK, run_recipe
from runnel.lab.training.run_data import RunData
from runnel.lab.training.start import load_start

pytestmark = pytest.mark.usefixtures("one_thread", "bare")


def test_finished_runs_and_other_folders(tmp_path):
    summary = run_recipe(tiny_recipe("embed", "train.max_steps=1"), tmp_path / "run")
    assert run_recipe(tiny_recipe("embed", "train.max_steps=1"), tmp_path / "run") == summary, (
        "it is not run again"
    )
    with pytest.raises(InputError, match=r"different settings \(train.seed: 0, 5: stored, given\)"):
        run_recipe(tiny_recipe("embed", "train.max_steps=1", "train.seed=5"), tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=str(tmp_path / "mine")):
        run_recipe(tiny_recipe("embed"), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sentences", "data.held_out=9999", r"data\.held_out = 9999"),
        ("generate", "data.held_out=9999", r"data\.held_out = 9999"),
        ("rerank", "train.batch=5 train.group=3", r"train\.batch = 5; .* 3"),
    ],
)
def test_settings_that_do_not_fit_the_data(name, change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run_recipe(tiny_recipe(name, *change.split()), tmp_path)


def test_a_run_that_has_failed_on_its_data_is_not_in_the_way(tmp_path):
    good = write_rows(tmp_path / "good.jsonl", [{"query": "a", "pos": [text]} for text in "bcbc"])
    bad = write_rows(tmp_path / "bad.jsonl", ["{]"])
    given = recipes.read("pairs", changes=(*TINY["pairs"][1].split(), "train.max_steps=1"))
    with pytest.raises(InputError, match=r"bad.jsonl"):
        run_recipe(given, tmp_path / "run", data=bad)
    assert run_recipe(given, tmp_path / "run", data=good).steps == 1
    with pytest.raises(InputError, match="different settings"):
        run_recipe(given, tmp_path / "run", data=bad)


@pytest.mark.parametrize(
    ("recipe", "message", "left_out"),
    [
        ("evidence", r"data\.jsonl", "1 document with sentences of a test set"),
        ("pairs", r"data\.jsonl", "1 query in a test set"),
    ],
)
def test_what_was_left_out_is_reported_where_nothing_is_left(
    recipe, message, left_out, tmp_path, caplog
):
    evidence = {
        "question": "q",
        "document": "The river runs down to the sea. It is cold.",
        "evidence": [[0, 9]],
    }
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"evidence": evidence, "pairs": {"query": "q", "positive": "a"}}[recipe])
    )
    new_head = ["model.new_head=true"] * (recipe == "evidence")
    changes = (
        f"model.name={tiny_checkpoint('mamba2')}",
        *new_head,
        'data.exclude=["data.jsonl"]',
        "data.held_out=0",
    )
    with pytest.raises(InputError, match=message):
        run_recipe(
            recipes.read(recipe, changes=changes),
            tmp_path / "run",
            data=tmp_path / "data.jsonl",
            home=tmp_path,
        )
    assert f"left out: {left_out}" in caplog.messages


def test_a_second_trainer_in_a_run_folder(tmp_path):
    lock = WriterLock(tmp_path / LOCK, tmp_path)
    lock.acquire()
    with pytest.raises(StoreBusy, match=rf"process {os.getpid()}"):
        run_recipe(tiny_recipe("embed"), tmp_path)
    lock.release()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (1, r"1,203 rows \(a: 1,200, b: 3\).*in which no text may repeat; lower train\.batch"),
        (2, r"1,203 rows \(a: 1,200, b: 3\).*train\.batch = 4.*2 processes"),
    ],
)
def test_rows_that_fill_no_batch(world, message, tmp_path, monkeypatch):
    trainer = Mock(args=Mock(world_size=world), state=Mock(global_step=0))
    monkeypatch.setattr(run.trainers, "make_trainer", lambda *_: trainer)
    sets = {
        "a": Dataset.from_dict({"query": ["q"] * 1200}),
        "b": Dataset.from_dict({"query": ["q"] * 3}),
    }
    with pytest.raises(InputError, match=message):
        run._train_model(tiny_recipe("embed", "train.batch=4"), None, RunData(sets, None), tmp_path)


def test_accelerate_with_fsdp(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as `accelerate launch` sets it
    with pytest.raises(InputError, match="accelerate launch --multi_gpu"):
        run_recipe(tiny_recipe("sentences"), tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "model", "changes", "error", "message"),
    [
        ("evidence-vectors", "encoder", "long.segment_tokens=64", InputError, r"\[long\]"),
        ("evidence-vectors", "encoder", "lora.r=4", InputError, r"\[lora\]"),
        ("evidence-vectors", "encoder", "data.lengths=[64]", InputError, "data.lengths"),
        (
            "evidence-vectors",
            "encoder",
            "train.normalization=code",
            InputError,
            r"train\.normalization",
        ),
        ("evidence-vectors", "encoder", "model.layers=true", InputError, "needs such layers"),
        (
            "evidence-vectors",
            "layers",
            "model.layers=true model.new_head=true",
            InputError,
            r"model\.new_head = false",
        ),
        ("rankmamba-documents", "layers", "train.seed=0", InputError, "'rerank' scores stored"),
        ("generator", "encoder", "train.seed=0", CheckpointError, "encoder"),
        ("pairs", "bert", "long.segment_tokens=9", InputError, "segment_tokens = 9"),
        ("pairs", "mamba2", "lora.four_bit=true", MissingDependency, r"pip install .*\[lab\]"),
    ],
)
def test_models_that_cannot_be_trained_so(
    recipe, model, changes, error, message, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    if model == "layers":
        tiny_encoder(tmp_path, sentence_layers=1).save(tmp_path / model)
    name = tmp_path / model if model == "layers" else tiny_checkpoint(model)
    with pytest.raises(error, match=message):
        load_start(recipes.read(recipe, changes=(f"model.name={name}", *changes.split())))


def test_a_generator_needs_an_end_marker(monkeypatch):
    monkeypatch.setattr(start, "load_generator", lambda *_: Mock(tokenizer=Mock(end_id=None)))
    with pytest.raises(CheckpointError, match=r"some: .*end marker"):
        load_start(recipes.read("generator", changes=("model.name=some",)))
