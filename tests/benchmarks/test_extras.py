"""Training by batch size, reranking with remembered documents, and an index: figures and the checks before them."""

import numpy as np
import pytest
from helpers.bench_workers import HIDDEN

from benchmarks.extras import remembered, searched, training


def trained(**changes):
    said = []
    return [p.to_dict() for p in training("m", "runnel", (1, 4, 16), 100, said.append, **changes)]


def test_out_of_memory_is_a_result_and_ends_the_series(fake_workers):
    def full(request):
        return {"out_of_memory": "cannot allocate"} if request["batch"] >= 4 else {"seconds": 1.0, "peak_bytes": 5}

    fake_workers.answers = {"runnel": {"train": full}}
    found = trained(memory_limit=1 << 30)
    assert [p["outcome"] for p in found] == ["ok", "out of memory", "out of memory"]
    assert [p["tokens_per_s"] is None for p in found] == [False, True, True]
    assert [p["note"] for p in found] == ["", "cannot allocate", "a smaller batch was"]
    assert {spec.memory_limit for spec in fake_workers.started} == {None, 1 << 30}  # the check of the gradient has no limit
    assert len(fake_workers.started) == 3


def test_no_figure_with_a_wrong_gradient(fake_workers):
    def other(request):
        np.save(request["file"], HIDDEN.ravel() if request["plain"] else -HIDDEN.ravel())
        return {}

    fake_workers.answers = {"runnel": {"gradient": other}}
    found = trained()
    assert {p["outcome"] for p in found} == {"wrong"}
    assert found[0]["note"] == "the gradient differs from fp64: cosine -1.00000"
    assert not [op for _, op, _ in fake_workers.asked if op == "train"]


def reranked(fake_workers, **agreement):
    ways = {"whole pairs": [10.0, 12.0], "fp32 states": [1.0, 1.0], "int8 states": [2.0, 2.0]}
    correlations = {"whole pairs": 1.0, "fp32 states": 1.0, "int8 states": 0.99} | agreement
    fake_workers.answers = {"runnel": {"rerank": {"seconds": ways, "agreement": correlations}}}
    return {row.way: row.to_dict() for row in remembered("m", "bf16", lambda message: None, documents=100, rounds=2)}


def test_remembered_over_whole_pairs_of_the_same_round(fake_workers):
    found = reranked(fake_workers)
    assert found["fp32 states"]["over_whole"] == {"median": 11.0, "mean": 11.0, "min": 10.0, "max": 12.0, "runs": 2}
    assert found["fp32 states"]["ms_per_document"]["median"] == 10.0
    assert found["int8 states"]["over_whole"]["median"] == 5.5


@pytest.mark.parametrize(("way", "least"), [("fp32 states", 0.999), ("int8 states", 0.97)])
def test_no_figure_with_other_scores(fake_workers, way, least):
    assert reranked(fake_workers, **{way: least + 1e-4})[way]["outcome"] == "ok"
    found = reranked(fake_workers, **{way: least - 1e-4})[way]
    assert (found["outcome"], found["ms_per_document"], found["over_whole"]) == ("wrong", None, None)
    assert "agree with whole pairs by" in found["note"]
    assert reranked(fake_workers, **{way: float("nan")})[way]["outcome"] == "wrong"


def test_an_index(fake_workers):
    seconds = {"engine": [1.0, 3.0, 1.0], "index": [2.0, 3.0, 1.25], "remember": [4.0, 4.0, 4.0]}
    timed = {"tokens": 100, "seconds": seconds, "processor": seconds | {"index": [1.0, 3.0, 1.0]}}
    stages = {"first stage": [0.01, 0.02, 0.03], "whole search": [0.1, 0.2, 0.3]}
    answers = {"time_indexing": timed, "time_searches": {"seconds": stages, "peak_bytes": 7}}
    fake_workers.answers = {"runnel": answers}
    row = searched("m", "n", lambda message: None, documents=30, read=40).to_dict()
    assert (row["outcome"], row["read"], row["passages"], row["peak_bytes"]) == ("ok", 30, 68_500, 7)
    assert row["stages"]["whole search"]["median"] == pytest.approx(200) and row["stages"]["first stage"]["min"] == pytest.approx(
        10
    )
    assert row["stages"]["whole search"]["p95"] == pytest.approx(290)
    found = row["indexing"]["index"]
    assert found["over_engine"]["median"] == pytest.approx(0.8)  # of the ratios of each round
    assert found["over_engine_processor"]["median"] == 1.0
    assert found["tokens_per_s"]["median"] == pytest.approx(50)
    # Searches have a process of their own, whose memory is looked at.
    assert [spec.model for spec in fake_workers.started] == ["m", "n", "m"]
    assert row["keeps_sentences"] and (row["model"], row["indexing_model"]) == ("m", "n")


@pytest.mark.parametrize(
    ("op", "answer", "outcome"),
    [
        ("first", {"missing": "no such package"}, ("missing", "no such package")),
        ("fill_index", {"wrong": "other vectors"}, ("wrong", "other vectors")),
        ("fill_index", {"missing": "an index needs lancedb"}, ("missing", "an index needs lancedb")),
        ("time_indexing", {"error": "it fell over"}, ("error", "it fell over")),
        ("time_searches", {"out_of_memory": "killed"}, ("out of memory", "killed")),
    ],
)
def test_no_figure_of_an_index_that_failed(fake_workers, op, answer, outcome):
    fake_workers.answers = {"runnel": {op: answer}}
    row = searched("m", "n", lambda message: None).to_dict()
    assert (row["outcome"], row["note"]) == outcome and row["stages"] == row["indexing"] == {}
