"""Commands that read documents and find in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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
    unit: Annotated[
        Literal["sentence", "clauses", "paragraph"] | None,
        typer.Option(help="What is scored and shown (default: what the model was trained on).", show_default=False),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of text files; default: detected, and told where that was a guess.")
    ] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Keep what is read: later questions to these files read nothing.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show the sentences of FILEs that answer QUERY, with their place. One pass over each file, however long."""
    from runnel.commands.find import run

    return run(
        query,
        files,
        model=model,
        dtype=IN_FULL[dtype],
        top_k=top_k,
        context=context,
        unit=unit,
        encoding=encoding,
        remember=remember,
        as_json=as_json,
    )


# ---- runnel index ----------------------------------------------------------------------------------------------------

Paths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="Files and folders: txt, md, html, pdf, docx, epub, jsonl, csv, tsv.")
]
Place = Annotated[str, typer.Option(help="Folder or URI of the index, made if it is not there; with --shard, folder of shards.")]
Reads = Annotated[
    str | None, typer.Option("--model", "-m", help="Model that reads the documents; default pocket.", show_default=False)
]
Fields = Annotated[
    list[str] | None, typer.Option("--field", metavar="NAME:TYPE", help="Metadata to filter by, e.g. kind:str. For a new index.")
]
PassageTokens = Annotated[
    int | None,
    typer.Option(min=8, help="Most tokens of a passage; default: the model's, else 256. For a new index.", show_default=False),
]
Remember = Annotated[
    bool, typer.Option("--remember", help="Keep recurrent models' states of documents for reranking. For a new index.")
]
KeepMissing = Annotated[bool, typer.Option("--keep-missing", help="Keep documents whose files are gone.")]
ShardOf = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Read shard I of N only (I from 1), into a folder of its own in the folder --to; with --ray also I-J/N.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Make the shards side by side on Ray: local, auto (the cluster that this machine belongs to) or an address.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="With --ray: processes; default as many as there is room for.", show_default=False)
]
WorkerCpus = Annotated[int | None, typer.Option(min=1, help="With --ray: cores of each; default 1.", show_default=False)]
WorkerGpus = Annotated[
    float | None, typer.Option(min=0, help="With --ray: GPUs of each, 0.5 for two on one; default 0.", show_default=False)
]
Shards = Annotated[str | None, typer.Option(metavar="FOLDER", help="Take in the finished shards of a folder instead of PATHs.")]
Check = Annotated[bool, typer.Option("--check", help="Only verify what the index at --to stores; exit code 1 if it is damaged.")]
Incomplete = Annotated[bool, typer.Option("--incomplete", help="With --shards: even if some are missing.")]


@command
def index(
    to: Place,
    paths: Paths = None,
    model: Reads = None,
    fields: Fields = None,
    passage_tokens: PassageTokens = None,
    remember: Remember = False,
    keep_missing: KeepMissing = False,
    shard: ShardOf = None,
    ray: Ray = None,
    workers: Workers = None,
    worker_cpus: WorkerCpus = None,
    worker_gpus: WorkerGpus = None,
    shards: Shards = None,
    incomplete: Incomplete = False,
    check: Check = False,
    as_json: Json = False,
) -> int:
    """Make or refresh an index: new and changed files are read, long ones that have grown from where they ended; gone ones are
    taken out. Or, for many machines: read one shard of the files, and later take all shards in.
    """
    from runnel.commands import index as command

    made = {"--field": fields, "--passage-tokens": passage_tokens, "--remember": remember}
    on_ray = {"--workers": workers, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}
    kept = {"--keep-missing": keep_missing}
    if check:
        read = {"PATH": paths, "--shard": shard, "--shards": shards, "--ray": ray, "--incomplete": incomplete, "--model": model}
        _refuse({**read, **made, **on_ray, **kept}, "cannot be given with --check")
        return command.run_check(to, as_json=as_json)
    if shards is not None:
        _refuse({"PATH": paths, "--shard": shard, "--ray": ray, **made, **on_ray, **kept}, "cannot be given with --shards")
        return command.run_shards(shards, to=to, model=model, incomplete=incomplete, as_json=as_json)
    _refuse({"--incomplete": incomplete}, "needs --shards")
    if not paths:
        raise typer.BadParameter("give a PATH to read, or --shards FOLDER to take shards in")
    options: Any = {"model": model, "fields": fields or [], "passage_tokens": passage_tokens, "remember": remember}
    options |= {"to": to, "as_json": as_json}
    if ray is None:
        _refuse(on_ray, "needs --ray")
    if shard is None:
        _refuse({"--ray": ray}, "needs --shard, e.g. --shard 1-64/64")
        return command.run(paths, prune=not keep_missing, **options)
    _refuse(kept, "cannot be given with --shard")
    if ray is None:
        return command.run_shard(paths, shard=shard, **options)
    from runnel.commands import index_ray

    options |= {"workers": workers, "worker_cpus": worker_cpus or 1, "worker_gpus": worker_gpus or 0.0}
    return index_ray.run(paths, shard=shard, ray=ray, **options)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Options that would have no effect."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(f"{name} {why}")


@command
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked, as a question or as words.", show_default=False)],
    place: Annotated[str, typer.Option("--in", metavar="DIR", help="Folder or URI of the index.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Documents to show.")] = 10,
    rerank: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to rerank; default 50 if the index remembers them, else none.", show_default=False),
    ] = None,
    read: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to show sentences of; default: all remembered, else 5.", show_default=False),
    ] = None,
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
