"""`runnel rerank`: rank documents for one query or for a file of queries.

One query has a form of its own (`_rank_one`), which prints; many queries have candidates in a TREC
run, and their rankings are written as a run (`jobs/ranking.py`).
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runnel.commands import display, find, parameters
from runnel.errors import InputError, counted
from runnel.files import file_digest
from runnel.jobs.loading import DTYPES
from runnel.jobs.ranking import note_cut, rank_into, read_candidates
from runnel.jobs.rows import Shard, read_texts
from runnel.records import Hit

if TYPE_CHECKING:
    from runnel.models.reranker import Reranker

_SHOWN = 160  # characters of a document on the terminal


def rerank(
    context: typer.Context,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="One query ...")] = None,
    documents: Annotated[
        str | None,
        typer.Argument(
            metavar="DOCUMENTS",
            help="... and the documents to rank: jsonl, csv, tsv or txt; - is stdin.",
        ),
    ] = None,
    *,
    model: parameters.Model = "pocket",
    dtype: parameters.Dtype = "auto",
    queries: Annotated[
        str | None, typer.Option(help="Or many queries: jsonl, csv or tsv (id, text).")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Documents of the candidates: jsonl, csv or tsv (id, text).")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="TREC run with the candidates of each query.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="TREC run to write.")] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", "-k", min=1, help="Documents to keep for each query (default: all)."
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=1, help="Candidates to take from the run for each query (default: all)."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cut documents to fit this many tokens with the query."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Take shard I of N of the queries; write OUT-0000I-of-0000N."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Folder to keep documents as the model has read them (default: in RAM)."),
    ] = None,
    memory_dtype: Annotated[
        Literal["int8", "bf16", "fp32"],
        typer.Option(help="Precision of a recurrent model's states in it."),
    ] = "int8",
    template: Annotated[
        str | None,
        typer.Option(
            help=(
                "Pair template: rankmamba, rankmamba-code, ssm-rerankers or pair (default: the"
                " model's own)."
            )
        ),
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Order DOCUMENTS by how well they answer QUERY; or those of --run for --queries.

    Prints the documents, best first; of many queries, writes a TREC run.
    Example: runnel rerank "when does the museum open" texts.jsonl

    Each document is read once, whatever the number of queries. Interrupted work resumes when you
    repeat the command.
    """
    # 1. one query over documents has a form of its own
    if query is not None and documents is not None:
        parameters.refuse_others(context, "QUERY", _rank_one)
        return _rank_one(
            query,
            documents,
            model=model,
            dtype=dtype,
            top_k=top_k,
            template=template,
            max_tokens=max_tokens,
            as_json=as_json,
        )
    # 2. the candidates of many queries, and the settings that their ranking depends on
    files = {"--queries": queries, "--corpus": corpus, "--run": run, "--to": to}
    missing = ", ".join(name for name, value in files.items() if value is None)
    if query is not None:
        missing = "DOCUMENTS"
    parameters.refuse(
        {f"{missing} missing; give QUERY and DOCUMENTS, or all of {', '.join(files)}": missing}
    )
    if memory is not None and max_tokens is not None:
        raise InputError("documents are remembered whole: give --memory or --max-tokens, not both")
    part = None if shard is None else Shard.parse(shard)
    *inputs, target = map(str, files.values())
    out = Path(target) if part is None else part.output_path(Path(target))
    task = read_candidates(inputs[0], inputs[1], inputs[2], depth, part)
    settings: dict[str, object] = {
        "model": model,
        "queries": file_digest(inputs[0]),
        "corpus": file_digest(inputs[1]),
        "run": file_digest(inputs[2]),
        "top_k": top_k,
        "depth": depth,
        "memory_dtype": memory_dtype,
        "template": template,
        "max_tokens": max_tokens,
        "shard": shard,
    }
    # 3. a run
    result = rank_into(
        out,
        settings,
        task,
        partial(_load, model, dtype, template),
        memory=memory,
        memory_dtype=memory_dtype,
        top_k=top_k,
        max_tokens=max_tokens,
    )
    # 4. what was written
    display.print_facts(
        as_json, {"out": str(out), **result}, f"{out}: {counted(result['count'], 'query')}"
    )
    return 0


def _rank_one(
    query: str,
    documents: str,
    *,
    model: str,
    dtype: str,
    top_k: int | None,
    template: str | None,
    max_tokens: int | None,
    as_json: bool,
) -> int:
    find.expect_query_first("rerank", query, [documents])
    texts = read_texts(documents)
    hits: list[Hit] = []
    if texts:
        reranker = _load(model, dtype, template)
        with display.Meter("reading") as meter:
            hits = reranker.rank(query, texts, top_k, progress=meter, max_tokens=max_tokens)
        note_cut(reranker.truncated, reranker.model.text_limit(max_tokens))
    else:
        display.say(f"note: {documents} has no documents")
    if as_json:
        display.print_json(
            {
                "query": query,
                "model": model,
                "hits": [
                    {"rank": h.rank, "id": h.id, "score": h.score, "text": h.text} for h in hits
                ],
            }
        )
        return 0
    console = display.stdout_console()
    for hit in hits:
        text = " ".join((hit.text or "").split())
        short = text if len(text) <= _SHOWN else text[:_SHOWN].rsplit(" ", 1)[0] + " ..."
        console.print(f"{hit.rank:>3}. {hit.id}", style="bold")
        console.print(f"     {short}", soft_wrap=True)
    return 0


def _load(model: str, dtype: str, template: str | None) -> "Reranker":
    from runnel.models.reranker import Reranker

    return Reranker.load(model, dtype=DTYPES[dtype], template=template)
