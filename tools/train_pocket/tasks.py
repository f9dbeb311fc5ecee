"""Batches and losses of the three jobs. Every batch depends on its step alone.

T  tokens   n  sentences or pairs of the batch   K  kinds of mark
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runnel.models.heads import MARK_DOCUMENT, MARK_MATCH, MARK_QUERY, MARKS
from runnel.models.readers import lexical_features
from tools.train_pocket.documents import EvidenceSet, Question, Reading
from tools.train_pocket.passages import Pair
from tools.train_pocket.student import CLS, SEP, Ids, Pocket, framed, pack

# How often each evidence set is drawn for sentence retrieval. Long documents with precise labels weigh most.
WEIGHTS = {
    "covidqa": 1.2, "evidence_inference": 1.6, "cuad": 1.6, "qmsum": 1.0, "doc2dial": 1.0, "fairytaleqa": 1.2, "2wiki_long": 0.8,
    "2wiki_distractor": 0.5, "hotpotqa_long": 0.5, "hotpotqa_distractor": 0.3, "musique_long": 0.5, "musique_distractor": 0.3,
    "squad_xquad_en": 0.5, "qed_paragraphs": 0.1, "clapnq_passages": 0.1,
}  # fmt: skip
_MOST_QUERY_TOKENS = 200
_TEMPERATURE = 0.05


@dataclass(frozen=True)
class Window:
    """A query and a run of sentences: ids [CLS] q [SEP] d, bounds (n+1,) of the sentences in it, labels (n,), features (n, 2)."""

    ids: Ids
    query_end: int  # one past the first [SEP]
    bounds: NDArray[np.int64]
    labels: NDArray[np.float32]
    marks: NDArray[np.float32]
    lexical: NDArray[np.float32]


def window(question: Question, reading: Reading, idf: NDArray[np.float32], first: int, last: int) -> Window:
    """Sentences [first, last) of a document behind the question, with the marks and features that inference gives them."""
    query = question.ids[:_MOST_QUERY_TOKENS]
    a, b = int(reading.bounds[first]), int(reading.bounds[last])
    document = reading.ids[a:b]
    ids = np.concatenate([framed(query), document])
    start = len(query) + 2
    bounds = reading.bounds[first : last + 1] - a
    marks = np.zeros((len(ids), MARKS), dtype=np.float32)
    marks[start:, MARK_DOCUMENT] = 1
    marks[start:, MARK_MATCH] = idf[document] * np.isin(document, query)
    labels = np.isin(np.arange(first, last), question.sentences).astype(np.float32)
    full = np.diff(bounds) > 0
    lexical = lexical_features(document, bounds, query, idf)
    return Window(ids, start, np.concatenate([bounds[:-1][full], bounds[-1:]]) + start, labels[full], marks, lexical[full])


def draw_window(question: Question, reading: Reading, idf: NDArray[np.float32], rng: np.random.Generator) -> Window:
    """A window around one of the answering sentences: mostly 800-2,200 tokens, sometimes up to 6,000."""
    size = rng.integers(2200, 6000) if rng.random() < 0.25 else rng.integers(800, 2200)
    sentence = int(rng.choice(question.sentences))
    place = int(rng.integers(0, size))  # tokens before the sentence
    first = int(np.searchsorted(reading.bounds, reading.bounds[sentence] - place))
    last = int(np.searchsorted(reading.bounds, reading.bounds[first] + size, side="right")) - 1
    first, last = min(first, sentence), min(max(last, sentence + 1), len(reading.spans))
    return window(question, reading, idf, first, last)


class SentenceTask:
    """Batches of windows of about `tokens` tokens; the loss is paper E's weighted BCE plus half a softmax over sentences."""

    def __init__(self, sets: dict[str, EvidenceSet], idf: NDArray[np.float32], seed: int, tokens: int = 4096) -> None:
        self.sets = [s for s in sets.values() if s.questions]
        weights = np.array([WEIGHTS[s.name] for s in self.sets])
        self.weights = weights / weights.sum()
        self.idf, self.seed, self.tokens = idf, seed, tokens

    def batch(self, step: int) -> list[Window]:
        rng = np.random.default_rng((self.seed, 1, step))
        found: list[Window] = []
        total = 0
        while total < self.tokens:
            chosen = self.sets[rng.choice(len(self.sets), p=self.weights)]
            question = chosen.questions[rng.integers(len(chosen.questions))]
            drawn = draw_window(question, chosen.documents[question.document], self.idf, rng)
            if len(drawn.labels) > 3 and 0 < drawn.labels.sum() < len(drawn.labels):
                found.append(drawn)
                total += len(drawn.ids)
        return found

    def loss(self, model: Pocket, step: int) -> tuple[Tensor, int, dict[str, float]]:
        windows = self.batch(step)
        scores = sentence_scores(model, windows)
        total = torch.zeros(())
        for score, one in zip(scores, windows, strict=True):
            total = total + sentence_loss(score, torch.from_numpy(one.labels))
        value = total / len(windows)
        return value, sum(len(w.ids) for w in windows), {"sentences": float(value.detach())}


def sentence_scores(model: Pocket, windows: Sequence[Window]) -> list[Tensor]:
    """Scores (n,) of the sentences of each window."""
    ids, cu_seqlens = pack([w.ids for w in windows])
    hidden = model.hidden(ids, cu_seqlens, torch.from_numpy(np.concatenate([w.marks for w in windows])))
    offsets = cu_seqlens[:-1].tolist()
    starts = [o + 1 for o in offsets] + [o + int(b) for o, w in zip(offsets, windows, strict=True) for b in w.bounds[:-1]]
    ends = [o + w.query_end for o, w in zip(offsets, windows, strict=True)]
    ends += [o + int(b) for o, w in zip(offsets, windows, strict=True) for b in w.bounds[1:]]
    means = model.means(hidden, ids, torch.tensor(starts), torch.tensor(ends))
    count = len(windows)
    lengths = [len(w.labels) for w in windows]
    owner = torch.repeat_interleave(torch.arange(count), torch.tensor(lengths))
    last = hidden[torch.tensor(ends[count:]) - 1]
    lexical = torch.from_numpy(np.concatenate([w.lexical for w in windows]))
    return list(model.sentences(means[count:], last, means[:count][owner], lexical).split(lengths))


def sentence_loss(score: Tensor, label: Tensor) -> Tensor:
    """Of one document: BCE in which the answers and the rest weigh 1/2 each, plus half the cross-entropy over its sentences."""
    positive = label.sum()
    weight = torch.where(label > 0, 0.5 / positive, 0.5 / (len(label) - positive))
    bce = (F.binary_cross_entropy_with_logits(score, label, reduction="none") * weight).sum()
    return bce - 0.5 * (F.log_softmax(score, 0) * label).sum() / positive


def pair_scores(model: Pocket, queries: Sequence[Ids], documents: Sequence[Ids]) -> Tensor:
    """Reranker scores (n,) of pairs, read as [CLS] document [SEP] query [SEP]."""
    idf = model.tokens.idf.numpy()
    rows, marks, share = [], [], []
    for query, document in zip(queries, documents, strict=True):
        rows.append(np.concatenate([[CLS], document, [SEP], query, [SEP]]))
        mark = np.zeros((len(rows[-1]), MARKS), dtype=np.float32)
        place = slice(len(document) + 2, len(document) + 2 + len(query))
        mark[place, MARK_QUERY] = 1
        mark[place, MARK_MATCH] = idf[query] * np.isin(query, document)
        marks.append(mark)
        terms = np.unique(query)
        share.append(float(idf[terms[np.isin(terms, document)]].sum() / (idf[terms].sum() + 1e-6)))
    ids, cu_seqlens = pack(rows)
    hidden = model.hidden(ids, cu_seqlens, torch.from_numpy(np.concatenate(marks)))
    starts = cu_seqlens[:-1] + 1
    middle = starts + torch.tensor([len(d) + 1 for d in documents])
    means = model.means(
        hidden, ids, torch.stack([starts, middle], 1).flatten(), torch.stack([middle, cu_seqlens[1:]], 1).flatten()
    )
    document_mean, query_mean = means[0::2], means[1::2]
    scores: Tensor = model.reranker(query_mean, hidden[cu_seqlens[1:] - 1], document_mean, torch.tensor(share)[:, None])
    return scores


class TeacherLists:
    """Queries with texts near and far in the teacher's eyes, all from the distillation texts."""

    def __init__(self, rows: Sequence[Ids], vectors: NDArray[np.float16]) -> None:
        self.rows = rows
        self.vectors = torch.from_numpy(vectors).to(torch.bfloat16)
        self.short = np.array([i for i, r in enumerate(rows) if len(r) <= 48])

    def nearest(self, chosen: NDArray[np.int64], count: int) -> Tensor:
        """Numbers of the `count` texts nearest to each chosen text, itself first: (len(chosen), count)."""
        return (self.vectors[torch.from_numpy(chosen)] @ self.vectors.T).topk(count, dim=-1).indices

    def draw(self, rng: np.random.Generator, count: int) -> list[tuple[Ids, list[Ids], Tensor]]:
        """(query, 8 texts, similarities (8,)): 3 of the nearest 20, 3 of the next 180, 2 of all."""
        chosen = self.short[rng.integers(len(self.short), size=count)]
        found = []
        for query, near in zip(chosen, self.nearest(chosen, 201).numpy(), strict=True):
            near = near[near != query]
            picked = np.concatenate(
                [
                    rng.choice(near[:20], 3, replace=False),
                    rng.choice(near[20:200], 3, replace=False),
                    rng.integers(len(self.rows), size=2),
                ]
            )
            similarity = self.vectors[torch.from_numpy(picked)].float() @ self.vectors[query].float()
            found.append((self.rows[query][1:-1], [self.rows[i][1:-1] for i in picked], similarity))
        return found


class RerankTask:
    """Lists of one positive and hard negatives, and lists of texts whose order the teacher gives."""

    def __init__(self, pairs: Sequence[Pair], lists: TeacherLists, seed: int, labeled: int = 2, taught: int = 3) -> None:
        self.pairs, self.lists, self.seed, self.labeled, self.taught = pairs, lists, seed, labeled, taught

    def loss(self, model: Pocket, step: int) -> tuple[Tensor, int, dict[str, float]]:
        rng = np.random.default_rng((self.seed, 2, step))
        queries: list[Ids] = []
        documents: list[Ids] = []
        targets: list[Tensor] = []
        for pair in (self.pairs[i] for i in rng.integers(len(self.pairs), size=self.labeled)):
            candidates = [pair.positive, *pair.negatives]
            queries += [pair.query] * len(candidates)
            documents += candidates
            targets.append(F.one_hot(torch.tensor(0), len(candidates)).float())
        for query, candidates, similarity in self.lists.draw(rng, self.taught):
            queries += [query] * len(candidates)
            documents += candidates
            targets.append(F.softmax(similarity / _TEMPERATURE, -1))
        scores = pair_scores(model, queries, documents).split([len(t) for t in targets])
        losses = torch.stack(
            [-(F.log_softmax(s, 0) * t).sum() + (t * t.clamp(min=1e-9).log()).sum() for s, t in zip(scores, targets, strict=True)]
        )
        tokens = sum(map(len, queries)) + sum(map(len, documents))
        figures = {
            "rerank": float(losses[: self.labeled].detach().mean()),
            "rerank_taught": float(losses[self.labeled :].detach().mean()),
        }
        return losses.mean(), tokens, figures


def contrastive_loss(model: Pocket, pairs: Sequence[Pair], rng: np.random.Generator) -> tuple[Tensor, int]:
    """InfoNCE over the positives of the batch and one hard negative per query."""
    queries = [framed(p.query) for p in pairs]
    positives = [framed(p.positive) for p in pairs]
    negatives = [framed(p.negatives[rng.integers(len(p.negatives))]) for p in pairs]
    ids, cu_seqlens = pack([*queries, *positives, *negatives])
    vectors = model.vectors(ids, cu_seqlens)
    logits = vectors[: len(pairs)] @ vectors[len(pairs) :].T / _TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(pairs))), ids.numel()
