"""The reranker's weights: fitted on passages of the training documents, measured on retrieval sets
never trained on.

The features of a candidate are those of `VectorRelevance`, which do not depend on the other
candidates.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.models.folder import load_model
from runnel.models.pocket.lexical import WordTable
from runnel.models.pocket.scorer import VectorQuery, relevance_features
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.text.sentences import passage_bounds
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.encode import (
    PASSAGE_TOKENS,
    Chosen,
    chosen_sets,
    document_path,
    question_vectors,
    read_documents,
    stored,
    vectors,
)
from tools.train_pocket.evaluate import MEASURED, RetrievalSet, load_set, reranked
from tools.train_pocket.examples import load_table, overlapping
from tools.train_pocket.lexical import Bm25
from tools.train_pocket.recall import standard

log = logging.getLogger(__name__)
# Sets whose questions have their answer in one document only, so that another document's passage is
# a true negative.
FITTED = (
    "covidqa",
    "evidence_inference",
    "doc2dial",
    "fairytaleqa",
    "squad_xquad_en",
    "qed_paragraphs",
    "clapnq_passages",
)
_QUESTIONS = 60  # of each set
_LISTED = 30
_MOST_DOCUMENTS = 300  # of a set whose passages are listed


@dataclass(frozen=True, eq=False)
class Candidates:
    """A query's list: the features (n, 3) of its documents, and 1 for the
    relevant ones (n,) float.
    """

    known: NDArray[np.float32]
    relevant: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Read:
    """A whole document, or some of its sentences [first, last), as a candidate."""

    name: str
    first: int
    last: int
    content: SentenceVectors


def passages(name: str, document: SentenceVectors) -> list[Read]:
    """Return the passages of a document."""
    cuts = passage_bounds(document.bounds, PASSAGE_TOKENS)
    found = []
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        start, stop = (int(document.bounds[s]) for s in (first, last))
        text = document.text[document.spans[first, 0] : document.spans[last - 1, 1]]
        bounds = document.bounds[first : last + 1] - start
        rows = slice(first, last)
        part = SentenceVectors(
            text,
            document.spans[rows],
            document.ids[start:stop],
            bounds,
            document.vectors[rows],
            document.scales[rows],
            document.kinds[rows],
        )
        if stop > start:
            found.append(Read(name, first, last, part))
    return found


def training_lists(data: Path, out: Path, table: WordTable) -> list[Candidates]:
    """Make BM25's lists of passages and of whole documents: the ones that answer, and ones of other
    documents.
    """
    lists: list[Candidates] = []
    for one in chosen_sets(data, measure=False):
        if one.found.name in FITTED:
            for whole in (False, True):
                lists += _lists_of(one, out, table, whole)
            log.info("%s: %d lists", one.found.name, len(lists))
    return lists


def _lists_of(one: Chosen, out: Path, table: WordTable, whole: bool) -> list[Candidates]:
    name = one.found.name
    tokenizer, backbone = _encoder(out)
    names = [d for d in one.documents if document_path(out, name, d).exists()][:_MOST_DOCUMENTS]
    documents = {d: stored(out, name, d, one.found.texts[d]) for d in names}
    places = [
        one
        for d, v in documents.items()
        for one in ([Read(d, 0, len(v), v)] if whole else passages(d, v))
    ]
    index = Bm25([p.content.text for p in places])
    queries = question_vectors(out, one, measure=False)
    lists = []
    for n in np.random.default_rng(0).permutation(
        [n for n, q in enumerate(one.questions) if q.document in documents]
    )[:_QUESTIONS]:
        question = one.questions[n]
        evidence = [
            overlapping(documents[question.document].spans, *span) for span in question.spans
        ]
        answer = [
            p
            for p in places
            if p.name == question.document and any(a < p.last and b > p.first for a, b in evidence)
        ]
        others = [
            places[i]
            for i in index.top(question.text, _LISTED)
            if places[i].name != question.document
        ]
        if answer and others:
            query = VectorQuery(tokenizer.encode(question.text.strip()).ids, queries[n], queries[n])
            known = [
                relevance_features(query, p.content, table, backbone) for p in [*answer, *others]
            ]
            relevant = np.array([1.0] * len(answer) + [0.0] * len(others), np.float32)
            lists.append(Candidates(np.stack(known), relevant))
    return lists


@cache
def _encoder(out: Path) -> tuple[Tokenizer, Backbone]:
    model = load_model(out / "encoder")
    return model.tokenizer, model.backbone


def minimize(start: Sequence[float], loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return where a loss of numbers in float64 is least."""
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return value

    optimizer.step(closure)
    return x.detach()


def fit(lists: Sequence[Candidates]) -> tuple[NDArray[np.float64], float]:
    """Fit weights (3,) and bias: softmax over each list, then the bias and the factor that make the
    sigmoid a probability.
    """
    rows = [
        (torch.from_numpy(c.known).double(), torch.from_numpy(c.relevant).double()) for c in lists
    ]

    def ranked(w: Tensor) -> Tensor:
        z = [(known @ w, relevant > 0) for known, relevant in rows]
        return (
            -torch.stack([torch.logsumexp(F.log_softmax(s, 0)[r], 0) for s, r in z]).mean()
            + 1e-3 * (w * w).mean()
        )

    weights = minimize([3.0, 3.0, 5.0], ranked)
    score = torch.cat([known @ weights for known, _ in rows])
    label = torch.cat([r for _, r in rows])
    factors = minimize(
        [1.0, 0.0], lambda f: F.binary_cross_entropy_with_logits(score * f[0] + f[1], label)
    )
    return (weights * factors[0]).numpy(), float(factors[1])


@dataclass(frozen=True, eq=False)
class Measured:
    """A retrieval set with BM25's lists and the features of each document in them."""

    one: RetrievalSet
    lists: list[NDArray[np.int64]]
    known: list[NDArray[np.float32]]
    bm25: list[NDArray[np.float64]]


def encode_sets(data: Path, out: Path, names: Sequence[str] = MEASURED) -> None:
    """Read the documents in BM25's lists, and the queries."""
    for name in names:
        one = load_set(data, name)
        vectors(out, f"{name}-retrieval", one.queries)
        used = sorted({int(i) for listed in one.listed() for i in listed})
        read_documents(out, [(name, str(i), one.documents[i]) for i in used])


def measured(data: Path, out: Path, name: str, table: WordTable) -> Measured:
    """Compute the features of the documents in the lists of a set; zeros for documents without
    text.
    """
    tokenizer, backbone = _encoder(out)
    one = load_set(data, name)
    lists = one.listed()
    index = Bm25(one.documents)
    queries = torch.from_numpy(vectors(out, f"{name}-retrieval", one.queries))
    documents = {
        i: stored(out, name, str(i), one.documents[i])
        for i in sorted({int(i) for listed in lists for i in listed})
    }
    found = Measured(one, lists, [], [])
    for text, vector, listed in zip(one.queries, queries, lists, strict=True):
        query = VectorQuery(tokenizer.encode(text.strip()).ids, vector, vector)
        rows = [relevance_features(query, documents[i], table, backbone) for i in listed.tolist()]
        found.known.append(np.array(rows, np.float32).reshape(-1, 3))
        found.bm25.append(index.scores(text)[listed])
    return found


def rows_of(found: Measured, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return nDCG@10 of each query for each way to order BM25's list."""
    ways: dict[str, list[NDArray[Any]]] = {
        "BM25": [-np.arange(len(listed), dtype=np.float64) for listed in found.lists],
        "static BM25": [k[:, 2] for k in found.known],
        "cosine to the whole document": [k[:, 1] for k in found.known],
        "cosine to the nearest passage": [k[:, 0] for k in found.known],
        "z(BM25) + 2 z(cosine), which needs the whole list": [
            standard(b) + 2 * standard(k[:, 0])
            for b, k in zip(found.bm25, found.known, strict=True)
        ],
        "**`pocket`**": [k @ weights for k in found.known],
    }
    return {
        name: reranked(found.one, found.lists, [np.asarray(s, np.float64) for s in scores])
        for name, scores in ways.items()
    }


def load(out: Path) -> tuple[NDArray[np.float64], float]:
    """Load the weights (3,) and the bias that `fit_relevance` wrote."""
    kept = json.loads((out / "relevance.json").read_text(encoding="utf-8"))
    return np.array(kept["weights"]), kept["bias"]


def fit_relevance(data: Path, out: Path) -> None:
    """Fit the weights on training passages and write them to `out`/relevance.json."""
    lists = training_lists(data, out, load_table(data, out))
    weights, bias = fit(lists)
    log.info("%d lists: nearest %.2f, whole %.2f, BM25 %.2f, bias %.2f", len(lists), *weights, bias)
    (out / "relevance.json").write_text(
        json.dumps({"weights": weights.tolist(), "bias": bias}, indent=1), encoding="utf-8"
    )
