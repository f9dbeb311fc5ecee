"""Sentence recall@10 on held-back documents: of the model, of BM25 within the document, of the teacher on single sentences.

recall@10 of a question is the share of its evidence spans that one of the ten best sentences overlaps. Whole documents;
sets whose documents have more than ten sentences on average.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.documents import EvidenceSet, Question, load_evidence
from tools.train_pocket.lexical import Bm25

log = logging.getLogger(__name__)
LONG = (
    "covidqa", "evidence_inference", "cuad", "qmsum", "doc2dial", "fairytaleqa", "2wiki_long", "2wiki_distractor",
    "hotpotqa_long", "hotpotqa_distractor", "musique_long", "musique_distractor", "squad_xquad_en",
)  # fmt: skip
DEPTH = 10
Score = Callable[[str, str], NDArray[np.float32]]  # (question, document) -> score of each sentence


def chosen_questions(found: EvidenceSet, most: int) -> list[Question]:
    """At most `most` questions, spread over the documents: the same ones on every call."""
    by_document: dict[int, list[Question]] = {}
    for question in found.questions:
        by_document.setdefault(question.document, []).append(question)
    for number, questions in by_document.items():
        random.Random(number).shuffle(questions)
    turns = max((len(q) for q in by_document.values()), default=0)
    spread = [q[turn] for turn in range(turns) for _, q in sorted(by_document.items()) if turn < len(q)]
    return spread[:most]


def recall(question: Question, scores: NDArray[np.float32], depth: int = DEPTH) -> float:
    """Share of the question's evidence spans that one of the `depth` best sentences overlaps."""
    best = np.argsort(-scores, kind="stable")[:depth]
    return float(np.mean([((best >= a) & (best < b)).any() for a, b in question.evidence]))


def measure(found: EvidenceSet, questions: list[Question], score: Score) -> float:
    """Mean recall@10 of the questions; `score` gets the texts and returns one score per sentence of the document."""
    return float(np.mean([recall(q, score(q.text, found.texts[q.document])) for q in questions]))


def sentence_texts(found: EvidenceSet, document: int) -> list[str]:
    """The sentences of a document."""
    text = found.texts[document]
    return [text[a:b] for a, b in found.documents[document].spans]


def bm25_recall(found: EvidenceSet, questions: list[Question]) -> float:
    """BM25 over words with the document's sentences as the collection."""
    indexes: dict[int, Bm25] = {}
    values = []
    for question in questions:
        if question.document not in indexes:
            indexes[question.document] = Bm25(sentence_texts(found, question.document))
        values.append(recall(question, indexes[question.document].scores(question.text).astype(np.float32)))
    return float(np.mean(values))


def teacher_recall(found: EvidenceSet, questions: list[Question], encode: Callable[[list[str]], NDArray[np.float16]]) -> float:
    """The teacher's cosine between the question and each sentence alone."""
    vectors: dict[int, NDArray[np.float32]] = {}
    values = []
    for question in questions:
        if question.document not in vectors:
            vectors[question.document] = encode(sentence_texts(found, question.document)).astype(np.float32)
        query = encode([question.text]).astype(np.float32)[0]
        values.append(recall(question, vectors[question.document] @ query))
    return float(np.mean(values))


def held_back_sets(data: Path, teacher: Path, cache: Path, most: int) -> list[tuple[EvidenceSet, list[Question]]]:
    """Every set with its held-back documents, and at most `most` questions of each."""
    tokenizer = Tokenizer.load(teacher)
    sets = [load_evidence(data, name, tokenizer, measure=True, cache=cache) for name in LONG]
    return [(found, chosen_questions(found, most)) for found in sets if found.questions]


def baseline_recall(
    data: Path, out: Path, teacher: Path, most: int, encode: Callable[[list[str]], NDArray[np.float16]]
) -> dict[str, dict[str, float]]:
    """{"bm25": {set: recall}, "teacher": {...}}, measured once and kept in `out`."""
    target = out / f"baseline_recall_{most}.json"
    if not target.exists():
        sets = held_back_sets(data, teacher, out / "read", most)
        figures = {
            "bm25": {found.name: bm25_recall(found, questions) for found, questions in sets},
            "teacher": {found.name: teacher_recall(found, questions, encode) for found, questions in sets},
        }
        target.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    kept: dict[str, dict[str, float]] = json.loads(target.read_text(encoding="utf-8"))
    return kept
