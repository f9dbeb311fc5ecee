"""docs/performance.md from what was measured."""

import json

import pytest
from bench_workers import READY, wrong_hidden

from runnel.errors import InputError
from runnel.evaluation import page
from runnel.evaluation.page_text import figure, page_text, table
from runnel.evaluation.segments import Grid
from runnel.evaluation.speed import Settings


@pytest.fixture
def small(fake_workers, monkeypatch):
    """The page with few cells."""
    ways = {"whole pairs": [10.0, 10.0], "fp32 states": [0.5, 0.5]}
    rerank = {"seconds": ways, "agreement": dict.fromkeys(ways, 1.0)}
    parts = {"parts": {"matrix products": 0.75e-3, "scan_heads": 0.2e-3, "all else": 0.05e-3}}
    fake_workers.answers = {
        "runnel": {"rerank": rerank, "parts": parts, "first": READY | {"title": "runnel"}},
        "llama.cpp": {"first": {"missing": "llama-cpp-python is not installed"}},
    }
    cells = ((1, 2048), (1, 8192), (128, 64))
    monkeypatch.setattr(
        page, "SPEED", (Settings(("mamba2-130m",), cells=cells, others=("transformers", "llama.cpp"), memory=True),)
    )
    monkeypatch.setattr(page, "absent", lambda settings: (settings.others, []))
    monkeypatch.setattr(page, "GRIDS", (Grid("pocket", ((1, 256),), (64, None)),))
    monkeypatch.setattr(page, "CHUNK_CELLS", ((1, 40),))
    monkeypatch.setattr(page, "PROFILED", (("mamba2-130m", "bf16"), ("mamba2-130m", "int8")))
    monkeypatch.setattr(page, "CHUNKS", (16, 32))
    monkeypatch.setattr(page, "TRAINING", (("pocket", "runnel", (1, 4)),))
    monkeypatch.setattr(page, "help_seconds", lambda: 0.2)
    return fake_workers


def test_files_and_sections(small, tmp_path):
    assert page.write_page(tmp_path, lambda message: None) is False
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "performance-chunks.png", "performance-segments.png", "performance.json", "performance.md", "performance.png",
    ]  # fmt: skip
    text = (tmp_path / "performance.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Performance", "## Bars", "## Speed", "## One long text", "## Where the time goes",
        "## Horizontal and vertical inference", "### Chunks inside an operator", "## Training",
        "## Reranking with remembered documents", "## What padding would cost", "## Checks",
    ]  # fmt: skip
    assert "Written by `make bench`" in text
    assert "| mamba2-130m | runnel | bf16 | 1 x 2,048 | 1,000" in text
    assert "llama.cpp, mamba2-130m: llama-cpp-python is not installed" in text
    assert "| pocket | 1 x 256 | all (horizontal) | 0.256 |" in text
    assert "| mamba2-130m | int8 | matrix products 75%, scan_heads 20%, all else 5% | 1 |" in text
    assert "LOST by" in text  # a quarter of the roofline
    result = json.loads((tmp_path / "performance.json").read_text())
    assert page_text(result) == text  # the page says what the json says


def test_a_failed_check_has_no_figure_and_is_told(small, tmp_path):
    small.answers["transformers"] = {"hidden": wrong_hidden}
    assert page.write_page(tmp_path, lambda message: None) is True
    text = (tmp_path / "performance.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| mamba2-130m | transformers | fp32 | 1 x 2,048"))
    assert "wrong: differs from the plain path" in line and "1,000" not in line
    assert "| transformers | fp32 | -1.000000 |" in text


def test_a_page_needs_its_folder(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        page.write_page(tmp_path / "nowhere", lambda message: None)


def test_figures():
    spread = {"median": 1234.5, "mean": 1300.0, "min": 1000.0, "max": 2000.0, "runs": 3}
    assert figure({"outcome": "ok", "rate": spread}, "rate") == "1,234"
    assert figure({"outcome": "ok", "rate": spread}, "rate", 1, extremes=True) == "1,234.5 (1,000.0–2,000.0)"
    assert figure({"outcome": "ok", "rate": spread | {"runs": 1}}, "rate", extremes=True) == "1,234"
    assert figure({"outcome": "left out", "note": "slow", "rate": spread}, "rate") == "left out: slow"
    assert figure({"outcome": "ok", "rate": spread}, "rate", middle="mean") == "1,300"
    assert figure({"outcome": "ok", "rate": None}, "rate") == "–"
    assert table(["a", "b"], [["1", "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"


def test_padding_of_real_lengths():
    found = page._padding()
    assert [row["batch"] for row in found] == [8, 32]
    for row in found:
        assert row["tokens"] < row["padded_sorted"] < row["padded"]
