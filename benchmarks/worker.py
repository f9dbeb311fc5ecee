"""The process of one system, so that its peak memory can be measured and running out of memory is
reported, not fatal.

    python -m benchmarks.worker '{"system": "runnel", "model": "mamba2-130m", "dtype": "bf16", ...}'

It writes one JSON object when the system is built, then one for each request read from stdin. What
a library prints on stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks import steps
from benchmarks.llama import LlamaCpp
from benchmarks.machine import peak_bytes, reset_peak
from benchmarks.measure import answer
from benchmarks.profile import time_parts
from benchmarks.subject import IDS, Clock, LinearLayers, Subject, checked_texts
from benchmarks.systems import EqualBert, System, TransformersLibrary

SYSTEMS: dict[str, Callable[..., System]] = {
    "runnel": Subject,
    "transformers": TransformersLibrary,
    "llama.cpp": LlamaCpp,
    "bert": EqualBert,
}
_WARM = 64  # tokens that are read before anything is timed: kernels compile, buffers are made


class Job:
    """A system; each method answers one kind of request."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.system = SYSTEMS[spec["system"]](spec["model"], spec["dtype"], spec["device"])
        self.linear = (
            LinearLayers(self.system.backbone) if isinstance(self.system, Subject) else None
        )
        self.trainer: steps.Trainer | None = None
        self.clock = Clock(spec["device"])

    def ready(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"ready": True, "title": self.system.title}
        if isinstance(self.system, Subject) and self.linear is not None:
            backbone = self.system.backbone
            facts |= {
                "flops_per_token": backbone.flops_per_token,
                "linear_flops_per_token": self.linear.flops_per_token,
            }
        return facts

    def hidden(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write hidden vectors of the texts that are compared: float32 (tokens, D)."""
        plain = request.get("plain", False)
        found = (self.system.plain_hidden if plain else self.system.hidden)(checked_texts())  # type: ignore[attr-defined]
        np.save(request["file"], found.cpu().numpy())
        return {"tokens": found.shape[0]}

    def products(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.linear is not None
        return {"error": self.linear.error()}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds for `batch` texts of `tokens` tokens, by the system or by its linear
        layers alone.
        """
        run = (
            self.linear.run if request.get("part") == "linear" and self.linear else self.system.run
        )
        return {
            "seconds": self.clock.seconds(
                run, request["batch"], request["tokens"], request["segment"]
            )
        }

    def peak(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the same with the peak memory of the process during the run, weights included."""
        self.system.run(self._ids(1, _WARM), _WARM)
        reset_peak(self.spec["device"])
        ids = self._ids(request["batch"], request["tokens"])
        seconds = self.clock.once(lambda: self.system.run(ids, request["segment"]))
        return {"seconds": seconds, "peak_bytes": peak_bytes(self.spec["device"])}

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds to read batches of texts of these lengths, and the peak memory.
        Systems other than ours pad them.
        """
        texts = [
            [ids[:n] for ids, n in zip(self._ids(len(lengths), max(lengths)), lengths, strict=True)]
            for lengths in request["batches"]
        ]

        def call() -> None:
            for batch in texts:
                if isinstance(self.system, Subject):
                    self.system.read(batch, request["segment"])
                else:
                    self.system.run(pad_sequence(batch, batch_first=True), None)

        reset_peak(self.spec["device"])
        return {"seconds": self.clock.once(call), "peak_bytes": peak_bytes(self.spec["device"])}

    def parts(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of a run by part, after a run that allocates buffers."""
        assert isinstance(self.system, Subject)
        ids = self._ids(request["batch"], request["tokens"])
        segment = request["segment"]
        run = self.system.run
        run(ids, segment)
        return {"parts": time_parts(self.system.backbone, lambda: run(ids, segment))}

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of one training step; the first one allocates the optimizer's buffers
        and does not count.
        """
        if self.trainer is None:
            self.trainer = steps.Trainer(self.system, self.spec["lora"])
            self.trainer.step(self._ids(request["batch"], request["tokens"]))
        trainer = self.trainer
        ids = self._ids(request["batch"], request["tokens"])
        return {
            "seconds": self.clock.once(lambda: trainer.step(ids)),
            "peak_bytes": peak_bytes(self.spec["device"]),
        }

    def gradient(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the gradient at some places of every weight, float64 (n,)."""
        ids = torch.randint(0, IDS, (2, 40), generator=torch.Generator().manual_seed(3))
        np.save(request["file"], steps.gradient(self.system, ids, plain=request["plain"]))
        return {}

    def rerank(self, request: dict[str, Any]) -> dict[str, Any]:
        return steps.rerank(self.system, request)

    def fill_index(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks import searching  # here and below: imports what an index needs

        return searching.fill(
            request["folder"], self.spec["model"], request["documents"], request["read"]
        )

    def time_indexing(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks import searching

        return searching.time_indexing(self.spec["model"], request["documents"], request["rounds"])

    def time_searches(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks import searching

        return searching.time_searches(
            request["folder"], self.spec["model"], request["documents"], request["queries"]
        )

    def warm(self) -> None:
        self.system.run(self._ids(1, _WARM), _WARM)
        if self.linear is not None:
            self.linear.run(self._ids(1, _WARM), _WARM)

    def _ids(self, batch: int, tokens: int) -> Tensor:
        return self.clock.ids(batch, tokens)


def _limit_memory(limit: int) -> None:
    """Make allocations beyond `limit` bytes fail in this process, as on a
    machine with less memory.
    """
    try:
        import resource
    except ImportError:  # Windows: the system's own limit applies
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Build the system and answer the requests on stdin."""
    spec = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(value: dict[str, Any]) -> None:
            out.write(json.dumps(value) + "\n")
            out.flush()

        if spec.get("memory_limit"):
            _limit_memory(spec["memory_limit"])
        job: list[Job] = []

        def build() -> dict[str, Any]:
            job.append(Job(spec))
            if not spec.get("cold"):
                job[0].warm()
            return job[0].ready()

        first = answer(build)
        say(first)
        if "ready" not in first:
            return
        for line in sys.stdin:
            request = json.loads(line)
            say(answer(lambda: getattr(job[0], request["op"])(request)))  # noqa: B023  # called at once


if __name__ == "__main__":
    main()
