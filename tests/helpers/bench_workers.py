"""Stand-ins for the processes of a benchmark, which answer at once as a test chooses."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import pytest

Answers = dict[str, Any]
HIDDEN = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
READY = {
    "ready": True,
    "title": "a system",
    "flops_per_token": 2_000_000,
    "linear_flops_per_token": 1_000_000,
}

_SECONDS = {"engine": [0.95, 0.95], "index": [1.0, 1.0], "remember": [1.9, 1.9]}
_PAIRS = {"whole pairs": [10.0, 10.0], "fp32 states": [0.5, 0.5]}
SAME: dict[str, Answers] = {
    "hidden": {"tokens": len(HIDDEN)},
    "gradient": {},
    "products": {"error": 0.0},
    "parts": {"parts": {"matrix products": 0.75e-3, "scan_heads": 0.2e-3, "all else": 0.05e-3}},
    "rerank": {"seconds": _PAIRS, "agreement": dict.fromkeys(_PAIRS, 1.0)},
    "fill_index": {"passages": 68_500, "disk_bytes": 1 << 30, "keeps_sentences": True},
    "time_indexing": {"tokens": 1000, "seconds": _SECONDS, "processor": _SECONDS},
    "time_searches": {
        "seconds": {"first stage": [0.01, 0.01], "whole search": [0.2, 0.2]},
        "peak_bytes": 1 << 30,
    },
}


class FakeWorker(AbstractContextManager[Any]):
    """`answers`: system -> op -> an answer or a function of the request; "first" is its first
    answer.

    By default a system agrees with the plain path and reads 1000 tokens a second, its linear layers
    4000. An index takes documents at 0.95 of the engine's speed; the first stage of a search takes
    10 ms and all of it 200 ms.
    """

    answers: ClassVar[dict[str, dict[str, Answers | Callable[[Answers], Answers]]]] = {}
    started: ClassVar[list[Any]] = []
    asked: ClassVar[list[tuple[str, str, Answers]]] = []

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        FakeWorker.started.append(spec)
        self.first = self._chosen("first", {}) or READY | {"title": spec.system}

    def __exit__(self, *error: object) -> None:
        return None

    def ask(self, op: str, **request: Any) -> Answers:
        FakeWorker.asked.append((self.spec.system, op, request))
        chosen = self._chosen(op, request)
        if chosen is not None:
            return chosen
        if op in ("hidden", "gradient"):
            np.save(request["file"], HIDDEN if op == "hidden" else HIDDEN.ravel())
        if op in SAME:
            return SAME[op]
        seconds = (
            request["batch"]
            * request["tokens"]
            / (4000 if request.get("part") == "linear" else 1000)
        )
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
