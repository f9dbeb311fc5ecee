"""Compare several results: a table, a plot, and for two results a test of whether they differ by
more than chance.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.errors import InputError, damage_in, needing
from runnel.files import create_folder, replacing, write_json
from runnel.lab.evaluation.metrics import compare
from runnel.text.lines import read_json

VERSION = 3  # of comparison.json
# of a task: "queries", the set of their ids; "metrics", metric -> query -> value; "groups", name ->
# (value, number of queries or spans)
Result = dict[str, Any]


def compare_results(
    folders: Mapping[str, Sequence[str | Path]], to: str | Path | None = None
) -> list[dict[str, Any]]:
    """Compare results of `evaluate`, `questions` and `qa`; return a row for each task and value.

    A row has for each name the mean, sample standard deviation (0 for a single result), minimum and
    maximum of its repeats. For two names without repeats it also has "comparison": the paired test
    of their queries, which must be the same.

    Args:
        folders: name -> folders of results; several are repeats, such as training seeds.
        to: folder for comparison.json and comparison.png; None: they are not written.

    Raises:
        InputError: a folder holds no results, or results of one task have different queries.
        ReadError: a result cannot be read.
    """
    # 1. Read the results, and make a row for each task and value.
    named = {
        name: [_read_results(Path(folder)) for folder in repeats]
        for name, repeats in folders.items()
    }
    tasks = dict.fromkeys(
        task for repeats in named.values() for repeat in repeats for task in repeat
    )
    rows = [row for task in tasks for row in _rows_of_task(task, named)]
    # 2. Test the difference of two results without repeats.
    if [len(repeats) for repeats in named.values()] == [1, 1]:
        (a, (first,)), (b, (second,)) = named.items()
        if not first.keys() & second.keys():
            raise InputError(
                f"{a} and {b} have no task in common ({', '.join(first)}; {', '.join(second)}):"
                " evaluate on one"
            )
        for row in rows:
            row["comparison"] = _paired_test(row, first.get(row["task"]), second.get(row["task"]))
    # 3. Write the table and a plot.
    if to is not None:
        out = create_folder(Path(to))
        write_json(out / "comparison.json", {"version": VERSION, "rows": rows})
        _plot(rows, list(named), out / "comparison.png")
    return rows


def _read_results(folder: Path) -> dict[str, Result]:
    """Return task -> its result in a folder."""
    results: dict[str, Result] = {}
    for file in sorted(folder.glob("*.queries.jsonl")):
        path = file.with_name(file.name.removesuffix(".queries.jsonl") + ".json")
        metrics: dict[str, dict[str, float]] = {}
        queries = set()
        for _, row in read_json(file):
            query = str(row.pop("query"))
            queries.add(query)
            for name, value in row.items():
                metrics.setdefault(name, {})[query] = value
        with damage_in(
            path,
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            StopIteration,
            advice="evaluate again",
        ):
            result = json.loads(path.read_text(encoding="utf-8"))
            results[result["task"]] = {
                "queries": queries,
                "metrics": metrics,
                "groups": _groups(result, list(metrics)),
            }
    if not results:
        raise InputError(
            f"{folder} has no results (TASK.queries.jsonl); expected what --out of evaluate,"
            " questions or qa writes"
        )
    return results


def _groups(result: Result, metrics: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return the values by length of the document and by position of the evidence: of the deepest
    recall, or without a recall of the first metric.
    """
    recalls = [name for name in metrics if name.startswith("Recall@")]
    metric = next(iter(metrics), "")
    if recalls:
        metric = max(recalls, key=lambda name: int(name.partition("@")[2]))
    places = [
        row | {"name": f"evidence at {row['from']:.0%} to {row['to']:.0%}"}
        for row in result.get("recall_by_position", [])
    ]
    values = {}
    for group in (*result.get("by_length", []), *places):
        value = group.get("metrics", group).get(metric)
        if value is not None:
            counts = [group[name] for name in ("queries", "questions", "spans") if name in group]
            values[f"{metric}, {group['name']}"] = (value, int(counts[0]))
    return values


def _rows_of_task(
    task: str, named: Mapping[str, Sequence[Mapping[str, Result]]]
) -> list[dict[str, Any]]:
    """Return a row for each value of a task; `named`: name -> its repeats: task -> result."""
    repeats_of = {
        name: [repeat[task] for repeat in repeats if task in repeat]
        for name, repeats in named.items()
    }
    counts = {
        f"{len(result['queries']):,} of {name}": result["queries"]
        for name, repeats in repeats_of.items()
        for result in repeats
    }
    if any(queries != next(iter(counts.values())) for queries in counts.values()):
        raise InputError(
            f"{task}: the results are of different queries ({', '.join(counts)}); evaluate all on"
            " the same ones"
        )
    values: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for name, repeats in repeats_of.items():
        for result in repeats:
            of_all = {
                metric: (statistics.fmean(of.values()), len(of))
                for metric, of in result["metrics"].items()
            }
            for value, pair in (of_all | result["groups"]).items():
                values.setdefault(value, {}).setdefault(name, []).append(pair)
    rows = []
    for value, systems in values.items():
        summary: dict[str, dict[str, float]] = {}
        for name, pairs in systems.items():
            means = [mean for mean, _ in pairs]
            summary[name] = {
                "repeats": len(means),
                "mean": statistics.fmean(means),
                "deviation": statistics.stdev(means) if len(means) > 1 else 0.0,
                "min": min(means),
                "max": max(means),
            }
        _, number = next(iter(systems.values()))[0]
        rows.append({"task": task, "value": value, "number": number, "systems": summary})
    return rows


def _paired_test(
    row: Mapping[str, Any], first: Result | None, second: Result | None
) -> dict[str, float] | None:
    """Return the paired test of a metric; None for groups, and for a metric that one of the two
    results lacks.
    """
    if first is None or second is None:
        return None
    a = first["metrics"].get(row["value"], {})
    b = second["metrics"].get(row["value"], {})
    both = [query for query in a if query in b]
    if not both:
        return None
    tested = asdict(compare([a[query] for query in both], [b[query] for query in both]))
    return {name: tested[name] for name in ("queries", "difference", "low", "high", "p")}


def _plot(rows: Sequence[Mapping[str, Any]], names: Sequence[str], file: Path) -> None:
    """Plot the table: a point for each row and name, with a bar from the lowest to the highest of
    its repeats.
    """
    with needing("plots need matplotlib", "lab"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(min(2 + 0.5 * len(rows), 60), 5), layout="constrained")
    axis = figure.subplots()
    for number, name in enumerate(names):
        shown = [
            (place, row["systems"][name])
            for place, row in enumerate(rows)
            if name in row["systems"]
        ]
        places = [place + 0.6 * (number + 0.5) / len(names) - 0.3 for place, _ in shown]
        means = [system["mean"] for _, system in shown]
        below = [system["mean"] - system["min"] for _, system in shown]
        above = [system["max"] - system["mean"] for _, system in shown]
        axis.errorbar(
            places, means, yerr=[below, above], fmt="o", markersize=4, capsize=2, label=name
        )
    several = len({row["task"] for row in rows}) > 1
    labels = [f"{row['task']}: {row['value']}" if several else row["value"] for row in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=45, ha="right", fontsize=8)
    axis.set(title="" if several else rows[0]["task"], ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    with replacing(file) as partial:
        figure.savefig(partial, format="png", dpi=110, metadata={"Software": None})
