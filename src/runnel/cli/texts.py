"""Commands that work through files of texts and write vectors or rankings."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runnel.cli.command import IN_FULL, Dtype, Json, MaxTokens, Model, command


@command
def embed(
    texts: Annotated[
        str, typer.Argument(metavar="INPUT", help="jsonl (id, text), tsv (id, text) or txt (a text a line); - is stdin.")
    ],
    to: Annotated[str, typer.Option(help="OUT.npy (ids go to OUT.ids) or OUT.jsonl.", show_default=False)],
    model: Model = "pocket",
    dtype: Dtype = "auto",
    as_query: Annotated[bool, typer.Option("--query/--document", help="Which of the model's prompts each text gets.")] = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Take shard I of N of the file (I from 1), and write OUT-0000I-of-0000N.npy."),
    ] = None,
    max_tokens: MaxTokens = None,
    pooling: Annotated[
        Literal["cls", "eos", "mean"] | None,
        typer.Option(help="Vector of a text: its first token's, its last's or the mean; default: what the model was made for."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Write one vector for each text of INPUT. Stopped work goes on where it was when the same command is run again."""
    from runnel.commands.embed import run

    return run(
        texts,
        to,
        model=model,
        dtype=IN_FULL[dtype],
        as_query=as_query,
        shard=shard,
        max_tokens=max_tokens,
        pooling=pooling,
        as_json=as_json,
    )


@command
def rerank(
    query: Annotated[str | None, typer.Argument(help="One query ...", show_default=False)] = None,
    documents: Annotated[
        str | None,
        typer.Argument(help="... and the documents to rank for it: jsonl, tsv or txt; - is stdin.", show_default=False),
    ] = None,
    queries: Annotated[str | None, typer.Option(help="Or many queries: jsonl or tsv (id, text).", show_default=False)] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Documents of the candidates: jsonl or tsv (id, text).", show_default=False)
    ] = None,
    candidates: Annotated[
        str | None, typer.Option("--run", help="TREC run with the candidates of each query.", show_default=False)
    ] = None,
    to: Annotated[str | None, typer.Option(help="TREC run to write.", show_default=False)] = None,
    model: Model = "pocket",
    dtype: Dtype = "auto",
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Documents to keep for each query; default all.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Candidates to take from the run for each query; default all.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Folder for a recurrent model's states of read documents, kept and used again; default: in RAM."),
    ] = None,
    memory_dtype: Annotated[Literal["int8", "bf16", "fp32"], typer.Option(help="Precision of those states.")] = "int8",
    template: Annotated[
        Literal["rankmamba", "rankmamba-code", "ssm-rerankers", "pair"] | None,
        typer.Option(help="How a pair is written: as in a paper, or as the tokenizer does; default: the model's own."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cut documents so that they and the query keep to this many tokens; the number cut is reported."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Take shard I of N of the run's queries (I from 1), and write OUT-0000I-of-0000N."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Order documents by how well they answer a query: one QUERY over DOCUMENTS, or --queries, --corpus, --run and --to.

    Each document is read once, whatever the number of queries. Stopped work goes on where it was when the same command
    is run again.
    """
    from runnel.commands import rerank as command

    many = {"--queries": queries, "--corpus": corpus, "--run": candidates, "--to": to}
    if query is not None and documents is not None and not any([*many.values(), shard]):
        return command.one(
            query,
            documents,
            model=model,
            dtype=IN_FULL[dtype],
            top_k=top_k,
            template=template,
            max_tokens=max_tokens,
            as_json=as_json,
        )
    missing = [name for name, value in many.items() if value is None]
    if query is not None or missing:
        raise typer.BadParameter(
            f"give QUERY and DOCUMENTS, or all of {', '.join(many)}"
            + (f"; {', '.join(missing)} missing" if query is None else "")
        )
    return command.many(
        str(queries),
        str(corpus),
        str(candidates),
        str(to),
        model=model,
        dtype=IN_FULL[dtype],
        top_k=top_k,
        depth=depth,
        memory=memory,
        memory_dtype=memory_dtype,
        template=template,
        max_tokens=max_tokens,
        shard=shard,
        as_json=as_json,
    )
