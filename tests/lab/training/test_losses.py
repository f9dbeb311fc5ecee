"""The losses of papers A to C, computed again in double precision from a batch of the Trainer and
the vectors and scores of inference.
"""

import numpy as np
import pytest
from helpers.tiny_examples import tiny_recipe

from runnel import Embedder, Reranker
from runnel.lab.training import forward, start
from runnel.lab.training.run_data import DataFiles, read_run_data
from runnel.lab.training.trainers import make_trainer


def loss_of_a_batch(recipe, folder):
    """The model, prepared for inference again, a batch, and its loss."""
    model = start.load_start(recipe)
    data = read_run_data(recipe, model, DataFiles(folder / "data", write=True))
    trainer = make_trainer(model, recipe, data, folder)
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, dict(batch)).item()
    forward.freeze(model)
    return model, batch, loss


@pytest.mark.parametrize("group", [4, 2])
def test_an_embedder_tells_its_document_from_all_documents_of_the_batch(group, tmp_path):
    """Paper A, equation 5; `group` goes through the gradient cache."""
    changes = ("data.negatives=2", "train.batch=4", f"train.group={group}", "train.precision=fp32")
    recipe = tiny_recipe("embed", *changes)
    model, batch, loss = loss_of_a_batch(recipe, tmp_path)
    vectors = {}
    for column in ("query", "positive", "negative_1", "negative_2"):
        masks = batch[f"{column}_attention_mask"].bool().numpy()
        ids = batch[f"{column}_input_ids"].numpy()
        rows = [row[mask].astype(np.int32) for row, mask in zip(ids, masks, strict=True)]
        vectors[column] = np.array(list(Embedder(model).encode_rows(rows)), np.float64)
    queries = vectors.pop("query")
    documents = np.concatenate(list(vectors.values()))
    assert len(queries) == 4 and len(documents) == 4 * (1 + 2)
    logits = queries @ documents.T / recipe.train.temperature
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), np.arange(4)]
    assert loss == pytest.approx(expected.mean(), rel=1e-4)


def test_a_reranker_tells_its_document_from_its_negatives(tmp_path):
    """Papers B and C: the softmax over one document that answers and the negatives of its query."""
    recipe = tiny_recipe("rerank", "train.batch=2", "train.precision=fp32")
    model, batch, loss = loss_of_a_batch(recipe, tmp_path)
    reranker = Reranker(model)
    expected = []
    for query, documents in zip(batch["query"], batch["docs"], strict=True):
        assert len(documents) == 1 + recipe.data.negatives
        scores = reranker.score(query, documents, max_tokens=recipe.data.max_tokens)
        scores = scores.astype(np.float64)
        expected.append(np.log(np.exp(scores).sum()) - scores[0])
    assert loss == pytest.approx(np.mean(expected), rel=1e-4)
