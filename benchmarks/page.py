"""docs/performance.md: its measurements, their order, and its files. `page_text.py` has the words.

The page is the one source of claims about speed; `make bench` writes it in about twenty minutes on
two quiet cores. `write_section` measures one section again and leaves the rest. What failed is
never published: see `failures`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.bars import (
    BARS,
    LONG,
    SEARCHED,
    bar_values,
    help_seconds,
    long_texts,
    rows,
    search_values,
)
from benchmarks.compare import absent
from benchmarks.extras import remembered, searched, training
from benchmarks.kept import failures
from benchmarks.machine import in_words
from benchmarks.measure import Progress, failure
from benchmarks.padding import padding
from benchmarks.page_text import page_text
from benchmarks.plots import plot_chunks, plot_segments, plot_speed
from benchmarks.processes import Spec, Worker
from benchmarks.segments import Grid, sweep, sweep_chunks
from benchmarks.shapes import describe_subject
from benchmarks.speed import OTHERS, Settings, measure
from runnel.commands.doctor import machine
from runnel.errors import InputError
from runnel.files import replacing
from runnel.models.folder import BUILT_IN
from runnel.text.tokenizers import read_tokenizer

_ONE = ((1, 512), (1, 2048), (1, 8192))
_SHORT = (128, 64)
_PASSAGES = (16, 160)
_SLOW_S = 25.0
_TRAINING_LIMIT = 4 << 30
_V = (128, 512, 1024, 4096, None)
FAILED = "performance-failed.json"  # a measurement that is not published

# The grid of the page. Chosen so that all of it takes seventeen minutes, a third of them the fresh
# processes that memory takes.
SPEED = (
    Settings(
        models=("mamba2-130m",),
        dtypes=("bf16", "int8"),
        cells=(*_ONE, (1, 32768), _SHORT),
        others=OTHERS,
        other_cells=_ONE,
        memory=True,
        slow_s=_SLOW_S,
    ),
    Settings(models=("mamba2-130m",), dtypes=("fp32",), cells=((1, 2048),)),
    Settings(
        models=("mamba-130m",),
        dtypes=("bf16", "int8"),
        cells=(*_ONE, _SHORT),
        others=("transformers",),
        other_cells=_ONE,
        slow_s=_SLOW_S,
    ),
    Settings(
        models=("xlstm-scaled",),
        cells=(*_ONE, _SHORT),
        others=("transformers",),
        other_cells=_ONE,
        slow_s=_SLOW_S,
    ),
    Settings(
        models=("rwkv7-0.1b", "pocket-mamba2"), dtypes=("bf16", "int8"), cells=(*_ONE, _SHORT)
    ),
    Settings(models=("pocket",), dtypes=("bf16", "int8", "fp32"), cells=(_PASSAGES, _SHORT)),
)
GRIDS = (
    Grid("pocket-mamba2", ((1, 2048), (1, 32768), (32, 2048)), _V),
    Grid("mamba2-130m", ((1, 8192),), (256, 1024, 4096, None)),
)
CHUNKS = (16, 32, 64, 128, 256)
CHUNK_CELLS = ((1, 1024), (1, 2048), (4, 512))
PROFILED = (
    ("mamba2-130m", "bf16"),
    ("mamba2-130m", "int8"),
    ("mamba-130m", "bf16"),
    ("rwkv7-0.1b", "bf16"),
)
PROFILED_TOKENS = 1024
TRAINING_TOKENS = 512
TRAINING = (
    ("pocket-mamba2", "runnel", (1, 4, 16, 64, 256)),
    ("pocket-mamba2", "bert", (1, 4, 16, 64, 256)),
    ("mamba2-130m", "runnel", (1, 4)),
)


def write_page(folder: Path, progress: Progress) -> bool:
    """Measure and write performance.md, performance.json and three plots. Return False, and write
    none of them, on a failure.

    Raises:
        InputError: no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds the docs")
    result = measure_page(progress)
    if not _publish(folder, result, result, progress):
        return False
    _plot(folder, result)
    return True


def write_section(folder: Path, name: str, progress: Progress) -> bool:
    """Measure one section again and write it and its bars; the rest of the page stays. Return False
    on a failure.

    Raises:
        InputError: no such section, or no page yet.
    """
    if name not in SECTIONS:
        raise InputError(
            f"no section {name!r} can be measured by itself; there is {', '.join(SECTIONS)}"
        )
    file = folder / "performance.json"
    if not file.is_file():
        raise InputError(f"{folder} has no performance.json; write the whole page first")
    result = json.loads(file.read_text(encoding="utf-8"))
    measure_section, bars_of = SECTIONS[name]
    found = result[name] = measure_section(progress)
    result["apart"] = result.get("apart", {}) | {
        name: {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": in_words(machine())}
    }
    values = bars_of(found)
    new = [row for key, row in zip(BARS, _bar_rows(values), strict=True) if key in values]
    known = {row["what"]: row for row in (*result["bars"], *new)}
    result["bars"] = [known[bar.what] for bar in BARS.values() if bar.what in known]
    return _publish(folder, result, {name: found}, progress)


def _publish(
    folder: Path, result: Mapping[str, Any], measured: Mapping[str, Any], progress: Progress
) -> bool:
    """Write the page and its json, or, if anything failed, report each failure and store what was
    measured elsewhere.
    """
    failed = failures(measured)
    if failed:
        (folder / FAILED).write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        for line in failed:
            progress(f"error: {line}")
        progress(f"nothing was published; what was measured is in {folder / FAILED}")
        return False
    # both or none
    with (
        replacing(folder / "performance.json") as data,
        replacing(folder / "performance.md") as page,
    ):
        data.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        page.write_text(page_text(dict(result)), encoding="utf-8")
    return True


def _plot(folder: Path, result: Mapping[str, Any]) -> None:
    plot_speed(result["points"], folder / "performance.png")
    plot_segments(result["segments"], folder / "performance-segments.png")
    plot_chunks(result["chunks"], folder / "performance-chunks.png")


def measure_page(progress: Progress) -> dict[str, Any]:
    """Measure everything the page shows; values for JSON."""
    points, checks, skipped = _speed(progress)
    long = []
    long_checks = []
    for model in ("mamba2-130m", "pocket-mamba2"):
        found, checked = long_texts(model, progress, LONG)
        long += [point.to_dict() for point in found]
        long_checks.append(checked)
    segments = []
    for grid in GRIDS:
        cells, checked = sweep(grid, 3, progress)
        segments += [cell.to_dict() for cell in cells]
        long_checks.append(checked)
    checks += [row for check in dict.fromkeys(long_checks) if (row := asdict(check)) not in checks]
    trained = [
        point.to_dict()
        for model, system, batches in TRAINING
        for point in training(
            model,
            system,
            batches,
            TRAINING_TOKENS,
            progress,
            memory_limit=_TRAINING_LIMIT,
            slow_s=_SLOW_S,
        )
    ]
    reranked = [row.to_dict() for row in remembered("pocket-mamba2", "bf16", progress)]
    note = next((check.note for check in long_checks if check.note), "")
    search = _search(progress)
    values = (
        bar_values(points, long, note, reranked, skipped)
        | search_values(search)
        | {"help": help_seconds()}
    )
    chunks = [cell.to_dict() for cell in sweep_chunks(CHUNKS, CHUNK_CELLS, 3, progress)]
    return {
        "format": 1,
        "machine": machine(),
        "bars": _bar_rows(values),
        "points": points,
        "checks": checks,
        "skipped": skipped,
        "long": long,
        "segments": segments,
        "chunks": chunks,
        "parts": _parts(progress),
        "training": trained,
        "remembered": reranked,
        "search": search,
        "padding": _padding(),
        "apart": {},  # sections measured later: date and machine
    }


def _bar_rows(values: Mapping[str, float | str]) -> list[dict[str, Any]]:
    return [asdict(row) | {"shown": row.shown, "verdict": row.verdict} for row in rows(values)]


def _search(progress: Progress) -> dict[str, Any]:
    return searched(*SEARCHED, progress).to_dict()


def _speed(
    progress: Progress,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, str]]]:
    """Return points, checks and skipped systems of all `SPEED` settings."""
    points: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for settings in SPEED:
        others, missing = absent(settings)
        report = measure(replace(settings, others=others), progress).to_dict()
        points += report["points"]
        checks += report["checks"]
        skipped += [row for row in (*missing, *report["skipped"]) if row not in skipped]
    return points, checks, skipped


def _parts(progress: Progress) -> list[dict[str, Any]]:
    """Measure the parts of a step's time."""
    found = []
    for model, dtype in PROFILED:
        progress(f"{model}: parts of a step in {dtype}")
        with Worker(Spec("runnel", model, dtype)) as worker:
            answer = worker.first
            if "ready" in answer:
                answer = worker.ask(
                    "parts", batch=1, tokens=PROFILED_TOKENS, segment=PROFILED_TOKENS
                )
        facts = {"model": model, "dtype": dtype, "tokens": PROFILED_TOKENS}
        outcome = (
            {"outcome": "ok", "note": ""}
            if "parts" in answer
            else dict(zip(("outcome", "note"), failure(answer), strict=True))
        )
        found.append(facts | outcome | {"seconds": answer.get("parts")})
    return found


# Sections that can be measured alone: the measurement, and its bars.
SECTIONS: dict[str, tuple[Callable[[Progress], Any], Callable[[Any], dict[str, float | str]]]] = {
    "search": (_search, search_values),
    "parts": (_parts, lambda found: {}),
}


def _padding() -> list[dict[str, Any]]:
    """Count padding for the sections of the Python reference, in `pocket-mamba2`'s tokens."""
    from pydoc_data.topics import topics

    tokenizer = read_tokenizer(BUILT_IN["pocket-mamba2"])
    lengths = [
        max(1, len(encoded.ids))
        for encoded in tokenizer.encode_batch([topics[name] for name in sorted(topics)])
    ]
    backbone = describe_subject("pocket-mamba2")
    return [{"model": "pocket-mamba2"} | padding(lengths, batch, backbone) for batch in (8, 32)]
