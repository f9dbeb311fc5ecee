"""Recipes of every trainer are run in small, as a user runs them: with their curves, their checkpoints and their cards."""

import numpy as np
import pytest
from helpers.tiny_examples import TINY, tiny_recipe
from helpers.tiny_training import read_metrics

import runnel
from runnel.lab.training import recipes
from runnel.lab.training.run import RECIPE, SEARCH, SUMMARY, train
from runnel.models.language_model import LanguageModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("name", sorted(TINY.keys() - {"pairs"}))
def test_tiny_run(name, tmp_path):
    recipe = tiny_recipe(name)
    summary = train(recipe, tmp_path / "run")
    assert summary.steps == recipe.train.max_steps and summary.tokens > 0 and summary.job == recipe.job
    assert np.isfinite([summary.first_loss, summary.last_loss]).all()
    assert recipes.read(str(tmp_path / "run" / RECIPE)).train == recipe.train
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, summary.steps + 1)) and rows[-1]["tokens"] == summary.tokens
    assert {"epoch", "loss", "learning_rate", "grad_norm", "tokens_per_s", "seconds"} <= set(rows[0])
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert set(kept) - {"adapter", SEARCH} == {
        "checkpoints", "loss.png", "model", RECIPE, SUMMARY, "tensorboard",
    }  # fmt: skip
    assert ("adapter" in kept) == (recipe.lora is not None) and (SEARCH in kept) == (recipe.search is not None)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == recipe.train.checkpoints
    use(summary)


def use(summary):
    if summary.job == "embed":
        assert runnel.Embedder.load(summary.model).encode(["a text", "another"]).shape[0] == 2
    elif summary.job == "generate":
        assert len(LanguageModel.load(summary.model).generate("a query", max_tokens=2, stop_ids=()).ids) == 2
    elif summary.job == "rerank":
        assert len(runnel.Reranker.load(summary.model).score("a query", ["a text", "another"])) == 2
    else:
        assert len(runnel.SentenceRetriever.load(summary.model).score("a query", "One thing. Another thing.")) == 2
