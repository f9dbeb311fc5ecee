"""Evidence for a head over stored vectors: every document is read once and kept in the run folder.

D  width of the vectors   S  sentences of a document
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from runnel.files import digest, sweep, write
from runnel.lab.training.data import Evidence
from runnel.lab.training.progress import show_reading
from runnel.lab.training.rows import expect_left
from runnel.lab.training.sentence_table import expect_tokens, label_sentences
from runnel.lab.training.vectors import VectorItem, make_vector_item
from runnel.models.sentence_vectors import SentenceVectors, VectorQuery, VectorScorer

log = logging.getLogger("runnel")

_LOADED = 64  # documents held in memory
_ELSEWHERE = 4  # one question in 4 is also asked about a document that does not answer it
_ASIDE = 10  # one document in 10 calibrates


@dataclass(frozen=True, eq=False)
class ReadQuestion:
    """A question about a document; a document without evidence does not answer it."""

    name: str
    text: str
    query: VectorQuery
    document: str  # the digest of its text
    evidence: tuple[tuple[int, int], ...]  # sentences [first, last) of those with a token


class ReadDocuments:
    """Documents that have been read: a file for each in `folder`, named by a digest of its text, and the texts in memory."""

    def __init__(self, scorer: VectorScorer, folder: Path, texts: Mapping[str, str]) -> None:
        self.scorer, self._folder, self._texts = scorer, folder, texts
        self.load = functools.lru_cache(_LOADED)(self._load)

    def _load(self, document: str) -> SentenceVectors:
        data = (self._folder / document).read_bytes()
        return SentenceVectors.from_bytes(data, self._texts[document])


class VectorData(Dataset[tuple[str, VectorItem]]):
    """Questions about documents that have been read; an item is made on access."""

    def __init__(self, documents: ReadDocuments, questions: Sequence[ReadQuestion]) -> None:
        self.documents, self.questions = documents, list(questions)
        self.lengths: np.ndarray = np.ones(len(self.questions), dtype=np.int64)  # batches have equally many questions

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> tuple[str, VectorItem]:
        question = self.questions[index]
        document = self.documents.load(question.document)
        _, vectors, features = self.documents.scorer.inputs(question.query, document)
        return question.name, make_vector_item(question.query.vector, vectors, features, question.evidence, len(document.ids))


def read_vector_data(
    scorer: VectorScorer, examples: Iterable[Evidence], folder: Path, held_out: int, *, write: bool
) -> tuple[VectorData, VectorData | None, VectorData]:
    """Read the documents that `folder` lacks, and return the questions trained on, those held out, and those that calibrate.

    No document is in two of them. Texts and questions are held in memory, sentence vectors are not.
    """
    texts: dict[str, str] = {}
    keyed: list[tuple[str, Evidence]] = []
    for example in examples:
        key = digest(example.document)
        keyed.append((key, replace(example, document=texts.setdefault(key, example.document))))
    if unused := sum(bool(example.units) for _, example in keyed):
        log.warning("the units of %d examples are not used: documents are read once, in the sentences of the model", unused)
    if write:
        _read(scorer, texts, folder)
    documents = ReadDocuments(scorer, folder, texts)
    queries = scorer.read_queries(example.query for _, example in keyed)
    questions = [
        _question(number, key, example, query, documents.load(key))
        for number, ((key, example), query) in enumerate(zip(keyed, queries, strict=True))
    ]
    train, held, aside = split_documents(questions, held_out)
    expect_left(train, f"{len(keyed)} examples", held_out)
    log.info("%d questions to train on, %d held out, %d for the calibration", len(train), len(held), len(aside))
    parts = [[*part, *ask_elsewhere(part)] for part in (train, aside)]
    return VectorData(documents, parts[0]), VectorData(documents, held) if held else None, VectorData(documents, parts[1])


def _read(scorer: VectorScorer, texts: Mapping[str, str], folder: Path) -> None:
    """Write the files of the documents that have none; an interrupted run reads the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    wanted = {key: text for key, text in texts.items() if not (folder / key).exists()}
    with show_reading(sum(map(len, wanted.values()))) as advance:
        for key, read in zip(wanted, scorer.remember(wanted.values()), strict=True):
            write(folder / key, read.to_bytes())
            advance(len(read.text))


def _question(number: int, key: str, example: Evidence, query: VectorQuery, document: SentenceVectors) -> ReadQuestion:
    name = example.id or f"example {number + 1}"
    full = np.diff(document.bounds) > 0
    place = np.concatenate([[0], full.cumsum()])
    expect_tokens(full, name)
    labels = [np.flatnonzero(label_sentences(document.text, document.spans, [span])) for span in example.spans]
    evidence = [(int(place[rows[0]]), int(place[rows[-1] + 1])) for rows in labels]
    return ReadQuestion(name, example.query.strip(), query, key, tuple((a, b) for a, b in evidence if b > a))


def split_documents(
    questions: Sequence[ReadQuestion], held_out: int
) -> tuple[list[ReadQuestion], list[ReadQuestion], list[ReadQuestion]]:
    """Return the questions to train on, at least `held_out` to hold out, and those of one other document in ten to calibrate."""
    count = Counter(question.document for question in questions)
    order = sorted(count)  # digests: an order that has nothing to do with the texts
    before = np.cumsum([0, *(count[document] for document in order)])[:-1]
    held = {document for document, number in zip(order, before.tolist(), strict=True) if number < held_out}
    aside = {document for number, document in enumerate(d for d in order if d not in held) if number % _ASIDE == _ASIDE - 1}
    parts: tuple[list[ReadQuestion], list[ReadQuestion], list[ReadQuestion]] = ([], [], [])
    for question in questions:
        parts[1 if question.document in held else 2 if question.document in aside else 0].append(question)
    return parts


def ask_elsewhere(questions: Sequence[ReadQuestion]) -> list[ReadQuestion]:
    """Return one question in four, asked about another document, if it is about only one."""
    documents = list(dict.fromkeys(question.document for question in questions))
    following = dict(zip(documents, [*documents[1:], *documents[:1]], strict=True))
    asked = Counter(text for text, _ in {(question.text, question.document) for question in questions})
    return [
        replace(question, document=following[question.document], evidence=())
        for question in questions[::_ELSEWHERE]
        if asked[question.text] == 1 and len(documents) > 1
    ]
