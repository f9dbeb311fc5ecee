"""The reranker's weights: fitted on passages of the training documents, measured on retrieval sets never trained on.

A candidate is known by the cosine of its vector to the query's, its BM25 with static idf, and its best sentence's score. None of
them depends on the other candidates.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from runnel.models.heads import VectorScore
from runnel.models.lexical import WordTable, sentence_features, static_bm25
from runnel.models.passages import passage_bounds
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.encode import chosen_sets, document_path, questions_path, read_documents, write
from tools.train_pocket.evaluate import MEASURED, RetrievalSet, load_set, reranked
from tools.train_pocket.examples import Stored, load_table, stored
from tools.train_pocket.lexical import Bm25
from tools.train_pocket.teacher import PASSAGE_TOKENS, Teacher, pieces, unit

log = logging.getLogger(__name__)
# Sets whose questions have their answer in one document only, so that another document's passage is a true negative.
FITTED = ("covidqa", "evidence_inference", "doc2dial", "fairytaleqa", "squad_xquad_en", "qed_paragraphs", "clapnq_passages")
_USED = (0, 1)  # what the reranker that is kept looks at: the best sentence adds nothing to these two
_QUESTIONS = 60  # of each set
_LISTED = 30


@dataclass(frozen=True, eq=False)
class Candidates:
    """A query's list: known (n, 3), and which of it are relevant (n,) float."""

    known: NDArray[np.float32]
    relevant: NDArray[np.float32]


def whole_vectors(document: Stored) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(D,) the mean over all tokens of all passages and (P, D) the passages', of unit length."""
    sizes = np.array([stop - start + 2 for _, _, start, stop in pieces(document.bounds)], np.float32)
    if not len(sizes):
        return np.zeros(384, np.float32), np.zeros((1, 384), np.float32)
    return unit(sizes @ document.passages), unit(document.passages)


def known_of(
    query: torch.Tensor,
    ids: NDArray[np.int32],
    document: Stored,
    vector: NDArray[np.float32],
    head: VectorScore,
    table: WordTable,
) -> NDArray[np.float32]:
    """(3,): cosine, static BM25, best sentence."""
    features = torch.from_numpy(sentence_features(document.ids, document.bounds, ids, table))
    with torch.no_grad():
        best = float(head(query, document.vectors, features).amax()) if len(features) else 0.0
    return np.array([float(vector @ query.numpy()), static_bm25(document.ids, ids, table), best], np.float32)


def _passages(out: Path, name: str, document: str) -> list[tuple[int, int, Stored]]:
    """(first sentence, one past the last, passage) of a document."""
    whole = stored(document_path(out, name, document))
    chosen = passage_bounds(whole.bounds, PASSAGE_TOKENS)
    found = []
    for number, (first, last) in enumerate(zip(chosen[:-1].tolist(), chosen[1:].tolist(), strict=True)):
        a, b = int(whole.bounds[first]), int(whole.bounds[last])
        if number < len(whole.passages) and b > a:
            part = whole.passages[number][None]
            bounds = whole.bounds[first : last + 1] - a
            found.append((first, last, Stored(whole.ids[a:b], bounds, whole.vectors[first:last], part)))
    return found


def training_lists(data: Path, out: Path, folder: Path, head: VectorScore, table: WordTable) -> list[Candidates]:
    """Lists of passages, by BM25 among all passages of a set: one that answers, and those of other documents."""
    lists = []
    for one in chosen_sets(data, out, folder, measure=False):
        name = one.found.name
        if name not in FITTED:
            continue
        places: list[tuple[int, int, int, Stored]] = []
        texts = []
        for number in one.documents:
            reading, text = one.found.documents[number], one.found.texts[number]
            if document_path(out, name, reading.name).exists():
                for first, last, passage in _passages(out, name, reading.name):
                    places.append((number, first, last, passage))
                    texts.append(text[reading.spans[first, 0] : reading.spans[last - 1, 1]])
        index, read = Bm25(texts), {p[0] for p in places}
        with np.load(questions_path(out, name, measure=False)) as file:
            queries = torch.from_numpy(file["vectors"])
        asked = [n for n, q in enumerate(one.questions) if q.document in read]
        for n in np.random.default_rng(0).permutation(asked)[:_QUESTIONS]:
            question = one.questions[n]
            listed = [int(i) for i in index.top(question.text, _LISTED)]
            answer = [
                i for i, (d, a, b, _) in enumerate(places)
                if d == question.document and any(x < b and y > a for x, y in question.evidence)
            ]  # fmt: skip
            others = [i for i in listed if places[i][0] != question.document]
            if not answer or not others:
                continue
            known = [
                known_of(queries[n], question.ids, places[i][3], unit(places[i][3].passages[0]), head, table)
                for i in [*answer, *others]
            ]
            lists.append(Candidates(np.stack(known), np.array([1.0] * len(answer) + [0.0] * len(others), np.float32)))
        log.info("%s: %d lists", name, len(lists))
    return lists


def fit(lists: Sequence[Candidates], used: Sequence[int] = (0, 1, 2)) -> tuple[NDArray[np.float64], float]:
    """Weights (3,) and bias: softmax over each list, then the bias and the factor that make the sigmoid a probability."""
    mask = torch.zeros(3, dtype=torch.float64)
    mask[list(used)] = 1
    rows = [(torch.from_numpy(c.known).double(), torch.from_numpy(c.relevant).double()) for c in lists]

    def minimize(start: torch.Tensor, loss: object) -> torch.Tensor:
        x = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(x)  # type: ignore[operator]
            value.backward()
            return value

        optimizer.step(closure)
        return x.detach()

    def ranked(w: torch.Tensor) -> torch.Tensor:
        z = [(known @ (w * mask), relevant > 0) for known, relevant in rows]
        return -torch.stack([torch.logsumexp(F.log_softmax(s, 0)[r], 0) for s, r in z]).mean() + 1e-3 * (w * w).mean()

    weights = minimize(torch.tensor([5.0, 5.0, 0.1], dtype=torch.float64), ranked) * mask
    score, label = torch.cat([known @ weights for known, _ in rows]), torch.cat([r for _, r in rows])
    factors = minimize(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        lambda f: F.binary_cross_entropy_with_logits(score * f[0] + f[1], label),
    )
    return (weights * factors[0]).numpy(), float(factors[1])


@dataclass(frozen=True, eq=False)
class Measured:
    """A retrieval set with BM25's lists and what is known of each document in them."""

    one: RetrievalSet
    lists: list[NDArray[np.int64]]
    known: list[NDArray[np.float32]]
    means: list[NDArray[np.float32]]  # the cosine to the mean of the passages' vectors
    nearest: list[NDArray[np.float32]]  # the cosine to the nearest passage
    bm25: list[NDArray[np.float64]]


def encode_sets(data: Path, out: Path, folder: Path, names: Sequence[str] = MEASURED) -> None:
    """Read the documents in BM25's lists, and the queries."""
    from tools.train_pocket.documents import read_text

    tokenizer, teacher = Tokenizer.load(folder), Teacher(folder)
    for name in names:
        one = load_set(data, name)
        used = sorted({int(i) for listed in one.listed() for i in listed})
        target = out / "questions" / f"{name}-retrieval.npz"
        if not target.exists():
            write(target, vectors=teacher.vectors([tokenizer.encode(q).ids for q in one.queries]))
        read_documents(out, teacher, [(name, read_text(str(i), one.documents[i], tokenizer)) for i in used])


def measured(data: Path, out: Path, folder: Path, name: str, head: VectorScore, table: WordTable) -> Measured:
    """What is known of the documents in the lists of a set; documents without text are zeros."""
    tokenizer, one = Tokenizer.load(folder), load_set(data, name)
    lists, index = one.listed(), Bm25(one.documents)
    with np.load(out / "questions" / f"{name}-retrieval.npz") as file:
        queries = torch.from_numpy(file["vectors"])
    documents: dict[int, tuple[Stored, NDArray[np.float32], NDArray[np.float32]]] = {}
    found = Measured(one, lists, [], [], [], [])
    for number, (query, listed) in enumerate(zip(one.queries, lists, strict=True)):
        ids, vector = tokenizer.encode(query).ids, queries[number]
        rows = []
        for i in listed.tolist():
            if i not in documents:
                document = stored(document_path(out, name, str(i)))
                documents[i] = (document, *whole_vectors(document))
            rows.append(known_of(vector, ids, documents[i][0], documents[i][1], head, table))
        passages = [documents[i][2] @ vector.numpy() for i in listed.tolist()]
        found.known.append(np.array(rows, np.float32).reshape(-1, 3))
        found.means.append(np.array([unit(documents[i][2].mean(0)) @ vector.numpy() for i in listed.tolist()], np.float32))
        found.nearest.append(np.array([p.max() for p in passages], np.float32))
        found.bm25.append(index.scores(query)[listed])
    return found


def standard(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """z-scores."""
    z: NDArray[np.float64] = (x - x.mean()) / (x.std() + 1e-9)
    return z


def rows_of(found: Measured, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """nDCG@10 of each query, for each way to order BM25's list."""
    ways = {
        "BM25": [-np.arange(len(listed), dtype=np.float64) for listed in found.lists],
        "static BM25": [k[:, 1] for k in found.known],
        "cosine": [k[:, 0] for k in found.known],
        "cosine, mean of passages": found.means,
        "cosine, nearest passage": found.nearest,
        "best sentence": [k[:, 2] for k in found.known],
        "z(BM25) + 2 z(cosine)": [standard(b) + 2 * standard(k[:, 0]) for b, k in zip(found.bm25, found.known, strict=True)],
        "reranker": [k @ weights for k in found.known],
    }
    return {name: reranked(found.one, found.lists, [np.asarray(s, np.float64) for s in scores]) for name, scores in ways.items()}


def save(out: Path, weights: NDArray[np.float64], bias: float) -> None:
    """Write `out`/relevance.json."""
    (out / "relevance.json").write_text(json.dumps({"weights": weights.tolist(), "bias": bias}, indent=1), encoding="utf-8")


def load(out: Path) -> NDArray[np.float64]:
    """The weights (3,) that `save` wrote."""
    return np.array(json.loads((out / "relevance.json").read_text(encoding="utf-8"))["weights"])


def fit_relevance(data: Path, out: Path, folder: Path, head: VectorScore) -> None:
    """Fit the weights on training passages and keep them."""
    lists = training_lists(data, out, folder, head, load_table(data, out, folder))
    for used in ((0, 1, 2), _USED):
        weights, bias = fit(lists, used)
        log.info("cosine %.2f, BM25 %.2f, best sentence %.3f, bias %.2f", *weights, bias)
    save(out, weights, bias)
