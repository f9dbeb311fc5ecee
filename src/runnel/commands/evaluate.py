"""`runnel evaluate`: how good a model, a run or an index is, on judged tasks or on your own questions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from runnel.commands.display import print_json
from runnel.commands.evaluate_checkpoints import find_checkpoints, show_checkpoints, write_checkpoints
from runnel.commands.evaluate_results import VERSION, compare_folders, means, save, show
from runnel.commands.options import BOption, DocumentPrompt, Dtype, Json, K1Option, Prompt, refuse
from runnel.errors import InputError

if TYPE_CHECKING:
    from runnel.commands.evaluate_retrieval import How, System
    from runnel.evaluation.benchmarks import Set

What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL TASK...]",
        help="A model, bm25, a run file or RUN/checkpoints; and BEIR folders, benchmarks, qrels or evidence files.",
        show_default=False,
    ),
]
As = Annotated[
    Literal["embed", "rerank", "index", "sentences"] | None,
    typer.Option("--as", help="What MODEL does; default: embed, and sentences for evidence.", show_default=False),
]
Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Keep runs and results, per query too, and resume there.", show_default=False)
]
Names = Annotated[
    str | None,
    typer.Option("--metrics", help="Metrics of ir-measures, e.g. nDCG@10,MRR@10,Recall@100.", show_default=False),
]
Depth = Annotated[
    int | None,
    typer.Option(
        min=1, help="Documents of a query to return or rerank; default: 100, or more for the metrics.", show_default=False
    ),
]
Run = Annotated[str | None, typer.Option(help="With --as rerank: run to reorder; default: BM25's best.", show_default=False)]
Corpus = Annotated[str | None, typer.Option(help="Documents of a qrels file: jsonl or tsv.", show_default=False)]
Queries = Annotated[str | None, typer.Option(help="Queries of a qrels file: jsonl or tsv.", show_default=False)]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Cut documents (with --as rerank query and document) to this many tokens.", show_default=False),
]
MaxQueryTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut queries of an embedder to this many tokens.", show_default=False)
]
SegmentTokens = Annotated[
    int | None, typer.Option(min=1, help="Score documents by segments of this many tokens.", show_default=False)
]
Stride = Annotated[
    int | None, typer.Option(min=1, help="Tokens from one segment's start to the next; default: no overlap.", show_default=False)
]
Aggregate = Annotated[
    Literal["max", "sum"] | None,
    typer.Option(help="Score of a document from its segments'; default: max.", show_default=False),
]
_SEARCH = {"dense_weight": "--weight", "rerank": "--rerank"}  # options by the arguments of `Index.search`
DenseWeight = Annotated[
    float | None, typer.Option("--weight", help="Of an index: weight of meaning, where that of words is 1.", show_default=False)
]
Context = Annotated[
    str | None,
    typer.Option(help="Of evidence: read documents in pieces of this many tokens, or: sentence.", show_default=False),
]
ChunkWords = Annotated[
    int | None,
    typer.Option(min=1, help="Of evidence: rank chunks of this many words, not sentences.", show_default=False),
]
Rerank = Annotated[int | None, typer.Option(min=0, help="Of an index: documents to rerank.", show_default=False)]
Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="FOLDER FOLDER", help="Instead: compare the results in two folders, query by query.", show_default=False
    ),
]
Questions = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Instead: your own questions, with the file, page or text that answers (jsonl or csv).",
        show_default=False,
    ),
]
Place = Annotated[
    str | None,
    typer.Option("--in", metavar="DIR", help="Existing index to search, for --questions or tasks.", show_default=False),
]
TopK = Annotated[
    int, typer.Option("--top-k", "-k", min=1, max=50, help="With --questions: documents that a reader would look at.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="With --questions: try the settings of search, and print the best.")]


# Long: 28 lines are its options.
def evaluate(
    what: What = None,
    how: As = None,
    out: Out = None,
    metrics: Names = None,
    depth: Depth = None,
    run: Run = None,
    corpus: Corpus = None,
    queries: Queries = None,
    k1: K1Option = None,
    b: BOption = None,
    prompt: Prompt = None,
    document_prompt: DocumentPrompt = None,
    max_tokens: MaxTokens = None,
    max_query_tokens: MaxQueryTokens = None,
    segment_tokens: SegmentTokens = None,
    stride: Stride = None,
    aggregate: Aggregate = None,
    context: Context = None,
    chunk_words: ChunkWords = None,
    dense_weight: DenseWeight = None,
    rerank: Rerank = None,
    dtype: Dtype = "auto",
    questions: Questions = None,
    place: Place = None,
    top_k: TopK = 10,
    sweep: Sweep = False,
    compare: Compare = None,
    as_json: Json = False,
) -> int:
    """Measure how good MODEL is on each TASK, by the rules of trec_eval; or how well an index answers your own questions.

    Interrupted work resumes when you repeat the command.
    """
    bm25, search = _given(k1=k1, b=b), _given(dense_weight=dense_weight, rerank=rerank)
    prompts = _given(query=prompt, document=document_prompt)
    others = {"--as": how, "--questions": questions, "--in": place, "--sweep": sweep, "--compare": compare, "--out": out}
    _check_usage(what, others)
    if compare is not None:
        return compare_folders(*compare, as_json=as_json)
    model, *tasks = what or [""]
    if questions is not None:
        return _ask(questions, str(place), model or None, top_k, search, out, sweep=sweep, as_json=as_json)
    from runnel.commands.evaluate_retrieval import System
    from runnel.commands.evaluate_sentences import context_of

    if place is not None:
        refuse({"--as": how != "index" and how, "--corpus": corpus}, "has no effect with --in, which has the documents")
        how = "index"
    system = System(model, "embed", dtype, depth, run, bm25, search, prompts, place=place, context=context_of(context))
    system = replace(system, chunk_words=chunk_words)
    reading = _given(max_query_tokens=max_query_tokens, max_tokens=max_tokens, segment_tokens=segment_tokens)
    reading |= _given(stride=stride, aggregate=aggregate)
    if any(task.startswith("mteb:") for task in tasks):
        others = {"--metrics": metrics, "--corpus": corpus, "--queries": queries, "--in": place, "--context": context}
        _check_mteb(tasks, {**others, "--chunk-words": chunk_words}, reading)
        return _run_mteb(tasks, replace(system, how=how or "embed"), reading, out, as_json=as_json)

    def measure(model: str, out: str | None) -> list[dict[str, Any]]:
        jobs = _jobs(tasks, (corpus, queries), replace(system, model=model), how, reading)
        return _measure(jobs, None if metrics is None else metrics.split(","), out)

    if checkpoints := find_checkpoints(model):
        return _follow(checkpoints, measure, out, as_json=as_json)
    results = measure(model, out)
    if as_json:
        print_json({"version": VERSION, "results": results, "means": means(results)})
    else:
        show(results)
    return 0


class _Job(NamedTuple):
    """A set of retrieval, or a file of evidence, and what is evaluated on it."""

    task: Set | Path
    system: System

    @property
    def evidence(self) -> bool:
        return isinstance(self.task, Path)


def _jobs(
    tasks: Sequence[str], texts: tuple[str | None, str | None], system: System, how: How | None, reading: Mapping[str, Any]
) -> list[_Job]:
    """Return the sets of all tasks with what the system is evaluated as; raise a usage error for options that have no effect.

    `texts` are the corpus and queries of qrels.
    """
    from runnel.commands.evaluate_retrieval import kind_of, reading_of
    from runnel.evaluation.benchmarks import find_sets
    from runnel.evaluation.tasks import is_evidence
    from runnel.integrations.embedders import PREFIXES

    kind = kind_of(system.model, how)
    jobs = []
    for task in tasks:
        if Path(task).is_file() and is_evidence(Path(task)):
            jobs.append(_Job(Path(task), replace(system, how=kind or "sentences")))
        else:
            jobs += [_Job(one, replace(system, how=kind or "embed")) for one in find_sets(task, *texts)]
    kinds = {job.system.how for job in jobs}
    ranks_parts = any(job.evidence and job.system.how in ("bm25", "embed") for job in jobs)
    refuse({"--chunk-words": not ranks_parts and system.chunk_words}, "goes with evidence, for bm25 and --as embed")
    if system.model.startswith(PREFIXES) and any(job.system.how != "embed" or not job.evidence for job in jobs):
        raise InputError(f"{system.model} is not read by runnel, and can only rank the sentences of evidence, with --as embed")
    if "rerank" not in kinds:
        refuse({"--run": system.candidates}, "goes with --as rerank")
    if "sentences" not in kinds:
        refuse({"--context": system.context}, "goes with sentence retrievers, on evidence")
    if not kinds & {"bm25", "rerank"}:
        refuse({f"--{name}": True for name in system.bm25}, "is for BM25, which does not search here")
    if "index" not in kinds:
        refuse({_SEARCH[name]: True for name in system.search}, "goes with --as index")
    instruct = "{instruction}" in system.prompts.get("query", "")
    refuse({"{instruction} in --prompt": instruct}, "is replaced only for mteb tasks; write the instruction itself")
    if not kinds & {"embed", "index"}:
        names = {"query": "--prompt", "document": "--document-prompt"}
        refuse({names[name]: True for name in system.prompts}, "is put before texts that an embedder reads; none reads here")
    reads = {job.system.how for job in jobs if not job.evidence or job.system.how == "embed"}
    _check_reading(reads, reading)
    if any(job.evidence and job.system.how == "embed" for job in jobs):
        refuse({"--segment-tokens": reading.get("segment_tokens")}, "is for documents; evidence ranks sentences")
    for one in reads & {"embed", "rerank"}:
        found = reading_of(system.model, one, reading)
        jobs = [job._replace(system=replace(job.system, reading=found)) if job.system.how == one else job for job in jobs]
    return jobs


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def _check_usage(what: Sequence[str] | None, options: Mapping[str, object]) -> None:
    """Raise a usage error unless the arguments are those of tasks, of questions or of a comparison."""
    if options["--compare"] is not None:
        refuse({"MODEL": what, **{n: v for n, v in options.items() if n != "--compare"}}, "has no effect with --compare")
    elif options["--questions"] is not None:
        refuse({"--as": options["--as"], "TASK": (what or [])[1:]}, "has no effect with --questions")
        if options["--in"] is None:
            raise typer.BadParameter("--questions needs the index to search: --in DIR")
    else:
        refuse({"--sweep": options["--sweep"]}, "goes with --questions")
        if len(what or []) < 2:
            raise typer.BadParameter("give MODEL and TASK..., or --questions FILE --in DIR, or --compare FOLDER FOLDER")


def _check_reading(kinds: Collection[str], given: Mapping[str, object]) -> None:
    """Raise a usage error for options about what is read that have no effect on any task; `kinds` are those that read texts."""
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    if not {"embed", "rerank"}.intersection(kinds):
        refuse(options, "goes with embedders and rerankers")
    if "embed" not in kinds:
        refuse({"--max-query-tokens": given.get("max_query_tokens")}, "goes with embedders; a reranker's query is never cut")
    if "segment_tokens" not in given:
        refuse({name: options.get(name) for name in ("--stride", "--aggregate")}, "goes with --segment-tokens")


def _measure(jobs: Sequence[_Job], metrics: Sequence[str] | None, out: str | None) -> list[dict[str, Any]]:
    """Return the result of each task, which is also written to OUT."""
    from runnel.commands import evaluate_retrieval, evaluate_sentences
    from runnel.evaluation.metrics import METRICS, parse_metrics

    parse_metrics(METRICS if metrics is None else metrics)
    names = [evaluate_sentences.name_of(job.task) if isinstance(job.task, Path) else job.task.name for job in jobs]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two tasks are called {repeated!r}, and their results would be in one file; evaluate them one by one")
    for job, name in zip(jobs, names, strict=True):
        how = job.system.how
        if how not in (("bm25", "embed", "sentences") if job.evidence else ("bm25", "embed", "rerank", "index", "run")):
            what = f"{job.task} is a task that ranks sentences" if job.evidence else f"{name} is a task that ranks documents"
            raise InputError(f"{what}; {job.system.model} cannot be evaluated on it as {how}")
    results = []
    with _folder(out) as folder:
        for task, system in jobs:
            if isinstance(task, Path):
                found = evaluate_sentences.measure(task, system, metrics, folder)
            else:
                found = evaluate_retrieval.measure(task, system, metrics, folder)
            results.append(save(*found, folder))
    return results


def _follow(
    checkpoints: Mapping[int, Path],
    measure: Callable[[str, str | None], list[dict[str, Any]]],
    out: str | None,
    *,
    as_json: bool,
) -> int:
    """Evaluate each checkpoint of a run."""
    with _folder(out) as folder:
        points = [{"step": step, "results": measure(str(path), str(folder / path.name))} for step, path in checkpoints.items()]
        found = {"version": VERSION, "checkpoints": points}
        if out is not None:
            write_checkpoints(found, folder)
    if as_json:
        print_json(found)
    else:
        show_checkpoints(points)
    return 0


def _check_mteb(tasks: Sequence[str], options: Mapping[str, object], reading: Mapping[str, object]) -> None:
    """Raise a usage error for other tasks besides MTEB's, and for options that have no effect on these."""
    if others := [task for task in tasks if not task.startswith("mteb:")]:
        raise typer.BadParameter(f"evaluate MTEB's tasks and {others[0]} in two commands")
    unused = {f"--{name.replace('_', '-')}": value for name, value in reading.items() if name != "max_tokens"}
    refuse({**options, **unused}, "has no effect on MTEB's tasks")


def _run_mteb(tasks: Sequence[str], system: System, reading: Mapping[str, Any], out: str | None, *, as_json: bool) -> int:
    """Evaluate tasks and benchmarks of MTEB."""
    from runnel.commands import evaluate_mteb
    from runnel.commands.evaluate_retrieval import kind_of, reading_of

    kind = kind_of(system.model, None) or system.how
    if kind not in ("embed", "rerank", "index"):
        raise InputError(f"{system.model} cannot be evaluated on MTEB as {kind}; expected an embedder, a reranker or an index")
    if kind != "index":
        system = replace(system, reading=reading_of(system.model, kind, reading))
    refuse({"--run": kind != "rerank" and system.candidates}, "goes with --as rerank")
    unused = [f"--{name}" for name in system.bm25] + [_SEARCH[name] for name in (() if kind == "index" else system.search)]
    refuse(dict.fromkeys(unused, True), "has no effect here")
    with _folder(out) as folder:
        whole = evaluate_mteb.measure([task.removeprefix("mteb:") for task in tasks], system, folder)
    if as_json:
        print_json({"version": VERSION, **whole})
    else:
        evaluate_mteb.show(whole)
    return 0


def _ask(
    questions: str,
    place: str,
    model: str | None,
    top_k: int,
    search: Mapping[str, float],
    out: str | None,
    *,
    sweep: bool,
    as_json: bool,
) -> int:
    """Evaluate an index on the user's own questions."""
    from runnel.commands import evaluate_questions

    with _folder(out) as folder:
        result, values = evaluate_questions.measure(Path(questions), place, model, top_k, search, folder, sweep=sweep)
        result = save(result, values, folder)
    if as_json:
        print_json(result)
    else:
        evaluate_questions.show(result)
    return 0


@contextmanager
def _folder(out: str | None) -> Iterator[Path]:
    """Give the folder of the results: OUT, or one that is removed afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="runnel-evaluate-") as name:
            yield Path(name)
        return
    folder = Path(out)
    if not folder.absolute().parent.is_dir():
        raise InputError(f"{out}: the directory {folder.parent} does not exist; create it first")
    folder.mkdir(exist_ok=True)
    yield folder
