"""Trainable forward passes: the vectors and scores of `Embedder`, `Reranker` and `SentenceRetriever`, with a graph.

T  tokens of a row   S  sentences of a document   N  scored units of all items: pairs, or sentences that have a token
d  width of vectors  n  rows or pairs             D  width of hidden vectors   F  lexical features
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.int8 import Int8Linear
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.embedder import Embedder
from runnel.models.heads import Head
from runnel.models.match import Item
from runnel.models.reranker import Reranker
from runnel.models.scanner import Scanner
from runnel.request import Request
from runnel.text.sentences import read_sentences, read_spans
from runnel.training.segments import WHOLE, Long, StepResult, close, cut, gather, read

_NOTHING = np.zeros(0, dtype=np.int64)


def trainable(model: Model) -> None:
    """Make the backbone and the heads trainable; if the backbone has adapters, the adapters and the heads.

    This drops the prepared fast path, which ignores autograd and adapters. `finished` reverses it.
    """
    if any(isinstance(module, Int8Linear) for module in model.backbone.modules()):
        raise InputError(
            f'{model.source} has 8-bit weights, which cannot be trained; load it with dtype="float32" or dtype="bfloat16"'
        )
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


# ---- vectors ---------------------------------------------------------------------------------------------------------


def render_document(model: Model, text: str, prompt: str = "", max_tokens: int | None = None) -> np.ndarray:
    """Return the ids (T,) int32 that `Embedder` reads for a text; see `Embedder.render`, which also counts cut texts."""
    return next(Embedder(model).render([text], prompt=prompt, max_tokens=max_tokens))


def vectors(model: Model, rows: Sequence[np.ndarray], long: Long = WHOLE) -> Tensor:
    """Return unit vectors (n, d) of rows of complete ids (`render_document`), as from `Embedder.encode`."""
    head = model.head("embed")
    requests = [head.request(row) for row in rows]
    parts = list(read(model, requests, long))
    each = torch.arange(len(rows), device=model.backbone.device)
    hidden, means = gather(parts, *((each[:0], each) if head.pooling == "mean" else (each, each[:0])))
    result: Tensor = head(means if head.pooling == "mean" else hidden)
    return result


# ---- pairs and sentences -----------------------------------------------------------------------------------------------


def trains_pairs(model: Model) -> bool:
    """Return whether the reranker scores one vector of a pair that is read as one text; others cannot be trained here."""
    head = model.head("rerank")
    return not head.stored and head.state is None and head.pooling != "mean"


def make_pair(model: Model, query: str, document: str, max_tokens: int | None = None) -> Item:
    """Make a pair as `Reranker.score` reads it; `Item.cut` is the number of the document's tokens cut by `max_tokens`."""
    if not trains_pairs(model):
        kind = "stored vectors" if model.head("rerank").stored else "a state, or the mean of a pair"
        raise InputError(f"{model.source} scores {kind}, which cannot be trained here; train a model that scores one vector")
    reranker, template = Reranker(model), model.templates["rerank"]
    query_ids = template.encode_query(model.tokenizer, query)
    document_ids = template.encode(model.tokenizer, "document", document).ids
    return reranker.pair(query_ids, document_ids, reranker.pair_limit(max_tokens))


def make_item(
    model: Model,
    query: str,
    document: str,
    spans: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Item:
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


def pair_scores(model: Model, pairs: Sequence[Item], long: Long = WHOLE) -> Tensor:
    """Return scores (n,) of pairs, as from `Reranker.score`."""
    return _Units.of(model, "rerank", pairs).read(long)


def sentence_scores(model: Model, items: Sequence[Item], long: Long = WHOLE) -> list[Tensor]:
    """Return scores (S,) of each item's sentences, as from `SentenceRetriever.score`; without a token -inf, without gradient."""
    units = _Units.of(model, "sentences", items)
    scores = units.read(long)
    result = []
    for number, item in enumerate(items):
        mine = scores[torch.from_numpy(units.item == number)]
        full = torch.from_numpy(item.full).to(scores.device)
        result.append(scores.new_full((len(full),), -torch.inf).masked_scatter(full, mine))
    return result


@dataclass(frozen=True, eq=False)
class _Units:
    """All scored units, in order, with the indices of their inputs; the ranges are empty for a head that does not match."""

    model: Model
    head: Head
    requests: list[Request]
    item: np.ndarray  # (N,) of each unit
    unit: np.ndarray  # (N,) its number in the item
    range: Tensor  # (N,) its range among those of all requests
    other: Tensor  # (N,) the range that it is compared with
    lexical: Tensor  # (N, F) float32

    @staticmethod
    def of(model: Model, job: str, items: Sequence[Item]) -> _Units:
        head, device, requests = model.head(job), model.backbone.device, [item.request for item in items]
        counts = [len(request.wanted()[0]) for request in requests]
        owner = np.repeat(np.arange(len(items)), counts)
        matched = torch.from_numpy(owner)[: None if head.matches else 0]
        first = torch.from_numpy(np.cumsum([0, *counts]))[matched]
        lexical = np.concatenate([request.tag for request in requests]) if head.matches and requests else np.zeros((0, 0))
        return _Units(
            model,
            head,
            requests,
            item=owner,
            unit=np.concatenate([_NOTHING, *(np.flatnonzero(item.full) for item in items)]),
            # An item's first range is the one that its units are compared with.
            range=(torch.arange(len(matched)) + matched + 1).to(device),
            other=(first + matched).to(device),
            lexical=torch.from_numpy(lexical).to(device),
        )

    def read(self, long: Long) -> Tensor:
        return self.scores(list(read(self.model, self.requests, long)), torch.arange(len(self.item)))

    def scores(self, parts: Sequence[StepResult], chosen: Tensor) -> Tensor:
        """Return scores (m,) of the chosen units (m,), whose tokens are all in `parts`."""
        chosen = chosen.to(self.range.device)
        result: Tensor
        if not self.head.matches:
            result = self.head(gather(parts, chosen, chosen[:0])[0])
            return result
        mine, other = self.range[chosen], self.other[chosen]
        ranges = torch.cat([mine, other]).unique()
        hidden, means = gather(parts, chosen, ranges)
        result = self.head(
            means[torch.searchsorted(ranges, mine)], hidden, means[torch.searchsorted(ranges, other)], self.lexical[chosen]
        )
        return result

    def steps(self, long: Long) -> int:
        """Return the number of steps of `read`."""
        longest = max(len(request.ids) for request in self.requests)
        return -(-longest // (long.segment_tokens or longest))

    def last_steps(self, long: Long) -> tuple[np.ndarray, np.ndarray]:
        """Return the step that each unit (N,) ends in, and the last step whose scores need each range (B,)."""
        size = long.segment_tokens or max(len(request.ids) for request in self.requests)
        ends, uses = [], [_NOTHING]
        for request in self.requests:
            positions, ranges = request.wanted()
            last = positions // size
            if len(ranges):  # the mean needs the whole sentence, and the query is needed to the end
                last = (ranges[1:, 1] - 1) // size
                uses.append(np.concatenate([[(len(request.ids) - 1) // size], last]))
            ends.append(last)
        return np.concatenate(ends), np.concatenate(uses)


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
    units = _Units.of(model, "sentences", items)
    each = long.gradient_segments or units.steps(long)
    ends, last_use = units.last_steps(long)
    done = 0
    blocks: list[list[tuple[StepResult, StepResult]]] = [[]]
    for part in read(model, units.requests, long):
        blocks[-1].append((part, cut(part)))
        done += 1
        if done % each and done < units.steps(long):
            continue
        chosen = np.flatnonzero((ends >= done - len(blocks[-1])) & (ends < done))
        if len(chosen):
            leaves = [leaf for block in blocks for _, leaf in block]
            scores = units.scores(leaves, torch.from_numpy(chosen))
            yield SegmentScores(units.item[chosen], units.unit[chosen], scores)
        still = []
        for block in blocks:
            if any(bool((last_use[leaf.ranges.cpu()] >= done).any()) for _, leaf in block):
                still.append(block)
            else:
                close(block)
        blocks = [*still, []]
