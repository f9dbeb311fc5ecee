"""`runnel bench`: what it shows, writes and refuses, and its exit code."""

import json

import pytest
import torch
from helpers.bench_workers import READY, wrong_hidden

from runnel.evaluation import bars, bench, page
from runnel.evaluation.bars import Row


def lines(done, *words):
    """Lines of stdout that hold all these words."""
    return [line for line in done.out.splitlines() if all(word in line for word in words)]


@pytest.fixture
def all_installed(monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: True)


def test_a_table_of_every_cell(run, fake_workers):
    done = run("bench", "tiny", "--lengths", "64,1k", "--batches", "1,2", "--rounds", "2")
    assert done.code == 0
    assert len(lines(done, "tiny", "runnel", "bf16")) == 4
    (line,) = lines(done, "tiny", " runnel ", "1,024", " 2 ", "bf16")
    assert "1,000 (1,000 - 1,000)" in line and "0.25" in line and "1,024.00" in line
    assert "runnel: tiny, round 2 of 2: runnel in bf16, 2 x 1,024 tokens: 1,000 tokens/s\n" in done.err


def test_no_figure_without_its_check(run, fake_workers):
    fake_workers.answers = {"runnel": {"hidden": wrong_hidden}}
    done = run("bench", "tiny", "--lengths", "64", "--memory")
    assert done.code == 1
    (line,) = lines(done, " tiny", " runnel ")
    assert "wrong: differs from the plain path" in line and "1,000" not in done.out.replace("4,000", "")


def test_systems_that_are_not_installed_are_named(run, fake_workers, monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    done = run("bench", "tiny", "--lengths", "64", "--with", "transformers,llama.cpp")
    assert done.code == 0
    assert lines(done, "llama.cpp", "llama_cpp is not installed; pip install llama-cpp-python")
    assert lines(done, "transformers", 'pip install "runnel[baselines]"')
    assert {spec.system for spec in fake_workers.started} == {"runnel"}


def test_everything_at_once(run, fake_workers, all_installed, tmp_path):
    ways = {"whole pairs": [10.0], "fp32 states": [0.5]}
    full = {"out_of_memory": "cannot allocate"}
    fake_workers.answers = {
        "runnel": {
            "rerank": {"seconds": ways, "agreement": dict.fromkeys(ways, 1.0)},
            "train": lambda request: full if request["batch"] == 2 else {"seconds": 1.0, "peak_bytes": 1 << 20},
        },
        "transformers": {"first": {"refused": "it has none"}},
    }
    (tmp_path / "lengths").write_text("3\n5\n")
    what = "--lengths 64 --batches 1,2 --dtypes bf16,fp32 --with transformers,bert --segment whole --memory-limit 100"
    more = "--training --memory --remembered --length-list lengths --json out.json --plots plots"
    done = run("bench", "tiny", *what.split(), *more.split())
    assert done.code == 0, done.err
    titles = ["Speed", "Skipped", "Training", "Reranking", "GFLOP for the listed lengths"]
    assert [line.strip() for line in done.out.splitlines() if line.strip() in titles] == titles
    assert lines(done, "out of memory: cannot allocate")
    assert lines(done, "fp32 states", "20.0 (20.0 - 20.0)")
    assert lines(done, "transformers", "it has none")
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["wrong"] is False
    assert {point["segment"] for point in result["points"]} == {None}
    assert (tmp_path / "plots" / "speed.png").stat().st_size > 1000
    assert {spec.memory_limit for spec in fake_workers.started} == {None, 100 << 20}


def test_json_on_stdout(run, fake_workers):
    done = run("bench", "tiny", "--lengths", "64", "--json", "-")
    assert json.loads(done.out)["points"][0]["model"] == "tiny"


def test_training_has_batches_of_its_own(run, fake_workers):
    done = run("bench", "tiny", "--lengths", "64", "--training", "--json", "-")
    assert [row["batch"] for row in json.loads(done.out)["training"]] == [1, 2, 4, 8, 16]


def test_a_budget_says_what_it_chose(run, fake_workers):
    fake_workers.answers = {"runnel": {"first": READY | {"plan": {"segment": 320, "says": "segments of 320 tokens: 1 MiB"}}}}
    assert lines(run("bench", "tiny", "--lengths", "64", "--budget", "1"), "tiny: segments of 320 tokens: 1 MiB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mamba2_130",), "no shape, model folder or hub id 'mamba2_130'; the nearest shapes are mamba2-130m"),
        (("tiny", "--device", "cuda"), "a GPU was asked for and torch sees none; use --device cpu"),
        (("tiny", "--lengths", "8,x"), "--lengths takes whole numbers from 1 with commas between (8k is 8192), got 'x'"),
        (("tiny", "--lengths", ","), "--lengths is empty"),
        (("tiny", "--segment", "0"), "--segment takes whole numbers from 1"),
        (("tiny", "--dtypes", "int3"), "no dtype 'int3'; there are bf16, fp32, int8"),
        (("xlstm-scaled", "--dtypes", "bf16,int8"), "xlstm-scaled: xLSTM has no 8-bit kernels"),
        (("tiny", "--with", "vllm"), "no system to compare with 'vllm'; there are transformers, llama.cpp, bert"),
        (("tiny", "--json", "nowhere/out.json"), "nowhere/out.json: its folder is not there"),
        (("tiny", "--length-list", "nowhere"), "nowhere: No such file or directory"),
        (("--page", "nowhere"), "nowhere is not a folder"),
    ],
)
def test_refused_in_one_line(run, fake_workers, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run("bench", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("runnel: error: ") and done.err.count("\n") == 1 and message in done.err
    assert not fake_workers.started


def test_too_little_memory_for_one_segment(run, fake_workers, monkeypatch):
    monkeypatch.setattr(bench, "available_memory", lambda: 1 << 20)
    done = run("bench", "tiny")
    assert done.code == 1 and "one segment of 1,024 tokens of tiny needs" in done.err


@pytest.mark.parametrize("arguments", [(), ("tiny", "--check"), ("--page", "docs", "--check"), ("tiny", "--page", "docs")])
def test_wrong_usage(run, arguments):
    done = run("bench", *arguments)
    assert done.code == 2 and "give MODEL-OR-SHAPE..., or --page DIR, or --check" in " ".join(done.err.replace("│", " ").split())


@pytest.mark.parametrize("lost", [False, True])
def test_check_prints_each_bar_beside_its_value(run, monkeypatch, lost):
    verdict = "LOST by 16.7%" if lost else "holds"
    found = [
        Row("speed over x", ">= 0.6", 0.5 if lost else 0.7, "", lost, verdict),
        Row("on a GPU", ">= 3", None, "no GPU here", False, "not measured"),
    ]
    monkeypatch.setattr(bars, "check_bars", lambda progress: found)
    done = run("bench", "--check")
    assert done.code == int(lost)
    assert lines(done, "speed over x", ">= 0.6", "0.5" if lost else "0.7", verdict)
    assert lines(done, "on a GPU", "no GPU here", "not measured")


@pytest.mark.parametrize("wrong", [False, True])
def test_page(run, monkeypatch, tmp_path, wrong):
    asked = []
    monkeypatch.setattr(page, "write_page", lambda folder, progress: asked.append(folder) or wrong)
    monkeypatch.setattr(page, "write_section", lambda folder, name, progress: parts.append((folder, name)) or wrong)
    parts = []
    assert run("bench", "--page", tmp_path).code == int(wrong)
    assert run("bench", "--page", tmp_path, "--only", "search").code == int(wrong) and parts == [(tmp_path, "search")]
    assert run("bench", "tiny", "--only", "search").code == 2
    assert asked == [tmp_path]
