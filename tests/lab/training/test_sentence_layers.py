"""Training of the layers that read sentences: what is read, what is learned, and what stays."""

from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_encoder
from helpers.tiny_training import read_metrics
from lab.training.test_vectors import write_evidence

from runnel.errors import InputError
from runnel.lab.training import recipes
from runnel.lab.training.data import read_evidence
from runnel.lab.training.run import prepared, train
from runnel.lab.training.vectors import QUESTIONS, LayerData, LayerModule, read_vector_data
from runnel.models.base import load_model
from runnel.models.sentence_retriever import SentenceRetriever

pytestmark = pytest.mark.usefixtures("one_thread", "bare")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    write_evidence(folder / "evidence.jsonl", documents=20)
    tiny_encoder(folder / "tiny", block=24, longest=40, sentence_layers=1).save(folder / "model")
    tiny_encoder(folder / "plain", block=24, longest=40).save(folder / "without")
    return folder


def recipe(data: Path, *changes: str, model: str = "model"):
    settings = ("train.learning_rate=1e-2", "train.batch=2", "data.held_out=8", "evaluation.top_k=[1]", "model.layers=true")
    return recipes.read("evidence-vectors", changes=(f"model.name={data / model}", *settings, *changes))


def test_training_reads_as_inference_reads(data, tmp_path):
    """The first vectors and scores of training are those of the retriever, for documents of one and of several passages."""
    model, reader = prepared(recipe(data)), SentenceRetriever.load(data / "model", "float32")
    read, _, aside = read_vector_data(
        reader.scorer, read_evidence(data / "evidence.jsonl"), tmp_path / "documents", 0, write=True
    )
    rows = LayerData([read, aside], model)
    items = [rows[index][1] for index in range(len(rows))]
    assert sum(len(item.queries) for item in items) == 40, "every question is trained on once, and only about its own document"
    module = LayerModule(model.backbone, model.head("sentences")).eval()
    with torch.no_grad():
        _, scores = module(items)
        for item, found in zip(items, scores, strict=True):
            vectors, queries = module._vectors(item)
            assert len(item.queries) <= QUESTIONS and len(item.cu_seqlens) > 2
            torch.testing.assert_close(vectors, item.vectors, atol=2e-2, rtol=0)  # stored in 8 bits
            torch.testing.assert_close(queries, item.query_vectors, atol=1e-5, rtol=1e-4)
            expected = [
                model.head("sentences").uncalibrated(*x) for x in zip(queries, [vectors] * 8, item.features, strict=False)
            ]
            torch.testing.assert_close(found, expected)


def test_layers_learn_and_all_else_stays(data, tmp_path):
    rows = (data / "evidence.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(rows[:12]))  # few enough to learn by heart
    summary = train(recipe(data, "train.max_steps=40", "data.held_out=2"), tmp_path / "run", data=tmp_path / "few.jsonl")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(losses) == summary.steps == 40 and sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert set(summary.held_out) == {"loss", "loss_before", "recall_at_1", "recall_at_1_before"}
    start, end = (load_model(folder, "float32") for folder in (data / "model", summary.model))
    before, after = start.backbone.state_dict(), end.backbone.state_dict()
    changed = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"sentence_layers"}
    heads = start.heads.state_dict(), end.heads.state_dict()
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_models_without_such_layers_are_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"model\.layers"):
        prepared(recipe(data, model="without"))
    with pytest.raises(InputError, match=r"model\.new_head = false"):
        prepared(recipe(data, "new_head=true"))
