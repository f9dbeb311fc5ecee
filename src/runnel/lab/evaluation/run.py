"""Evaluate a model, a run or an index on tasks: `evaluate` is what `runnel lab evaluate` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError
from runnel.lab.evaluation import evidence, mteb, retrieval
from runnel.lab.evaluation.benchmarks import Set, find_sets
from runnel.lab.evaluation.checkpoints import find_checkpoints, write_checkpoints
from runnel.lab.evaluation.embedders import API
from runnel.lab.evaluation.metrics import METRICS, parse_metrics
from runnel.lab.evaluation.results import VERSION, means, results_folder, save
from runnel.lab.evaluation.retrieval import How, System, kind_of, reading_of
from runnel.lab.evaluation.tasks import is_evidence

_RANKED = {"evidence": "sentences", "documents": "documents"}
_PROMPTS = {"prompt": "query", "document_prompt": "document"}
_DOCUMENTS, _READING = ("max_tokens", "segment_tokens", "stride", "aggregate"), ("max_query_tokens",)
_BM25, _SEARCH = ("k1", "b"), ("weight", "rerank")
_TAKES: dict[str, dict[str, tuple[str, ...]]] = {  # the options of each kind of system, by the kind of task
    "evidence": {
        "bm25": (*_BM25, "chunk_words"),
        "embed": ("dtype", *_PROMPTS, *_READING, "max_tokens", "chunk_words"),
        "sentences": ("dtype", "context"),
    },
    "documents": {
        "run": ("corpus", "queries"),
        "bm25": ("corpus", "queries", "depth", *_BM25),
        "embed": ("corpus", "queries", "depth", "dtype", *_PROMPTS, *_READING, *_DOCUMENTS),
        "rerank": ("corpus", "queries", "depth", "dtype", "run", *_BM25, *_DOCUMENTS),
        "index": ("corpus", "queries", "depth", "dtype", *_PROMPTS, *_SEARCH, "place"),
    },
    "mteb": {
        "embed": ("dtype", *_PROMPTS, "max_tokens"),
        "rerank": ("dtype", "run", "depth", "max_tokens"),
        "index": ("dtype", *_PROMPTS, *_SEARCH),
    },
}


class _Trial(NamedTuple):
    """A set of retrieval, or a file of evidence, and what is evaluated on it."""

    task: Set | Path
    system: System

    @property
    def kind(self) -> str:
        return "evidence" if isinstance(self.task, Path) else "documents"

    @property
    def name(self) -> str:
        return evidence.name_of(self.task) if isinstance(self.task, Path) else self.task.name


def evaluate(
    model: str,
    tasks: Sequence[str],
    how: How | None = None,
    *,
    metrics: str | None = None,
    out: str | Path | None = None,
    of_mteb: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate a system, or each checkpoint of a run, on tasks; return the results, which are also written to a folder.

    Args:
        model: a model, "bm25", a run file, or RUN/checkpoints.
        tasks: BEIR folders, benchmarks, files of judgments (qrels) or of evidence; with `of_mteb` names of mteb's.
        how: what the model does; default: embed, and sentences for evidence.
        metrics: names of ir-measures with commas; default: those of each task.
        out: folder of the runs and results, where interrupted work resumes; None: they are not kept.
        options: those of `runnel lab evaluate`: depth, run, corpus, queries, dtype, k1, b, prompt, document_prompt, weight,
            rerank, max_tokens, max_query_tokens, segment_tokens, stride, aggregate, context, chunk_words, and place, of an
            existing index. Options without effect on any task are refused.

    Raises:
        InputError: a task, a metric or an option cannot be used.
    """
    options = {name: value for name, value in options.items() if value not in (None, "auto")}
    if "place" in options and how not in (None, "index"):
        raise InputError(f"an existing index cannot be evaluated as {how}; leave --as or --in out")
    how = "index" if "place" in options else how
    names = None if metrics is None else metrics.split(",")
    if of_mteb:
        return _evaluate_mteb(model, tasks, how, metrics, out, options)
    parse_metrics(METRICS if names is None else names)
    if not (checkpoints := find_checkpoints(model)):
        results = _measure(model, tasks, how, names, out, options)
        return {"version": VERSION, "results": results, "means": means(results)}
    points = []
    with results_folder(out) as folder:
        for step, path in checkpoints.items():
            results = _measure(str(path), tasks, how, names, folder / path.name, options)
            points.append({"step": step, "results": results})
        found = {"version": VERSION, "checkpoints": points}
        if out is not None:
            write_checkpoints(found, folder)
    return found


def _measure(
    model: str,
    tasks: Sequence[str],
    how: How | None,
    metrics: Sequence[str] | None,
    out: str | Path | None,
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    trials = _trials(model, tasks, how, options)
    names = [one.name for one in trials]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two tasks are called {repeated!r}, and their results would be in one file; evaluate them one by one")
    with results_folder(out) as folder:
        return [
            save(
                *(
                    evidence.measure(task, system, metrics, folder)
                    if isinstance(task, Path)
                    else retrieval.measure(task, system, metrics, folder)
                ),
                folder,
            )
            for task, system in trials
        ]


def _trials(model: str, tasks: Sequence[str], how: How | None, options: dict[str, Any]) -> list[_Trial]:
    """Return the sets of all tasks with the system as it is evaluated on each."""
    kind = kind_of(model, how)
    trials = []
    for name in tasks:
        if Path(name).is_file() and is_evidence(Path(name)):
            trials.append(_Trial(Path(name), _system(model, kind or "sentences", options)))
        else:
            sets = find_sets(name, options.get("corpus"), options.get("queries"))
            trials += [_Trial(one, _system(model, kind or "embed", options)) for one in sets]
    for one in trials:
        if one.system.how not in _TAKES[one.kind]:
            raise InputError(f"{one.name} ranks {_RANKED[one.kind]}; {model} cannot be evaluated on it as {one.system.how}")
    if model.startswith(API) and any((one.kind, one.system.how) != ("evidence", "embed") for one in trials):
        raise InputError(f"{model} is not read by runnel, and can only rank the sentences of evidence, with --as embed")
    _check(options, [(one.kind, one.system.how) for one in trials])
    readings: dict[str, Any] = {}
    for one in trials:
        if one.system.how in ("embed", "rerank") and one.system.how not in readings:
            readings[one.system.how] = reading_of(model, one.system.how, _reading(options))
    return [
        one._replace(system=replace(one.system, reading=readings[one.system.how])) if one.system.how in readings else one
        for one in trials
    ]


def _check(options: dict[str, Any], trials: Sequence[tuple[str, str]]) -> None:
    """Raise InputError for an option that has no effect on any task, each of a kind with a kind of system."""
    taken = {name for kind, how in trials for name in _TAKES[kind][how]}
    taken -= {"stride", "aggregate"} if "segment_tokens" not in options else set()
    taken -= {"corpus"} if "place" in options else set()
    if unused := next((name for name in options if name not in taken), None):
        kinds = " and ".join(dict.fromkeys(f"{how} on {kind}" for kind, how in trials))
        raise InputError(f"--{unused.replace('_', '-')} has no effect on what is evaluated, {kinds}; leave it out")
    if "{instruction}" in options.get("prompt", "") and trials[0][0] != "mteb":
        raise InputError("{instruction} in --prompt is replaced only for tasks of mteb")


def _reading(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in (*_READING, *_DOCUMENTS) if name in options}


def _system(model: str, how: How, options: dict[str, Any]) -> System:
    search = {name: options[option] for option, name in (("weight", "dense_weight"), ("rerank", "rerank")) if option in options}
    return System(
        model,
        how,
        options.get("dtype", "auto"),
        options.get("depth"),
        options.get("run"),
        bm25={name: options[name] for name in _BM25 if name in options},
        search=search,
        prompts={kind: options[name] for name, kind in _PROMPTS.items() if name in options},
        place=options.get("place"),
        context=evidence.context_of(options.get("context")),
        chunk_words=options.get("chunk_words"),
    )


def _evaluate_mteb(
    model: str, tasks: Sequence[str], how: How | None, metrics: str | None, out: str | Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    kind = kind_of(model, None) or how or "embed"
    if kind not in _TAKES["mteb"]:
        raise InputError(f"{model} cannot be evaluated on MTEB as {kind}; expected an embedder, a reranker or an index")
    _check(options | ({} if metrics is None else {"metrics": metrics}), [("mteb", kind)])
    system = _system(model, kind, options)
    if kind != "index":
        system = replace(system, reading=reading_of(model, kind, _reading(options)))
    with results_folder(out) as folder:
        return {"version": VERSION, **mteb.measure(tasks, system, folder)}
