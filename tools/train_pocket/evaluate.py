"""The retrieval sets that only ever measure: BM25's best documents of each query, and nDCG@10 of
lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel.lab.evaluation.metrics import evaluate, parse_metrics
from runnel.lab.evaluation.tasks import find_task
from runnel.lab.training.corpus import read_corpus, read_queries
from runnel.text.trec import read_qrels
from tools.train_pocket.lexical import Bm25

MEASURED = ("cranfield", "cisi", "cacm", "medquad", "wikiqa_dev", "fiqa_pool_dev")
POOL = 4000  # documents of the medquad pool
POOL_QUERIES = 100
LISTED = 50  # BM25's best documents of a query, which are reranked


@dataclass
class RetrievalSet:
    """Queries, documents, and for each query the grades of its relevant documents by document
    number.
    """

    name: str
    queries: list[str]
    documents: list[str]
    grades: list[dict[int, int]]

    def listed(self, depth: int = LISTED) -> list[NDArray[np.int64]]:
        """Return BM25's best documents of each query, best first."""
        index = Bm25(self.documents)
        return [index.top(query, depth) for query in self.queries]


def load_set(data: Path, name: str, pool: bool = True) -> RetrievalSet:
    """Load a set in BEIR layout. For medquad with `pool`: 100 queries and 4,000 documents, their
    answers among them.
    """
    files = find_task(data / "retrieval" / name)
    texts = {document.id: document.text for document in read_corpus(str(files.corpus))}
    queries = read_queries(str(files.queries))
    qrels = read_qrels(files.qrels)
    grades = {
        query: {d: grade for d, grade in judged.items() if grade > 0 and d in texts}
        for query, judged in qrels.items()
    }
    asked = [query for query in queries if grades.get(query)]
    kept = list(texts)
    if name == "medquad" and pool:
        rng = np.random.default_rng(0)
        asked = [asked[i] for i in rng.permutation(len(asked))[:POOL_QUERIES]]
        wanted = {d for q in asked for d in grades[q]}
        others = [d for d in kept if d not in wanted]
        kept = [
            *sorted(wanted),
            *(others[i] for i in rng.permutation(len(others))[: POOL - len(wanted)]),
        ]
    number = {document: i for i, document in enumerate(kept)}
    found = [{number[d]: g for d, g in grades[q].items() if d in number} for q in asked]
    return RetrievalSet(name, [queries[q] for q in asked], [texts[d] for d in kept], found)


def ndcg(
    lists: Sequence[NDArray[np.int64]], grades: Sequence[Mapping[int, int]]
) -> NDArray[np.float64]:
    """Return nDCG@10 of each query's list, best document first."""
    qrels = {
        str(q): {str(d): grade for d, grade in judged.items()} for q, judged in enumerate(grades)
    }
    run = {
        str(q): {str(d): -float(rank) for rank, d in enumerate(listed)}
        for q, listed in enumerate(lists)
    }
    values = evaluate(parse_metrics(["nDCG@10"]), qrels, run)
    return np.array([values[query]["nDCG@10"] for query in qrels])


def reranked(
    one: RetrievalSet, lists: list[NDArray[np.int64]], scores: list[NDArray[np.float32]]
) -> NDArray[np.float64]:
    """Return nDCG@10 of each query after its list is ordered by scores; equal scores keep the
    list's order.
    """
    return ndcg(
        [listed[np.argsort(-s, kind="stable")] for listed, s in zip(lists, scores, strict=True)],
        one.grades,
    )
