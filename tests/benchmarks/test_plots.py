"""Plots: what is in them."""

import pytest

from benchmarks import plots


def cell(tokens, rate, **changes):
    shown = None if rate is None else {"median": rate, "mean": rate, "min": rate / 2, "max": rate * 2, "runs": 3}
    point = {
        "model": "m",
        "title": "runnel",
        "dtype": "bf16",
        "batch": 1,
        "tokens": tokens,
        "segment": 1024,
        "peak_bytes": 1 << 20,
    }
    return point | {"tokens_per_s": shown} | changes


@pytest.fixture
def drawn(monkeypatch):
    """The lines in the axes when a figure is saved: label -> points, left and right."""
    found = []

    def keep(figure, file, *axes):
        found.append([{line.get_label(): line.get_xydata().tolist() for line in axis.lines} for axis, *_ in axes])
        close(figure, file, *axes)

    close = plots._close
    monkeypatch.setattr(plots, "_close", keep)
    return found


def test_speed_and_memory_by_length(drawn, tmp_path):
    points = [
        cell(64, 10),
        cell(8, 20),
        cell(64, None, title="other"),
        cell(8, 5, title="llama.cpp"),
        cell(64, 4, title="llama.cpp"),
    ]
    plots.plot_speed(points, tmp_path / "new" / "speed.png")
    assert (tmp_path / "new" / "speed.png").stat().st_size > 1000
    ((speed, memory),) = drawn
    assert speed == {"m: runnel bf16": [[8, 20], [64, 10]], "m: llama.cpp bf16": [[8, 5], [64, 4]]}
    assert memory["m: runnel bf16"] == [[8, 1], [64, 1]]


def test_horizontal_inference_stands_at_the_end(drawn, tmp_path):
    points = [cell(512, 30, segment=None), cell(512, 10, segment=64), cell(512, 20, segment=128)]
    plots.plot_segments(points, tmp_path / "segments.png")
    assert drawn[0][0] == {"m: 1 x 512 tokens": [[64, 10], [128, 20], [512, 30]]}
