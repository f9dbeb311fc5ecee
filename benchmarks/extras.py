"""Measure training by batch size, reranking with remembered documents, and an index."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure import Progress, failure, spread
from benchmarks.processes import Spec, Worker

_LEAST_GRADIENT_COSINE = 0.999  # fp32 kernels against fp64
# Least correlation of scores with those of whole pairs, by the precision of stored states.
_LEAST_AGREEMENT = {
    "whole pairs": 1.0 - 1e-9,
    "fp32 states": 0.999,
    "bf16 states": 0.99,
    "int8 states": 0.97,
}


@dataclass
class Training:
    """Training steps of one batch size, fp32. `outcome`: "ok", "out of memory" (a result), "wrong",
    or why there is none.
    """

    model: str
    system: str
    tokens: int
    batch: int
    memory_limit: int | None
    lora: int | None = None
    outcome: str = "ok"
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        rates = [self.tokens * self.batch / s for s in self.seconds] if self.outcome == "ok" else []
        facts = {k: v for k, v in asdict(self).items() if k != "seconds"}
        return facts | {
            "tokens_per_s": spread(rates),
            "peak_bytes": self.peak_bytes if rates else None,
        }


def training(
    model: str,
    system: str,
    batches: tuple[int, ...],
    tokens: int,
    progress: Progress,
    *,
    device: str = "cpu",
    memory_limit: int | None = None,
    slow_s: float = 100.0,
    rounds: int = 2,
    lora: int | None = None,
) -> list[Training]:
    """Measure training tokens/s for each batch size, each in a process limited to `memory_limit`
    bytes; `lora`: see `Spec`.

    The gradient must agree with fp64 first. Batches larger than one that ran out of memory are not
    tried, nor batches that would take longer than `slow_s`.
    """
    found: list[Training] = []
    wrong = _gradient_problem(Spec(system, model, "fp32", device), progress)
    for batch in batches:
        point = Training(model, system, tokens, batch, memory_limit, lora)
        found.append(point)
        before = found[-2] if len(found) > 1 else None
        if wrong is not None:
            point.outcome, point.note = wrong
        elif before is not None and before.outcome in ("out of memory", "left out"):
            point.outcome = before.outcome
            point.note = "a smaller batch was" if before.outcome == "out of memory" else before.note
        elif (
            before is not None
            and before.seconds
            and 2 * before.seconds[0] * batch / before.batch > slow_s
        ):
            point.outcome = "left out"
            point.note = f"it would take more than {slow_s:,.0f} s"
        else:
            progress(f"{model}: training {system}, {batch} x {tokens} tokens")
            _train(
                point,
                Spec(system, model, "fp32", device, memory_limit, cold=True, lora=lora),
                rounds,
            )
    return found


def _train(point: Training, spec: Spec, rounds: int) -> None:
    with Worker(spec) as worker:
        answer = worker.first
        for _ in range(rounds if "ready" in answer else 0):
            answer = worker.ask("train", batch=point.batch, tokens=point.tokens)
            if "seconds" not in answer:
                break
            point.seconds.append(answer["seconds"])
            point.peak_bytes = answer["peak_bytes"]
        if "seconds" not in answer:
            point.outcome, point.note = failure(answer)


def _gradient_problem(spec: Spec, progress: Progress) -> tuple[str, str] | None:
    """Return (outcome, note) if a system's gradient differs from fp64, or it has none."""
    progress(f"{spec.model}: checking the gradient of {spec.system}")
    with TemporaryDirectory() as folder, Worker(spec) as worker:
        if "ready" not in worker.first:
            return failure(worker.first)
        gradients = []
        for plain in (False, True):
            file = Path(folder) / f"{plain}.npy"
            answer = worker.ask("gradient", file=str(file), plain=plain)
            if answer:
                return "wrong", f"the gradient could not be checked: {failure(answer)[1]}"
            gradients.append(np.load(file))
    return compare_gradients(*gradients)


def compare_gradients(found: np.ndarray, expected: np.ndarray) -> tuple[str, str] | None:
    """Return ("wrong", why) unless both gradients have the same direction."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return "wrong", "the gradient is not finite, or not of all weights"
    cosine = float(found @ expected / max(1e-300, np.linalg.norm(found) * np.linalg.norm(expected)))
    return (
        None
        if cosine >= _LEAST_GRADIENT_COSINE
        else ("wrong", f"the gradient differs from fp64: cosine {cosine:.5f}")
    )


@dataclass
class Remembered:
    """Scoring documents for one query, in one way: as "whole pairs", or from "fp32 states", "bf16
    states", "int8 states".

    `outcome`: "ok", or why there is no figure; then it may be the model's only row, of the way "".
    """

    model: str
    way: str
    documents: int
    tokens: int
    agreement: float | None = None
    seconds: list[float] = field(default_factory=list)
    whole_seconds: list[float] = field(default_factory=list)
    outcome: str = "ok"
    note: str = ""

    def __post_init__(self) -> None:
        if self.agreement is not None and not self.agreement >= _LEAST_AGREEMENT[self.way]:
            self.outcome = "wrong"
            self.note = f"scores agree with whole pairs by {self.agreement:.4f} only"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; `over_whole`: how many times faster than whole pairs of the same
        round.
        """
        right = self.outcome == "ok"
        facts = {k: v for k, v in asdict(self).items() if not k.endswith("seconds")}
        ratios = (
            [whole / mine for whole, mine in zip(self.whole_seconds, self.seconds, strict=True)]
            if right
            else []
        )
        per = [1000 * s / self.documents for s in self.seconds] if right else []
        return facts | {"ms_per_document": spread(per), "over_whole": spread(ratios)}


def remembered(
    model: str,
    dtype: str,
    progress: Progress,
    *,
    documents: int = 100,
    tokens: int = 512,
    rounds: int = 3,
    device: str = "cpu",
) -> list[Remembered]:
    """Measure reranking with remembered documents and with whole pairs; one row says why if it
    cannot be measured.
    """
    progress(f"{model}: reranking {documents} documents of {tokens} tokens")
    with Worker(Spec("runnel", model, dtype, device)) as worker:
        answer = worker.first
        if "ready" in answer:
            answer = worker.ask("rerank", documents=documents, tokens=tokens, rounds=rounds)
    if "seconds" not in answer:
        outcome, note = failure(answer)
        return [Remembered(model, "", documents, tokens, outcome=outcome, note=note)]
    seconds = answer["seconds"]
    agreement = answer["agreement"]
    return [
        Remembered(model, way, documents, tokens, agreement[way], values, seconds["whole pairs"])
        for way, values in seconds.items()
    ]


@dataclass
class Searched:
    """The speed of indexing and of searches. `outcome`: "ok", "wrong", or why there is no figure.

    Attributes:
        model: model of the index that is searched.
        indexing_model: model whose indexing is timed.
        words: words of a document.
        read: documents that the model has read; the rest are modeled on them (`searching.py`).
        keeps_sentences: whether the index keeps vectors of sentences, so that a search reads no
            document.
        stages: stage of a search -> seconds of each query, from `searching.time_searches`.
        indexing: the result of `searching.time_indexing`.
        peak_bytes: peak memory of a process that searches.
    """

    model: str
    indexing_model: str
    documents: int
    words: int
    read: int
    outcome: str = "ok"
    note: str = ""
    passages: int = 0
    disk_bytes: int = 0
    peak_bytes: int = 0
    keeps_sentences: bool = False
    stages: dict[str, list[float]] = field(default_factory=dict)
    indexing: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return milliseconds of the stages (with "p95"), tokens/s, and shares of the engine's
        speed in the same round.
        """
        facts = {
            key: value for key, value in asdict(self).items() if key not in ("stages", "indexing")
        }
        if self.outcome != "ok":
            return facts | {"stages": {}, "indexing": {}}
        ms = {name: [1000 * s for s in seconds] for name, seconds in self.stages.items()}
        stages = {
            name: (spread(values) or {}) | {"p95": float(np.percentile(values, 95))}
            for name, values in ms.items()
        }
        seconds = self.indexing["seconds"]
        processor = self.indexing["processor"]
        indexing = {
            way: {
                "tokens_per_s": spread([self.indexing["tokens"] / s for s in seconds[way]]),
                "over_engine": spread(
                    [a / b for a, b in zip(seconds["engine"], seconds[way], strict=True)]
                ),
                "over_engine_processor": spread(
                    [a / b for a, b in zip(processor["engine"], processor[way], strict=True)]
                ),
            }
            for way in seconds
        }
        return facts | {"stages": stages, "indexing": indexing}


def searched(
    model: str,
    indexing_model: str,
    progress: Progress,
    *,
    documents: int = 10_000,
    read: int = 100,
    queries: int = 100,
    indexed: int = 500,
    rounds: int = 3,
) -> Searched:
    """Fill an index, check it, time searches, and time indexing and the engine alone; each in a
    process of its own.
    """
    found = Searched(model, indexing_model, documents, 1000, min(read, documents))
    spec = Spec("runnel", model, "bf16", cold=True)
    with TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        progress(f"{model}: an index of {documents:,} documents")
        with Worker(spec) as worker:
            filled = (
                worker.ask("fill_index", folder=index, documents=documents, read=found.read)
                if "ready" in worker.first
                else {}
            )
            if "passages" not in filled:
                found.outcome, found.note = _why_not(filled or worker.first)
                return found
            found.passages = filled["passages"]
            found.disk_bytes = filled["disk_bytes"]
            found.keeps_sentences = filled["keeps_sentences"]
        progress(f"{indexing_model}: indexing and the engine alone")
        with Worker(replace(spec, model=indexing_model)) as worker:
            found.indexing = worker.ask("time_indexing", documents=indexed, rounds=rounds)
        progress(f"{model}: {queries} searches")
        with Worker(spec) as worker:
            answer = worker.ask("time_searches", folder=index, documents=documents, queries=queries)
    for part in (found.indexing, answer):
        if "seconds" not in part:
            found.outcome, found.note = _why_not(part)
            return found
    found.stages = answer["seconds"]
    found.peak_bytes = answer["peak_bytes"]
    return found


def _why_not(answer: dict[str, Any]) -> tuple[str, str]:
    return ("wrong", answer["wrong"]) if "wrong" in answer else failure(answer)
