"""Trainable forward passes: the vectors and scores of `Embedder`, `Reranker` and `SentenceRetriever`, with a graph.

T  tokens of a row   S  sentences of a document   d  width of vectors   n  rows or pairs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
import torch
from torch import Tensor

from runnel.models.adapters import expect_trainable
from runnel.models.base import Model
from runnel.models.graph import WHOLE, Long, Step, begin, close, read, steps
from runnel.models.items import Item, UnitScores, unit_scores
from runnel.models.scanner import Scanner
from runnel.text.sentences import read_sentences, read_spans


def trainable(model: Model) -> None:
    """Make the backbone and the heads trainable; if the backbone has adapters, the adapters and the heads.

    This drops the prepared fast path, which ignores autograd and adapters. `finished` reverses it.
    """
    expect_trainable(model)
    adapted = model.backbone.adapted
    for name, parameter in model.backbone.named_parameters():
        parameter.requires_grad_(not adapted or "lora_" in name)
    model.heads.requires_grad_(True)
    model.backbone.train()
    model.heads.train()


def finished(model: Model) -> None:
    """Freeze a trained model and prepare it for inference: kernels, token weights and engine use the current weights."""
    model.backbone.requires_grad_(False).eval()
    model.heads.requires_grad_(False).eval()
    model.refresh()


def make_item(model: Model, query: str, document: str, spans: np.ndarray | None = None, labels: np.ndarray | None = None) -> Item:
    """Make an item of a query and a document as `SentenceRetriever.score` reads them.

    `spans` (S, 2) tile the document, by default in the model's units; `labels` (S,) are of these.
    """
    scanner = Scanner(model)
    encoded = [scanner.encode(document)]
    tokens = (
        read_sentences(document, encoded, unit=model.unit)
        if spans is None
        else read_spans(document, encoded, np.asarray(spans, np.int64).reshape(-1, 2))
    )
    return scanner.item(query, tokens, None if labels is None else np.asarray(labels, np.float32))


def sentence_scores(model: Model, items: Sequence[Item], long: Long = WHOLE) -> list[Tensor]:
    """Return scores (S,) of each item's sentences, as from `SentenceRetriever.score`; without a token -inf, without gradient."""
    head, scores = model.head("sentences"), []
    for item, result in zip(items, read(model, [item.request for item in items], long), strict=True):
        units = unit_scores(head, result)
        full = torch.from_numpy(item.full).to(units.device)
        scores.append(units.new_full((len(full),), -torch.inf).masked_scatter(full, units))
    return scores


@dataclass(frozen=True, eq=False)
class SegmentScores:
    """Sentences that ended in the last segments: their item (m,), their number in it (m,), their scores (m,)."""

    item: np.ndarray
    sentence: np.ndarray
    scores: Tensor


def sentence_segments(model: Model, items: Sequence[Item], long: Long) -> Iterator[SegmentScores]:
    """Yield `sentence_scores` in pieces; run each piece backward before requesting the next.

    With `gradient_segments` a piece is the sentences that ended in that many segments, and memory does not grow with
    the document: a segment's graph is freed when no later sentence can reach it. The gradients of all pieces add up to those of
    one backward pass over `sentence_scores` with the same `long`. Sentences without a token appear in no piece.
    """
    head = model.head("sentences")
    readings = begin(model, [item.request for item in items])
    units = [UnitScores(head, reading, reading.request.tag) for reading in readings]
    full = [np.flatnonzero(item.full) for item in items]
    size = long.segment_tokens or max(reading.left for reading in readings)
    # The mean of the query is compared with every sentence, so the segments with the query are needed to the end.
    query = max(int(item.request.wanted()[1][0, 1]) for item in items) if head.inputs == "matches" else 0
    blocks: list[tuple[int, int, list[Step]]] = []  # with their first token and their end
    block: list[Step] = []
    for number, step in enumerate(steps(model, readings, long, cut=True), 1):
        block.append(step)
        going = [reading for reading in readings if reading.left]
        if going and number % (long.gradient_segments or number + 1):
            continue
        blocks, block = [*blocks, ((number - len(block)) * size, number * size, block)], []
        first = [unit.done for unit in units]
        pieces = [unit.take_complete() for unit in units]
        item = np.repeat(np.arange(len(items)), [len(piece) for piece in pieces])
        if len(item):
            sentence = np.concatenate([rows[a : unit.done] for rows, a, unit in zip(full, first, units, strict=True)])
            yield SegmentScores(item, sentence, torch.cat(pieces))
        if not going:
            close(unit.cut for unit in units if unit.cut)
        settled = min((reading.settled for reading in going), default=number * size)
        needed = [bool(going) and (first_token < query or end > settled) for first_token, end, _ in blocks]
        for (_, _, steps_read), keep in zip(blocks, needed, strict=True):
            if not keep:
                close(pair for parts, leaves in chain(*steps_read) for pair in zip(parts, leaves, strict=True))
        blocks = list(compress(blocks, needed))
