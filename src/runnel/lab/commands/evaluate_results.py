"""Results of `runnel evaluate`: the files of a task, the tables, and the comparison of two folders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runnel.commands.display import print_json, print_table, print_text
from runnel.errors import InputError, ReadError
from runnel.files import create_folder, sweep, write_json, write_jsonl

VERSION = 1  # of the result files


@contextmanager
def results_folder(out: str | None) -> Iterator[Path]:
    """Yield the folder of the results: `out`, created if it does not exist, or one that is removed afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="runnel-evaluate-") as name:
            yield Path(name)
    else:
        yield create_folder(Path(out))


def save(result: dict[str, Any], values: dict[str, dict[str, float]], folder: Path) -> dict[str, Any]:
    """Write a result whole, that of each query first."""
    result = {"version": VERSION, **result}
    rows, about = folder / f"{result['task']}.queries.jsonl", folder / f"{result['task']}.json"
    for path in (rows, about):
        sweep(folder, path.name)
    write_jsonl(rows, ({"query": query, **one} for query, one in values.items()))
    write_json(about, result)
    return result


def means(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over the sets of each group, then over all sets of retrieval, where a group counts as one.

    Sets may have different metrics: "metrics" has those that all of them have.
    """
    units: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        if one["kind"] == "retrieval":
            units.setdefault(one["group"] or one["task"], []).append(one)
    groups = [_mean(name, [one["metrics"] for one in sets]) for name, sets in units.items() if sets[0]["group"]]
    by_name = {one["name"]: one["metrics"] for one in groups}
    each = [by_name.get(name, sets[0]["metrics"]) for name, sets in units.items()]
    return [*groups, _mean("mean", each)] if len(each) > 1 else groups


def _mean(name: str, sets: Sequence[dict[str, float]]) -> dict[str, Any]:
    common = [metric for metric in sets[0] if all(metric in one for one in sets)]
    return {
        "name": name,
        "sets": len(sets),
        "metrics": {metric: sum(one[metric] for one in sets) / len(sets) for metric in common},
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a table of the sets of retrieval for each choice of metrics, and one for each evidence task."""
    from runnel.lab.commands import evaluate_sentences

    retrieval = [result for result in results if result["kind"] == "retrieval"]
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in retrieval:
        tables.setdefault(tuple(result["metrics"]), []).append(result)
    if retrieval:
        print_text(f"{retrieval[0]['model']} as {retrieval[0]['as']}")
    for metrics, shown in tables.items():
        rows = [[r["task"], f"{r['queries']:,}", *(f"{r['metrics'][m]:.4f}" for m in metrics)] for r in shown]
        rows += [
            [one["name"] if one["name"] == "mean" else f"{one['name']}, mean", "", *(f"{one['metrics'][m]:.4f}" for m in metrics)]
            for one in means(shown)
        ]
        print_table(["task", "queries", *metrics], rows)
    for result in results:
        if result["kind"] == "sentences":
            evaluate_sentences.show(result)


def compare_folders(first: str, second: str, *, as_json: bool) -> int:
    """Compare each task and metric that two folders have in common."""
    from runnel.lab.evaluation.metrics import compare

    a, b = _read_results(Path(first)), _read_results(Path(second))
    tasks = [task for task in a if task in b]
    if not tasks:
        raise InputError(
            f"{first} and {second} have no task in common ({', '.join(a)}; {', '.join(b)}); evaluate both on one task"
        )
    found = []
    for task in tasks:
        if set(a[task]) != set(b[task]):
            raise InputError(f"{task}: {first} and {second} have different queries; evaluate both with the same judgments")
        metrics = dict.fromkeys(metric for values in a[task].values() for metric in values)
        for metric in metrics:
            pairs = [
                (v[metric], b[task][query][metric]) for query, v in a[task].items() if metric in v and metric in b[task][query]
            ]
            if not pairs:
                continue
            one = compare([x for x, _ in pairs], [y for _, y in pairs])
            fields = {name: getattr(one, name) for name in ("queries", "a", "b", "difference", "low", "high", "p")}
            found.append({"task": task, "metric": metric, **fields})
    if as_json:
        print_json({"version": VERSION, "a": first, "b": second, "comparisons": found})
        return 0
    rows = [
        [c["task"], c["metric"], f"{c['queries']:,}", f"{c['a']:.4f}", f"{c['b']:.4f}", f"{c['difference']:+.4f}",
         f"{c['low']:+.4f} to {c['high']:+.4f}", f"{c['p']:.4f}"]
        for c in found
    ]  # fmt: skip
    print_table(["task", "metric", "queries", first, second, "difference", "95 % interval", "p"], rows, left=2)
    return 0


def _read_results(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return task -> query -> metric -> value, as `save` writes them."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for path in sorted(folder.glob("*.queries.jsonl")):
        from runnel.text.lines import read_json

        rows = (row for _, row in read_json(path))
        found[path.name.removesuffix(".queries.jsonl")] = {str(row.pop("query")): row for row in rows}
    if not found:
        raise ReadError(f"{folder} has no results (TASK.queries.jsonl); expected what `runnel evaluate --out {folder}` writes")
    return found
