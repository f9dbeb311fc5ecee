"""Which documents are read, and their vectors on disk: one file for each document, so that an interrupted run goes on.

A document is named by its set and its id; `OUT/vectors/KEY.npz` holds ids (T,) uint16, bounds (S+1,) int32, vectors (S, D)
int8 with scales (S,) float32, and the means of its passages (P, D) float16. `OUT/questions/SET-held.npz` and its kin hold the
questions' vectors.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.data import EVIDENCE
from tools.train_pocket.documents import EvidenceSet, Question, Reading, load_evidence
from tools.train_pocket.recall import LONG, chosen_questions
from tools.train_pocket.teacher import Teacher

log = logging.getLogger(__name__)
# Tokens of each set that are read for training: no set should rule, and the padded sets repeat each other's paragraphs.
TRAIN_TOKENS = {
    "covidqa": 350_000, "cuad": 420_000, "evidence_inference": 450_000, "qmsum": 350_000, "doc2dial": 150_000,
    "fairytaleqa": 350_000, "2wiki_long": 180_000, "2wiki_distractor": 260_000, "hotpotqa_long": 160_000,
    "hotpotqa_distractor": 110_000, "musique_long": 180_000, "musique_distractor": 150_000, "squad_xquad_en": 30_000,
    "qed_paragraphs": 50_000, "clapnq_passages": 50_000,
}  # fmt: skip
HELD_BACK_QUESTIONS = 60
_GROUP_TOKENS = 30_000


@dataclass(frozen=True)
class Chosen:
    """A set and the questions of it that are used; its documents are those that the questions ask."""

    found: EvidenceSet
    questions: list[Question]

    @property
    def documents(self) -> list[int]:
        return sorted({q.document for q in self.questions})

    @property
    def tokens(self) -> int:
        return sum(len(self.found.documents[d].ids) for d in self.documents)


def chosen_sets(data: Path, out: Path, teacher: Path, *, measure: bool) -> list[Chosen]:
    """The held-back questions that measure, or the training sets."""
    tokenizer = Tokenizer.load(teacher)
    names = LONG if measure else EVIDENCE
    sets = [load_evidence(data, name, tokenizer, measure=measure, cache=out / "read") for name in names]
    sets = [found for found in sets if found.questions]
    if measure:
        return [Chosen(found, chosen_questions(found, HELD_BACK_QUESTIONS)) for found in sets]
    return [_dense(found, TRAIN_TOKENS[found.name]) for found in sets]


def _dense(found: EvidenceSet, most: int) -> Chosen:
    """The documents with the fewest tokens per question, up to `most` tokens, and all their questions."""
    asked = np.bincount([q.document for q in found.questions], minlength=len(found.documents))
    sizes = np.array([len(d.ids) for d in found.documents])
    order = np.argsort(sizes / np.maximum(asked, 0.01), kind="stable")
    order = order[asked[order] > 0]
    kept = set(order[: max(1, int(np.searchsorted(sizes[order].cumsum(), most, side="right")))].tolist())
    return Chosen(found, [q for q in found.questions if q.document in kept])


def document_path(out: Path, set_name: str, document: str) -> Path:
    """Where the document's file is."""
    key = hashlib.blake2b(f"{set_name}/{document}".encode(), digest_size=10).hexdigest()
    return out / "vectors" / f"{key}.npz"


def quantized(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 and one scale a row: the largest number of a row becomes 127."""
    scales = np.abs(vectors).max(1) / 127
    whole = np.rint(vectors / np.maximum(scales, 1e-12)[:, None]).astype(np.int8)
    return whole, scales.astype(np.float32)


def write(path: Path, **arrays: NDArray[np.generic]) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    part.replace(path)


def encode(data: Path, out: Path, folder: Path, *, measure: bool) -> None:
    """Read what is not yet on disk, in random order, so that what there is at any time is a sample of all sets."""
    sets = chosen_sets(data, out, folder, measure=measure)
    for one in sets:
        log.info("%s: %d questions, %d documents, %d tokens", one.found.name, len(one.questions), len(one.documents), one.tokens)
    log.info("all: %d questions, %d tokens", sum(len(s.questions) for s in sets), sum(s.tokens for s in sets))
    teacher = Teacher(folder)
    for one in sets:
        target = questions_path(out, one.found.name, measure)
        if not target.exists() or len(np.load(target)["vectors"]) != len(one.questions):
            write(target, vectors=teacher.vectors([q.ids for q in one.questions]))
    read_documents(out, teacher, [(s.found.name, s.found.documents[d]) for s in sets for d in s.documents])


def read_documents(out: Path, teacher: Teacher, wanted: list[tuple[str, Reading]]) -> None:
    """Write the files of (set, document) that are not there."""
    wanted = [(name, d) for name, d in wanted if not document_path(out, name, d.name).exists()]
    random.Random(0).shuffle(wanted)
    left, began, done = sum(len(d.ids) for _, d in wanted), time.perf_counter(), 0
    while wanted:
        count = int(np.searchsorted(np.cumsum([len(d.ids) for _, d in wanted[:400]]), _GROUP_TOKENS)) + 1
        group, wanted = wanted[:count], wanted[count:]
        for (name, d), (vectors, passages) in zip(group, teacher.read([(d.ids, d.bounds) for _, d in group]), strict=True):
            whole, scales = quantized(vectors)
            write(
                document_path(out, name, d.name), ids=d.ids.astype(np.uint16), bounds=d.bounds.astype(np.int32),
                vectors=whole, scales=scales, passages=passages.astype(np.float16),
            )  # fmt: skip
        done += sum(len(d.ids) for _, d in group)
        log.info("%d of %d tokens, %.0f a second", done, left, done / (time.perf_counter() - began))


def questions_path(out: Path, set_name: str, measure: bool) -> Path:
    """Where the vectors of the set's questions are."""
    return out / "questions" / f"{set_name}-{'held' if measure else 'train'}.npz"
