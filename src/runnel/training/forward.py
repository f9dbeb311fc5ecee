"""Forward passes that can be trained: the vectors and scores of `Embedder`, `Reranker` and `SentenceRetriever`, with a graph.

T  tokens of a row   S  sentences of a document   N  sentences of all items that have a token   D  width of hidden vectors
d  width of vectors  n  rows or pairs             F  lexical features
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.int8 import Int8Linear
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.embedder import Embedder
from runnel.models.heads import MatchScore, VectorRelevance
from runnel.models.readers import lexical_features
from runnel.models.reranker import Pair, Reranker
from runnel.models.scanner import Scanner
from runnel.text.sentence_tokens import read_sentences, read_spans
from runnel.training.reading import WHOLE, Long, Part, Reading, close, cut, gather, read

__all__ = [
    "Long",
    "Pair",
    "SegmentScores",
    "SentenceItem",
    "backward_by_segment",
    "finished",
    "make_item",
    "make_pair",
    "pair_scores",
    "render_document",
    "sentence_scores",
    "sentence_segments",
    "trainable",
    "vectors",
]

_NOTHING = np.zeros(0, dtype=np.int64)


def trainable(model: Model) -> None:
    """Make the backbone and the heads trainable; where the backbone has adapters, the adapters and the heads.

    The prepared fast path is dropped, so that autograd and adapters are seen. `finished` is the way back.

    Raises:
        InputError: the weights are 8-bit numbers.
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
    """Freeze a trained model and make it ready for inference: kernels, token weights and engine take up the present weights."""
    model.backbone.requires_grad_(False).eval()
    model.heads.requires_grad_(False).eval()
    model.refresh()


# ---- vectors ---------------------------------------------------------------------------------------------------------


def render_document(model: Model, text: str, prompt: str = "", max_tokens: int | None = None) -> np.ndarray:
    """The ids (T,) int32 that `Embedder` reads for a text; see `Embedder.render`, which also counts the texts it cuts."""
    return next(Embedder(model).render([text], prompt=prompt, max_tokens=max_tokens))


def vectors(model: Model, rows: Sequence[np.ndarray], long: Long = WHOLE) -> Tensor:
    """Unit vectors (n, d) of rows of complete ids (`render_document`), as `Embedder.encode` gives them.

    Raises:
        InputError: no rows, or an empty one.
    """
    embedder = Embedder(model)
    places = [np.array([0 if embedder.pooling == "cls" else len(row) - 1]) for row in rows]
    if embedder.pooling == "mean":
        readings = [Reading(row, _NOTHING, np.array([0]), np.array([len(row)])) for row in rows]
    else:
        readings = [Reading(row, place, _NOTHING, _NOTHING) for row, place in zip(rows, places, strict=True)]
    hidden, means = _all(model, readings, long)
    result: Tensor = model.head("embed")(means if embedder.pooling == "mean" else hidden)
    return result


# ---- pairs -----------------------------------------------------------------------------------------------------------


def make_pair(model: Model, query: str, document: str, max_tokens: int | None = None) -> Pair:
    """A pair as `Reranker.score` reads it; `Pair.cut` tells how many of the document's tokens `max_tokens` left out.

    Raises:
        InputError: the query is empty or has no tokens, `max_tokens` has no room for it, or the model reads no pairs.
    """
    if isinstance(model.head("rerank"), VectorRelevance):
        raise InputError(
            f"{model.source} ranks by what is stored of documents, which is not trained here; "
            "train a model with a head that reads pairs"
        )
    reranker, template = Reranker(model), model.templates["rerank"]
    query_ids = template.encode_query(model.tokenizer, query)
    document_ids = template.encode(model.tokenizer, "document", document).ids
    return reranker.pair(query_ids, document_ids, reranker.pair_limit(max_tokens))


def pair_scores(model: Model, pairs: Sequence[Pair], long: Long = WHOLE) -> Tensor:
    """Scores (n,) of pairs, as `Reranker.score` gives them."""
    head = model.head("rerank")
    first = getattr(head, "pooling", "eos") == "cls"
    readings = []
    for pair in pairs:
        starts, ends = np.array([[part.start, part.stop] for part in pair.slices], np.int64).reshape(-1, 2).T
        readings.append(Reading(pair.ids, np.array([0 if first else len(pair.ids) - 1]), starts, ends, pair.marks))
    hidden, means = _all(model, readings, long)
    result: Tensor
    if isinstance(head, MatchScore):
        share = torch.tensor([[pair.share] for pair in pairs], device=hidden.device)
        result = head(means[1::2], hidden, means[0::2], share)
    else:
        result = head(hidden)
    return result


# ---- sentences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SentenceItem:
    """A query and a document made ready to be read as one row, and what is known of the document's sentences.

    Attributes:
        ids: (T,) int32 token ids of query and document.
        query: where the query is.
        spans: (S, 2) int64 characters of the document.
        bounds: (S+1,) int64 tokens of the row: sentence i is [bounds[i], bounds[i+1]).
        ends: (S,) int64 tokens of the row at which sentences are scored, inside their bounds (`SentenceTokens.ends`).
        marks: (T, K) float32, for a `MatchScore` head.
        lexical: (S, F) float32, for the same.
        labels: (S,) float32, 1 for sentences that answer the query, where they are given.
    """

    ids: np.ndarray
    query: slice
    spans: np.ndarray
    bounds: np.ndarray
    ends: np.ndarray
    marks: np.ndarray | None = None
    lexical: np.ndarray | None = None
    labels: np.ndarray | None = None

    @property
    def full(self) -> np.ndarray:
        """(S,) bool: the sentence has a token."""
        return np.diff(self.bounds) > 0


def make_item(
    model: Model,
    query: str,
    document: str,
    spans: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    language: str = "en",
) -> SentenceItem:
    """A query and a document as `SentenceRetriever.score` reads them.

    Args:
        spans: (S, 2) sentences of the document, which tile it; default: split into the model's units, as in retrieval.
        labels: (S,) for these sentences, or none.
        language: of the document, where it has to be split.

    Raises:
        InputError: the query is empty or has no tokens, or there are not as many labels as sentences.
    """
    scanner = Scanner(model)
    query_ids, before, place = scanner.prefix(query)
    encoded = [scanner.encode(document)]
    tokens = (
        read_sentences(document, encoded, unit=model.unit, language=language)
        if spans is None
        else read_spans(document, encoded, np.asarray(spans, np.int64).reshape(-1, 2))
    )
    spans, bounds = tokens.spans, tokens.bounds
    if labels is not None and len(labels) != len(spans):
        raise InputError(f"the document has {len(spans)} sentences but {len(labels)} labels were given; give one for each")
    made, marks, lexical = scanner.marks(tokens.ids, query_ids), None, None
    if made is not None:
        marks = np.concatenate([np.zeros((len(before), made.shape[1]), np.float32), made[:]])
    if made is not None and model.features is not None and len(spans):
        lexical = lexical_features(tokens.ids, bounds, query_ids, model.features.idf.cpu().numpy())
    return SentenceItem(
        ids=np.concatenate([before, tokens.ids]),
        query=place,
        spans=spans,
        bounds=bounds + len(before),
        ends=tokens.ends + len(before),
        marks=marks,
        lexical=lexical,
        labels=None if labels is None else np.asarray(labels, np.float32),
    )


def sentence_scores(model: Model, items: Sequence[SentenceItem], long: Long = WHOLE) -> list[Tensor]:
    """Scores (S,) of the sentences of each item, as `SentenceRetriever.score` gives them.

    A sentence without a token has the lowest score of the others, without gradient.
    """
    plan = _Plan.of(model, items)
    scores = plan.scores(model, list(read(model, plan.readings, long)), torch.arange(len(plan.item)))
    result = []
    for number, item in enumerate(items):
        mine = scores[torch.from_numpy(plan.item == number)]
        lowest = mine.detach().amin() if len(mine) else scores.new_zeros(())
        full = torch.from_numpy(item.full).to(scores.device)
        result.append(lowest.expand(len(full)).masked_scatter(full, mine))
    return result


@dataclass(frozen=True, eq=False)
class _Plan:
    """All sentences with a token, in order, and where the numbers for their scores are.

    Attributes:
        item, sentence: (N,) whose they are, and their number in it.
        range: (N,) their range among those of all readings, and that of their query; both empty without a `MatchScore` head.
        query: (N,)
        lexical: (N, F) float32.
    """

    readings: list[Reading]
    item: np.ndarray
    sentence: np.ndarray
    range: Tensor
    query: Tensor
    lexical: Tensor

    @staticmethod
    def of(model: Model, items: Sequence[SentenceItem]) -> _Plan:
        matches = isinstance(model.head("sentences"), MatchScore)
        readings = []
        for item in items:
            starts, stops, ends = item.bounds[:-1][item.full], item.bounds[1:][item.full], item.ends[item.full]
            if matches:
                starts, stops = np.concatenate([[item.query.start], starts]), np.concatenate([[item.query.stop], stops])
                readings.append(Reading(item.ids, ends, starts, stops, item.marks))
            else:
                readings.append(Reading(item.ids, ends, _NOTHING, _NOTHING))
        counts = [len(reading.positions) for reading in readings]
        owner = np.repeat(np.arange(len(items)), counts)
        numbers = torch.arange(len(owner) if matches else 0)
        shift = torch.from_numpy(owner)[: len(numbers)]
        first = torch.from_numpy(np.cumsum([0, *counts]))[shift]
        device = model.backbone.device
        lexical = [item.lexical[item.full] for item in items if item.lexical is not None]
        return _Plan(
            readings,
            item=owner,
            sentence=np.concatenate([_NOTHING, *(np.flatnonzero(item.full) for item in items)]),
            range=(numbers + shift + 1).to(device),  # each item's query comes first
            query=(first + shift).to(device),
            lexical=torch.from_numpy(np.concatenate(lexical)).to(device) if lexical else torch.zeros(0, 0, device=device),
        )

    def scores(self, model: Model, parts: Sequence[Part], chosen: Tensor) -> Tensor:
        """Scores (m,) of the chosen sentences (m,), whose tokens are all in `parts`."""
        head = model.head("sentences")
        chosen = chosen.to(self.range.device)
        result: Tensor
        if not isinstance(head, MatchScore):
            result = head(gather(parts, chosen, chosen[:0])[0])
            return result
        mine, query = self.range[chosen], self.query[chosen]
        ranges = torch.cat([mine, query]).unique()
        hidden, means = gather(parts, chosen, ranges)
        result = head(
            means[torch.searchsorted(ranges, mine)], hidden, means[torch.searchsorted(ranges, query)], self.lexical[chosen]
        )
        return result

    def steps(self, long: Long) -> int:
        """How many steps `read` takes."""
        longest = max(len(reading.ids) for reading in self.readings)
        return -(-longest // (long.segment_tokens or longest))

    def last_steps(self, long: Long) -> tuple[np.ndarray, np.ndarray]:
        """The step that each sentence (N,) ends in, and the last one whose scores need each range (B,)."""
        size = long.segment_tokens or max(len(reading.ids) for reading in self.readings)
        ends, uses = [], [_NOTHING]
        for reading in self.readings:
            last = reading.positions // size
            if len(reading.starts):  # the mean needs the whole sentence, and the query is needed to the end
                last = (reading.ends[1:] - 1) // size
                uses.append(np.concatenate([[(len(reading.ids) - 1) // size], last]))
            ends.append(last)
        return np.concatenate(ends), np.concatenate(uses)


def _all(model: Model, readings: Sequence[Reading], long: Long) -> tuple[Tensor, Tensor]:
    """Wanted hidden vectors (P, D) and means (B, D) of whole readings."""
    device = model.backbone.device
    positions = torch.arange(sum(len(reading.positions) for reading in readings), device=device)
    ranges = torch.arange(sum(len(reading.starts) for reading in readings), device=device)
    return gather(list(read(model, readings, long)), positions, ranges)


@dataclass(frozen=True, eq=False)
class SegmentScores:
    """Sentences that ended in the segments just read: their item (m,), their number in it (m,), their scores (m,)."""

    item: np.ndarray
    sentence: np.ndarray
    scores: Tensor


def sentence_segments(model: Model, items: Sequence[SentenceItem], long: Long) -> Iterator[SegmentScores]:
    """`sentence_scores` a piece at a time, each piece to be run backward before the next is asked for.

    With `gradient_segments` a piece is the sentences that ended in that many segments, and the memory held does not grow with
    the document: a segment's graph goes when no later sentence can reach it. The gradients of all pieces together are those of
    one backward pass over `sentence_scores` with the same `long`. Sentences without a token appear in no piece.
    """
    plan = _Plan.of(model, items)
    each = long.gradient_segments or plan.steps(long)
    ends, last_use = plan.last_steps(long)
    done = 0
    blocks: list[list[tuple[Part, Part]]] = [[]]
    for part in read(model, plan.readings, long):
        blocks[-1].append((part, cut(part)))
        done += 1
        if done % each and done < plan.steps(long):
            continue
        chosen = np.flatnonzero((ends >= done - len(blocks[-1])) & (ends < done))
        if len(chosen):
            leaves = [leaf for block in blocks for _, leaf in block]
            scores = plan.scores(model, leaves, torch.from_numpy(chosen))
            yield SegmentScores(plan.item[chosen], plan.sentence[chosen], scores)
        still = []
        for block in blocks:
            if any(bool((last_use[leaf.ranges.cpu()] >= done).any()) for _, leaf in block):
                still.append(block)
            else:
                close(block)
        blocks = [*still, []]


def backward_by_segment(
    model: Model, items: Sequence[SentenceItem], loss: Callable[[SegmentScores], Tensor], long: Long
) -> Tensor:
    """Run `loss` (a sum over sentences) and its backward pass on each piece of `sentence_segments`; the sum of the losses."""
    total = torch.zeros((), device=model.backbone.device)
    for piece in sentence_segments(model, items, long):
        value = loss(piece)
        value.backward()
        total = total + value.detach()
    return total
