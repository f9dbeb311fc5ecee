"""Evidence examples for training a sentence retriever: labels of sentences, and windows of long documents.

S  sentences of a document   E  evidence spans of an example
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Features, List, Value

from runnel.errors import InputError
from runnel.lab.training.data import Evidence
from runnel.lab.training.forward import make_item
from runnel.lab.training.rows import RowData, write_rows
from runnel.models.base import Model
from runnel.models.items import Item
from runnel.text.sentences import split_sentences

log = logging.getLogger("runnel")

_FEATURES = Features(
    {
        "id": Value("string"),
        "query": Value("string"),
        "document": Value("large_string"),
        "edges": List(Value("int64")),  # starts of the sentences, and the end of the last
        "labels": List(Value("bool")),
        "tokens": Value("int64"),  # of the item
    }
)


def units_of(example: Evidence) -> np.ndarray:
    """Return the spans (S, 2) of an example's own units, or of the sentences of its document."""
    return np.array(example.units) if example.units else split_sentences(example.document)


def label_sentences(document: str, sentences: np.ndarray, evidence: Sequence[tuple[int, int]]) -> np.ndarray:
    """Label the sentences that share at least half of themselves, or half of an evidence span, with an evidence span.

    So the sentence around a short answer is positive, as are the sentences of a long passage, and every span makes at least one
    sentence positive. A span that only slightly overlaps a sentence does not: one false positive weighs as much as hundreds of
    negatives in the loss. Only characters that are not whitespace count. Sentences (S, 2) tile the text, labels (S,) are bool.
    """
    labels = np.zeros(len(sentences), dtype=bool)
    for start, end in evidence:
        assert document[start:end].strip(), "read_evidence refuses such spans"
        first = int(np.searchsorted(sentences[:, 1], start, side="right"))
        last = int(np.searchsorted(sentences[:, 0], end, side="left"))
        for number in range(first, last):
            a, b = sentences[number].tolist()
            shared = _visible(document[max(a, start) : min(b, end)])
            labels[number] |= 2 * shared >= min(_visible(document[a:b]), _visible(document[start:end])) > 0
    return labels


def expect_tokens(full: np.ndarray, name: str) -> None:
    """Raise InputError unless a sentence (S,) of the document of an example has a token."""
    if not full.any():
        raise InputError(f"evidence example {name}: the document has no tokens; remove the example")


def choose_window(bounds: np.ndarray, labels: np.ndarray, lengths: Sequence[int], rng: np.random.Generator) -> slice:
    """Choose the sentences of a window at a random place that contains all positives.

    The window has at most as many tokens as one of `lengths`, drawn at random. If the positives are too far apart for it, the
    next longer of `lengths` is used; if they fit none, the whole document: evidence is never split. Without positives the window
    may be anywhere, and a single sentence that is longer is used whole.
    """
    whole, total = slice(0, len(labels)), int(bounds[-1] - bounds[0])
    tokens = int(rng.choice(np.asarray(lengths)))
    if total <= tokens:
        return whole
    if labels.any():
        inside = np.flatnonzero(labels)
        first, last = int(inside[0]), int(inside[-1]) + 1
        span = int(bounds[last] - bounds[first])
        tokens = min((n for n in lengths if n >= max(tokens, span)), default=total)
        if total <= tokens:
            return whole
    else:
        first = int(rng.choice(np.flatnonzero(np.diff(bounds) > 0)))
        last = first + 1
        if bounds[last] - bounds[first] >= tokens:
            return slice(first, last)
    lowest, highest = max(int(bounds[0]), int(bounds[last]) - tokens), min(int(bounds[first]), int(bounds[-1]) - tokens)
    start = int(rng.integers(lowest, highest + 1))
    return slice(int(np.searchsorted(bounds, start, side="left")), int(np.searchsorted(bounds, start + tokens, side="right")) - 1)


class SentenceData(RowData[Item]):
    """Examples in a file from `write`, made into items with the tokenizer and the templates of a model."""

    def __init__(self, model: Model, path: str | Path) -> None:
        super().__init__(path)
        self._model = model

    @classmethod
    def write(
        cls, path: str | Path, model: Model, evidence: Iterable[Evidence], *, tokens: Sequence[int] | None = None, seed: int = 0
    ) -> SentenceData:
        """Label and cut examples, one at a time, and write them to a file. Equal arguments give an equal file."""
        counts: Counter[str] = Counter()
        write_rows(Path(path), _FEATURES, _rows(model, evidence, tokens, seed, counts))
        log.info(
            "%d examples, %d tokens; %d were cut to windows; %d stay whole because no window holds their evidence; "
            "%d documents have no answer",
            *(counts[name] for name in ("examples", "tokens", "windows", "whole", "unanswered")),
        )
        return cls(model, path)

    def _make(self, row: dict[str, Any]) -> Item:
        edges = np.asarray(row["edges"], dtype=np.int64)
        spans = np.stack([edges[:-1], edges[1:]], axis=1)
        return make_item(self._model, str(row["query"]), str(row["document"]), spans, np.asarray(row["labels"], dtype=np.float32))


def _rows(
    model: Model, evidence: Iterable[Evidence], tokens: Sequence[int] | None, seed: int, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    for index, example in enumerate(evidence):
        row = _row(model, example, tokens, np.random.default_rng((seed, index)), counts)
        counts.update(examples=1, tokens=row["tokens"], unanswered=not any(row["labels"]))
        yield row


def _row(
    model: Model, example: Evidence, tokens: Sequence[int] | None, rng: np.random.Generator, counts: Counter[str]
) -> dict[str, Any]:
    document = example.document
    item = make_item(model, example.query, document, np.array(example.units) if example.units else None)
    assert item.sentences is not None
    sentences, bounds = item.sentences.spans, item.sentences.bounds  # or other units, of the example or the model
    labels = label_sentences(document, sentences, example.spans)
    if tokens is not None:
        window = choose_window(bounds, labels, tokens, rng)
        if window != slice(0, len(labels)):
            counts["windows"] += 1
            document = document[sentences[window.start, 0] : sentences[window.stop - 1, 1]]
            sentences, labels = sentences[window] - sentences[window.start, 0], labels[window]
            item = make_item(model, example.query, document, sentences, labels)
        elif bounds[-1] > max(tokens):
            counts["whole"] += 1  # longer than every length, kept whole for its evidence
    expect_tokens(item.full, example.id)
    edges = [0, *sentences[:, 1].tolist()]
    row = {"id": example.id, "query": example.query, "document": document, "edges": edges, "labels": labels.tolist()}
    return row | {"tokens": len(item.request.ids)}


def _visible(text: str) -> int:
    return len("".join(text.split()))
