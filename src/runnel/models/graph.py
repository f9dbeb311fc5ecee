"""Reading with a graph: segment by segment, keeping only the requested hidden vectors and sums; and what comes of it.

d  width of vectors   n  rows or pairs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.backbones.state import State
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.items import Item, as_leaf, unit_scores
from runnel.models.reranker import Reranker
from runnel.records import expect_count
from runnel.request import OpenRequest, Packed, Request, Result, pack


@dataclass(frozen=True)
class Long:
    """Settings for reading long rows in training (docs/training.md). All but `gradient_segments` change no gradient."""

    segment_tokens: int | None = None  # for recurrent backbones; None: whole rows
    recompute: bool = False  # keep the input of each layer, or of rows in segments the state before each
    gradient_segments: int | None = None  # a token's loss reaches at most that many segments back
    bf16: bool = False  # autocast of linear layers; weights, states and results keep their dtypes

    def __post_init__(self) -> None:
        for name in ("segment_tokens", "gradient_segments"):
            if getattr(self, name) is not None:
                expect_count(getattr(self, name), name)
        if self.gradient_segments is not None and self.segment_tokens is None:
            raise InputError("gradient_segments counts segments; also give segment_tokens, their length")


WHOLE = Long()


Outputs = tuple[Tensor, Tensor]  # `OpenRequest.part` of the tokens of a step
Step = list[tuple[Outputs, Outputs]]  # of each reading in the step, and the same as leaves


def begin(model: Model, requests: Sequence[Request]) -> list[OpenRequest]:
    """Return requests of at least one token each, not read yet."""
    assert requests and all(len(request.ids) for request in requests)
    return [OpenRequest(request, request.ids, model.backbone.block_ends(request.ids)) for request in requests]


def read(model: Model, requests: Sequence[Request], long: Long) -> list[Result]:
    """Return the results of requests, as the engine does, with a graph."""
    readings = begin(model, requests)
    for _ in steps(model, readings, long):
        pass
    return [reading.result() for reading in readings]


def steps(model: Model, readings: Sequence[OpenRequest], long: Long, *, cut: bool = False) -> Iterator[Step]:
    """Read the same segment of all that are long enough in one step; yield after each what it gave them.

    With `cut` the readings get leaves, which collect gradients for `close`.
    """
    check_segments(model, long)
    size = long.segment_tokens or max(reading.left for reading in readings)
    again = long.recompute and torch.is_grad_enabled() and any(reading.left > size for reading in readings)
    going, state, number = list(readings), None, 0
    while going:
        if state is not None and long.gradient_segments is not None and number % long.gradient_segments == 0:
            state = state.detach()
        packed = pack([(reading, min(size, reading.left)) for reading in going])
        run = (model, packed, state, long)
        parts, state = checkpoint(_run, *run, use_reentrant=False) if again else _run(*run)
        leaves = [(as_leaf(picked), as_leaf(rows)) for picked, rows in parts] if cut else parts
        for (reading, count), leaf in zip(packed.plan, leaves, strict=True):
            reading.add(count, *leaf)
        yield list(zip(parts, leaves, strict=True))
        number += 1
        more = [place for place, reading in enumerate(going) if reading.left]
        if 0 < len(more) < len(going):
            state = state.select(torch.tensor(more))
        going = [going[place] for place in more]


def check_segments(model: Model, long: Long) -> None:
    """Raise InputError if `segment_tokens` is set for a transformer."""
    if long.segment_tokens is not None and not model.backbone.recurrent:
        raise InputError(
            f"segment_tokens = {long.segment_tokens} cannot be used: {model.backbone.title} only reads whole texts; remove it "
            "(recompute = true saves memory), or train a recurrent model"
        )


def close(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Run the backward pass of tensors from the gradients that their leaves, the second of each pair, have collected."""
    pairs = [(tensor, leaf) for tensor, leaf in pairs if leaf.grad is not None]
    if pairs:
        torch.autograd.backward([tensor for tensor, _ in pairs], [leaf.grad for _, leaf in pairs])


def _run(model: Model, packed: Packed, state: State | None, long: Long) -> tuple[list[Outputs], State]:
    """Run one step: return what it gives each reading, and the state after it."""
    features, ids = model.features, torch.from_numpy(packed.ids).to(model.backbone.device)
    added = None
    if packed.marks is not None and features is not None:
        added = torch.from_numpy(packed.marks).to(features.mark_vectors) @ features.mark_vectors
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=long.bf16):
        hidden, state = model.backbone(ids, torch.from_numpy(packed.cu_seqlens), state, added, recompute=long.recompute)
    return packed.parts(hidden, None if features is None else features.weight()), state


def vectors(model: Model, rows: Sequence[np.ndarray], long: Long = WHOLE) -> Tensor:
    """Return unit vectors (n, d) of rows of complete ids (`render_document`), as from `Embedder.encode`."""
    head = model.head("embed")
    requests = [head.request(row) for row in rows]
    result: Tensor = head(torch.cat([head.pooled(result) for result in read(model, requests, long)]))
    return result


def trains_pairs(model: Model) -> bool:
    """Return whether the reranker scores one vector of a pair that is read as one text; others cannot be trained here."""
    head = model.head("rerank")
    return head.inputs in ("text", "matches") and head.pooling != "mean"


def make_pair(model: Model, query: str, document: str, max_tokens: int | None = None) -> Item:
    """Make a pair as `Reranker.score` reads it; `Item.cut` is the number of the document's tokens cut by `max_tokens`."""
    if not trains_pairs(model):
        kind = "stored vectors" if model.head("rerank").inputs == "vectors" else "a state, or the mean of a pair"
        raise InputError(f"{model.source} scores {kind}, which cannot be trained here; train a model that scores one vector")
    reranker, template = Reranker(model), model.templates["rerank"]
    query_ids = template.encode_query(model.tokenizer, query)
    document_ids = template.encode(model.tokenizer, "document", document).ids
    return reranker.pair(query_ids, document_ids, reranker.pair_limit(max_tokens))


def pair_scores(model: Model, pairs: Sequence[Item], long: Long = WHOLE) -> Tensor:
    """Return scores (n,) of pairs, as from `Reranker.score`."""
    head = model.head("rerank")
    return torch.cat([unit_scores(head, result) for result in read(model, [pair.request for pair in pairs], long)])
