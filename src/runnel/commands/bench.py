"""`runnel bench`: speed and peak memory of models and shapes, beside their own matrix products and other systems."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import print_json, say, stdout_console
from runnel.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

_MIB = 2**20


def run(
    models: Sequence[str],
    *,
    lengths: str,
    batches: str | None,
    dtypes: str,
    others: str,
    segment: str,
    budget_mib: int | None,
    limit_mib: int | None,
    device: str,
    rounds: int,
    memory: bool,
    training: bool,
    remembered: bool,
    length_list: str | None,
    json_file: str | None,
    plots: str | None,
) -> int:
    """Measure and show; 1 if a check failed."""
    from runnel.evaluation.bench import Bench
    from runnel.evaluation.bench import run as measure
    from runnel.evaluation.padding import read_lengths
    from runnel.evaluation.speed import Settings

    sizes = _numbers("--batches", batches) if batches else ((1, 2, 4, 8, 16) if training else (1,))
    settings = Settings(
        models=tuple(models),
        lengths=_numbers("--lengths", lengths),
        batches=sizes,
        dtypes=_names(dtypes),
        others=_names(others),
        device=device,
        segment=None if segment == "whole" else _numbers("--segment", segment)[0],
        budget=None if budget_mib is None else budget_mib * _MIB,
        rounds=rounds,
        memory=memory,
    )
    bench = Bench(
        settings,
        training=sizes if training else (),
        remembered=remembered,
        length_list=tuple(read_lengths(length_list)) if length_list else (),
        memory_limit=None if limit_mib is None else limit_mib * _MIB,
    )
    for target in (json_file, plots):
        if target is not None and target != "-" and not Path(target).absolute().parent.is_dir():
            raise InputError(f"{target}: its folder is not there; make it first")
    result = measure(bench, say)
    _write(result, json_file, plots)
    return int(result["wrong"])


def page(folder: str, only: str | None = None) -> int:
    """Measure what docs/performance.md shows, or one section of it, and write it, its json and its plots."""
    from runnel.evaluation.page import write_page, write_section

    return int(write_page(Path(folder), say) if only is None else write_section(Path(folder), only, say))


def check() -> int:
    """Measure the bars, print each beside its value; 1 if one is lost."""
    from runnel.evaluation.bars import check_bars

    rows = check_bars(say)
    _print("Bars", ["what", "bar", "measured", ""], [[r.what, r.bar, r.shown, r.verdict] for r in rows])
    return int(any(row.lost for row in rows))


# ---- what is shown ---------------------------------------------------------------------------------------------------------


def _write(result: dict[str, Any], json_file: str | None, plots: str | None) -> None:
    if json_file == "-":
        print_json(result)
    else:
        _show(result)
        if json_file is not None:
            Path(json_file).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if plots is not None:
        from runnel.evaluation.plots import plot_speed

        plot_speed(result["points"], Path(plots) / "speed.png")


def _show(result: dict[str, Any]) -> None:
    """Tables on stdout. A row whose check failed has words in place of figures."""
    from runnel.evaluation.machine import in_words
    from runnel.evaluation.padding import COUNTS, FLOPS

    stdout_console().print(in_words(result["machine"]))
    head = ["model", "system", "dtype", "tokens", "texts", "tokens/s (min - max)", "roofline", "GFLOP/s", "ms/text", "peak MiB"]
    _print("Speed", head, [_speed_row(p) for p in result["points"]])
    for plan in result["plans"].items():
        stdout_console().print("{}: {}".format(*plan))
    if result["skipped"]:
        rows = [[row["system"], row["model"], row["dtype"], row["reason"]] for row in result["skipped"]]
        _print("Skipped", ["system", "model", "dtype", "why"], rows)
    if result["training"]:
        _print(
            "Training",
            ["model", "system", "tokens", "texts", "tokens/s (min - max)", "peak MiB"],
            [*map(_training_row, result["training"])],
        )
    if result["remembered"]:
        rows = [
            [r["model"], r["way"], *_or_note(r, _spread(r["ms_per_document"], 2), _spread(r["over_whole"], 1))]
            for r in result["remembered"]
        ]
        _print("Reranking", ["model", "documents", "ms/document (min - max)", "whole pairs over this"], rows)
    if result["padding"]:
        rows = [
            [r["model"], str(r["batch"]), counted, *(f"{r[prefix + key] / 1e9:,.1f}" for key in FLOPS)]
            for r in result["padding"]
            for prefix, counted in COUNTS.items()
        ]
        _print("GFLOP for the listed lengths", ["model", "texts a batch", "counted", "packed", "padded, sorted", "padded"], rows)


def _speed_row(point: dict[str, Any]) -> list[str]:
    name = [point["model"], point["title"], point["dtype"], f"{point['tokens']:,}", str(point["batch"])]
    figures = _or_note(
        point,
        _spread(point["tokens_per_s"], 0),
        _number(point["of_roofline"] and point["of_roofline"]["median"], 2),
        _number(point["gflops_per_s"], 1),
        _number(point["ms_per_document"], 2),
    )
    return [*name, *figures, _number(point["peak_bytes"] and point["peak_bytes"] / _MIB, 0)]


def _training_row(point: dict[str, Any]) -> list[str]:
    figures = _or_note(point, _spread(point["tokens_per_s"], 0))
    peak = _number(point["peak_bytes"] and point["peak_bytes"] / _MIB, 0)
    return [point["model"], point["system"], str(point["tokens"]), str(point["batch"]), *figures, peak]


def _or_note(row: dict[str, Any], *figures: str) -> list[str]:
    """The figures, or why there are none and blanks."""
    if row["outcome"] == "ok":
        return list(figures)
    return [f"{row['outcome']}: {row['note']}" if row["note"] else row["outcome"], *[""] * (len(figures) - 1)]


def _spread(values: dict[str, float] | None, digits: int) -> str:
    if values is None:
        return ""
    text: Callable[[str], str] = lambda key: f"{values[key]:,.{digits}f}"  # noqa: E731
    return f"{text('median')} ({text('min')} - {text('max')})"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _print(title: str, head: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    table: Table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(head):
        numeric = all(row[place][:1].isdigit() or not row[place] for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = stdout_console()
    if not console.is_terminal:
        console.width = 180
    console.print(table)


# ---- what is asked ---------------------------------------------------------------------------------------------------------


def _names(given: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def _numbers(option: str, given: str) -> tuple[int, ...]:
    """Whole numbers between commas; "8k" is 8192.

    Raises:
        InputError: something else.
    """
    found = []
    for text in _names(given):
        digits, thousands = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
        if not digits.isdecimal() or int(digits) < 1:
            raise InputError(f"{option} takes whole numbers from 1 with commas between (8k is 8192), got {text!r}")
        found.append(int(digits) * thousands)
    if not found:
        raise InputError(f"{option} is empty; give whole numbers with commas between")
    return tuple(dict.fromkeys(found))
