"""How well a model's vectors rank the sentences of documents: read whole, and each sentence alone.

S  sentences   D  width of the vectors   Q  questions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from tools.train_memory.continued import Continued
from tools.train_memory.documents import Document, Question
from tools.train_memory.models import Text

_SCALE = 10.0  # of the cosine beside the z-score of BM25, as the sentence layers were trained
_ALONE = 64  # sentences that are read together, each alone
Rank = Callable[[Question, np.ndarray], np.ndarray]


def query_text(question: Question) -> Text:
    """Return a question as a text of one sentence."""
    return Text(question.ids, np.array([0, len(question.ids)]))


def vectors_of(model: nn.Module, document: Document, *, whole: bool) -> np.ndarray:
    """Return the vectors (S, D) of a document's sentences."""
    if whole:
        return np.asarray(model([Text(document.ids, document.bounds)]))
    alone = [Text(part.ids, part.bounds) for part in sentences_apart(document)]
    return np.concatenate(
        [np.asarray(model(alone[at : at + _ALONE])) for at in range(0, len(alone), _ALONE)]
    )


def ranks(
    model: nn.Module, documents: Sequence[Document], *, whole: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield of each question its name and the rank of the best sentence that answers (0: none can),
    by BM25, by the cosine, and by both.
    """
    model.eval()
    with torch.inference_mode():
        for document in documents:
            if not document.questions:
                continue
            vectors = vectors_of(model, document, whole=whole)
            for question in document.questions:
                query = np.asarray(model([query_text(question)]))[0]
                cosine = vectors @ query
                scores = {
                    "bm25": question.bm25,
                    "cosine": cosine,
                    "both": _SCALE * cosine + question.bm25,
                }
                yield (
                    f"{document.name} {question.name}",
                    {way: best_rank(score, question.answers) for way, score in scores.items()},
                )


def scored_ranks(
    model: Continued, documents: Sequence[Document], *, whole: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield of each question its name and the rank of the best sentence that answers (0: none can),
    by BM25 and by the model's scores, for which it reads the document once for each question.
    """
    with torch.inference_mode():
        for document in documents:
            parts = [document] if whole else sentences_apart(document)
            for question in document.questions:
                pairs = [(part, question) for part in parts]
                runs = [pairs[at : at + _ALONE] for at in range(0, len(pairs), _ALONE)]
                score = torch.cat([scores for run in runs for scores in model(run)]).numpy()
                yield (
                    f"{document.name} {question.name}",
                    {
                        "bm25": best_rank(question.bm25, question.answers),
                        "score": best_rank(score, question.answers),
                    },
                )


def sentences_apart(document: Document) -> list[Document]:
    """Return a document for each sentence of a document, without questions."""
    edges = zip(document.bounds[:-1].tolist(), document.bounds[1:].tolist(), strict=True)
    return [Document(document.name, document.ids[a:b], np.array([0, b - a]), []) for a, b in edges]


def best_rank(scores: np.ndarray, answers: np.ndarray) -> int:
    """Return the rank, from 1, of the best of the sentences `answers`; ties count against it."""
    if not len(answers):
        return 0
    return int((scores >= scores[answers].max()).sum())


def summary(found: Sequence[int]) -> str:
    """Return first, first five, first ten and MRR of ranks."""
    ranks_ = np.array([rank or np.inf for rank in found])
    shares = [(ranks_ <= most).mean() for most in (1, 5, 10)]
    return " ".join(f"{value:.3f}" for value in (*shares, (1 / ranks_).mean()))
