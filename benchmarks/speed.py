"""Speed and peak memory of several systems next to ours, each in a process of its own.

No figure without a check, and every round visits all systems of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure import (
    SLOW_S,
    Check,
    Point,
    Progress,
    check_products,
    compare,
    failure,
    may_repeat,
    run_rounds,
    set_peak,
)
from benchmarks.processes import Spec, Worker
from benchmarks.subject import roofline_dtype

OTHERS = ("transformers", "llama.cpp", "bert")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        models: names that `shapes.load_subject` takes.
        cells: (texts, tokens of each).
        others: systems of `OTHERS` to compare with.
        other_cells: the cells of the other systems, if they differ.
        segment: tokens of a step through all layers ("vertical"); None: whole texts, layer by layer
            ("horizontal").
        memory: also measure the peak, each cell in a process of its own, except cells that take
            almost `slow_s`.
        slow_s: a cell that would take longer is left out, and its row says so.
    """

    models: tuple[str, ...]
    cells: tuple[tuple[int, int], ...]
    dtypes: tuple[str, ...] = ("bf16",)
    others: tuple[str, ...] = ()
    other_cells: tuple[tuple[int, int], ...] = ()
    device: str = "cpu"
    segment: int | None = 1024
    rounds: int = 3
    memory: bool = False
    slow_s: float = SLOW_S

    def cells_of(self, system: str) -> tuple[tuple[int, int], ...]:
        """Return (texts, tokens of each) for a system."""
        return self.other_cells if system != "runnel" and self.other_cells else self.cells


@dataclass
class Report:
    """What was measured. `skipped`: systems that could not be started, with the reason."""

    points: list[Point] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "points": [point.to_dict() for point in self.points],
            "checks": [asdict(check) for check in self.checks],
            "skipped": self.skipped,
        }


def measure(settings: Settings, progress: Progress) -> Report:
    """Check, then time, then (`settings.memory`) measure the peak memory of every cell."""
    report = Report()
    for model in settings.models:
        _measure_model(settings, model, report, progress)
    return report


def specs(settings: Settings, model: str) -> list[Spec]:
    """Return the processes that a model needs.

    On the CPU the transformers library runs in fp32, as bf16 is slower there. int8 is ours alone;
    others run in bf16 next to it.
    """
    found = [Spec("runnel", model, dtype, settings.device) for dtype in settings.dtypes]
    for other in settings.others:
        dtypes = tuple(dict.fromkeys(map(roofline_dtype, settings.dtypes)))
        if other == "transformers" and settings.device == "cpu":
            dtypes = ("fp32",)
        if other == "llama.cpp":
            dtypes = ("bf16", "q8_0")
        found += [Spec(other, model, dtype, settings.device) for dtype in dtypes]
    return found


def _measure_model(settings: Settings, model: str, report: Report, progress: Progress) -> None:
    with ExitStack() as stack:
        workers = start(settings, model, stack, report, progress)
        passed = check(workers, report, progress)
        points = [
            point for worker in workers for point in _cells(settings, worker, passed[worker.spec])
        ]
        report.points += points
        _rounds(settings, {worker.spec: worker for worker in workers}, points, progress)
    if settings.memory:
        for point in points:
            if point.system != "linear layers" and may_repeat(point, settings.slow_s):
                progress(
                    f"{model}: memory of {point.title} in {point.dtype}, {point.batch} x"
                    f" {point.tokens:,} tokens"
                )
                peak(point, Spec(point.system, model, point.dtype, settings.device, cold=True))


def start(
    settings: Settings, model: str, stack: ExitStack, report: Report, progress: Progress
) -> list[Worker]:
    """Start the processes that a model needs; `report` has those that could not be started."""
    workers: list[Worker] = []
    for spec in specs(settings, model):
        progress(f"{model}: starting {spec.system} in {spec.dtype}")
        worker = stack.enter_context(Worker(spec))
        if "ready" in worker.first:
            workers.append(worker)
        else:
            _not_ready(worker, report)
    return workers


def _not_ready(worker: Worker, report: Report) -> None:
    """Report a system that could not be started: missing ones are skipped, an error or a missing
    runnel is a failed check.
    """
    kind, reason = failure(worker.first)
    spec = worker.spec
    report.skipped.append(
        {
            "system": spec.system,
            "model": spec.model,
            "dtype": spec.dtype,
            "kind": kind,
            "reason": reason,
        }
    )
    # int8 is not for every model and processor
    if kind == "error" or (spec.system == "runnel" and spec.dtype != "int8"):
        report.checks.append(Check(spec.system, spec.model, spec.dtype, False, note=reason))


# ---- checks --------------------------------------------------------------------------------------


def check(workers: Sequence[Worker], report: Report, progress: Progress) -> dict[Spec, Check]:
    """Compare each system's hidden vectors with the plain path in fp64: of our model, or of the
    BERT.
    """
    passed: dict[Spec, Check] = {}
    with TemporaryDirectory() as folder:
        plain: dict[str, np.ndarray | str] = {}
        for worker in workers:
            spec = worker.spec
            family = "bert" if spec.system == "bert" else "model"
            progress(f"{spec.model}: checking {spec.system} in {spec.dtype}")
            if family not in plain:
                plain[family] = _hidden(worker, Path(folder) / "plain.npy", plain=True)
            found = _hidden(worker, Path(folder) / "hidden.npy", plain=False)
            passed[spec] = compare(spec.system, spec.model, spec.dtype, found, plain[family])
            report.checks.append(passed[spec])
    return passed


def _hidden(worker: Worker, file: Path, *, plain: bool) -> np.ndarray | str:
    """Return hidden vectors of the texts that are compared, or why there are none."""
    answer = worker.ask("hidden", file=str(file), plain=plain)
    return np.load(file) if "tokens" in answer else failure(answer)[1]


# ---- timing --------------------------------------------------------------------------------------


def _cells(settings: Settings, worker: Worker, check: Check) -> Iterator[Point]:
    spec = worker.spec
    facts = worker.first
    alone = roofline_dtype(worker.spec.dtype)
    segment = settings.segment if spec.system == "runnel" else None
    outcome = "ok" if check.passed else "wrong"
    for batch, tokens in settings.cells_of(spec.system):
        point = Point(
            spec.model,
            spec.system,
            facts["title"],
            spec.dtype,
            tokens,
            batch,
            segment,
            outcome,
            check.note,
        )
        point.flops_per_token = facts.get("flops_per_token")
        yield point
        if spec.system == "runnel" and (alone == spec.dtype or alone not in settings.dtypes):
            linear = Point(
                spec.model, "linear layers", "linear layers", alone, tokens, batch, segment
            )
            linear.flops_per_token = facts["linear_flops_per_token"]
            yield linear


def _rounds(
    settings: Settings, workers: dict[Spec, Worker], points: list[Point], progress: Progress
) -> None:
    owner = {id(p): next(w for s, w in workers.items() if _owns(s, p)) for p in points}
    for point in points:
        if point.system == "linear layers":
            check_products(point, owner[id(point)].ask("products").get("error"))

    def seconds_of(point: Point) -> dict[str, Any]:
        part = "linear" if point.system == "linear layers" else "system"
        return owner[id(point)].ask(
            "time", batch=point.batch, tokens=point.tokens, segment=point.segment, part=part
        )

    run_rounds(points, settings.rounds, seconds_of, progress, settings.slow_s)


def _owns(spec: Spec, point: Point) -> bool:
    if point.system == "linear layers":
        return spec.system == "runnel" and roofline_dtype(spec.dtype) == point.dtype
    return (spec.system, spec.dtype) == (point.system, point.dtype)


def peak(point: Point, spec: Spec, *, timed: bool = True) -> None:
    """Set the peak memory of a cell, from a fresh process, and its time unless it is `timed`
    already.
    """
    with Worker(spec) as worker:
        answer = worker.first
        if "ready" in answer:
            answer = worker.ask(
                "peak", batch=point.batch, tokens=point.tokens, segment=point.segment
            )
    set_peak(point, answer)
    if not timed and "seconds" in answer:
        point.seconds.append(answer["seconds"])
