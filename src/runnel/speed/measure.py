"""Measure speed and peak memory by length, batch and dtype, in interleaved rounds.

No figure is reported for a model whose hidden vectors differ from those of the plain path in fp64 on the same weights. A round
measures every cell before the next round starts, so that a slow phase of the machine affects all cells equally.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from runnel.errors import BackendUnavailable, InputError, MissingDependency, RunnelError
from runnel.speed.machine import peak_bytes, reset_peak
from runnel.speed.subject import Clock, LinearLayers, Subject, checked_texts, roofline_dtype

Progress = Callable[[str], None]
SLOW_S = 100.0  # cells that would take longer are skipped

# Least cosine of any hidden vector with the plain path's, by type of weights; fp32 also has a largest difference. Random
# weights lose more by rounding than trained ones.
_LEAST_COSINE = {"fp32": 0.99999, "bf16": 0.99, "int8": 0.995, "q8_0": 0.98}
_LARGEST_FP32 = 1e-3  # over the root mean square
_REPEATED_S = 0.32  # share of the limit above which a cell is measured only once
_WARM = 64  # tokens read before timing, so that kernels are compiled


@dataclass(frozen=True)
class Check:
    """The result of comparing a system's hidden vectors with the plain path in fp64."""

    system: str
    model: str
    dtype: str
    passed: bool
    cosine: float | None = None
    difference: float | None = None
    note: str = ""


@dataclass
class Point:
    """The measurements of one cell. `outcome`: "ok", or why the cell has no figure."""

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
        """Return JSON values with tokens/s, ms per document, GFLOP/s and the share of the roofline; no figure unless "ok"."""
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


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, mean, minimum, maximum and number of values; None if there are none."""
    if not values:
        return None
    middle = {"median": statistics.median(values), "mean": statistics.fmean(values)}
    return middle | {"min": min(values), "max": max(values), "runs": len(values)}


def measure(
    model: str,
    dtypes: Sequence[str],
    cells: Sequence[tuple[int, int]],
    progress: Progress,
    *,
    device: str = "cpu",
    segment: int | None = 1024,
    budget: int | None = None,
    rounds: int = 3,
    memory: bool = False,
) -> tuple[list[Point], list[Check], str]:
    """Measure a model, and its linear layers alone: check, then time, then (`memory`) the peak of each cell in a new process.

    Args:
        cells: (texts, tokens of each).
        segment: tokens of a step through all layers; None: whole texts, layer by layer.
        budget: bytes for steps and states, from which the segment is planned instead.

    Returns:
        Points, checks, and the plan for the budget as text.
    """
    clock = Clock(device)
    subjects, checks = _load(model, dtypes, device, budget, clock, progress)
    plan = next(iter(subjects.values())).plan
    lengths = {name: segment if one.plan is None else one.plan.segment for name, one in subjects.items()}
    # Of bf16 and int8, which share a roofline, bf16 comes last: its weights are the model's own.
    linear = {roofline_dtype(name): (LinearLayers(subjects[name].backbone), lengths[name]) for name in sorted(dtypes)[::-1]}
    errors = {name: layers.error() for name, (layers, _) in linear.items()}
    points = list[Point]()
    for batch, tokens in cells:
        for name, check in zip(dtypes, checks, strict=True):
            outcome = "ok" if check.passed else "wrong"
            points.append(Point(model, "runnel", "runnel", name, tokens, batch, lengths[name], outcome, check.note))
            points[-1].flops_per_token = subjects[name].backbone.flops_per_token
        for name, (layers, length) in linear.items():
            points.append(Point(model, layers.title, layers.title, name, tokens, batch, length))
            points[-1].flops_per_token = layers.flops_per_token
            check_products(points[-1], errors[name])

    def seconds_of(point: Point) -> dict[str, Any]:
        run = linear[point.dtype][0].run if point.system == LinearLayers.title else subjects[point.dtype].run
        return answer(lambda: {"seconds": clock.seconds(run, point.batch, point.tokens, point.segment)})

    run_rounds(points, rounds, seconds_of, progress)
    subjects.clear()
    linear.clear()  # the processes below need the memory
    for point in points if memory else ():
        if point.system == "runnel" and may_repeat(point):
            progress(f"{model}: peak memory in {point.dtype}, {point.batch} x {point.tokens:,} tokens")
            set_peak(point, _peak_in_new_process(point, device))
    return points, checks, "" if plan is None else str(plan)


def _load(
    model: str, dtypes: Sequence[str], device: str, budget: int | None, clock: Clock, progress: Progress
) -> tuple[dict[str, Subject], list[Check]]:
    """Load a model in every dtype, check its hidden vectors, and warm it up."""
    subjects, checks, texts = dict[str, Subject](), list[Check](), checked_texts()
    plain: np.ndarray | str = ""
    for dtype in dtypes:
        progress(f"{model}: loading and checking {dtype}")
        subject = subjects[dtype] = Subject(model, dtype, device, budget)
        plain = plain if len(plain) else _vectors(subject.plain_hidden, texts)
        checks.append(compare("runnel", model, dtype, _vectors(subject.hidden, texts), plain))
        subject.run(clock.ids(1, _WARM), _WARM)
    return subjects, checks


# ---- checks ----------------------------------------------------------------------------------------------------------------


def compare(system: str, model: str, dtype: str, found: np.ndarray | str, expected: np.ndarray | str) -> Check:
    """Compare hidden vectors (T, D) with the expected ones within the weights' precision. A string says why there are none."""
    for value in (found, expected):
        if isinstance(value, str):
            return Check(system, model, dtype, False, note=f"could not be checked: {value}")
    assert not isinstance(found, str) and not isinstance(expected, str)
    if found.shape != expected.shape or not np.isfinite(found).all():
        note = f"hidden vectors of shape {found.shape}, expected {expected.shape}, or not finite"
        return Check(system, model, dtype, False, note=note)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(1) / np.maximum(norms, 1e-30)).min())
    difference = float(np.abs(found - expected).max() / np.sqrt(np.square(expected).mean()))
    right = cosine >= _LEAST_COSINE[dtype] and (dtype != "fp32" or difference <= _LARGEST_FP32)
    note = "" if right else f"differs from the plain path: cosine {cosine:.5f}, largest difference {difference:.1e}"
    return Check(system, model, dtype, right, cosine, difference, note)


def check_products(point: Point, error: object) -> None:
    """Mark the linear layers as wrong if their products differ from fp64 by more than their dtype allows."""
    if not isinstance(error, float) or not error <= (1e-3 if point.dtype == "fp32" else 0.1):
        point.outcome, point.note = "wrong", f"its matrix products differ from fp64 by {error}"


def _vectors(hidden: Callable[[list[torch.Tensor]], torch.Tensor], texts: list[torch.Tensor]) -> np.ndarray | str:
    """Return hidden vectors, or a string that says why there are none."""
    result = answer(lambda: {"vectors": hidden(texts).cpu().numpy()})
    return result["vectors"] if "vectors" in result else failure(result)[1]


# ---- timing ----------------------------------------------------------------------------------------------------------------


def run_rounds(
    points: list[Point],
    rounds: int,
    seconds_of: Callable[[Point], dict[str, Any]],
    progress: Progress,
    slow_s: float = SLOW_S,
) -> None:
    """Time every point in every round, short cells first, and give each of runnel's points the times of its linear layers.

    Args:
        seconds_of: returns {"seconds": ...}, or the failure (see `answer`).
    """
    for turn in range(rounds):
        for point in sorted(points, key=lambda p: (p.batch, p.tokens)):
            if point.outcome != "ok" or _too_slow(point, points, slow_s, first=turn == 0):
                continue
            result = seconds_of(point)
            if "seconds" not in result:
                point.outcome, point.note = failure(result)
                continue
            point.seconds.append(result["seconds"])
            progress(
                f"{point.model}, round {turn + 1} of {rounds}: {point.title} in {point.dtype}, "
                f"{point.batch} x {point.tokens:,} tokens: {point.total / result['seconds']:,.0f} tokens/s"
            )
    linear = {(p.dtype, p.tokens, p.batch): p for p in points if p.system == LinearLayers.title}
    for point in points:
        alone = linear.get((roofline_dtype(point.dtype), point.tokens, point.batch))
        if point.system == "runnel" and alone is not None:
            point.roofline_seconds = alone.seconds


def _too_slow(point: Point, points: list[Point], slow_s: float, *, first: bool) -> bool:
    """Return whether to skip a cell, judged by a shorter one in the first round; long cells are measured only in that round."""
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


def may_repeat(point: Point, slow_s: float = SLOW_S) -> bool:
    """Return whether a measured point is fast enough to run once more, for its peak memory."""
    return point.outcome == "ok" and bool(point.seconds) and point.seconds[0] < 0.8 * slow_s


def set_peak(point: Point, found: dict[str, Any]) -> None:
    """Set the peak memory of a point from an answer. Out of memory is noted; an error withdraws the whole figure."""
    if "peak_bytes" in found:
        point.peak_bytes = found["peak_bytes"]
        return
    outcome, note = failure(found)
    if outcome == "error" or not point.seconds:
        point.outcome = outcome
    point.note = f"memory: {outcome} ({note})"


def _peak_in_new_process(point: Point, device: str) -> dict[str, Any]:
    cell = (point.model, point.dtype, device, point.batch, point.tokens, point.segment)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_peak, *cell).result()
    except BrokenProcessPool:
        return {"out_of_memory": "the process was killed for its memory"}


def _peak(model: str, dtype: str, device: str, batch: int, tokens: int, segment: int | None) -> dict[str, Any]:
    def call() -> dict[str, Any]:
        subject, clock = Subject(model, dtype, device), Clock(device)
        subject.run(clock.ids(1, _WARM), _WARM)
        reset_peak(device)
        subject.run(clock.ids(batch, tokens), segment)
        return {"peak_bytes": peak_bytes(device)}

    return answer(call)


# ---- failures --------------------------------------------------------------------------------------------------------------


def answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `call`, or its failure: {"missing" | "refused" | "out_of_memory" | "error": a line of text}."""
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


def failure(found: dict[str, Any]) -> tuple[str, str]:
    """Return ("missing" | "refused" | "out of memory" | "error", the line of text) of an answer without a result."""
    for key in ("missing", "refused", "out_of_memory", "error"):
        if key in found:
            return key.replace("_", " "), str(found[key])
    raise AssertionError(f"an answer of no known kind: {found}")


def _line(error: Exception) -> str:
    if wanted := re.search(r"tried to allocate (\d+) bytes", str(error)):  # torch's message quotes its own source
        return f"no room for {int(wanted[1]) / 2**20:,.0f} MiB more"
    return " ".join(str(error).split())[:300] or type(error).__name__
