"""Plots: speed and peak memory over length and batch, and paper D's sweep over segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runnel.errors import MissingDependency

_SIZE, _DPI = (14, 5), 110


def plot_speed(points: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot tokens/s and peak memory, where measured, over the length of a text; a line for each system, dtype and batch."""
    figure, (left, right) = _open(2)
    lines = _lines(points, "model", "title", "dtype", "batch")
    longer = {key: cells for key, cells in lines.items() if len(cells) > 1}
    for key, cells in (longer or lines).items():
        label = f"{key[0]}: {key[1]} {key[2]}" + (f", {key[3]} texts" if key[3] > 1 else "")
        _band(left, cells, "tokens", "tokens_per_s", label, "median")
        _peaks(right, cells, "tokens", label)
    _close(figure, file, (left, "tokens per second", "tokens of a text"), (right, "peak memory, MiB", "tokens of a text"))


def plot_reading(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot the time for all documents and peak memory over what texts are cut to; a line for each system, its best batches."""
    figure, (left, right) = _open(2)
    for label, cells in _series([row for row in rows if row["best"]], "longest", "seconds"):
        _band(left, cells, "longest", "seconds", label, "median")
        _peaks(right, cells, "longest", label)
    note = "tokens that texts are cut to"
    _close(figure, file, (left, "seconds for all texts", note), (right, "peak memory, MiB", note))


def plot_training(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot training tokens/s and peak memory over the batch; a line for each system, with adapters or all weights."""
    figure, (left, right) = _open(2)
    for label, cells in _series(rows, "batch", "tokens_per_s"):
        _band(left, cells, "batch", "tokens_per_s", label, "median")
        _peaks(right, cells, "batch", label)
    _close(figure, file, (left, "tokens per second", "texts of a batch"), (right, "peak memory, MiB", "texts of a batch"))


def _series(rows: Sequence[dict[str, Any]], x: str, y: str) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Return the rows with a figure, by system and in order of `x`, with a label."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        if row[y]:
            adapters = f", LoRA {row['lora']}" if row.get("lora") else ""
            found.setdefault(f"{row['model']}: {row['system']}{adapters} {row.get('dtype', '')}".strip(), []).append(row)
    return found.items()


def plot_segments(points: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot tokens/s and peak memory over V, horizontal inference last; a line for each model, batch and length."""
    figure, (left, right) = _open(2)
    for (model, batch, tokens), cells in _lines(points, "model", "batch", "tokens").items():
        label = f"{model}: {batch} x {tokens:,} tokens"
        placed = [c | {"V": c["segment"] or c["batch"] * c["tokens"]} for c in cells]
        rates = [c for c in placed if c["tokens_per_s"]]
        _band(left, rates, "V", "tokens_per_s", label)
        _peaks(right, placed, "V", label)
    note = "V, tokens of a step (last: all, horizontal)"
    _close(figure, file, (left, "tokens per second", note), (right, "peak memory, MiB", note))


def plot_chunks(points: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot tokens/s and the memory of a run over Q; a line for each operator, batch and length."""
    figure, (left, right) = _open(2)
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(points, key=lambda p: p["chunk"]):
        if point["tokens_per_s"]:
            lines.setdefault(f"{point['operator']}: {point['batch']} x {point['tokens']:,} tokens", []).append(point)
    for label, cells in lines.items():
        _band(left, cells, "chunk", "tokens_per_s", label)
        _peaks(right, cells, "chunk", label)
    note = "Q, tokens of a chunk"
    _close(figure, file, (left, "tokens per second of one layer", note), (right, "memory of a run, MiB", note))


def _peaks(axis: Any, cells: Iterable[dict[str, Any]], key: str, label: str) -> None:
    """Plot peak memory over `key`, where measured."""
    peaks = [(c[key], c["peak_bytes"] / 2**20) for c in cells if c["peak_bytes"]]
    if peaks:
        axis.plot(*zip(*peaks, strict=True), marker="o", label=label)


def _lines(points: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Group points with a figure by the values of `keys`, in order of length."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for point in sorted(points, key=lambda p: (p["tokens"], p["segment"] or 1 << 40)):
        if point["tokens_per_s"]:
            found.setdefault(tuple(point[key] for key in keys), []).append(point)
    return found


def _band(axis: Any, cells: Sequence[dict[str, Any]], x: str, y: str, label: str, middle: str = "mean") -> None:
    """Plot medians (or means) as a line, smallest to largest as a band."""
    places = [c[x] for c in cells]
    (line,) = axis.plot(places, [c[y][middle] for c in cells], marker="o", label=label)
    axis.fill_between(places, [c[y]["min"] for c in cells], [c[y]["max"] for c in cells], alpha=0.2, color=line.get_color())


def _open(columns: int) -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependency(f"plots need matplotlib ({error}); pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=_SIZE)


def _close(figure: Any, file: Path, *axes: tuple[Any, str, str]) -> None:
    from matplotlib import pyplot

    for axis, title, label in axes:
        axis.set(xscale="log", yscale="log", title=title, xlabel=label)
        if axis.lines:
            axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.01, 1))
        ticks = sorted({int(x) for line in axis.lines for x in line.get_xdata()})
        axis.set_xticks(ticks, [f"{x:,}" for x in ticks], fontsize=6, rotation=45)
        axis.set_xticks([], minor=True)
        if "memory" in title:
            axis.set(yscale="linear", ylim=(0, None))
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})
    pyplot.close(figure)
