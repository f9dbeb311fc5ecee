"""`runnel rerank`: documents in the order in which they answer a query, for one query or a file of them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say, stdout_console
from runnel.commands.resume import Output, appending, file_digest
from runnel.commands.rows import read_texts
from runnel.errors import InputError
from runnel.files import replacing
from runnel.records import Hit
from runnel.text.shards import Shard, byte_range
from runnel.text.trec import read_run

if TYPE_CHECKING:
    from runnel.models.memory import Memory
    from runnel.models.reranker import Reranker
    from runnel.models.sentence_vectors import SentenceMemory

_SHOWN = 160  # characters of a document on the terminal


def one(
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
    """Print the documents of a file, best first."""
    rows = read_texts(documents)
    hits: list[Hit] = []
    if rows:
        reranker = _load(model, dtype, template)
        with Meter("reading") as meter:
            hits = reranker.rank(query, rows, top_k, progress=meter.add, max_tokens=max_tokens)
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
        console.print(f"{hit.rank:>3}. {hit.id}  {hit.score:.2f}", style="bold")
        console.print(f"     {short}", soft_wrap=True)
    return 0


def many(
    queries: str,
    corpus: str,
    run: str,
    to: str,
    *,
    model: str,
    dtype: str,
    top_k: int | None,
    depth: int | None,
    memory: str | None,
    memory_dtype: str,
    template: str | None,
    max_tokens: int | None,
    shard: str | None,
    as_json: bool,
) -> int:
    """Rerank the candidates of every query of a TREC run, or of a shard of them, into a new run, a query at a time."""
    part_of = None if shard is None else Shard.parse(shard)
    out = Path(to) if part_of is None else part_of.beside(Path(to))
    asked, candidates = _read_task(queries, run, depth)
    if part_of is not None:
        candidates = share(candidates, part_of)
        memory = memory and str(part_of.beside(Path(memory)))  # of its own candidates
    if memory is not None and max_tokens is not None:
        raise InputError("documents are remembered whole: give --memory or --max-tokens, not both")
    settings: dict[str, object] = {
        "model": model,
        "queries": file_digest(queries),
        "corpus": file_digest(corpus),
        "run": file_digest(run),
        "top_k": top_k,
        "depth": depth,
        "memory_dtype": memory_dtype,
        "template": template,
        "max_tokens": max_tokens,
        "shard": shard,
    }
    with Output(out) as output:
        output.check(settings)  # before the model is loaded, which alone knows its fingerprint
        reranker = _load(model, dtype, template)
        settings["fingerprint"] = reranker.model.backbone.fingerprint()
        facts = output.begin(settings)
        if facts is not None:
            say(f"note: {out} is finished already")
        else:
            (part,) = output.parts
            done = _finished_queries(part)
            if done:
                say(f"note: going on after {len(done):,} queries of an earlier run")
            left = {query: ids for query, ids in candidates.items() if query not in done}
            texts = _texts(corpus, candidates)
            with Meter("reading") as meter:
                needed = texts if memory else _blocks_with(left, texts, candidates)
                ranker = _Ranker(reranker, needed, memory, memory_dtype, max_tokens, meter)
                _append_rankings(part, ranker, asked, left, top_k)
            _report_cut(ranker.truncated, reranker.pair_limit(max_tokens))
            with part.open("rb") as ranked, replacing(out) as new, new.open("wb") as file:
                shutil.copyfileobj(ranked, file)
            facts = output.end({"count": len(candidates)})
    if as_json:
        print_json({"out": str(out), **facts})
    else:
        print_text(f"{out}: {facts['count']:,} queries")
    return 0


class _Ranker:
    """Ranks candidates from remembered documents; from their texts where they are cut or the model cannot remember them."""

    def __init__(
        self,
        reranker: Reranker,
        texts: Mapping[str, str],
        folder: str | None,
        dtype: str,
        max_tokens: int | None,
        meter: Meter,
    ) -> None:
        self._reranker, self._texts, self._meter, self._max_tokens = reranker, texts, meter, max_tokens
        self._memory: Memory | SentenceMemory | None = None
        self.truncated = 0
        if max_tokens is None and (reranker.remembers or folder is not None):  # asked for in vain, it is an error that says why
            self._memory = reranker.remember(texts, folder, dtype, progress=meter.add)
            meter.label = "ranking"

    def rank(self, query: str, ids: Sequence[str], top_k: int | None) -> list[Hit]:
        documents = {name: self._texts[name] for name in ids} if self._memory is None else self._memory.select(ids)
        hits = self._reranker.rank(query, documents, top_k, progress=self._meter.add, max_tokens=self._max_tokens)
        self.truncated += self._reranker.truncated
        return hits


def _read_task(queries: str, run: str, depth: int | None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Query id -> text, and query id -> candidates."""
    asked = read_texts(queries)
    candidates = read_run(run, depth)
    strange = next((query for query in candidates if query not in asked), None)
    if strange is not None:
        raise InputError(
            f"{run} has candidates for the query {strange!r}, which is not in {queries}; give the queries of this run"
        )
    return asked, candidates


def share(candidates: Mapping[str, list[str]], shard: Shard) -> dict[str, list[str]]:
    """The queries of a shard, in their order: those whose first candidate lies in its part of all of them."""
    start, end = byte_range(sum(map(len, candidates.values())), shard)
    first = itertools.accumulate(map(len, candidates.values()), initial=0)
    return {query: ids for at, (query, ids) in zip(first, candidates.items(), strict=False) if start <= at < end}


def _append_rankings(
    part: Path, ranker: _Ranker, asked: Mapping[str, str], candidates: Mapping[str, Sequence[str]], top_k: int | None
) -> None:
    """Write the lines of each query when it is ranked."""
    with appending(part) as append:
        for query, ids in candidates.items():
            hits = ranker.rank(asked[query], ids, top_k)
            append("".join(f"{query} Q0 {h.id} {h.rank} {h.score:.6f} runnel\n" for h in hits).encode())


def _texts(corpus: str, candidates: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Texts of the candidates, in the order of the corpus."""
    wanted = {name for ids in candidates.values() for name in ids}
    texts = read_texts(corpus, wanted)
    missing = sorted(wanted - set(texts))
    if missing:
        raise InputError(
            f"{corpus} lacks {len(missing):,} of {len(wanted):,} candidates, the first is {missing[0]!r}; "
            "give the corpus of this run"
        )
    return texts


def _blocks_with(
    left: Mapping[str, Sequence[str]], texts: Mapping[str, str], candidates: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the texts that the queries in `left` need, and all others that are read in one block with them.

    What is remembered of a document depends, in its last bits, on which others are read with it. So blocks are the same in every
    run of the command. They are in the order in which the queries need them: where work was stopped, most that come before
    are not needed again.
    """
    from runnel.models.reranker import BLOCK

    order = list(dict.fromkeys(name for ids in candidates.values() for name in ids))
    wanted = {name for ids in left.values() for name in ids}
    blocks = (order[start : start + BLOCK] for start in range(0, len(order), BLOCK))
    return {name: texts[name] for block in blocks if not wanted.isdisjoint(block) for name in block}


def _finished_queries(part: Path) -> set[str]:
    """Queries already ranked in the part file. The last one may be incomplete: it is cut off and done again."""
    if not part.exists():
        return set()
    done: dict[str, int] = {}  # query -> where it starts
    at = 0
    with part.open("rb") as file:
        for line in file:
            done.setdefault(line.split(b" ", 1)[0].decode(), at)
            at += len(line)
    if done:
        last = list(done)[-1]
        os.truncate(part, done.pop(last))
    return set(done)


def _report_cut(count: int, max_tokens: int | None) -> None:
    if count:
        say(f"warning: {count:,} documents were cut so that they and the query keep to {max_tokens} tokens")


def _load(model: str, dtype: str, template: str | None) -> Reranker:
    note_compiling()
    from runnel.models.reranker import Reranker

    return Reranker.load(model, dtype=dtype, template=template)
