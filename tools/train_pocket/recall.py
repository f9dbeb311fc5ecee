"""Sentence recall on held-back documents, and which questions measure it.

recall@10 of a question is the share of its evidence spans that one of the ten best sentences
overlaps. Whole documents; sets whose documents have more than ten sentences on average.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tools.train_pocket.documents import EvidenceSet, Question

LONG = (
    "covidqa",
    "evidence_inference",
    "cuad",
    "qmsum",
    "doc2dial",
    "fairytaleqa",
    "2wiki_long",
    "2wiki_distractor",
    "hotpotqa_long",
    "hotpotqa_distractor",
    "musique_long",
    "musique_distractor",
    "squad_xquad_en",
)
DEPTH = 10


def chosen_questions(found: EvidenceSet, most: int) -> list[Question]:
    """Choose at most `most` questions, spread over the documents, the same ones on every call."""
    number = {name: i for i, name in enumerate(found.texts)}
    by_document: dict[int, list[Question]] = {}
    for question in found.questions:
        by_document.setdefault(number[question.document], []).append(question)
    for seed, questions in by_document.items():
        random.Random(seed).shuffle(questions)
    turns = max((len(q) for q in by_document.values()), default=0)
    spread = [
        q[turn] for turn in range(turns) for _, q in sorted(by_document.items()) if turn < len(q)
    ]
    return spread[:most]


def recall(
    evidence: Sequence[tuple[int, int]], scores: NDArray[np.float32], depth: int = DEPTH
) -> float:
    """Return the share of the evidence spans that one of the `depth` best sentences overlaps."""
    best = np.argsort(-scores, kind="stable")[:depth]
    return float(np.mean([((best >= a) & (best < b)).any() for a, b in evidence]))


def standard(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return z-scores."""
    z: NDArray[np.floating] = (x - x.mean()) / (x.std() + 1e-6)
    return z


def interval(
    sets: Sequence[str], difference: np.ndarray, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean over sets of paired differences (N,), each set alike, and its 90 % bootstrap
    interval within sets.
    """
    rng = np.random.default_rng(seed)
    names = sorted(set(sets))
    of = np.array(sets)
    parts = [difference[of == name] for name in names]
    drawn = np.mean([p[rng.integers(len(p), size=(4000, len(p)))].mean(1) for p in parts], axis=0)
    low, high = np.percentile(drawn, [5, 95])
    return float(np.mean([p.mean() for p in parts])), float(low), float(high)
