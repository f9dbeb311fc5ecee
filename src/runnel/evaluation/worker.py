"""The process of one system, so that its peak memory can be read and its end by lack of memory is a result.

    python -m runnel.evaluation.worker '{"system": "runnel", "model": "mamba2-130m", "dtype": "bf16", ...}'

One JSON object comes back when the system is built, then one for each that is written to stdin. Whatever a library prints on
stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.errors import BackendUnavailable, InputError, MissingDependency, RunnelError
from runnel.evaluation import steps
from runnel.evaluation.llama import LlamaCpp
from runnel.evaluation.machine import forget_peak, peak_bytes
from runnel.evaluation.profile import time_parts
from runnel.evaluation.systems import EqualBert, LinearLayers, Runnel, System, TransformersLibrary

SYSTEMS: dict[str, Callable[..., System]] = {
    "runnel": Runnel,
    "transformers": TransformersLibrary,
    "llama.cpp": LlamaCpp,
    "bert": EqualBert,
}
CHECKED = (130, 70)  # lengths of the texts that are compared, of random ids below
_IDS = steps.IDS
_SHORT_S = 1.0
_WARM = 64  # tokens that are read before anything is timed: kernels compile, buffers are made


class Job:
    """A system and what it can be asked for; each method is one kind of request."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        more = {"budget": spec["budget"]} if spec["system"] == "runnel" and spec.get("budget") else {}
        self.system = SYSTEMS[spec["system"]](spec["model"], spec["dtype"], spec["device"], **more)
        self.linear = LinearLayers(self.system.backbone) if isinstance(self.system, Runnel) else None
        self.trainer: steps.Trainer | None = None
        self._seen: set[tuple[Any, ...]] = set()
        self.generator = torch.Generator().manual_seed(1)

    def ready(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"ready": True, "title": self.system.title}
        if isinstance(self.system, Runnel) and self.linear is not None:
            backbone = self.system.backbone
            facts |= {"flops_per_token": backbone.flops_per_token, "linear_flops_per_token": self.linear.flops_per_token}
            facts |= {"state_bytes": backbone.state_bytes, "kernels": type(backbone.fast).__name__ if backbone.fast else None}
            facts |= {"plan": None if self.system.plan is None else self.system.plan.to_dict() | {"says": str(self.system.plan)}}
        return facts

    def hidden(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write hidden vectors of the texts that are compared: float32 (tokens, D)."""
        generator = torch.Generator().manual_seed(2)
        texts = [torch.randint(0, _IDS, (length,), generator=generator) for length in CHECKED]
        plain = request.get("plain", False)
        found = self.system.plain_hidden(texts) if plain else self.system.hidden(texts)  # type: ignore[attr-defined]
        np.save(request["file"], found.cpu().numpy())
        return {"tokens": found.shape[0]}

    def products(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.linear is not None
        return {"error": self.linear.error()}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds for `batch` texts of `tokens` tokens, by the system or by its linear layers alone.

        A short cell is run twice when it comes for the first time, and the first run, which makes buffers, is forgotten.
        """
        kind = (request.get("part"), request["batch"], request["tokens"], request["segment"])
        seconds = self._timed(request)
        if kind not in self._seen and seconds < _SHORT_S:
            seconds = self._timed(request)
        self._seen.add(kind)
        return {"seconds": seconds}

    def _timed(self, request: dict[str, Any]) -> float:
        run = self.linear.run if request.get("part") == "linear" and self.linear else self.system.run
        ids = self._ids(request["batch"], request["tokens"])
        self._wait()
        start = time.perf_counter()
        run(ids, request["segment"])
        self._wait()
        return time.perf_counter() - start

    def peak(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with the highest memory of the process meanwhile, weights included."""
        self.system.run(self._ids(1, _WARM), _WARM)
        forget_peak(self.spec["device"])
        seconds = self._timed(request)
        return {"seconds": seconds, "peak_bytes": peak_bytes(self.spec["device"])}

    def parts(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of the same by part, after a run that makes buffers."""
        assert isinstance(self.system, Runnel)
        ids, segment, run = self._ids(request["batch"], request["tokens"]), request["segment"], self.system.run
        run(ids, segment)
        return {"parts": time_parts(self.system.backbone, lambda: run(ids, segment))}

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of one training step; the first one makes the optimizer's buffers and is not counted."""
        if self.trainer is None:
            self.trainer = steps.Trainer(self.system)
            self.trainer.step(self._ids(request["batch"], request["tokens"]))
        ids = self._ids(request["batch"], request["tokens"])
        self._wait()
        start = time.perf_counter()
        self.trainer.step(ids)
        self._wait()
        return {"seconds": time.perf_counter() - start, "peak_bytes": peak_bytes(self.spec["device"])}

    def gradient(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the gradient at some places of every weight, float64 (n,)."""
        ids = torch.randint(0, _IDS, (2, 40), generator=torch.Generator().manual_seed(3))
        np.save(request["file"], steps.gradient(self.system, ids, plain=request["plain"]))
        return {}

    def rerank(self, request: dict[str, Any]) -> dict[str, Any]:
        return steps.rerank(self.system, request)

    def fill_index(self, request: dict[str, Any]) -> dict[str, Any]:
        from runnel.evaluation import searching  # here and below: it loads what an index needs

        return searching.fill(request["folder"], self.spec["model"], request["documents"], request["read"])

    def time_indexing(self, request: dict[str, Any]) -> dict[str, Any]:
        from runnel.evaluation import searching

        return searching.time_indexing(self.spec["model"], request["documents"], request["rounds"])

    def time_searches(self, request: dict[str, Any]) -> dict[str, Any]:
        from runnel.evaluation import searching

        return searching.time_searches(request["folder"], self.spec["model"], request["documents"], request["queries"])

    def warm(self) -> None:
        self.system.run(self._ids(1, _WARM), _WARM)
        if self.linear is not None:
            self.linear.run(self._ids(1, _WARM), _WARM)

    def _ids(self, batch: int, tokens: int) -> Tensor:
        return torch.randint(0, _IDS, (batch, tokens), generator=self.generator)

    def _wait(self) -> None:
        if self.spec["device"] == "cuda":
            torch.cuda.synchronize()


def _limit_memory(limit: int) -> None:
    """Have allocations beyond `limit` bytes fail in this process, as they would on a machine without more."""
    try:
        import resource
    except ImportError:  # Windows: the system's own limit applies
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `call` gives, or how it failed: lack of memory and what a system cannot do are results."""
    try:
        return call()
    except (MissingDependency, BackendUnavailable) as error:
        return {"missing": _line(error)}
    except MemoryError as error:
        return {"out_of_memory": _line(error)}
    except RuntimeError as error:
        full = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error) or "bad_alloc" in str(error)
        return {"out_of_memory" if full else "error": _line(error), "kind": type(error).__name__}
    except (RunnelError, OSError, ValueError, IndexError, KeyError, TypeError, ImportError) as error:
        return {"refused" if isinstance(error, InputError) else "error": _line(error), "kind": type(error).__name__}


def _line(error: Exception) -> str:
    if wanted := re.search(r"tried to allocate (\d+) bytes", str(error)):  # torch says it in a line of its own source
        return f"no room for {int(wanted[1]) / 2**20:,.0f} MiB more"
    return " ".join(str(error).split())[:300] or type(error).__name__


def main() -> None:
    """Build the system and answer what stdin asks for."""
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
