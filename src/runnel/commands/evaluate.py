"""`runnel evaluate`: how good a model, a run or an index is, on judged tasks or on your own questions.

This file has the options and decides between the three: tasks (`evaluate_tasks.py`), questions (`evaluate_questions.py`), and a
comparison of results (`evaluate_results.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runnel.commands.display import print_json
from runnel.commands.evaluate_results import compare_folders, results_folder, save
from runnel.commands.options import BOption, DocumentPrompt, Dtype, Json, K1Option, Prompt, refuse

What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL TASK...]",
        help="A model, bm25, a run file or RUN/checkpoints; and BEIR folders, benchmarks, qrels or evidence files.",
    ),
]
As = Annotated[
    Literal["embed", "rerank", "index", "sentences"] | None,
    typer.Option("--as", help="What MODEL does; default: embed, and sentences for evidence."),
]
Out = Annotated[str | None, typer.Option(metavar="FOLDER", help="Keep runs and results, per query too, and resume there.")]
Names = Annotated[str | None, typer.Option("--metrics", help="Metrics of ir-measures, e.g. nDCG@10,MRR@10,Recall@100.")]
Depth = Annotated[
    int | None, typer.Option(min=1, help="Documents of a query to return or rerank; default: 100, or more for the metrics.")
]
Run = Annotated[str | None, typer.Option(help="With --as rerank: run to reorder; default: BM25's best.")]
Corpus = Annotated[str | None, typer.Option(help="Documents of a qrels file: jsonl or tsv.")]
Queries = Annotated[str | None, typer.Option(help="Queries of a qrels file: jsonl or tsv.")]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut documents (with --as rerank query and document) to this many tokens.")
]
MaxQueryTokens = Annotated[int | None, typer.Option(min=1, help="Cut queries of an embedder to this many tokens.")]
SegmentTokens = Annotated[int | None, typer.Option(min=1, help="Score documents by segments of this many tokens.")]
Stride = Annotated[int | None, typer.Option(min=1, help="Tokens from one segment's start to the next; default: no overlap.")]
Aggregate = Annotated[Literal["max", "sum"] | None, typer.Option(help="Score of a document from its segments'; default: max.")]
DenseWeight = Annotated[float | None, typer.Option("--weight", help="Of an index: weight of meaning, where that of words is 1.")]
Context = Annotated[str | None, typer.Option(help="Of evidence: read documents in pieces of this many tokens, or: sentence.")]
ChunkWords = Annotated[int | None, typer.Option(min=1, help="Of evidence: rank chunks of this many words, not sentences.")]
Rerank = Annotated[int | None, typer.Option(min=0, help="Of an index: documents to rerank.")]
Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="FOLDER FOLDER", help="Instead: compare the results in two folders, query by query."),
]
Questions = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Instead: your own questions, with the file, page or text that answers (jsonl or csv)."),
]
Place = Annotated[str | None, typer.Option("--in", metavar="DIR", help="Existing index to search, for --questions or tasks.")]
TopK = Annotated[
    int, typer.Option("--top-k", "-k", min=1, max=50, help="With --questions: documents that a reader would look at.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="With --questions: try the settings of search, and print the best.")]


# Long: 35 lines are its options.
def evaluate(
    what: What = None,
    # what MODEL does, and on which texts
    how: As = None,
    metrics: Names = None,
    depth: Depth = None,
    run: Run = None,
    corpus: Corpus = None,
    queries: Queries = None,
    dtype: Dtype = "auto",
    # how BM25, an embedder or an index searches
    k1: K1Option = None,
    b: BOption = None,
    prompt: Prompt = None,
    document_prompt: DocumentPrompt = None,
    dense_weight: DenseWeight = None,
    rerank: Rerank = None,
    # what is read of texts
    max_tokens: MaxTokens = None,
    max_query_tokens: MaxQueryTokens = None,
    segment_tokens: SegmentTokens = None,
    stride: Stride = None,
    aggregate: Aggregate = None,
    # evidence
    context: Context = None,
    chunk_words: ChunkWords = None,
    # an index, and your own questions
    place: Place = None,
    questions: Questions = None,
    top_k: TopK = 10,
    sweep: Sweep = False,
    # results
    out: Out = None,
    compare: Compare = None,
    as_json: Json = False,
) -> int:
    """Measure how good MODEL is on each TASK, by the rules of trec_eval; or how well an index answers your own questions.

    Interrupted work resumes when you repeat the command.
    """
    bm25, search = _given(k1=k1, b=b), _given(dense_weight=dense_weight, rerank=rerank)
    others = {"--as": how, "--questions": questions, "--in": place, "--sweep": sweep, "--compare": compare, "--out": out}
    _check_usage(what, others)
    if compare is not None:
        return compare_folders(*compare, as_json=as_json)
    model, *tasks = what or [""]
    if questions is not None:
        return _ask(questions, str(place), model or None, top_k, search, out, sweep=sweep, as_json=as_json)
    if place is not None:
        refuse({"--as": how != "index" and how, "--corpus": corpus}, "has no effect with --in, which has the documents")
        how = "index"
    from runnel.commands.evaluate_retrieval import System
    from runnel.commands.evaluate_sentences import context_of
    from runnel.commands.evaluate_tasks import Tasks, evaluate_tasks

    reading = _given(max_query_tokens=max_query_tokens, max_tokens=max_tokens, segment_tokens=segment_tokens)
    reading |= _given(stride=stride, aggregate=aggregate)
    system = System(
        model,
        how or "embed",
        dtype,
        depth,
        run,
        bm25,
        search,
        prompts=_given(query=prompt, document=document_prompt),
        place=place,
        context=context_of(context),
        chunk_words=chunk_words,
    )
    return evaluate_tasks(system, Tasks(tasks, how, corpus, queries, metrics, reading), out, as_json=as_json)


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

    with results_folder(out) as folder:
        result, values = evaluate_questions.measure(Path(questions), place, model, top_k, search, folder, sweep=sweep)
        result = save(result, values, folder)
    if as_json:
        print_json(result)
    else:
        evaluate_questions.show(result)
    return 0
