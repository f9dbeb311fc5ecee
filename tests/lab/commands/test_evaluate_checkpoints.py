"""`runnel lab evaluate RUN/checkpoints`: every checkpoint of a run, in order; what is no checkpoint is named."""

import json
import shutil

import pytest
import torch
from helpers.tiny import tiny_encoder

from runnel.lab.evaluation import retrieval
from runnel.lab.training import recipes
from tests.helpers.qa_files import write_rows


@pytest.fixture
def checkpoints(beir, tmp_path):
    """Three checkpoints of a run that reads 4 tokens of a query in an evaluation."""
    retrieval._model.cache_clear()
    model, folder = tiny_encoder(tmp_path / "tokenizer"), tmp_path / "run" / "checkpoints"
    for step in (4, 5, 6):
        torch.nn.init.normal_(model.backbone.embeddings.weight, generator=torch.Generator().manual_seed(step))
        model.save(folder / f"checkpoint-{step}")
        write_rows(folder / f"checkpoint-{step}" / "trainer_state.json", [{"global_step": step}])
    recipes.write(recipes.read("pairs", changes=("evaluation.max_query_tokens=4",)), tmp_path / "run" / "recipe.toml")
    return folder


def test_each_checkpoint_is_evaluated_in_order_and_once(run, checkpoints, tmp_path):
    command = ("lab", "evaluate", "run/checkpoints", "beir", "--out", "curve")
    done = run(*command)
    assert done.code == 0, done.err
    points = json.loads((tmp_path / "curve" / "checkpoints.json").read_text())["checkpoints"]
    assert [point["step"] for point in points] == [4, 5, 6]
    runs = [(tmp_path / "curve" / f"checkpoint-{point['step']}" / "beir.trec").read_text() for point in points]
    assert len(set(runs)) == 3
    for point in points:
        (result,) = point["results"]
        assert result["reading"] == {"max_query_tokens": 4}, "as the run's recipe says"
        alone = json.loads(run("lab", "evaluate", f"run/checkpoints/checkpoint-{point['step']}", "beir", "--json").out)
        assert alone["results"][0]["metrics"] == result["metrics"] and f"{result['metrics']['nDCG@10']:.4f}" in done.out
    assert (tmp_path / "curve" / "checkpoints.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(tmp_path / "curve" / "checkpoint-5")  # as if it had been stopped there
    done = run(*command, "--json")
    finished = [step for step in (4, 5, 6) if f"curve/checkpoint-{step}/beir.trec is finished already" in done.err]
    assert finished == [4, 6] and [point["step"] for point in json.loads(done.out)["checkpoints"]] == [4, 5, 6]


def test_what_is_skipped_or_cannot_be_evaluated(run, checkpoints, caplog):
    def evaluate(model):
        done = run("lab", "evaluate", model, "beir", "--json")
        return done.err if done.code else [point["step"] for point in json.loads(done.out)["checkpoints"]]

    (checkpoints / "checkpoint-5" / "trainer_state.json").write_text("{")
    assert evaluate("run/checkpoints") == [4, 6] and "checkpoint-5 is incomplete" in caplog.text
    assert "run is a run; evaluate the finished run's run/model" in evaluate("run")
    (checkpoints / "checkpoint-4" / "config.json").unlink()  # as with LoRA
    assert "checkpoint-4 holds only what was trained, adapters or a head" in evaluate("run/checkpoints")
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()
    assert "run/checkpoints has no complete checkpoint" in evaluate("run/checkpoints")
