"""Stand-ins for the processes of a benchmark, which answer at once as a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

from benchmarks.measure import answer, compare

Answers = dict[str, Any]
HIDDEN = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
READY = {"ready": True, "title": "a system", "flops_per_token": 2_000_000, "linear_flops_per_token": 1_000_000}

_SECONDS = {"engine": [0.95, 0.95], "index": [1.0, 1.0], "remember": [1.9, 1.9]}
SAME: dict[str, Answers] = {
    "hidden": {"tokens": len(HIDDEN)},
    "gradient": {},
    "products": {"error": 0.0},
    "fill_index": {"passages": 68_500, "disk_bytes": 1 << 30, "keeps_sentences": True},
    "time_indexing": {"tokens": 1000, "seconds": _SECONDS, "processor": _SECONDS},
    "time_searches": {"seconds": {"first stage": [0.01, 0.01], "whole search": [0.2, 0.2]}, "peak_bytes": 1 << 30},
}


class StandIn(AbstractContextManager[Any]):
    def __exit__(self, *error: object) -> None:
        return None


class FakeWorker(StandIn):
    """`answers`: system -> op -> an answer or a function of the request; "first" is its first answer.

    By default a system agrees with the plain path and reads 1000 tokens a second, its linear layers 4000. An index
    takes documents at 0.95 of the engine's speed; the first stage of a search takes 10 ms and all of it 200 ms.
    """

    answers: ClassVar[dict[str, dict[str, Answers | Callable[[Answers], Answers]]]] = {}
    started: ClassVar[list[Any]] = []
    asked: ClassVar[list[tuple[str, str, Answers]]] = []

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        FakeWorker.started.append(spec)
        self.first = self._chosen("first", {}) or READY | {"title": spec.system}

    def ask(self, op: str, **request: Any) -> Answers:
        FakeWorker.asked.append((self.spec.system, op, request))
        chosen = self._chosen(op, request)
        if chosen is not None:
            return chosen
        if op in ("hidden", "gradient"):
            np.save(request["file"], HIDDEN if op == "hidden" else HIDDEN.ravel())
        if op in SAME:
            return SAME[op]
        seconds = request["batch"] * request["tokens"] / (4000 if request.get("part") == "linear" else 1000)
        return {"seconds": seconds, "peak_bytes": 1 << 20}

    def _chosen(self, op: str, request: Answers) -> Answers | None:
        chosen = FakeWorker.answers.get(self.spec.system, {}).get(op)
        return chosen(request) if callable(chosen) else chosen


def wrong_hidden(request: Answers) -> Answers:
    np.save(request["file"], HIDDEN if request["plain"] else -HIDDEN)
    return {"tokens": len(HIDDEN)}


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """Stand-ins in place of every process; returns their class, whose `answers` a test fills."""
    for name, value in (("answers", {}), ("started", []), ("asked", [])):
        monkeypatch.setattr(FakeWorker, name, value)
    for module in ("speed", "extras", "segments", "bars", "page"):
        monkeypatch.setattr(f"benchmarks.{module}.Worker", FakeWorker)
    return FakeWorker


class RealJob(StandIn):
    """A worker of this process, which answers for real: tiny shapes only."""

    jobs: ClassVar[list[Any]] = []

    def __init__(self, spec: Any) -> None:
        from benchmarks.worker import Job

        self.spec = spec
        self._job = Job(asdict(spec))
        self.first = self._job.ready()
        RealJob.jobs.append(self._job)

    def ask(self, op: str, **request: Any) -> Answers:
        return answer(lambda: getattr(self._job, op)(request))


@pytest.fixture
def real_jobs(monkeypatch: pytest.MonkeyPatch) -> type[RealJob]:
    """Workers in this process in place of every process; returns their class, whose `jobs` were started."""
    monkeypatch.setattr(RealJob, "jobs", [])
    for module in ("speed", "extras"):
        monkeypatch.setattr(f"benchmarks.{module}.Worker", RealJob)
    return RealJob


def same(found: Tensor, expected: Tensor, dtype: str = "fp32") -> None:
    """Assert that hidden vectors agree as closely as the dtype allows."""
    checked = compare("s", "m", dtype, found.numpy(), expected.numpy())
    assert checked.passed, checked
