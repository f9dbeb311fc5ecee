"""A comparison: systems that are missing, the shape of its result, and what is a failure."""

import json

import pytest
import torch
from helpers.bench_workers import wrong_hidden

from benchmarks import compare
from benchmarks.compare import absent
from benchmarks.comparison_text import comparison_text
from benchmarks.kept import Kept, failures
from benchmarks.speed import Settings
from runnel.errors import BackendUnavailable, InputError

WAYS = {"whole pairs": [10.0], "fp32 states": [0.5]}
RERANK = {"seconds": WAYS, "agreement": dict.fromkeys(WAYS, 1.0)}


def compared(given, **more):
    return compare.compare(given, Kept(None, "comparison", {}), lambda said: None, **more)


def settings(**changes):
    return Settings(**({"models": ("tiny",), "cells": ((1, 64),)} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("mamba2-13m",)}, r"no shape, model folder or hub id 'mamba2-13m'; the nearest shapes are mamba2-130m"),
        ({"device": "tpu"}, 'device must be "cpu" or "cuda"'),
    ],
)
def test_refused_at_once(changes, message, fake_workers):
    with pytest.raises(InputError, match=message):
        compared(settings(**changes))
    assert not fake_workers.started


def test_a_gpu_that_is_not_there(monkeypatch, fake_workers):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match="a GPU was requested but torch sees none"):
        compared(settings(device="cuda"))


def test_absent_packages_are_named(monkeypatch):
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None)
    found, skipped = absent(settings(others=("transformers", "llama.cpp", "bert")))
    assert found == ()
    assert [(row["system"], row["reason"]) for row in skipped] == [
        ("transformers", 'transformers is not installed; pip install "runnel[baselines]"'),
        ("llama.cpp", "llama_cpp is not installed; pip install llama-cpp-python"),
        ("bert", 'transformers is not installed; pip install "runnel[baselines]"'),
    ]


def test_the_shape_of_a_result(fake_workers, monkeypatch):
    monkeypatch.setattr(compare, "absent", lambda given: (("bert",), []))
    fake_workers.answers = {"runnel": {"rerank": RERANK}}
    given = settings(others=("bert",), memory=True, cells=((1, 64), (2, 64)))
    result = compared(given, remember=True)
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {"machine", "points", "checks", "skipped", "remembered"}
    assert failures(result) == []
    assert [row["way"] for row in result["remembered"]] == ["whole pairs", "fp32 states"]
    text = comparison_text(result)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["## Speed", "## Reranking", "## Checks"]
    assert "| tiny | fp32 states | 5.00 | 20.0 | 1.00000 |" in text


@pytest.mark.parametrize("answers", [{"hidden": wrong_hidden}, {"rerank": {"error": "no"}}])
def test_what_failed_is_named(answers, fake_workers):
    fake_workers.answers = {"runnel": {"rerank": RERANK} | answers}
    assert failures(compared(settings(), remember=True))


def test_what_a_model_cannot_do_is_stated(fake_workers):
    fake_workers.answers = {"runnel": {"rerank": {"refused": "a BERT has no state"}}}
    result = compared(settings(), remember=True)
    assert [(row["outcome"], row["note"]) for row in result["remembered"]] == [("refused", "a BERT has no state")]
    assert "| tiny |  | refused: a BERT has no state |" in comparison_text(result)
