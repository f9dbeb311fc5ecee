from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.evidence_examples import arguments, examples
from helpers.tiny import tiny_model
from helpers.tiny_training import training_model

from runnel.errors import CheckpointError
from runnel.lab.training.document_trainer import SentenceModule, SentenceTrainer, sentence_loss
from runnel.lab.training.forward import finished
from runnel.lab.training.tables import SentenceData
from runnel.models.base import Model
from runnel.models.graph import Long
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
    return {f"{part}.{k}": v.clone() for part in ("backbone", "heads") for k, v in getattr(model, part).state_dict().items()}


def train(model: Model, path: Path, folder: Path, *, max_tokens: int = 10_000, **changes: Any) -> SentenceTrainer:
    own = {k: changes.pop(k) for k in ("max_rows", "long") if k in changes}
    data = SentenceData(model, path)
    trainer = SentenceTrainer(model, arguments(folder, **changes), data, data, max_tokens=max_tokens, **own)
    trainer.train()
    return trainer


def losses(trainer: SentenceTrainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("papers_heads", [False, True])
def test_training_lowers_the_loss_that_inference_shows(path: Path, tmp_path: Path, papers_heads: bool) -> None:
    model = tiny_model(tmp_path / "model", papers_heads=papers_heads)
    before = weights(model)
    trainer = train(model, path, tmp_path, num_train_epochs=8)
    assert np.mean(losses(trainer)[-2:]) < 0.7 * losses(trainer)[0]
    measured = trainer.evaluate()
    finished(model)
    model.save(tmp_path / "saved")
    retriever = SentenceRetriever.load(tmp_path / "saved", dtype="float32")
    by_inference, recalls, data = [], [], SentenceData(model, path)
    for index, example in enumerate(GIVEN):
        name, item = data[index]
        assert (name, item.tokens, item.labels.sum()) == (example.id, data.lengths[index], 1)
        labels = torch.from_numpy(item.labels)
        scores = torch.tensor([s.score for s in retriever.score(example.query, example.document)])
        by_inference.append(float(sentence_loss(scores, labels)))
        recalls.append(float(labels[scores.topk(min(10, len(scores))).indices].sum() / labels.sum()))
    assert measured["eval_loss"] == pytest.approx(np.mean(by_inference), rel=1e-4)
    assert measured["eval_recall_at_10"] == pytest.approx(np.mean(recalls))
    assert measured["eval_recall_at_50"] == 1
    changed = {name for name, value in weights(model).items() if not torch.equal(value, before[name])}
    parts = {".".join(name.split(".")[:2]) for name in changed}
    assert "heads.sentences" in parts and not parts & {"heads.embed", "heads.rerank"}
    assert ("heads.features.log_weight" in changed) is not papers_heads


def test_how_documents_are_put_into_batches_changes_nothing(path: Path, tmp_path: Path) -> None:
    """One step over all 12 documents: in one batch, six batches of two, or batches of a budget, which hold 1 to 3."""
    found = []
    longest = int(SentenceData(tiny_model(tmp_path / "m"), path).lengths.max())
    two: dict[str, Any] = {"max_rows": 2, "gradient_accumulation_steps": 6}
    for way in ({}, two, {"max_tokens": longest, "gradient_accumulation_steps": 50}):
        model = tiny_model(tmp_path / "model")
        trainer = train(model, path, tmp_path, max_steps=1, optim="sgd", **way)
        found.append((losses(trainer)[0], weights(model)))
        assert trainer.state.global_step == 1
        assert all(batch["tokens"] <= way.get("max_tokens", 10_000) for batch in trainer.get_train_dataloader())
    for loss, after in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(after, found[0][1], rtol=1e-4, atol=1e-6)


def test_truncated_back_propagation_in_little_memory_has_the_gradients_of_the_whole_graph(path: Path, tmp_path: Path) -> None:
    found = []
    for segments in (1, 2):
        long = Long(segment_tokens=24, gradient_segments=segments)
        piecewise = tiny_model(tmp_path / "model")
        trainer = train(piecewise, path, tmp_path, max_steps=1, optim="sgd", long=long, max_rows=4, gradient_accumulation_steps=3)
        data, model = SentenceData(piecewise, path), tiny_model(tmp_path / "model")
        module = SentenceModule(model, long)
        loss = module([data[i][1] for i in range(len(data))])[0].mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        torch.optim.SGD([p for p in module.parameters() if p.grad is not None], lr=1e-2).step()
        assert losses(trainer)[0] == pytest.approx(loss.item(), rel=1e-5)
        assert trainer.state.log_history[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
        torch.testing.assert_close(weights(piecewise), weights(model), rtol=1e-4, atol=1e-6)
        found.append(norm.item())
    assert found[0] != pytest.approx(found[1], rel=1e-5)  # cutting the gradient does make a difference


def test_a_batch_without_documents_weighs_nothing(path: Path, tmp_path: Path, model: Model) -> None:
    for long in (None, Long(segment_tokens=24, gradient_segments=1)):
        trainer = SentenceTrainer(model, arguments(tmp_path), SentenceData(model, path), max_tokens=10_000, long=long)
        collate = trainer.get_train_dataloader().collate_fn
        empty = collate([])
        assert empty["ids"] == [] and len(empty["items"]) == 1
        trainer.create_optimizer()
        assert trainer.training_step(trainer.model, empty, torch.tensor(3)) == 0
        assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


def test_each_epoch_has_its_own_order(path: Path, tmp_path: Path, model: Model) -> None:
    seen: list[list[str]] = [[]]

    class Spy(SentenceTrainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            seen[-1].extend(inputs["ids"])
            if len(seen[-1]) == len(GIVEN):
                seen.append([])
            return super().compute_loss(model, inputs, *args, **kwargs)

    Spy(model, arguments(tmp_path, num_train_epochs=3), SentenceData(model, path), max_tokens=200).train()
    *epochs, rest = seen
    assert rest == [] and [sorted(epoch) for epoch in epochs] == [sorted(e.id for e in GIVEN)] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_checkpoint_of_another_architecture_is_an_error(path: Path, tmp_path: Path, model: Model) -> None:
    trainer = train(model, path, tmp_path, max_steps=1)
    trainer.save_model(str(tmp_path / "checkpoint-1"))
    other = training_model(tmp_path / "other", "rwkv7")
    another = SentenceTrainer(other, trainer.args, trainer.train_dataset, max_tokens=150)
    with pytest.raises(CheckpointError, match=r"checkpoint-1 is a checkpoint of another model than .*RWKV-7.*: Missing key"):
        another._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
