"""Documents as token ids and sentences, with the questions about them, read once and kept on disk.

T  tokens   S  sentences   Q  questions
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runnel.models.folder import load_model
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import read_document
from runnel.text.ranked import RankedText
from runnel.text.sentences import SentenceTokens, read_sentences
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.documents import load_evidence
from tools.train_pocket.lexical import Bm25

_MOST_QUERY = 64  # tokens
_STRICT = re.compile(r"(?<!\\)\^| \\\|")
NEVER_TRAINED = ("policyqa", "financebench")  # forms that no training document has


@dataclass(frozen=True, eq=False)
class Question:
    """A question's name and ids, the sentences that answer it, and BM25's z-scores (S,) of all."""

    name: str
    ids: np.ndarray
    answers: np.ndarray
    bm25: np.ndarray


@dataclass(frozen=True, eq=False)
class Document:
    """Ids (T,) int32 and the token bounds (S+1,) of sentences, with questions."""

    name: str
    ids: np.ndarray
    bounds: np.ndarray
    questions: list[Question]


def _document(
    name: str, read: SentenceTokens, questions: list[tuple[str, str, np.ndarray]], tokens: Tokenizer
) -> Document:
    """Return a document; `questions` are (name, text, numbers of the sentences that answer)."""
    lexical = Bm25([read.text[start:end] for start, end in read.spans.tolist()])
    asked = []
    for number, text, answers in questions:
        scores = lexical.scores(text)
        bm25 = (scores - scores.mean()) / (scores.std() + 1e-6)
        ids = tokens.encode(text.strip()).ids[:_MOST_QUERY]
        asked.append(Question(number, ids, answers, bm25.astype(np.float32)))
    return Document(name, read.ids, read.bounds, asked)


def _sentences(document: str | DocumentText, tokens: Tokenizer) -> SentenceTokens:
    ranked = RankedText.of(document)
    return read_sentences(ranked, [tokens.encode(ranked.text)])


def evidence_documents(data: Path, name: str, *, measure: bool, most: int) -> Iterator[Document]:
    """Yield documents of an evidence set until they have `most` tokens: those for training, or
    with `measure` the held-back ones. Only documents with at least two sentences that answer
    nothing.
    """
    tokens = load_model("pocket").tokenizer
    found = load_evidence(data, name, measure=measure)
    by_document: dict[str, list[tuple[str, tuple[tuple[int, int], ...]]]] = {}
    for question in found.questions:
        by_document.setdefault(question.document, []).append((question.text, question.spans))
    total = 0
    for document, asked in by_document.items():
        read = _sentences(found.texts[document], tokens)
        questions = [
            (
                f"{document} {number}",
                text,
                np.unique(
                    np.concatenate(
                        [
                            np.arange(
                                np.searchsorted(read.spans[:, 1], start, side="right"),
                                np.searchsorted(read.spans[:, 0], end, side="left"),
                            )
                            for start, end in spans
                        ]
                    )
                ),
            )
            for number, (text, spans) in enumerate(asked)
        ]
        yield _document(f"{name}/{document}", read, questions, tokens)
        total += len(read.ids)
        if total > most:
            break


def pattern_documents(questions: Path, folder: Path) -> Iterator[Document]:
    """Yield the documents in a folder with the questions that they answer."""
    tokens = load_model("pocket").tokenizer
    rows = [json.loads(line) for line in questions.open(encoding="utf-8")]
    rows = sorted((row for row in rows if row["patterns"]), key=lambda row: row["file"])
    for file, asked in itertools.groupby(rows, key=lambda row: row["file"]):
        read = _sentences(read_document(folder / Path(file).name), tokens)
        texts = [" ".join(read.text[start:end].split()) for start, end in read.spans.tolist()]
        questions_of_file = []
        for row in asked:
            # without the start of a line and the bars between cells, as `lab questions` is measured
            loose = [_STRICT.sub("", pattern) for pattern in row["patterns"]]
            patterns = [re.compile(pattern, re.IGNORECASE) for pattern in row["patterns"] + loose]
            answers = [n for n, text in enumerate(texts) if any(p.search(text) for p in patterns)]
            questions_of_file.append((row["id"], row["question"], np.array(answers, np.int64)))
        yield _document(file, read, questions_of_file, tokens)


def save(documents: list[Document], path: Path) -> None:
    """Write documents as one file of arrays."""
    arrays: dict[str, np.ndarray] = {}
    names = []
    for number, document in enumerate(documents):
        arrays[f"{number}.ids"] = document.ids
        arrays[f"{number}.bounds"] = document.bounds
        for place, question in enumerate(document.questions):
            arrays[f"{number}.{place}.ids"] = question.ids
            arrays[f"{number}.{place}.answers"] = question.answers
            arrays[f"{number}.{place}.bm25"] = question.bm25
        names.append([document.name, [question.name for question in document.questions]])
    arrays["names"] = np.frombuffer(json.dumps(names).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> list[Document]:
    """Read what `save` wrote."""
    arrays = np.load(path)
    return [
        Document(
            name,
            arrays[f"{number}.ids"],
            arrays[f"{number}.bounds"],
            [
                Question(
                    question,
                    arrays[f"{number}.{place}.ids"],
                    arrays[f"{number}.{place}.answers"],
                    arrays[f"{number}.{place}.bm25"],
                )
                for place, question in enumerate(questions)
            ],
        )
        for number, (name, questions) in enumerate(json.loads(arrays["names"].tobytes()))
    ]
