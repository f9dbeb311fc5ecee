"""Find hard negatives: documents that a search returns for a query although they do not answer it.

In: triples, a corpus, and a search or a run. Out: the triples with negatives, as jsonl.

Some results do answer the query but were never judged. Copies of a positive are always refused;
documents that an embedder scores nearly as high as a positive are refused if a margin is set.

In the order of this file: rankers and searches; settings and the judge of candidates; drawing;
`mine_negatives`, which is what `runnel lab mine` does.

N  documents   d  width of the vectors   B  queries at a time
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from runnel.batching import top
from runnel.errors import InputError
from runnel.files import digest, file_digest, sibling, write_jsonl
from runnel.jobs.embedding import embed_corpus
from runnel.jobs.loading import note_compiling
from runnel.jobs.progress import notify, open_progress
from runnel.jobs.runs import note_resumed
from runnel.journal import Journal, Row
from runnel.lab.training.corpus import Texts, read_corpus
from runnel.lab.training.data import Dropped, Triple
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.triples import find_source, read_triples
from runnel.models.embedder import Embedder
from runnel.records import Document
from runnel.request import Progress
from runnel.text.trec import read_run
from runnel.text.words import bm25, numbered_words, words_of

RowSearch = Callable[[Sequence[Triple], int], list[np.ndarray]]
"""Returns for each example the rows of the corpus that its query retrieves, int64, best first, at
most the given number.
"""

Ranker = Callable[[Sequence[str], int], list[tuple[np.ndarray, np.ndarray]]]
"""Returns the same rows for each query, with their scores."""

K1, B = 0.9, 0.4  # the defaults of Anserini, used by the BEIR paper's baselines
_ROWS = 1 << 16  # document vectors in memory at a time
_BLOCK = 256  # queries searched together
_CACHED = 100_000  # cached vectors of candidates, as many queries share candidates
_COPY = 0.9  # least share of common word triples in copies


def search_by(ranker: Ranker) -> RowSearch:
    """Return a search that ranks the queries of examples."""
    return lambda triples, depth: [
        rows for rows, _ in ranker([triple.query for triple in triples], depth)
    ]


def bm25_scorer(
    texts: Iterable[str], *, k1: float = K1, b: float = B
) -> Callable[[str], np.ndarray]:
    """Return a function from a query to the score of each text (n,) float32, 0 without a common
    word.

    It is Lucene's BM25 over the words of `runnel.text.words`: lowercased, without English stop
    words.
    """
    index = bm25().BM25(k1=k1, b=b)
    tokens = numbered_words(texts)
    if not tokens.vocab or not (0 <= k1 < math.inf and 0 <= b <= 1):
        raise InputError(
            f"expected a corpus with words, k1 of at least 0 and b from 0 to 1, got {k1:g} and"
            f" {b:g}"
        )
    index.index(tokens, show_progress=False)
    count = len(tokens.ids)

    def score(query: str) -> np.ndarray:
        (words,) = words_of([query])
        return index.get_scores(words) if words else np.zeros(count, np.float32)

    return score


def bm25_ranker(
    corpus: Texts, progress: Progress = lambda done, total: None, **bm25: float
) -> Ranker:
    """Return a ranker by `bm25_scorer`. Documents that share no word with the query are left out;
    ties go to the earlier row.
    """

    def texts() -> Iterator[str]:
        for done, document in enumerate(corpus, start=1):
            yield document.text
            progress(done, len(corpus))

    score = bm25_scorer(texts(), **bm25)

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        ranked = []
        for scores in map(score, queries):
            best = top(scores, depth)
            best = best[scores[best] > 0]
            ranked.append((best, scores[best]))
        return ranked

    return rank


def dense_ranker(
    embedder: Embedder,
    vectors: np.ndarray,
    rows: np.ndarray,
    combine: np.ufunc = np.maximum,
    max_query_tokens: int | None = None,
) -> Ranker:
    """Return a ranker by exact inner products with the query's vector.

    `vectors` (N, d) are of documents, or of their segments, whose rows (N,) int64 in the corpus
    ascend; `combine` makes one score of those of a row.
    """
    first = np.flatnonzero(np.diff(rows, prepend=-1))  # vector of each document
    starts = np.arange(0, len(rows), _ROWS)
    blocks = np.unique(first[np.searchsorted(first, starts, side="right") - 1])

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        encoded = embedder.encode_query(list(queries), max_tokens=max_query_tokens)  # (B, d)
        scores = np.empty((len(encoded), 0), np.float32)
        places = np.empty((len(encoded), 0), np.int64)
        for start, end in pairwise([*blocks, len(rows)]):
            inside = first[(first >= start) & (first < end)]
            products = encoded @ vectors[start:end].T
            if len(inside) < end - start:
                products = combine.reduceat(products, inside - start, axis=1)
            best = np.stack([top(row, depth) for row in products])
            scores = np.hstack([scores, np.take_along_axis(products, best, 1)])
            places = np.hstack([places, inside[best]])
            best = np.stack([top(row, depth) for row in scores])
            scores = np.take_along_axis(scores, best, 1)
            places = np.take_along_axis(places, best, 1)
        return list(zip(rows[places], scores, strict=True))

    return rank


def run_search(run: Mapping[str, Sequence[str]], corpus: Texts) -> RowSearch:
    """Return a search that looks up an example's id in a run; an id that the
    run lacks has no rows.
    """

    def search(triples: Sequence[Triple], depth: int) -> list[np.ndarray]:
        ranked = []
        for triple in triples:
            names = run.get(triple.id, [])[:depth]
            rows = [row for row in map(corpus.row, names) if row is not None]
            if not triple.id or len(rows) < len(names):
                missing = next((name for name in names if corpus.row(name) is None), None)
                raise InputError(
                    f"query {triple.id!r} ({triple.query[:60]!r}): expected an id, to look up in"
                    f" the run, and its documents in the corpus, which has no {missing!r}; give the"
                    " data and the corpus of this run"
                )
            ranked.append(np.array(rows, dtype=np.int64))
        return ranked

    return search


EMPTY = "empty"
POSITIVE = "a positive or a copy of one"
NEGATIVE = "a copy of another negative"
LIKELY = "scored like a positive"


@dataclass(frozen=True, slots=True)
class Mining:
    """Settings for drawing negatives. Ranks count from 1 with positives; the n-th query's draw
    depends on the seed and n.
    """

    number: int = 7
    ranks: tuple[int, int] = (1, 100)
    seed: int = 0
    max_score: float | None = None
    margin: float | None = None
    relative_margin: float | None = None

    def __post_init__(self) -> None:
        first, last = self.ranks
        if not 0 < self.number <= last - first + 1 or first < 1:
            raise InputError(
                f"{self.number} negatives of ranks {first} to {last}; expected at least 1, and as"
                " many ranks from 1"
            )

    @property
    def needs_scores(self) -> bool:
        return (self.max_score, self.margin, self.relative_margin) != (None, None, None)

    def highest(self, positive: float) -> float:
        """Return the highest score allowed for a negative, given the mean score
        of the positives.
        """
        bars = [np.inf if self.max_score is None else self.max_score]
        if self.margin is not None:
            bars.append(positive - self.margin)
        if self.relative_margin is not None:
            bars.append(positive - self.relative_margin * abs(positive))
        return min(bars)


VectorsOf = Callable[[Sequence[int]], Sequence[np.ndarray] | np.ndarray]  # of rows of the corpus


class NegativeJudge:
    """An embedder that scores candidates, of which it reads each once, unless `vectors` has all."""

    def __init__(self, embedder: Embedder, corpus: Texts, vectors: VectorsOf | None = None) -> None:
        self.embedder = embedder
        self.vectors = vectors or self._encode
        self._corpus = corpus
        self._cached: dict[int, np.ndarray] = {}

    def _encode(self, rows: Sequence[int]) -> list[np.ndarray]:
        if len(self._cached) > _CACHED:
            self._cached.clear()
        if new := [row for row in rows if row not in self._cached]:
            vectors = self.embedder.encode_document([self._corpus.at(row) for row in new])
            self._cached |= zip(new, vectors, strict=True)
        return [self._cached[row] for row in rows]


def mine(
    triples: Iterable[Triple],
    corpus: Texts,
    search: RowSearch,
    mining: Mining,
    judge: NegativeJudge | None = None,
    start: int = 0,
) -> Iterator[Draw]:
    """Draw negatives for each example, in order. An example with too few candidates gets fewer."""
    numbered = itertools.islice(enumerate(triples), start, None)
    while block := list(itertools.islice(numbered, _BLOCK)):
        results = search([triple for _, triple in block], mining.ranks[1])
        draws = [
            Draw(triple, rows, i, corpus, mining)
            for (i, triple), rows in zip(block, results, strict=True)
        ]
        if judge is not None and mining.needs_scores:
            _fill_judged(draws, mining, judge)
        else:
            for draw in draws:
                draw.drawn += [text for _, text in draw.next()]
        yield from draws


def word_triples(text: str) -> frozenset[tuple[str, ...]]:
    """Return the set of three consecutive words, by which copies are recognized; case and
    punctuation do not count.
    """
    words = re.findall(r"\w+", text.casefold()) or [text.strip()]
    if len(words) < 3:
        return frozenset([tuple(words)])
    return frozenset(zip(words, words[1:], words[2:], strict=False))


class Draw:
    """An example with the negatives drawn for it so far, from these rows of the corpus. `refused`
    counts candidates by reason.
    """

    def __init__(
        self, triple: Triple, rows: np.ndarray, index: int, corpus: Texts, mining: Mining
    ) -> None:
        self.triple = triple
        self.drawn: list[str] = []
        self.refused: Counter[str] = Counter()
        self._corpus = corpus
        self._number = mining.number
        within = rows[mining.ranks[0] - 1 :]
        self._rows = iter(np.random.default_rng([mining.seed, index]).permutation(within).tolist())
        self._positives = [word_triples(text) for text in triple.positives]
        self._negatives = [word_triples(text) for text in triple.negatives]

    def next(self) -> list[tuple[int, str]]:
        """Return as many candidates as are missing, or all that are left: (row, text) pairs without
        copies.
        """
        candidates: list[tuple[int, str]] = []
        missing = self._number - len(self.drawn)
        while len(candidates) < missing and (row := next(self._rows, None)) is not None:
            text = self._corpus.at(row)
            triples = word_triples(text)
            if not text.strip():
                self.refused[EMPTY] += 1
            elif any(_are_copies(triples, other) for other in self._positives):
                self.refused[POSITIVE] += 1
            elif any(_are_copies(triples, other) for other in self._negatives):
                self.refused[NEGATIVE] += 1
            else:
                self._negatives.append(triples)
                candidates.append((row, text))
        return candidates


def _fill_judged(draws: list[Draw], mining: Mining, judge: NegativeJudge) -> None:
    """Draw and score until every example has its negatives or no candidates are left."""
    queries = judge.embedder.encode_query([draw.triple.query for draw in draws])  # (B, d)
    positives = [draw.triple.positives for draw in draws]
    vectors = iter(judge.embedder.encode_document([text for texts in positives for text in texts]))
    scores = [
        np.mean([query @ next(vectors) for _ in texts])
        for query, texts in zip(queries, positives, strict=True)
    ]
    bars = [mining.highest(float(score)) for score in scores]
    while proposals := [
        (i, row, text) for i, draw in enumerate(draws) for row, text in draw.next()
    ]:
        rows = sorted({row for _, row, _ in proposals})
        scored = dict(zip(rows, judge.vectors(rows), strict=True))
        for i, row, text in proposals:
            if float(queries[i] @ scored[row]) > bars[i]:
                draws[i].refused[LIKELY] += 1
            else:
                draws[i].drawn.append(text)


def _are_copies(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> bool:
    """Return whether the Jaccard similarity is at least `_COPY`; usually the sizes alone decide."""
    if min(len(a), len(b)) < _COPY * max(len(a), len(b)):
        return False
    common = len(a & b)
    return common >= _COPY * (len(a) + len(b) - common)


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
    """Write the examples of `data` with negatives drawn for each to the jsonl file `to`; return
    settings and counts.

    The arguments are those of `runnel lab mine`: `model` is "bm25" (None) or an embedder that
    searches, `judge` the embedder for the scores that `mining` compares (None: the one that
    searches), and `prompts` are of the one that searches, else of the judge. The vectors of an
    embedder that searches are written next to `to`; interrupted work resumes. Raises InputError if
    arguments contradict each other or have no effect, or no example is left.
    """
    # 1. Refuse options that contradict each other or would have no effect.
    dense = model not in (None, "bm25")
    embeds = dense or judge is not None
    if run is not None and model is not None:
        raise InputError(
            "negatives come from a run or from a search: give --run or --model, not both"
        )
    if judge is not None and not mining.needs_scores:
        raise InputError(
            "--judge does nothing without --max-score, --margin or --relative-margin; give one of"
            " them"
        )
    if mining.needs_scores and not embeds:
        raise InputError(
            "--max-score, --margin and --relative-margin compare an embedder's scores; give --judge"
            " or --model too"
        )
    if bm25 and (dense or run is not None):
        raise InputError(
            "--k1 and --b are settings of BM25, which does not search here; omit them, or --model"
            " and --run"
        )
    if prompts and not embeds:
        raise InputError(
            "--prompt and --document-prompt are put before texts that an embedder reads; give"
            " --model or --judge too"
        )
    # 2. Load the embedders.
    source = find_source(data, corpus, queries)
    searcher = _load_embedder(str(model), prompts) if dense else None
    judging = searcher if judge is None else _load_embedder(judge, {} if dense else prompts)
    # 3. Begin, or resume work with the same settings.
    bm25 = {} if dense or run is not None else {"k1": K1, "b": B, **bm25}
    files = [_digest(f) for f in (source.path, source.corpus, source.queries, run, *exclude)]
    settings: dict[str, object] = {
        "files": files,
        "model": model or (None if run else "bm25"),
        "judge": judge,
        "fingerprints": [e and e.model.fingerprint() for e in (searcher, judging)],
        "prompts": [e and _prompts(e) for e in (searcher, judging)],
        **bm25,
        **asdict(mining),
        "ranks": list(mining.ranks),
    }
    with Journal(to, settings) as journal:
        result = journal.begin()
        if result is not None:
            notify(f"note: {to} is finished already")
            return result
        # 4. Prepare the search.
        examples = _Examples(data, source.corpus, queries, exclude)
        pool = examples.pool
        vectors_of: VectorsOf | None = None
        if searcher is not None:
            made_from = {
                "files": files if source.corpus is None else [_digest(source.corpus)],
                "fingerprint": searcher.model.fingerprint(),
                "prompt": _prompts(searcher)["document"],
            }
            vectors, rows = embed_corpus(searcher, pool, sibling(to, ".vectors.npy"), made_from)
            search = search_by(dense_ranker(searcher, vectors, rows))
            if judging is searcher:
                vectors_of = lambda members: vectors[np.searchsorted(rows, members)]  # noqa: E731
        elif run is not None:
            search = run_search(read_run(run, mining.ranks[1]), pool)
        else:
            with open_progress("indexing", "documents") as meter:
                search = search_by(bm25_ranker(pool, meter, **bm25))
        # 5. Draw negatives.
        scorer = None if judging is None else NegativeJudge(judging, pool, vectors_of)
        counts = _draw_negatives(examples, journal, search, mining, scorer)
        result = journal.finish({**examples.facts, **counts})
    _say_counts(result, mining.number)
    return result


class _Examples:
    """The usable examples of the data, read again by each iteration, and the pool of documents to
    sample from.

    The pool is the corpus if there is one, else every text of the examples, each once.
    """

    def __init__(
        self, data: str, corpus: object, queries: str | None, exclude: Sequence[str]
    ) -> None:
        self._data = data
        self._queries = queries
        self._guard = Decontaminator(exclude)
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
        return self._guard.clean(
            read_triples(self._data, corpus=self._corpus, queries=self._queries, dropped=dropped)
        )


def _distinct(triples: Iterator[Triple]) -> Iterator[Document]:
    seen: set[str] = set()
    for triple in triples:
        for text in (*triple.positives, *triple.negatives):
            if (key := digest(text)) not in seen:
                seen.add(key)
                yield Document(key, text)


def _draw_negatives(
    examples: _Examples,
    journal: Journal,
    search: RowSearch,
    mining: Mining,
    judge: NegativeJudge | None,
) -> dict[str, object]:
    """Mine for the remaining examples, write OUT, and count."""
    note_resumed(journal, "example")
    done = len(journal)
    draws = mine(examples, examples.pool, search, mining, judge, start=done)
    with open_progress("mining", "queries") as meter:
        for mined in meter.count(draws, examples.total - done):
            triple = mined.triple
            row = {
                **({"id": triple.id} if triple.id else {}),
                **({"prompt": triple.instruction} if triple.instruction else {}),
                "query": triple.query,
                "pos": triple.positives,
                "neg": [*triple.negatives, *mined.drawn],
            }
            journal.add(Row(len(journal), [row, len(mined.drawn), mined.refused]))
    refused: Counter[str] = Counter()
    drawn = fewer = 0
    for _, (_, number, reasons), _ in journal.rows():
        refused.update(reasons)
        drawn += number
        fewer += number < mining.number
    write_jsonl(journal.out, (row.value[0] for row in journal.rows()))
    return {
        "examples": examples.total,
        "drawn": drawn,
        "examples_with_fewer": fewer,
        "refused": dict(refused),
    }


def _say_counts(result: Mapping[str, Any], number: int) -> None:
    for name, what in (
        ("dropped", "left out of the data"),
        ("contaminated", "left out"),
        ("refused", "candidates refused"),
    ):
        if counts := "; ".join(f"{count:,} {reason}" for reason, count in result[name].items()):
            notify(f"note: {what}: {counts}")
    if result["examples_with_fewer"]:
        notify(
            f"warning: {result['examples_with_fewer']:,} of {result['examples']:,} examples got"
            f" fewer than {number} negatives"
        )


def _digest(path: object) -> object:
    return file_digest(str(path)) if Path(str(path)).is_file() else path and str(path)


def _load_embedder(model: str, prompts: Mapping[str, str]) -> Embedder:
    note_compiling()
    embedder = Embedder.load(model)
    embedder.model.prompts |= prompts
    return embedder


def _prompts(embedder: Embedder) -> dict[str, str]:
    return {name: embedder.model.prompts.get(name, "") for name in ("query", "document")}
