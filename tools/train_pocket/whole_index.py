"""Searches of whole collections, none of which was trained on, by the index as users call it."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel import Document, Embedder, Index, Reranker
from runnel.models.memory import Memory
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.records import Hit
from tools.train_pocket.evaluate import LISTED, MEASURED, RetrievalSet, load_set, ndcg

log = logging.getLogger(__name__)
_QUERIES = 250  # of a set, at most
_FEWER = {"medquad": 150, "qmsum_meetings": 150}
SETS = (*MEASURED, "qmsum_meetings")
# Options of `Index.search`.
WAYS: Mapping[str, Mapping[str, float]] = {
    "BM25": {"dense_weight": 0, "rerank": 0},
    "dense": {"dense_weight": math.inf, "rerank": 0},
    "both, not reranked": {"rerank": 0},
    "**a search as it is**": {},
}


def indexed(out: Path, one: RetrievalSet, embedder: Embedder) -> Index:
    """Open the index of a collection, which is made once in `out`, without documents that have no
    text.
    """
    path = out / "index" / one.name
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with Index.create(part, embedder) as index:
            index.add(
                [Document(str(i), text) for i, text in enumerate(one.documents) if text.strip()]
            )
        part.replace(path)
    return Index.open(path, embedder)


def searched(index: Index, one: RetrievalSet, reranker: Reranker) -> dict[str, NDArray[np.float64]]:
    """Return nDCG@10 of each query by every way."""
    chosen = (
        np.random.default_rng(0)
        .permutation(len(one.queries))[: _FEWER.get(one.name, _QUERIES)]
        .tolist()
    )
    found = {}
    grades = [one.grades[n] for n in chosen]
    for way, options in WAYS.items():
        hits = [index.search(one.queries[n], top_k=10, sentences=0, **options) for n in chosen]  # type: ignore[arg-type]
        found[way] = ndcg([_numbers(some) for some in hits], grades)
    found["the reranker's order of the 50 best"] = ndcg(
        [_numbers(_reranked(index, one.queries[n], reranker)) for n in chosen], grades
    )
    return found


def _numbers(hits: Sequence[Hit]) -> NDArray[np.int64]:
    return np.array([int(hit.id) for hit in hits], np.int64)


def _reranked(index: Index, query: str, reranker: Reranker) -> list[Hit]:
    """Return the best documents of the first stage in the order of the reranker's scores alone."""
    hits = index.search(query, top_k=LISTED, sentences=0, rerank=0)
    kept = index.store.memories([hit.id for hit in hits])
    vectors = {hit.id: SentenceVectors.from_bytes(kept[hit.id], hit.text or "") for hit in hits}
    return reranker.rank(query, Memory(reranker.model.backbone, vectors))


def measured(data: Path, out: Path, model: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return nDCG@10 of each query, by set and way."""
    embedder = Embedder.load(model)
    reranker = Reranker.load(model)
    found = {}
    for name in SETS:
        one = load_set(data, name, pool=False)
        with indexed(out, one, embedder) as index:
            found[name] = searched(index, one, reranker)
        log.info(
            "%s: %s",
            name,
            ", ".join(f"{way} {values.mean():.3f}" for way, values in found[name].items()),
        )
    return found
