"""A text to read and what comes out: one record, which the engine runs for inference and training runs with a graph.

Hidden vectors are taken as they pass and are not kept. Inside a segment they are summed in fp32, across segments in fp64.

    T  tokens of a text   n  tokens of a segment   P  positions   B  ranges   D  width of hidden vectors   K  kinds of mark
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.backbones.state import State

_NONE = torch.empty(0, 0)


class Marks(Protocol):
    """Marks (T, K) float32 of a long text, made for the segment that is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, tokens: slice, /) -> np.ndarray: ...


@dataclass(eq=False)
class Request:
    """A text to read, and what is wanted of its hidden vectors.

    Args:
        ids: (T,) token ids, T >= 1; none where `positions` is empty and no state is kept.
        positions: (P,) tokens whose hidden vectors are wanted, in any order; default: the last one, none with `ranges` or `take`.
        ranges: (B, 2) token ranges [start, end) whose weighted sums are wanted, in any order.
        take: called with the number of a segment's first token and its hidden vectors (n, D) fp32, segment after segment.
        state: the state (one row) to start from; it is not changed, and many requests may share it.
        keep_state: also return the state after the last token.
        marks: (T, K) float32, or an object that makes the slices asked for; times the engine's `mark_vectors`, they are added to
            the embeddings.
        tag: anything; it comes back with the result.
    """

    ids: np.ndarray
    positions: Sequence[int] | np.ndarray | None = None
    ranges: np.ndarray | None = None
    take: Callable[[int, Tensor], None] | None = None
    state: State | None = None
    keep_state: bool = False
    marks: np.ndarray | Marks | None = None
    tag: Any = None
    _cancelled: bool = field(default=False, repr=False)

    def wanted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions (P,) and ranges (B, 2), int64, defaults filled in."""
        positions = self.positions
        if positions is None:
            positions = [len(self.ids) - 1] if self.ranges is None and self.take is None else []
        ranges = np.zeros((0, 2)) if self.ranges is None else self.ranges
        return np.asarray(positions, dtype=np.int64), np.asarray(ranges, dtype=np.int64)

    def cancel(self) -> None:
        """Drop the request at the next step; its result is a `Cancelled` error. Safe from any thread."""
        self._cancelled = True


@dataclass(eq=False)
class Result:
    """What came out of one request.

    Attributes:
        index: the request's place among those of a call, from 0.
        tag: the request's.
        hidden: (P, D) fp32 hidden vectors at its positions.
        sums: (B, D) fp64 weighted sums over its ranges, and `totals` (B,) fp64 of their weights.
        state: after the last token, if it was to be kept.
        error: set if the request failed; the rest is empty then.
    """

    index: int
    tag: Any = None
    hidden: Tensor = _NONE
    sums: Tensor = _NONE
    totals: Tensor = _NONE
    state: State | None = None
    error: Exception | None = None

    @property
    def means(self) -> Tensor:
        """(B, D) fp32 weighted means over the ranges; zeros for an empty one."""
        return (self.sums / self.totals.clamp(min=1e-300)[:, None]).float()

    def get(self) -> Result:
        """Return the result, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


Progress = Callable[[int, int], None]  # tokens done, tokens in all


def with_total(requests: Iterable[Request], progress: Progress | None) -> tuple[Iterator[Request], Callable[[int], None] | None]:
    """Return the requests, and a progress for the engine's `map` of them that also counts the tokens drawn so far."""
    if progress is None:
        return iter(requests), None
    total = done = 0

    def counted() -> Iterator[Request]:
        nonlocal total
        for request in requests:
            total += len(request.ids)
            yield request

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    return counted(), report


class Collector:
    """Takes what a request wants from the hidden vectors as they pass.

    Args:
        weight: (V,) weight of each id in sums; None: 1.
    """

    def __init__(self, request: Request, ids: np.ndarray, weight: Tensor | None) -> None:
        self._request = request
        self._positions, ranges = request.wanted()
        self._order: np.ndarray | None = None
        if len(self._positions) > 1:
            self._order = np.argsort(self._positions, kind="stable")
            self._positions = self._positions[self._order]
        self._kept: list[Tensor] = []
        self._next = 0
        self._sums: RangeSums | None = None
        if len(ranges):
            weights = torch.ones(len(ids)) if weight is None else weight[torch.from_numpy(ids.astype(np.int64))]
            self._sums = RangeSums(ranges, weights)

    def read(self, start: int, hidden: Tensor) -> None:
        """Take the hidden vectors (n, D) of tokens [start, start + n)."""
        if self._next < len(self._positions):
            stop = int(np.searchsorted(self._positions, start + hidden.shape[0]))
            if stop > self._next:
                self._kept.append(hidden[torch.from_numpy(self._positions[self._next : stop] - start)])
                self._next = stop
        if self._sums is not None:
            self._sums.add(start, hidden)
        if self._request.take is not None:
            self._request.take(start, hidden)

    def result(self, index: int, state: State | None) -> Result:
        """Return the outcome, after the last token."""
        hidden = torch.cat(self._kept) if self._kept else _NONE
        if self._order is not None:
            hidden = hidden[torch.from_numpy(np.argsort(self._order))]
        sums, totals = (_NONE, _NONE) if self._sums is None else self._sums.result()
        return Result(index, self._request.tag, hidden, sums, totals, state)


class RangeSums:
    """Weighted sums of hidden vectors over token ranges, as the vectors pass.

    The ranges' edges cut the text into stretches. Each is summed by itself, so a small sum is not lost next to a large one.

    Args:
        ranges: (B, 2) int64 [start, end), in any order; they may overlap.
        weights: (T,) of the tokens.
    """

    def __init__(self, ranges: np.ndarray, weights: Tensor) -> None:
        # One range, the usual wish, needs no search; short texts are many, and each is read in a fraction of a millisecond.
        simple = len(ranges) == 1 and ranges[0, 0] < ranges[0, 1]
        self._edges = ranges[0] if simple else np.unique(ranges)
        self._stretches = np.array([[0, 1]]) if simple else np.searchsorted(self._edges, ranges)  # (B, 2) of each range
        self._weights = weights
        self._closed: list[Tensor] = []
        self._open: Tensor | None = None  # (D,) fp64, of the stretch `_next`
        self._next = self._width = 0

    def add(self, start: int, hidden: Tensor) -> None:
        """Sum the hidden vectors (n, D) of tokens [start, start + n); segments come in order, each token once."""
        self._width, stop = hidden.shape[1], start + hidden.shape[0]
        a, b = max(start, int(self._edges[0])), min(stop, int(self._edges[-1]))
        if a >= b:
            return
        first, last = self._next, int(np.searchsorted(self._edges, b, side="right")) - 1  # [first, last) are complete
        part = hidden if (a, b) == (start, stop) else hidden[a - start : b - start]
        weights = self._weights[a:b]
        self._next = last
        if last == first or (last == first + 1 and b == self._edges[last]):
            total = (weights @ part).double()
            self._open = total if self._open is None else total + self._open
            if last > first:
                self._closed.append(self._open[None])
                self._open = None
            return
        edges = torch.from_numpy(np.maximum(self._edges[first : last + 1] - a, 0))  # from each to the next, and to the end
        sums = F.embedding_bag(torch.arange(b - a), part, edges, mode="sum", per_sample_weights=weights).double()
        if self._open is not None:
            sums[0] += self._open
        self._closed.append(sums[:-1])
        self._open = sums[-1].clone()

    def take_complete(self) -> tuple[int, Tensor]:
        """Return the number of the first range that is complete and new, and the sums (k, D) fp64 of all of these; forget them.

        For ranges in order that neither overlap nor are empty.
        """
        sums, self._closed = self._all_closed(), []
        first = self._next - len(sums)
        a, b = np.searchsorted(self._stretches[:, 0], [first, self._next])
        return int(a), sums[torch.from_numpy(self._stretches[a:b, 0] - first)]

    def totals(self) -> Tensor:
        """Return the weights (B,) fp64 of all ranges."""
        if len(self._edges) < 2:
            return torch.zeros(len(self._stretches), dtype=torch.float64)
        weights = self._weights[: self._edges[-1]].cpu().numpy()
        return self._of_ranges(torch.from_numpy(np.add.reduceat(weights, self._edges[:-1], dtype=np.float64)))

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the sums (B, D) fp64 of all ranges, and their totals (B,)."""
        return self._of_ranges(self._all_closed()), self.totals()

    def _all_closed(self) -> Tensor:
        if len(self._closed) == 1:
            return self._closed[0]
        return torch.cat(self._closed) if self._closed else torch.zeros(0, self._width, dtype=torch.float64)

    def _of_ranges(self, stretches: Tensor) -> Tensor:
        """From the sums of all stretches."""
        if len(self._stretches) == len(stretches) == 1:
            return stretches
        first, last = torch.from_numpy(self._stretches.T)
        single = last - first == 1
        if bool(single.all()):
            return stretches[first]
        before = torch.cat([stretches.new_zeros(1, *stretches.shape[1:]), stretches.cumsum(0)])
        sums = before[last] - before[first]
        sums[single] = stretches[first[single]]
        return sums
