"""`runnel analyze`: what several results say together: one table, one plot, and json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from runnel.commands.display import print_json, print_table
from runnel.commands.options import Json
from runnel.errors import InputError, ReadError, needing
from runnel.files import create_folder, replacing, write_json

VERSION = 2  # of analysis.json
Result = dict[str, Any]
Named = Mapping[str, Sequence[Mapping[str, Result]]]
"""Name -> its repeats: task -> result."""


def analyze(
    results: Annotated[
        list[str],
        typer.Argument(metavar="NAME=FOLDER...", help="Folders of evaluate or qa --out; one name for several: repeats."),
    ],
    to: Annotated[str, typer.Option(metavar="FOLDER", help="For analysis.json and analysis.png.")],
    as_json: Json = False,
) -> int:
    """Compare results of `runnel evaluate --out` or `runnel qa` in a table and a plot; repeats, such as seeds, with their spread.

    One metric is also shown by the length of the document and the position of the evidence: the deepest recall, or the first.
    """
    out = Path(to)
    named: dict[str, list[dict[str, Result]]] = {}
    for one in results:
        name, equals, folder = one.partition("=")
        named.setdefault(name if equals else Path(one).name, []).append(_read(Path(folder if equals else one)))
    rows = [
        row
        for task in dict.fromkeys(t for repeats in named.values() for one in repeats for t in one)
        for row in _rows(task, named)
    ]
    create_folder(out)
    write_json(out / "analysis.json", {"version": VERSION, "rows": rows})
    _plot(rows, list(named), out / "analysis.png")
    if as_json:
        print_json({"version": VERSION, "rows": rows})
    else:
        cells = [[_cell(row["systems"].get(name)) for name in named] for row in rows]
        lines = [[row["task"], row["value"], f"{row['number']:,}", *shown] for row, shown in zip(rows, cells, strict=True)]
        print_table(["task", "value", "number", *named], lines, left=2)
    return 0


def _read(folder: Path) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for file in sorted(folder.glob("*.queries.jsonl")):
        path = file.with_name(file.name.removesuffix(".queries.jsonl") + ".json")
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            found[result["task"]] = {"queries": _count(result), "values": _values(result)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
            raise ReadError(f"{path} cannot be read as a result of runnel evaluate ({error}); evaluate again") from error
    if not found:
        raise InputError(f"{folder} holds no results; give the folder of runnel evaluate or qa --out")
    return found


def _values(result: Result) -> dict[str, tuple[float, int]]:
    """Return the metrics of a result, and one of them by length and position: name -> value, and of how many queries or spans."""
    values = {name: (value, _count(result)) for name, value in _metrics(result).items()}
    recalls = [name for name in values if name.startswith("Recall@")]
    metric = max(recalls, key=lambda name: int(name.partition("@")[2])) if recalls else next(iter(values), "")
    places = [row | {"name": f"evidence at {row['from']:.0%} to {row['to']:.0%}"} for row in result.get("recall_by_position", [])]
    groups = [(group, _metrics(group)) for group in (*result.get("by_length", []), *places)]
    return values | {f"{metric}, {group['name']}": (found[metric], _count(group)) for group, found in groups if metric in found}


def _count(group: Result) -> int:
    return next(int(group[name]) for name in ("queries", "questions", "spans") if name in group)


def _metrics(group: Result) -> dict[str, float]:
    """Return the metrics of `runnel evaluate`, or the scores of `runnel qa` that a group has."""
    scores = {name: group[name] for name in ("accuracy", "F1") if group.get(name) is not None}
    return dict(group["metrics"]) if "metrics" in group else scores


def _rows(task: str, named: Named) -> list[dict[str, Any]]:
    """Return a row for each value of a task: of each name mean, sample standard deviation (0 of one), minimum and maximum."""
    found = {name: [repeat[task] for repeat in repeats if task in repeat] for name, repeats in named.items()}
    counts = {f"{one['queries']:,} of {name}": one["queries"] for name, repeats in found.items() for one in repeats}
    if len(set(counts.values())) > 1:
        raise InputError(
            f"{task}: results have different numbers of queries ({', '.join(counts)}); evaluate all on the same questions"
        )
    rows = []
    for value in dict.fromkeys(value for repeats in found.values() for one in repeats for value in one["values"]):
        systems = {}
        for name, repeats in found.items():
            if values := [one["values"][value][0] for one in repeats if value in one["values"]]:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                systems[name] = {"repeats": len(values), "mean": statistics.fmean(values), "deviation": spread}
                systems[name] |= {"min": min(values), "max": max(values)}
        number = next(one["values"][value][1] for repeats in found.values() for one in repeats if value in one["values"])
        rows.append({"task": task, "value": value, "number": number, "systems": systems})
    return rows


def _cell(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "–"
    return f"{value['mean']:.4f}" + ("" if value["repeats"] == 1 else f" ± {value['deviation']:.4f}")


def _plot(rows: Sequence[Mapping[str, Any]], names: Sequence[str], file: Path) -> None:
    """Plot the table: a point for each row and name, with a bar from the lowest to the highest of its repeats."""
    with needing("plots need matplotlib", "lab"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(min(2 + 0.5 * len(rows), 60), 5), layout="constrained")
    axis = figure.subplots()
    for number, name in enumerate(names):
        shown = [(place, row["systems"][name]) for place, row in enumerate(rows) if name in row["systems"]]
        places = [place + 0.6 * (number + 0.5) / len(names) - 0.3 for place, _ in shown]
        means = [one["mean"] for _, one in shown]
        bars = [[one["mean"] - one["min"] for _, one in shown], [one["max"] - one["mean"] for _, one in shown]]
        axis.errorbar(places, means, yerr=bars, fmt="o", markersize=4, capsize=2, label=name)
    several = len({row["task"] for row in rows}) > 1
    labels = [f"{row['task']}: {row['value']}" if several else row["value"] for row in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=45, ha="right", fontsize=8)
    axis.set(title="" if several else rows[0]["task"], ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    with replacing(file) as partial:
        figure.savefig(partial, format="png", dpi=110, metadata={"Software": None})
