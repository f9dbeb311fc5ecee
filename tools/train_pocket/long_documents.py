"""Ranking of long documents by one vector of each, by its nearest passage, and by words.

The encoder's own library reads the first 256 tokens of a text. The documents are those of the
evidence sets, and a question's document is its one answer. No weight of the ways measured here was
trained.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel.models.folder import load_model
from tools.train_pocket.encode import chosen_sets, question_vectors, read_documents, stored, vectors
from tools.train_pocket.evaluate import ndcg
from tools.train_pocket.lexical import Bm25
from tools.train_pocket.recall import standard

log = logging.getLogger(__name__)
SETS = ("qmsum", "fairytaleqa", "covidqa", "evidence_inference")
BEGINNING = "the first 256 tokens"
_READ = 256  # tokens, markers among them
_DOCUMENTS, _QUESTIONS = 250, 600  # of a set, at most


@dataclass(frozen=True, eq=False)
class LongDocuments:
    """Documents by name, and n questions: their texts, the names of their documents, and their
    vectors (n, D).
    """

    texts: dict[str, str]
    questions: list[str]
    answers: list[str]
    vectors: NDArray[np.float32]


def measured(data: Path, out: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return nDCG@10 of each question, by set (with the number of its documents) and way."""
    found = {}
    for name in SETS:
        one = load(data, out, name)
        found[f"{name} ({len(one.texts)})"] = _ranked(out, name, one)
        log.info("%s: %d documents ranked", name, len(one.texts))
    return found


def load(data: Path, out: Path, name: str) -> LongDocuments:
    """Choose documents of a set, trained on and held back, and questions about them at random; read
    the documents.
    """
    parts = [
        (one, measure)
        for measure in (False, True)
        for one in chosen_sets(data, measure=measure)
        if one.found.name == name
    ]
    texts = {document: one.found.texts[document] for one, _ in parts for document in one.documents}
    rng = np.random.default_rng(0)
    names = list(texts)
    texts = {names[n]: texts[names[n]] for n in rng.permutation(len(names))[:_DOCUMENTS]}
    questions = [question for one, _ in parts for question in one.questions]
    read = np.concatenate([question_vectors(out, one, measure) for one, measure in parts])
    chosen = [n for n in rng.permutation(len(questions)) if questions[n].document in texts][
        :_QUESTIONS
    ]
    read_documents(out, [(name, document, text) for document, text in texts.items()])
    return LongDocuments(
        texts,
        [questions[n].text for n in chosen],
        [questions[n].document for n in chosen],
        read[chosen],
    )


def _ranked(out: Path, name: str, one: LongDocuments) -> dict[str, NDArray[np.float64]]:
    backbone = load_model(out / "encoder").backbone
    texts = list(one.texts.values())
    passages = [
        stored(out, name, document, text).passage_sums(backbone)
        for document, text in one.texts.items()
    ]
    whole, nearest = cosines(one.vectors, passages)
    index = Bm25(texts)
    words = np.stack([index.scores(question) for question in one.questions])
    ways = {
        BEGINNING: one.vectors @ vectors(out, f"{name}-beginnings", texts, _READ).T,
        "mean of all tokens": whole,
        "nearest passage": nearest,
        "BM25": words,
        "z(BM25) + z(nearest passage)": np.stack(
            [standard(a) + standard(b) for a, b in zip(words, nearest, strict=True)]
        ),
    }
    number = {document: i for i, document in enumerate(one.texts)}
    grades = [{number[document]: 1} for document in one.answers]
    return {
        way: ndcg(list(np.argsort(-score, axis=1, kind="stable")), grades)
        for way, score in ways.items()
    }


def cosines(
    queries: NDArray[np.float32], passages: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the cosines of unit vectors (n, D) with each whole document and with its nearest
    passage, both (n, documents).

    Args:
        passages: of each document the sums of hidden vectors (P, D) of its passages.
    """
    starts = np.cumsum([0, *map(len, passages)])[:-1]
    nearest = np.maximum.reduceat(queries @ _unit(np.concatenate(passages)).T, starts, axis=1)
    return queries @ _unit(np.stack([one.sum(0) for one in passages])).T, nearest


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows with unit length."""
    found: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
    return found
