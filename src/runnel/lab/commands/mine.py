"""`runnel lab mine`: training examples with hard negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say
from runnel.commands.embed import embed_corpus
from runnel.commands.options import Bm25Options, Json, PromptOptions, given
from runnel.commands.runs import say_resumed
from runnel.errors import InputError, counted
from runnel.files import digest, file_digest, sibling, write_jsonl
from runnel.journal import Journal, Row
from runnel.records import Document
from runnel.text.trec import read_run

if TYPE_CHECKING:
    import numpy as np

    from runnel.lab.training.candidates import Search
    from runnel.lab.training.corpora import Texts
    from runnel.lab.training.data import Dropped, Triple
    from runnel.lab.training.mining import Mined, Mining, NegativeJudge
    from runnel.models.embedder import Embedder


@dataclass(frozen=True)
class DrawingOptions:
    """How many negatives are drawn, from where, and which candidates are rejected."""

    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Negatives to draw for each query.")] = 7
    ranks: Annotated[str, typer.Option(metavar="FIRST-LAST", help="Ranks to draw from, uniformly.")] = "1-100"
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws others.")] = 0
    max_score: Annotated[float | None, typer.Option(help="Reject candidates that score higher, by embedder.")] = None
    margin: Annotated[float | None, typer.Option(help="Reject candidates that score above the positive minus this.")] = None
    relative_margin: Annotated[
        float | None, typer.Option(help="Reject candidates that score above the positive minus this share of it.")
    ] = None

    def mining(self) -> Mining:
        """Return the settings; raises InputError for numbers that are out of range."""
        from runnel.lab.training.mining import Mining

        first, dash, last = self.ranks.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()):
            raise InputError(f"--ranks must be FIRST-LAST, like 1-100, got {self.ranks!r}")
        ranks = int(first), int(last)
        return Mining(self.number, ranks, self.seed, self.max_score, self.margin, self.relative_margin)


@dataclass(frozen=True)
class DataOptions:
    """What the examples are."""

    exclude: Annotated[
        list[str] | None, typer.Option(help="Test set, a file or folder, to exclude from training; may be repeated.")
    ] = None
    corpus: Annotated[str | None, typer.Option(help="Documents to draw from: jsonl or tsv.")] = None
    queries: Annotated[str | None, typer.Option(help="Texts of the query ids in DATA: jsonl or tsv.")] = None


@dataclass(frozen=True)
class SearchOptions:
    """What searches."""

    model: Annotated[str | None, typer.Option("--model", "-m", help="bm25, or an embedder.", show_default="bm25")] = None
    run: Annotated[str | None, typer.Option(help="Instead of a search: a run (TREC, MS MARCO) of these queries.")] = None

    @property
    def dense(self) -> bool:
        """Whether an embedder searches."""
        return self.model not in (None, "bm25")


def mine(
    data: Annotated[str, typer.Argument(help="Queries with positives: BEIR folder, qrels, CSV of pairs, jsonl, ...")],
    to: Annotated[str, typer.Option(help="OUT.jsonl, which training reads.")],
    search: SearchOptions = SearchOptions(),
    drawing: DrawingOptions = DrawingOptions(),
    judge: Annotated[str | None, typer.Option(help="Embedder for these scores (default: the one that searches).")] = None,
    bm25: Bm25Options = Bm25Options(),
    prompts: PromptOptions = PromptOptions(),
    source: DataOptions = DataOptions(),
    as_json: Json = False,
) -> int:
    """Find hard negatives: documents that a search finds for a query although they do not answer it.

    Copies of a positive are never used. Interrupted work resumes when you repeat the command.
    """
    mining = drawing.mining()
    scorers = _Scorers(search, judge, given(**asdict(bm25)), prompts.by_kind())
    scorers.check(mining)
    facts = _mine(data, source, scorers, mining, Path(to))
    if as_json:
        print_json({"out": to, **facts})
    else:
        print_text(f"{to}: {counted(facts['examples'], 'example')}, {counted(facts['drawn'], 'negative')} drawn")
    return 0


class _Scorers(NamedTuple):
    """What searches and judges. `prompts` replace those of the search, or of a judge without one."""

    search: SearchOptions
    judge: str | None
    bm25: Mapping[str, float]
    prompts: Mapping[str, str]

    def check(self, mining: Mining) -> None:
        """Raise InputError for options that contradict each other or would have no effect."""
        if self.search.run is not None and self.search.model is not None:
            raise InputError("negatives come from a run or from a search: give --run or --model, not both")
        if self.judge is not None and not mining.needs_scores:
            raise InputError("--judge does nothing without --max-score, --margin or --relative-margin; give one of them")
        if mining.needs_scores and self.judge is None and not self.search.dense:
            raise InputError(
                "--max-score, --margin and --relative-margin compare an embedder's scores; give --judge or --model too"
            )
        if self.bm25 and (self.search.dense or self.search.run is not None):
            raise InputError("--k1 and --b are settings of BM25, which does not search here; omit them, or --model and --run")
        if self.prompts and self.judge is None and not self.search.dense:
            raise InputError(
                "--prompt and --document-prompt are put before texts that an embedder reads; give --model or --judge too"
            )


def _mine(data: str, options: DataOptions, scorers: _Scorers, mining: Mining, out: Path) -> dict[str, Any]:
    """Write OUT, or find it finished; return its facts."""
    from runnel.lab.training.candidates import K1, B
    from runnel.lab.training.formats import find_source

    source, by = find_source(data, options.corpus, options.queries), scorers.search
    searcher = _load(by.model, scorers.prompts) if by.dense else None
    judging = searcher if scorers.judge is None else _load(scorers.judge, {} if by.dense else scorers.prompts)
    bm25 = {} if by.dense or by.run is not None else {"k1": K1, "b": B, **scorers.bm25}
    settings: dict[str, object] = {
        "files": [_digest(f) for f in (source.path, source.corpus, source.queries, by.run, *(options.exclude or ()))],
        "model": by.model or (None if by.run else "bm25"),
        "judge": scorers.judge,
        "fingerprints": [e and e.model.fingerprint() for e in (searcher, judging)],
        "prompts": [e and _prompts(e) for e in (searcher, judging)],
        **bm25,
        **asdict(mining),
        "ranks": list(mining.ranks),
    }
    with Journal(out, settings) as journal:
        facts = journal.begin()
        if facts is not None:
            say(f"note: {out} is finished already")
            return facts
        examples = _Examples(data, options)
        pool_from = settings["files"] if source.corpus is None else [_digest(source.corpus)]
        vectors = None
        if searcher is not None:
            made_from = {
                "files": pool_from,
                "fingerprint": searcher.model.fingerprint(),
                "prompt": _prompts(searcher)["document"],
            }
            vectors = embed_corpus(searcher, examples.pool, sibling(out, ".vectors.npy"), made_from)
        ranked = None if by.run is None else read_run(by.run, mining.ranks[1])
        search = _search(examples.pool, ranked, searcher, vectors, bm25)
        judge = None if judging is None else _judge(judging, examples.pool, vectors if judging is searcher else None)
        facts = journal.finish({**examples.facts, **_draw(examples, journal, search, mining, judge)})
        _report(facts, mining.number)
        return facts


class _Examples:
    """The usable examples of the data, read again by each iteration, and the pool of documents to sample from.

    The pool is the corpus if there is one, else every text of the examples, each once.
    """

    def __init__(self, data: str, options: DataOptions) -> None:
        from runnel.lab.training.corpora import Texts, read_corpus
        from runnel.lab.training.data import Dropped
        from runnel.lab.training.decontaminate import Decontaminator
        from runnel.lab.training.formats import find_source

        self._data, self._options = data, options
        path = find_source(data, options.corpus, options.queries).corpus
        self._corpus = None if path is None else Texts(read_corpus(path))  # type: ignore[arg-type]
        self._guard = Decontaminator(options.exclude or ())
        self.pool = self._corpus if self._corpus is not None else Texts(_distinct(iter(self)))
        dropped = Dropped()
        self.total = sum(1 for _ in self._read(dropped))
        self.facts = {"dropped": dict(dropped.counts), "contaminated": dict(self._guard.counts)}
        if not self.total:
            raise InputError(f"{data}: no example is left to mine for ({dropped}; {self._guard})")

    def __iter__(self) -> Iterator[Triple]:
        from runnel.lab.training.data import Dropped

        return self._read(Dropped())

    def _read(self, dropped: Dropped) -> Iterator[Triple]:
        from runnel.lab.training.data import read_triples

        self._guard.counts.clear()
        options = self._options
        triples = read_triples(self._data, corpus=self._corpus, queries=options.queries, dropped=dropped)
        return self._guard.clean(triples)


def _distinct(triples: Iterator[Triple]) -> Iterator[Document]:
    seen: set[str] = set()
    for triple in triples:
        for text in (*triple.positives, *triple.negatives):
            if (key := digest(text)) not in seen:
                seen.add(key)
                yield Document(key, text)


def _search(
    pool: Texts,
    ranked: dict[str, list[str]] | None,
    embedder: Embedder | None,
    vectors: tuple[np.ndarray, np.ndarray] | None,
    bm25: Mapping[str, float],
) -> Search:
    from runnel.lab.training.candidates import bm25_ranker, dense_ranker, run_search, search_by

    if ranked is not None:
        return run_search(ranked, pool)
    if embedder is not None and vectors is not None:
        return search_by(dense_ranker(embedder, *vectors))
    with Meter("indexing", unit="documents") as meter:
        return search_by(bm25_ranker(pool, meter, **bm25))


def _judge(embedder: Embedder, pool: Texts, known: tuple[np.ndarray, np.ndarray] | None) -> NegativeJudge:
    import numpy as np

    from runnel.lab.training.mining import NegativeJudge

    if known is None:
        return NegativeJudge(embedder, pool)
    vectors, places = known
    return NegativeJudge(embedder, vectors=lambda rows: vectors[np.searchsorted(places, rows)])


def _draw(
    examples: _Examples, journal: Journal, search: Search, mining: Mining, judge: NegativeJudge | None
) -> dict[str, object]:
    """Mine for the remaining examples, write OUT, and count."""
    from runnel.lab.training.mining import mine as negatives_of

    say_resumed(journal, "example")
    done = len(journal)
    with Meter("mining", unit="queries") as meter:
        for mined in meter.count(negatives_of(examples, examples.pool, search, mining, judge, start=done), examples.total - done):
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


def _digest(path: object) -> str | None:
    """Return the digest of a file's content; the name of a folder."""
    if path is None:
        return None
    return file_digest(str(path)) if Path(str(path)).is_file() else str(path)


def _load(model: str | None, prompts: Mapping[str, str]) -> Embedder:
    note_compiling()
    from runnel.models.embedder import Embedder

    embedder = Embedder.load(str(model))
    embedder.model.prompts |= prompts
    return embedder


def _prompts(embedder: Embedder) -> dict[str, str]:
    return {name: embedder.model.prompts.get(name, "") for name in ("query", "document")}
