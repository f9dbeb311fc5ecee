"""Write training examples with hard negatives: `mine_negatives` is what `runnel lab mine` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from runnel.commands.display import Meter, note_compiling, say
from runnel.commands.embed import embed_corpus
from runnel.commands.runs import say_resumed
from runnel.errors import InputError
from runnel.files import digest, file_digest, sibling, write_jsonl
from runnel.journal import Journal, Row
from runnel.lab.training.candidates import K1, B, Search, bm25_ranker, dense_ranker, run_search, search_by
from runnel.lab.training.corpora import Texts, read_corpus
from runnel.lab.training.data import Dropped, Triple, read_triples
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.formats import find_source
from runnel.lab.training.mining import Mined, Mining, NegativeJudge, mine
from runnel.models.embedder import Embedder
from runnel.records import Document
from runnel.text.trec import read_run


def mine_negatives(
    data: str,
    to: Path,
    mining: Mining,
    *,
    model: str | None = None,
    run: str | None = None,
    judge: str | None = None,
    bm25: Mapping[str, float] = MappingProxyType({}),
    prompts: Mapping[str, str] = MappingProxyType({}),
    corpus: str | None = None,
    queries: str | None = None,
    exclude: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the examples of `data` with negatives drawn for each to the jsonl file `to`; return settings and counts.

    Args:
        data: queries with positives, in a format of `read_triples`.
        to: also has the vectors of an embedder that searches, next to it; interrupted work resumes.
        mining: how many negatives are drawn, and which candidates are rejected.
        model, run: what searches: "bm25" (None), an embedder, or instead a run of these queries.
        judge: the embedder for the scores that `mining` compares; None: the one that searches.
        bm25: its k1 and b, where it searches.
        prompts: "query" and "document", in place of those of the embedder that searches, else of the judge.
        corpus, queries: documents to draw from, and texts of the query ids in the data, where the data lacks them.
        exclude: test sets, as for `Decontaminator`.

    Raises:
        InputError: arguments contradict each other or have no effect, or no example is left.
    """
    dense = model not in (None, "bm25")
    _expect_effects(mining, run is not None, model is not None, dense, judge is not None, bool(bm25), bool(prompts))
    source = find_source(data, corpus, queries)
    searcher = _load(str(model), prompts) if dense else None
    judging = searcher if judge is None else _load(judge, {} if dense else prompts)
    bm25 = {} if dense or run is not None else {"k1": K1, "b": B, **bm25}
    settings: dict[str, object] = {
        "files": [_digest(f) for f in (source.path, source.corpus, source.queries, run, *exclude)],
        "model": model or (None if run else "bm25"),
        "judge": judge,
        "fingerprints": [e and e.model.fingerprint() for e in (searcher, judging)],
        "prompts": [e and _prompts(e) for e in (searcher, judging)],
        **bm25,
        **asdict(mining),
        "ranks": list(mining.ranks),
    }
    with Journal(to, settings) as journal:
        facts = journal.begin()
        if facts is not None:
            say(f"note: {to} is finished already")
            return facts
        examples = _Examples(data, source.corpus, queries, exclude)
        pool = examples.pool
        if searcher is not None:
            files = settings["files"] if source.corpus is None else [_digest(source.corpus)]
            made_from = {"files": files, "fingerprint": searcher.model.fingerprint(), "prompt": _prompts(searcher)["document"]}
            vectors = embed_corpus(searcher, pool, sibling(to, ".vectors.npy"), made_from)
            search = search_by(dense_ranker(searcher, *vectors))
        elif run is not None:
            search = run_search(read_run(run, mining.ranks[1]), pool)
        else:
            with Meter("indexing", unit="documents") as meter:
                search = search_by(bm25_ranker(pool, meter, **bm25))
        scorer = None if judging is None else NegativeJudge(judging, pool)
        if judging is not None and judging is searcher:  # its vectors are known
            scorer = NegativeJudge(judging, vectors=lambda rows: vectors[0][np.searchsorted(vectors[1], rows)])
        facts = journal.finish({**examples.facts, **_draw(examples, journal, search, mining, scorer)})
    _report(facts, mining.number)
    return facts


def _expect_effects(mining: Mining, run: bool, model: bool, dense: bool, judge: bool, bm25: bool, prompts: bool) -> None:
    """Raise InputError for options that contradict each other or would have no effect, from whether each is given."""
    problems = {
        "negatives come from a run or from a search: give --run or --model, not both": run and model,
        "--judge does nothing without --max-score, --margin or --relative-margin; give one of them":
            judge and not mining.needs_scores,
        "--max-score, --margin and --relative-margin compare an embedder's scores; give --judge or --model too":
            mining.needs_scores and not judge and not dense,
        "--k1 and --b are settings of BM25, which does not search here; omit them, or --model and --run": bm25 and (dense or run),
        "--prompt and --document-prompt are put before texts that an embedder reads; give --model or --judge too":
            prompts and not judge and not dense,
    }  # fmt: skip
    if problem := next((problem for problem, wrong in problems.items() if wrong), None):
        raise InputError(problem)


class _Examples:
    """The usable examples of the data, read again by each iteration, and the pool of documents to sample from.

    The pool is the corpus if there is one, else every text of the examples, each once.
    """

    def __init__(self, data: str, corpus: object, queries: str | None, exclude: Sequence[str]) -> None:
        self._data, self._queries, self._guard = data, queries, Decontaminator(exclude)
        self._corpus = None if corpus is None else Texts(read_corpus(str(corpus)))
        self.pool = self._corpus if self._corpus is not None else Texts(_distinct(iter(self)))
        dropped = Dropped()
        self.total = sum(1 for _ in self._read(dropped))
        self.facts = {"dropped": dict(dropped.counts), "contaminated": dict(self._guard.counts)}
        if not self.total:
            raise InputError(f"{data}: no example is left to mine for ({dropped}; {self._guard})")

    def __iter__(self) -> Iterator[Triple]:
        return self._read(Dropped())

    def _read(self, dropped: Dropped) -> Iterator[Triple]:
        self._guard.counts.clear()
        return self._guard.clean(read_triples(self._data, corpus=self._corpus, queries=self._queries, dropped=dropped))


def _distinct(triples: Iterator[Triple]) -> Iterator[Document]:
    seen: set[str] = set()
    for triple in triples:
        for text in (*triple.positives, *triple.negatives):
            if (key := digest(text)) not in seen:
                seen.add(key)
                yield Document(key, text)


def _draw(
    examples: _Examples, journal: Journal, search: Search, mining: Mining, judge: NegativeJudge | None
) -> dict[str, object]:
    """Mine for the remaining examples, write OUT, and count."""
    say_resumed(journal, "example")
    done = len(journal)
    with Meter("mining", unit="queries") as meter:
        for mined in meter.count(mine(examples, examples.pool, search, mining, judge, start=done), examples.total - done):
            journal.add(Row(len(journal), [_row(mined), len(mined.drawn), mined.refused]))
    refused: Counter[str] = Counter()
    drawn = fewer = 0
    for _, (_, number, reasons), _ in journal.rows():
        refused.update(reasons)
        drawn, fewer = drawn + number, fewer + (number < mining.number)
    write_jsonl(journal.out, (row.value[0] for row in journal.rows()))
    return {"examples": examples.total, "drawn": drawn, "examples_with_fewer": fewer, "refused": dict(refused)}


def _row(mined: Mined) -> dict[str, object]:
    triple = mined.triple
    row: dict[str, object] = {"id": triple.id} if triple.id else {}
    row |= {"prompt": triple.instruction} if triple.instruction else {}
    return row | {"query": triple.query, "pos": triple.positives, "neg": [*triple.negatives, *mined.drawn]}


def _report(facts: Mapping[str, Any], number: int) -> None:
    for name, what in (("dropped", "left out of the data"), ("contaminated", "left out"), ("refused", "candidates refused")):
        if facts[name]:
            say(f"note: {what}: {'; '.join(f'{count:,} {reason}' for reason, count in facts[name].items())}")
    if facts["examples_with_fewer"]:
        say(f"warning: {facts['examples_with_fewer']:,} of {facts['examples']:,} examples got fewer than {number} negatives")


def _digest(path: object) -> object:
    """Return the digest of a file's content; the name of a folder."""
    return file_digest(str(path)) if Path(str(path)).is_file() else path and str(path)


def _load(model: str, prompts: Mapping[str, str]) -> Embedder:
    note_compiling()
    embedder = Embedder.load(model)
    embedder.model.prompts |= prompts
    return embedder


def _prompts(embedder: Embedder) -> dict[str, str]:
    return {name: embedder.model.prompts.get(name, "") for name in ("query", "document")}
