"""Which documents are read, and their files: one for each document, so that an interrupted run
resumes.

`OUT/vectors/KEY` is the result of `SentenceVectors.to_bytes`; KEY is made from the set and the
document's id. `OUT/questions` holds the questions' vectors. The model in `OUT/encoder` reads all of
them.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel import Embedder, SentenceRetriever
from runnel.files import replacing, write
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.pocket.scorer import VectorScorer
from runnel.models.pocket.sentence_vectors import SentenceVectors
from tools.train_pocket.data import EVIDENCE
from tools.train_pocket.documents import EvidenceSet, Question, load_evidence
from tools.train_pocket.recall import LONG, chosen_questions

log = logging.getLogger(__name__)
HELD_BACK_QUESTIONS = 60
WIDTH = 384  # of the encoder's vectors
PASSAGE_TOKENS = 160
_GROUP_CHARACTERS = 200_000


@dataclass(frozen=True)
class Chosen:
    """A set and its chosen questions; its documents are the ones that these questions ask about."""

    found: EvidenceSet
    questions: list[Question]

    @property
    def documents(self) -> list[str]:
        asked = {q.document for q in self.questions}
        return [name for name in self.found.texts if name in asked]


@cache
def chosen_sets(data: Path, *, measure: bool) -> list[Chosen]:
    """Return the held-back questions that measure, or all questions about training documents."""
    sets = [load_evidence(data, name, measure=measure) for name in (LONG if measure else EVIDENCE)]
    return [
        Chosen(s, chosen_questions(s, HELD_BACK_QUESTIONS) if measure else s.questions)
        for s in sets
        if s.questions
    ]


def document_path(out: Path, set_name: str, document: str) -> Path:
    """Return the path of a document's file."""
    return (
        out
        / "vectors"
        / hashlib.blake2b(f"{set_name}/{document}".encode(), digest_size=10).hexdigest()
    )


def stored(out: Path, set_name: str, document: str, text: str) -> SentenceVectors:
    """Load a document that has been read."""
    return SentenceVectors.from_bytes(document_path(out, set_name, document).read_bytes(), text)


def vectors(
    out: Path, name: str, texts: Sequence[str], max_tokens: int | None = None
) -> NDArray[np.float32]:
    """Return (n, D) unit vectors of texts, cut to `max_tokens` tokens if given, and store them
    under this name.
    """
    embedder = Embedder(_model(out))
    return _kept(out, name, len(texts), lambda: embedder.encode(list(texts), max_tokens=max_tokens))


def question_vectors(out: Path, one: Chosen, measure: bool) -> NDArray[np.float32]:
    """Return (n, D) unit vectors of a set's chosen questions, and store them; sentence layers read
    them if the model has any.
    """
    scorer = VectorScorer(_model(out))
    texts = [question.text for question in one.questions]
    name = f"{one.found.name}-{'held' if measure else 'train'}"
    return _kept(
        out,
        name,
        len(texts),
        lambda: np.stack([scorer.read_query(text).vector for text in texts]),
    )


def _kept(
    out: Path, name: str, count: int, make: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    target = out / "questions" / f"{name}.npy"
    if not target.exists() or len(np.load(target, mmap_mode="r")) != count:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_array(target, make())
    found: NDArray[np.float32] = np.load(target)
    return found


def save_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write an array, whole or not at all."""
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, array)


@cache
def _model(out: Path) -> Model:
    return load_model(out / "encoder")


def encode(
    data: Path, out: Path, *, measure: bool, wanted: Callable[[str], bool] = lambda document: True
) -> None:
    """Read the wanted documents that are not on disk, in random order, so that the files are a
    sample of all sets at any time.
    """
    sets = chosen_sets(data, measure=measure)
    for one in sets:
        log.info(
            "%s: %d questions, %d documents", one.found.name, len(one.questions), len(one.documents)
        )
        question_vectors(out, one, measure)
    read_documents(
        out, [(s.found.name, d, s.found.texts[d]) for s in sets for d in s.documents if wanted(d)]
    )


def read_documents(out: Path, wanted: list[tuple[str, str, str]]) -> None:
    """Read and store the documents (set, name, text) that have no file."""
    wanted = [one for one in wanted if not document_path(out, *one[:2]).exists()]
    random.Random(0).shuffle(wanted)
    retriever = SentenceRetriever.load(out / "encoder")
    (out / "vectors").mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    done = 0
    tokens = 0
    while done < len(wanted):
        count = (
            int(
                np.searchsorted(
                    np.cumsum([len(text) for _, _, text in wanted[done : done + 2000]]),
                    _GROUP_CHARACTERS,
                )
            )
            + 1
        )
        group = wanted[done : done + count]
        for (name, document, _), read in zip(
            group, retriever.remember([text for _, _, text in group]), strict=True
        ):
            write(document_path(out, name, document), read.to_bytes())
            tokens += len(read.ids)
        done += len(group)
        log.info(
            "%d of %d documents, %.0f tokens a second",
            done,
            len(wanted),
            tokens / (time.perf_counter() - began),
        )
