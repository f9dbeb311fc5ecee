"""Evaluate a model or a run on tasks: `evaluate` is what `runnel lab evaluate` does.

In order: `_trials` finds the sets of each task; `system_for` makes the system that is evaluated on
them, with the options that have an effect there; then `retrieval`, `evidence` or `mteb` measures
it. A trial is a set and the system that is evaluated on it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.checks import expect_choice, refuse_when
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
from runnel.lab.evaluation.published import Set, find_sets
from runnel.lab.evaluation.retrieval import (
    API,
    How,
    Options,
    Reading,
    System,
    as_in_recipe,
    kind_of,
)
from runnel.lab.evaluation.tasks import is_evidence

# what a system may be evaluated as, by the kind of task
_WAYS: Mapping[str, tuple[How, ...]] = {
    "evidence": ("bm25", "embed", "sentences"),
    "documents": ("run", "bm25", "embed", "rerank", "index"),
    "mteb": ("embed", "rerank", "index"),
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
    """Evaluate a system on tasks; return the results, which are also written to a folder.

    Args:
        model: a model, "bm25" or a run file.
        tasks: BEIR folders, benchmarks, files of judgments (qrels) or of evidence; with `of_mteb`,
            names of tasks of the library mteb.
        how: what the model does; default: embed, and sentences for evidence.
        metrics: names of ir-measures with commas; default: those of each task.
        out: folder of the runs and results, where interrupted work resumes; None: they are not
            kept.
        options: those of `runnel lab evaluate`: depth, run, corpus, queries, dtype, k1, b, prompt,
            document_prompt, weight, rerank, max_tokens, max_query_tokens, segment_tokens, stride,
            remember, context, chunk_words and vectors. Options without effect on any task are
            refused.

    Raises:
        InputError: a task, a metric or an option cannot be used.
    """
    # 1. tasks of mteb
    if of_mteb:
        given = Options({**options, "metrics": metrics})
        system = system_for(model, "mteb", kind_of(model, None) or how or "embed", given)
        given.refuse_others(f"{system.how} on mteb")
        with results_folder(out) as folder:
            return {"version": VERSION, **mteb.measure(tasks, as_in_recipe(system), folder)}
    # 2. judged tasks
    metric_names = None if metrics is None else metrics.split(",")
    parse_metrics(METRICS if metric_names is None else metric_names)
    trials = _trials(model, tasks, how, Options(options))
    names = [evidence.name_of(task) if isinstance(task, Path) else task.name for task, _ in trials]
    for number, name in enumerate(names):
        expect_new(name, names[:number])
    results = []
    with results_folder(out) as folder:
        for task, system in trials:
            if isinstance(task, Path):
                measured = evidence.measure(task, system, metric_names, folder)
            else:
                measured = retrieval.measure(task, system, metric_names, folder)
            results.append(save(*measured, folder))
    return {"version": VERSION, "results": results, "means": means(results)}


def _trials(
    model: str, tasks: Sequence[str], how: How | None, options: Options
) -> list[tuple[Set | Path, System]]:
    """Return the sets of retrieval and the files of evidence, with the system that is evaluated on
    each.
    """
    asked = kind_of(model, how)  # as what the user wants it evaluated; None: the task decides
    given = options.given
    # each set, with the kind of task (`_WAYS`) and as what the model is evaluated
    trials: list[tuple[Set | Path, tuple[str, How]]] = []
    for name in tasks:
        if Path(name).is_file() and is_evidence(Path(name)):
            trials.append((Path(name), ("evidence", asked or "sentences")))
        else:
            files = options.take("corpus", "queries")
            trials += [(task, ("documents", asked or "embed")) for task in find_sets(name, **files)]
    pairs = dict.fromkeys(pair for _, pair in trials)
    refuse_when(
        (
            given.keys() >= {"max_tokens", "segment_tokens"},
            "segments cover whole documents, so --max-tokens has no effect; leave it or"
            " --segment-tokens out",
        ),
        (
            "{instruction}" in given.get("prompt", ""),
            "{instruction} in --prompt is replaced only for tasks of mteb",
        ),
    )
    systems = {pair: as_in_recipe(system_for(model, *pair, options)) for pair in pairs}
    options.refuse_others(" and ".join(f"{how} on {kind}" for kind, how in pairs))
    return [(task, systems[pair]) for task, pair in trials]


def system_for(model: str, kind: str, how: How, options: Options) -> System:
    """Return the system that is evaluated on tasks of a kind, with the options that have an effect
    there. `take` marks an option as used; one that is never taken is refused.

    Raises InputError if this system cannot do tasks of this kind.
    """
    # Of an embedder behind an endpoint runnel knows no weights, tokens or fingerprint.
    of_api = model.startswith(API)
    refuse_when(
        (
            of_api and (kind, how) != ("evidence", "embed"),
            f"{model} is not read by runnel, and can only rank the sentences of evidence, with --as"
            " embed",
        )
    )
    expect_choice(how, _WAYS[kind], f"what {model} is evaluated as, on {kind},")
    fields: dict[str, Any] = {}
    reading: list[str] = []
    if how not in ("run", "bm25") and not of_api:
        fields |= options.take("dtype")
    if kind == "documents" and how != "run":
        fields |= options.take("depth")
    # A reranker's candidates are BM25's best documents, unless a run is given.
    if how == "bm25" or (kind == "documents" and how == "rerank"):
        fields["bm25"] = options.take("k1", "b")
    if how == "embed" and kind == "documents":
        fields |= options.take("vectors")
    if how in ("embed", "index"):
        # a document prompt has no effect on vectors that are given: they are made already
        of_documents = {} if "vectors" in fields else {"document_prompt": "document"}
        fields["prompts"] = options.take(prompt="query", **of_documents)
    if how == "index":
        fields["search"] = options.take("rerank", weight="dense_weight")
    if how == "rerank":
        fields |= options.take("depth", run="candidates")
    if how in ("embed", "rerank") and not of_api:
        reading.append("max_tokens")
    if how == "embed" and kind != "mteb" and not of_api:
        reading.append("max_query_tokens")
    if how == "rerank" and kind == "documents":
        if "segment_tokens" in options.given:
            reading += ["segment_tokens", "stride"]
        elif "max_tokens" not in options.given:
            fields |= options.take("remember")
    if kind == "evidence":
        fields |= options.take("context" if how == "sentences" else "chunk_words")
        fields["context"] = evidence.context_of(fields.get("context"))
    return System(model, how, reading=Reading(**options.take(*reading)), **fields)
