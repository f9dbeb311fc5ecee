"""The engine: many texts of any length through one backbone, in steps of bounded size.

Requests wait in a queue. Each step packs the next segments of several requests, up to `step_tokens` tokens, and runs
them through all layers. An unfinished request keeps its state in a row of a pool; finished requests leave, and
new ones join, at the next step. So memory depends on `step_tokens`, not on text length, and a short query never waits for
a long document. Each request's outputs (`request.py`) are taken from the hidden vectors as they are computed; the vectors are not
kept.

This is vertical inference. A recurrence can be cut after any token, other backbones only at the end of a block (`block_ends`):
an encoder after each passage, a transformer after the text. With `whole` a recurrence is read like a transformer (horizontal
inference): the results are the same, but memory then also depends on the longest text.

    T  tokens of one request   D  width of hidden vectors   V  vocabulary   K  kinds of mark
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.state import State
from runnel.errors import Cancelled, InputError, NumericalError, RunnelError
from runnel.planning import Plan, fit, plan
from runnel.request import Collector, Request, Result

__all__ = ["Engine", "Request", "Result"]

# Default tokens of a step. On a CPU longer steps gain little (docs/performance.md). The GPU values (and `GPU_STEP`) are from the
# linear-time embedding paper (4.2, E.1): 4096 tokens of one text, 32 x 512 of a batch. Not measured here.
_CPU_STEP, _GPU_TEXT = 1024, 4096
# Requests in flight beyond those in the current step: enough to fill a step with texts of a few tokens.
_WINDOW = 512


class _Active:
    """A request in flight: how far it has been read and the pool row of its state (-1: none)."""

    __slots__ = ("collector", "done", "ends", "ids", "index", "request", "row")

    def __init__(self, index: int, request: Request, ids: np.ndarray, weight: Tensor | None, ends: np.ndarray | None) -> None:
        self.index, self.request, self.ids, self.ends = index, request, ids, ends
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


class Engine:
    """A scheduler that runs requests through a backbone. Safe to call from several threads: steps take turns.

    Args:
        backbone: a prepared backbone (`load_backbone`).
        step_tokens: tokens per step, or a plan; longer steps are slightly faster and take more memory. Default: 1024 on a CPU; on
            a GPU 4096 for a single text (`text_tokens`) and 16,384 for several, as far as half of its free memory allows.
        memory_bytes: instead of `step_tokens`: the limit of memory for steps and states, without the weights.
        mark_vectors: (K, D) fp32, the vectors that `Request.marks` add to the embeddings.
        weight: (V,) fp32 weight of each token id in `Request.ranges` (default: 1).
        whole: use horizontal inference.
        step: what runs a step (default: `backbone.step`).

    Raises:
        InputError: a budget is not positive, or too small for one segment, or given together with `whole`.
    """

    plan = staticmethod(plan)  # Engine.plan(backbone, memory_bytes): the memory and speed to expect from a budget

    def __init__(
        self,
        backbone: Backbone,
        step_tokens: int | Plan | None = None,
        memory_bytes: int | None = None,
        mark_vectors: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        whole: bool = False,
        step: Callable[..., Tensor] | None = None,
    ) -> None:
        if whole and backbone.recurrent and memory_bytes is not None:
            raise InputError("memory of horizontal inference grows with the longest text: give memory_bytes or whole, not both")
        self.backbone = backbone
        self.whole = whole
        self._backbone_step = backbone.step if step is None else step
        self.text_tokens, self.step_tokens = _step_tokens(backbone, step_tokens, memory_bytes)
        self.mark_vectors, self.weight = mark_vectors, weight
        self._lock = threading.RLock()  # the garbage collector may close an unfinished `map` within a step of the same thread
        self._pool = backbone.new_state(1)
        self._free = [0]

    def map(self, requests: Iterable[Request], progress: Callable[[int], None] | None = None) -> Iterator[Result]:
        """Yield results in the order of the requests, which are taken from the iterable as there is room.

        `progress` is called after each step with the number of tokens just read. A request that fails yields a result
        with `error` set and does not affect the others. Closing the iterator drops unfinished requests.
        """
        waiting: dict[int, Result] = {}
        wanted = 0
        for result in self._completed(requests, progress, waiting):
            waiting[result.index] = result
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted += 1

    def as_completed(self, requests: Iterable[Request], progress: Callable[[int], None] | None = None) -> Iterator[Result]:
        """Yield results as they finish; `Result.index` is the position of its request in the iterable."""
        return self._completed(requests, progress, ())

    def _completed(self, requests: Iterable[Request], progress: Callable[[int], None] | None, pending: Sized) -> Iterator[Result]:
        """Run `as_completed`; take no new requests while many results are `pending`, which the caller cannot use yet."""
        source = enumerate(requests)
        active: deque[_Active] = deque()
        exhausted = False
        try:
            while active or not exhausted:
                # The oldest request may be long and takes half a step; the others should be able to fill the other half.
                room = self.step_tokens - sum(self._share(item) for item in itertools.islice(active, 1, None))
                while not exhausted and room > 0 and len(active) < _WINDOW and (not active or len(pending) < 8 * _WINDOW):
                    drawn = next(source, None)
                    if drawn is None:
                        exhausted = True
                        break
                    started = self._start(*drawn)
                    if isinstance(started, Result):
                        yield started
                        continue
                    room -= self._share(started) if active else 0
                    active.append(started)
                if active:
                    finished, tokens = self._step(active)
                    if progress is not None:
                        progress(tokens)
                    yield from finished
        finally:
            with self._lock:
                for item in active:
                    self._release(item)

    def run(self, requests: Sequence[Request], progress: Callable[[int], None] | None = None) -> list[Result]:
        """Return the results of all requests, in order; raise the first error."""
        return [result.get() for result in self.map(requests, progress)]

    def extend(self, states: State, ids: np.ndarray, marks: np.ndarray | None = None) -> Tensor:
        """Read the same tokens after each of several texts; return their hidden vectors (n, T, D) fp32.

        Args:
            states: of n texts; they may be overwritten.
            ids: (T,) token ids.
            marks: (n, T, K) float32.
        """
        rows, added = torch.arange(len(states)), None
        if marks is not None and self.mark_vectors is not None:
            added = torch.from_numpy(marks).flatten(0, 1) @ self.mark_vectors
        parts = []
        with self._lock:
            for start in range(0, len(ids), self.step_tokens):  # several passes only if one text's tokens exceed a step
                piece = torch.from_numpy(ids[start : start + self.step_tokens].astype(np.int64))
                count, last = len(piece), start + len(piece) == len(ids)
                part = added if added is None or count == len(ids) else added[start : start + count]
                cu_seqlens = torch.arange(0, (len(rows) + 1) * count, count)
                ends = torch.full_like(rows, -1) if last else rows
                hidden = self.backbone.step(piece.repeat(len(rows)), cu_seqlens, states, rows, ends, part)
                parts.append(hidden.unflatten(0, (len(rows), count)))
        return torch.cat(parts, dim=1)

    # ---- scheduling ------------------------------------------------------------------------------------------------

    def _start(self, index: int, request: Request) -> _Active | Result:
        try:
            ids = np.asarray(request.ids)  # not copied: a step copies its own tokens
            nothing = request.positions is not None and not len(request.positions) and not request.keep_state
            if ids.ndim == 1 and not len(ids) and nothing:
                return Collector(request, ids, self.weight).result(index, None)
            if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
                raise InputError(f"token ids must be integers of shape (T,), T >= 1, got shape {ids.shape} of {ids.dtype}")
            if int(ids.min()) < 0 or int(ids.max()) >= self.backbone.vocab_size:
                raise InputError(
                    f"token ids must be in [0, {self.backbone.vocab_size}), got {int(ids.min())} to {int(ids.max())}"
                )
            if request.marks is not None and request.marks.shape[0] != len(ids):
                raise InputError(f"marks must have one row per token ({len(ids)}), got {request.marks.shape[0]}")
            ends = np.array([len(ids)]) if self.whole else self.backbone.block_ends(ids)
            if not self.backbone.recurrent and ends is not None:
                continues = request.state is not None or request.keep_state
                self.backbone.check_whole(torch.from_numpy(np.append(0, ends)), continues=continues)
            if request.state is not None and len(request.state.check(self.backbone.state_shapes())) != 1:
                raise InputError(f"a request starts from the state of one sequence, got {len(request.state)} rows; select() one")
        except RunnelError as error:
            return Result(index, request.tag, error=error)
        return _Active(index, request, ids, self.weight, ends)

    def _share(self, item: _Active) -> int:
        """Return how many tokens a request can add to a shared step; 0 if its next block needs a step of its own."""
        return item.left if item.least <= self.step_tokens else 0

    def _plan(self, active: deque[_Active]) -> list[tuple[_Active, int]]:
        """Return (request, tokens) pairs of the next step: half for the oldest, then shortest first, the rest for the oldest."""
        oldest = active[0]
        room = self.step_tokens if len(active) > 1 else self.text_tokens
        takes = {id(oldest): max(oldest.most(room // 2), oldest.least)}
        room -= takes[id(oldest)]
        for item in sorted(itertools.islice(active, 1, None), key=lambda a: a.left):
            if room <= 0:
                break
            takes[id(item)] = item.most(room)
            room -= takes[id(item)]
        if room > 0:
            takes[id(oldest)] = oldest.most(takes[id(oldest)] + room)
        return [(item, takes[id(item)]) for item in active if takes.get(id(item))]

    def _step(self, active: deque[_Active]) -> tuple[list[Result], int]:
        """Run one step over part of `active`; remove finished and failed requests from it."""
        with self._lock:
            finished = []
            for item in [a for a in active if a.request._cancelled]:
                active.remove(item)
                finished.append(self._finish(item, error=Cancelled("the request was cancelled")))
            if not active:
                return finished, 0
            plan = self._plan(active)
            try:
                hidden = self._read(plan)
            except Exception:
                for item, _ in plan:
                    self._release(item)
                raise
            start = 0
            for item, count in plan:
                outcome = self._deliver(item, hidden[start : start + count])
                start += count
                if outcome is not None:
                    active.remove(item)
                    finished.append(outcome)
            return finished, start

    def _read(self, plan: list[tuple[_Active, int]]) -> Tensor:
        ids = torch.from_numpy(np.concatenate([item.ids[item.done : item.done + count] for item, count in plan], dtype=np.int64))
        if self.backbone.recurrent:
            lengths, read_rows, write_rows = [count for _, count in plan], *self._rows(plan)
        else:
            lengths = [length for item, count in plan for length in item.blocks(count)]
            read_rows = write_rows = [-1] * len(lengths)
        cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)])
        return self._backbone_step(
            ids, cu_seqlens, self._pool, torch.tensor(read_rows), torch.tensor(write_rows), self._added(plan, ids.numel())
        )

    def _rows(self, plan: list[tuple[_Active, int]]) -> tuple[list[int], list[int]]:
        """Return the pool rows that each request's state is read from and written to; see `Backbone.step`."""
        read_rows, write_rows = [], []
        for item, count in plan:
            continues = item.row >= 0
            if not continues and (item.request.state is not None or item.request.keep_state or count < item.left):
                item.row = self._row(item.request.state)
                continues = item.request.state is not None
            read_rows.append(item.row if continues else -1)
            write_rows.append(item.row if item.request.keep_state or count < item.left else -1)
        return read_rows, write_rows

    def _added(self, plan: list[tuple[_Active, int]], total: int) -> Tensor | None:
        if self.mark_vectors is None or all(item.request.marks is None for item, _ in plan):
            return None
        marks = torch.zeros(total, self.mark_vectors.shape[0])
        start = 0
        for item, count in plan:
            if item.request.marks is not None:
                marks[start : start + count] = torch.as_tensor(item.request.marks[item.done : item.done + count])
            start += count
        return marks @ self.mark_vectors

    def _deliver(self, item: _Active, hidden: Tensor) -> Result | None:
        try:
            # The sum is fast and propagates NaN and infinity; it may also overflow although every number is finite.
            if not bool(torch.isfinite(hidden.sum())) and not bool(torch.isfinite(hidden).all()):
                at = item.done + int((~torch.isfinite(hidden).all(dim=1)).nonzero()[0])
                raise NumericalError(f"NaN or infinity in the hidden vectors at token {at}; the weights may be damaged")
            item.collector.read(item.done, hidden)
            item.done += hidden.shape[0]
            return self._finish(item) if item.left == 0 else None
        except Exception as error:  # one request's failure is its own result; the others continue
            return self._finish(item, error=error)

    def _finish(self, item: _Active, error: Exception | None = None) -> Result:
        state = self._pool.select([item.row]) if error is None and item.request.keep_state else None
        self._release(item)
        return item.collector.result(item.index, state) if error is None else Result(item.index, item.request.tag, error=error)

    # ---- rows of the state pool ------------------------------------------------------------------------------------

    def _row(self, state: State | None) -> int:
        """Return a free row set to `state`, or to the initial state; the pool doubles when it is full."""
        if not self._free:
            rows = len(self._pool)
            self._pool = State.concatenate([self._pool, self.backbone.new_state(rows)])
            self._free = list(range(rows, 2 * rows))
        row = self._free.pop()
        if state is not None:
            for name, tensor in self._pool.tensors.items():
                tensor[row] = state[name][0]
        self._pool.tokens[row] = 0 if state is None else state.tokens[0]
        return row

    def _release(self, item: _Active) -> None:
        if item.row >= 0:
            self._free.append(item.row)
            item.row = -1


def _step_tokens(backbone: Backbone, step_tokens: int | Plan | None, memory_bytes: int | None) -> tuple[int, int]:
    """Return the tokens of a step with a single text, and with several."""
    if step_tokens is not None and memory_bytes is not None:
        raise InputError("give step_tokens or memory_bytes, not both")
    if memory_bytes is not None:
        step_tokens = fit(backbone, memory_bytes)
    if step_tokens is None:
        return _default_steps(backbone)
    tokens = step_tokens.segment if isinstance(step_tokens, Plan) else step_tokens
    if tokens < 1:
        raise InputError(f"step_tokens must be at least 1, got {tokens}")
    return tokens, tokens


def _default_steps(backbone: Backbone) -> tuple[int, int]:
    """Return the default number of tokens of a step: with a single text, and with several.

    Raises:
        InputError: half of the GPU's free memory is too little for one token.
    """
    if backbone.device.type != "cuda":
        return _CPU_STEP, _CPU_STEP
    room = fit(backbone, torch.cuda.mem_get_info(backbone.device)[0] // 2).segment
    return min(_GPU_TEXT, room), room
