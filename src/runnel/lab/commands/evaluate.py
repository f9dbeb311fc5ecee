"""`runnel lab evaluate`: how good a model or a run is on judged tasks.

`lab/evaluation/run.py` measures; the functions here print the result, by its form: tasks of
retrieval and of evidence (which sentences of a document answer), or tasks of MTEB.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from runnel.commands import display, parameters
from runnel.lab.commands.mine import VectorsPath


@dataclass(frozen=True)
class ReadingOptions:
    """What is read of texts."""

    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cut documents (--as rerank: pairs) to this many tokens."),
    ] = None
    max_query_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cut queries of an embedder to this many tokens.")
    ] = None
    context: Annotated[
        str | None, typer.Option(help="Of evidence: tokens of the pieces to read, or: sentence.")
    ] = None
    chunk_words: Annotated[
        int | None, typer.Option(min=1, help="Of evidence: rank chunks of this many words.")
    ] = None
    segment_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --as rerank: read segments of this many tokens.")
    ] = None
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens between the starts of segments (default: no overlap)."),
    ] = None
    remember: Annotated[
        bool | None,
        typer.Option(
            "--remember",
            help="With --as rerank: read each document once, and keep the states of all in RAM.",
        ),
    ] = None


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, bm25 or a run file.")],
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...", help="BEIR folders, benchmarks, qrels or evidence files."
        ),
    ],
    *,
    dtype: parameters.Dtype = "auto",
    queries: Annotated[
        str | None, typer.Option(help="Queries of a qrels file: jsonl or tsv.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Documents of a qrels file: jsonl or tsv.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="With --as rerank: run to reorder (default: BM25's best).")
    ] = None,
    vectors: VectorsPath = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep runs and results, and resume there.")
    ] = None,
    how: Annotated[
        Literal["embed", "rerank", "index", "sentences"] | None,
        typer.Option("--as", help="What MODEL does (default: embed, and sentences for evidence)."),
    ] = None,
    of_mteb: Annotated[
        bool,
        typer.Option("--mteb", help="TASKs are names of tasks or benchmarks of the library mteb."),
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(help="Metrics of ir-measures, e.g. nDCG@10,MRR@10,Recall@100.")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=1, help="Documents of a query to return or rerank (default: 100)."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Of an index: weight of meaning, where that of words is 1.")
    ] = None,
    rerank: Annotated[
        int | None, typer.Option(min=0, help="Of an index: documents to rerank.")
    ] = None,
    reading: ReadingOptions = ReadingOptions(),
    bm25: parameters.Bm25Options = parameters.Bm25Options(),
    prompts: parameters.PromptOptions = parameters.PromptOptions(),
    as_json: parameters.Json = False,
) -> int:
    """Measure how good MODEL is on each TASK, by the rules of trec_eval.

    Prints a table of metrics for each task.
    Example: runnel lab evaluate pocket scifact --out results
    """
    from runnel.lab.evaluation import run as evaluation

    result = evaluation.evaluate(
        model,
        tasks,
        how,
        metrics=metrics,
        out=out,
        of_mteb=of_mteb,
        depth=depth,
        run=run,
        corpus=corpus,
        queries=queries,
        vectors=vectors,
        weight=weight,
        rerank=rerank,
        dtype=dtype,
        **asdict(bm25),
        **asdict(prompts),
        **asdict(reading),
    )
    if as_json:
        display.print_json(result)
    elif of_mteb:
        _show_mteb(result)
    else:
        _show_tasks(result["results"])
    return 0


def _show_tasks(results: Sequence[dict[str, Any]]) -> None:
    """Print a table of the sets of retrieval for each choice of metrics, and one for each evidence
    task.
    """
    from runnel.lab.evaluation.metrics import means

    retrieval = [result for result in results if result["kind"] == "retrieval"]
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in retrieval:
        tables.setdefault(tuple(result["metrics"]), []).append(result)
    if retrieval:
        display.print_text(f"{retrieval[0]['model']} as {retrieval[0]['as']}")
    for metrics, shown in tables.items():
        rows = [
            [r["task"], f"{r['queries']:,}", *(f"{r['metrics'][m]:.4f}" for m in metrics)]
            for r in shown
        ]
        # of each group, published sets that count as one, and of all sets
        for group in means(shown):
            name = group["name"] if group["name"] == "mean" else f"{group['name']}, mean"
            rows.append([name, "", *(f"{group['metrics'][m]:.4f}" for m in metrics)])
        display.print_table(["task", "queries", *metrics], rows)
    for result in results:
        if result["kind"] == "sentences":  # an evidence task
            _show_evidence(result)


def _show_evidence(result: Mapping[str, Any]) -> None:
    metrics = list(result["metrics"])

    def row(name: str, group: Mapping[str, Any]) -> list[str]:
        return [
            name,
            f"{group['queries']:,}",
            *[f"{group['metrics'][metric]:.4f}" for metric in metrics],
        ]

    ranked = "sentences"
    if "chunk_words" in result:
        ranked = f"chunks of {result['chunk_words']:,} words"
    display.print_text(
        f"{result['model']} as {result['as']}: {result['task']}, {result['sentences']:,} {ranked}"
        " ranked"
    )
    # recall by position is for `runnel lab compare`
    rows = [row("all", result), *(row(group["name"], group) for group in result["by_length"])]
    display.print_table(["questions", "number", *metrics], rows)
    if result["calibration"]:
        names = ["score", "sentences", "answers", "share", "sigmoid"]
        names += ["share from here up", "answers from here up"]
        rows = [
            [
                f"{values['score']} to {values['score'] + 1}",
                f"{values['sentences']:,}",
                f"{values['answers']:,}",
                *(
                    f"{values[key]:.3f}"
                    for key in ("share", "sigmoid", "share_above", "found_above")
                ),
            ]
            for values in result["calibration"]
        ]
        display.print_table(names, rows)


def _show_mteb(report: dict[str, Any]) -> None:
    display.print_text(f"{report['model']} as {report['as']}, by mteb")
    rows = [
        [result["task"], result["type"], result["metric"], f"{result['score']:.4f}"]
        for result in report["results"]
    ]
    for mean in report["means"]:
        rows.append([mean["name"], f"{mean['tasks']:,} tasks", "", f"{mean['score']:.4f}"])
    display.print_table(["task", "type", "metric", "score"], rows, left=3)
