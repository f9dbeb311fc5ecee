"""Evidence sets as token ids: documents with their sentences, questions with the sentences that answer them."""

from __future__ import annotations

import logging
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.text.sentence_tokens import sentence_of_tokens
from runnel.text.sentences import split_sentences
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.data import evidence, held_back

log = logging.getLogger(__name__)
# Characters of one set that are read: the long multi-hop sets repeat each other's paragraphs, and no set should rule.
_MOST_CHARACTERS = 9_000_000
_MOST_HELD_BACK = 1_000_000


@dataclass(frozen=True)
class Reading:
    """A document as the sentence retriever sees it: ids (T,), bounds (S+1,) in tokens, spans (S, 2) in characters."""

    name: str
    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]
    spans: NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A question about `documents[document]`: for each evidence span the sentences [first, last) that overlap it."""

    id: str
    text: str
    ids: NDArray[np.int32]
    document: int
    evidence: tuple[tuple[int, int], ...]

    @property
    def sentences(self) -> NDArray[np.int64]:
        """Numbers of all evidence sentences, sorted, without doubles."""
        return np.unique(np.concatenate([np.arange(a, b) for a, b in self.evidence]))


@dataclass(frozen=True)
class EvidenceSet:
    """Documents, their texts, and the questions about them."""

    name: str
    documents: list[Reading]
    texts: list[str]
    questions: list[Question]


def read_text(name: str, text: str, tokenizer: Tokenizer) -> Reading:
    """A text as the sentence retriever sees it."""
    encoded = tokenizer.encode(text)
    spans = split_sentences(text)
    return Reading(name, encoded.ids.astype(np.int32), np.asarray(sentence_of_tokens(spans, encoded)), np.asarray(spans))


def _overlapping(spans: NDArray[np.int64], start: int, end: int) -> tuple[int, int]:
    """Sentences that overlap the characters [start, end); spans tile the text."""
    return int(np.searchsorted(spans[:, 1], start, side="right")), int(np.searchsorted(spans[:, 0], end, side="left"))


def _spans(record: dict[str, Any], narrow: bool) -> list[list[int]]:
    """Evidence spans; `narrow`: the answer's sentence in a set that marks it (fairytaleqa), and nothing where it is missing."""
    if narrow and "evidence_sentence" in record:
        given = record["evidence_sentence"] or []
        return [given] if given and isinstance(given[0], int) else list(given)
    return list(record["evidence"])


def load_evidence(
    data: Path, name: str, tokenizer: Tokenizer, *, measure: bool, seed: int = 0, cache: Path | None = None
) -> EvidenceSet:
    """The training part of a set, or with `measure` its held-back documents; `cache` keeps the result."""
    target = cache / f"{name}-{'held' if measure else 'train'}.pkl" if cache else None
    if target and target.exists():
        with target.open("rb") as file:
            kept: EvidenceSet = pickle.load(file)
            return kept
    records: dict[str, list[dict[str, Any]]] = {}
    for record in evidence(data, name):
        if held_back(record["doc_id"]) == measure:
            text = record.pop("document") if record["doc_id"] in records else record["document"]
            records.setdefault(record["doc_id"], []).append({**record, "document": text})
    chosen = sorted(records)
    random.Random(f"{name} {seed}").shuffle(chosen)
    found = EvidenceSet(name, [], [], [])
    left = _MOST_HELD_BACK if measure else _MOST_CHARACTERS
    for document in chosen:
        text = records[document][0]["document"]
        left -= len(text)
        if left < 0 and len(found.documents) >= 10:
            break
        reading = read_text(document, text, tokenizer)
        if len(reading.spans) == 0:
            continue
        for record in records[document]:
            overlaps = tuple(_overlapping(reading.spans, *span) for span in _spans(record, narrow=not measure))
            overlaps = tuple((a, b) for a, b in overlaps if b > a)
            if overlaps:
                ids = tokenizer.encode(record["question"]).ids.astype(np.int32)
                found.questions.append(Question(record["id"], record["question"], ids, len(found.documents), overlaps))
        found.documents.append(reading)
        found.texts.append(text)
    log.info(
        "%s: %d documents, %d questions%s", name, len(found.documents), len(found.questions), " held back" if measure else ""
    )
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            pickle.dump(found, file)
    return found
