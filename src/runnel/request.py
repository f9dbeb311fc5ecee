"""Requests to read a text, their progress and their results. The engine (`engine.py`) runs them for
inference, training runs them with a graph.

    Request, Result        what to read and what to return; what came
    Progress, TokenCount   the tokens read so far, for a caller's progress bar
    growing                a progress without reports of nothing new
    RangeSums              weighted sums over ranges of a text that is read in segments
    Call, OpenRequest      a caller's requests, and one of them while it is read: a reading
    pack, Packed           the tokens of a step

A step runs the backbone over the next tokens of one reading or several, laid end to end. What it
reads of one text is a segment. A backbone without a state that goes from token to token reads a
text in blocks, parts that must be read in one step; there, a segment has whole blocks. A mark is a
number of a token, with a vector for each kind of mark: number times vector is added to the token's
embedding.

Hidden vectors are used as they are computed and not kept. They are summed in fp32 inside a segment,
in fp64 across segments.

Hidden vectors are arrays in a model without torch, and tensors in others; results computed from
them are of the same kind.

    T  tokens of a text      n  tokens of a segment      t  tokens of a step
    P  positions of a request, p of them in a segment      B  ranges      k  rows of `RangeSums`
    D  width of hidden vectors      K  kinds of mark      V  token ids, the vocabulary
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

import numpy as np

from runnel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from runnel.backbones.state import State

# what a model without torch computes, and what others do
Array: TypeAlias = Union[np.ndarray, "Tensor"]
Text = TypeVar("Text")
_NONE = np.empty((0, 1), np.float32)


def filled(like: Array, value: float, *shape: int) -> Array:
    """Return numbers of one value, held as `like` is, in its dtype."""
    if isinstance(like, np.ndarray):
        return np.full(shape, value, like.dtype)
    return like.new_full(shape, value)


def on_cpu(x: Array) -> Array:
    """Return an array, or a tensor on the CPU."""
    return x if isinstance(x, np.ndarray) else x.cpu()


def as_tensor(x: Array) -> Tensor:
    """Return x, which is known to be a tensor."""
    import torch

    assert isinstance(x, torch.Tensor)
    return x


@dataclass(eq=False)
class Request:
    """A text to read, and the outputs to take from its hidden vectors.

    Args:
        ids: (T,) token ids, T >= 1; may be empty if `positions` is empty and no state is kept.
        positions: (P,) tokens whose hidden vectors to return, in any order (default: the last; none
            with `ranges` or `take`).
        ranges: (B, 2) token ranges [start, end): return the sum of the hidden vectors of each, each
            vector times the weight of its token id (`Engine`'s `weight`), in any order.
        take: called for each segment with the number of its first token and its hidden vectors (n,
            D) fp32, on the CPU.
        state: the state (one row) to start from. It is not changed, so several requests may share
            it.
        keep_state: also return the state after the last token.
        marks: (T, K) float32, multiplied by the engine's `mark_vectors` and added to the
            embeddings.
        tag: any value, returned with the result.
    """

    ids: np.ndarray
    positions: Sequence[int] | np.ndarray | None = None
    ranges: np.ndarray | None = None
    take: Callable[[int, Array], None] | None = None
    state: State | None = None
    keep_state: bool = False
    marks: np.ndarray | None = None
    tag: Any = None
    _cancelled: bool = field(default=False, repr=False)  # the engine looks at it in each step

    def cancel(self) -> None:
        """Drop the request at the next step; its result is a `Cancelled` error. Safe to call from
        any thread.
        """
        self._cancelled = True


@dataclass(eq=False)
class Result:
    """The result of one request, on the CPU.

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
    hidden: Array = field(default_factory=lambda: _NONE)
    sums: Array = field(default_factory=lambda: _NONE)
    totals: Array = field(default_factory=lambda: _NONE)
    state: State | None = None
    error: Exception | None = None

    @property
    def means(self) -> Array:
        """(B, D) weighted means over the ranges, in the dtype of `hidden`;
        zeros for an empty one.
        """
        means = self.sums / self.totals[:, None].clip(min=1e-300)
        if isinstance(means, np.ndarray):
            return means.astype(np.asarray(self.hidden).dtype)
        return means.to(as_tensor(self.hidden).dtype)

    def get(self) -> Result:
        """Return the result, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


# Takes the units done, tokens where nothing else is said, and those in total, None if that is not
# known. It is also called when nothing was done since the last call, so that what it raises can end
# the work; `growing` leaves these calls out.
Progress = Callable[[int, int | None], None]


def growing(progress: Progress, expect_wanted: Callable[[], object]) -> Progress:
    """Return a `progress` that passes on only the reports of more units than any report before.
    Every report calls `expect_wanted`, which raises if the work is to end.
    """
    most = 0

    def report(done: int, total: int | None) -> None:
        nonlocal most
        expect_wanted()
        if done > most:
            most = done
            progress(done, total)

    return report


@dataclass
class TokenCount:
    """The tokens that a call has read so far, in one call of the engine or several, reported to its
    `progress`.
    """

    progress: Progress | None
    total: int | None = None
    done: int = 0

    def add(self, tokens: int) -> None:
        """Count tokens just read; the engine's `on_tokens`."""
        self.done += tokens
        if self.progress is not None:
            self.progress(self.done, self.total)

    def totaled(self, texts: Iterable[Text], tokens: Callable[[Text], int]) -> Iterator[Text]:
        """Yield the texts, each of which adds its `tokens` to the total when it is taken."""
        for text in texts:
            self.total = (self.total or 0) + tokens(text)
            yield text

    def __call__(self, done: int, total: int | None) -> None:
        """Take over the count of a part of the work that counts from 0; as its `progress`."""
        self.done = done
        self.total = total
        self.add(0)

    def through(self, items: Iterable[Text]) -> Iterator[Text]:
        """Yield items that take long to find, and report before each, so that `progress` can stop
        the call although no token is read.
        """
        for item in items:
            self.add(0)
            yield item

    def part(self, *, totals: bool = False) -> Progress:
        """Return the `progress` of a part of the work, which counts its own tokens from 0; with
        `totals` its total counts, too, so the total is of the parts that have begun.
        """
        last = 0
        known = 0

        def report(done: int, total: int | None) -> None:
            nonlocal last, known
            if totals and total is not None:
                self.total = (self.total or 0) + total - known
                known = total
            self.add(done - last)
            last = done

        return report


class RangeSums:
    """Weighted sums of hidden vectors over token ranges (B, 2), which may overlap, updated segment
    by segment.

    The ranges' edges cut the text into stretches. Each stretch is summed separately, so a small sum
    is not lost next to a large one. A row (D + 1,) fp64 is a sum with the sum of its weights.

    For each segment, `part` computes its rows where the hidden vectors are, and `add` keeps them
    (an engine, after it has moved them to the CPU); at the end `result` adds the stretches of each
    range. `take_complete` gives what is ready before the end.
    """

    def __init__(self, ranges: np.ndarray) -> None:
        # A single range, the usual case, needs no search, which matters for short texts read in a
        # fraction of a millisecond.
        simple = len(ranges) == 1 and ranges[0, 0] < ranges[0, 1]
        self._edges = ranges[0] if simple else np.unique(ranges)
        # (B, 2) stretches [first, last) of each range: stretch i is from edge i to edge i + 1
        self._stretches = np.array([[0, 1]]) if simple else np.searchsorted(self._edges, ranges)
        self._closed: list[Array] = []  # rows of complete stretches
        self._open: Array | None = None  # (1, D + 1) the row of the stretch `_next` so far
        self._next = 0  # the stretch that the next token is in

    def part(self, start: int, hidden: Array, weights: Array) -> Array:
        """Return the rows (k, D + 1) of stretches in tokens [start, start + n), from hidden (n, D)
        and weights (n,).
        """
        a = max(start, int(self._edges[0]))
        b = min(start + len(hidden), int(self._edges[-1]))
        if a >= b:  # no rows, of D + 1 columns
            return _sums(hidden[:0], weights[:0], self._edges[:0])
        # stretches [first, last) have tokens in [a, b)
        first = int(np.searchsorted(self._edges, a, side="right")) - 1
        last = int(np.searchsorted(self._edges, b))
        inside = slice(a - start, b - start)
        return _sums(hidden[inside], weights[inside], np.maximum(self._edges[first:last] - a, 0))

    def add(self, stop: int, rows: Array) -> None:
        """Add the `part` of the tokens up to `stop`; segments must come in
        order, each token once.
        """
        before = self._next
        self._next = max(before, int(np.searchsorted(self._edges, stop, side="right")) - 1)
        complete = self._next - before
        if self._open is not None and len(rows):
            rows = _join([rows[:1] + self._open, rows[1:]])
        if complete or not self._closed:
            self._closed.append(rows[:complete])
        # in training, the graph of the open row reaches back to tokens of its stretch alone
        if len(rows):
            self._open = rows[complete:] if complete < len(rows) else None

    def take_complete(self) -> tuple[int, Array]:
        """Return the first newly complete range and the rows (k, D + 1) of all; for ranges in order
        that do not overlap.
        """
        rows = self._all_closed()
        self._closed = []
        first = self._next - len(rows)  # the first stretch completed since the last call
        a, b = np.searchsorted(self._stretches[:, 0], [first, self._next])
        return int(a), rows[self._stretches[a:b, 0] - first]

    def result(self) -> Array:
        """Return the rows (B, D + 1) of all ranges."""
        stretches = self._all_closed()
        if len(self._stretches) == len(stretches) == 1:
            return stretches
        first, last = self._stretches.T
        single = last - first == 1
        if bool(single.all()):
            return stretches[first]
        # A range of several stretches is a difference of running sums; a single stretch is taken as
        # it is, so that small sums stay exact.
        before = _join([filled(stretches, 0.0, 1, stretches.shape[1]), stretches.cumsum(0)])
        rows = before[last] - before[first]
        rows[single] = stretches[first[single]]
        return rows

    def _all_closed(self) -> Array:
        return _join(self._closed) if self._closed else np.zeros((0, 1))


def _sums(hidden: Array, weights: Array, starts: np.ndarray) -> Array:
    """Return rows (k, D + 1) of `RangeSums` for stretches of hidden (n, D), which begin at `starts`
    (k,).
    """
    if isinstance(hidden, np.ndarray):
        weight = np.asarray(weights)
        if len(starts) == 1:
            sums = (weight @ hidden)[None]
        else:
            sums = np.add.reduceat(weight[:, None] * hidden, starts, axis=0)
        totals = np.add.reduceat(weight[:, None], starts, axis=0, dtype=np.float64)
        return np.concatenate([sums, totals], axis=1)
    import torch

    factors = as_tensor(weights)
    places = torch.arange(len(hidden), device=hidden.device)
    offsets = torch.from_numpy(starts).to(hidden.device)
    bag = torch.nn.functional.embedding_bag
    if len(starts) == 1:
        summed = (factors @ hidden)[None]
    else:
        summed = bag(places, hidden, offsets, mode="sum", per_sample_weights=factors)
    weighed = bag(places, factors.double()[:, None], offsets, mode="sum")
    return torch.cat([summed.double(), weighed], dim=1)


def _join(parts: Sequence[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    import torch

    return torch.cat([as_tensor(part) for part in parts])


@dataclass(eq=False)
class Call:
    """One call of `map` or `as_completed`, and its news: what steps have done for it since it last
    looked.
    """

    # requests in flight, oldest first
    active: dict[OpenRequest, None] = field(default_factory=dict)
    finished: list[Result] = field(default_factory=list)
    tokens: int = 0
    error: Exception | None = None  # the error of a step
    closed: bool = False  # nobody waits for its results

    @property
    def has_news(self) -> bool:
        return bool(self.tokens or self.finished or self.error)

    def take_news(self) -> tuple[list[Result], int]:
        """Return the requests that have finished and the number of tokens read since the last time,
        or raise the error.
        """
        if self.error is not None:
            raise self.error
        news = (self.finished, self.tokens)
        self.finished = []
        self.tokens = 0
        return news


class OpenRequest:
    """A reading, a request that is being read: what it has given so far, and in an engine its call
    and its row in the pool of states (-1: none).

    `ends`: the end of each block of the text (`Blocks.block_ends`); None: blocks may end
    after any token.
    """

    def __init__(
        self,
        request: Request,
        ids: np.ndarray,
        ends: np.ndarray | None = None,
        call: Call | None = None,
        index: int = 0,
    ) -> None:
        self.request, self.ids, self.ends, self.index = request, ids, ends, index
        self.call = call or Call()
        self.done = 0
        self.row = -1
        given = request.positions
        if given is None:
            given = [len(ids) - 1] if request.ranges is None and request.take is None else []
        positions = np.asarray(given, dtype=np.int64)
        ranges = np.asarray([] if request.ranges is None else request.ranges, dtype=np.int64)
        for name, places, end in (
            ("positions", positions, len(ids)),
            ("ranges", ranges, len(ids) + 1),
        ):
            if len(places) and not 0 <= places.min() <= places.max() < end:
                raise InputError(
                    f"{name} are {reprlib.repr(places.tolist())}; expected numbers from 0 to"
                    f" {end - 1}"
                )
        self._order = np.argsort(positions, kind="stable") if len(positions) > 1 else None
        self._positions = positions if self._order is None else positions[self._order]
        self._picked: list[Array] = []
        self._sums = RangeSums(ranges) if len(ranges) else None

    def part(self, start: int, hidden: Array, weights: Array) -> tuple[Array, Array]:
        """Return what tokens [start, start + n) give: hidden vectors (p, D) at positions, and rows
        of `RangeSums`.
        """
        first, last = np.searchsorted(self._positions, [start, start + len(hidden)])
        picked = hidden[self._positions[first:last] - start] if first < last else hidden[:0]
        # without ranges, no rows
        return picked, hidden[:0] if self._sums is None else self._sums.part(start, hidden, weights)

    def add(self, count: int, picked: Array, rows: Array) -> None:
        """Add the `part` of the next `count` tokens."""
        self.done += count
        if len(picked) or not self._picked:
            self._picked.append(picked)
        if self._sums is not None:
            self._sums.add(self.done, rows)

    def take_complete(self) -> tuple[Array, Array]:
        """Return the hidden vectors (k, D) and rows of the newly complete ranges, which must be in
        order and not overlap.

        The request must have one position for each range, in the same order. Without ranges: the
        hidden vectors of all positions read since the last call.
        """
        hidden = _join(self._picked)
        rows = hidden[:0]
        rest = 0
        last = self._picked[-1]
        if self._sums is not None:
            _, rows = self._sums.take_complete()
            rest = len(hidden) - len(rows)  # 1 if the position of an unfinished range is read
        self._picked = [last[len(last) - rest :]]
        return hidden[: len(hidden) - rest], rows

    def result(self, state: State | None = None) -> Result:
        """Return the outcome, after the last token."""
        hidden: Array = _join(self._picked) if self._picked else _NONE
        if self._order is not None:
            hidden = hidden[np.argsort(self._order)]
        rows = hidden[:0] if self._sums is None else self._sums.result()
        return Result(self.index, self.request.tag, hidden, rows[:, :-1], rows[:, -1], state)

    @property
    def left(self) -> int:
        """How many tokens are still to be read."""
        return len(self.ids) - self.done

    @property
    def least(self) -> int:
        """The number of tokens of the next block, the least that a step can read."""
        return (
            1
            if self.ends is None
            else int(self.ends[np.searchsorted(self.ends, self.done, side="right")]) - self.done
        )

    def blocks(self, count: int) -> list[int]:
        """Return the lengths of the blocks that make up the next `count` tokens."""
        if self.ends is None:
            return [count]
        first, last = np.searchsorted(self.ends, [self.done, self.done + count], side="right")
        return np.diff(self.ends[first:last], prepend=self.done).tolist()

    def most(self, room: int) -> int:
        """Return how many tokens a step can read next: whole blocks that fit into `room` tokens."""
        if self.ends is None:
            return max(0, min(self.left, room))
        count = int(np.searchsorted(self.ends, self.done + room, side="right"))
        return max(0, int(self.ends[count - 1]) - self.done) if count else 0


@dataclass(frozen=True, eq=False)
class Packed:
    """The tokens of a step: the next ones of several readings (`OpenRequest`), laid end to end."""

    # the requests of the step, with the number of tokens of each
    shares: Sequence[tuple[OpenRequest, int]]
    starts: list[int]  # the first token of each
    ids: np.ndarray  # (t,) int64
    cu_seqlens: np.ndarray  # cumulative lengths of the sequences, int64
    marks: np.ndarray | None  # (t, K) float32

    def split(self, rows: Array) -> list[Array]:
        """Return the rows (t, ...) of each reading."""
        counts = [count for _, count in self.shares]
        return [
            rows[end - count : end]
            for count, end in zip(counts, itertools.accumulate(counts), strict=True)
        ]

    def parts(self, hidden: Array, weight: Array | None) -> list[tuple[Array, Array]]:
        """Return the `part` of each reading, with hidden (t, D). `weight` (V,): the weight of each
        token id in the sums over ranges; None: 1.
        """
        weights = filled(hidden, 1.0, len(hidden)) if weight is None else weight[self.ids]
        if not isinstance(weights, np.ndarray):
            weights = as_tensor(weights).to(as_tensor(hidden))
        split = zip(self.shares, self.starts, self.split(hidden), self.split(weights), strict=True)
        return [reading.part(start, part, own) for (reading, _), start, part, own in split]


def pack(shares: Sequence[tuple[OpenRequest, int]], *, by_block: bool) -> Packed:
    """Lay out the next tokens of several readings. What is read of a text is a sequence, or
    `by_block` each block of it.
    """
    places = [slice(reading.done, reading.done + count) for reading, count in shares]
    ids = np.concatenate(
        [reading.ids[place] for (reading, _), place in zip(shares, places, strict=True)],
        dtype=np.int64,
    )
    kinds = [r.request.marks.shape[1] for r, _ in shares if r.request.marks is not None]
    marks = None
    if kinds:
        none = np.zeros((len(ids), kinds[0]), np.float32)
        parts = (
            none[:count] if reading.request.marks is None else reading.request.marks[place]
            for (reading, count), place in zip(shares, places, strict=True)
        )
        marks = np.concatenate(list(parts), dtype=np.float32)
    lengths = [
        length
        for reading, count in shares
        for length in (reading.blocks(count) if by_block else [count])
    ]
    return Packed(shares, [place.start for place in places], ids, np.cumsum([0, *lengths]), marks)
