"""`runnel evaluate MODEL mteb:TASK` on small tasks of mteb with local data: scores, means, resumed work, bad arguments."""

from __future__ import annotations

import json

import pytest
from helpers.tiny import tiny_model
from helpers.toy import Toy, ToyConfig

from runnel import Embedder, Reranker
from runnel.commands import evaluate_mteb, evaluate_retrieval

pytest.importorskip("mteb")

from mteb.mocks.mock_tasks import reranking, retrieval, sts

TEMPLATE = "Instruction: {instruction}\nQuery: "


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    """Three tasks with local data instead of the hub's, and a model of this test."""
    model = tiny_model(tmp_path, papers_heads=True, backbone=Toy(ToyConfig(128, 32)))
    known = {"retrieval": retrieval.MockRetrievalTask, "reranking": reranking.MockRerankingTask, "sts": sts.MockSTSTask}
    monkeypatch.setattr(evaluate_mteb, "find_tasks", lambda name: [known[name]()])
    made = {"rerank": Reranker, "embed": Embedder, "index": Embedder}
    monkeypatch.setattr(evaluate_retrieval, "_model", lambda how, *_: made[how](model))


def test_the_command_reports_scores_and_means_and_resumes(run, tasks, tmp_path):
    command = ("evaluate", "tiny", "mteb:retrieval", "mteb:reranking", "mteb:sts", "--out", "out", "--prompt", TEMPLATE)
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
    assert run("evaluate", "tiny", "mteb:retrieval", "--out", "first").code == 0
    done = run("evaluate", "tiny", "mteb:retrieval", "--as", "rerank")
    assert (
        done.code == 1
        and "has no candidates; for a retrieval task, name those of another model: --run FOLDER/mteb/predictions" in done.err
    )
    done = run("evaluate", "tiny", "mteb:retrieval", "--as", "rerank", "--run", "first/mteb/predictions", "--json")
    assert done.code == 0 and json.loads(done.out)["as"] == "rerank", done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tiny", "mteb:sts", "beir"], 2, "evaluate MTEB's tasks and beir in two commands"),
        (["tiny", "mteb:sts", "--metrics", "MRR"], 2, "--metrics has no effect on MTEB's tasks"),
        (["tiny", "mteb:sts", "--segment-tokens", "64"], 2, "--segment-tokens has no effect on MTEB's tasks"),
        (["bm25", "mteb:sts"], 1, "bm25 cannot be evaluated on MTEB as bm25"),
        (["tiny", "mteb:sts", "--as", "index"], 1, "is no retrieval task, which an index needs"),
        (["tiny", "mteb:sts", "--k1", "1"], 2, "--k1 has no effect here"),
    ],
)
def test_bad_arguments(run, tasks, arguments, code, message):
    done = run("evaluate", *arguments)
    assert done.code == code and message in " ".join(done.err.replace("│", " ").split())
