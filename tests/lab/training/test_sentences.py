from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.evidence_examples import arguments, examples
from helpers.tiny import tiny_model
from helpers.tiny_examples import tiny_recipe
from helpers.tiny_training import training_model

from runnel.errors import CheckpointError
from runnel.lab.training.document_trainer import SentenceTrainer, sentence_loss
from runnel.lab.training.forward import freeze
from runnel.lab.training.run import run_recipe
from runnel.lab.training.tables import SentenceData
from runnel.models.model import Model
from runnel.models.sentence_retriever import SentenceRetriever

pytestmark = pytest.mark.usefixtures("one_thread")
GIVEN = examples(12)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_model(tmp_path / "model")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    SentenceData.write(folder / "whole.arrow", tiny_model(folder), GIVEN, tokens=None)
    return folder / "whole.arrow"


def weights(model: Model) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{k}": v.clone()
        for part in ("backbone", "heads")
        for k, v in getattr(model, part).state_dict().items()
    }


def train(
    model: Model, path: Path, folder: Path, max_tokens: int = 10_000, **changes: Any
) -> SentenceTrainer:
    data = SentenceData(model, path)
    trainer = SentenceTrainer(
        model, arguments(folder, **changes), data, data, max_tokens=max_tokens
    )
    trainer.train()
    return trainer


def losses(trainer: SentenceTrainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_normalization_of_the_authors_code_is_that_of_the_run(tmp_path: Path) -> None:
    """A document with one of S sentences as evidence weighs 2 (S - 1) / S."""
    losses = {
        way: run_recipe(
            tiny_recipe("sentences", "train.max_steps=1", f"train.normalization={way}"),
            tmp_path / way,
        ).first_loss
        for way in ("paper", "code")
    }
    assert 1 < losses["code"] / losses["paper"] < 2


@pytest.mark.parametrize("papers_heads", [False, True])
def test_training_lowers_the_loss_that_inference_shows(
    path: Path, tmp_path: Path, papers_heads: bool
) -> None:
    model = tiny_model(tmp_path / "model", papers_heads=papers_heads)
    before = weights(model)
    trainer = train(model, path, tmp_path, num_train_epochs=8)
    assert np.mean(losses(trainer)[-2:]) < 0.7 * losses(trainer)[0]
    assert trainer.watch.tokens == 8 * sum(trainer.train_dataset.lengths)
    measured = trainer.evaluate()
    freeze(model)
    model.save(tmp_path / "saved")
    retriever = SentenceRetriever.load(tmp_path / "saved", dtype="float32")
    by_inference = []
    recalls = []
    data = SentenceData(model, path)
    for index, example in enumerate(GIVEN):
        name, item = data[index]
        assert (name, item.tokens, item.labels.sum()) == (example.id, data.lengths[index], 1)
        labels = torch.from_numpy(item.labels)
        scores = torch.tensor([s.score for s in retriever.score(example.query, example.document)])
        by_inference.append(float(sentence_loss(scores, labels)))
        recalls.append(
            float(labels[scores.topk(min(10, len(scores))).indices].sum() / labels.sum())
        )
    assert measured["eval_loss"] == pytest.approx(np.mean(by_inference), rel=1e-4)
    assert measured["eval_recall_at_10"] == pytest.approx(np.mean(recalls))
    assert measured["eval_recall_at_50"] == 1
    changed = {
        name for name, value in weights(model).items() if not torch.equal(value, before[name])
    }
    parts = {".".join(name.split(".")[:2]) for name in changed}
    assert "heads.sentences" in parts and not parts & {"heads.embed", "heads.rerank"}
    assert ("heads.features.log_weight" in changed) is not papers_heads


def test_a_batch_without_documents_weighs_nothing(path: Path, tmp_path: Path, model: Model) -> None:
    trainer = SentenceTrainer(
        model, arguments(tmp_path), SentenceData(model, path), max_tokens=10_000
    )
    empty = trainer.get_train_dataloader().collate_fn([])
    assert empty["ids"] == [] and len(empty["items"]) == 1
    trainer.create_optimizer()
    assert trainer.training_step(trainer.model, empty, torch.tensor(3)) == 0
    assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


def test_each_epoch_has_its_own_order(
    path: Path, tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    step = SentenceTrainer.training_step
    monkeypatch.setattr(
        SentenceTrainer,
        "training_step",
        lambda *given: seen.extend(given[2]["ids"]) or step(*given),
    )
    train(model, path, tmp_path, max_tokens=200, num_train_epochs=3)
    epochs = [seen[start : start + len(GIVEN)] for start in range(0, len(seen), len(GIVEN))]
    assert [sorted(epoch) for epoch in epochs] == [sorted(e.id for e in GIVEN)] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_checkpoint_of_another_architecture_is_an_error(
    path: Path, tmp_path: Path, model: Model
) -> None:
    trainer = train(model, path, tmp_path, max_steps=1)
    trainer.save_model(str(tmp_path / "checkpoint-1"))
    other = training_model(tmp_path / "other", "rwkv7")
    another = SentenceTrainer(other, trainer.args, trainer.train_dataset, max_tokens=150)
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint-1 is a checkpoint of another model than .*RWKV-7.*: Missing key",
    ):
        another._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
