"""`runnel rerank`: rank documents for one query or for a file of queries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from runnel.commands.display import (
    DTYPES,
    Dtype,
    Json,
    Meter,
    Model,
    note_compiling,
    print_json,
    print_text,
    refuse,
    refuse_others,
    say,
    stdout_console,
)
from runnel.commands.find import expect_query_first
from runnel.commands.rows import Shard, read_texts
from runnel.commands.runs import finish_run, lines_of, say_resumed
from runnel.errors import InputError, counted
from runnel.files import file_digest
from runnel.journal import Journal, Row
from runnel.records import Hit
from runnel.text.trec import read_run

if TYPE_CHECKING:
    from runnel.models.memory import Memory
    from runnel.models.reranker import Reranker

_SHOWN = 160  # characters of a document on the terminal

Documents = Annotated[
    str | None,
    typer.Argument(
        metavar="DOCUMENTS",
        help="... and the documents to rank: jsonl, csv, tsv or txt; - is stdin.",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", "-k", min=1, help="Documents to keep for each query (default: all)."),
]
Depth = Annotated[
    int | None,
    typer.Option(min=1, help="Candidates to take from the run for each query (default: all)."),
]
MemoryFolder = Annotated[
    str | None,
    typer.Option(help="Folder to keep what is remembered of documents (default: in RAM)."),
]
MemoryDtype = Annotated[
    Literal["int8", "bf16", "fp32"],
    typer.Option(help="Precision of a recurrent model's states in it."),
]
Template = Annotated[
    str | None,
    typer.Option(
        help=(
            "Pair template: rankmamba, rankmamba-code, ssm-rerankers or pair (default: the model's"
            " own)."
        )
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut documents to fit this many tokens with the query.")
]
ShardOf = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Take shard I of N of the queries; write OUT-0000I-of-0000N."),
]


def rerank(
    context: typer.Context,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="One query ...")] = None,
    documents: Documents = None,
    *,
    model: Model = "pocket",
    dtype: Dtype = "auto",
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
    top_k: TopK = None,
    depth: Depth = None,
    max_tokens: MaxTokens = None,
    shard: ShardOf = None,
    memory: MemoryFolder = None,
    memory_dtype: MemoryDtype = "int8",
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Order documents by how well they answer a query: one QUERY over DOCUMENTS, or --queries,
    --corpus, --run and --to.

    Prints the documents, best first; of many queries, writes a TREC run.
    Example: runnel rerank "when does the museum open" texts.jsonl

    Each document is read once, whatever the number of queries. Interrupted work resumes when you
    repeat the command.
    """
    if query is not None and documents is not None:
        refuse_others(context, "QUERY", _rank_one)
        return _rank_one(query, documents, model, dtype, top_k, template, max_tokens, as_json)
    files = {"--queries": queries, "--corpus": corpus, "--run": run, "--to": to}
    missing = (
        "DOCUMENTS"
        if query is not None
        else ", ".join(name for name, value in files.items() if value is None)
    )
    refuse({missing: missing}, f"missing; give QUERY and DOCUMENTS, or all of {', '.join(files)}")
    if memory is not None and max_tokens is not None:
        raise InputError("documents are remembered whole: give --memory or --max-tokens, not both")
    part = None if shard is None else Shard.parse(shard)
    *inputs, target = map(str, files.values())
    out = Path(target) if part is None else part.output_path(Path(target))
    task = _read_task(inputs[0], inputs[1], inputs[2], depth, part)
    settings: dict[str, object] = {
        "model": model,
        **{
            name: file_digest(path)
            for name, path in zip(("queries", "corpus", "run"), inputs, strict=True)
        },
        "top_k": top_k,
        "depth": depth,
        "memory_dtype": memory_dtype,
        "template": template,
        "max_tokens": max_tokens,
        "shard": shard,
    }
    with Journal(out, settings) as journal:  # it compares the settings before the model is loaded
        reranker = _load(model, dtype, template)
        about = journal.begin(fingerprint=reranker.model.fingerprint())
        if about is not None:
            say(f"note: {out} is finished already")
        else:
            about = rank_all(journal, task, reranker, (memory, memory_dtype), top_k, max_tokens)
    (
        print_json({"out": str(out), **about})
        if as_json
        else print_text(f"{out}: {counted(about['count'], 'query')}")
    )
    return 0


def _rank_one(
    query: str,
    documents: str,
    model: str,
    dtype: str,
    top_k: int | None,
    template: str | None,
    max_tokens: int | None,
    as_json: bool,
) -> int:
    expect_query_first("rerank", query, [documents])
    rows = read_texts(documents)
    hits: list[Hit] = []
    if rows:
        reranker = _load(model, dtype, template)
        with Meter("reading") as meter:
            hits = reranker.rank(query, rows, top_k, progress=meter, max_tokens=max_tokens)
        _report_cut(reranker.truncated, reranker.pair_limit(max_tokens))
    else:
        say(f"note: {documents} has no documents")
    if as_json:
        found = [{"rank": h.rank, "id": h.id, "score": h.score, "text": h.text} for h in hits]
        print_json({"query": query, "model": model, "hits": found})
        return 0
    console = stdout_console()
    for hit in hits:
        text = " ".join((hit.text or "").split())
        short = text if len(text) <= _SHOWN else text[:_SHOWN].rsplit(" ", 1)[0] + " ..."
        console.print(f"{hit.rank:>3}. {hit.id}", style="bold")
        console.print(f"     {short}", soft_wrap=True)
    return 0


class Candidates(NamedTuple):
    """Texts of the queries and candidates of each, by id, and what reads the
    texts of candidates.
    """

    queries: Mapping[str, str]
    ids: Mapping[str, Sequence[str]]
    texts: Callable[[Mapping[str, Sequence[str]]], dict[str, str]]


def rank_all(
    journal: Journal,
    task: Candidates,
    reranker: Reranker,
    memory: tuple[str | None, str],
    top_k: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Rank the candidates of each query that is not ranked yet, and write OUT; `memory` is its
    folder and dtype.
    """
    from runnel.request import TokenCount

    say_resumed(journal, "query")
    done = {row.key for row in journal.rows()}
    left = {query: ids for query, ids in task.ids.items() if query not in done}
    texts = task.texts(left)
    remembered: Memory | None = None
    truncated = 0
    with Meter("reading") as meter:
        count = TokenCount(meter)
        # `remember` says why it cannot
        if max_tokens is None and (reranker.remembers or memory[0] is not None):
            remembered = reranker.remember(texts, *memory, progress=count.part())
            meter.label = "ranking"
        for query, ids in left.items():
            documents = (
                {name: texts[name] for name in ids}
                if remembered is None
                else remembered.select(ids)
            )
            hits = reranker.rank(
                task.queries[query], documents, top_k, progress=count.part(), max_tokens=max_tokens
            )
            truncated += reranker.truncated
            journal.add(Row(query, lines_of(query, ((hit.id, hit.score) for hit in hits))))
    _report_cut(truncated, reranker.pair_limit(max_tokens))
    return finish_run(journal, {"count": len(task.ids)})


def _read_task(
    queries: str, corpus: str, run: str, depth: int | None, part: Shard | None
) -> Candidates:
    """Read queries and their candidates; a shard has the queries whose first candidate is in its
    part of all candidates.
    """
    asked, candidates = read_texts(queries), read_run(run, depth)
    _expect_texts(queries, candidates, asked)
    if part is not None:
        start, end = part.of(sum(map(len, candidates.values())))
        first = itertools.accumulate(map(len, candidates.values()), initial=0)
        candidates = {
            query: ids
            for at, (query, ids) in zip(first, candidates.items(), strict=False)
            if start <= at < end
        }
    return Candidates(asked, candidates, partial(_texts, corpus))


def _texts(corpus: str, candidates: Mapping[str, Sequence[str]]) -> dict[str, str]:
    wanted = {name for ids in candidates.values() for name in ids}
    texts = read_texts(corpus, wanted)
    _expect_texts(corpus, wanted, texts)
    return texts


def _expect_texts(file: str, wanted: Collection[str], texts: Collection[str]) -> None:
    if missing := sorted(name for name in wanted if name not in texts):
        count = f"{len(missing):,} of {len(wanted):,} ids of the run"
        raise InputError(
            f"{file} lacks {count}, the first is {missing[0]!r}; give the file that the run was"
            " made from"
        )


def _report_cut(count: int, max_tokens: int | None) -> None:
    if count:
        say(
            f"warning: cut {counted(count, 'document')}: query and document together have at most"
            f" {max_tokens} tokens"
        )


def _load(model: str, dtype: str, template: str | None) -> Reranker:
    note_compiling()
    from runnel.models.reranker import Reranker

    return Reranker.load(model, dtype=DTYPES[dtype], template=template)
