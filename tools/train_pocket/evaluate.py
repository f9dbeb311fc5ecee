"""The retrieval sets that only ever measure: BM25's best documents of each query, and nDCG@10 of lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.train_pocket.data import read_lines
from tools.train_pocket.lexical import Bm25

MEASURED = ("cranfield", "cisi", "cacm", "medquad", "wikiqa_dev", "fiqa_pool_dev")
POOL = 4000  # documents of the medquad pool
POOL_QUERIES = 100
LISTED = 50  # BM25's best documents of a query, which are reranked


@dataclass
class RetrievalSet:
    """Queries, documents, and for each query the grades of its relevant documents by document number."""

    name: str
    queries: list[str]
    documents: list[str]
    grades: list[dict[int, float]]

    def listed(self, depth: int = LISTED) -> list[NDArray[np.int64]]:
        """BM25's best documents of each query, best first."""
        index = Bm25(self.documents)
        return [index.top(query, depth) for query in self.queries]


def load_set(data: Path, name: str, pool: bool = True) -> RetrievalSet:
    """A set in BEIR layout. For medquad with `pool`: 100 queries and 4,000 documents, their answers among them."""
    folder = data / "retrieval" / name
    texts = {r["_id"]: " ".join(filter(None, (r.get("title"), r["text"]))) for r in read_lines(folder / "corpus.jsonl.zst")}
    queries = {r["_id"]: r["text"] for r in read_lines(folder / "queries.jsonl.zst")}
    grades: dict[str, dict[str, float]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            query, document, grade = line.split("\t")
            if float(grade) > 0 and document in texts:
                grades.setdefault(query, {})[document] = float(grade)
    asked = [q for q in queries if q in grades]
    kept = list(texts)
    if name == "medquad" and pool:
        rng = np.random.default_rng(0)
        asked = [asked[i] for i in rng.permutation(len(asked))[:POOL_QUERIES]]
        wanted = {d for q in asked for d in grades[q]}
        others = [d for d in kept if d not in wanted]
        kept = [*sorted(wanted), *(others[i] for i in rng.permutation(len(others))[: POOL - len(wanted)])]
    number = {document: i for i, document in enumerate(kept)}
    found = [{number[d]: g for d, g in grades[q].items() if d in number} for q in asked]
    return RetrievalSet(name, [queries[q] for q in asked], [texts[d] for d in kept], found)


def ndcg(ranked: NDArray[np.int64], grades: dict[int, float], depth: int = 10) -> float:
    """nDCG with the grade as gain."""
    discount = 1 / np.log2(np.arange(depth) + 2)
    gains = np.array([grades.get(int(i), 0.0) for i in ranked[:depth]])
    best = np.sort(np.array(list(grades.values())))[::-1][:depth]
    return float((gains * discount[: len(gains)]).sum() / (best * discount[: len(best)]).sum())


def reranked(one: RetrievalSet, lists: list[NDArray[np.int64]], scores: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """nDCG@10 of each query after its list is ordered by scores, the list's own order for equal ones."""
    return np.array(
        [ndcg(listed[np.argsort(-s, kind="stable")], g) for listed, s, g in zip(lists, scores, one.grades, strict=True)]
    )
