"""`runnel bench`: its output, what it refuses, and its exit code."""

import json

import pytest
import torch

from runnel.speed import measure, subject
from runnel.speed.subject import Clock, LinearLayers, Subject


def lines(done, *words):
    """Lines of stdout that hold all these words."""
    return [line for line in done.out.splitlines() if all(word in line for word in words)]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The model reads 1000 tokens a second, its linear layers 4000."""

    def seconds(self, run, batch, tokens, segment):
        return batch * tokens / (4000 if isinstance(run.__self__, LinearLayers) else 1000)

    monkeypatch.setattr(Clock, "seconds", seconds)


def test_a_table_of_every_cell(run, monkeypatch):
    monkeypatch.setattr(measure, "_peak_in_new_process", lambda point, device: {"peak_bytes": 7 << 20})
    done = run("bench", "tiny", "--lengths", "64,1k", "--batches", "1,2", "--rounds", "2", "--memory")
    assert done.code == 0
    assert len(lines(done, "tiny", "runnel", "bf16")) == 4
    (line,) = lines(done, "tiny", " runnel ", "1,024", " 2 ", "bf16")
    assert "1,000 (1,000 - 1,000)" in line and "0.25" in line and "1,024.00" in line and line.split()[-1] == "7"
    assert "runnel: tiny, round 2 of 2: runnel in bf16, 2 x 1,024 tokens: 1,000 tokens/s\n" in done.err


def test_no_figure_without_its_check(run, monkeypatch):
    hidden = Subject.hidden
    monkeypatch.setattr(Subject, "hidden", lambda self, texts: -hidden(self, texts))
    done = run("bench", "tiny", "--lengths", "64", "--memory")
    assert done.code == 1
    (line,) = lines(done, "tiny", " runnel ")
    assert "wrong: differs from the plain path" in line and "1,000" not in done.out.replace("4,000", "")


def test_json(run):
    done = run("bench", "tiny", "--lengths", "64", "--dtypes", "bf16,fp32", "--segment", "whole", "--json")
    result = json.loads(done.out)
    assert set(result) == {"format", "machine", "points", "checks", "plans", "wrong"} and result["wrong"] is False
    assert {(point["model"], point["segment"]) for point in result["points"]} == {("tiny", None)}
    assert set(result["points"][0]) == {
        "model", "system", "title", "dtype", "tokens", "batch", "segment", "outcome", "note", "flops_per_token", "peak_bytes",
        "tokens_per_s", "ms_per_document", "gflops_per_s", "of_roofline",
    }  # fmt: skip


def test_a_budget_says_what_it_chose(run):
    assert lines(run("bench", "tiny", "--lengths", "64", "--budget", "1"), "tiny: segments of ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mamba2_130",), "no shape, model folder or hub id 'mamba2_130'; the nearest shapes are mamba2-130m"),
        (("tiny", "--device", "cuda"), "a GPU was requested but torch sees none; use --device cpu"),
        (("tiny", "--lengths", "8,x"), "--lengths takes whole numbers from 1 with commas between (8k is 8192), got 'x'"),
        (("tiny", "--batches", "0"), "--batches takes whole numbers from 1"),
        (("tiny", "--lengths", ","), "--lengths is empty"),
        (("tiny", "--segment", "0"), "--segment takes whole numbers from 1"),
        (("tiny", "--dtypes", "int3"), "no dtype 'int3'; there are bf16, fp32, int8"),
        (("xlstm-scaled", "--dtypes", "bf16,int8"), "xlstm-scaled: xLSTM has no 8-bit kernels"),
    ],
)
def test_refused_in_one_line(run, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Subject, "__init__", lambda *given: pytest.fail("a model was loaded"))
    done = run("bench", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("runnel: error: ") and done.err.count("\n") == 1 and message in done.err


def test_too_little_memory_for_one_segment(run, monkeypatch):
    monkeypatch.setattr(subject, "available_memory", lambda: 1 << 20)
    done = run("bench", "tiny")
    assert done.code == 1 and "one segment of 1,024 tokens of tiny needs" in done.err


def test_it_needs_a_model(run):
    assert run("bench").code == 2
