"""Measuring speed: cells, rounds, and no figure without its check."""

import pytest
from helpers.bench_workers import wrong_hidden

from benchmarks.speed import Settings, measure

ALL = ("transformers", "llama.cpp", "bert")


def bench(lengths=(64, 128), batches=(1,), **changes):
    said = []
    cells = tuple((batch, tokens) for batch in batches for tokens in lengths)
    report = measure(Settings(("m",), cells, **changes), said.append)
    return report, said


def figures(report):
    """(system, dtype, texts, tokens) -> a point's dictionary."""
    return {(p.system, p.dtype, p.batch, p.tokens): p.to_dict() for p in report.points}


def test_every_cell_of_every_system(fake_workers):
    report, _ = bench(batches=(1, 4), dtypes=("bf16", "fp32"), others=ALL)
    cells = {(batch, tokens) for batch in (1, 4) for tokens in (64, 128)}
    systems = {(p.system, p.dtype) for p in report.points}
    assert systems == {
        *((name, dtype) for name in ("runnel", "linear layers", "bert") for dtype in ("bf16", "fp32")),
        ("transformers", "fp32"),
        *(("llama.cpp", dtype) for dtype in ("bf16", "q8_0")),
    }
    assert {(p.batch, p.tokens) for p in report.points if p.system == "bert"} == cells
    assert len(report.points) == len(systems) * len(cells)
    assert not report.wrong


def test_figures_of_a_cell(fake_workers):
    point = figures(bench(batches=(4,), rounds=2)[0])["runnel", "bf16", 4, 64]
    assert point["tokens_per_s"] == pytest.approx({"median": 1000, "mean": 1000, "min": 1000, "max": 1000, "runs": 2})
    assert point["ms_per_document"] == pytest.approx(64)
    assert point["of_roofline"]["median"] == pytest.approx(0.25)
    assert point["gflops_per_s"] == pytest.approx(2)
    assert point["peak_bytes"] is None
    assert "seconds" not in point


def test_rounds_are_interleaved_over_systems(fake_workers):
    bench(lengths=(64,), others=("bert",), rounds=2)
    timed = [(system, request.get("part")) for system, op, request in fake_workers.asked if op == "time"]
    turn = [("runnel", "system"), ("runnel", "linear"), ("bert", "system")]
    assert timed == turn + turn


@pytest.mark.parametrize("system", ["runnel", "transformers", "bert"])
def test_no_figure_of_a_system_that_computes_something_else(fake_workers, system):
    fake_workers.answers = {system: {"hidden": wrong_hidden}}
    report, _ = bench(others=("transformers", "bert"), memory=True)
    assert report.wrong
    for point in report.points:
        shown = point.to_dict()
        if point.system == system:
            assert shown["outcome"] == "wrong"
            assert "differs from the plain path: cosine -1.0" in shown["note"]
            assert not any(shown[key] for key in ("tokens_per_s", "ms_per_document", "gflops_per_s", "of_roofline", "peak_bytes"))
    assert not [
        1 for asked, op, request in fake_workers.asked if asked == system and op == "time" and request["part"] != "linear"
    ]
    # The others are compared with the plain path, not with each other: they keep their figures.
    assert [p for p in report.points if p.system not in (system, "linear layers") and p.seconds]


@pytest.mark.parametrize("system", ["runnel", "bert"])
def test_a_system_that_breaks_is_a_failure(fake_workers, system):
    fake_workers.answers = {system: {"first": {"error": "it fell over"}}}
    report, _ = bench(others=("bert",))
    assert report.wrong
    assert [check.note for check in report.checks if not check.passed] == ["it fell over"]


def test_out_of_memory_is_a_result(fake_workers):
    def short(request):
        return {"out_of_memory": "killed"} if request["tokens"] > 64 else {"seconds": 1.0}

    fake_workers.answers = {"runnel": {"time": short}}
    found = figures(bench()[0])
    assert found["runnel", "bf16", 1, 64]["outcome"] == "ok"
    assert found["runnel", "bf16", 1, 128] | {"outcome": "out of memory", "note": "killed"} == found["runnel", "bf16", 1, 128]
    assert found["runnel", "bf16", 1, 128]["tokens_per_s"] is None


def test_slow_cells_are_left_out_and_say_so(fake_workers):
    """At 1000 tokens/s: 64 takes 0.064 s, 8192 takes 8.2 s, 65536 would take 66 s; BERT grows with the square."""
    report, _ = bench(lengths=(64, 8192, 65536), others=("bert",), slow_s=20.0, rounds=2)
    found = figures(report)
    assert found["runnel", "bf16", 1, 8192]["tokens_per_s"]["runs"] == 1  # long cells are measured once
    assert found["runnel", "bf16", 1, 64]["tokens_per_s"]["runs"] == 2
    assert found["runnel", "bf16", 1, 65536]["outcome"] == "left out"
    assert found["runnel", "bf16", 1, 65536]["note"] == "it would take about 66 s"
    assert found["bert", "bf16", 1, 8192]["note"] == "it would take about 1,049 s"


@pytest.mark.parametrize("dtypes", [("bf16", "int8"), ("int8", "bf16"), ("int8",)])
def test_eight_bits_are_held_against_the_linear_layers_in_bf16(fake_workers, dtypes):
    report, _ = bench(dtypes=dtypes, lengths=(64,), others=("bert",), rounds=2)
    found = figures(report)
    assert set(found) == {
        *(("runnel", dtype, 1, 64) for dtype in dtypes),
        ("linear layers", "bf16", 1, 64),
        ("bert", "bf16", 1, 64),
    }
    for dtype in dtypes:
        assert found["runnel", dtype, 1, 64]["of_roofline"]["median"] == pytest.approx(0.25)
