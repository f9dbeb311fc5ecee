"""Every figure of the lab book: sentence recall with intervals, calibration, and the reranker.

Rows that always stand beside the head: BM25 within the document, the encoder on each sentence
alone, the encoder over passages, and the plain sum of z-scores of BM25 and the latter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.page_text import table
from runnel import SentenceRetriever
from runnel.lab.training.vectors import mark_answers
from runnel.models.pocket.lexical import WordTable, sentence_features
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.recurrent.heads import HeldHead
from runnel.text.tokenizers import read_tokenizer
from tools.train_pocket.encode import chosen_sets, stored, vectors
from tools.train_pocket.examples import Example, unit_vectors
from tools.train_pocket.fit import scores
from tools.train_pocket.lexical import Bm25
from tools.train_pocket.recall import interval, recall, standard

log = logging.getLogger(__name__)
DEPTHS = (5, 10, 20, 50)
FIXED_FORMS = ("cuad", "evidence_inference")  # sets whose questions have a fixed form
OTHER = "pocket-mamba2"
ALONE, LATE = "MiniLM, each sentence alone", "MiniLM over passages (late)"
_LENGTHS = (
    ("up to 2,000 tokens", 0, 2000),
    ("2,000 to 10,000", 2000, 10_000),
    ("over 10,000", 10_000, np.inf),
)
_THIRDS = ("first third", "middle third", "last third")
_CONTEXT = ((LATE, ALONE), (OTHER, LATE), ("**pocket**", LATE))  # differences in `context_table`
Documents = Mapping[tuple[str, str], SentenceVectors]  # by set and document
Rows = Mapping[str, Sequence[NDArray[np.float32]]]  # of each way the scores of every question


def recalls(
    examples: Sequence[Example], given: Sequence[NDArray[np.float32]], depth: int
) -> NDArray[np.float64]:
    """Return the recall (questions,) at a depth."""
    return np.array(
        [recall(one.evidence, score, depth) for one, score in zip(examples, given, strict=True)]
    )


def by_set(examples: Sequence[Example], values: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of each set, in order."""
    sets = np.array([one.set for one in examples])
    return {name: float(values[sets == name].mean()) for name in dict.fromkeys(sets.tolist())}


def documents_of(
    data: Path, out: Path, examples: Sequence[Example]
) -> dict[tuple[str, str], SentenceVectors]:
    """Load every document that is asked about, by set and name."""
    sets = {one.found.name: one.found for one in chosen_sets(data, measure=True)}
    return {
        key: stored(out, *key, sets[key[0]].texts[key[1]])
        for key in dict.fromkeys((e.set, e.document) for e in examples)
    }


def sentences_of(document: SentenceVectors) -> list[str]:
    """Return the sentences of a document."""
    return [document.text[start:end] for start, end in document.spans]


def bm25_scores(
    data: Path, examples: Sequence[Example], documents: Documents
) -> list[NDArray[np.float32]]:
    """Score by BM25 over words, with the document's sentences as the collection."""
    sets = {one.found.name: one for one in chosen_sets(data, measure=True)}
    indexes = {key: Bm25(sentences_of(document)) for key, document in documents.items()}
    return [
        indexes[e.set, e.document].scores(sets[e.set].questions[e.number].text).astype(np.float32)
        for e in examples
    ]


def alone_scores(
    out: Path, examples: Sequence[Example], documents: Documents
) -> list[NDArray[np.float32]]:
    """Score by the encoder's cosine of each sentence alone."""
    read = {
        key: vectors(
            out,
            f"alone/{key[0]}-{key[1]}",
            [text if text.strip() else "." for text in sentences_of(document)],
        )
        for key, document in documents.items()
    }
    return [read[e.set, e.document] @ e.query.numpy() for e in examples]


def scanned_scores(
    data: Path, model: str, examples: Sequence[Example], documents: Documents
) -> list[NDArray[np.float32]]:
    """Score by another built-in model, which reads every document again for every question."""
    sets = {one.found.name: one for one in chosen_sets(data, measure=True)}
    retriever = SentenceRetriever.load(model)
    found = []
    for e in examples:
        one = sets[e.set]
        scored = retriever.score(one.questions[e.number].text, one.found.texts[e.document])
        assert len(scored) == len(documents[e.set, e.document])
        found.append(np.array([s.score for s in scored], np.float32))
    return found


def sentence_rows(
    data: Path,
    out: Path,
    examples: Sequence[Example],
    tuned: Sequence[Example],
    documents: Documents,
    head: HeldHead,
) -> dict[str, list[NDArray[np.float32]]]:
    """Score every question by every way; `tuned` are the same questions read by
    the tuned layers.
    """
    rows = {"BM25 in document": bm25_scores(data, examples, documents)}
    rows[ALONE] = alone_scores(out, examples, documents)
    rows[OTHER] = scanned_scores(data, OTHER, examples, documents)
    rows[LATE] = [(e.vectors @ e.query).numpy() for e in examples]
    rows["tuned layers over passages"] = [(e.vectors @ e.query).numpy() for e in tuned]
    for name, way in (("late", LATE), ("tuned", "tuned layers over passages")):
        pairs = zip(rows["BM25 in document"], rows[way], strict=True)
        rows[f"z(BM25) + z({name})"] = [standard(b) + standard(c) for b, c in pairs]
    rows["**pocket**"] = [score.numpy() for score in scores(head, tuned)]
    return rows


def sentence_tables(examples: Sequence[Example], rows: Rows) -> str:
    """Format the recall of each way: by depth, by set at 10, and against BM25, with and without the
    sets of fixed forms.
    """
    lines = []
    sets = [one.set for one in examples]
    free = np.array([name not in FIXED_FORMS for name in sets])
    base = recalls(examples, rows["BM25 in document"], 10)
    for name, given in rows.items():
        means = [
            np.mean(list(by_set(examples, recalls(examples, given, d)).values())) for d in DEPTHS
        ]
        gain = recalls(examples, given, 10) - base
        gains = (
            difference(sets, gain),
            difference([s for s, f in zip(sets, free, strict=True) if f], gain[free]),
        )
        lines.append([name, *(f"{m:.3f}" for m in means), *gains])
    head = ["way", *(f"@{d}" for d in DEPTHS), "@10 against BM25", "without the fixed forms"]
    columns = [by_set(examples, recalls(examples, given, 10)) for given in rows.values()]
    of_sets = [
        [name, str(sets.count(name)), *(f"{c[name]:.3f}" for c in columns)] for name in columns[0]
    ]
    return f"{table(head, lines)}\n\n{table(['recall@10', 'questions', *rows], of_sets)}"


def context_table(examples: Sequence[Example], documents: Documents, rows: Rows) -> str:
    """Format recall@10 by length of the document and by the third of it that holds the evidence;
    all questions weigh alike.
    """
    parts: dict[str, list[Sequence[tuple[int, int]]]] = {}  # of each question the spans that count
    tokens = [len(documents[e.set, e.document].ids) for e in examples]
    for name, low, high in _LENGTHS:
        parts[name] = [
            e.evidence if low < count <= high else ()
            for e, count in zip(examples, tokens, strict=True)
        ]
    for third, name in enumerate(_THIRDS):
        parts[name] = [
            [(a, b) for a, b in e.evidence if 3 * (a + b) // (2 * len(e.vectors)) == third]
            for e in examples
        ]
    found = {
        (way, name): np.array(
            [
                recall(spans, score, 10)
                for spans, score in zip(evidence, given, strict=True)
                if spans
            ]
        )
        for way, given in rows.items()
        for name, evidence in parts.items()
    }
    counts = [sum(map(bool, evidence)) for evidence in parts.values()]
    lines = [["questions", *map(str, counts)]]
    lines += [
        [
            way,
            *(f"{found[way, name].mean():.3f}" if len(found[way, name]) else "-" for name in parts),
        ]
        for way in rows
    ]
    for way, other in _CONTEXT:
        gains = [found[way, name] - found[other, name] for name in parts]
        lines.append(
            [
                f"{way} against {other}",
                *(difference(["all"] * len(gain), gain) if len(gain) else "-" for gain in gains),
            ]
        )
    return table(["recall@10", *parts], lines)


def difference(sets: Sequence[str], gains: NDArray[np.float64]) -> str:
    """Format the mean over sets of paired differences, with its interval."""
    return "{:+.3f} ({:+.3f}, {:+.3f})".format(*interval(sets, gains))


def asked_elsewhere(
    data: Path, out: Path, table: WordTable, examples: Sequence[Example], *, measure: bool
) -> list[Example]:
    """Ask each question to the next document of its set, for sets whose questions are about one
    document.
    """
    sets = {one.found.name: one for one in chosen_sets(data, measure=measure)}
    tokenizer = read_tokenizer(out / "encoder")
    documents: dict[str, list[str]] = {}
    for e in examples:
        if e.set not in ("cuad", "qmsum") and e.document not in documents.setdefault(e.set, []):
            documents[e.set].append(e.document)
    found = []
    for e in examples:
        others = documents.get(e.set, [])
        if len(others) > 1:
            other = others[(others.index(e.document) + 1) % len(others)]
            one = sets[e.set]
            d = stored(out, e.set, other, one.found.texts[other])
            ids = tokenizer.encode(one.questions[e.number].text.strip()).ids
            features = torch.from_numpy(sentence_features(d.ids, d.bounds, ids, table))
            found.append(Example(e.set, e.number, other, e.query, unit_vectors(d), features, ()))
    return found


def area(right: NDArray[np.float64], wrong: NDArray[np.float64]) -> float:
    """Return the share of pairs in which the right one is larger; equal ones count half."""
    order = np.searchsorted(np.sort(wrong), right, side="left") + np.searchsorted(
        np.sort(wrong), right, side="right"
    )
    return float(order.mean() / 2 / len(wrong))


def calibration_table(
    head: HeldHead, examples: Sequence[Example], strangers: Sequence[Example]
) -> str:
    """Format how often sentences of a probability answer, and how well the best one separates
    answering documents from others.
    """
    given = scores(head, examples)
    other = scores(head, strangers)
    chance = torch.cat([s.sigmoid() for s in given]).numpy()
    answers = torch.cat([mark_answers(len(one.vectors), one.evidence) for one in examples]).numpy()
    edges = [0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0001]
    lines = []
    for low, high in pairwise(edges):
        inside = (chance >= low) & (chance < high)
        if inside.any():
            shares = f"{chance[inside].mean():.3f}", f"{answers[inside].mean():.3f}"
            lines.append([f"{low:g} to {min(high, 1):g}", str(inside.sum()), *shares])
    keys = {(one.set, one.number) for one in strangers}
    right = [
        best(s) for s, one in zip(given, examples, strict=True) if (one.set, one.number) in keys
    ]
    found = area(np.array(right), np.array([best(s) for s in other]))
    shown = table(["probability", "sentences", "mean of it", "share that answers"], lines)
    return (
        f"{shown}\n\nBest sentence of the document asked about against that of another document:"
        f" area {found:.3f}"
    )


def best(score: Tensor) -> float:
    """Return the largest score."""
    return float(score.amax()) if len(score) else -np.inf
