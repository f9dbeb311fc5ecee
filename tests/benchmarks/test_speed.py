"""Measurements with processes that answer at once: cells, rounds, series, and no figure without its
check.
"""

from unittest.mock import Mock

import numpy as np
import pytest
from helpers.bench_workers import HIDDEN, wrong_hidden

from benchmarks.extras import remembered, searched, training
from benchmarks.measure import answer, compare
from benchmarks.speed import OTHERS, Settings, measure
from runnel.errors import BackendUnavailable, InputError


def vectors(cosine):
    return np.tile(np.float32([cosine, (1 - cosine**2) ** 0.5]), (5, 1))


EXPECTED = vectors(1.0)


@pytest.mark.parametrize(
    ("dtype", "found", "passed"),
    [
        ("int8", vectors(0.996), True),
        ("int8", vectors(0.994), False),
        ("q8_0", vectors(0.985), True),
        ("q8_0", vectors(0.97), False),
        ("fp32", vectors(0.9999), False),
        ("fp32", EXPECTED + np.float32(1e-6), True),
        ("fp32", EXPECTED + np.float32(2e-3), False),
        ("bf16", EXPECTED[:-1], False),
        ("bf16", np.concatenate([EXPECTED[1:], -EXPECTED[:1]]), False),
        ("bf16", EXPECTED * np.float32(np.nan), False),
    ],
)
def test_how_close_is_the_same(dtype, found, passed):
    assert compare("runnel", "m", dtype, found, EXPECTED).passed is passed


def test_failures_are_answers():
    errors = {
        "out_of_memory": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        "missing": BackendUnavailable("m"),
        "refused": InputError("m"),
        "error": ValueError("m"),
    }
    for key, error in errors.items():
        assert key in answer(Mock(side_effect=error))
    assert "out_of_memory" in answer(Mock(side_effect=MemoryError("m")))


def quiet(message):
    """No progress."""


def bench(lengths=(64, 128), batches=(1,), **changes):
    cells = tuple((batch, tokens) for batch in batches for tokens in lengths)
    return measure(Settings(("m",), cells, **changes), quiet)


def figures(report):
    return {(p.system, p.dtype, p.batch, p.tokens): p.to_dict() for p in report.points}


def test_rounds_and_figures_of_every_cell_of_every_system(fake_workers):
    bench(lengths=(64,), others=("bert",), rounds=2)
    timed = [
        (system, request.get("part")) for system, op, request in fake_workers.asked if op == "time"
    ]
    turn = [("runnel", "system"), ("runnel", "linear"), ("bert", "system")]
    assert timed == turn + turn
    report = bench(batches=(1, 4), dtypes=("bf16", "fp32"), others=OTHERS)
    cells = {(batch, tokens) for batch in (1, 4) for tokens in (64, 128)}
    systems = {(p.system, p.dtype) for p in report.points}
    assert systems == {
        *(
            (name, dtype)
            for name in ("runnel", "linear layers", "bert")
            for dtype in ("bf16", "fp32")
        ),
        ("transformers", "fp32"),
        *(("llama.cpp", dtype) for dtype in ("bf16", "q8_0")),
    }
    assert {(p.batch, p.tokens) for p in report.points if p.system == "bert"} == cells
    assert len(report.points) == len(systems) * len(cells)
    assert all(check.passed for check in report.checks)
    point = figures(bench(batches=(4,), rounds=2))["runnel", "bf16", 4, 64]
    assert point["tokens_per_s"] == pytest.approx(
        {"median": 1000, "mean": 1000, "min": 1000, "max": 1000, "runs": 2}
    )
    figure = point["ms_per_document"], point["of_roofline"]["median"], point["gflops_per_s"]
    assert (
        figure == pytest.approx((64, 0.25, 2))
        and point["peak_bytes"] is None
        and "seconds" not in point
    )


@pytest.mark.parametrize("system", ["runnel", "transformers", "bert"])
def test_no_figure_of_a_system_that_computes_something_else(fake_workers, system):
    fake_workers.answers = {system: {"hidden": wrong_hidden}}
    report = bench(others=("transformers", "bert"), memory=True)
    for point in report.points:
        shown = point.to_dict()
        if point.system == system:
            assert shown["outcome"] == "wrong"
            assert "differs from the plain path: cosine -1.0" in shown["note"]
            assert not any(
                shown[key]
                for key in (
                    "tokens_per_s",
                    "ms_per_document",
                    "gflops_per_s",
                    "of_roofline",
                    "peak_bytes",
                )
            )
    assert not any(
        s == system and op == "time" and request["part"] != "linear"
        for s, op, request in fake_workers.asked
    )
    # The others are compared with the plain path, not with each other: they keep their figures.
    assert [p for p in report.points if p.system not in (system, "linear layers") and p.seconds]


def test_out_of_memory_is_a_result_and_ends_the_series(fake_workers):
    def full(request):
        return (
            {"out_of_memory": "cannot allocate"}
            if request["batch"] >= 4
            else {"seconds": 1.0, "peak_bytes": 5}
        )

    fake_workers.answers = {"runnel": {"train": full}}
    found = trained(memory_limit=1 << 30)
    assert [p["outcome"] for p in found] == ["ok", "out of memory", "out of memory"]
    assert [p["tokens_per_s"] is None for p in found] == [False, True, True]
    assert [p["note"] for p in found] == ["", "cannot allocate", "a smaller batch was"]
    # the check of the gradient has no limit
    assert {spec.memory_limit for spec in fake_workers.started} == {None, 1 << 30}
    assert len(fake_workers.started) == 3

    def short(request):
        return {"out_of_memory": "killed"} if request["tokens"] > 64 else {"seconds": 1.0}

    fake_workers.answers = {"runnel": {"time": short}}
    found = figures(bench())
    assert found["runnel", "bf16", 1, 64]["outcome"] == "ok"
    assert (
        found["runnel", "bf16", 1, 128] | {"outcome": "out of memory", "note": "killed"}
        == found["runnel", "bf16", 1, 128]
    )
    assert found["runnel", "bf16", 1, 128]["tokens_per_s"] is None


def test_slow_cells_are_left_out_and_say_so(fake_workers):
    """At 1000 tokens/s: 64 takes 0.064 s, 8192 takes 8.2 s, 65536 would take 66 s; BERT grows with
    the square.
    """
    found = figures(bench(lengths=(64, 8192, 65536), others=("bert",), slow_s=20.0, rounds=2))
    # long cells are measured once
    assert found["runnel", "bf16", 1, 8192]["tokens_per_s"]["runs"] == 1
    assert found["runnel", "bf16", 1, 64]["tokens_per_s"]["runs"] == 2
    assert found["runnel", "bf16", 1, 65536]["outcome"] == "left out"
    assert found["runnel", "bf16", 1, 65536]["note"] == "it would take about 66 s"
    assert found["bert", "bf16", 1, 8192]["note"] == "it would take about 1,049 s"


@pytest.mark.parametrize("dtypes", [("bf16", "int8"), ("int8", "bf16"), ("int8",)])
def test_eight_bits_are_compared_with_the_linear_layers_in_bf16(fake_workers, dtypes):
    found = figures(bench(dtypes=dtypes, lengths=(64,), others=("bert",), rounds=2))
    assert found.keys() == {("runnel", dtype, 1, 64) for dtype in dtypes} | {
        (s, "bf16", 1, 64) for s in ("linear layers", "bert")
    }
    assert all(
        found["runnel", dtype, 1, 64]["of_roofline"]["median"] == pytest.approx(0.25)
        for dtype in dtypes
    )


def trained(**changes):
    return [p.to_dict() for p in training("m", "runnel", (1, 4, 16), 100, quiet, **changes)]


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
    return {
        row.way: row.to_dict() for row in remembered("m", "bf16", quiet, documents=100, rounds=2)
    }


def test_remembered_over_whole_pairs_of_the_same_round_if_their_scores_agree(fake_workers):
    found = reranked(fake_workers)
    assert found["fp32 states"]["over_whole"] == {
        "median": 11.0,
        "mean": 11.0,
        "min": 10.0,
        "max": 12.0,
        "runs": 2,
    }
    assert found["fp32 states"]["ms_per_document"]["median"] == 10.0
    assert found["int8 states"]["over_whole"]["median"] == 5.5
    for way, least in (("fp32 states", 0.999), ("int8 states", 0.97)):
        assert reranked(fake_workers, **{way: least + 1e-4})[way]["outcome"] == "ok"
        for wrong in (least - 1e-4, float("nan")):
            found = reranked(fake_workers, **{way: wrong})[way]
            assert (found["outcome"], found["ms_per_document"], found["over_whole"]) == (
                "wrong",
                None,
                None,
            )
            assert "agree with whole pairs by" in found["note"]


def test_an_index(fake_workers):
    seconds = {"engine": [1.0, 3.0, 1.0], "index": [2.0, 3.0, 1.25], "remember": [4.0, 4.0, 4.0]}
    timed = {"tokens": 100, "seconds": seconds, "processor": seconds | {"index": [1.0, 3.0, 1.0]}}
    stages = {"first stage": [0.01, 0.02, 0.03], "whole search": [0.1, 0.2, 0.3]}
    fake_workers.answers = {
        "runnel": {"time_indexing": timed, "time_searches": {"seconds": stages, "peak_bytes": 7}}
    }
    row = searched("m", "n", quiet, documents=30, read=40).to_dict()
    assert (row["outcome"], row["read"], row["passages"], row["peak_bytes"]) == (
        "ok",
        30,
        68_500,
        7,
    )
    whole = row["stages"]["whole search"]
    first = row["stages"]["first stage"]
    assert (whole["median"], whole["p95"], first["min"]) == pytest.approx((200, 290, 10))
    found = row["indexing"]["index"]
    assert found["over_engine"]["median"] == pytest.approx(0.8)  # of the ratios of each round
    assert found["over_engine_processor"]["median"] == 1.0
    assert found["tokens_per_s"]["median"] == pytest.approx(50)
    # Searches have a process of their own, whose memory is looked at.
    assert [spec.model for spec in fake_workers.started] == ["m", "n", "m"]
    assert row["keeps_sentences"] and (row["model"], row["indexing_model"]) == ("m", "n")
