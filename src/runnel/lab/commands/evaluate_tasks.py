"""Tasks of `runnel evaluate`: what a system does on each, which options have no effect there, and the results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from runnel.commands.display import print_json
from runnel.commands.options import refuse
from runnel.errors import InputError
from runnel.lab.commands import evaluate_mteb, evaluate_retrieval, evaluate_sentences
from runnel.lab.commands.evaluate_checkpoints import find_checkpoints, show_checkpoints, write_checkpoints
from runnel.lab.commands.evaluate_results import VERSION, means, results_folder, save, show
from runnel.lab.commands.evaluate_retrieval import How, System, kind_of, reading_of
from runnel.lab.evaluation.benchmarks import Set, find_sets
from runnel.lab.evaluation.embedders import API
from runnel.lab.evaluation.metrics import METRICS, parse_metrics
from runnel.lab.evaluation.tasks import is_evidence

_SEARCH = {"dense_weight": "--weight", "rerank": "--rerank"}  # options by the arguments of `Index.search`
_PROMPTS = {"query": "--prompt", "document": "--document-prompt"}


@dataclass(frozen=True)
class Tasks:
    """What a system is evaluated on, with fields of `Reading` where they are given."""

    names: Sequence[str]
    how: How | None = None  # what each task asks for
    corpus: str | None = None
    queries: str | None = None
    metrics: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)


def evaluate_tasks(system: System, tasks: Tasks, out: str | None, *, as_json: bool) -> int:
    """Evaluate a system, or each checkpoint of a run, on tasks; print the results, and keep them in the folder `out`."""
    if any(name.startswith("mteb:") for name in tasks.names):
        return _evaluate_mteb(system, tasks, out, as_json=as_json)
    if checkpoints := find_checkpoints(system.model):
        return _evaluate_checkpoints(checkpoints, system, tasks, out, as_json=as_json)
    results = _measure(system, tasks, out)
    if as_json:
        print_json({"version": VERSION, "results": results, "means": means(results)})
    else:
        show(results)
    return 0


class _Trial(NamedTuple):
    """A set of retrieval, or a file of evidence, and what is evaluated on it."""

    task: Set | Path
    system: System

    @property
    def evidence(self) -> bool:
        return isinstance(self.task, Path)


def _trials(system: System, tasks: Tasks) -> list[_Trial]:
    """Return the sets of all tasks with the system as it is evaluated on each."""
    kind = kind_of(system.model, tasks.how)
    trials = []
    for name in tasks.names:
        if Path(name).is_file() and is_evidence(Path(name)):
            trials.append(_Trial(Path(name), replace(system, how=kind or "sentences")))
        else:
            sets = find_sets(name, tasks.corpus, tasks.queries)
            trials += [_Trial(one, replace(system, how=kind or "embed")) for one in sets]
    reads = {one.system.how for one in trials if not one.evidence or one.system.how == "embed"}
    _check_options(system, trials, reads, tasks.reading)
    for how in reads & {"embed", "rerank"}:
        reading = reading_of(system.model, how, tasks.reading)
        trials = [one._replace(system=replace(one.system, reading=reading)) if one.system.how == how else one for one in trials]
    return trials


def _check_options(system: System, trials: Sequence[_Trial], reads: Collection[str], given: Mapping[str, object]) -> None:
    """Raise a usage error for an option that has no effect on any trial; `reads` is what reads texts, as `given` says."""
    if system.model.startswith(API) and any(one.system.how != "embed" or not one.evidence for one in trials):
        raise InputError(f"{system.model} is not read by runnel, and can only rank the sentences of evidence, with --as embed")
    kinds, reading = {one.system.how for one in trials}, _as_options(given)
    ranking = {one.system.how for one in trials if one.evidence}
    if not ranking & {"bm25", "embed"}:
        refuse({"--chunk-words": system.chunk_words}, "goes with evidence, for bm25 and --as embed")
    if "rerank" not in kinds:
        refuse({"--run": system.candidates}, "goes with --as rerank")
    if "sentences" not in kinds:
        refuse({"--context": system.context}, "goes with sentence retrievers, on evidence")
    if not kinds & {"bm25", "rerank"}:
        refuse(dict.fromkeys(_as_options(system.bm25), True), "is for BM25, which does not search here")
    if kinds <= {"bm25", "run"}:
        refuse({"--dtype": system.dtype != "auto"}, "is for models; none reads here")
    if "index" not in kinds:
        refuse({_SEARCH[name]: True for name in system.search}, "goes with --as index")
    refuse({"{instruction} in --prompt": "{instruction}" in system.prompts.get("query", "")}, "is replaced only for mteb tasks")
    if not kinds & {"embed", "index"}:
        refuse({_PROMPTS[name]: True for name in system.prompts}, "is put before texts that an embedder reads; none reads here")
    if not {"embed", "rerank"}.intersection(reads):
        refuse(reading, "goes with embedders and rerankers")
    if "embed" not in reads:
        refuse({"--max-query-tokens": reading.get("--max-query-tokens")}, "goes with embedders; a reranker's query is never cut")
    if "--segment-tokens" not in reading:
        refuse({name: reading.get(name) for name in ("--stride", "--aggregate")}, "goes with --segment-tokens")
    if "embed" in ranking:
        refuse({"--segment-tokens": reading.get("--segment-tokens")}, "is for documents; evidence ranks sentences")


def _as_options(given: Mapping[str, object]) -> dict[str, object]:
    return {f"--{name.replace('_', '-')}": value for name, value in given.items()}


def _measure(system: System, tasks: Tasks, out: str | None) -> list[dict[str, Any]]:
    """Return the result of each task, which is also written to OUT."""
    trials = _trials(system, tasks)
    metrics = None if tasks.metrics is None else tasks.metrics.split(",")
    parse_metrics(METRICS if metrics is None else metrics)
    names = [evaluate_sentences.name_of(one.task) if isinstance(one.task, Path) else one.task.name for one in trials]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two tasks are called {repeated!r}, and their results would be in one file; evaluate them one by one")
    for one, name in zip(trials, names, strict=True):
        how = one.system.how
        if how not in (("bm25", "embed", "sentences") if one.evidence else ("bm25", "embed", "rerank", "index", "run")):
            what = f"{one.task} is a task that ranks sentences" if one.evidence else f"{name} is a task that ranks documents"
            raise InputError(f"{what}; {one.system.model} cannot be evaluated on it as {how}")
    results = []
    with results_folder(out) as folder:
        for task, subject in trials:
            if isinstance(task, Path):
                found = evaluate_sentences.measure(task, subject, metrics, folder)
            else:
                found = evaluate_retrieval.measure(task, subject, metrics, folder)
            results.append(save(*found, folder))
    return results


def _evaluate_checkpoints(
    checkpoints: Mapping[int, Path], system: System, tasks: Tasks, out: str | None, *, as_json: bool
) -> int:
    points = []
    with results_folder(out) as folder:
        for step, path in checkpoints.items():
            results = _measure(replace(system, model=str(path)), tasks, str(folder / path.name))
            points.append({"step": step, "results": results})
        found = {"version": VERSION, "checkpoints": points}
        if out is not None:
            write_checkpoints(found, folder)
    if as_json:
        print_json(found)
    else:
        show_checkpoints(points)
    return 0


# ---- MTEB ------------------------------------------------------------------------------------------------------------


def _evaluate_mteb(system: System, tasks: Tasks, out: str | None, *, as_json: bool) -> int:
    if others := [name for name in tasks.names if not name.startswith("mteb:")]:
        raise typer.BadParameter(f"evaluate MTEB's tasks and {others[0]} in two commands")
    unused: dict[str, object] = {
        "--metrics": tasks.metrics,
        "--corpus": tasks.corpus,
        "--queries": tasks.queries,
        "--in": system.place,
    }
    unused |= {"--context": system.context, "--chunk-words": system.chunk_words}
    unused |= _as_options({name: value for name, value in tasks.reading.items() if name != "max_tokens"})
    refuse(unused, "has no effect on MTEB's tasks")
    kind = kind_of(system.model, None) or tasks.how or "embed"
    if kind not in ("embed", "rerank", "index"):
        raise InputError(f"{system.model} cannot be evaluated on MTEB as {kind}; expected an embedder, a reranker or an index")
    system = replace(system, how=kind)
    if kind != "index":
        system = replace(system, reading=reading_of(system.model, kind, tasks.reading))
    refuse({"--run": kind != "rerank" and system.candidates}, "goes with --as rerank")
    search = () if kind == "index" else system.search
    refuse(dict.fromkeys([f"--{name}" for name in system.bm25] + [_SEARCH[name] for name in search], True), "has no effect here")
    with results_folder(out) as folder:
        whole = evaluate_mteb.measure([name.removeprefix("mteb:") for name in tasks.names], system, folder)
    if as_json:
        print_json({"version": VERSION, **whole})
    else:
        evaluate_mteb.show(whole)
    return 0
