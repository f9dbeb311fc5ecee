"""A comparison: systems that are missing, the shape of its result, and what is a failure."""

import json

import pytest
from helpers.bench_workers import wrong_hidden

from benchmarks import compare
from benchmarks.comparison_text import comparison_text
from benchmarks.kept import Kept, failures
from benchmarks.speed import Settings

WAYS = {"whole pairs": [10.0], "fp32 states": [0.5]}
RERANK = {"seconds": WAYS, "agreement": dict.fromkeys(WAYS, 1.0)}


def compared(given, **more):
    return compare.compare(given, Kept(None, "comparison", {}), lambda said: None, **more)


def settings(**changes):
    return Settings(**({"models": ("tiny",), "cells": ((1, 64),)} | changes))


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
