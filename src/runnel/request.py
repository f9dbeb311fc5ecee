"""Requests to read a text, their progress and their results. The engine runs them for inference, training runs them with a graph.

Hidden vectors are used as they are computed and not kept. They are summed in fp32 inside a segment, in fp64 across segments.

    T  tokens of a text   n  tokens of a segment   P  positions   B  ranges   D  width of hidden vectors   K  kinds of mark
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import InputError

_NONE = torch.empty(0, 0)


class Marks(Protocol):
    """Marks (T, K) float32 of a long text, computed for each segment."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, tokens: slice, /) -> np.ndarray: ...


@dataclass(eq=False)
class Request:
    """A text to read, and the outputs to take from its hidden vectors.

    Args:
        ids: (T,) token ids, T >= 1; may be empty if `positions` is empty and no state is kept.
        positions: (P,) tokens whose hidden vectors to return, in any order (default: the last; none with `ranges` or `take`).
        ranges: (B, 2) token ranges [start, end) whose weighted sums to return, in any order.
        take: called for each segment with the number of its first token and its hidden vectors (n, D) fp32.
        state: the state (one row) to start from. It is not changed, so several requests may share it.
        keep_state: also return the state after the last token.
        marks: (T, K) float32, or an object that computes slices on request; multiplied by the engine's `mark_vectors` and added
            to the embeddings.
        tag: any value, returned with the result.
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
        """Drop the request at the next step; its result is a `Cancelled` error. Safe to call from any thread."""
        self._cancelled = True


@dataclass(eq=False)
class Result:
    """The result of one request.

    Attributes:
        index: the request's position among the requests of a call, from 0.
        tag: the request's tag.
        hidden: (P, D) fp32 hidden vectors at the positions.
        sums: (B, D) fp64 weighted sums over the ranges, and `totals` (B,) fp64 of their weights.
        state: after the last token, if requested.
        error: set if the request failed; the other outputs are then empty.
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


Progress = Callable[[int, int], None]  # tokens done, tokens in total


def with_total(requests: Iterable[Request], progress: Progress | None) -> tuple[Iterator[Request], Callable[[int], None] | None]:
    """Return the requests, and a progress callback for the engine's `map` that also counts the tokens taken so far."""
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


def total_progress(progress: Callable[[int], None] | None) -> Progress | None:
    """Wrap a callback that takes the tokens just read as one that takes (tokens done, total tokens)."""
    if progress is None:
        return None
    last = 0

    def report(done: int, _: int) -> None:
        nonlocal last
        last, tokens = done, done - last
        progress(tokens)

    return report


class Collector:
    """A collector of a request's outputs from the hidden vectors as they are computed; `weight` (V,) of each id in sums."""

    def __init__(self, request: Request, ids: np.ndarray, weight: Tensor | None) -> None:
        self._request = request
        self._positions, ranges = request.wanted()
        if len(self._positions) and not 0 <= self._positions.min() <= self._positions.max() < len(ids):
            raise InputError(f"positions are {reprlib.repr(self._positions.tolist())}; expected numbers from 0 to {len(ids) - 1}")
        if len(ranges) and not 0 <= ranges.min() <= ranges.max() <= len(ids):
            raise InputError(f"ranges are {reprlib.repr(ranges.tolist())}; expected [start, end) from 0 to {len(ids)}")
        self._order: np.ndarray | None = None
        if len(self._positions) > 1:
            self._order = np.argsort(self._positions, kind="stable")
            self._positions = self._positions[self._order]
        self._kept: list[Tensor] = []
        self._next = 0
        self._sums: RangeSums | None = None
        if len(ranges):
            weights = (
                torch.ones(len(ids), dtype=torch.float32) if weight is None else weight[torch.from_numpy(ids.astype(np.int64))]
            )
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
    """Weighted sums of hidden vectors over token ranges (B, 2), which may overlap, updated segment by segment; `weights` (T,).

    The ranges' edges cut the text into stretches. Each stretch is summed separately, so a small sum is not lost next to a large
    one.
    """

    def __init__(self, ranges: np.ndarray, weights: Tensor) -> None:
        # A single range, the usual case, needs no search, which matters for short texts read in a fraction of a millisecond.
        simple = len(ranges) == 1 and ranges[0, 0] < ranges[0, 1]
        self._edges = ranges[0] if simple else np.unique(ranges)
        self._stretches = np.array([[0, 1]]) if simple else np.searchsorted(self._edges, ranges)  # (B, 2) of each range
        self._weights = weights
        self._closed: list[Tensor] = []
        self._open: Tensor | None = None  # (D,) fp64 sum of the stretch `_next`
        self._next = self._width = 0

    def add(self, start: int, hidden: Tensor) -> None:
        """Sum the hidden vectors (n, D) of tokens [start, start + n); segments must come in order, each token once."""
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
        edges = torch.from_numpy(
            np.maximum(self._edges[first : last + 1] - a, 0)
        )  # stretches run from each edge to the next, and to the end
        sums = F.embedding_bag(torch.arange(b - a), part, edges, mode="sum", per_sample_weights=weights).double()
        if self._open is not None:
            sums[0] += self._open
        self._closed.append(sums[:-1])
        self._open = sums[-1].clone()

    def take_complete(self) -> tuple[int, Tensor]:
        """Return the first newly complete range and the sums (k, D) fp64 of all; for ranges in order that do not overlap."""
        sums, self._closed = self._all_closed(), []
        first = self._next - len(sums)
        a, b = np.searchsorted(self._stretches[:, 0], [first, self._next])
        return int(a), sums[torch.from_numpy(self._stretches[a:b, 0] - first)]

    def totals(self) -> Tensor:
        """Return the weights (B,) fp64 of all ranges."""
        if len(self._edges) < 2:
            return torch.zeros(len(self._stretches), dtype=torch.float64)
        if len(self._stretches) == 1:  # faster than the general case, which matters for short texts
            return self._weights[self._edges[0] : self._edges[-1]].sum(dtype=torch.float64)[None].cpu()
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
        """Return sums over ranges from the sums of all stretches."""
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


@dataclass(eq=False)
class Call:
    """One call of `map` or `as_completed`, and its news: what steps have done for it since it last looked."""

    active: dict[Active, None] = field(default_factory=dict)  # requests in flight, oldest first
    finished: list[Result] = field(default_factory=list)
    tokens: int = 0
    error: Exception | None = None  # of a step
    closed: bool = False  # nobody waits for its results

    @property
    def has_news(self) -> bool:
        return bool(self.tokens or self.finished or self.error)

    def take_news(self) -> tuple[list[Result], int]:
        """Return the requests that have finished and the number of tokens read since the last time, or raise the error."""
        if self.error is not None:
            raise self.error
        (finished, self.finished), (tokens, self.tokens) = (self.finished, []), (self.tokens, 0)
        return finished, tokens


class Active:
    """A request in flight: how far it has been read and the pool row of its state (-1: none)."""

    __slots__ = ("call", "collector", "done", "ends", "ids", "index", "request", "row")

    def __init__(
        self, call: Call, index: int, request: Request, ids: np.ndarray, weight: Tensor | None, ends: np.ndarray | None
    ) -> None:
        self.call, self.index, self.request, self.ids, self.ends = call, index, request, ids, ends
        self.collector = Collector(request, ids, weight)
        self.done = 0
        self.row = -1

    @property
    def left(self) -> int:
        return len(self.ids) - self.done

    @property
    def least(self) -> int:
        """Return the number of tokens of the next block."""
        return 1 if self.ends is None else int(self.ends[np.searchsorted(self.ends, self.done, side="right")]) - self.done

    def blocks(self, count: int) -> list[int]:
        """Return the lengths of the blocks that make up the next `count` tokens."""
        assert self.ends is not None
        first, last = np.searchsorted(self.ends, [self.done, self.done + count], side="right")
        return np.diff(self.ends[first:last], prepend=self.done).tolist()

    def most(self, room: int) -> int:
        """Return how many tokens of whole blocks fit into `room` next."""
        if self.ends is None:
            return max(0, min(self.left, room))
        count = int(np.searchsorted(self.ends, self.done + room, side="right"))
        return max(0, int(self.ends[count - 1]) - self.done) if count else 0
