"""How well a model's vectors rank the sentences of documents: read whole, and each sentence alone.

S  sentences   D  width of the vectors   Q  questions   M  metrics
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from tools.train_memory.continued import Continued
from tools.train_memory.documents import Document, Question
from tools.train_memory.models import Text

_SCALE = 10.0  # of the cosine beside the z-score of BM25, as the sentence layers were trained
_ALONE = 64  # sentences that are read together, each alone
_ROUNDS = 4_000  # of the bootstrap
METRICS = ("first", "first 5", "first 10", "MRR")


def query_text(question: Question) -> Text:
    """Return a question as a text of one sentence."""
    return Text(question.ids, np.array([0, len(question.ids)]))


def _vectors(model: nn.Module, texts: list[Text]) -> np.ndarray:
    vectors: torch.Tensor = model(texts)
    return vectors.cpu().numpy()


def vectors_of(model: nn.Module, document: Document, *, whole: bool) -> np.ndarray:
    """Return the vectors (S, D) of a document's sentences."""
    if whole:
        return _vectors(model, [Text(document.ids, document.bounds)])
    alone = [Text(part.ids, part.bounds) for part in sentences_apart(document)]
    return np.concatenate(
        [_vectors(model, alone[at : at + _ALONE]) for at in range(0, len(alone), _ALONE)]
    )


def ranks(
    model: nn.Module, documents: Sequence[Document], *, whole: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield of each question its document's name and the rank of the best sentence that answers (0:
    none can), by BM25, by the cosine, and by both.
    """
    model.eval()
    with torch.inference_mode():
        for document in documents:
            if not document.questions:
                continue
            vectors = vectors_of(model, document, whole=whole)
            for question in document.questions:
                query = _vectors(model, [query_text(question)])[0]
                cosine = vectors @ query
                scores = {
                    "bm25": question.bm25,
                    "cosine": cosine,
                    "both": _SCALE * cosine + question.bm25,
                }
                yield (
                    document.name,
                    {way: best_rank(score, question.answers) for way, score in scores.items()},
                )


def scored_ranks(
    model: Continued, documents: Sequence[Document], *, whole: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield of each question its document's name and the rank of the best sentence that answers (0:
    none can), by BM25 and by the model's scores, for which it reads the document once for each
    question.
    """
    with torch.inference_mode():
        for document in documents:
            parts = [document] if whole else sentences_apart(document)
            for question in document.questions:
                pairs = [(part, question) for part in parts]
                runs = [pairs[at : at + _ALONE] for at in range(0, len(pairs), _ALONE)]
                score = torch.cat([scores for run in runs for scores in model(run)]).cpu().numpy()
                yield (
                    document.name,
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


def values_of(ranks_: Sequence[int]) -> np.ndarray:
    """Return `METRICS` (Q, M) of ranks; zeros for rank 0."""
    found = np.array([rank or np.inf for rank in ranks_])
    return np.stack([found <= 1, found <= 5, found <= 10, 1 / found], axis=1)


def interval(documents: Sequence[str], values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the mean over questions of their values (Q, M), and the low and the high end of its
    95 % bootstrap interval, as (3, M).

    Whole documents are drawn, with all their questions: questions about one document are answered
    by the same sentences, and would make an interval by questions too narrow. `documents` names
    each question's document; the ends are nan if it is only one, of which nothing can be drawn.
    """
    names, place = np.unique(np.array(documents), return_inverse=True)
    of_document = np.zeros((len(names), 1 + values.shape[1]))  # how many questions, and sums
    np.add.at(of_document, place, np.column_stack([np.ones(len(values)), values]))
    times = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=_ROUNDS
    )
    drawn = times @ of_document
    low, high = np.percentile(drawn[:, 1:] / drawn[:, :1], [2.5, 97.5], axis=0)
    ends = np.array([low, high]) if len(names) > 1 else np.full((2, values.shape[1]), np.nan)
    return np.vstack([values.mean(0), ends])


def summary(documents: Sequence[str], found: Sequence[int]) -> str:
    """Return the metrics of ranks with their intervals, and of how much they are, for a reader."""
    columns = zip(METRICS, interval(documents, values_of(found)).T.tolist(), strict=True)
    parts = [
        f"{metric} {mean:.3f} ({low:.3f}, {high:.3f})" for metric, (mean, low, high) in columns
    ]
    return f"{', '.join(parts)}; {len(found)} questions, {len(set(documents))} documents"


def gain(documents: Sequence[str], whole: Sequence[int], alone: Sequence[int]) -> str:
    """Return how much the metrics of documents read whole are above those of the same questions
    with each sentence alone, with the intervals of the paired differences, for a reader.
    """
    rows = interval(documents, values_of(whole) - values_of(alone)).T.tolist()
    return ", ".join(
        f"{metric} {mean:+.3f} ({low:+.3f}, {high:+.3f})"
        for metric, (mean, low, high) in zip(METRICS, rows, strict=True)
    )
