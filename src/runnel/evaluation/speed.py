"""Speed and peak memory over lengths, batches and dtypes: interleaved rounds, each figure behind a check.

No figure is shown for a system whose results are not those of the plain path in fp64 on the same weights. Rounds go over all
systems of a model before the next one starts, so that a slow spell of the machine hits all of them; what is compared within a
round is close in time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from runnel.evaluation.processes import Spec, Worker

OTHERS = ("transformers", "llama.cpp", "bert")
Progress = Callable[[str], None]

# Least cosine of any hidden vector with the plain path's, by what the weights are; fp32 also has a largest difference. Random
# weights round worse than trained ones.
_LEAST_COSINE = {"fp32": 0.99999, "bf16": 0.99, "int8": 0.995, "q8_0": 0.98}
_LARGEST_FP32 = 1e-3  # over the root mean square
_REPEATED_S = 0.32  # share of `slow_s` above which a cell is measured once only


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        models: names that `shapes.load_subject` takes.
        lengths, batches: tokens of a text and texts at a time; every pair of them is a cell.
        cells: (texts, tokens of each) instead of these.
        other_cells: those of the systems to compare with, if they are not the same.
        segment: tokens of a step through all layers ("vertical"); None: whole texts, layer by layer ("horizontal").
        others: some of `OTHERS`, to compare with.
        memory: also measure the peak, each cell in a process of its own; not of those that take almost `slow_s`.
        budget: bytes for steps and states, which choose the segment instead.
        slow_s: a cell that would take longer is left out, and says so.
    """

    models: tuple[str, ...]
    lengths: tuple[int, ...] = (512, 2048)
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("bf16",)
    others: tuple[str, ...] = ()
    cells: tuple[tuple[int, int], ...] = ()
    other_cells: tuple[tuple[int, int], ...] = ()
    device: str = "cpu"
    segment: int | None = 1024
    budget: int | None = None
    rounds: int = 3
    memory: bool = False
    slow_s: float = 100.0

    def cells_of(self, system: str) -> tuple[tuple[int, int], ...]:
        """(texts, tokens of each) that a system is measured with."""
        if system != "runnel" and self.other_cells:
            return self.other_cells
        return self.cells or tuple((batch, tokens) for batch in self.batches for tokens in self.lengths)


@dataclass(frozen=True)
class Check:
    """Whether a system computes what it should: against the plain path in fp64."""

    system: str
    model: str
    dtype: str
    passed: bool
    cosine: float | None = None
    difference: float | None = None
    note: str = ""


@dataclass
class Point:
    """One cell. `outcome` says what came of it: "ok", or why there is no figure."""

    model: str
    system: str
    title: str
    dtype: str
    tokens: int
    batch: int
    segment: int | None
    outcome: str = "ok"
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    roofline_seconds: list[float] = field(default_factory=list)
    flops_per_token: int | None = None
    peak_bytes: int | None = None

    @property
    def total(self) -> int:
        return self.tokens * self.batch

    def to_dict(self) -> dict[str, Any]:
        """With tokens/s (median, min, max), ms per document, GFLOP/s and the share of the roofline; no figure unless "ok"."""
        facts = {k: v for k, v in asdict(self).items() if k not in ("seconds", "roofline_seconds")}
        rates = [self.total / s for s in self.seconds] if self.outcome == "ok" else []
        facts["peak_bytes"] = self.peak_bytes if self.outcome == "ok" else None
        facts["tokens_per_s"] = spread(rates)
        seconds = statistics.median(self.seconds) if rates else None
        facts["ms_per_document"] = None if seconds is None else 1000 * seconds / self.batch
        known = seconds is not None and self.flops_per_token is not None
        facts["gflops_per_s"] = self.flops_per_token * self.total / seconds / 1e9 if known else None  # type: ignore[operator]
        shares = [linear / mine for mine, linear in zip(self.seconds, self.roofline_seconds, strict=False)] if rates else []
        facts["of_roofline"] = spread(shares)
        return facts


@dataclass
class Report:
    """What a bench found. `skipped`: systems that are not there, with the reason."""

    points: list[Point] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    plans: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether a check failed."""
        return any(not check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "points": [point.to_dict() for point in self.points],
            "checks": [asdict(check) for check in self.checks],
            "skipped": self.skipped,
            "plans": self.plans,
        }


def roofline_dtype(dtype: str) -> str:
    """The dtype of the linear layers that a run is held against: eight bits are another arithmetic, and are held against bf16."""
    return "bf16" if dtype == "int8" else dtype


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, mean, smallest and largest of some values and their number; None of none."""
    if not values:
        return None
    middle = {"median": statistics.median(values), "mean": statistics.fmean(values)}
    return middle | {"min": min(values), "max": max(values), "runs": len(values)}


def measure(settings: Settings, progress: Progress) -> Report:
    """Check, then time, then (`settings.memory`) look at the memory of every cell."""
    report = Report()
    for model in settings.models:
        _measure_model(settings, model, report, progress)
    return report


def specs(settings: Settings, model: str) -> list[Spec]:
    """The processes that a model needs. Off the GPU the transformers library runs in fp32: it is slower there in bf16.

    Eight bits are ours alone; other systems run in bf16 beside them.
    """
    found = [Spec("runnel", model, dtype, settings.device, budget=settings.budget) for dtype in settings.dtypes]
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
        workers: list[Worker] = []
        for spec in specs(settings, model):
            progress(f"{model}: starting {spec.system} in {spec.dtype}")
            worker = stack.enter_context(Worker(spec))
            if "ready" in worker.first:
                workers.append(worker)
            else:
                _not_ready(worker, report)
        passed = check(workers, report, progress)
        points = [point for worker in workers for point in _cells(settings, worker, passed[worker.spec])]
        report.points += points
        _rounds(settings, {worker.spec: worker for worker in workers}, points, progress)
        plan = next((w.first["plan"] for w in workers if w.first.get("plan")), None)
        if plan:
            report.plans[model] = plan["says"]
    if settings.memory:
        for point in points:
            if point.outcome == "ok" and point.system != "linear layers" and point.seconds[0] < 0.8 * settings.slow_s:
                progress(f"{model}: memory of {point.title} in {point.dtype}, {point.batch} x {point.tokens:,} tokens")
                peak(point, Spec(point.system, model, point.dtype, settings.device, budget=settings.budget, cold=True))


def _not_ready(worker: Worker, report: Report) -> None:
    """A system that could not be built: absent ones are skipped, the model under test is a failure."""
    kind, reason = failure(worker.first)
    spec = worker.spec
    report.skipped.append({"system": spec.system, "model": spec.model, "dtype": spec.dtype, "kind": kind, "reason": reason})
    if kind == "error" or (spec.system == "runnel" and spec.dtype != "int8"):  # eight bits are not for every model and processor
        report.checks.append(Check(spec.system, spec.model, spec.dtype, False, note=reason))


def failure(answer: dict[str, Any]) -> tuple[str, str]:
    """("missing" | "refused" | "out of memory" | "error", the line of text) of an answer without a result."""
    for key in ("missing", "refused", "out_of_memory", "error"):
        if key in answer:
            return key.replace("_", " "), str(answer[key])
    raise AssertionError(f"an answer of no known kind: {answer}")


# ---- checks --------------------------------------------------------------------------------------------------------------


def check(workers: Sequence[Worker], report: Report, progress: Progress) -> dict[Spec, Check]:
    """Compare each system's hidden vectors with the plain path's in fp64; llama.cpp's and transformers' with those of ours."""
    passed: dict[Spec, Check] = {}
    with TemporaryDirectory() as folder:
        plain: dict[str, np.ndarray | str] = {}
        for worker in workers:
            spec = worker.spec
            family = "bert" if spec.system == "bert" else "model"
            progress(f"{spec.model}: checking {spec.system} in {spec.dtype}")
            if family not in plain:
                plain[family] = _hidden(worker, Path(folder) / "plain.npy", plain=True)
            passed[spec] = compare(spec, _hidden(worker, Path(folder) / "hidden.npy", plain=False), plain[family])
            report.checks.append(passed[spec])
    return passed


def _hidden(worker: Worker, file: Path, *, plain: bool) -> np.ndarray | str:
    """Hidden vectors of the texts that are compared, or why there are none."""
    answer = worker.ask("hidden", file=str(file), plain=plain)
    return np.load(file) if "tokens" in answer else failure(answer)[1]


def compare(spec: Spec, found: np.ndarray | str, expected: np.ndarray | str) -> Check:
    """Whether hidden vectors (T, D) are those expected, as closely as the weights' precision allows."""
    for value in (found, expected):
        if isinstance(value, str):
            return Check(spec.system, spec.model, spec.dtype, False, note=f"could not be checked: {value}")
    assert not isinstance(found, str) and not isinstance(expected, str)
    if found.shape != expected.shape or not np.isfinite(found).all():
        note = f"hidden vectors of shape {found.shape}, expected {expected.shape}, or not finite"
        return Check(spec.system, spec.model, spec.dtype, False, note=note)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(1) / np.maximum(norms, 1e-30)).min())
    difference = float(np.abs(found - expected).max() / np.sqrt(np.square(expected).mean()))
    right = cosine >= _LEAST_COSINE[spec.dtype] and (spec.dtype != "fp32" or difference <= _LARGEST_FP32)
    note = "" if right else f"differs from the plain path: cosine {cosine:.5f}, largest difference {difference:.1e}"
    return Check(spec.system, spec.model, spec.dtype, right, cosine, difference, note)


# ---- timing --------------------------------------------------------------------------------------------------------------


def _cells(settings: Settings, worker: Worker, check: Check) -> Iterator[Point]:
    spec = worker.spec
    segment = worker.first["plan"]["segment"] if worker.first.get("plan") else settings.segment
    wrong: dict[str, Any] = {} if check.passed else {"outcome": "wrong", "note": check.note}
    for batch, tokens in settings.cells_of(spec.system):
        cell: dict[str, Any] = {"dtype": spec.dtype, "tokens": tokens, "batch": batch}
        yield Point(
            spec.model,
            spec.system,
            worker.first["title"],
            segment=segment if spec.system == "runnel" else None,
            flops_per_token=worker.first.get("flops_per_token"),
            **cell,
            **wrong,
        )
        alone = roofline_dtype(spec.dtype)
        if spec.system == "runnel" and (alone == spec.dtype or alone not in settings.dtypes):
            linear, cell = worker.first["linear_flops_per_token"], cell | {"dtype": alone}
            yield Point(spec.model, "linear layers", "linear layers", segment=segment, flops_per_token=linear, **cell)


def _rounds(settings: Settings, workers: dict[Spec, Worker], points: list[Point], progress: Progress) -> None:
    by_place = {(p.system, p.dtype, p.tokens, p.batch): p for p in points}
    owner = {id(p): next(w for s, w in workers.items() if _owns(s, p)) for p in points}
    _check_products(points, owner)
    for turn in range(settings.rounds):
        for point in sorted(points, key=lambda p: (p.batch, p.tokens)):
            if point.outcome != "ok" or _too_slow(point, points, settings.slow_s, first=turn == 0):
                continue
            part = "linear" if point.system == "linear layers" else "system"
            answer = owner[id(point)].ask("time", batch=point.batch, tokens=point.tokens, segment=point.segment, part=part)
            if "seconds" not in answer:
                point.outcome, point.note = failure(answer)
                continue
            point.seconds.append(answer["seconds"])
            progress(
                f"{point.model}, round {turn + 1} of {settings.rounds}: {point.title} in {point.dtype}, "
                f"{point.batch} x {point.tokens:,} tokens: {point.total / answer['seconds']:,.0f} tokens/s"
            )
    for point in points:
        linear = by_place.get(("linear layers", roofline_dtype(point.dtype), point.tokens, point.batch))
        if point.system == "runnel" and linear is not None:
            point.roofline_seconds = linear.seconds


def _owns(spec: Spec, point: Point) -> bool:
    if point.system == "linear layers":
        return spec.system == "runnel" and roofline_dtype(spec.dtype) == point.dtype
    return (spec.system, spec.dtype) == (point.system, point.dtype)


def _check_products(points: list[Point], owner: dict[int, Worker]) -> None:
    """The roofline's own check: its products are those of fp64, as closely as its dtype allows."""
    for point in points:
        if point.system == "linear layers":
            error = owner[id(point)].ask("products").get("error")
            if not isinstance(error, float) or error > (1e-3 if point.dtype == "fp32" else 0.1):
                point.outcome, point.note = "wrong", f"its matrix products differ from fp64 by {error}"


def _too_slow(point: Point, points: list[Point], slow_s: float, *, first: bool) -> bool:
    """Whether a cell is left out, going by a shorter one; a long one is measured in the first round only."""
    if not first:
        return not point.seconds or point.seconds[0] > _REPEATED_S * slow_s
    same = [p for p in points if (p.system, p.dtype) == (point.system, point.dtype) and p.seconds and p.total < point.total]
    if not same:
        return False
    known = max(same, key=lambda p: p.total)
    longer, more = point.tokens / known.tokens, point.batch / known.batch
    expected = known.seconds[0] * more * longer ** (2 if point.system == "bert" and longer > 1 else 1)
    if expected > slow_s:
        point.outcome, point.note = "left out", f"it would take about {expected:,.0f} s"
    return expected > slow_s


def peak(point: Point, spec: Spec, *, timed: bool = True) -> None:
    """Fill in the peak memory of a cell, from a fresh process, and its time unless it is `timed` already."""
    with Worker(spec) as worker:
        answer = worker.first
        if "ready" in answer:
            answer = worker.ask("peak", batch=point.batch, tokens=point.tokens, segment=point.segment)
        if "peak_bytes" in answer:
            point.peak_bytes = answer["peak_bytes"]
            point.seconds += [] if timed else [answer["seconds"]]
        else:
            point.note = "memory: {} ({})".format(*failure(answer))
