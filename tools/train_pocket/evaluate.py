"""The four retrieval sets that only ever measure: nDCG@10 of vectors, of BM25, and of reranked BM25 lists."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.train_pocket.data import read_lines
from tools.train_pocket.lexical import Bm25

log = logging.getLogger(__name__)
MEASURED = ("cranfield", "cisi", "cacm", "medquad")
POOL = 4000  # documents of the medquad pool
POOL_QUERIES = 400
Encode = Callable[[list[str]], NDArray[np.float32]]


@dataclass
class RetrievalSet:
    """Queries, documents, and for each query the grades of its relevant documents by document number."""

    name: str
    queries: list[str]
    documents: list[str]
    grades: list[dict[int, float]]


def load_set(data: Path, name: str, pool: bool = True) -> RetrievalSet:
    """A set in BEIR layout. For medquad with `pool`: 400 queries and 4,000 documents, their answers among them."""
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


def vector_ndcg(encode: Encode, one: RetrievalSet) -> float:
    """Mean nDCG@10 of documents ranked by the dot product of vectors."""
    similarity = encode(one.queries) @ encode(one.documents).T
    return float(np.mean([ndcg(np.argsort(-row, kind="stable")[:10], g) for row, g in zip(similarity, one.grades, strict=True)]))


def bm25_ndcg(one: RetrievalSet) -> float:
    """Mean nDCG@10 of BM25 over the whole set."""
    index = Bm25(one.documents)
    return float(np.mean([ndcg(index.top(q, 10), g) for q, g in zip(one.queries, one.grades, strict=True)]))


def reranked_ndcg(
    score: Callable[[str, list[str]], NDArray[np.float32]], one: RetrievalSet, depth: int = 50, queries: int = 100
) -> float:
    """nDCG@10 after reranking the BM25 top `depth` of the first `queries` queries."""
    index = Bm25(one.documents)
    values = []
    for query, grades in list(zip(one.queries, one.grades, strict=True))[:queries]:
        listed = index.top(query, depth)
        given = score(query, [one.documents[i] for i in listed]) if len(listed) else np.zeros(0)
        values.append(ndcg(listed[np.argsort(-given, kind="stable")], grades))
    return float(np.mean(values))


def teacher_figures(data: Path, out: Path, encode: Encode) -> dict[str, dict[str, float]]:
    """{"teacher": {set: nDCG}, "bm25": {set: nDCG}}, measured once and kept in `out`."""
    target = out / "teacher_ndcg.json"
    if not target.exists():
        sets = [load_set(data, name) for name in MEASURED]
        figures = {"teacher": {s.name: vector_ndcg(encode, s) for s in sets}, "bm25": {s.name: bm25_ndcg(s) for s in sets}}
        target.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    found: dict[str, dict[str, float]] = json.loads(target.read_text(encoding="utf-8"))
    return found


def report(figures: dict[str, float], teacher: dict[str, float], label: str) -> float:
    """Log one row; the ratio of the means to the teacher's."""
    ratio = sum(figures.values()) / sum(teacher[name] for name in figures)
    log.info("%s: %s; %.3f of the teacher", label, ", ".join(f"{k} {v:.3f}" for k, v in figures.items()), ratio)
    return ratio
