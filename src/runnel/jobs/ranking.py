"""The candidates of many queries, ranked query by query into a TREC run: `read_candidates` reads
them, `rank_all` ranks them, and `rank_into` does so for `runnel rerank`.

OUT is the run, OUT.json its settings and facts; the work resumes (`Journal`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.errors import InputError, counted
from runnel.jobs.progress import notify, open_progress
from runnel.jobs.rows import Shard, read_texts
from runnel.jobs.runs import finish_run, lines_of, note_resumed
from runnel.journal import Journal, Row
from runnel.text.trec import read_run

if TYPE_CHECKING:
    from runnel.models.memory import Memory
    from runnel.models.reranker import Reranker


class Candidates(NamedTuple):
    """The candidates of queries.

    Attributes:
        queries: the texts of the queries, by id.
        ids: the ids of each query's candidates, by the id of the query.
        read: reads the texts of such candidates, by id.
    """

    queries: Mapping[str, str]
    ids: Mapping[str, Sequence[str]]
    read: Callable[[Mapping[str, Sequence[str]]], Mapping[str, str]]


def read_candidates(
    queries: str, corpus: str, run: str, depth: int | None, shard: Shard | None
) -> Candidates:
    """Read queries and their candidates; a shard has the queries whose first candidate is in its
    part of all candidates. With 100 candidates of each query, the second of two shards begins at
    the first query whose candidates begin in the second half of the run.
    """
    query_texts = read_texts(queries)
    candidates = read_run(run, depth)
    _expect_texts(queries, candidates, query_texts)
    if shard is not None:
        start, end = shard.of(sum(map(len, candidates.values())))
        first = itertools.accumulate(map(len, candidates.values()), initial=0)
        candidates = {
            query: ids
            for at, (query, ids) in zip(first, candidates.items(), strict=False)
            if start <= at < end
        }
    return Candidates(query_texts, candidates, partial(_read_documents, corpus))


def rank_into(
    out: Path,
    settings: Mapping[str, object],
    task: Candidates,
    load: Callable[[], Reranker],
    *,
    memory: str | None = None,
    memory_dtype: str = "int8",
    top_k: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Rank the candidates of each query into the run OUT, unless it is finished; return what
    OUT.json says. The arguments are those of `rank_all`.

    The settings are compared with earlier work before `load` loads the model.
    """
    with Journal(out, settings) as journal:
        reranker = load()
        result = journal.begin(fingerprint=reranker.model.fingerprint())
        if result is not None:
            notify(f"note: {out} is finished already")
            return result
        return rank_all(
            journal,
            task,
            reranker,
            memory=memory,
            memory_dtype=memory_dtype,
            top_k=top_k,
            max_tokens=max_tokens,
        )


def rank_all(
    journal: Journal,
    task: Candidates,
    reranker: Reranker,
    *,
    memory: str | None = None,
    memory_dtype: str = "int8",
    remember: bool | None = None,
    pieces: Callable[[str], Iterable[str]] | None = None,
    top_k: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Rank the candidates of each query that is not ranked yet, write OUT, and return what OUT.json
    says.

    Args:
        memory: the folder of documents as the model has read them, their states or vectors; None:
            in RAM.
        remember: whether all candidates are read, and remembered so, before the first ranking.
            False: the candidates of one query are read at a time. None: if nothing is cut, and the
            model can or `memory` is given.
        memory_dtype, top_k, max_tokens: as of `Reranker.remember` and `Reranker.rank`.
        pieces: cuts a document that is read into pieces, which are ranked as NAME#NUMBER.
    """
    from runnel.request import TokenCount

    # 1. the queries that are not ranked yet, and the texts of their candidates
    note_resumed(journal, "query")
    done = {row.key for row in journal.rows()}
    remaining = {query: ids for query, ids in task.ids.items() if query not in done}
    texts = task.read(remaining)
    remembered: Memory | None = None
    truncated = 0
    with open_progress("reading") as progress:
        count = TokenCount(progress)
        # 2. what is remembered of the candidates; if the model cannot, `Reranker.remember` raises
        if remember is None:
            remember = max_tokens is None and (reranker.remembers or memory is not None)
        if remember:
            remembered = reranker.remember(texts, memory, memory_dtype, progress=count.part())
            progress.label = "ranking"
        # 3. a ranking for each query
        for query, ids in remaining.items():
            documents: Mapping[str, str] | Memory
            if remembered is not None:
                documents = remembered.select(ids)
            elif pieces is None:
                documents = {name: texts[name] for name in ids}
            else:
                cut = {name: pieces(texts[name]) for name in ids}
                documents = {f"{name}#{i}": t for name in ids for i, t in enumerate(cut[name])}
            hits = reranker.rank(
                task.queries[query], documents, top_k, progress=count.part(), max_tokens=max_tokens
            )
            truncated += reranker.truncated
            journal.add(Row(query, lines_of(query, ((hit.id, hit.score) for hit in hits))))
    note_cut(truncated, reranker.model.text_limit(max_tokens))
    return finish_run(journal, {"count": len(task.ids)})


def note_cut(count: int, max_tokens: int | None) -> None:
    """Report how many documents were cut to fit with the query."""
    if count:
        notify(
            f"warning: cut {counted(count, 'document')}: query and document together have at most"
            f" {max_tokens} tokens"
        )


def _read_documents(corpus: str, candidates: Mapping[str, Sequence[str]]) -> dict[str, str]:
    names = {name for ids in candidates.values() for name in ids}
    texts = read_texts(corpus, names)
    _expect_texts(corpus, names, texts)
    return texts


def _expect_texts(file: str, names: Collection[str], texts: Collection[str]) -> None:
    if missing := sorted(name for name in names if name not in texts):
        raise InputError(
            f"{file} lacks {len(missing):,} of {len(names):,} ids of the run, the first is"
            f" {missing[0]!r}; give the file that the run was made from"
        )
