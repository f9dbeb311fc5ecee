"""`runnel lab evaluate RUN/checkpoints`: every checkpoint of a run, in order; what is no checkpoint is named."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.tiny_examples import tiny_recipe

from runnel.lab.evaluation import retrieval
from tests.helpers.qa_files import write_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a tiny embedder with three checkpoints, which reads 4 tokens of a query in an evaluation; and a task."""
    from runnel.lab.training.run import train

    folder = tmp_path_factory.mktemp("trained")
    changes = ("train.checkpoints=3", "train.max_steps=6", "train.learning_rate=0.01", "evaluation.max_query_tokens=4")
    recipe = tiny_recipe("embed", *changes)
    train(recipe, folder / "run")
    rows = [json.loads(line) for line in Path(recipe.data.sets[0].path).read_text().splitlines()]
    queries = {row["query"]: f"q{n}" for n, row in enumerate(rows)}
    write_rows(folder / "task" / "corpus.jsonl", [{"_id": f"d{n}", "text": row["positive"]} for n, row in enumerate(rows)])
    write_rows(folder / "task" / "queries.jsonl", [{"_id": name, "text": text} for text, name in queries.items()])
    judged = [f"{queries[row['query']]}\td{n}\t1" for n, row in enumerate(rows)]
    write_rows(folder / "task" / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    return folder


@pytest.fixture
def place(trained, tmp_path):
    retrieval._model.cache_clear()
    for name in ("run", "task"):
        shutil.copytree(trained / name, tmp_path / name)
    return tmp_path


def metrics(done):
    assert done.code == 0, done.err
    return json.loads(done.out)["results"][0]["metrics"]


def test_each_checkpoint_is_evaluated_in_order_and_once(run, place):
    done = run("lab", "evaluate", "run/checkpoints", "task", "--out", "curve")
    assert done.code == 0, done.err
    points = json.loads((place / "curve" / "checkpoints.json").read_text())["checkpoints"]
    assert [point["step"] for point in points] == [4, 5, 6]
    for point in points:
        (result,) = point["results"]
        assert result["reading"] == {"max_query_tokens": 4}, "as the run's recipe says"
        alone = metrics(run("lab", "evaluate", f"run/checkpoints/checkpoint-{point['step']}", "task", "--json"))
        assert alone == result["metrics"] and f"{alone['nDCG@10']:.4f}" in done.out
    assert points[-1]["results"][0]["metrics"] == metrics(run("lab", "evaluate", "run/model", "task", "--json"))
    assert points[0]["results"][0]["metrics"] != points[-1]["results"][0]["metrics"]
    assert (place / "curve" / "checkpoints.png").read_bytes().startswith(b"\x89PNG")
    run("lab", "evaluate", "run/checkpoints", "task", "--out", "curve")
    shutil.rmtree(place / "curve" / "checkpoint-5")  # as if it had been stopped there
    done = run("lab", "evaluate", "run/checkpoints", "task", "--out", "curve", "--json")
    finished = [step for step in (4, 5, 6) if f"curve/checkpoint-{step}/task.trec is finished already" in done.err]
    assert finished == [4, 6] and [point["step"] for point in json.loads(done.out)["checkpoints"]] == [4, 5, 6]


def test_what_is_skipped_or_cannot_be_evaluated(run, place, caplog):
    checkpoints = place / "run" / "checkpoints"
    (checkpoints / "checkpoint-5" / "trainer_state.json").write_text("{")
    done = run("lab", "evaluate", "run/checkpoints", "task", "--json")
    assert "checkpoint-5 is incomplete" in caplog.text
    assert [point["step"] for point in json.loads(done.out)["checkpoints"]] == [4, 6]
    done = run("lab", "evaluate", "run", "task")
    assert done.code == 1 and "run is a run; evaluate the finished run's run/model" in done.err
    (checkpoints / "checkpoint-4" / "config.json").unlink()  # as with LoRA
    done = run("lab", "evaluate", "run/checkpoints", "task")
    assert done.code == 1 and "checkpoint-4 holds only what was trained, adapters or a head" in done.err
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()
    done = run("lab", "evaluate", "run/checkpoints", "task")
    assert done.code == 1 and "run/checkpoints has no complete checkpoint" in done.err
