"""`runnel evaluate`: how good a model, a run or an index is, on judged tasks or on your own questions.

This file has the options; the work is in `evaluate_tasks.py`, `_questions.py`, `_patterns.py` and `_results.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from runnel.commands.display import print_json
from runnel.commands.options import Bm25Options, Dtype, Json, PromptOptions, given, given_options, refuse, refuse_others
from runnel.lab.commands.evaluate_results import compare_folders, results_folder, save

_FOR_QUESTIONS = ("what", "--questions", "--in", "--out", "--device", "--json")
_FOR_INDEX = ("--top-k", "--sweep", "--weight", "--rerank")
_FOR_PATTERNS = ("--as", "--dtype", "--k1", "--b", "--prompt", "--document-prompt")
What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL TASK...]",
        help="A model, bm25, a run file or RUN/checkpoints; and BEIR folders, benchmarks, qrels or evidence files.",
    ),
]


@dataclass(frozen=True)
class TaskOptions:
    """What is measured on the tasks, and where their texts are."""

    metrics: Annotated[str | None, typer.Option("--metrics", help="Metrics of ir-measures, e.g. nDCG@10,MRR@10,Recall@100.")] = (
        None
    )
    depth: Annotated[
        int | None, typer.Option(min=1, help="Documents of a query to return or rerank; default: 100, or more for the metrics.")
    ] = None
    run: Annotated[str | None, typer.Option(help="With --as rerank: run to reorder; default: BM25's best.")] = None
    corpus: Annotated[str | None, typer.Option(help="Documents of a qrels file: jsonl or tsv.")] = None
    queries: Annotated[str | None, typer.Option(help="Queries of a qrels file: jsonl or tsv.")] = None


@dataclass(frozen=True)
class IndexOptions:
    """How an index is searched."""

    dense_weight: Annotated[
        float | None, typer.Option("--weight", help="Of an index: weight of meaning, where that of words is 1.")
    ] = None
    rerank: Annotated[int | None, typer.Option(min=0, help="Of an index: documents to rerank.")] = None


@dataclass(frozen=True)
class ReadingOptions:
    """What is read of texts."""

    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cut documents (with --as rerank query and document) to this many tokens.")
    ] = None
    max_query_tokens: Annotated[int | None, typer.Option(min=1, help="Cut queries of an embedder to this many tokens.")] = None
    segment_tokens: Annotated[int | None, typer.Option(min=1, help="Score documents by segments of this many tokens.")] = None
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from one segment's start to the next; default: no overlap.")
    ] = None
    aggregate: Annotated[
        Literal["max", "sum"] | None, typer.Option(help="Score of a document from its segments'; default: max.")
    ] = None


@dataclass(frozen=True)
class EvidenceOptions:
    """How the documents of evidence are read and ranked."""

    context: Annotated[
        str | None, typer.Option(help="Of evidence: read documents in pieces of this many tokens, or: sentence.")
    ] = None
    chunk_words: Annotated[
        int | None, typer.Option(min=1, help="Of evidence: rank chunks of this many words, not sentences.")
    ] = None


@dataclass(frozen=True)
class QuestionOptions:
    """The user's own questions about an index."""

    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Instead: your own questions, with the file, page, text or patterns that answer (jsonl or csv)."
        ),
    ] = None
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, max=50, help="With --questions: documents that a reader would look at.")
    ] = 10
    sweep: Annotated[bool, typer.Option("--sweep", help="With --questions: try the settings of search, and print the best.")] = (
        False
    )


def evaluate(
    usage: typer.Context,
    what: What = None,
    how: Annotated[
        Literal["embed", "rerank", "index", "sentences"] | None,
        typer.Option("--as", help="What MODEL does; default: embed, and sentences for evidence."),
    ] = None,
    task: TaskOptions = TaskOptions(),
    dtype: Dtype = "auto",
    bm25: Bm25Options = Bm25Options(),
    prompts: PromptOptions = PromptOptions(),
    search: IndexOptions = IndexOptions(),
    reading: ReadingOptions = ReadingOptions(),
    evidence: EvidenceOptions = EvidenceOptions(),
    place: Annotated[
        str | None, typer.Option("--in", metavar="DIR", help="Existing index to search; for patterns, folder of documents.")
    ] = None,
    own: QuestionOptions = QuestionOptions(),
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep runs and results, per query too, and resume there.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FOLDER FOLDER", help="Instead: compare the results in two folders, query by query."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Measure how good MODEL is on each TASK, by the rules of trec_eval; or how well an index answers your own questions.

    Interrupted work resumes when you repeat the command.
    """
    if compare is not None:
        refuse_others(usage, "--compare", ["--json"])
        return compare_folders(*compare, as_json=as_json)
    model, *tasks = what or [""]
    if own.questions is not None:
        refuse({"TASK": tasks}, "has no effect with --questions")
        folder = _FolderOptions(how, dtype, given(**asdict(bm25)), prompts.by_kind())
        return _ask(usage, own, place, model or None, given(**asdict(search)), folder, out, as_json=as_json)
    refuse(given_options(own), "goes with --questions")
    if not tasks:
        raise typer.BadParameter("give MODEL and TASK..., or --questions FILE --in DIR, or --compare FOLDER FOLDER")
    if place is not None:
        refuse({"--as": how != "index" and how, "--corpus": task.corpus}, "has no effect with --in, which has the documents")
        how = "index"
    from runnel.lab.commands.evaluate_retrieval import System
    from runnel.lab.commands.evaluate_sentences import context_of
    from runnel.lab.commands.evaluate_tasks import Tasks, evaluate_tasks

    system = System(
        model,
        how or "embed",
        dtype,
        task.depth,
        task.run,
        bm25=given(**asdict(bm25)),
        search=given(**asdict(search)),
        prompts=prompts.by_kind(),
        place=place,
        context=context_of(evidence.context),
        chunk_words=evidence.chunk_words,
    )
    judged = Tasks(tasks, how, task.corpus, task.queries, task.metrics, given(**asdict(reading)))
    return evaluate_tasks(system, judged, out, as_json=as_json)


class _FolderOptions(NamedTuple):
    """How sentences are ranked for questions with patterns."""

    how: Literal["embed", "rerank", "index", "sentences"] | None
    dtype: str
    bm25: Mapping[str, float]
    prompts: Mapping[str, str]


def _ask(
    usage: typer.Context,
    own: QuestionOptions,
    place: str | None,
    model: str | None,
    search: Mapping[str, float],
    options: _FolderOptions,
    out: str | None,
    *,
    as_json: bool,
) -> int:
    refuse_others(usage, "--questions", _FOR_QUESTIONS + _FOR_INDEX + _FOR_PATTERNS)
    if place is None:
        raise typer.BadParameter("--questions needs the index to search, or the folder of the documents: --in DIR")
    from runnel.lab.commands import evaluate_patterns, evaluate_questions
    from runnel.lab.commands.evaluate_retrieval import System, kind_of
    from runnel.lab.evaluation.patterns import has_patterns

    path = Path(str(own.questions))
    if has_patterns(path):
        refuse_others(usage, "--questions with patterns", _FOR_QUESTIONS + _FOR_PATTERNS)
        model = model or "pocket"
        kind = kind_of(model, options.how) or "sentences"
        refuse({"--dtype": kind == "bm25" and options.dtype != "auto"}, "is for models; none reads here")
        refuse({"--prompt": kind != "embed" and options.prompts}, "is put before texts that an embedder reads; none reads here")
        system, show = System(model, kind, options.dtype, bm25=options.bm25, prompts=options.prompts), evaluate_patterns.show
    else:
        refuse_others(usage, "--questions without patterns", _FOR_QUESTIONS + _FOR_INDEX)
        system, show = None, evaluate_questions.show
    with results_folder(out) as folder:
        if system is None:
            found = evaluate_questions.measure(path, place, model, own.top_k, search, folder, sweep=own.sweep)
        else:
            found = evaluate_patterns.measure(path, place, system, folder)
        result = save(*found, folder)
    print_json(result) if as_json else show(result)
    return 0
