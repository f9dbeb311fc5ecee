"""`runnel lab mine`: training examples with hard negatives."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import display, parameters
from runnel.errors import InputError, counted

VectorsPath = Annotated[  # also of `runnel lab evaluate`
    str | None,
    typer.Option(
        metavar="VECTORS.npy", help="Of the documents, by `runnel embed`, or all shards of it."
    ),
]


def mine(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Queries with positives: BEIR folder, qrels, CSV, jsonl, ..."
        ),
    ],
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="bm25, or an embedder.", show_default="bm25")
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help="Texts of the query ids in DATA: jsonl or tsv.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Documents to draw from: jsonl or tsv.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Instead of a search: a run (TREC, MS MARCO) of these queries."),
    ] = None,
    vectors: VectorsPath = None,
    to: Annotated[Path, typer.Option(metavar="OUT.jsonl", help="File that training reads.")],
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="Negatives to draw for each query.")
    ] = 7,
    ranks: Annotated[
        str, typer.Option(metavar="FIRST-LAST", help="Ranks to draw from, uniformly.")
    ] = "1-100",
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws others.")] = 0,
    relative_margin: Annotated[
        float | None,
        typer.Option(
            help="With an embedder: reject scores above the positive's minus this share of it."
        ),
    ] = None,
    exclude: parameters.TestSets = None,
    bm25: parameters.Bm25Options = parameters.Bm25Options(),
    prompts: parameters.PromptOptions = parameters.PromptOptions(),
    as_json: parameters.Json = False,
) -> int:
    """Find hard negatives for DATA: what a search finds for a query although it does not answer.

    Writes OUT.jsonl, which training reads; prints the numbers of examples and negatives.
    Example: runnel lab mine pairs.csv --to mined.jsonl

    Copies of a positive are never used. Interrupted work resumes when you repeat the command.
    """
    first, dash, last = ranks.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise InputError(f"--ranks must be FIRST-LAST, like 1-100, got {ranks!r}")
    from runnel.lab.training.mining import Mining, mine_negatives

    counts = mine_negatives(
        data,
        to,
        Mining(number, (int(first), int(last)), seed, relative_margin),
        model=model,
        run=run,
        bm25=parameters.given(**asdict(bm25)),
        prompts=parameters.given(query=prompts.prompt, document=prompts.document_prompt),
        corpus=corpus,
        queries=queries,
        exclude=exclude or (),
        vectors_path=vectors,
    )
    display.print_facts(
        as_json,
        {"out": str(to), **counts},
        f"{to}: {counted(counts['examples'], 'example')},"
        f" {counted(counts['drawn'], 'negative')} drawn",
    )
    return 0
