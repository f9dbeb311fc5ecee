"""Find hard negatives: documents that a search returns for a query although they do not answer it.

In: triples, a corpus, and a search or a run. Out: the triples with negatives, as jsonl.

Some results do answer the query but were never judged. Copies of a positive are always refused;
documents that the embedder that searches scores nearly as high as a positive are refused if a
margin is set.

In the order of this file: rankers and searches; settings and the judge of candidates; drawing;
`mine_negatives`, which is what `runnel lab mine` does.

N  vectors of documents      d  width of the vectors      B  queries at a time
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from runnel.batching import top
from runnel.checks import refuse_when
from runnel.errors import InputError
from runnel.files import digest, file_digest, sibling, write_jsonl
from runnel.hardware import cores
from runnel.jobs.embedding import VectorFiles, embed_corpus
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

# Returns for each example the rows of the corpus that its query retrieves, int64, best first, at
# most the given number.
RowSearch = Callable[[Sequence[Triple], int], list[np.ndarray]]
# returns the same rows for each query, with their scores
Ranker = Callable[[Sequence[str], int], list[tuple[np.ndarray, np.ndarray]]]

K1, B = 0.9, 0.4  # of BM25: the defaults of Anserini, used by the BEIR paper's baselines
_ROWS = 1 << 16  # document vectors in memory at a time
_BLOCK = 256  # queries searched together
_TEXTS = 1 << 18  # documents in one index of words
_COPY = 0.9  # texts that share at least this part of their word triples are copies


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
    _expect_bm25(len(tokens.vocab), k1, b)
    index.index(tokens, show_progress=False)
    count = len(tokens.ids)

    def score(query: str) -> np.ndarray:
        (words,) = words_of([query])
        return index.get_scores(words) if words else np.zeros(count, np.float32)

    return score


def _expect_bm25(words: int, k1: float, b: float) -> None:
    if not words or not (0 <= k1 < math.inf and 0 <= b <= 1):
        raise InputError(
            f"expected a corpus with words, k1 of at least 0 and b from 0 to 1, got {k1:g} and"
            f" {b:g}"
        )


def _holding(index: Any) -> np.ndarray:
    """Return, for each word of an index of bm25s, how many of its documents have the word."""
    return np.diff(index.scores["indptr"])


def _idf(holding: np.ndarray, documents: int) -> np.ndarray:
    """Return the weights of words in Lucene's BM25, from the number of documents with each word."""
    return np.log1p((documents - holding + 0.5) / (holding + 0.5))


def bm25_ranker(
    corpus: Texts,
    progress: Progress = lambda done, total: None,
    *,
    k1: float = K1,
    b: float = B,
) -> Ranker:
    """Return a ranker with the scores of `bm25_scorer`. It has an index for each `_TEXTS`
    documents, because making one index of all would take 2.4 kB a document. Documents that share no
    word with the query are left out; ties go to the earlier row.
    """

    def texts() -> Iterator[str]:
        for done, document in enumerate(corpus, start=1):
            yield document.text
            progress(done, len(corpus))

    # 1. For each block of documents, its words as numbers of 4 bytes.
    rest = texts()
    blocks: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
    while (tokens := numbered_words(itertools.islice(rest, _TEXTS))).ids:
        lengths = np.array([len(ids) for ids in tokens.ids])
        ids = np.fromiter(itertools.chain.from_iterable(tokens.ids), np.int32, lengths.sum())
        blocks.append((ids, lengths, sorted(tokens.vocab, key=tokens.vocab.__getitem__)))
    total = sum(len(ids) for ids, _, _ in blocks)
    _expect_bm25(total, k1, b)
    count = sum(len(lengths) for _, lengths, _ in blocks)
    # 2. An index of each block. BM25 uses the mean length of the documents: k1 and b are changed so
    # that the block's mean length has the effect of the mean length of all documents. With `share`,
    # block mean / mean: k1 (1 - b + b length / mean) = scale (1 - b' + b' length / block mean).
    frequency: Counter[str] = Counter()  # documents that have a word
    indexes: list[Any] = []
    for ids, lengths, vocabulary in blocks:
        share = float(lengths.mean()) * count / total
        scale = k1 * (1 - b + b * share)
        index = bm25().BM25(k1=scale, b=k1 * b * share / scale if scale else 0.0)
        if vocabulary:
            parts = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
            numbers = {word: number for number, word in enumerate(vocabulary)}
            index.index(type(tokens)(parts, numbers), show_progress=False)
            frequency.update(dict(zip(vocabulary, _holding(index).tolist(), strict=True)))
        indexes.append(index if vocabulary else None)
    # 3. The weights of words, from all documents: a score is proportional to its word's idf.
    for index, (_, lengths, vocabulary) in zip(indexes, blocks, strict=True):
        if index is not None:
            holding = _holding(index)
            of_all = np.array([frequency[word] for word in vocabulary])
            ratio = _idf(of_all, count) / _idf(holding, len(lengths))
            index.scores["data"] *= np.repeat(ratio, holding).astype(np.float32)
    starts = np.cumsum([0, *(len(lengths) for _, lengths, _ in blocks)])

    def rank_one(words: list[str], depth: int) -> tuple[np.ndarray, np.ndarray]:
        rows = [np.empty(0, np.int64)]
        scores = [np.empty(0, np.float32)]
        for index, start in zip(indexes, starts, strict=False):
            if index is not None and words:
                of_block = index.get_scores(words)
                sharing = np.flatnonzero(of_block > 0)
                best = sharing[top(of_block[sharing], depth)]
                rows.append(best + start)
                scores.append(of_block[best])
        both = np.concatenate(scores)
        best = top(both, depth)
        return np.concatenate(rows)[best], both[best]

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(partial(rank_one, depth=depth), words_of(queries)))

    return rank


def _devices() -> list[Any]:
    """Return the GPUs of this machine as torch.device, or else its CPU."""
    import torch

    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return gpus or [torch.device("cpu")]


def dense_ranker(
    embedder: Embedder,
    vectors: np.ndarray | VectorFiles,
    rows: np.ndarray,
    max_query_tokens: int | None = None,
) -> Ranker:
    """Return a ranker by exact inner products with the query's vector, on all GPUs or on the CPU.
    Each device multiplies a block of vectors at a time, and sorts only the products that may be
    among the best. Ties go to the earlier row.

    Args:
        vectors: (N, d), one for each document.
        rows: (N,) int64, the row in the corpus of each vector's document, ascending.
    """
    import torch

    devices = _devices()

    def score(
        encoded: np.ndarray, bars: np.ndarray, depth: int, block: tuple[int, int], device: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the products of a block that may be among the best: their queries, vectors and
        scores, sorted by query and vector. These are the products that reach the query's bar (B,),
        or without bars the best `depth` of each query.
        """
        start, end = block
        block_vectors = torch.from_numpy(np.array(vectors[start:end])).to(device)
        products = torch.from_numpy(encoded).to(device) @ block_vectors.T
        bar = torch.from_numpy(bars).to(products)
        if np.isinf(bars).any() and end - start > depth:
            bar = torch.maximum(bar, products.topk(depth).values[:, -1])
        query, place = (products >= bar[:, None]).nonzero(as_tuple=True)
        return (
            query.cpu().numpy(),
            place.cpu().numpy() + start,
            products[query, place].cpu().numpy(),
        )

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        encoded = embedder.encode_query(list(queries), max_tokens=max_query_tokens)  # (B, d)
        best = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(encoded)
        # (B,) each query's score at rank `depth` so far
        bars = np.full(len(encoded), -np.inf, np.float32)
        spans = itertools.pairwise([*range(0, len(rows), _ROWS), len(rows)])
        with ThreadPoolExecutor(len(devices)) as pool:
            while group := list(itertools.islice(spans, len(devices))):
                work = partial(score, encoded, bars.copy(), depth)
                for query, places, scores in pool.map(work, group, devices):
                    ends = np.searchsorted(query, np.arange(len(encoded) + 1))
                    for number in np.unique(query).tolist():
                        part = slice(ends[number], ends[number + 1])
                        both = np.concatenate([best[number][1], scores[part]])
                        chosen = top(both, depth)
                        best[number] = (
                            np.concatenate([best[number][0], places[part]])[chosen],
                            both[chosen],
                        )
                        if len(chosen) == depth:
                            bars[number] = both[chosen[-1]]
        return [(rows[places], scores) for places, scores in best]

    return rank


def run_search(run: Mapping[str, Sequence[str]], corpus: Texts) -> RowSearch:
    """Return a search that looks up an example's id in a run; an id that the
    run lacks has no rows.
    """

    def search(triples: Sequence[Triple], depth: int) -> list[np.ndarray]:
        ranked = []
        for triple in triples:
            rows = {name: corpus.row(name) for name in run.get(triple.id, [])[:depth]}
            missing = [name for name, row in rows.items() if row is None]
            if not triple.id or missing:
                raise InputError(
                    f"query {triple.id!r} ({triple.query[:60]!r}): expected an id, to look up in"
                    " the run, and its documents in the corpus, which lacks"
                    f" {', '.join(map(repr, missing)) or 'none'}; give the data and the corpus of"
                    " this run"
                )
            ranked.append(np.array(list(rows.values()), dtype=np.int64))
        return ranked

    return search


EMPTY = "empty"
POSITIVE = "a positive or a copy of one"
NEGATIVE = "a copy of another negative"
LIKELY = "scored like a positive"


@dataclass(frozen=True, slots=True)
class Mining:
    """Settings for drawing negatives from the results of a search. Ranks count from 1, and count
    positives too; the n-th query's draw depends on the seed and n.
    """

    number: int = 7
    ranks: tuple[int, int] = (1, 100)
    seed: int = 0
    # refuse what scores higher than the mean of the positives minus this share of it
    relative_margin: float | None = None

    def __post_init__(self) -> None:
        first, last = self.ranks
        if not 0 < self.number <= last - first + 1 or first < 1:
            raise InputError(
                f"{self.number} negatives of ranks {first} to {last}; expected at least 1, and as"
                " many ranks from 1"
            )


class NegativeJudge(NamedTuple):
    """The embedder that searches, which also scores candidates."""

    embedder: Embedder
    vectors: Callable[[Sequence[int]], np.ndarray]  # of these rows of the corpus, (n, d)


def mine(
    triples: Iterable[Triple],
    corpus: Texts,
    search: RowSearch,
    mining: Mining,
    judge: NegativeJudge | None = None,
    start: int = 0,
) -> Iterator["Draw"]:
    """Draw negatives for each example, in order. An example with too few candidates gets fewer."""
    numbered = itertools.islice(enumerate(triples), start, None)
    while block := list(itertools.islice(numbered, _BLOCK)):
        results = search([triple for _, triple in block], mining.ranks[1])
        draws = []
        for (number, triple), rows in zip(block, results, strict=True):
            rng = np.random.default_rng([mining.seed, number])
            draws.append(Draw(triple, rng.permutation(rows[mining.ranks[0] - 1 :]), corpus))
        if judge is not None and mining.relative_margin is not None:
            _fill_judged(draws, mining.number, mining.relative_margin, judge)
        else:
            for draw in draws:
                draw.drawn += [text for _, text in itertools.islice(draw.candidates, mining.number)]
        yield from draws


def word_triples(text: str) -> frozenset[tuple[str, ...]]:
    """Return the set of all triples of consecutive words, by which copies are recognized; case and
    punctuation do not count.
    """
    words = re.findall(r"\w+", text.casefold()) or [text.strip()]
    if len(words) < 3:
        return frozenset([tuple(words)])
    return frozenset(zip(words, words[1:], words[2:], strict=False))


class Draw:
    """An example with the negatives drawn for it so far, its candidates from these rows of the
    corpus, in their order, and the counts of refused ones by reason.
    """

    def __init__(self, triple: Triple, rows: np.ndarray, corpus: Texts) -> None:
        self.triple = triple
        self.drawn: list[str] = []
        self.refused: Counter[str] = Counter()
        self.candidates = self._candidates(rows, corpus)

    def _candidates(self, rows: np.ndarray, corpus: Texts) -> Iterator[tuple[int, str]]:
        """Yield (row, text) pairs without copies; each is read when it is asked for."""
        positives = [word_triples(text) for text in self.triple.positives]
        negatives = [word_triples(text) for text in self.triple.negatives]
        for row in rows.tolist():
            text = corpus.at(row)
            words = word_triples(text)
            if not text.strip():
                self.refused[EMPTY] += 1
            elif any(_are_copies(words, other) for other in positives):
                self.refused[POSITIVE] += 1
            elif any(_are_copies(words, other) for other in negatives):
                self.refused[NEGATIVE] += 1
            else:
                negatives.append(words)
                yield row, text


def _fill_judged(draws: list[Draw], number: int, margin: float, judge: NegativeJudge) -> None:
    """Draw and score until every example has `number` negatives or no candidates are left."""
    queries = judge.embedder.encode_query([draw.triple.query for draw in draws])  # (B, d)
    positives = [draw.triple.positives for draw in draws]
    vectors = iter(judge.embedder.encode_document([text for texts in positives for text in texts]))
    scores = [
        np.mean([query @ next(vectors) for _ in texts])
        for query, texts in zip(queries, positives, strict=True)
    ]
    bars = [float(score - margin * abs(score)) for score in scores]
    while proposals := [
        (i, row, text)
        for i, draw in enumerate(draws)
        for row, text in itertools.islice(draw.candidates, number - len(draw.drawn))
    ]:
        rows = sorted({row for _, row, _ in proposals})
        scored = dict(zip(rows, judge.vectors(rows), strict=True))
        for i, row, text in proposals:
            if float(queries[i] @ scored[row]) > bars[i]:
                draws[i].refused[LIKELY] += 1
            else:
                draws[i].drawn.append(text)


def _are_copies(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> bool:
    """Return whether the Jaccard similarity of two sets of word triples is at least `_COPY`; often
    their sizes alone decide.
    """
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
    bm25: Mapping[str, float] = MappingProxyType({}),
    prompts: Mapping[str, str] = MappingProxyType({}),
    corpus: str | None = None,
    queries: str | None = None,
    exclude: Sequence[str] = (),
    vectors_path: str | None = None,
) -> dict[str, Any]:
    """Write the examples of `data` with negatives drawn for each to the jsonl file `to`; return
    settings and counts.

    The arguments are those of `runnel lab mine`: `model` is "bm25" (None) or an embedder that
    searches, `prompts` are the embedder's. Its vectors are written next to `to`, unless they are in
    `vectors_path` (see `embed_corpus`); interrupted work resumes. Raises InputError if arguments
    contradict each other or have no effect, or no example is left.
    """
    # 1. Refuse options that contradict each other or would have no effect.
    dense = model not in (None, "bm25")
    refuse_when(
        (
            run is not None and model is not None,
            "negatives come from a run or from a search: give --run or --model, not both",
        ),
        (
            mining.relative_margin is not None and not dense,
            "--relative-margin compares an embedder's scores; give --model too",
        ),
        (
            bm25 and (dense or run is not None),
            "--k1 and --b are settings of BM25, which does not search here; omit them, or --model"
            " and --run",
        ),
        (
            prompts and not dense,
            "--prompt and --document-prompt are put before texts that an embedder reads; give"
            " --model too",
        ),
        (
            vectors_path is not None and (not dense or "document" in prompts),
            "--vectors are of an embedder that searches, read with its own document prompt; give"
            " --model, and no --document-prompt",
        ),
    )
    # 2. Load the embedder.
    source = find_source(data, corpus, queries)
    searcher: Embedder | None = None
    if dense:
        searcher = Embedder.load(str(model))
        searcher.model.prompts |= prompts
    # 3. Begin, or resume work with the same settings.
    bm25 = {} if dense or run is not None else {"k1": K1, "b": B, **bm25}
    files = [_digest(f) for f in (source.path, source.corpus, source.queries, run, *exclude)]
    settings: dict[str, object] = {
        "files": files,
        "model": model or (None if run else "bm25"),
        "fingerprint": searcher and searcher.model.fingerprint(),
        "prompts": searcher and _prompts(searcher),
        **({"vectors": vectors_path} if vectors_path else {}),
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
        judge: NegativeJudge | None = None
        if searcher is not None:
            made_from = {
                # whose texts are the pool
                "files": files if source.corpus is None else [_digest(source.corpus)],
                "fingerprint": searcher.model.fingerprint(),
                "prompt": _prompts(searcher)["document"],
            }
            path = sibling(to, ".vectors.npy")
            vectors, rows = embed_corpus(searcher, pool, path, made_from, stored=vectors_path)
            search = search_by(dense_ranker(searcher, vectors, rows))
            judge = NegativeJudge(searcher, lambda some: vectors[np.searchsorted(rows, some)])
        elif run is not None:
            search = run_search(read_run(run, mining.ranks[1]), pool)
        else:
            with open_progress("indexing", "documents") as meter:
                search = search_by(bm25_ranker(pool, meter, **bm25))
        # 5. Draw negatives.
        result = journal.finish(
            examples.facts | _draw_negatives(examples, journal, search, mining, judge)
        )
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
        self.facts: dict[str, object] = {
            "dropped": dict(dropped.counts),
            "contaminated": dict(self._guard.counts),
        }
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
    """Return the digest of a file, for another path the path, and None for None."""
    return file_digest(str(path)) if Path(str(path)).is_file() else path and str(path)


def _prompts(embedder: Embedder) -> dict[str, str]:
    return {name: embedder.model.prompts.get(name, "") for name in ("query", "document")}
