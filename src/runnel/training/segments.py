"""Reading of requests with a graph: segment by segment, keeping only the requested hidden vectors and sums.

Positions and ranges are in ascending order here, and the ranges of a request do not overlap.

T  tokens of a row     t  tokens of one step (the same segment of every row that is long enough)
P  requested positions    B  ranges of tokens whose weighted sums are requested    K  kinds of mark    D  width
p, b  positions and ranges of one step
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.backbones.base import Backbone
from runnel.backbones.state import State
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.heads import MARKS
from runnel.request import Request


@dataclass(frozen=True)
class Long:
    """Settings for reading long rows in training (docs/training.md). All but `gradient_segments` change no gradient."""

    segment_tokens: int | None = None  # for recurrent backbones; None: whole rows
    recompute: bool = False  # keep the input of each layer, or of rows in segments the state before each
    gradient_segments: int | None = None  # a token's loss reaches at most that many segments back
    bf16: bool = False  # autocast of linear layers; weights, states and results keep their dtypes

    def __post_init__(self) -> None:
        for name in ("segment_tokens", "gradient_segments"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.gradient_segments is not None and self.segment_tokens is None:
            raise InputError("gradient_segments counts segments; also give segment_tokens, their length")


WHOLE = Long()


@dataclass(frozen=True, eq=False)
class StepResult:
    """The results of one step. Positions and ranges are numbered over all requests, in order."""

    step: int  # from 0
    picked: Tensor  # (p,) int64, the requested positions in it
    ranges: Tensor  # (b,) int64, the ranges with tokens in it
    hidden: Tensor  # (p, D), at `picked`
    sums: Tensor  # (b, D), of the vectors in `ranges`
    totals: Tensor  # (b,), of their weights


@dataclass(frozen=True, eq=False)
class _Step:
    """The inputs of one step; `picked` and `ranges` as in `StepResult`."""

    ids: Tensor  # (t,)
    cu_seqlens: Tensor
    marks: Tensor | None  # (t, K)
    at: Tensor  # (p,) the tokens of `picked` in the step
    picked: Tensor
    inside: Tensor  # (m,) the tokens in a range
    owner: Tensor  # (m,) the index of that range in `ranges`
    ranges: Tensor


def read(model: Model, requests: Sequence[Request], long: Long) -> Iterator[StepResult]:
    """Yield the requested vectors and sums of packed rows, step by step."""
    lengths = np.array([len(request.ids) for request in requests])
    if not len(lengths) or not lengths.min():
        raise InputError(f"training rows need at least one token each, got lengths {lengths.tolist()[:8]}")
    size = long.segment_tokens or int(lengths.max())
    check_segments(model, long)
    several = bool(lengths.max() > size)
    state: State | None = None
    rows = np.arange(len(requests))
    for number in range(-(-int(lengths.max()) // size)):
        going = np.flatnonzero(lengths[rows] > number * size)
        if state is not None and len(going) < len(rows):
            state = state.select(torch.from_numpy(going))
        rows = rows[going]
        if state is not None and long.gradient_segments is not None and number % long.gradient_segments == 0:
            state = state.detach()
        step = _step(requests, rows, number * size, size, model.backbone)
        if several and long.recompute and torch.is_grad_enabled():
            hidden, sums, totals, state = checkpoint(_run, model, step, state, long, use_reentrant=False)
        else:
            hidden, sums, totals, state = _run(model, step, state, long)
        yield StepResult(number, step.picked, step.ranges, hidden, sums, totals)


def check_segments(model: Model, long: Long) -> None:
    """Raise InputError if `segment_tokens` is set for a transformer."""
    if long.segment_tokens is not None and not model.backbone.recurrent:
        raise InputError(
            f"segment_tokens = {long.segment_tokens} cannot be used: {model.backbone.title} only reads whole texts; remove it "
            "(recompute = true saves memory), or train a recurrent model"
        )


def gather(parts: Sequence[StepResult], positions: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden vectors (P, D) at positions and weighted means (B, D) of ranges, by their numbers in ascending order.

    All tokens of the ranges must be in `parts`. The mean of a range without tokens is zero.
    """
    picked, order = torch.cat([part.picked for part in parts]).sort()
    hidden = torch.cat([part.hidden for part in parts])[order[torch.searchsorted(picked, positions)]]
    sums, totals = torch.cat([part.sums for part in parts]), torch.cat([part.totals for part in parts])
    touched = torch.cat([part.ranges for part in parts])
    place = torch.searchsorted(ranges, touched)
    asked = torch.isin(touched, ranges)
    wide = sums[asked].double()  # segments are summed in fp32, their sums in fp64
    total = wide.new_zeros(len(ranges)).index_add(0, place[asked], totals[asked].double())
    mean = wide.new_zeros(len(ranges), sums.shape[1]).index_add(0, place[asked], wide) / total.clamp(min=1e-30)[:, None]
    return hidden, mean.to(sums.dtype)


def cut(part: StepResult) -> StepResult:
    """Return the same tensors as leaves, which collect gradients for `close`."""
    leaves = (tensor.detach().requires_grad_(tensor.requires_grad) for tensor in (part.hidden, part.sums, part.totals))
    return StepResult(part.step, part.picked, part.ranges, *leaves)


def close(parts: Sequence[tuple[StepResult, StepResult]]) -> None:
    """Run the backward pass of steps from the gradients that their leaves (`cut`) have collected."""
    outputs, gradients = [], []
    for part, leaf in parts:
        for name in ("hidden", "sums", "totals"):
            gradient = getattr(leaf, name).grad
            if gradient is not None:
                outputs.append(getattr(part, name))
                gradients.append(gradient)
    if outputs:
        torch.autograd.backward(outputs, gradients)


def _run(model: Model, step: _Step, state: State | None, long: Long) -> tuple[Tensor, Tensor, Tensor, State]:
    """Run one step: return requested hidden vectors (p, D), sums (b, D) and totals (b,), and the state after it."""
    features = model.features
    added = None
    if step.marks is not None and features is not None:
        added = step.marks.to(features.mark_vectors.dtype) @ features.mark_vectors
    with torch.autocast(step.ids.device.type, torch.bfloat16, enabled=long.bf16):
        hidden, state = model.backbone(step.ids, step.cu_seqlens, state, added, recompute=long.recompute)
    inside = step.ids[step.inside]
    weight = hidden.new_ones(len(inside)) if features is None else features.log_weight[inside].exp().to(hidden.dtype)
    weighted = hidden[step.inside] * weight[:, None]
    sums = hidden.new_zeros(len(step.ranges), hidden.shape[1]).index_add(0, step.owner, weighted)
    totals = hidden.new_zeros(len(step.ranges)).index_add(0, step.owner, weight)
    return hidden[step.at], sums, totals, state


def _step(requests: Sequence[Request], rows: np.ndarray, start: int, size: int, backbone: Backbone) -> _Step:
    """Pack tokens [start, start + size) of `rows`; each block of a row is a separate sequence."""
    wanted = [request.wanted() for request in requests]
    first_position = np.cumsum([0, *(len(positions) for positions, _ in wanted)])
    first_range = np.cumsum([0, *(len(ranges) for _, ranges in wanted)])
    ids, lengths, marks, at, picked, inside, owner = [], [], [], [], [], [], []
    offset = 0
    marked = any(requests[row].marks is not None for row in rows)
    for row in rows:
        request, (positions, ranges) = requests[row], wanted[row]
        stop = min(start + size, len(request.ids))
        ids.append(request.ids[start:stop])
        ends = backbone.block_ends(ids[-1])
        lengths.append(np.array([stop - start]) if ends is None else np.diff(ends, prepend=0))
        a, b = np.searchsorted(positions, [start, stop])
        at.append(positions[a:b] - start + offset)
        picked.append(np.arange(a, b) + first_position[row])
        tokens = np.arange(start, stop)
        place = np.searchsorted(ranges[:, 1], tokens, side="right")
        within = np.flatnonzero(place < len(ranges))
        within = within[ranges[place[within], 0] <= tokens[within]]
        inside.append(within + offset)
        owner.append(place[within] + first_range[row])
        if marked:
            nothing = np.zeros((stop - start, MARKS), dtype=np.float32)
            marks.append(nothing if request.marks is None else request.marks[start:stop])
        offset += stop - start
    touched, places = np.unique(np.concatenate(owner), return_inverse=True)

    def tensor(parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(backbone.device)

    return _Step(
        ids=tensor(ids),
        cu_seqlens=torch.tensor([0, *np.cumsum(np.concatenate(lengths)).tolist()]),
        marks=torch.from_numpy(np.concatenate(marks)).to(backbone.device) if marked else None,
        at=tensor(at),
        picked=tensor(picked),
        inside=tensor(inside),
        owner=tensor([places.reshape(-1)]),
        ranges=tensor([touched]),
    )
