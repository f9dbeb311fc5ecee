"""What all measurements share: points and their figures, checks, interleaved rounds, failures as
answers.

No figure is reported for a model whose hidden vectors differ from those of the plain path in fp64
on the same weights. A round measures every cell before the next round starts, so that a slow phase
of the machine affects all cells equally.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks.subject import LinearLayers, roofline_dtype
from runnel.errors import BackendUnavailable, InputError, MissingDependency, RunnelError

Progress = Callable[[str], None]
SLOW_S = 100.0  # cells that would take longer are skipped

# Least cosine of any hidden vector with the plain path's, by type of weights; fp32 also has a
# largest difference. Random weights lose more by rounding than trained ones.
_LEAST_COSINE = {"fp32": 0.99999, "bf16": 0.99, "int8": 0.995, "q8_0": 0.98}
_LARGEST_FP32 = 1e-3  # over the root mean square
_REPEATED_S = 0.32  # share of the limit above which a cell is measured only once


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
        """Return JSON values with tokens/s, ms per document, GFLOP/s and the share of the roofline;
        no figure unless "ok".
        """
        facts = {k: v for k, v in asdict(self).items() if k not in ("seconds", "roofline_seconds")}
        rates = [self.total / s for s in self.seconds] if self.outcome == "ok" else []
        facts["peak_bytes"] = self.peak_bytes if self.outcome == "ok" else None
        facts["tokens_per_s"] = spread(rates)
        seconds = statistics.median(self.seconds) if rates else None
        facts["ms_per_document"] = None if seconds is None else 1000 * seconds / self.batch
        known = seconds is not None and self.flops_per_token is not None
        facts["gflops_per_s"] = self.flops_per_token * self.total / seconds / 1e9 if known else None  # type: ignore[operator]
        shares = (
            [
                linear / mine
                for mine, linear in zip(self.seconds, self.roofline_seconds, strict=False)
            ]
            if rates
            else []
        )
        facts["of_roofline"] = spread(shares)
        return facts


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, mean, minimum, maximum and number of values; None if there are none."""
    if not values:
        return None
    middle = {"median": statistics.median(values), "mean": statistics.fmean(values)}
    return middle | {"min": min(values), "max": max(values), "runs": len(values)}


# ---- checks --------------------------------------------------------------------------------------


def compare(
    system: str, model: str, dtype: str, found: np.ndarray | str, expected: np.ndarray | str
) -> Check:
    """Compare hidden vectors (T, D) with the expected ones within the weights' precision. A string
    says why there are none.
    """
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
    note = (
        ""
        if right
        else (
            f"differs from the plain path: cosine {cosine:.5f}, largest difference {difference:.1e}"
        )
    )
    return Check(system, model, dtype, right, cosine, difference, note)


def check_products(point: Point, error: object) -> None:
    """Mark the linear layers as wrong if their products differ from fp64 by more than their dtype
    allows.
    """
    if not isinstance(error, float) or not error <= (1e-3 if point.dtype == "fp32" else 0.1):
        point.outcome = "wrong"
        point.note = f"its matrix products differ from fp64 by {error}"


# ---- timing --------------------------------------------------------------------------------------


def run_rounds(
    points: list[Point],
    rounds: int,
    seconds_of: Callable[[Point], dict[str, Any]],
    progress: Progress,
    slow_s: float = SLOW_S,
) -> None:
    """Time every point in every round, short cells first, and give each of runnel's points the
    times of its linear layers.

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
                f"{point.model}, round {turn + 1} of {rounds}: {point.title} in {point.dtype},"
                f" {point.batch} x {point.tokens:,} tokens: {point.total / result['seconds']:,.0f}"
                " tokens/s"
            )
    linear = {(p.dtype, p.tokens, p.batch): p for p in points if p.system == LinearLayers.title}
    for point in points:
        alone = linear.get((roofline_dtype(point.dtype), point.tokens, point.batch))
        if point.system == "runnel" and alone is not None:
            point.roofline_seconds = alone.seconds


def _too_slow(point: Point, points: list[Point], slow_s: float, *, first: bool) -> bool:
    """Return whether to skip a cell, judged by a shorter one in the first round; long cells are
    measured only in that round.
    """
    if not first:
        return not point.seconds or point.seconds[0] > _REPEATED_S * slow_s
    same = [
        p
        for p in points
        if (p.system, p.dtype) == (point.system, point.dtype)
        and p.seconds
        and p.total < point.total
    ]
    if not same:
        return False
    known = max(same, key=lambda p: p.total)
    longer = point.tokens / known.tokens
    more = point.batch / known.batch
    expected = (
        known.seconds[0] * more * longer ** (2 if point.system == "bert" and longer > 1 else 1)
    )
    if expected > slow_s:
        point.outcome = "left out"
        point.note = f"it would take about {expected:,.0f} s"
    return expected > slow_s


def may_repeat(point: Point, slow_s: float = SLOW_S) -> bool:
    """Return whether a measured point is fast enough to run once more, for its peak memory."""
    return point.outcome == "ok" and bool(point.seconds) and point.seconds[0] < 0.8 * slow_s


def set_peak(point: Point, found: dict[str, Any]) -> None:
    """Set the peak memory of a point from an answer. Out of memory is noted; an error withdraws the
    whole figure.
    """
    if "peak_bytes" in found:
        point.peak_bytes = found["peak_bytes"]
        return
    outcome, note = failure(found)
    if outcome == "error" or not point.seconds:
        point.outcome = outcome
    point.note = f"memory: {outcome} ({note})"


# ---- failures ------------------------------------------------------------------------------------


def answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `call`, or its failure: {"missing" | "refused" | "out_of_memory" |
    "error": a line of text}.
    """
    try:
        return call()
    except (MissingDependency, BackendUnavailable) as error:
        return {"missing": _line(error)}
    except MemoryError as error:
        return {"out_of_memory": _line(error)}
    except RuntimeError as error:
        full = (
            isinstance(error, torch.OutOfMemoryError)
            or "allocate memory" in str(error)
            or "bad_alloc" in str(error)
        )
        return {"out_of_memory" if full else "error": _line(error), "kind": type(error).__name__}
    except (
        RunnelError,
        OSError,
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        ImportError,
    ) as error:
        return {
            "refused" if isinstance(error, InputError) else "error": _line(error),
            "kind": type(error).__name__,
        }


def failure(found: dict[str, Any]) -> tuple[str, str]:
    """Return ("missing" | "refused" | "out of memory" | "error", the line of text) of an answer
    without a result.
    """
    for key in ("missing", "refused", "out_of_memory", "error"):
        if key in found:
            return key.replace("_", " "), str(found[key])
    raise AssertionError(f"an answer of no known kind: {found}")


def _line(error: Exception) -> str:
    # torch's message quotes its own source
    if wanted := re.search(r"tried to allocate (\d+) bytes", str(error)):
        return f"no room for {int(wanted[1]) / 2**20:,.0f} MiB more"
    return " ".join(str(error).split())[:300] or type(error).__name__
