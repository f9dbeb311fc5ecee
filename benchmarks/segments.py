"""Paper D's sweep: time and peak memory of horizontal and vertical inference over V, batch and
length; chunk Q inside operators.

V  tokens of a step through all layers (all texts of the batch together)
Q  tokens of a chunk in an operator's parallel form
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import peak_bytes, reset_peak
from benchmarks.measure import Check, Point, Progress, failure, run_rounds, spread
from benchmarks.processes import Spec, Worker
from benchmarks.speed import Report, check, peak
from runnel.ops.mlstm.torch import mlstm_torch
from runnel.ops.ssd.torch import ssd_torch
from runnel.ops.wkv7.torch import wkv7_torch


@dataclass(frozen=True)
class Grid:
    """Cells of a sweep: (texts, tokens of each) times segments; None is horizontal."""

    model: str
    cells: tuple[tuple[int, int], ...]
    segments: tuple[int | None, ...]
    dtype: str = "bf16"
    device: str = "cpu"


def sweep(grid: Grid, rounds: int, progress: Progress) -> tuple[list[Point], Check]:
    """Measure every cell with every segment: `rounds` interleaved runs, and one in a new process
    for its peak memory.

    Segments as long as all texts together are left out: that is horizontal inference.
    """
    spec = Spec("runnel", grid.model, grid.dtype, grid.device)
    with Worker(spec) as worker:
        if "ready" not in worker.first:
            return [], Check("runnel", grid.model, grid.dtype, False, note=failure(worker.first)[1])
        checked = check([worker], Report(), progress)[spec]
        outcome = "ok" if checked.passed else "wrong"
        points = [
            Point(
                grid.model,
                "runnel",
                "runnel",
                grid.dtype,
                tokens,
                batch,
                segment,
                outcome,
                checked.note,
            )
            for batch, tokens in grid.cells
            for segment in grid.segments
            if segment is None or segment < batch * tokens
        ]

        def seconds_of(point: Point) -> dict[str, Any]:
            return worker.ask("time", batch=point.batch, tokens=point.tokens, segment=point.segment)

        run_rounds(points, rounds, seconds_of, progress, slow_s=math.inf)
    for point in points:
        if point.outcome == "ok":
            progress(
                f"{grid.model}, sweep: memory of {point.batch} x {point.tokens:,}, V"
                f" {point.segment or 'all'}"
            )
            peak(point, Spec("runnel", grid.model, grid.dtype, grid.device, cold=True))
    return points, checked


# ---- chunks --------------------------------------------------------------------------------------


@dataclass
class Chunks:
    """An operator's parallel form with chunks of Q tokens, at the shape of a published model.
    `peak_bytes`: memory of a run.
    """

    operator: str
    chunk: int
    batch: int
    tokens: int
    difference: float
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "ok" if self.difference < 1e-3 else "wrong"

    def to_dict(self) -> dict[str, Any]:
        facts = {k: v for k, v in asdict(self).items() if k not in ("seconds", "peak_bytes")}
        right = self.outcome == "ok"
        note = "" if right else f"differs from short chunks by {self.difference:.1e}"
        facts |= {
            "outcome": self.outcome,
            "note": note,
            "peak_bytes": self.peak_bytes if right else None,
        }
        return facts | {
            "tokens_per_s": spread(
                [self.batch * self.tokens / s for s in self.seconds] if right else []
            )
        }


def sweep_chunks(
    chunks: Sequence[int], cells: Sequence[tuple[int, int]], rounds: int, progress: Progress
) -> list[Chunks]:
    """Measure tokens/s and memory of one layer's recurrence in plain torch, fp32, by Q, for (texts,
    tokens of each).

    Each result must agree with that of the shortest chunk.
    """
    found = []
    with torch.inference_mode():
        runs = {(batch, tokens): _operators(batch, tokens) for batch, tokens in cells}
        for (batch, tokens), operators in runs.items():
            for name, run in operators.items():
                expected = run(min(chunks))
                scale = float(expected.square().mean().sqrt())
                for chunk in chunks:
                    progress(f"chunks: memory of {name}, {batch} x {tokens:,}, Q {chunk}")
                    result, taken = _taken(lambda run=run, chunk=chunk: run(chunk))  # type: ignore[misc]
                    found.append(
                        Chunks(
                            name,
                            chunk,
                            batch,
                            tokens,
                            float((result - expected).abs().max()) / scale,
                            taken,
                        )
                    )
        for turn in range(rounds):
            progress(f"chunks: round {turn + 1} of {rounds}")
            for point in found:
                start = time.perf_counter()
                runs[point.batch, point.tokens][point.operator](point.chunk)
                point.seconds.append(time.perf_counter() - start)
    return found


def _taken(run: Callable[[], Tensor]) -> tuple[Tensor, int | None]:
    """Return the result of `run` and the memory that it takes, which only Linux reports."""
    if not sys.platform.startswith("linux"):
        return run(), None
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # else the run would reuse memory that was freed before
    reset_peak("cpu")
    before = peak_bytes("cpu")
    return run(), peak_bytes("cpu") - before


def _operators(batch: int, tokens: int) -> dict[str, Callable[[int], Tensor]]:
    """Return the recurrences at the shapes of mamba2-130m, rwkv7-0.1b and xlstm-scaled, on texts of
    random numbers.
    """
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(batch * tokens, *shape, generator=generator)

    cu = torch.arange(batch + 1) * tokens
    x = random(24, 64)
    dt = random(24).sigmoid() * 0.1
    A = -torch.linspace(1, 16, 24)
    B = random(1, 128)
    C = random(1, 128)
    r = random(12, 64)
    k = random(12, 64)
    v = random(12, 64)
    direction = torch.nn.functional.normalize(k, dim=-1)
    w = -0.6 * random(12, 64).sigmoid()
    gate = random(12, 64).sigmoid()
    q = random(4, 128)
    key = random(4, 128)
    value = random(4, 256)
    i = random(4)
    f = random(4) + 3
    return {
        "ssd": lambda chunk: ssd_torch(x, dt, A, B, C, None, cu, None, chunk)[0],
        "wkv7": lambda chunk: wkv7_torch(
            r, w, 0.1 * k, v, -direction, direction * gate, cu, None, chunk
        )[0],
        "mlstm": lambda chunk: mlstm_torch(q, key, value, i, f, cu, None, 1e-6, chunk)[0],
    }
