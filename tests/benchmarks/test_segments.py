"""The sweep over segments and chunks."""

import sys

import pytest
import torch
from helpers.bench_workers import wrong_hidden

from benchmarks.segments import Chunks, Grid, _taken, sweep, sweep_chunks

GRID = Grid("m", ((1, 256), (4, 64)), (64, 128, 256, None))


def test_every_segment_that_is_shorter_than_the_texts(fake_workers):
    points, checked = sweep(GRID, 3, lambda message: None)
    assert checked.passed
    assert [(p.batch, p.tokens, p.segment) for p in points] == [
        (batch, tokens, segment) for batch, tokens in GRID.cells for segment in (64, 128, None)
    ]
    assert {len(p.seconds) for p in points} == {3}
    assert {p.peak_bytes for p in points} == {1 << 20}
    assert len(fake_workers.started) == 1 + len(points)
    assert {request["segment"] for _, op, request in fake_workers.asked if op == "peak"} == {64, 128, None}


def test_no_figure_without_the_check(fake_workers):
    fake_workers.answers = {"runnel": {"hidden": wrong_hidden}}
    points, checked = sweep(GRID, 3, lambda message: None)
    assert not checked.passed
    assert {p.to_dict()["tokens_per_s"] for p in points} == {None}
    assert not [op for _, op, _ in fake_workers.asked if op in ("time", "peak")]


def test_chunks_of_every_operator_agree():
    cells = ((1, 50), (2, 30))
    found = sweep_chunks((8, 32), cells, rounds=2, progress=lambda message: None)
    assert [(c.batch, c.tokens, c.operator, c.chunk) for c in found] == [
        (*cell, name, q) for cell in cells for name in ("ssd", "wkv7", "mlstm") for q in (8, 32)
    ]
    assert [c.outcome for c in found] == ["ok"] * 12, found
    assert {c.to_dict()["tokens_per_s"]["runs"] for c in found} == {2}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports peak memory")
def test_the_memory_that_a_run_takes():
    def run():
        return torch.ones(4, 1 << 20).sum(0)[:1]

    result, taken = _taken(run)
    assert float(result) == 4
    assert 16 << 20 <= taken < 40 << 20


@pytest.mark.parametrize("difference", [0.01, float("nan")])
def test_no_figure_of_a_chunk_that_differs(difference):
    shown = Chunks("ssd", 64, 1, 100, difference, 5, [1.0]).to_dict()
    assert (shown["outcome"], shown["tokens_per_s"], shown["peak_bytes"]) == ("wrong", None, None)
