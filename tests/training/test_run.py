"""Runs of recipes: every shipped one in small, what they learn, going on after a stop, and what they refuse."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.torch import load_file

import runnel
from runnel.errors import CheckpointError, InputError, MissingDependency, NumericalError
from runnel.models.base import load_model
from runnel.training import recipes, smoke
from runnel.training.decontaminate import Decontaminator
from runnel.training.progress import read_metrics
from runnel.training.rows import write_rows
from runnel.training.run import RECIPE, SEARCH, SUMMARY, prepared, train
from runnel.training.settings import DataSet, DataTable
from runnel.training.trainers import EmbedderBatches

JOBS = {"embed": "pairs", "rerank": "rankmamba-documents", "sentences": "evidence"}


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(job, *changes):
    """The smoke recipe of a job, with changes."""
    return recipes.read(JOBS[job], smoke=True, changes=changes)


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


# ---- every shipped recipe ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.shipped())
def test_smoke_run_of_every_recipe(name, tmp_path):
    recipe = recipes.read(name, smoke=True)
    summary = train(recipe, tmp_path / "run")
    assert summary.steps == recipe.train.max_steps and summary.tokens > 0 and summary.job == recipe.job
    assert np.isfinite([summary.first_loss, summary.last_loss]).all()
    assert recipes.used(tmp_path / "run" / RECIPE).train == recipe.train
    assert len(read_metrics(tmp_path / "run")) == summary.steps
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert set(kept) - {"adapter", SEARCH} == {
        "checkpoints", "loss.png", "metrics.jsonl", "model", RECIPE, "smoke", SUMMARY, "tensorboard",
    }  # fmt: skip
    assert ("adapter" in kept) == (recipe.lora is not None) and (SEARCH in kept) == (recipe.search is not None)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == recipe.train.checkpoints
    use(summary)


def use(summary):
    """The result loads and does its job."""
    if summary.job == "embed":
        assert runnel.Embedder.load(summary.model).encode(["a text", "another"]).shape[0] == 2
    elif summary.job == "rerank":
        assert len(runnel.Reranker.load(summary.model).score("a query", ["a text", "another"])) == 2
    else:
        assert len(runnel.SentenceRetriever.load(summary.model).score("a query", "One thing. Another thing.")) == 2


def test_search_keeps_the_better_rate_and_does_not_try_twice(tmp_path, monkeypatch):
    rates = ("search.learning_rates=[1e30, 0.3, 1e-3]", "search.share=2", "data.held_out=8", "train.max_steps=4")
    summary = train(tiny("embed", *rates), tmp_path)
    tried = {row["learning_rate"]: row["loss"] for row in map(json.loads, (tmp_path / SEARCH).read_text().splitlines())}
    assert list(tried) == [1e30, 0.3, 1e-3] and tried[1e30] is None and tried[1e-3] < tried[0.3] and summary.learning_rate == 1e-3
    assert set(summary.held_out) >= {"loss"}
    (tmp_path / SUMMARY).unlink()
    before = (tmp_path / SEARCH).read_text()
    assert train(tiny("embed", *rates), tmp_path).learning_rate == 1e-3 and (tmp_path / SEARCH).read_text() == before


# ---- what is learnt ----------------------------------------------------------------------------------------------------


def test_an_embedder_learns_its_pairs(tmp_path):
    """Mean reciprocal rank of the answering paragraph among all, before and after."""
    recipe = tiny("embed", "train.max_steps=30", "train.batch=8", "train.learning_rate=1e-2", "data.rows=24")
    train(recipe, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "smoke" / "pairs.jsonl").read_text().splitlines()[:24]]

    def rank(name):
        embedder = runnel.Embedder.load(name)
        scores = embedder.encode([row["query"] for row in rows]) @ embedder.encode([row["positive"] for row in rows]).T
        mine = [[other["query"] == row["query"] for other in rows] for row in rows]  # a title has several paragraphs
        best = np.where(mine, scores, -2).max(axis=1, keepdims=True)
        return float((1 / (1 + (np.where(mine, -2, scores) > best).sum(axis=1))).mean())

    assert rank(tmp_path / "model") > rank(tmp_path / "smoke" / "model") + 0.2
    losses = [row["loss"] for row in read_metrics(tmp_path)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_a_reranker_learns_its_triples(tmp_path):
    changes = (
        "train.max_steps=60",
        "data.rows=8",
        "samples=1",
        "negatives=2",
        "train.checkpoints=1",
        "warmup=0",
        "train.batch=8",
    )
    train(tiny("rerank", *changes), tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path)]
    assert losses[0] == pytest.approx(np.log(3), rel=0.2) and losses[-1] < 0.5 * losses[0]


def test_a_sentence_retriever_learns_its_evidence(tmp_path):
    summary = train(tiny("sentences", "train.max_steps=30", "data.rows=12", "data.held_out=4", "train.batch=8"), tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert {"loss", "recall_at_1", "recall_at_5"} == set(summary.held_out)


# ---- going on ----------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize(("job", "lora"), [("embed", False), ("embed", True), ("rerank", True), ("sentences", False)])
def test_a_stopped_run_goes_on_and_ends_the_same(job, lora, tmp_path, monkeypatch):
    changes = ("train.max_steps=6", "train.learning_rate=1e-3", "train.checkpoints=2", "train.batch=4", *(["lora.r=4"] * lora))
    recipe = tiny(job, *changes)
    whole = train(recipe, tmp_path / "whole")
    from runnel.training.progress import Recorder

    once = Recorder.on_step_end

    def stop(self, args, state, control, **more):
        once(self, args, state, control, **more)
        if state.global_step == 4:
            raise Stop

    monkeypatch.setattr(Recorder, "on_step_end", stop)
    with pytest.raises(Stop):
        train(recipe, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / SUMMARY).exists()
    monkeypatch.setattr(Recorder, "on_step_end", once)
    resumed = train(recipe, tmp_path / "stopped")
    assert (resumed.steps, resumed.last_loss) == (whole.steps, pytest.approx(whole.last_loss, rel=1e-4))
    one, other = ([(row["step"], row["loss"]) for row in read_metrics(tmp_path / name)] for name in ("whole", "stopped"))
    assert [step for step, _ in other] == list(range(1, 7)) and np.allclose(np.array(one), np.array(other), rtol=1e-4)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-6) for name in first)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = train(tiny("embed", "train.max_steps=1"), tmp_path)
    stamp = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    assert train(tiny("embed", "train.max_steps=1"), tmp_path) == first
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path, monkeypatch):
    from runnel.models import base

    save, calls = base.save_file, []

    def full(tensors, path, metadata=None):
        calls.append(path)
        if "checkpoint-3" in str(path):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(base, "save_file", full)
    recipe = tiny("embed", "train.max_steps=4", "train.checkpoints=4")
    with pytest.raises(OSError, match=r"the disk is full; checkpoint-2 is whole\. Make room and give the same command") as caught:
        train(recipe, tmp_path)
    assert caught.value.errno == errno.ENOSPC and calls
    monkeypatch.setattr(base, "save_file", save)
    assert train(recipe, tmp_path).steps == 4


def test_nan_ends_the_run_and_names_its_rows(tmp_path):
    recipe = tiny("embed", "train.max_steps=5", "train.learning_rate=1e30", "train.warmup=0")
    with pytest.raises(NumericalError, match=r"is (nan|inf) in step [2-5]; its batch was pairs\.jsonl: example \d+ .* is whole"):
        train(recipe, tmp_path)
    assert read_metrics(tmp_path) and not (tmp_path / "model").exists()


def test_two_processes_give_the_losses_of_one(tmp_path):
    """The same batches, shared: in-batch negatives come from both."""
    whole = train(tiny("embed", "train.max_steps=3"), tmp_path / "one")
    command = "-v train pairs --smoke --set train.max_steps=3 --to two".split()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "runnel.cli"]
    done = subprocess.run(
        [*launch, *command], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("2 processes share every batch") == 1
    assert done.stdout.startswith("two/model: 3 steps") and done.stdout.count("two/model") == 1
    one, two = ([row["loss"] for row in read_metrics(tmp_path / name)] for name in ("one", "two"))
    assert len(one) == whole.steps and np.allclose(one, two, rtol=1e-3)


@pytest.mark.parametrize("first", [True, False])
def test_one_process_writes_a_checkpoint(first):
    from runnel.training.trainers import _Saving

    class Library:
        saved = False

        def _save(self, output_dir, state_dict):
            self.saved = True

    class Both(_Saving, Library):
        args = SimpleNamespace(should_save=first)

    trainer = Both()
    trainer._save("folder")
    assert trainer.saved is first


# ---- what is refused ---------------------------------------------------------------------------------------------------


def test_other_settings_in_the_same_folder(tmp_path):
    train(tiny("embed", "train.max_steps=1"), tmp_path)
    with pytest.raises(InputError, match=r"other settings \(train.seed: 0, 5: there, now\)"):
        train(tiny("embed", "train.max_steps=1", "train.seed=5"), tmp_path)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and is no run folder"):
        train(tiny("embed"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_model_without_the_head(tmp_path):
    smoke.write_model(tmp_path / "model", "mamba2")
    recipe = recipes.read("evidence", changes=(f"model.name={tmp_path / 'model'}",))
    with pytest.raises(CheckpointError, match=r"has no head for 'sentences' \(it has: embed\).*model.new_head=true"):
        prepared(recipe)


def test_four_bits_without_their_package(monkeypatch, tmp_path):
    from runnel.training import run

    smoke.write_model(tmp_path / "model", "mamba2")
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'runnel\[qlora\]'"):
        prepared(recipes.read("pairs", changes=(f"model.name={tmp_path / 'model'}", "lora.four_bit=true")))


def test_missing_data(tmp_path):
    recipe = recipes.read("pairs")
    with pytest.raises(InputError, match="comes without data; give --data"):
        train(recipe, tmp_path / "run")
    with pytest.raises(InputError, match=r"none.csv is missing"):
        train(recipe, tmp_path / "run", data=tmp_path / "none.csv")
    assert not (tmp_path / "run").exists()


def test_fsdp_where_saving_would_lose_weights(monkeypatch, tmp_path):
    from runnel.training import run

    monkeypatch.setattr(run, "_trainer", lambda *_: SimpleNamespace(is_fsdp_enabled=True))
    with pytest.raises(InputError, match=r"trainer of 'rerank' does not gather weights that FSDP"):
        run._fit(tiny("rerank"), None, None, tmp_path)


def test_batches_that_cannot_be_shared():
    with pytest.raises(InputError, match=r"train.batch = 5 cannot be shared by 3 \(processes times train.group\)"):
        from runnel.training.trainers import _accumulated

        _accumulated(tiny("rerank", "train.batch=5", "train.group=3"))


# ---- rows --------------------------------------------------------------------------------------------------------------


def rows_of(tmp_path, lines, job="embed", one=None, **table):
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    guard = Decontaminator(table.get("exclude", ()))
    rows = write_rows(tmp_path / "rows.arrow", source, one or DataSet(str(source)), DataTable(**table), job, 0, guard)
    assert isinstance(rows, Dataset) and not list(tmp_path.glob("*.partial"))
    return rows.to_list()


TRIPLES = [{"query": f"q{i}", "positive": f"p{i}", "negative": [f"n{i}{j}" for j in range(6)]} for i in range(5)]


def test_each_sample_has_negatives_of_its_own(tmp_path):
    rows = rows_of(tmp_path, TRIPLES, negatives=3, samples=2)
    assert len(rows) == 10 and list(rows[0]) == ["query", "positive", "negative_1", "negative_2", "negative_3", "row"]
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        drawn = [row[f"negative_{i}"] for row in (one, two) for i in (1, 2, 3)]
        assert len(set(drawn)) == 6 and {text[:2] for text in drawn} == {"n" + one["query"][1]}
    assert rows[2]["row"] == "data.jsonl: example 2 ('q1')"
    assert rows == rows_of(tmp_path, TRIPLES, negatives=3, samples=2)


def test_lists_for_a_reranker(tmp_path):
    (row, *_) = rows_of(tmp_path, TRIPLES, "rerank", negatives=2)
    assert row["docs"][0] == "p0" and set(row["docs"][1:]) < set(TRIPLES[0]["negative"])
    assert row["labels"] == [0.0, -np.inf, -np.inf]  # a softmax of these is 1, 0, 0
    assert torch.tensor(row["labels"]).softmax(0).tolist() == [1, 0, 0]


def test_too_few_negatives_are_repeated_and_told(tmp_path, caplog):
    rows = rows_of(tmp_path, TRIPLES, negatives=8)
    assert len({rows[0][f"negative_{i}"] for i in range(1, 9)}) == 6 and "5 rows repeat some" in caplog.text
    with pytest.raises(InputError, match=r"has no negatives, but data\.negatives = 1"):
        rows_of(tmp_path, [{"query": "q", "positive": "p"}], negatives=1)


def test_random_negatives_are_other_documents(tmp_path):
    rows = rows_of(tmp_path, TRIPLES, negatives=3, negative_source="random")
    for row in rows:
        drawn = {row[f"negative_{i}"] for i in (1, 2, 3)}
        assert len(drawn) == 3 and drawn <= {f"p{i}" for i in range(5)} - {row["positive"]}
    with pytest.raises(InputError, match="no other documents"):
        rows_of(tmp_path, TRIPLES[:1], negatives=1, negative_source="random")


def test_instructions_in_turns_and_rows(tmp_path):
    one = DataSet("unused", instructions=("find", "seek"))
    rows = rows_of(tmp_path, TRIPLES, one=one, prompt="{instruction}: ", rows=3)
    assert [row["query"] for row in rows] == ["find: q0", "seek: q1", "find: q2"]
    assert rows_of(tmp_path, TRIPLES, prompt="{instruction}: ")[0]["query"] == "q0"  # it holds its own
    assert rows_of(tmp_path, TRIPLES, prompt="to find: ")[0]["query"] == "to find: q0"


def test_evidence_as_triples_of_sentences(tmp_path):
    text = "The cat sat. The dog ran. The sea is wide."
    line = {"question": "who ran", "document": text, "evidence": [[13, 25]]}
    (row,) = rows_of(tmp_path, [line], one=DataSet("unused", format="evidence"), negatives=2)
    assert row["positive"] == "The dog ran." and {row["negative_1"], row["negative_2"]} == {"The cat sat.", "The sea is wide."}


def test_evidence_without_two_kinds_of_sentences_is_counted(tmp_path, caplog):
    lines = [
        {"question": "who ran", "document": "The dog ran.", "evidence": [[0, 12]]},
        {"question": "who sat", "document": "The cat sat. The dog ran.", "evidence": [[0, 12]]},
    ]
    assert len(rows_of(tmp_path, lines, one=DataSet("unused", format="evidence"))) == 1
    assert "1 examples were left out" in caplog.text


def test_examples_of_test_sets_are_left_out(tmp_path):
    test = tmp_path / "test.jsonl"
    test.write_text(json.dumps({"query": "Q1!", "positive": "what the test set has for an answer"}) + "\n")
    rows = rows_of(tmp_path, TRIPLES, exclude=(str(test),))
    assert [row["query"] for row in rows] == ["q0", "q2", "q3", "q4"]


def test_a_run_leaves_out_test_sets_and_says_how_much(tmp_path, caplog):
    sentences = [f"Sentence number {i} speaks of something else entirely." for i in range(6)]
    lines = [
        {"query": s[:17], "document": " ".join(sentences[i : i + 3]), "evidence": [[0, 54]]} for i, s in enumerate(sentences[:4])
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "test.jsonl").write_text(json.dumps(lines[0]) + "\n")
    recipe = recipes.read("evidence", changes=('data.exclude=["test.jsonl"]', "train.max_steps=1", "data.held_out=0"))
    with caplog.at_level("WARNING"):
        train(recipe, tmp_path / "run", data=tmp_path / "data.jsonl", home=tmp_path)
    assert "left out: 3 document shares sentences with a test set" in caplog.text  # the last one shares none


def test_no_examples(tmp_path):
    with pytest.raises(InputError, match=r"no examples|is empty"):
        rows_of(tmp_path, [])


def test_batches_cut_queries_and_documents_apart_and_count():
    model = load_model("pocket", dtype="float32")
    batches = EmbedderBatches(model, DataTable(max_query_tokens=3, max_document_tokens=5))
    words = "one two three four five six seven"
    batch = batches([{"query": words, "positive": words, "row": "r"}, {"query": "one", "positive": "one", "row": "s"}])
    special = len(model.templates["document"].render(model.tokenizer, document=np.zeros(0, np.int32)).ids)
    assert batch["query_attention_mask"].sum(1).tolist() == [3 + special, 1 + special]
    assert batch["positive_attention_mask"].sum(1).tolist() == [5 + special, 1 + special]
    assert batches.truncated == 2 and batch["rows"] == ["r", "s"]


def test_smoke_data_of_several_sets_and_unknown_architectures(tmp_path):
    sets = (DataSet(str(tmp_path / "a.jsonl")), DataSet(str(tmp_path / "b.jsonl")))
    smoke.write_data(sets, "embed")
    first, second = (Path(one.path).read_text().splitlines() for one in sets)
    assert len(first) > 50 and len(second) > 50 and not set(first) & set(second)
    with pytest.raises(InputError, match=re.escape("smoke.architecture must be one of mamba1, mamba2, bert, got 'gru'")):
        smoke.write_model(tmp_path / "m", "gru")
