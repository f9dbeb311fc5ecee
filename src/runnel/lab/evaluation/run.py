"""Evaluate a model, a run or an index on tasks: `evaluate` is what `runnel lab evaluate` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, install_command
from runnel.files import replacing, write_json
from runnel.lab.evaluation import evidence, mteb, retrieval
from runnel.lab.evaluation.benchmarks import Set, find_sets
from runnel.lab.evaluation.metrics import METRICS, parse_metrics
from runnel.lab.evaluation.results import VERSION, expect_new, means, results_folder, save
from runnel.lab.evaluation.retrieval import API, How, System, kind_of, reading_of, refuse_unused
from runnel.lab.evaluation.tasks import is_evidence
from runnel.lab.training.checkpoints import whole_checkpoints
from runnel.records import expect_choice

log = logging.getLogger("runnel")

_PROMPTS = {"prompt": "query", "document_prompt": "document"}
_DOCUMENTS, _READING = ("max_tokens", "segment_tokens", "stride", "aggregate"), ("max_query_tokens",)
_BM25, _SEARCH = ("k1", "b"), {"weight": "dense_weight", "rerank": "rerank"}
_TAKES: dict[str, dict[str, tuple[str, ...]]] = {  # the options of each kind of system, by the kind of task
    "evidence": {
        "bm25": (*_BM25, "chunk_words"),
        "embed": ("dtype", *_PROMPTS, *_READING, "max_tokens", "chunk_words"),
        f"{API}embed": (*_PROMPTS, "chunk_words"),  # it counts its own tokens
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
    """A set of documents, or a file of evidence, and what is evaluated on it."""

    kind: str  # "documents" or "evidence"
    name: str
    task: Set | Path
    system: System


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
    how = how or ("index" if "place" in options else None)
    names = None if metrics is None else metrics.split(",")
    if of_mteb:
        return _evaluate_mteb(model, tasks, how, metrics, out, options)
    parse_metrics(METRICS if names is None else names)
    if not (checkpoints := _find_checkpoints(model)):
        results = _measure(model, tasks, how, names, out, options)
        return {"version": VERSION, "results": results, "means": means(results)}
    points = []
    with results_folder(out) as folder:
        for step, path in checkpoints.items():
            results = _measure(str(path), tasks, how, names, folder / path.name, options)
            points.append({"step": step, "results": results})
        found = {"version": VERSION, "checkpoints": points}
        if out is not None:
            _write_checkpoints(found, folder)
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
    for number, one in enumerate(trials):
        expect_new(one.name, [other.name for other in trials[:number]])
    with results_folder(out) as folder:
        results = []
        for one in trials:
            measure: Any = evidence.measure if one.kind == "evidence" else retrieval.measure
            result, values = measure(one.task, one.system, metrics, folder)
            results.append(save(result, values, folder))
        return results


def _trials(model: str, tasks: Sequence[str], how: How | None, options: dict[str, Any]) -> list[_Trial]:
    """Return the sets of all tasks with the system as it is evaluated on each."""
    kind = kind_of(model, how)
    trials = []
    for name in tasks:
        if Path(name).is_file() and is_evidence(Path(name)):
            system = _system(model, kind or "sentences", options)
            trials.append(_Trial("evidence", evidence.name_of(Path(name)), Path(name), system))
        else:
            sets, system = (
                find_sets(name, options.get("corpus"), options.get("queries")),
                _system(model, kind or "embed", options),
            )
            trials += [_Trial("documents", one.name, one, system) for one in sets]
    _check(model, options, [(one.kind, one.system.how) for one in trials])
    hows = dict.fromkeys(one.system.how for one in trials if one.system.how in ("embed", "rerank"))
    readings: dict[str, Any] = {how: reading_of(model, how, _reading(options)) for how in hows}
    return [one._replace(system=replace(one.system, reading=readings.get(one.system.how, one.system.reading))) for one in trials]


def _check(model: str, options: dict[str, Any], trials: Sequence[tuple[str, str]]) -> None:
    """Raise InputError for a kind of task that the model cannot be evaluated on, and for an option that has no effect on any."""
    taken: set[str] = set()
    for kind, how in trials:
        key = f"{API}{how}" if model.startswith(API) else how
        expect_choice(key, _TAKES[kind], f"what {model} is evaluated as, on {kind},")
        taken.update(_TAKES[kind][key])
    taken -= {"max_tokens"} if "segment_tokens" in options else {"stride", "aggregate"}  # segments cover whole documents
    taken -= {"corpus"} if "place" in options else set()
    templated = "{instruction}" in options.get("prompt", "") and trials[0][0] != "mteb"  # only mteb has instructions
    refuse_unused(
        [*options, *["prompt with {instruction}"] * templated],
        taken,
        " and ".join(dict.fromkeys(f"{how} on {kind}" for kind, how in trials)),
    )


def _reading(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in (*_READING, *_DOCUMENTS) if name in options}


def _system(model: str, how: How, options: dict[str, Any]) -> System:

    def given(names: Mapping[str, str]) -> dict[str, Any]:
        return {key: options[name] for name, key in names.items() if name in options}

    shared = given({name: name for name in ("dtype", "depth", "place", "chunk_words")} | {"run": "candidates"})
    bm25, search, prompts = given({name: name for name in _BM25}), given(_SEARCH), given(_PROMPTS)
    context = evidence.context_of(options.get("context"))
    return System(model, how, **shared, context=context, bm25=bm25, search=search, prompts=prompts)


def _evaluate_mteb(
    model: str, tasks: Sequence[str], how: How | None, metrics: str | None, out: str | Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    kind = kind_of(model, None) or how or "embed"
    _check(model, options | ({} if metrics is None else {"metrics": metrics}), [("mteb", kind)])
    system = _system(model, kind, options)
    if kind != "index":
        system = replace(system, reading=reading_of(model, kind, _reading(options)))
    with results_folder(out) as folder:
        return {"version": VERSION, **mteb.measure(tasks, system, folder)}


def _find_checkpoints(model: str) -> Mapping[int, Path]:
    """Return step -> folder of the complete checkpoints in a run's folder `checkpoints`; none if the model is another one."""
    folder = Path(model)
    is_run = (folder / "recipe.toml").is_file() and not (folder / "config.json").exists()
    run = folder if is_run else folder.parent
    if not is_run and (folder.name != "checkpoints" or not (run / "recipe.toml").is_file()):
        return {}
    found = {} if is_run else dict(reversed(list(whole_checkpoints(folder))))
    part = next((path for path in found.values() if not (path / "config.json").exists()), None)
    if not found or part:
        what = f"{model} is a run" if is_run else f"{model} has no complete checkpoint"
        what = f"{part} holds only what was trained, adapters or a head, and not a model" if part else what
        raise InputError(f"{what}; evaluate the finished run's {run / 'model'}, or its whole models in {run / 'checkpoints'}")
    if len(found) == 1:
        log.warning("note: %s has one checkpoint; a run with --set train.checkpoints=10 keeps ten", model)
    return found


def _write_checkpoints(found: Mapping[str, Any], folder: Path) -> None:
    """Write checkpoints.json, and checkpoints.png with the metrics over the steps."""
    write_json(folder / "checkpoints.json", found)
    _plot(found["checkpoints"], folder / "checkpoints.png")


def _plot(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot each metric over the steps, a panel for each task; without matplotlib, say so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("note: matplotlib is not installed, so %s is not drawn; run `%s`", path, install_command("lab"))
        return
    tasks = points[0]["results"]
    figure = Figure(figsize=(5 * len(tasks), 4), layout="constrained")
    for place, (axis, task) in enumerate(zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True)):
        for name in task["metrics"]:
            axis.plot([p["step"] for p in points], [p["results"][place]["metrics"][name] for p in points], marker="o", label=name)
        axis.set(title=task["task"], xlabel="step")
        axis.legend(fontsize=8)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
