"""The bars of speed and memory that this package must hold, and the quick measurement that checks
them.

Every bar is a ratio of two figures of one run, or a bound. `make bench-check` measures them in
minutes; the page measures the same at more lengths.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.compare import absent
from benchmarks.extras import remembered, searched
from benchmarks.measure import Check, Point, Progress, failure
from benchmarks.processes import Spec, Worker
from benchmarks.speed import Report, Settings, check, measure, peak
from runnel.ops.backend import has_native_bf16

SEARCHED = ("pocket", "pocket-mamba2")  # the models of the index that is searched, and of indexing
LONG = (8192, 262144)  # tokens of the texts whose memory and speed are compared
_HELP_RUNS = 5


@dataclass(frozen=True)
class Bar:
    """A bound on a figure: at least, or at most, `bound`; `target` is a stretch goal."""

    what: str
    bound: float
    target: float | None = None
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def verdict(self, value: float) -> str:
        """Return whether a figure holds, and by how much it misses the bound."""
        if not self.holds(value):
            return f"fails by {abs(value / self.bound - 1):.1%}"
        target = self if self.target is None else replace(self, bound=self.target)
        return f"holds, as does {target}" if target is not self and target.holds(value) else "holds"


BARS: Mapping[str, Bar] = {
    "roofline mamba2-130m": Bar(
        "mamba2-130m, bf16, 2k tokens: tokens/s over its linear layers alone", 0.60, 0.85
    ),
    "roofline mamba-130m": Bar("mamba-130m, the same", 0.60, 0.85),
    "roofline rwkv7-0.1b": Bar("rwkv7-0.1b, the same", 0.60, 0.85),
    "roofline xlstm-scaled": Bar("xlstm-scaled, the same", 0.60, 0.85),
    "int8": Bar(
        "mamba2-130m, int8, 2k tokens: tokens/s over its linear layers alone in bf16", 1.20
    ),
    "transformers": Bar(
        "mamba2-130m, bf16, 2k tokens: tokens/s over the transformers library's", 10.0, 20.0
    ),
    "llama.cpp": Bar(
        "mamba2-130m, bf16, 2k tokens: tokens/s over llama.cpp's best of bf16 and q8_0", 3.0, 6.0
    ),
    "memory": Bar("peak memory at 256k tokens over that at 8k", 1.05, 1.0, at_most=True),
    "long": Bar("tokens/s at 256k tokens over that at 8k", 0.95, 1.0),
    "short": Bar(
        "mamba2-130m: tokens/s of 128 texts of 64 tokens over that of one of 8k", 0.7, 0.9
    ),
    "remembered": Bar(
        "pocket-mamba2: 100 remembered documents of 512 tokens (fp32 states) over whole pairs",
        10.0,
        30.0,
    ),
    "indexing": Bar("pocket-mamba2: tokens/s of indexing over the engine's alone", 0.90, 0.95),
    "first stage": Bar(
        "pocket, 10,000 documents of 1,000 words: ms of a search's first stage, median",
        30,
        15,
        at_most=True,
    ),
    # 300 before the best sentences were read a second time, for which a question has 250.
    "search": Bar(
        "the same, whole search, 50 documents reranked and 10 shown with sentences",
        550,
        300,
        at_most=True,
    ),
    "help": Bar("seconds of runnel --help", 0.3, at_most=True),
    "gpu roofline": Bar(
        "GPU: 1.3B shape, bf16, 32k tokens: linear FLOP/s over the 8192-cube matrix product's",
        0.35,
        0.60,
    ),
    "gpu transformer": Bar(
        "GPU: the same over a flash-attention transformer of equal size", 3.0, 8.0
    ),
}


@dataclass(frozen=True)
class BarResult:
    """A bar and its figure: a number, or in words why there is none (`lost` if
    its check failed).
    """

    what: str
    bar: str
    value: float | None
    note: str
    lost: bool
    verdict: str

    @property
    def shown(self) -> str:
        return self.note if self.value is None else f"{self.value:.3g}"


def rows(values: Mapping[str, float | str]) -> list[BarResult]:
    """Return every bar with its value. A text as value is the reason for having none, "wrong: ..."
    if a check failed.
    """
    found = []
    for key, bar in BARS.items():
        value = values.get(key, "not measured")
        if isinstance(value, str):
            wrong = value.startswith("wrong")
            found.append(
                BarResult(
                    bar.what, str(bar), None, value, wrong, "fails" if wrong else "not measured"
                )
            )
        else:
            found.append(
                BarResult(bar.what, str(bar), value, "", not bar.holds(value), bar.verdict(value))
            )
    return found


def check_bars(progress: Progress) -> list[BarResult]:
    """Measure every bar that this machine can show, in about seven minutes on two cores.

    On a processor without bf16 in hardware, shares of the linear layers are those in fp32, and
    other programs, which run in fp32 anyway, are not compared.
    """
    dtype = "bf16" if has_native_bf16() else "fp32"
    settings = Settings(
        models=("mamba2-130m",),
        dtypes=(dtype, "int8"),
        cells=((1, 2048), (1, 8192), (128, 64)),
        other_cells=((1, 2048),),
        others=("transformers", "llama.cpp") if dtype == "bf16" else (),
    )
    others, missing = absent(settings)
    report = measure(replace(settings, others=others), progress)
    second = measure(
        Settings(
            models=("mamba-130m", "rwkv7-0.1b", "xlstm-scaled"), dtypes=(dtype,), cells=((1, 2048),)
        ),
        progress,
    )
    points = [point.to_dict() for point in (*report.points, *second.points)]
    long, checked = long_texts("pocket-mamba2", progress, dtype=dtype)
    reranked = [row.to_dict() for row in remembered("pocket-mamba2", dtype, progress)]
    skipped = [*missing, *report.skipped, *second.skipped]
    values = bar_values(points, [p.to_dict() for p in long], checked.note, reranked, skipped, dtype)
    if dtype != "bf16":
        values |= dict.fromkeys(
            ("transformers", "llama.cpp"), "this processor has no bf16 in hardware"
        )
    return rows(
        values | search_values(searched(*SEARCHED, progress).to_dict()) | {"help": help_seconds()}
    )


def bar_values(
    points: Sequence[Mapping[str, Any]],
    long: Sequence[Mapping[str, Any]],
    long_note: str,
    reranked: Sequence[Mapping[str, Any]],
    skipped: Sequence[Mapping[str, str]],
    dtype: str = "bf16",
) -> dict[str, float | str]:
    """Return the figure of each bar from points and rows, as `to_dict` returns them. `dtype`: of
    our weights.
    """
    values: dict[str, float | str] = {}
    for model in ("mamba2-130m", "mamba-130m", "rwkv7-0.1b", "xlstm-scaled"):
        values[f"roofline {model}"] = _share(points, model, dtype)
    values["int8"] = _share(points, "mamba2-130m", "int8", skipped)
    own = [p for p in points if p["system"] != "runnel" or p["dtype"] == dtype]
    ours = _rate(own, "mamba2-130m", "runnel", 1, 2048)
    for other in ("transformers", "llama.cpp"):
        values[other] = _over(ours, _rate(own, "mamba2-130m", other, 1, 2048, skipped))
    values["short"] = _over(
        _rate(own, "mamba2-130m", "runnel", 128, 64), _rate(own, "mamba2-130m", "runnel", 1, 8192)
    )
    values |= _long_values(long, long_note)
    row = next((r for r in reranked if r["way"] == "fp32 states"), reranked[0])
    values["remembered"] = (
        row["over_whole"]["median"] if row["over_whole"] else f"wrong: {row['note']}"
    )
    gpu = "not measured by this page" if torch.cuda.is_available() else "no GPU here"
    return values | {"gpu roofline": gpu, "gpu transformer": gpu}


def search_values(row: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the figures of the bars of an index, from `Searched.to_dict`."""
    keys = ("indexing", "first stage", "search")
    if row["outcome"] != "ok":
        return dict.fromkeys(
            keys, row["note"] if row["outcome"] == "missing" else f"wrong: {row['note']}"
        )
    stages = row["stages"]
    figures = (
        row["indexing"]["index"]["over_engine"],
        stages["first stage"],
        stages["whole search"],
    )
    return {key: figure["median"] for key, figure in zip(keys, figures, strict=True)}


def _share(
    points: Sequence[Mapping[str, Any]],
    model: str,
    dtype: str,
    skipped: Sequence[Mapping[str, str]] = (),
) -> float | str:
    """Return the share of the roofline at 2k tokens, or why there is none."""
    wanted = (model, "runnel", 1, 2048, dtype)
    for point in points:
        if (
            point["model"],
            point["system"],
            point["batch"],
            point["tokens"],
            point["dtype"],
        ) == wanted:
            return (
                point["of_roofline"]["median"]
                if point["of_roofline"]
                else f"wrong: {point['outcome']} {point['note']}"
            )
    absent = [
        row["reason"]
        for row in skipped
        if (row["model"], row["dtype"]) == (model, dtype) and row["kind"] == "missing"
    ]
    return absent[0] if absent else f"wrong: {model} could not be measured"


def _rate(
    points: Sequence[Mapping[str, Any]],
    model: str,
    system: str,
    batch: int,
    tokens: int,
    skipped: Sequence[Mapping[str, str]] = (),
) -> float | str:
    """Return tokens/s of a system's fastest dtype, or why there is no figure."""
    cells = [
        p
        for p in points
        if (p["model"], p["system"], p["batch"], p["tokens"]) == (model, system, batch, tokens)
    ]
    rates = [p["tokens_per_s"]["median"] for p in cells if p["tokens_per_s"]]
    if rates:
        return max(rates)
    for cell in cells:
        return f"{cell['outcome']}: {cell['note']}"
    reasons = [
        row["reason"]
        for row in skipped
        if row["system"] == system and row["kind"] in ("missing", "refused")
    ]
    return reasons[0] if reasons else f"wrong: {system} could not be measured"


def _over(above: float | str, below: float | str) -> float | str:
    if isinstance(above, str):
        return above
    return below if isinstance(below, str) else above / below


# ---- single figures ------------------------------------------------------------------------------


def long_texts(
    model: str, progress: Progress, lengths: Sequence[int] = LONG, dtype: str = "bf16"
) -> tuple[list[Point], Check]:
    """Measure speed and peak memory of one text of each length, each in a new process; the shortest
    twice before and after.
    """
    spec = Spec("runnel", model, dtype)
    with Worker(spec) as worker:
        if "ready" not in worker.first:
            return [], Check("runnel", model, dtype, False, note=failure(worker.first)[1])
        checked = check([worker], Report(), progress)[spec]
    points = {
        tokens: Point(model, "runnel", "runnel", dtype, tokens, 1, 1024) for tokens in lengths
    }
    for tokens in (lengths[0], *lengths, lengths[0], lengths[0]) if checked.passed else ():
        progress(f"{model}: one text of {tokens:,} tokens")
        peak(points[tokens], spec, timed=False)
    for point in () if checked.passed else points.values():
        point.outcome, point.note = "wrong", checked.note
    return list(points.values()), checked


def _long_values(long: Sequence[Mapping[str, Any]], note: str) -> dict[str, float | str]:
    """Return the worst model's growth of memory and loss of speed between its shortest and its
    longest text.
    """
    memory = []
    speed = []
    for model in dict.fromkeys(point["model"] for point in long):
        cells = sorted((p for p in long if p["model"] == model), key=lambda p: p["tokens"])
        if not all(p["tokens_per_s"] and p["peak_bytes"] for p in cells):
            why = next(
                f"wrong: {p['outcome']} {p['note']}"
                for p in cells
                if not (p["tokens_per_s"] and p["peak_bytes"])
            )
            return {"memory": why, "long": why}
        memory.append(cells[-1]["peak_bytes"] / cells[0]["peak_bytes"])
        speed.append(cells[-1]["tokens_per_s"]["median"] / cells[0]["tokens_per_s"]["median"])
    return (
        {"memory": max(memory), "long": min(speed)}
        if memory
        else dict.fromkeys(("memory", "long"), f"wrong: {note}")
    )


def help_seconds() -> float:
    """Return the median time of `runnel --help`."""
    seconds = []
    for _ in range(_HELP_RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "runnel", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
