"""Read texts for training, with autograd's graph: segment by segment, keeping only the requested
hidden vectors and sums. `vectors` and `pair_scores` compute an embedder's vectors and a reranker's
scores from them.

d  width of vectors      n  rows or pairs

A row is a text to read, a `Request`; a reading is a row with what has been read of it, an
`OpenRequest`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.backbones.state import State
from runnel.checks import expect_count
from runnel.errors import InputError
from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.units import unit_scores
from runnel.models.reranker import Reranker
from runnel.request import Array, OpenRequest, Packed, Request, Result, pack


@dataclass(frozen=True)
class Long:
    """Settings for reading long rows in training (docs/training.md). They change no gradient,
    except `bf16`.
    """

    segment_tokens: int | None = None  # for recurrent backbones; None: whole rows
    # For the backward pass, keep only the input of each layer (in the backbone); of rows in
    # segments, only the state before each segment (in `read`).
    recompute: bool = False
    bf16: bool = False  # autocast of linear layers; weights, states and results keep their dtypes

    def __post_init__(self) -> None:
        if self.segment_tokens is not None:
            expect_count(self.segment_tokens, "segment_tokens")


WHOLE = Long()


def read(model: Model, requests: Sequence[Request], long: Long) -> list[Result]:
    """Return the results of requests of at least one token each, as `Engine.run` does, but with
    autograd's graph. Each step reads the same segment of all rows that are long enough.
    """
    assert requests and all(len(request.ids) for request in requests)
    check_segments(model, long)
    # 1. Open the requests; without segments a step reads whole texts.
    readings = [
        OpenRequest(request, request.ids, model.backbone.block_ends(request.ids))
        for request in requests
    ]
    longest = max(reading.left for reading in readings)
    size = long.segment_tokens or longest
    # whether the backward pass runs each segment again, from the state before it
    recompute = long.recompute and torch.is_grad_enabled() and longest > size
    active = readings
    state = None
    while active:
        # 2. Read the next segment of every text that goes on.
        packed = pack(
            [(reading, max(reading.most(size), reading.least)) for reading in active],
            by_block=not model.backbone.recurrent,
        )
        run = (model, packed, state, long)
        parts, state = checkpoint(_run, *run, use_reentrant=False) if recompute else _run(*run)
        # 3. Keep the requested vectors and sums of the segment: `shares` says which tokens of the
        # step are of which reading.
        for (reading, count), part in zip(packed.shares, parts, strict=True):
            reading.add(count, *part)
        # 4. Go on with the texts that have tokens left, and with their rows of the state.
        unfinished = [place for place, reading in enumerate(active) if reading.left]
        if 0 < len(unfinished) < len(active):
            state = state.select(torch.tensor(unfinished))
        active = [active[place] for place in unfinished]
    return [reading.result() for reading in readings]


def check_segments(model: Model, long: Long) -> None:
    """Raise InputError if `segment_tokens` is set for a transformer."""
    if long.segment_tokens is not None and not model.backbone.recurrent:
        raise InputError(
            f"segment_tokens = {long.segment_tokens} cannot be used: {model.backbone.title} only"
            " reads whole texts; remove it (recompute = true saves memory), or train a recurrent"
            " model"
        )


def _run(
    model: Model, packed: Packed, state: State | None, long: Long
) -> tuple[list[tuple[Array, Array]], State]:
    """Run one step: return the `OpenRequest.part` of each reading, and the state after the step."""
    features = model.features
    ids = torch.from_numpy(packed.ids).to(model.backbone.device)
    added = None  # the vectors of the tokens' marks (`models/head.py`)
    if packed.marks is not None and features is not None:
        added = torch.from_numpy(packed.marks).to(features.mark_vectors) @ features.mark_vectors
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=long.bf16):
        hidden, state = model.backbone(
            ids, torch.from_numpy(packed.cu_seqlens), state, added, recompute=long.recompute
        )
    return packed.parts(hidden, None if features is None else features.weight()), state


def vectors(model: Model, rows: Sequence[np.ndarray], long: Long = WHOLE) -> Tensor:
    """Return the unit vectors (n, d) of rows of complete ids (`Embedder.render`), which equal those
    of `Embedder.encode`.
    """
    head = model.head("embed")
    requests = [head.request(row) for row in rows]
    return head(torch.cat([head.pooled(result) for result in read(model, requests, long)]))


def trains_pairs(model: Model) -> bool:
    """Return whether the reranker scores one hidden vector of a pair that is read as one text: only
    such rerankers can be trained here. `make_pair` asks for this vector, not for a mean of all.
    """
    head = model.head("rerank")
    return head.inputs in ("text", "matches") and head.pooling != "mean"


def make_pair(model: Model, query: str, document: str, max_tokens: int | None = None) -> Item:
    """Make a pair as `Reranker.score` reads it; `Item.cut` is the number of the document's tokens
    cut by `max_tokens`.
    """
    if not trains_pairs(model):
        kind = (
            "stored vectors"
            if model.head("rerank").inputs == "vectors"
            else "a state, or the mean of a pair"
        )
        raise InputError(
            f"{model.source} scores {kind}, which cannot be trained here; train a model that scores"
            " one vector"
        )
    template = model.templates["rerank"]
    query_ids = template.encode_query(model.tokenizer, query).ids
    document_ids = template.encode(model.tokenizer, "document", document).ids
    return Reranker(model).pair(query_ids, document_ids, model.text_limit(max_tokens))


def pair_scores(model: Model, pairs: Sequence[Item], long: Long = WHOLE) -> Tensor:
    """Return scores (n,) of pairs, as from `Reranker.score`."""
    head = model.head("rerank")
    return torch.cat(
        [
            unit_scores(head, result)
            for result in read(model, [pair.request for pair in pairs], long)
        ]
    )
