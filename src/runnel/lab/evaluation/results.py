"""The files of results, and their means."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.files import create_folder, sweep, write_json, write_jsonl

VERSION = 1  # of the result files


@contextmanager
def results_folder(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder of the results: `out`, created if it does not exist, or one that is removed afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="runnel-evaluate-") as name:
            yield Path(name)
    else:
        yield create_folder(Path(out))


def expect_new(task: str, tasks: Container[str]) -> None:
    """Raise InputError if a task has the name of an earlier one: their results would be in one file."""
    if task in tasks:
        raise InputError(f"two tasks are called {task!r}, and their results would be in one file; evaluate them one by one")


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
