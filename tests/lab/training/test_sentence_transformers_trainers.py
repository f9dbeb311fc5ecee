"""The trainers, losses, evaluators and cards of sentence-transformers, on models of runnel."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.tiny import tiny_model
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.cross_encoder import losses as pair_losses
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from runnel.errors import CheckpointError, InputError
from runnel.integrations.sentence_transformers import cross_encoder, sentence_transformer
from runnel.models.adapters import add_lora, load_adapter, merge
from runnel.models.base import Model, load_model

pytestmark = pytest.mark.slow

THINGS = ["cat", "dog", "mat", "river", "sea", "clause", "7", "42", "x", "queen", "of the", "zebra"]
QUERIES = [f"where is {thing}" for thing in THINGS]
DOCUMENTS = [f"the {thing} is on the mat" + " finally" * (i % 4) for i, thing in enumerate(THINGS)]
NEGATIVES = DOCUMENTS[1:] + DOCUMENTS[:1]
PAIRS = Dataset.from_dict({"query": QUERIES, "document": DOCUMENTS})
TRIPLES = Dataset.from_dict({"query": QUERIES, "document": DOCUMENTS, "negative": NEGATIVES})
LABELLED = Dataset.from_dict(
    {"query": QUERIES * 2, "document": DOCUMENTS + NEGATIVES, "label": [1.0] * len(QUERIES) + [0.0] * len(QUERIES)}
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    caplog.set_level(logging.WARNING)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_model(tmp_path / "tiny", papers_heads=True)


def arguments(there: SentenceTransformer | CrossEncoder, folder: Path, **options: Any) -> Any:
    kind = SentenceTransformerTrainingArguments if isinstance(there, SentenceTransformer) else CrossEncoderTrainingArguments
    defaults = {"max_steps": 12, "per_device_train_batch_size": 6, "learning_rate": 3e-3, "save_strategy": "no"}
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "logging_steps": 1, "dataloader_pin_memory": False}
    return kind(output_dir=str(folder), **{**fixed, **defaults, **options})


def trainer(there: Any, folder: Path, data: Any, loss: Any, evaluator: Any = None, **options: Any) -> Any:
    kind = SentenceTransformerTrainer if isinstance(there, SentenceTransformer) else CrossEncoderTrainer
    return kind(there, arguments(there, folder, **options), train_dataset=data, loss=loss, evaluator=evaluator)


def losses_of(trained: Any) -> list[float]:
    return [row["loss"] for row in trained.state.log_history if "loss" in row]


JOBS: dict[Any, tuple[Dataset, Any]] = {
    sentence_transformer: (PAIRS, losses.MultipleNegativesRankingLoss),
    cross_encoder: (LABELLED, pair_losses.BinaryCrossEntropyLoss),
}


@pytest.mark.parametrize("papers_heads", [False, True])
def test_gradient_cache_gives_the_gradients_of_one_batch(tmp_path: Path, papers_heads: bool) -> None:
    cached = partial(losses.CachedMultipleNegativesRankingLoss, mini_batch_size=5)
    found = []
    for kind in (losses.MultipleNegativesRankingLoss, cached):
        there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=papers_heads)).double().train()
        loss = kind(there)([there.preprocess(texts) for texts in (QUERIES, DOCUMENTS, NEGATIVES)], None)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in there.named_parameters() if parameter.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    assert len(found[0]) > 10
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-7)


def test_evaluation_during_training_sees_the_present_weights(model: Model, tmp_path: Path) -> None:
    queries, texts = dict(enumerate(QUERIES)), dict(enumerate(DOCUMENTS))
    at: dict[str, Any] = {f"{name}_at_k": [5] for name in ("ndcg", "mrr", "map", "accuracy", "precision_recall")}
    evaluator = InformationRetrievalEvaluator(queries, texts, {i: {i} for i in queries}, **at)
    there = sentence_transformer(model)
    before = evaluator(there)[evaluator.primary_metric]
    loss = losses.MultipleNegativesRankingLoss(there)
    trained = trainer(there, tmp_path, PAIRS, loss, evaluator, max_steps=20, eval_strategy="steps", eval_steps=5)
    trained.train()
    during = [row["eval_cosine_ndcg@5"] for row in trained.state.log_history if "eval_cosine_ndcg@5" in row]
    assert len(during) == 4 and during[-1] > before, (before, during)
    there.save_pretrained(str(tmp_path / "folder"))
    for one in (there, sentence_transformer(load_model(tmp_path / "folder", dtype="float32"))):
        assert evaluator(one)[evaluator.primary_metric] == pytest.approx(during[-1])
    card = (tmp_path / "folder/README.md").read_text()
    assert "### Training Hyperparameters" in card and f"{during[-1]:.4f}".rstrip("0") in card and "where is cat" in card


@pytest.mark.parametrize("make", JOBS)
def test_adapters_are_trained_saved_and_merged(model: Model, tmp_path: Path, make: Any) -> None:
    def outputs(there: Any) -> np.ndarray:
        return (
            there.encode(DOCUMENTS) if make is sentence_transformer else there.predict([("where is cat", d) for d in DOCUMENTS])
        )

    there = make(model)
    add_lora(there[0].model, r=4, alpha=8)
    data, loss = JOBS[make]
    trained = trainer(there, tmp_path / "run", data, loss(there), save_strategy="steps", save_steps=6, learning_rate=1e-2)
    trained.train()
    assert np.mean(losses_of(trained)[-3:]) < 0.9 * np.mean(losses_of(trained)[:3])
    expected = outputs(there)
    assert [path.name for path in (tmp_path / "run/checkpoint-12").glob("*.safetensors")] == ["adapter.safetensors"]
    again = make(tiny_model(tmp_path / "tiny", papers_heads=True))
    load_adapter(again[0].model, tmp_path / "run/checkpoint-12")
    np.testing.assert_allclose(outputs(again), expected, atol=1e-6)
    with pytest.raises(CheckpointError, match="holds adapters and heads alone"):
        type(there)(str(tmp_path / "run/checkpoint-12"), trust_remote_code=True, local_files_only=True)
    merge(there[0].model)
    there.save_pretrained(str(tmp_path / "merged"))
    whole = type(there)(str(tmp_path / "merged"), trust_remote_code=True, local_files_only=True)
    np.testing.assert_allclose(outputs(whole), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # the libraries are changing its name
def test_checkpointing_changes_no_loss_and_bf16_little(tmp_path: Path) -> None:
    found = {}
    for name, options in {"plain": {}, "checkpointing": {"gradient_checkpointing": True}, "bf16": {"bf16": True}}.items():
        there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=True))
        loss = losses.MultipleNegativesRankingLoss(there)
        trained = trainer(there, tmp_path, TRIPLES, loss, max_steps=5, learning_rate=1e-4, **options)
        trained.train()
        assert there[0].long.recompute == (name == "checkpointing")
        found[name] = losses_of(trained)
    assert found["checkpointing"] == pytest.approx(found["plain"], abs=1e-4)
    assert found["bf16"] == pytest.approx(found["plain"], abs=0.05) and found["bf16"] != found["plain"]


def test_half_precision_is_refused(model: Model) -> None:
    there = sentence_transformer(model).train()
    features = there.preprocess(["cat"])
    with torch.autocast("cpu", torch.float16), pytest.raises(InputError, match="recurrent states overflow; use bf16=True"):
        there(features)
