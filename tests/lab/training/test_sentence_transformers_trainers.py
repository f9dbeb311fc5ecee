"""The trainers, losses, evaluators and cards of sentence-transformers, on models of runnel."""

import logging
from collections.abc import Iterator
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
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
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


def falls(trained: Any) -> None:
    found = losses_of(trained)
    assert np.mean(found[-3:]) < 0.9 * np.mean(found[:3]), found


def new(tmp_path: Path) -> Model:
    return tiny_model(tmp_path / "tiny", papers_heads=True)


def gradients(there: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in there.named_parameters() if parameter.grad is not None}


def assert_same_gradients(one: Any, other: Any) -> None:
    expected, found = gradients(one), gradients(other)
    assert expected.keys() == found.keys() and len(expected) > 10
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=1e-7, msg=name)


@pytest.mark.parametrize("papers_heads", [False, True])
def test_gradient_cache_gives_the_gradients_of_one_batch(tmp_path: Path, papers_heads: bool) -> None:
    def start(make: Any) -> Any:
        return make(tiny_model(tmp_path / "tiny", papers_heads=papers_heads)).double().train()

    one, other = start(sentence_transformer), start(sentence_transformer)
    features = [[there.preprocess(texts) for texts in (QUERIES, DOCUMENTS, NEGATIVES)] for there in (one, other)]
    plain = losses.MultipleNegativesRankingLoss(one)(features[0], None)
    cached = losses.CachedMultipleNegativesRankingLoss(other, mini_batch_size=5)(features[1], None)
    (plain.backward(), cached.backward())
    assert abs(plain.item() - cached.item()) < 1e-9
    assert_same_gradients(one, other)

    one, other = start(cross_encoder), start(cross_encoder)
    texts = [QUERIES, DOCUMENTS]
    plain = pair_losses.MultipleNegativesRankingLoss(one, num_negatives=None)(texts, None)
    cached = pair_losses.CachedMultipleNegativesRankingLoss(other, num_negatives=None, mini_batch_size=5)(texts, None)
    (plain.backward(), cached.backward())
    assert abs(plain.item() - cached.item()) < 1e-9
    assert_same_gradients(one, other)


IDS = [str(i) for i in range(len(THINGS))]


def retrieval() -> InformationRetrievalEvaluator:
    named, texts = dict(zip(IDS, QUERIES, strict=True)), dict(zip(IDS, DOCUMENTS, strict=True))
    return InformationRetrievalEvaluator(
        named,
        texts,
        {i: {i} for i in IDS},
        ndcg_at_k=[5],
        mrr_at_k=[5],
        map_at_k=[5],
        accuracy_at_k=[1],
        precision_recall_at_k=[1],
    )


def reranking() -> CrossEncoderRerankingEvaluator:
    lists = [{"query": q, "positive": [d], "negative": [n]} for q, d, n in zip(QUERIES, DOCUMENTS, NEGATIVES, strict=True)]
    return CrossEncoderRerankingEvaluator(lists)


@pytest.mark.parametrize("make", [sentence_transformer, cross_encoder])
def test_evaluation_during_training_sees_the_present_weights(model: Model, tmp_path: Path, make: Any) -> None:
    there = make(model)
    evaluator = retrieval() if make is sentence_transformer else reranking()
    key = "cosine_ndcg@5" if make is sentence_transformer else "ndcg@10"
    data, loss = JOBS[make]
    before = evaluator(there)[evaluator.primary_metric]
    trained = trainer(there, tmp_path, data, loss(there), evaluator, max_steps=20, eval_strategy="steps", eval_steps=5)
    trained.train()
    during = [row[f"eval_{key}"] for row in trained.state.log_history if f"eval_{key}" in row]
    assert len(during) == 4 and during[-1] > before, (before, during)
    assert evaluator(there)[evaluator.primary_metric] == pytest.approx(during[-1])
    there.save_pretrained(str(tmp_path / "folder"))
    fresh = make(load_model(tmp_path / "folder", dtype="float32"))
    assert evaluator(fresh)[evaluator.primary_metric] == pytest.approx(during[-1])
    card = (tmp_path / "folder/README.md").read_text()
    assert "### Training Hyperparameters" in card and f"{during[-1]:.4f}".rstrip("0") in card and "where is cat" in card


@pytest.mark.parametrize("make", [sentence_transformer, cross_encoder])
def test_adapters_train_and_are_restored(tmp_path: Path, make: Any) -> None:
    there = make(new(tmp_path))
    start = {name: parameter.clone() for name, parameter in there.named_parameters()}
    add_lora(there[0].model, r=4, alpha=8)
    data, loss = JOBS[make]
    trained = trainer(there, tmp_path / "run", data, loss(there), save_strategy="steps", save_steps=6, learning_rate=1e-2)
    trained.train()
    falls(trained)
    named = dict(there.named_parameters())
    assert {name for name, parameter in named.items() if "backbone" in name and parameter.requires_grad} == {
        name for name in named if ".lora_" in name
    }
    for name, value in start.items():
        if "backbone" in name:
            assert torch.equal(named.get(name, named.get(name.replace(".weight", ".base_layer.weight"))), value), name
    inputs = DOCUMENTS if make is sentence_transformer else [("where is cat", text) for text in DOCUMENTS]
    run = there.encode if make is sentence_transformer else there.predict
    expected = run(inputs)
    assert sorted(path.name for path in (tmp_path / "run/checkpoint-12").glob("*.safetensors")) == ["adapter.safetensors"]

    for rank in (4, None):  # into adapters like those, or none
        again = make(new(tmp_path))
        if rank:
            add_lora(again[0].model, r=rank, alpha=8)
        load_adapter(again[0].model, tmp_path / "run/checkpoint-12")
        found = (again.encode if make is sentence_transformer else again.predict)(inputs)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(CheckpointError, match="holds adapters and heads alone"):
        type(there)(str(tmp_path / "run/checkpoint-12"), trust_remote_code=True, local_files_only=True)

    merge(there[0].model)
    np.testing.assert_allclose(run(inputs), expected, atol=1e-5)
    there.save_pretrained(str(tmp_path / "merged"))
    whole = type(there)(str(tmp_path / "merged"), trust_remote_code=True, local_files_only=True)
    np.testing.assert_allclose((whole.encode if make is sentence_transformer else whole.predict)(inputs), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # the libraries are changing its name
def test_checkpointing_changes_no_loss_and_bf16_little(tmp_path: Path) -> None:
    found = {}
    for name, options in {"plain": {}, "checkpointing": {"gradient_checkpointing": True}, "bf16": {"bf16": True}}.items():
        there = sentence_transformer(new(tmp_path))
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
