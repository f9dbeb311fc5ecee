"""Plots: speed and peak memory over length and batch, and paper D's sweep over segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runnel.errors import MissingDependency

_SIZE = (14, 5)
_DPI = 110
Rows = Sequence[dict[str, Any]]
Label = Callable[[dict[str, Any]], str]


def plot_speed(points: Rows, file: Path) -> None:
    """Plot tokens/s and peak memory, where measured, over the length of a text; a line for each
    system, dtype and batch.
    """

    def label(one: dict[str, Any]) -> str:
        several = f", {one['batch']} texts" if one["batch"] > 1 else ""
        return f"{one['model']}: {one['title']} {one['dtype']}{several}"

    lines = _lines(points, "tokens", "tokens_per_s", label)
    longer = {name: cells for name, cells in lines.items() if len(cells) > 1}
    _plot(
        longer or lines,
        "tokens",
        "tokens_per_s",
        "median",
        file,
        "tokens per second",
        "peak memory, MiB",
        "tokens of a text",
    )


def plot_reading(rows: Rows, file: Path) -> None:
    """Plot the time for all documents and peak memory over what texts are cut to; a line for each
    system, its best batches.
    """
    lines = _lines([row for row in rows if row["best"]], "longest", "seconds", _system)
    note = "tokens that texts are cut to"
    _plot(
        lines,
        "longest",
        "seconds",
        "median",
        file,
        "seconds for all texts",
        "peak memory, MiB",
        note,
    )


def plot_training(rows: Rows, file: Path) -> None:
    """Plot training tokens/s and peak memory over the batch; a line for each system, with adapters
    or all weights.
    """
    lines = _lines(rows, "batch", "tokens_per_s", _system)
    _plot(
        lines,
        "batch",
        "tokens_per_s",
        "median",
        file,
        "tokens per second",
        "peak memory, MiB",
        "texts of a batch",
    )


def _system(row: dict[str, Any]) -> str:
    adapters = f", LoRA {row['lora']}" if row.get("lora") else ""
    return f"{row['model']}: {row['system']}{adapters} {row.get('dtype', '')}".strip()


def plot_segments(points: Rows, file: Path) -> None:
    """Plot tokens/s and peak memory over V, horizontal inference last; a line for each model, batch
    and length.
    """
    placed = [one | {"V": one["segment"] or one["batch"] * one["tokens"]} for one in points]
    lines = _lines(
        placed,
        "V",
        "tokens_per_s",
        lambda one: f"{one['model']}: {one['batch']} x {one['tokens']:,} tokens",
    )
    note = "V, tokens of a step (last: all, horizontal)"
    _plot(lines, "V", "tokens_per_s", "mean", file, "tokens per second", "peak memory, MiB", note)


def plot_chunks(points: Rows, file: Path) -> None:
    """Plot tokens/s and the memory of a run over Q; a line for each operator, batch and length."""
    lines = _lines(
        points,
        "chunk",
        "tokens_per_s",
        lambda one: f"{one['operator']}: {one['batch']} x {one['tokens']:,} tokens",
    )
    rate, memory = "tokens per second of one layer", "memory of a run, MiB"
    _plot(lines, "chunk", "tokens_per_s", "mean", file, rate, memory, "Q, tokens of a chunk")


def _lines(rows: Rows, x: str, y: str, label: Label) -> dict[str, list[dict[str, Any]]]:
    """Group the rows that have a figure by their label, in order of `x`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        if row[y]:
            found.setdefault(label(row), []).append(row)
    return found


def _plot(
    lines: dict[str, list[dict[str, Any]]],
    x: str,
    y: str,
    middle: str,
    file: Path,
    left: str,
    right: str,
    note: str,
) -> None:
    """Plot `y` of each line (medians or means, and a band from the smallest to the largest) and
    peak memory over `x`.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependency(
            f"plots need matplotlib ({error}); pip install matplotlib"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=_SIZE)
    for label, cells in lines.items():
        places = [c[x] for c in cells]
        (line,) = axes[0].plot(places, [c[y][middle] for c in cells], marker="o", label=label)
        low, high = ([c[y][end] for c in cells] for end in ("min", "max"))
        axes[0].fill_between(places, low, high, alpha=0.2, color=line.get_color())
        peaks = [(c[x], c["peak_bytes"] / 2**20) for c in cells if c["peak_bytes"]]
        if peaks:
            axes[1].plot(*zip(*peaks, strict=True), marker="o", label=label)
    for axis, title in zip(axes, (left, right), strict=True):
        axis.set(xscale="log", yscale="log", title=title, xlabel=note)
        if axis.lines:
            axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.01, 1))
        ticks = sorted({int(place) for line in axis.lines for place in line.get_xdata()})
        axis.set_xticks(ticks, [f"{place:,}" for place in ticks], fontsize=6, rotation=45)
        axis.set_xticks([], minor=True)
    axes[1].set(yscale="linear", ylim=(0, None))
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})
    pyplot.close(figure)
