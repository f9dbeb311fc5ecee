"""Evaluate a model, a run or an index on tasks: `evaluate` is what `runnel lab evaluate` does."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.checks import expect_choice
from runnel.errors import InputError, needing
from runnel.files import replacing, write_json
from runnel.lab.evaluation import evidence, mteb, retrieval
from runnel.lab.evaluation.metrics import (
    METRICS,
    VERSION,
    expect_new,
    means,
    parse_metrics,
    results_folder,
    save,
)
from runnel.lab.evaluation.retrieval import API, How, System, kind_of, reading_of, refuse_unused
from runnel.lab.evaluation.tasks import Set, find_sets, is_evidence

log = logging.getLogger("runnel")

_TEXTS, _PROMPTS, _SEARCH = (
    ("queries", "corpus"),
    ("prompt", "document_prompt"),
    ("weight", "rerank"),
)
_SEGMENTS = ("segment_tokens", "stride", "aggregate")
_READING = ("max_tokens", "max_query_tokens", *_SEGMENTS)
# what is evaluated, by the kind of task, and the options that it has
_TAKES: dict[tuple[str, How], tuple[str, ...]] = {
    ("evidence", "bm25"): ("k1", "b", "chunk_words"),
    ("evidence", "embed"): ("dtype", *_PROMPTS, "chunk_words", "max_tokens", "max_query_tokens"),
    ("evidence", "sentences"): ("dtype", "context"),
    ("documents", "run"): _TEXTS,
    ("documents", "bm25"): (*_TEXTS, "k1", "b", "depth"),
    ("documents", "embed"): (*_TEXTS, "dtype", *_PROMPTS, "depth", *_READING),
    # of BM25's best
    ("documents", "rerank"): (
        *_TEXTS,
        "dtype",
        "run",
        "k1",
        "b",
        "depth",
        "max_tokens",
        *_SEGMENTS,
    ),
    ("documents", "index"): (*_TEXTS, "dtype", *_PROMPTS, *_SEARCH, "depth", "place"),
    ("mteb", "embed"): ("dtype", *_PROMPTS, "max_tokens"),
    ("mteb", "rerank"): ("dtype", "run", "depth", "max_tokens"),
    ("mteb", "index"): ("dtype", *_PROMPTS, *_SEARCH),
}
# Options with another name than the field of `System`, of its `search` and its `prompts`.
_FIELDS = {
    "run": "candidates",
    "weight": "dense_weight",
    "prompt": "query",
    "document_prompt": "document",
}


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
    """Evaluate a system, or each checkpoint of a run, on tasks; return the results, which are also
    written to a folder.

    Args:
        model: a model, "bm25", a run file, or RUN/checkpoints.
        tasks: BEIR folders, benchmarks, files of judgments (qrels) or of evidence; with `of_mteb`
            names of mteb's.
        how: what the model does; default: embed, and sentences for evidence.
        metrics: names of ir-measures with commas; default: those of each task.
        out: folder of the runs and results, where interrupted work resumes; None: they are not
            kept.
        options: those of `runnel lab evaluate`: depth, run, corpus, queries, dtype, k1, b, prompt,
            document_prompt, weight, rerank, max_tokens, max_query_tokens, segment_tokens, stride,
            aggregate, context, chunk_words, and place, of an existing index. Options without effect
            on any task are refused.

    Raises:
        InputError: a task, a metric or an option cannot be used.
    """
    given = {name: value for name, value in options.items() if value not in (None, "auto")}
    if "place" in given and how not in (None, "index"):
        raise InputError(f"an existing index cannot be evaluated as {how}; leave --as or --in out")
    how = "index" if "place" in given else how
    if of_mteb:
        how = kind_of(model, None) or how or "embed"
        _expect_effects(
            model, [("mteb", how)], given if metrics is None else given | {"metrics": metrics}
        )
        with results_folder(out) as folder:
            return {
                "version": VERSION,
                **mteb.measure(tasks, _system(model, "mteb", how, given), folder),
            }
    names = None if metrics is None else metrics.split(",")
    parse_metrics(METRICS if names is None else names)
    if not (checkpoints := _find_checkpoints(model)):
        results = _measure(model, tasks, how, names, out, given)
        return {"version": VERSION, "results": results, "means": means(results)}
    points = []
    with results_folder(out) as folder:
        for step, path in checkpoints.items():
            results = _measure(str(path), tasks, how, names, folder / path.name, given)
            points.append({"step": step, "results": results})
        if out is not None:
            write_json(folder / "checkpoints.json", {"version": VERSION, "checkpoints": points})
            _plot(points, folder / "checkpoints.png")
    return {"version": VERSION, "checkpoints": points}


def _measure(
    model: str,
    tasks: Sequence[str],
    how: How | None,
    metrics: Sequence[str] | None,
    out: str | Path | None,
    given: Mapping[str, Any],
) -> list[dict[str, Any]]:
    trials = _trials(model, tasks, how, given)
    names = [evidence.name_of(task) if isinstance(task, Path) else task.name for task, _ in trials]
    for number, name in enumerate(names):
        expect_new(name, names[:number])
    results = []
    with results_folder(out) as folder:
        for task, system in trials:
            if isinstance(task, Path):
                results.append(save(*evidence.measure(task, system, metrics, folder), folder))
            else:
                results.append(save(*retrieval.measure(task, system, metrics, folder), folder))
    return results


def _trials(
    model: str, tasks: Sequence[str], how: How | None, given: Mapping[str, Any]
) -> list[tuple[Set | Path, System]]:
    """Return the sets of retrieval and files of evidence, with what is evaluated on each."""
    kind = kind_of(model, how)
    trials: list[tuple[Set | Path, tuple[str, How]]] = []
    for name in tasks:
        if Path(name).is_file() and is_evidence(Path(name)):
            trials.append((Path(name), ("evidence", kind or "sentences")))
        else:
            sets = find_sets(
                name, None if "place" in given else given.get("corpus"), given.get("queries")
            )
            trials += [(one, ("documents", kind or "embed")) for one in sets]
    pairs = dict.fromkeys(pair for _, pair in trials)
    wrong = ""
    if model.startswith(API) and pairs.keys() != {("evidence", "embed")}:
        wrong = (
            f"{model} is not read by runnel, and can only rank the sentences of evidence, with --as"
            " embed"
        )
    elif model.startswith(API) and given.keys() & {"max_tokens", "max_query_tokens"}:
        wrong = f"{model} counts its own tokens; --max-tokens and --max-query-tokens have no effect"
    elif given.keys() >= {"max_tokens", "segment_tokens"}:
        wrong = (
            "segments cover whole documents, so --max-tokens has no effect; leave it or"
            " --segment-tokens out"
        )
    elif "{instruction}" in given.get("prompt", ""):
        wrong = "{instruction} in --prompt is replaced only for tasks of mteb"
    if wrong:
        raise InputError(wrong)
    _expect_effects(model, pairs, given)
    systems = {pair: _system(model, *pair, given) for pair in pairs}
    return [(task, systems[pair]) for task, pair in trials]


def _expect_effects(model: str, pairs: Iterable[tuple[str, How]], given: Mapping[str, Any]) -> None:
    """Raise InputError unless what is evaluated can do each kind of task, and each option has an
    effect on one of them.
    """
    taken: set[str] = set()
    for kind, how in pairs:
        expect_choice(
            how,
            [one for of, one in _TAKES if of == kind],
            f"what {model} is evaluated as, on {kind},",
        )
        taken |= {*_TAKES[kind, how]}
    taken -= {"corpus"} if "place" in given else set()
    taken -= set() if "segment_tokens" in given else {"stride", "aggregate"}
    refuse_unused(given, taken, " and ".join(f"{how} on {kind}" for kind, how in pairs))


def _system(model: str, kind: str, how: How, given: Mapping[str, Any]) -> System:
    """Return what is evaluated on tasks of a kind, with the options that have an effect there."""

    def use(*names: str) -> dict[str, Any]:
        return {
            _FIELDS.get(name, name): given[name]
            for name in names
            if name in given and name in _TAKES[kind, how]
        }

    return System(
        model,
        how,
        bm25=use("k1", "b"),
        search=use(*_SEARCH),
        prompts=use(*_PROMPTS),
        reading=reading_of(model, how, use(*_READING)),
        context=evidence.context_of(use("context").get("context")),
        **use("dtype", "run", "place", "depth", "chunk_words"),
    )


def _find_checkpoints(model: str) -> Mapping[int, Path]:
    """Return step -> folder of the complete checkpoints in a run's folder `checkpoints`; none if
    the model is another one.
    """
    folder = Path(model)
    is_run = (folder / "recipe.toml").is_file() and not (folder / "config.json").exists()
    run = folder if is_run else folder.parent
    if not is_run and (folder.name != "checkpoints" or not (run / "recipe.toml").is_file()):
        return {}
    # imports transformers' trainer, which takes seconds
    from runnel.lab.training.progress import whole_checkpoints

    by_step = {} if is_run else dict(reversed(list(whole_checkpoints(folder))))
    part = next((path for path in by_step.values() if not (path / "config.json").exists()), None)
    if not by_step or part:
        what = f"{model} is a run" if is_run else f"{model} has no complete checkpoint"
        what = (
            f"{part} holds only what was trained, adapters or a head, and not a model"
            if part
            else what
        )
        raise InputError(
            f"{what}; evaluate the finished run's {run / 'model'}, or its whole models in"
            f" {run / 'checkpoints'}"
        )
    if len(by_step) == 1:
        log.warning(
            "note: %s has one checkpoint; a run with --set train.checkpoints=10 keeps ten", model
        )
    return by_step


def _plot(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot each metric over the steps, a panel for each task."""
    with needing("plots need matplotlib", "lab"):
        from matplotlib.figure import Figure
    tasks = points[0]["results"]
    figure = Figure(figsize=(5 * len(tasks), 4), layout="constrained")
    for place, (axis, task) in enumerate(
        zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True)
    ):
        for name in task["metrics"]:
            axis.plot(
                [p["step"] for p in points],
                [p["results"][place]["metrics"][name] for p in points],
                marker="o",
                label=name,
            )
        axis.set(title=task["task"], xlabel="step")
        axis.legend(fontsize=8)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
