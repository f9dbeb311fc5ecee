"""Compare several results: a table, a plot, and for two results a test of whether they differ by
more than chance.

A result is what one system (a model with its settings) reached in one task. A system has a name,
and may have several results of a task: its repeats, such as training seeds. A measure is a row of
the table: a metric over all queries of a task ("Recall@5"), or over one group of them ("Recall@5,
up to 500 words").

    compare_results -> _read_results, of a folder: task -> result; the groups by `_groups`
                    -> _rows_of_task, the table: a row for each task and measure
                    -> _paired_test, for two results without repeats, of each row
                    -> _plot
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
# A result of one task: "queries", the set of their ids; "metrics", metric -> query id -> number;
# "groups", measure -> (mean, how many queries or evidence spans it is of)
Result = dict[str, Any]


def compare_results(
    folders: Mapping[str, Sequence[str | Path]], to: str | Path | None = None
) -> list[dict[str, Any]]:
    """Compare results of `evaluate`, `questions` and `qa`; return a row for each task and measure.

    A row has "task", the measure as "value", the "number" of queries or evidence spans that it is
    of, and "systems": name -> the number, mean, sample standard deviation (0 for a single result),
    minimum and maximum of its repeats. For two names without repeats it also has "comparison": the
    paired test of their queries (see `Comparison`), None for a row without a test.

    Args:
        folders: name of a system -> folders of its results; several are repeats.
        to: folder for comparison.json and comparison.png; None: they are not written.

    Raises:
        InputError: a folder holds no results, or results of one task have different queries.
        ReadError: a result cannot be read.
    """
    # 1. Read the results, and make a row for each task and measure.
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


def _groups(result: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return the measures by length of the document and by position of the evidence, from a
    TASK.json, each with how many queries or evidence spans it is of: of the deepest recall, or
    without a recall of the first metric.
    """
    recalls = [name for name in metrics if name.startswith("Recall@")]
    first = next(iter(metrics), "")
    metric = max(recalls, key=lambda name: int(name.partition("@")[2]), default=first)
    # "from" and "to": parts of the document, from 0 to 1
    by_position = [
        row | {"name": f"evidence at {row['from']:.0%} to {row['to']:.0%}"}
        for row in result.get("recall_by_position", [])
    ]
    measures = {}
    for group in (*result.get("by_length", []), *by_position):
        # `evaluate` writes the means of a group below "metrics", `qa` beside its name
        mean = group.get("metrics", group).get(metric)
        if mean is not None:
            # a group has one of these: of `evaluate` by length, of `qa`, by position
            counts = [group[name] for name in ("queries", "questions", "spans") if name in group]
            measures[f"{metric}, {group['name']}"] = (mean, int(counts[0]))
    return measures


def _rows_of_task(
    task: str, named: Mapping[str, Sequence[Mapping[str, Result]]]
) -> list[dict[str, Any]]:
    """Return a row for each measure of a task. `named`: name of a system -> its repeats, each task
    -> result.

    Raises:
        InputError: two of the results have different queries.
    """
    repeats_of = {
        name: [repeat[task] for repeat in repeats if task in repeat]
        for name, repeats in named.items()
    }
    queries_of = [
        (name, result["queries"]) for name, repeats in repeats_of.items() for result in repeats
    ]
    if any(queries != queries_of[0][1] for _, queries in queries_of):
        counts = ", ".join(f"{len(queries):,} of {name}" for name, queries in queries_of)
        raise InputError(
            f"{task}: the results are of different queries ({counts}); evaluate all on the same"
            " ones"
        )
    # measure -> name of a system -> for each repeat the mean, and how many it is the mean of
    table: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for name, repeats in repeats_of.items():
        for result in repeats:
            over_all = {
                metric: (statistics.fmean(of_query.values()), len(of_query))
                for metric, of_query in result["metrics"].items()
            }
            for measure, mean_and_count in (over_all | result["groups"]).items():
                table.setdefault(measure, {}).setdefault(name, []).append(mean_and_count)
    rows = []
    for measure, systems in table.items():
        summary: dict[str, dict[str, float]] = {}
        for name, of_repeats in systems.items():
            means = [mean for mean, _ in of_repeats]
            summary[name] = {
                "repeats": len(means),
                "mean": statistics.fmean(means),
                "deviation": statistics.stdev(means) if len(means) > 1 else 0.0,
                "min": min(means),
                "max": max(means),
            }
        # of the first system's first repeat: all results have the same queries
        _, number = next(iter(systems.values()))[0]
        rows.append({"task": task, "value": measure, "number": number, "systems": summary})
    return rows


def _paired_test(
    row: Mapping[str, Any], first: Result | None, second: Result | None
) -> dict[str, float] | None:
    """Return the paired test of a row of the table, over the queries that have its metric in both
    results; None for a group, and for a metric that one of the two results lacks.
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
    """Plot the table: for each row a point for each system, with a bar from the lowest to the
    highest of its repeats.
    """
    with needing("plots need matplotlib", "lab"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(min(2 + 0.5 * len(rows), 60), 5), layout="constrained")
    axis = figure.subplots()
    for number, name in enumerate(names):
        shown = [
            (column, row["systems"][name])
            for column, row in enumerate(rows)
            if name in row["systems"]
        ]
        # the points of a row are side by side, in the middle 0.6 of its column
        places = [column + 0.6 * (number + 0.5) / len(names) - 0.3 for column, _ in shown]
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
