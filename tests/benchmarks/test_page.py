"""docs/performance.md from what was measured."""

import json
import re
from pathlib import Path

import pytest
from helpers.bench_workers import wrong_hidden

from benchmarks import bars, page
from benchmarks.page_text import page_text
from benchmarks.segments import Grid
from benchmarks.speed import Settings


@pytest.fixture
def small(fake_workers, monkeypatch):
    fake_workers.answers = {
        "runnel": {},
        "llama.cpp": {"first": {"missing": "llama-cpp-python is not installed"}},
    }
    cells = ((1, 2048), (1, 8192), (128, 64))
    changed = {
        "SPEED": (
            Settings(("mamba2-130m",), cells, others=("transformers", "llama.cpp"), memory=True),
        ),
        "GRIDS": (Grid("pocket-mamba2", ((1, 256),), (64, None)),),
        "CHUNKS": (16, 32),
        "CHUNK_CELLS": ((1, 40),),
        "PROFILED": (("mamba2-130m", "bf16"), ("mamba2-130m", "int8")),
        "TRAINING": (("pocket-mamba2", "runnel", (1, 4)),),
        "absent": lambda settings: (settings.others, []),
        "help_seconds": lambda: 0.2,
    }
    for name, value in changed.items():
        monkeypatch.setattr(page, name, value)
    return fake_workers


def test_files_and_tables(small, tmp_path):
    assert page.write_page(tmp_path, lambda message: None) is True
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "performance-chunks.png",
        "performance-segments.png",
        "performance.json",
        "performance.md",
        "performance.png",
    ]
    text = (tmp_path / "performance.md").read_text()
    assert len(re.findall("^##? ", text, re.M)) == 11 and text.count("\n### ") == 1
    assert "| model | system | dtype | 1 x 2,048 | 1 x 8,192 | 128 x 64 |" in text
    assert re.search(r"^\| mamba2-130m \| runnel \| bf16 \| 1,000 \(", text, re.M)
    assert "llama.cpp, mamba2-130m: llama-cpp-python is not installed" in text
    assert "| model | texts x tokens | V = 64 | all (horizontal) |" in text
    assert "| mamba2-130m | int8 | matrix products 75%, scan_heads 20%, all else 5% | 1 |" in text
    assert "fails by" in text  # a quarter of the roofline
    result = json.loads((tmp_path / "performance.json").read_text())
    assert page_text(result) == text  # the page says what the json says


def test_one_section_is_measured_again(small, tmp_path):
    page.write_page(tmp_path, lambda message: None)
    before = json.loads((tmp_path / "performance.json").read_text())
    started = len(small.started)
    small.answers["runnel"]["time_searches"] = {
        "seconds": {"first stage": [0.02], "whole search": [1.1]},
        "peak_bytes": 5,
    }
    assert page.write_section(tmp_path, "search", lambda message: None) is True
    assert [spec.model for spec in small.started[started:]] == ["pocket", "pocket-mamba2", "pocket"]
    after = json.loads((tmp_path / "performance.json").read_text())
    text = (tmp_path / "performance.md").read_text()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"search", "bars", "apart"} and list(after) == list(before)
    assert {
        old["what"] for old, new in zip(before["bars"], after["bars"], strict=True) if old != new
    } == {
        bars.BARS["first stage"].what,
        bars.BARS["search"].what,
    }
    assert "| whole search | 1,100.0 | 1,100.0 | 1,100.0 |" in text and "fails by 100.0%" in text
    assert "Measured apart from the rest of this page: 2" in text and page_text(after) == text
    small.answers["runnel"]["fill_index"] = {"wrong": "other vectors"}
    reported: list[str] = []
    assert page.write_section(tmp_path, "search", reported.append) is False
    assert (
        reported[-2] == "error: search: pocket: wrong: other vectors"
        and (tmp_path / "performance.md").read_text() == text
    )


ERROR = {"error": "'lost'", "kind": "KeyError"}
FAILED = [
    (
        "transformers",
        "hidden",
        wrong_hidden,
        "points: mamba2-130m transformers fp32 1 2048: wrong: differs from the plain path",
    ),
    ("transformers", "first", ERROR, "checks: mamba2-130m transformers fp32: check failed: 'lost'"),
    (
        "runnel",
        "hidden",
        ERROR,
        "checks: mamba2-130m runnel bf16: check failed: could not be checked: 'lost'",
    ),
    ("runnel", "time", ERROR, "points: mamba2-130m runnel bf16 1 2048: error: 'lost'"),
    ("runnel", "parts", ERROR, "parts: mamba2-130m bf16 1024: error: 'lost'"),
    ("runnel", "fill_index", ERROR, "search: pocket: error: 'lost'"),
    (
        "transformers",
        "peak",
        ERROR,
        "points: mamba2-130m transformers fp32 1 2048: error: memory: error ('lost')",
    ),
]


def test_an_error_of_any_request_is_never_published(small, tmp_path, monkeypatch):
    """A missing package or too little memory is a result; anything else that fails is our own
    mistake.
    """
    monkeypatch.setattr(page, "CHUNK_CELLS", ())
    usual = small.answers | {"transformers": {}}
    small.answers["runnel"] |= {
        "parts": {"out_of_memory": "no room for 5 MiB more"},
        "train": {"missing": "no torch"},
    }
    assert page.write_page(tmp_path, lambda message: None) is True
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert (
        b"| mamba2-130m | bf16 | out of memory: no room for 5 MiB more | \xe2\x80\x93 |"
        in before["performance.md"]
    )
    for system, op, answer, named in FAILED:
        small.answers = usual | {system: usual[system] | {op: answer}}
        reported: list[str] = []
        assert page.write_page(tmp_path, reported.append) is False
        assert any(line.startswith(f"error: {named}") for line in reported), named
        after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert after.pop(page.FAILED) and after == before


def test_the_published_page_is_what_its_json_says():
    docs = Path(page.__file__).parent.parent / "docs"
    result = json.loads((docs / "performance.json").read_text())
    assert page_text(result) == (docs / "performance.md").read_text()
    assert page.failures(result) == []
