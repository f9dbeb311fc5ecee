"""A whole bench: what is refused before anything runs, what is skipped, and the shape of its result."""

import json

import pytest
import torch
from helpers.bench_workers import wrong_hidden

from runnel.errors import BackendUnavailable, InputError
from runnel.evaluation import bench
from runnel.evaluation.bench import Bench, absent, validate
from runnel.evaluation.speed import Settings


def settings(**changes):
    return Settings(**({"models": ("tiny",), "lengths": (64,)} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("mamba2-13m",)}, r"no shape, model folder or hub id 'mamba2-13m'; the nearest shapes are mamba2-130m"),
        ({"dtypes": ("bf32",)}, r"no dtype 'bf32'; there are bf16, fp32, int8 \(near: "),
        ({"others": ("lama.cpp",)}, r"no system to compare with 'lama.cpp'; .* \(near: llama.cpp\)"),
        ({"lengths": ()}, "lengths must be whole numbers from 1, got none"),
        ({"batches": (0,)}, "batches must be whole numbers from 1, got 0"),
        ({"device": "tpu"}, 'device must be "cpu" or "cuda"'),
        ({"budget": 1000}, r"memory_bytes=1,000 is too small.*one token"),
    ],
)
def test_refused_at_once(changes, message, fake_workers):
    with pytest.raises(InputError, match=message):
        bench.run(Bench(settings(**changes)), lambda said: None)
    assert not fake_workers.started


def test_a_gpu_that_is_not_there(monkeypatch, fake_workers):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match="a GPU was asked for and torch sees none"):
        validate(settings(device="cuda"))


def test_too_little_memory_for_one_segment(monkeypatch):
    monkeypatch.setattr(bench, "available_memory", lambda: 1 << 20)
    with pytest.raises(
        InputError, match=r"one segment of 1,024 tokens of tiny needs \d MiB, 1 MiB are free .* use segments of \d+"
    ):
        validate(settings())
    validate(settings(segment=16))
    monkeypatch.setattr(bench, "available_memory", lambda: 1 << 10)
    with pytest.raises(InputError, match="for its weights"):
        validate(settings())


def test_absent_packages_are_named(monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    found, skipped = absent(settings(others=("transformers", "llama.cpp", "bert")))
    assert found == ()
    assert [(row["system"], row["reason"]) for row in skipped] == [
        ("transformers", 'transformers is not installed; pip install "runnel[baselines]"'),
        ("llama.cpp", "llama_cpp is not installed; pip install llama-cpp-python"),
        ("bert", 'transformers is not installed; pip install "runnel[baselines]"'),
    ]


def test_the_shape_of_a_result(fake_workers, monkeypatch):
    monkeypatch.setattr(bench, "absent", lambda given: (("bert",), []))
    ways = {"whole pairs": [10.0], "fp32 states": [0.5]}
    fake_workers.answers = {"runnel": {"rerank": {"seconds": ways, "agreement": dict.fromkeys(ways, 1.0)}}}
    given = settings(others=("bert",), memory=True, batches=(1, 2))
    result = bench.run(Bench(given, training=(1, 2), remembered=True, length_list=(3, 5)), lambda said: None)
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {
        "format", "machine", "points", "checks", "skipped", "plans", "training", "remembered", "padding", "wrong",
    }  # fmt: skip
    assert result["format"] == 1 and result["wrong"] is False
    assert set(result["points"][0]) == {
        "model", "system", "title", "dtype", "tokens", "batch", "segment", "outcome", "note", "flops_per_token", "peak_bytes",
        "tokens_per_s", "ms_per_document", "gflops_per_s", "of_roofline",
    }  # fmt: skip
    assert [(row["system"], row["batch"]) for row in result["training"]] == [
        ("runnel", 1),
        ("runnel", 2),
        ("bert", 1),
        ("bert", 2),
    ]
    assert [row["way"] for row in result["remembered"]] == ["whole pairs", "fp32 states"]
    assert [(row["batch"], row["tokens"], row["padded"]) for row in result["padding"]] == [(1, 8, 8), (2, 8, 10)]


@pytest.mark.parametrize("answers", [{"hidden": wrong_hidden}, {"rerank": {"error": "no"}}, {"gradient": {"error": "no"}}])
def test_anything_wrong_is_told(fake_workers, answers):
    fake_workers.answers = {"runnel": answers}
    ways = {"whole pairs": [10.0], "fp32 states": [0.5]}
    fake_workers.answers["runnel"].setdefault("rerank", {"seconds": ways, "agreement": dict.fromkeys(ways, 1.0)})
    assert bench.run(Bench(settings(), training=(1,), remembered=True), lambda said: None)["wrong"] is True


def test_what_a_model_cannot_do_is_told_and_is_no_failure(fake_workers):
    fake_workers.answers = {"runnel": {"rerank": {"refused": "a BERT has no state"}}}
    result = bench.run(Bench(settings(), remembered=True), lambda said: None)
    assert result["wrong"] is False
    assert [(row["outcome"], row["note"]) for row in result["remembered"]] == [("refused", "a BERT has no state")]
