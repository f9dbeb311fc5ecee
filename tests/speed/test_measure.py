"""Measuring a model next to its linear layers: no figure without its check."""

import numpy as np
import pytest
import torch
from helpers.bench_workers import HIDDEN

from runnel.errors import BackendUnavailable, InputError, MissingDependency
from runnel.speed.measure import Point, answer, compare, measure, set_peak, spread
from runnel.speed.subject import Clock, LinearLayers, Subject


@pytest.fixture
def clock(monkeypatch):
    """The model reads 1000 tokens a second, its linear layers 4000; returns the segments that were asked for."""
    segments = []

    def seconds(self, run, batch, tokens, segment):
        segments.append(segment)
        return batch * tokens / (4000 if isinstance(run.__self__, LinearLayers) else 1000)

    monkeypatch.setattr(Clock, "seconds", seconds)
    return segments


def figures(points):
    """(system, dtype, texts, tokens) -> a point's dictionary."""
    return {(p.system, p.dtype, p.batch, p.tokens): p.to_dict() for p in points}


def test_every_cell_of_every_dtype(clock):
    said = []
    points, checks, plan = measure("tiny", ("bf16", "fp32"), ((1, 64), (2, 9)), said.append, rounds=2)
    found = figures(points)
    assert set(found) == {
        (system, dtype, *cell)
        for system in ("runnel", "linear layers")
        for dtype in ("bf16", "fp32")
        for cell in ((1, 64), (2, 9))
    }
    assert [(check.dtype, check.passed) for check in checks] == [("bf16", True), ("fp32", True)] and plan == ""
    point = found["runnel", "fp32", 2, 9]
    assert point["of_roofline"]["median"] == pytest.approx(0.25) and point["tokens_per_s"]["runs"] == 2
    assert point["ms_per_document"] == pytest.approx(9) and point["peak_bytes"] is None
    assert "tiny, round 2 of 2: runnel in bf16, 1 x 64 tokens: 1,000 tokens/s" in said


def test_no_figure_of_a_model_that_computes_something_else(clock, monkeypatch):
    hidden = Subject.hidden
    monkeypatch.setattr(Subject, "hidden", lambda self, texts: -hidden(self, texts))
    points, checks, _ = measure("tiny", ("fp32",), ((1, 64),), lambda said: None, memory=True)
    assert [check.passed for check in checks] == [False]
    found = figures(points)["runnel", "fp32", 1, 64]
    assert found["outcome"] == "wrong" and "differs from the plain path: cosine -1.0" in found["note"]
    assert found["tokens_per_s"] is found["of_roofline"] is found["peak_bytes"] is None


def test_no_figure_where_nothing_could_be_checked(clock, monkeypatch):
    monkeypatch.setattr("runnel.speed.subject.available_memory", lambda: 1000)
    points, checks, _ = measure("tiny", ("fp32",), ((1, 64),), lambda said: None)
    assert not checks[0].passed and checks[0].note.startswith("could not be checked: the check needs 0.0 GiB")
    assert figures(points)["runnel", "fp32", 1, 64]["outcome"] == "wrong"


def test_no_roofline_whose_products_are_wrong(clock, monkeypatch):
    monkeypatch.setattr(LinearLayers, "error", lambda self: 0.5)
    found = figures(measure("tiny", ("bf16",), ((1, 64),), lambda said: None)[0])
    assert found["linear layers", "bf16", 1, 64]["outcome"] == "wrong"
    assert found["runnel", "bf16", 1, 64]["of_roofline"] is None


def test_out_of_memory_is_a_result_and_a_bug_is_not(clock, monkeypatch):
    def full(self, run, batch, tokens, segment):
        raise RuntimeError("can't allocate memory: you tried to allocate 219676672 bytes.")

    monkeypatch.setattr(Clock, "seconds", full)
    found = figures(measure("tiny", ("bf16",), ((1, 64),), lambda said: None, memory=True)[0])
    assert {(row["outcome"], row["note"]) for row in found.values()} == {("out of memory", "no room for 210 MiB more")}
    monkeypatch.setattr(Clock, "seconds", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure("tiny", ("bf16",), ((1, 64),), lambda said: None)


def test_slow_cells_are_left_out_and_say_so(clock, monkeypatch):
    """At 1000 tokens/s."""
    found = figures(measure("tiny", ("bf16",), ((1, 64), (1, 40_000), (1, 200_000)), lambda said: None, rounds=2)[0])
    assert found["runnel", "bf16", 1, 64]["tokens_per_s"]["runs"] == 2
    assert found["runnel", "bf16", 1, 40_000]["tokens_per_s"]["runs"] == 1  # long cells are measured once
    assert found["runnel", "bf16", 1, 200_000]["note"] == "it would take about 200 s"


def test_a_budget_picks_the_segment(clock):
    points, _, plan = measure("tiny", ("bf16",), ((1, 64),), lambda said: None, budget=1 << 20)
    assert {p.segment for p in points} == set(clock) == {int(plan.split()[2].replace(",", ""))}


@pytest.mark.parametrize("segment", [None, 256])
def test_horizontal_and_vertical(clock, segment):
    measure("tiny", ("bf16",), ((1, 64),), lambda said: None, segment=segment)
    assert set(clock) == {segment}


def test_peak_memory_comes_from_a_new_process(clock):
    found = figures(measure("tiny", ("bf16",), ((1, 9),), lambda said: None, memory=True)[0])
    assert 50 << 20 < found["runnel", "bf16", 1, 9]["peak_bytes"] < 4 << 30
    assert found["linear layers", "bf16", 1, 9]["peak_bytes"] is None


def test_a_peak_that_could_not_be_measured(monkeypatch):
    def point():
        return Point("m", "runnel", "runnel", "bf16", 64, 1, None, seconds=[1.0])

    full, broken = point(), point()
    set_peak(full, {"out_of_memory": "killed"})
    assert (full.outcome, full.note) == ("ok", "memory: out of memory (killed)")
    set_peak(broken, {"error": "it broke"})
    assert (broken.outcome, broken.note, broken.to_dict()["tokens_per_s"]) == ("error", "memory: error (it broke)", None)


def test_extremes_are_kept():
    assert spread([4.0, 1.0, 2.5]) == {"median": 2.5, "mean": 2.5, "min": 1.0, "max": 4.0, "runs": 3}
    assert spread([5.0, 1.0, 3.0, 3.0, 3.0])["mean"] == 3.0
    assert spread([]) is None


def vectors(cosine):
    """HIDDEN turned by as much."""
    other = np.roll(HIDDEN, 1, axis=1)
    other -= HIDDEN * (other * HIDDEN).sum(1, keepdims=True) / np.square(HIDDEN).sum(1, keepdims=True)
    other *= np.linalg.norm(HIDDEN, axis=1, keepdims=True) / np.linalg.norm(other, axis=1, keepdims=True)
    return cosine * HIDDEN + (1 - cosine**2) ** 0.5 * other


@pytest.mark.parametrize(
    ("dtype", "cosine", "passed"),
    [
        ("bf16", 0.991, True),
        ("bf16", 0.989, False),
        ("int8", 0.996, True),
        ("int8", 0.994, False),
        ("q8_0", 0.985, True),
        ("q8_0", 0.97, False),
        ("fp32", 0.9999, False),
    ],
)
def test_how_close_is_the_same(dtype, cosine, passed):
    assert compare("runnel", "m", dtype, vectors(cosine), HIDDEN).passed is passed


def test_other_shapes_and_infinite_numbers_are_wrong():
    names = ("runnel", "m", "bf16")
    assert not compare(*names, HIDDEN[:-1], HIDDEN).passed
    assert not compare(*names, HIDDEN * np.float32(np.nan), HIDDEN).passed
    assert compare("runnel", "m", "fp32", HIDDEN + np.float32(1e-6), HIDDEN).passed
    assert not compare("runnel", "m", "fp32", HIDDEN + np.float32(1e-2), HIDDEN).passed


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (MissingDependency("m"), "missing"),
        (MemoryError("m"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (torch.OutOfMemoryError("m"), "out_of_memory"),
        (RuntimeError("m"), "error"),
        (BackendUnavailable("m"), "missing"),
        (InputError("m"), "refused"),
        (ValueError("m"), "error"),
    ],
)
def test_failures_are_answers(error, key):
    def fail():
        raise error

    assert key in answer(fail)


def test_out_of_memory_in_plain_words():
    def fail():
        raise RuntimeError(
            "[enforce fail at a.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to allocate 219676672 bytes."
        )

    assert answer(fail)["out_of_memory"] == "no room for 210 MiB more"


def test_a_bug_is_not_an_answer():
    with pytest.raises(ZeroDivisionError):
        answer(lambda: {"x": 1 / 0})
