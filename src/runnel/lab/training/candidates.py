"""Sources of hard negatives: the best documents for a query from BM25, an embedder or a run.

N  documents   d  width of the vectors   B  queries at a time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.errors import InputError
from runnel.lab.training.corpora import Texts
from runnel.lab.training.data import Triple
from runnel.records import Document
from runnel.request import Progress
from runnel.text.words import bm25, numbered_words, words_of
from runnel.work import top

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

Search = Callable[[Sequence[Triple], int], list[np.ndarray]]
"""Returns for each example the rows of the corpus that its query retrieves, int64, best first, at most the given number."""

Ranker = Callable[[Sequence[str], int], list[tuple[np.ndarray, np.ndarray]]]
"""Returns the same rows for each query, with their scores."""

K1, B = 0.9, 0.4  # the defaults of Anserini, used by the BEIR paper's baselines
_ROWS = 1 << 16  # document vectors in memory at a time


def search_by(ranker: Ranker) -> Search:
    """Return a search that ranks the queries of examples."""
    return lambda triples, depth: [rows for rows, _ in ranker([triple.query for triple in triples], depth)]


def bm25_ranker(corpus: Texts, progress: Progress = lambda done, total: None, *, k1: float = K1, b: float = B) -> Ranker:
    """Return a ranker by Lucene's BM25 over the words of `runnel.text.words`: lowercased, without English stop words.

    Documents that share no word with the query are not returned. Ties go to the earlier row.
    """
    index = bm25().BM25(k1=k1, b=b)
    tokens = numbered_words(_texts(corpus, progress))
    if not tokens.vocab or not (0 <= k1 < math.inf and 0 <= b <= 1):
        raise InputError(f"expected a corpus with words, k1 of at least 0 and b from 0 to 1, got {k1:g} and {b:g}")
    index.index(tokens, show_progress=False)
    del tokens

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        ranked = []
        for words in words_of(queries):
            scores = index.get_scores(words) if words else np.zeros(len(corpus), dtype=np.float32)
            best = top(scores, depth)
            best = best[scores[best] > 0]
            ranked.append((best, scores[best]))
        return ranked

    return rank


def bm25_scorer(texts: Iterable[str], **bm25: Any) -> Callable[[str], np.ndarray]:
    """Return a function from a query to the BM25 score of each text (n,) float32, 0 without a common word."""
    corpus = Texts(Document(str(row), text) for row, text in enumerate(texts))
    rank = bm25_ranker(corpus, **bm25)

    def score(query: str) -> np.ndarray:
        ((rows, found),) = rank([query], len(corpus))
        scores = np.zeros(len(corpus), np.float32)
        scores[rows] = found
        return scores

    return score


def _texts(corpus: Texts, progress: Progress) -> Iterator[str]:
    for done, document in enumerate(corpus, start=1):
        yield document.text
        progress(done, len(corpus))


def dense_ranker(
    embedder: Embedder, vectors: np.ndarray, rows: np.ndarray, combine: np.ufunc = np.maximum, max_query_tokens: int | None = None
) -> Ranker:
    """Return a ranker by exact inner products with the query's vector.

    `vectors` (N, d) are of documents, or of their segments, whose rows (N,) int64 in the corpus ascend; `combine` makes one score
    of those of a row.
    """
    first = np.flatnonzero(np.diff(rows, prepend=-1))  # vector of each document
    blocks = np.unique(first[np.searchsorted(first, np.arange(0, len(rows), _ROWS), side="right") - 1])

    def rank(queries: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        encoded = embedder.encode_query(list(queries), max_tokens=max_query_tokens)  # (B, d)
        scores, places = np.empty((len(encoded), 0), np.float32), np.empty((len(encoded), 0), np.int64)
        for start, end in pairwise([*blocks, len(rows)]):
            inside = first[(first >= start) & (first < end)]
            products = encoded @ vectors[start:end].T
            if len(inside) < end - start:
                products = combine.reduceat(products, inside - start, axis=1)
            best = np.stack([top(row, depth) for row in products])
            scores = np.hstack([scores, np.take_along_axis(products, best, 1)])
            places = np.hstack([places, inside[best]])
            best = np.stack([top(row, depth) for row in scores])
            scores, places = np.take_along_axis(scores, best, 1), np.take_along_axis(places, best, 1)
        return list(zip(rows[places], scores, strict=True))

    return rank


def run_search(run: Mapping[str, Sequence[str]], corpus: Texts) -> Search:
    """Return a search that looks up an example's id in a run; an id that the run lacks has no rows."""

    def search(triples: Sequence[Triple], depth: int) -> list[np.ndarray]:
        ranked = []
        for triple in triples:
            names = run.get(triple.id, [])[:depth]
            rows = [row for row in map(corpus.row, names) if row is not None]
            if not triple.id or len(rows) < len(names):
                missing = next((name for name in names if corpus.row(name) is None), None)
                raise InputError(
                    f"query {triple.id!r} ({triple.query[:60]!r}): expected an id, to look up in the run, and its documents in "
                    f"the corpus, which has no {missing!r}; give the data and the corpus of this run"
                )
            ranked.append(np.array(rows, dtype=np.int64))
        return ranked

    return search
