"""Metrics of a run by the rules of trec_eval, the files of results, and the paired comparison of
two systems.
"""

import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from runnel.errors import InputError, errors_as, needing
from runnel.files import create_folder, write_json, write_jsonl

METRICS = ("nDCG@10", "MRR@10", "Recall@100")
_ROUNDS = 10_000  # rounds of the randomization test and of the bootstrap
_BLOCK = 1 << 22  # numbers in memory at a time

# metric by the name it was given: an `ir_measures.Measure`
Metrics = Mapping[str, Any]
# query id -> metric -> value
Values = dict[str, dict[str, float]]
# the result of a task, and the values of its queries
Measured = tuple[dict[str, Any], Values]


def parse_metrics(names: Iterable[str]) -> Metrics:
    """Return the metrics of ir-measures with these names, such as nDCG@10, MRR@10, Recall@100, P@5,
    AP, Success@1.
    """
    measures = _library()
    parsed = {}
    # no names: "" raises the error
    for name in [name.strip() for name in names] or [""]:
        try:
            parsed[name] = measures.parse_measure(name)
        except (NameError, ValueError) as error:
            raise InputError(
                f"unknown metric {name!r}; expected names such as nDCG@10, MRR@10 and Recall@100,"
                " with a whole number after @"
            ) from error
    return parsed


def cutoff(metrics: Metrics) -> int:
    """Return the greatest cutoff of the metrics; 0 if none of them has one."""
    return max(
        (int(m.params["cutoff"]) for m in metrics.values() if "cutoff" in m.params), default=0
    )


def evaluate(
    metrics: Metrics, qrels: Mapping[str, Mapping[str, int]], run: Mapping[str, Mapping[str, float]]
) -> Values:
    """Return the values for each query of the qrels: 0 if the run does not have it.

    Documents are ranked as trec_eval ranks them: by score in 32 bits, equal scores by id from Z to
    A. The providers of ir-measures break ties in different ways, so they are given ranks. Queries
    without judgments are not measured.
    """
    measures = _library()
    ranks = {
        query: {name: -float(rank) for rank, name in enumerate(ranked(run.get(query, {})))}
        for query in qrels
    }
    run = {query: scores for query, scores in ranks.items() if scores}
    distinct = set(metrics.values())  # several names may be of one metric
    with errors_as(
        InputError,
        f"{', '.join(metrics)}: ir-measures cannot compute these",
        ValueError,
        RuntimeError,
        advice="choose other metrics",
    ):
        computed = {
            (found.query_id, found.measure): float(found.value)
            for found in (measures.iter_calc(distinct, qrels, run) if distinct else ())
        }
    return {
        query: {name: computed.get((query, metric), 0.0) for name, metric in metrics.items()}
        for query in qrels
    }


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Return document ids in the order of trec_eval: best first, equal scores by id from Z to A.

    Source: trec_eval 9, form_res_rels.c (comp_sim_docno); scores are C floats.
    """
    return sorted(sorted(scores, reverse=True), key=lambda name: -np.float32(scores[name]))


def mean(values: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the queries that have it."""
    rows = values.values()
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def ranges(bounds: Sequence[int], unit: str) -> dict[str, range]:
    """Return the names of the ranges of lengths and their limits: up to the first bound, from one
    bound to the next, and above the last.
    """
    names = [
        f"up to {bounds[0]:,} {unit}",
        *(f"{a + 1:,} to {b:,} {unit}" for a, b in pairwise(bounds)),
        f"over {bounds[-1]:,} {unit}",
    ]
    edges = [0, *(bound + 1 for bound in bounds), sys.maxsize]
    return dict(zip(names, starmap(range, pairwise(edges)), strict=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems a and b on the same queries: their means, the difference b - a with its 95 %
    interval, and the probability p of such a difference by chance.
    """

    queries: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float


def compare(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Comparison:
    """Compare two systems by their values for the same queries: a paired randomization test and a
    bootstrap interval.

    Source: Smucker, Allan and Carterette, 2007. The test is two-sided, of the mean, in 10,000
    rounds.
    """
    assert len(a) == len(b) > 0
    difference = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n = len(difference)
    rng = np.random.default_rng(seed)
    observed = abs(difference.mean())
    block = max(1, _BLOCK // n)
    extreme = 0
    means = []
    for start in range(0, _ROUNDS, block):
        rounds = min(block, _ROUNDS - start)
        signs = rng.integers(0, 2, (rounds, n), dtype=np.int8) * 2 - 1
        # the rounds whose difference is at least as large; 1e-12 is for rounding
        extreme += int((abs(signs @ difference / n) >= observed - 1e-12).sum())
        means.append(difference[rng.integers(0, n, (rounds, n))].mean(1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975)).tolist()
    p = (extreme + 1) / (_ROUNDS + 1)
    return Comparison(
        n, float(np.mean(a)), float(np.mean(b)), float(difference.mean()), low, high, p
    )


def _library() -> Any:
    with needing("evaluation needs ir-measures", "lab"):
        import ir_measures
    return ir_measures


VERSION = 1  # of the result files


@contextmanager
def results_folder(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder of the results: `out`, created if it does not exist, or one that is removed
    afterwards.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="runnel-evaluate-") as name:
            yield Path(name)
    else:
        yield create_folder(Path(out))


def expect_new(task: str, tasks: Container[str]) -> None:
    """Raise InputError if a task has the name of an earlier one: their results would be in one
    file.
    """
    if task in tasks:
        raise InputError(
            f"two tasks are called {task!r}, and their results would be in one file; evaluate them"
            " one by one"
        )


def save(result: dict[str, Any], values: Values, folder: Path) -> dict[str, Any]:
    """Write the values of each query, then the result: a result is never without its values."""
    result = {"version": VERSION, **result}
    write_jsonl(
        folder / f"{result['task']}.queries.jsonl",
        ({"query": query, **metrics} for query, metrics in values.items()),
    )
    write_json(folder / f"{result['task']}.json", result)
    return result


def means(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over the sets of each group, and the mean over all sets of retrieval, in
    which a group counts as one set.

    Sets may have different metrics: "metrics" has the metrics that all of them have.
    """
    retrieval = [result for result in results if result["kind"] == "retrieval"]
    units: dict[str, list[dict[str, float]]] = {}
    for result in retrieval:
        units.setdefault(result["group"] or result["task"], []).append(result["metrics"])
    groups = {result["group"] for result in retrieval}
    rows = {name: _mean(name, sets) for name, sets in units.items()}
    of_groups = [row for name, row in rows.items() if name in groups]
    if len(rows) < 2:
        return of_groups
    return [*of_groups, _mean("mean", [row["metrics"] for row in rows.values()])]


def _mean(name: str, sets: Sequence[dict[str, float]]) -> dict[str, Any]:
    common = [metric for metric in sets[0] if all(metric in metrics for metrics in sets)]
    return {
        "name": name,
        "sets": len(sets),
        "metrics": {metric: fmean(metrics[metric] for metrics in sets) for metric in common},
    }
