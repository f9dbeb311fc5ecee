"""Runs of recipes: what they learn, going on after a stop, and their data."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.files import write_rows
from helpers.tiny_examples import tiny_checkpoint, tiny_recipe
from helpers.tiny_training import read_metrics, stopped_after
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from transformers import Trainer

import runnel
from runnel.errors import CheckpointError, InputError, NumericalError
from runnel.lab.training import recipes
from runnel.lab.training.recipes import DataTable
from runnel.lab.training.run import RECIPE, SEARCH, SUMMARY, run_recipe
from runnel.lab.training.trainers import EmbedderBatches, _Saving
from runnel.models.folder import load_model
from runnel.models.recurrent.language_model import LanguageModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "bare")]


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "rates", "metric"),
    [
        ("embed", [1e30, 0.3, 1e-3], "loss"),
        ("evidence-vectors", [1e-3, 1e-6], "recall_at_10"),
        ("generator", [1e-3, 1e-6], "loss"),
    ],
)
def test_the_search_is_for_every_job_and_by_its_metric(name, rates, metric, tmp_path):
    changes = (
        f"search.learning_rates={rates}",
        "search.share=2",
        f"search.metric={metric}",
        "data.held_out=8",
        "data.rows=40",
    )
    recipe = tiny_recipe(name, *changes, "train.max_steps=6")
    if name != "embed":
        with stopped_after(4):  # in the first rate
            run_recipe(recipe, tmp_path)
    summary = run_recipe(recipe, tmp_path)
    tried = {
        row["learning_rate"]: row[metric]
        for row in map(json.loads, (tmp_path / SEARCH).read_text().splitlines())
    }
    finite = {rate: figure for rate, figure in tried.items() if figure is not None}
    best = min(finite, key=finite.get) if metric == "loss" else max(finite, key=finite.get)
    assert list(tried) == rates and tried.keys() - finite.keys() == {1e30} & tried.keys()
    assert summary.learning_rate == best and summary.steps == 6 and metric in summary.held_out
    (tmp_path / SUMMARY).unlink()
    before = (tmp_path / SEARCH).read_text()
    assert (
        run_recipe(recipe, tmp_path).learning_rate == best
        and (tmp_path / SEARCH).read_text() == before
    ), "no rate is tried twice"
    assert not (tmp_path / "search").exists() and not (tmp_path / "data").exists()
    with pytest.raises(InputError, match=r"'nothing'.*loss"):
        run_recipe(
            replace(recipe, search=replace(recipe.search, metric="nothing")), tmp_path / "other"
        )


def test_an_embedder_learns_its_pairs(tmp_path):
    recipe = tiny_recipe(
        "embed", "train.max_steps=30", "train.batch=8", "train.learning_rate=1e-2", "data.rows=24"
    )
    run_recipe(recipe, tmp_path)
    rows = [
        json.loads(line) for line in Path(recipe.data.sets[0].path).read_text().splitlines()[:24]
    ]

    def rank(name):
        embedder = runnel.Embedder.load(name)
        scores = (
            embedder.encode([row["query"] for row in rows])
            @ embedder.encode([row["positive"] for row in rows]).T
        )
        # a title has several paragraphs
        mine = [[other["query"] == row["query"] for other in rows] for row in rows]
        best = np.where(mine, scores, -2).max(axis=1, keepdims=True)
        return float((1 / (1 + (np.where(mine, -2, scores) > best).sum(axis=1))).mean())

    assert rank(tmp_path / "model") > rank(recipe.model.name) + 0.2


def test_a_reranker_learns_its_triples(tmp_path):
    changes = (
        "train.max_steps=60 data.rows=8 data.samples=1 data.negatives=2 train.checkpoints=1"
        " train.warmup=0 train.batch=8".split()
    )
    run_recipe(tiny_recipe("rerank", *changes), tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path)]
    assert losses[0] == pytest.approx(np.log(3), rel=0.2) and losses[-1] < 0.5 * losses[0]


def use(summary):
    if summary.job == "embed":
        assert runnel.Embedder.load(summary.model).encode(["a text", "another"]).shape[0] == 2
    elif summary.job == "generate":
        assert (
            len(
                LanguageModel.load(summary.model).generate("a query", max_tokens=2, stop_ids=()).ids
            )
            == 2
        )
    elif summary.job == "rerank":
        assert len(runnel.Reranker.load(summary.model).score("a query", ["a text", "another"])) == 2
    else:
        retriever = runnel.SentenceRetriever.load(summary.model)
        units = 1 if retriever.model.unit == "clauses" else 2  # joined up to 20 tokens
        assert len(retriever.score("a query", "One thing. Another thing.")) == units


JOBS = ["embed", "rerank lora", "sentences", "sentences lora", "evidence-vectors", "generator"]


@pytest.mark.parametrize("job", [*JOBS, "linear-time-embeddings", "sentence-baseline"])
def test_a_stopped_run_goes_on_and_ends_the_same(job, tmp_path):
    job, _, lora = job.partition(" ")
    changes = [
        "train.max_steps=6",
        "train.learning_rate=1e-3",
        "train.checkpoints=2",
        "train.batch=4",
    ]
    changes += ["lora.r=4"] * bool(lora)
    # stopped in its second epoch
    changes += ["data.rows=16", "model.unit=clauses"] * (job == "sentences")
    recipe = replace(tiny_recipe(job, *changes), search=None)
    whole = run_recipe(recipe, tmp_path / "whole")
    kept = {path.name for path in (tmp_path / "whole").iterdir()}
    assert kept - {"adapter"} == {"checkpoints", "model", RECIPE, SUMMARY, "tensorboard"}
    assert ("adapter" in kept) == (recipe.lora is not None)
    use(whole)
    assert load_model(whole.model).unit == (recipe.model.unit or "sentence")
    with stopped_after(4):
        run_recipe(recipe, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / SUMMARY).exists()
    if job == "rerank":
        part = next((tmp_path / "stopped" / "checkpoints").iterdir())
        with pytest.raises(CheckpointError, match="holds adapters and heads alone"):
            CrossEncoder(str(part), trust_remote_code=True, local_files_only=True)
    resumed = run_recipe(recipe, tmp_path / "stopped")
    assert (resumed.steps, resumed.tokens, resumed.last_loss) == (
        whole.steps,
        whole.tokens,
        pytest.approx(whole.last_loss, rel=1e-4),
    )
    one, other = (
        [(row["step"], row["loss"]) for row in read_metrics(tmp_path / name)]
        for name in ("whole", "stopped")
    )
    assert {"epoch", "learning_rate", "grad_norm", "tokens", "tokens_per_s"} <= set(
        read_metrics(tmp_path / "whole")[0]
    )
    assert [step for step, _ in other] == list(range(1, 7)) and np.allclose(
        np.array(one), np.array(other), rtol=1e-4
    )
    first = weights(tmp_path / "whole")
    second = weights(tmp_path / "stopped")
    assert all(torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-6) for name in first)
    (tmp_path / "whole" / SUMMARY).unlink()  # as if it had been stopped after its last step
    again = run_recipe(recipe, tmp_path / "whole")
    assert (again.steps, again.tokens, again.last_loss) == (
        whole.steps,
        whole.tokens,
        whole.last_loss,
    )
    saved = weights(tmp_path / "whole")
    assert all(torch.equal(first[name], saved[name]) for name in first)


@pytest.mark.parametrize("message", ["I/O error: No space left on device (os error 28)", ""])
def test_a_full_disk_leaves_the_checkpoint_before_whole(message, tmp_path, monkeypatch):
    original = torch.save

    def save(value, path, *others, **more):
        full = str(path).endswith("checkpoint-3/optimizer.pt")
        if full and message:
            raise SafetensorError(message)
        original(value, "/dev/full" if full else path, *others, **more)

    monkeypatch.setattr(torch, "save", save)
    recipe = tiny_recipe("embed", "train.max_steps=4", "train.checkpoints=4")
    with pytest.raises(OSError, match=r"disk is full.*checkpoint-2 ") as caught:
        run_recipe(recipe, tmp_path)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert run_recipe(recipe, tmp_path).steps == 4


def test_nan_ends_the_run_and_names_its_rows(tmp_path):
    recipe = tiny_recipe("embed", "train.max_steps=5", "train.learning_rate=1e30", "train.warmup=0")
    with pytest.raises(
        NumericalError,
        match=r"loss is (nan|inf) in step [2-5]; .* pairs\.jsonl: example \d+ .* is complete",
    ):
        run_recipe(recipe, tmp_path)
    assert read_metrics(tmp_path) and not (tmp_path / "model").exists()


SHARED = {  # every step of "sentences" is over all of its 13 documents, an odd number
    "embed": ("train.max_steps=3", "data.rows=41"),
    "sentences": (
        "train.max_steps=3",
        "data.rows=15",
        "data.held_out=2",
        "train.batch=32",
        "train.group=2",
    ),
}


@pytest.mark.parametrize("job", SHARED)
def test_two_processes_give_the_losses_of_one(job, tmp_path):
    recipe = tiny_recipe(job, *SHARED[job])
    whole = run_recipe(recipe, tmp_path / "one")
    recipes.write(recipe, tmp_path / "tiny.toml")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "runnel",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, *"-v lab train tiny.toml --to two".split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("2 processes share every batch") == 1
    assert ("rows skipped in each epoch: 1 of 41 (pairs)" in done.stderr) == (job == "embed")
    assert done.stdout.startswith("two/model: 3 steps") and done.stdout.count("two/model") == 1
    one, two = (
        [(row["loss"], row["grad_norm"]) for row in read_metrics(tmp_path / name)]
        for name in ("one", "two")
    )
    assert len(one) == whole.steps and np.allclose(one, two, rtol=1e-3)
    assert json.loads((tmp_path / "two" / SUMMARY).read_text())["held_out"] == pytest.approx(
        whole.held_out, rel=1e-3
    )


@pytest.mark.parametrize("first", [True, False])
def test_one_process_writes_a_checkpoint(first, monkeypatch):
    save = Mock()
    monkeypatch.setattr(Trainer, "_save", save)
    trainer = _Saving.__new__(_Saving)
    trainer.args = SimpleNamespace(should_save=first)
    trainer._save("folder")
    assert save.called is first


def test_batches_cut_queries_and_documents_apart_and_count():
    """The numbers of a recipe are those of the ids of a row, special tokens included."""
    batches = EmbedderBatches(
        load_model("pocket", dtype="float32"), DataTable(max_query_tokens=5, max_document_tokens=7)
    )
    words = "one two three four five six seven"
    batch = batches(
        [
            {"query": words, "positive": words, "row": "r"},
            {"query": "one", "positive": "one", "row": "s"},
        ]
    )
    assert batch["query_attention_mask"].sum(1).tolist() == [5, 3]
    assert batch["positive_attention_mask"].sum(1).tolist() == [7, 3]
    assert batches.truncated == 2 and batch["rows"] == ["r", "s"]


def test_pairs_triples_and_rows_with_fewer_negatives_are_trained_on_together(tmp_path, monkeypatch):
    """Two sets, one of pairs only: every row is trained on, in batches of rows with equally many
    negatives.
    """
    pairs = [{"query": f"question {i}", "positive": f"the answer {i}"} for i in range(6)]
    negatives = [[f"no {i}", f"nor {i}"][: i % 3] for i in range(9)]
    triples = [
        {"query": f"other {i}", "positive": f"an answer {i}", "negative": some}
        for i, some in enumerate(negatives)
    ]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    write_rows(tmp_path / "triples.jsonl", triples)
    (tmp_path / "recipe.toml").write_text(
        'job = "embed"\ndata.negatives = 2\ntrain = { epochs = 1, batch = 3, learning_rate ='
        " 1e-2 }\n"
        f"model.name = {str(tiny_checkpoint('mamba2'))!r}\n"
        '[[data.sets]]\npath = "pairs.jsonl"\n[[data.sets]]\npath = "triples.jsonl"\n'
    )
    recipe = recipes.read(str(tmp_path / "recipe.toml"))
    seen = []
    original = EmbedderBatches.__call__
    monkeypatch.setattr(
        EmbedderBatches, "__call__", lambda self, rows: seen.append(rows) or original(self, rows)
    )
    summary = run_recipe(recipe, tmp_path / "run", home=tmp_path)
    assert summary.steps == 5 and np.isfinite([summary.first_loss, summary.last_loss]).all()
    found = sorted(
        (row["query"], sum(name.startswith("negative") for name in row))
        for batch in seen
        for row in batch
    )
    assert found == sorted(
        [(f"question {i}", 0) for i in range(6)] + [(f"other {i}", i % 3) for i in range(9)]
    )


@pytest.mark.parametrize("own", [None, "", "seek: "])
def test_the_texts_trained_on_are_those_that_are_read_afterwards(own, tmp_path, monkeypatch):
    """The ids of a batch in training are those of `encode_query` and `encode_document` with the
    trained model.
    """
    model = load_model(str(tiny_checkpoint("mamba2")))
    model.prompts = {"query": "find: ", "document": "text: ", "other": "x: "}
    model.save(tmp_path / "prompted")
    lines = [
        {"query": f"question {i}", "positive": f"answer {i}", "negative": f"no {i}"}
        for i in range(2)
    ]
    data = write_rows(tmp_path / "data.jsonl", lines)
    changes = (
        f"model.name={tmp_path / 'prompted'}",
        "data.negatives=1",
        "train.max_steps=1",
        "train.batch=2",
    )
    recipe = recipes.read(
        "pairs", changes=changes if own is None else (*changes, f"data.prompt={own!r}")
    )
    batches = []
    original = EmbedderBatches.__call__
    monkeypatch.setattr(
        EmbedderBatches,
        "__call__",
        lambda self, rows: batches.append(original(self, rows)) or batches[-1],
    )
    summary = run_recipe(recipe, tmp_path / "run", data=data)
    embedder = runnel.Embedder.load(summary.model)
    read = []
    embedder.encode_rows = lambda rows, progress=None: iter(
        read.append(list(rows)) or [np.zeros(1)] * 2
    )
    embedder.encode_query([line["query"] for line in lines])
    for column in ("positive", "negative"):
        embedder.encode_document([line[column] for line in lines])
    for column, wanted in zip(("query", "positive", "negative_1"), read, strict=True):
        ids = batches[0][f"{column}_input_ids"]
        assert sorted(map(tuple, ids.tolist())) == sorted(
            map(tuple, (row.tolist() for row in wanted))
        ), column
    assert summary.tokens == sum(len(row) for rows in read for row in rows)
    assert (
        embedder.model.prompts.get("query") == {None: "find: ", "": None, "seek: ": "seek: "}[own]
    )
