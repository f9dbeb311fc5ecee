"""Searches of whole collections, none of which was trained on, by the index as users call it."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel import Document, Embedder, Index
from tools.train_pocket.evaluate import MEASURED, RetrievalSet, load_set, ndcg

log = logging.getLogger(__name__)
_MOST_QUERIES = 250  # of a set
SETS = (*MEASURED, "qmsum_meetings")
# Options of `Index.search`.
WAYS: Mapping[str, Mapping[str, float]] = {
    "BM25": {"dense_weight": 0, "rerank": 0},
    "dense": {"dense_weight": math.inf, "rerank": 0},
    "both, not reranked": {"rerank": 0},
    "**a search as it is**": {},
}


def indexed(out: Path, one: RetrievalSet, embedder: Embedder) -> Index:
    """The index of a collection, made once and kept in `out`; a document without text is left out."""
    path = out / "index" / one.name
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with Index.create(part, embedder, store="local") as index:
            index.add([Document(str(i), text) for i, text in enumerate(one.documents) if text.strip()])
        part.replace(path)
    return Index.open(path, embedder)


def searched(index: Index, one: RetrievalSet) -> dict[str, NDArray[np.float64]]:
    """nDCG@10 of each query by every way."""
    chosen = np.random.default_rng(0).permutation(len(one.queries))[:_MOST_QUERIES].tolist()
    found = {}
    for way, options in WAYS.items():
        hits = [index.search(one.queries[n], top_k=10, sentences=0, **options) for n in chosen]  # type: ignore[arg-type]
        lists = [np.array([int(hit.id) for hit in some], np.int64) for some in hits]
        found[way] = ndcg(lists, [one.grades[n] for n in chosen])
    return found


def measured(data: Path, out: Path, model: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """By set and way, nDCG@10 of each query."""
    embedder, found = Embedder.load(model), {}
    for name in SETS:
        one = load_set(data, name)
        with indexed(out, one, embedder) as index:
            found[name] = searched(index, one)
        log.info("%s: %s", name, ", ".join(f"{way} {values.mean():.3f}" for way, values in found[name].items()))
    return found
