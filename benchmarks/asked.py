"""Questions about documents, asked to a recurrent sentence retriever: each to its own document,
read whole, and to each of its sentences as if it were a document.

`runnel lab questions` measures the same, and also ranks the sentences of all documents together,
for which a model that cannot remember a document would read all of them again for each question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.results import Say, sentences_alone
from runnel.files import digest, write
from runnel.jobs.runs import WorkPlan, resumed_rows
from runnel.lab.evaluation.patterns import (
    DocumentScores,
    PatternQuestion,
    ScoreDocuments,
    Sentences,
    read_folder,
    read_patterns,
    summarize,
)
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.text.documents.document import DocumentText


def ask(questions: Path, documents: Path, model: str, folder: Path, say: Say) -> None:
    """Write FOLDER/TITLE/questions.json for both ways of reading; resumes.

    Args:
        questions: as `runnel lab questions` takes them, with patterns.
        documents: their folder.
        model: of `SentenceRetriever`.
    """
    asked = read_patterns(questions, documents)
    read = dict(read_folder(documents, asked, say))
    retriever = SentenceRetriever.load(model)
    ways = {
        model: _whole(retriever, len(read)),
        f"{model}, each sentence alone": _alone(retriever, len(read)),
    }
    for title, score in ways.items():
        say(f"{title}: {len(asked)} questions")
        sentences = {}
        for file in {one.file for one in asked}:
            place = str(documents / file)
            sentences[file] = Sentences(documents, [(place, read[place])], score, {})
        rows = _rows(asked, sentences, folder / title, retriever)
        kept = [
            (one, row)
            for one, row in zip(asked, rows, strict=True)
            if not one.patterns or row["model"]["document"]["rank"]
        ]
        kinds = [one.kind for one, _ in kept]
        rankings = [
            {"system": system, **summarize(kinds, [row[key]["document"] for _, row in kept])}
            for system, key in ((model, "model"), ("BM25", "BM25"))
        ]
        answerable = sum(bool(one.patterns) for one, _ in kept)
        result = {
            "queries": answerable,
            "unanswerable": len(kept) - answerable,
            "documents": len(read),
            "sentences": sum(len(one.texts) for one in sentences.values()),
            "rankings": rankings,
        }
        write(folder / title / "questions.json", json.dumps(result) + "\n")


def _rows(
    asked: Sequence[PatternQuestion],
    sentences: dict[str, Sentences],
    folder: Path,
    retriever: SentenceRetriever,
) -> list[dict[str, Any]]:
    """Return what `Sentences.ask` says of each question; FOLDER keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = WorkPlan(
        asked,
        lambda one: {"id": one.id, **sentences[one.file].ask(one)},
        retriever.model.fingerprint(),
    )
    settings = {
        "asked": [[one.id, one.query, *one.patterns] for one in asked],
        "texts": digest(*(text for file in sorted(sentences) for text in sentences[file].texts)),
    }
    return resumed_rows(folder / "ranks.jsonl", settings, lambda: plan, label="asking")


def _whole(retriever: SentenceRetriever, keep: int) -> ScoreDocuments:
    @lru_cache(maxsize=keep)
    def read(document: str | DocumentText) -> Any:
        return next(retriever.remember([document])) if retriever.remembers else document

    def score(query: str, documents: Sequence[str | DocumentText]) -> list[DocumentScores]:
        ranked = retriever.rank(query, [read(document) for document in documents])
        return [(scored.spans, scored.scores, scored.answers) for scored in ranked]

    return score


def _alone(retriever: SentenceRetriever, keep: int) -> ScoreDocuments:
    score_one = sentences_alone(retriever, keep)

    return lambda query, documents: [(*score_one(query, document), None) for document in documents]
