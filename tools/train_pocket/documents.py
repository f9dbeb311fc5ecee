"""Evidence sets: documents, and questions with the characters that answer them."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.train_pocket.data import evidence, held_back

_MOST_HELD_BACK = 1_000_000  # characters of a set's held-back documents


@dataclass(frozen=True)
class Question:
    """A question about the document of this name; `spans` are the characters [start, end) of its
    evidence.
    """

    text: str
    document: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class EvidenceSet:
    """The texts of a set by name, in random order, and the questions about them."""

    name: str
    texts: dict[str, str]
    questions: list[Question]


def _spans(record: dict[str, Any], narrow: bool) -> tuple[tuple[int, int], ...]:
    """Return the evidence spans; `narrow`: the answer's sentence in a set that marks it
    (fairytaleqa), else nothing.
    """
    given = record["evidence"]
    if narrow and "evidence_sentence" in record:
        given = record["evidence_sentence"] or []
        given = [given] if given and isinstance(given[0], int) else given
    return tuple((start, end) for start, end in given if end > start)


@functools.cache
def load_evidence(data: Path, name: str, *, measure: bool) -> EvidenceSet:
    """Load the training part of a set, or with `measure` its held-back documents."""
    texts: dict[str, str] = {}
    asked: dict[str, list[Question]] = {}
    for record in evidence(data, name):
        document = record["doc_id"]
        if held_back(document) == measure:
            texts.setdefault(document, record["document"])
            spans = _spans(record, narrow=not measure)
            asked.setdefault(document, []).extend(
                [Question(record["question"], document, spans)] if spans else []
            )
    chosen = sorted(texts)
    random.Random(f"{name} 0").shuffle(chosen)
    found = EvidenceSet(name, {}, [])
    left = _MOST_HELD_BACK
    for document in chosen:
        left -= len(texts[document])
        if measure and left < 0 and len(found.texts) >= 10:
            break
        found.texts[document] = texts[document]
        found.questions.extend(asked[document])
    return found
