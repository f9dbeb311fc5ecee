"""`runnel analyze`: what several results of `runnel evaluate --out` say together, as a table, plots and json.

The results of one name are repeats (seeds): their mean is shown with its spread.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from runnel.commands.display import print_json, print_table, say
from runnel.commands.options import Json
from runnel.commands.resume import expect_parent
from runnel.errors import InputError, ReadError, needing
from runnel.files import replacing, write

VERSION = 1  # of analysis.json
_SIZE, _COLUMNS, _DPI = (6.0, 4.0), 3, 110  # of one plot, inches
Result = dict[str, Any]

_Results = Annotated[
    list[str], typer.Argument(metavar="NAME=FOLDER...", help="Folders of evaluate --out; one name for several: repeats.")
]
_To = Annotated[str, typer.Option(metavar="FOLDER", help="For analysis.json and a plot of each task.")]


def analyze(results: _Results, to: _To, as_json: Json = False) -> int:
    """Compare results of `runnel evaluate --out` in a table and plots; repeats, such as seeds, with their spread.

    Of sentences also by the length of the document, by the position of the evidence, precision and recall, and what scores say.
    """
    out = Path(to)
    expect_parent(out)
    named: dict[str, list[dict[str, Result]]] = {}
    for one in results:
        name, equals, folder = one.partition("=")
        named.setdefault(name if equals else Path(one).name, []).append(_read(Path(folder if equals else one)))
    tasks = dict.fromkeys(task for repeats in named.values() for repeat in repeats for task in repeat)
    analysis: dict[str, Any] = {"version": VERSION, "tasks": [_of_task(task, named) for task in tasks]}
    out.mkdir(exist_ok=True)
    write(out / "analysis.json", json.dumps(analysis, indent=2, ensure_ascii=False) + "\n")
    for found in analysis["tasks"]:
        _plot(found, out / f"{found['task']}.png")
    if as_json:
        print_json(analysis)
    else:
        for found in analysis["tasks"]:
            _show(found)
    return 0


def _read(folder: Path) -> dict[str, Result]:
    """Return the results in a folder by task.

    Raises:
        InputError: it holds none.
        ReadError: one cannot be read.
    """
    found: dict[str, Result] = {}
    for file in sorted(folder.glob("*.queries.jsonl")):
        path = file.with_name(file.name.removesuffix(".queries.jsonl") + ".json")
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            found[result["task"]] = result
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReadError(f"{path} cannot be read as a result of runnel evaluate ({error}); evaluate again") from error
    if not found:
        raise InputError(f"{folder} holds no results; give the folder of runnel evaluate --out")
    return found


# ---- numbers ---------------------------------------------------------------------------------------------------------------


def _of_task(task: str, named: Mapping[str, Sequence[Mapping[str, Result]]]) -> dict[str, Any]:
    """Return what the results of a task say: a system for each name, its repeats summarized."""
    systems = []
    for name, repeats in named.items():
        found = [repeat[task] for repeat in repeats if task in repeat]
        if found and len({result["queries"] for result in found}) > 1:
            counts = ", ".join(f"{result['queries']:,}" for result in found)
            raise InputError(f"{task}: the repeats of {name} have {counts} queries; evaluate all on the same questions")
        if found:
            systems.append({"name": name, "repeats": len(found), "queries": found[0]["queries"]} | _summary(found))
        else:
            say(f"note: {name} has no result of {task}")
    return {"task": task, "systems": systems}


def _summary(repeats: Sequence[Result]) -> dict[str, Any]:
    """Return the metrics, and the curves that these results have: lists of points with x, or a name, and values with spread."""
    summary: dict[str, Any] = {"metrics": _means([result["metrics"] for result in repeats])}
    curves: dict[str, tuple[str, Callable[[Result], Any], Callable[[Result], Mapping[str, float]]]] = {
        "by_length": ("by_length", lambda row: row["name"], lambda row: row["metrics"]),
        "by_position": ("recall_by_position", lambda row: (row["from"] + row["to"]) / 2, lambda row: row["metrics"]),
        "precision_recall": ("precision_recall", lambda row: row["k"], lambda row: {k: row[k] for k in ("precision", "recall")}),
        "calibration": ("calibration", lambda row: row["score"] + 0.5, lambda row: {k: row[k] for k in ("share", "sigmoid")}),
    }
    for curve, (key, place, values) in curves.items():
        rows = [{place(row): values(row) for row in result.get(key, [])} for result in repeats]
        places = dict.fromkeys(x for one in rows for x in one)
        ordered = list(places) if curve == "by_length" else sorted(places)
        if ordered:
            summary[curve] = [{"x": x} | _means([one[x] for one in rows if x in one]) for x in ordered]
    return summary


def _means(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean, sample standard deviation (0 of one), minimum and maximum of each metric that all have."""
    return {
        name: {
            "mean": statistics.fmean(found := [one[name] for one in values]),
            "deviation": statistics.stdev(found) if len(found) > 1 else 0.0,
            "min": min(found),
            "max": max(found),
        }
        for name in values[0]
        if all(name in one for one in values)
    }


def _show(found: Mapping[str, Any]) -> None:
    """Print the metrics of a task: means, with standard deviations where there are repeats."""
    metrics = list(dict.fromkeys(metric for system in found["systems"] for metric in system["metrics"]))

    def cell(value: Mapping[str, float] | None, repeats: int) -> str:
        spread = "" if repeats == 1 or value is None else f" ± {value['deviation']:.4f}"
        return "–" if value is None else f"{value['mean']:.4f}{spread}"

    systems = found["systems"]
    rows = [[metric, *(cell(one["metrics"].get(metric), one["repeats"]) for one in systems)] for metric in metrics]
    counts = [[name, *(f"{one[name]:,}" for one in systems)] for name in ("queries", "repeats")]
    print_table([found["task"], *(one["name"] for one in systems)], [*counts, *rows])


# ---- plots -----------------------------------------------------------------------------------------------------------------


def _plot(found: Mapping[str, Any], file: Path) -> None:
    """Plot the metrics of a task, and the curves that its systems have, side by side.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    with needing("plots need matplotlib", "eval"):
        from matplotlib.figure import Figure
    panels = [panel for panel in _PANELS if panel == "metrics" or any(panel in system for system in found["systems"])]
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_SIZE[0] * columns, _SIZE[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        _PANELS[panel](axis, [system for system in found["systems"] if panel in system])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(found["task"])
    with replacing(file) as partial:
        figure.savefig(partial, format="png", dpi=_DPI, metadata={"Software": None})


def _metrics(axis: Any, systems: Sequence[Mapping[str, Any]]) -> None:
    """Draw a point for each metric and system, with its range over repeats."""
    names = list(dict.fromkeys(name for system in systems for name in system["metrics"]))
    for number, system in enumerate(systems):
        places = [names.index(name) + 0.6 * (number + 0.5) / len(systems) - 0.3 for name in system["metrics"]]
        _with_range(axis, places, list(system["metrics"].values()), system["name"], line="")
    axis.set(title="metrics", ylim=(0, None))
    axis.set_xticks(range(len(names)), names, rotation=30)


def _by_length(axis: Any, systems: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(row["x"] for system in systems for row in system["by_length"]))
    metric = _one_metric(systems, "by_length")
    for system in systems:
        places = [names.index(row["x"]) for row in system["by_length"]]
        _with_range(axis, places, [row[metric] for row in system["by_length"]], system["name"])
    axis.set(title=f"{metric} by length of the document", ylim=(0, None))
    axis.set_xticks(range(len(names)), names, fontsize=7)


def _by_position(axis: Any, systems: Sequence[Mapping[str, Any]]) -> None:
    metric = _one_metric(systems, "by_position")
    for system in systems:
        rows = [row for row in system["by_position"] if metric in row]
        _with_range(axis, [row["x"] for row in rows], [row[metric] for row in rows], system["name"])
    axis.set(title=f"{metric} by position of the evidence", xlabel="position in the document", xlim=(0, 1), ylim=(0, None))


def _one_metric(systems: Sequence[Mapping[str, Any]], curve: str) -> str:
    """Return the recall at the greatest depth, as the papers show it; else the first metric."""
    names = [name for name in systems[0][curve][0] if name != "x"]
    recalls = [name for name in names if name.startswith("Recall@")]
    return max(recalls, key=lambda name: int(name.partition("@")[2])) if recalls else names[0]


def _precision_recall(axis: Any, systems: Sequence[Mapping[str, Any]]) -> None:
    for system in systems:
        rows = system["precision_recall"]
        places = [row["recall"]["mean"] for row in rows]
        _with_range(axis, places, [row["precision"] for row in rows], system["name"])
        for x, row in zip(places, rows, strict=True):
            axis.annotate(f"{row['x']}", (x, row["precision"]["mean"]), fontsize=6)
    axis.set(title="precision and recall of the k best sentences", xlabel="recall", ylabel="precision", ylim=(0, None))


def _calibration(axis: Any, systems: Sequence[Mapping[str, Any]]) -> None:
    for system in systems:
        rows = system["calibration"]
        _with_range(axis, [row["x"] for row in rows], [row["share"] for row in rows], system["name"])
    rows = max((system["calibration"] for system in systems), key=len)
    axis.plot([row["x"] for row in rows], [row["sigmoid"]["mean"] for row in rows], "k--", label="calibrated", linewidth=1)
    axis.set(title="share of answers by score", xlabel="score")


def _with_range(axis: Any, places: Sequence[float], values: Iterator[Any] | Sequence[Any], label: str, line: str = "-") -> None:
    """Draw means, with bars from the smallest to the largest of the repeats."""
    found = list(values)
    means = [value["mean"] for value in found]
    below, above = ([abs(value[end] - value["mean"]) for value in found] for end in ("min", "max"))
    axis.errorbar(places, means, yerr=[below, above], fmt=f"o{line}", markersize=4, capsize=2, label=label)


_PANELS: dict[str, Callable[[Any, Sequence[Mapping[str, Any]]], None]] = {
    "metrics": _metrics,
    "by_length": _by_length,
    "by_position": _by_position,
    "precision_recall": _precision_recall,
    "calibration": _calibration,
}
