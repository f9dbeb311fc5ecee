"""Commands that read documents and find in them."""

from __future__ import annotations

from typing import Annotated

import typer

from runnel.cli.command import IN_FULL, Dtype, Json, Model, command


@command
def find(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked, as a question or as words.", show_default=False)],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="txt, md, html, pdf, docx, epub; a row each of jsonl, csv, tsv; - is standard input.",
            show_default=False,
        ),
    ],
    model: Model = "pocket",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to show, over all files together.")] = 5,
    dtype: Dtype = "auto",
    context: Annotated[int, typer.Option("--context", "-c", min=0, help="Sentences to show before and after each one.")] = 1,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of text files; default: detected, and told where that was a guess.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Show the sentences of FILEs that answer QUERY, with their place. One pass over each file, however long."""
    from runnel.commands.find import run

    full = IN_FULL[dtype]
    return run(query, files, model=model, dtype=full, top_k=top_k, context=context, encoding=encoding, as_json=as_json)


@command
def index(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files and folders: txt, md, html, pdf, docx, epub, jsonl, csv, tsv.")
    ],
    to: Annotated[str, typer.Option(help="Folder or URI of the index, made if it is not there.", show_default=False)],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model that reads the documents; default pocket.", show_default=False)
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME:TYPE", help="Metadata to filter by, e.g. kind:str. For a new index."),
    ] = None,
    passage_tokens: Annotated[int, typer.Option(min=8, help="The most tokens of a passage. For a new index.")] = 256,
    remember: Annotated[
        bool, typer.Option("--remember", help="Keep documents ready for reranking, 350 KB each. For a new index.")
    ] = False,
    keep_missing: Annotated[bool, typer.Option("--keep-missing", help="Keep documents whose files are gone.")] = False,
    as_json: Json = False,
) -> int:
    """Make or refresh an index: new and changed files are read, long ones that have grown from where they ended; gone ones are
    taken out.
    """
    from runnel.commands.index import run

    return run(
        paths,
        to=to,
        model=model,
        fields=fields or [],
        passage_tokens=passage_tokens,
        remember=remember,
        prune=not keep_missing,
        as_json=as_json,
    )


@command
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked, as a question or as words.", show_default=False)],
    place: Annotated[str, typer.Option("--in", metavar="DIR", help="Folder or URI of the index.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Documents to show.")] = 10,
    rerank: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to rerank; default 50 if the index remembers them, else none.", show_default=False),
    ] = None,
    read: Annotated[int, typer.Option(min=0, help="Of how many of the best documents sentences are shown.")] = 5,
    sentences: Annotated[int, typer.Option("--sentences", "-s", min=0, help="Sentences to show of each of them.")] = 3,
    conditions: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help="Filter, e.g. year>=2020; all must hold.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The index's model, if it has moved.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Show the documents of an index that answer QUERY, by meaning and by words, each with its answering sentences."""
    from runnel.commands.search import run

    return run(
        query,
        place=place,
        model=model,
        top_k=top_k,
        rerank=rerank,
        read=read,
        sentences=sentences,
        conditions=conditions or [],
        as_json=as_json,
    )
