"""`runnel lab evaluate --mteb` on small tasks of mteb with local data: scores, means, resumed work, bad arguments."""

import json

import pytest
from helpers.tiny import tiny_model
from helpers.toy import Toy, ToyConfig
from mteb.mocks.mock_tasks import reranking, retrieval, sts

from runnel import Embedder, Reranker
from runnel.lab.evaluation import mteb as evaluate_mteb
from runnel.lab.evaluation import retrieval as evaluate_retrieval

TEMPLATE = "Instruction: {instruction}\nQuery: "


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    model = tiny_model(tmp_path, papers_heads=True, backbone=Toy(ToyConfig(128, 32)))
    known = {"retrieval": retrieval.MockRetrievalTask, "reranking": reranking.MockRerankingTask, "sts": sts.MockSTSTask}
    monkeypatch.setattr(evaluate_mteb, "find_tasks", lambda name: [known[name]()])
    made = {"rerank": Reranker, "embed": Embedder, "index": Embedder}
    monkeypatch.setattr(evaluate_retrieval, "_model", lambda how, *_: made[how](model))


def test_the_command_reports_scores_and_means_and_resumes(run, tasks, tmp_path):
    command = ("lab", "evaluate", "tiny", "--mteb", "retrieval", "reranking", "sts", "--out", "out", "--prompt", TEMPLATE)
    done = run(*command, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    scores = [one["score"] for one in found["results"]]
    assert [one["type"] for one in found["results"]] == ["Retrieval", "Reranking", "STS"]
    assert found["results"][2]["prompt"] == "Instruction: Retrieve semantically similar text.\nQuery: "
    assert found["means"][-2:] == [
        {"name": "mean over tasks", "tasks": 3, "score": pytest.approx(sum(scores) / 3)},
        {"name": "mean over types", "tasks": 3, "score": pytest.approx(sum(scores) / 3)},
    ]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "mteb" / "results").rglob("Mock*.json")}
    assert len(files) == 3
    again = run(*command)
    assert again.code == 0 and "mean over types" in again.out
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "mteb" / "results").rglob("Mock*.json")}


def test_retrieval_is_reranked_from_the_predictions_of_another_model(run, tasks):
    assert run("lab", "evaluate", "tiny", "--mteb", "retrieval", "--out", "first").code == 0
    done = run("lab", "evaluate", "tiny", "--mteb", "retrieval", "--as", "rerank")
    assert done.code == 1 and "--run FOLDER/mteb/predictions" in done.err
    done = run("lab", "evaluate", "tiny", "--mteb", "retrieval", "--as", "rerank", "--run", "first/mteb/predictions", "--json")
    assert done.code == 0 and json.loads(done.out)["as"] == "rerank", done.err
