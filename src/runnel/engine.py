"""The engine: many texts of any length through one backbone, in steps of bounded size
(docs/how-it-works.md).

An unfinished request keeps its state in a row of a pool between steps. Calls from several threads
share the queue: a step is run by one of the threads that wait for results, in turn, and reads for
all.

The way of a request: `map`, `as_completed` or `run` -> `_completed` (takes requests while there is
room) -> `_turn` (waits, or runs a step) -> `_step` -> `_plan` (which tokens of which requests) ->
`_run_plan` (`_read`, the backbone) -> `_deliver` (hidden vectors to the requests).

    T  tokens of one request   D  width of hidden vectors   V  vocabulary   K  kinds of mark
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.backbones.config import expect_ids
from runnel.checks import expect_count
from runnel.errors import Cancelled, InputError, NumericalError, RunnelError
from runnel.ops.backend import plain_numbers
from runnel.planning import Plan, fit, plan
from runnel.request import (
    Array,
    Call,
    OpenRequest,
    Packed,
    Request,
    Result,
    as_tensor,
    on_cpu,
    pack,
)

if TYPE_CHECKING:
    from torch import Tensor

    from runnel.backbones.base import Backbone
    from runnel.backbones.encoder.arrays import ArrayEncoder
    from runnel.backbones.state import State

__all__ = ["Engine", "Request", "Result"]

# Default tokens of a step. On a CPU longer steps gain little (docs/performance.md). The GPU values
# (and `GPU_STEP`) are from the linear-time embedding paper (4.2, E.1): 4096 tokens of one text, 32
# x 512 of a batch. Not measured here.
_CPU_STEP, _GPU_TEXT = 1024, 4096
# Requests in flight beyond those in the current step: enough to fill a step with texts of a few
# tokens.
_WINDOW = 512


class Engine:
    """A scheduler that runs requests through a backbone. Safe to call from several threads: their
    requests share steps.

    Args:
        backbone: a prepared backbone (`load_backbone`).
        step_tokens: tokens per step, or a plan; longer steps are slightly faster and take more
            memory. Default: 1024 on a CPU; on a GPU 4096 for a single text (`text_tokens`) and
            16,384 for several, as far as half of its free memory allows.
        memory_bytes: instead of `step_tokens`: the limit of memory for steps and states, without
            the weights.
        mark_vectors: (K, D) fp32, the vectors that `Request.marks` add to the embeddings.
        weight: (V,) fp32 weight of each token id in `Request.ranges` (default: 1).
        whole: use horizontal inference.
        read_blocks: runs a step of a backbone without a state: (ids, cu_seqlens) to hidden
            (default: `backbone.step`).

    Raises:
        InputError: a budget is not positive, or too small for one segment, or given together with
            `whole`.
    """

    # Engine.plan(backbone, memory_bytes): the memory and speed to expect from a budget
    plan = staticmethod(plan)

    def __init__(
        self,
        backbone: Backbone | ArrayEncoder,
        step_tokens: int | Plan | None = None,
        memory_bytes: int | None = None,
        mark_vectors: Tensor | None = None,
        *,
        weight: Array | None = None,
        whole: bool = False,
        read_blocks: Callable[..., Array] | None = None,
    ) -> None:
        whole_in_budget = whole and backbone.recurrent and memory_bytes is not None
        if whole_in_budget or (step_tokens is not None and memory_bytes is not None):
            raise InputError(
                "give only one of step_tokens, memory_bytes and whole (whose memory grows with the"
                " longest text)"
            )
        self.backbone: Any = backbone
        self.whole = whole
        self._read_blocks = read_blocks
        self.text_tokens, self.step_tokens = _step_tokens(backbone, step_tokens, memory_bytes)
        self.mark_vectors, self.weight = mark_vectors, weight
        # guards the next two and the news of calls; notified after each step
        self._changed = threading.Condition()
        self._active: dict[OpenRequest, None] = {}  # requests in flight of all calls, oldest first
        # threads that want to run a step; the first may, and alone uses the rest
        self._turns: list[object] = []
        self._free = [0]  # rows of `_pool` that no request has

    def map(
        self, requests: Iterable[Request], on_tokens: Callable[[int], None] | None = None
    ) -> Iterator[Result]:
        """Yield results in the order of the requests, which are taken from the iterable as there is
        room.

        `on_tokens` is called after each step with the number of tokens just read. A request that
        fails yields a result with `error` set and does not affect the others. Closing the iterator
        drops unfinished requests.
        """
        waiting: dict[int, Result] = {}
        wanted = 0
        for result in self._completed(requests, on_tokens, waiting):
            waiting[result.index] = result
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted += 1

    def as_completed(
        self, requests: Iterable[Request], on_tokens: Callable[[int], None] | None = None
    ) -> Iterator[Result]:
        """Yield results as they finish; `Result.index` is the position of its request in the
        iterable.
        """
        return self._completed(requests, on_tokens, ())

    def _completed(
        self, requests: Iterable[Request], on_tokens: Callable[[int], None] | None, pending: Sized
    ) -> Iterator[Result]:
        """Run `as_completed`; take no new requests while many results are `pending`, which the
        caller cannot use yet.
        """
        source = enumerate(requests)
        call = Call()
        exhausted = False
        try:
            while call.active or call.has_news or not exhausted:
                # 1. Take requests until they fill a step.
                # The oldest request may be long and takes half a step; the others should be able to
                # fill the other half.
                with self._changed:
                    room = self.step_tokens - sum(map(self._share, list(call.active)[1:]))
                # One request at a time while the caller waits for an old one to yield the others.
                while (
                    not exhausted
                    and room > 0
                    and len(call.active) < (_WINDOW if len(pending) < 8 * _WINDOW else 1)
                ):
                    drawn = next(source, None)
                    if drawn is None:
                        exhausted = True
                        break
                    started = self._start(call, *drawn)
                    if isinstance(started, Result):
                        yield started
                        continue
                    with self._changed:
                        room -= self._share(started) if call.active else 0
                        call.active[started] = self._active[started] = None
                # 2. Run a step, or wait for one of another thread, and yield what has finished.
                if call.active or call.has_news:
                    with self._turn(call) as mine:
                        if mine:
                            self._step()
                    with self._changed:
                        finished, tokens = call.take_news()
                    if on_tokens is not None:
                        on_tokens(tokens)
                    yield from finished
        finally:
            # Drop what is left of the call: now, or at the next step if a thread is running one.
            # The garbage collector may end an unfinished `map` in any thread, also within a step.
            with self._changed:
                call.closed = True
                if not self._turns:
                    self._drop_unwanted()

    def run(
        self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None
    ) -> list[Result]:
        """Return the results of all requests, in order; raise the first error."""
        return [result.get() for result in self.map(requests, on_tokens)]

    def extend(
        self,
        states: State,
        ids: np.ndarray,
        marks: np.ndarray | None = None,
        *,
        keep_states: bool = False,
    ) -> Tensor:
        """Read the same tokens (T,) after each of n texts; return their hidden vectors (n, T, D)
        fp32.

        `marks` are (n, T, K) float32. `states`, on the model's device, may be overwritten; with
        `keep_states` they are those after the tokens.
        """
        import torch

        rows = torch.arange(len(states))
        added = None
        device = self.backbone.device
        if marks is not None and self.mark_vectors is not None:
            added = (torch.from_numpy(marks).flatten(0, 1) @ self.mark_vectors).to(device)
        pieces = []
        with self._turn():
            # several passes only if one text's tokens exceed a step
            for start in range(0, len(ids), self.step_tokens):
                piece = torch.from_numpy(ids[start : start + self.step_tokens].astype(np.int64))
                count = len(piece)
                last = start + len(piece) == len(ids)
                part = added if added is None or count == len(ids) else added[start : start + count]
                cu_seqlens = torch.arange(0, (len(rows) + 1) * count, count)
                ends = torch.full_like(rows, -1) if last and not keep_states else rows
                hidden = self.backbone.step(
                    piece.repeat(len(rows)).to(device), cu_seqlens, states, rows, ends, part
                )
                pieces.append(hidden.float().cpu().unflatten(0, (len(rows), count)))
        return torch.cat(pieces, dim=1)

    @contextmanager
    def _turn(self, call: Call | None = None) -> Iterator[bool]:
        """Wait for this thread's turn, first come first served; yield False without a turn if
        `call` has news.
        """
        turn = object()
        with self._changed:
            self._turns.append(turn)
        try:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._turns[0] is turn or (call is not None and call.has_news)
                )
            yield call is None or not call.has_news
        finally:
            with self._changed:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _start(self, call: Call, index: int, request: Request) -> OpenRequest | Result:
        try:
            ids = np.asarray(request.ids)  # not copied: a step copies its own tokens
            nothing = (
                request.positions is not None
                and not len(request.positions)
                and not request.keep_state
            )
            if ids.ndim == 1 and not len(ids) and nothing:
                return OpenRequest(request, ids, index=index).result()
            expect_ids(ids, self.backbone.vocab_size, least=1)
            ends = np.array([len(ids)]) if self.whole else self.backbone.block_ends(ids)
            if not self.backbone.recurrent and ends is not None:
                continues = request.state is not None or request.keep_state
                self.backbone.check_whole(np.append(0, ends), continues=continues)
            if request.state is not None:
                request.state.check(self.backbone.state_shapes(), rows=1)
            return OpenRequest(request, ids, ends, call, index)
        except RunnelError as error:
            return Result(index, request.tag, error=error)

    def _share(self, item: OpenRequest) -> int:
        """Return how many tokens a request can add to a shared step; 0 if its next block needs a
        step of its own.
        """
        return item.left if item.least <= self.step_tokens else 0

    def _plan(self, active: list[OpenRequest]) -> list[tuple[OpenRequest, int]]:
        """Return (request, tokens) pairs of the next step: half for the oldest, then shortest
        first, the rest for the oldest.
        """
        oldest = active[0]
        room = self.step_tokens if len(active) > 1 else self.text_tokens
        takes = {id(oldest): max(oldest.most(room // 2), oldest.least)}
        room -= takes[id(oldest)]
        for item in sorted(active[1:], key=lambda a: a.left):
            if room <= 0:
                break
            takes[id(item)] = item.most(room)
            room -= takes[id(item)]
        if room > 0:
            takes[id(oldest)] = oldest.most(takes[id(oldest)] + room)
        return [(item, takes[id(item)]) for item in active if takes.get(id(item))]

    def _step(self) -> None:
        """Run one step over part of all requests in flight, and give each call its news."""
        # 1. Forget requests that nobody wants any more.
        with self._changed:
            self._drop_unwanted()
            active = list(self._active)
        if not active:
            return
        # 2. Choose the tokens that the step reads of each request.
        plan = self._plan(active)
        try:
            with nullcontext() if self.backbone.without_torch else plain_numbers():
                self._run_plan(plan)
        except BaseException as error:  # also Ctrl-C: states and outputs may be half updated
            with self._changed:
                for item, _ in plan:
                    item.call.error = (
                        error
                        if isinstance(error, Exception)
                        else Cancelled("another thread was interrupted")
                    )
                    self._remove(item)
            raise

    def _run_plan(self, plan: Sequence[tuple[OpenRequest, int]]) -> None:
        # 3. Lay the tokens end to end, and run them through the backbone.
        step = pack(plan)
        hidden = self._read(step)
        # 4. Give each request its own, and its result after its last token.
        given = zip(plan, step.split(hidden), step.parts(hidden, self.weight), strict=True)
        results = [self._deliver(item, part, *outputs) for (item, _), part, outputs in given]
        # 5. Tell the calls.
        with self._changed:
            for (item, count), result in zip(plan, results, strict=True):
                item.call.tokens += count
                if result is not None:
                    item.call.finished.append(result)
                    self._remove(item)
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        """Remove cancelled requests and those of closed calls."""
        for item in [a for a in self._active if a.request._cancelled or a.call.closed]:
            item.call.finished.append(
                Result(item.index, item.request.tag, error=Cancelled("the request was cancelled"))
            )
            self._remove(item)

    def _remove(self, item: OpenRequest) -> None:
        """Free a request's row and forget it, after its call has got the news. A second time
        nothing happens.
        """
        if item.row >= 0:
            self._free.append(item.row)
            item.row = -1
        self._active.pop(item, None)
        item.call.active.pop(item, None)

    def _read(self, step: Packed) -> Array:
        if self.backbone.without_torch:
            return (self._read_blocks or self.backbone.step_forms)(step.ids, step.cu_seqlens)
        import torch

        device = self.backbone.device
        added = None
        if self.mark_vectors is not None and step.marks is not None:
            added = (torch.from_numpy(step.marks) @ self.mark_vectors).to(device)
        ids = torch.from_numpy(step.ids).to(device)
        cu_seqlens = torch.from_numpy(step.cu_seqlens)
        if self._read_blocks is not None:
            hidden = self._read_blocks(ids, cu_seqlens, added)
        else:
            nowhere = [-1] * (len(cu_seqlens) - 1)
            read_rows, write_rows = (
                self._rows(step.plan) if self.backbone.recurrent else (nowhere, nowhere)
            )
            rows = torch.tensor(read_rows), torch.tensor(write_rows)
            hidden = self.backbone.step(ids, cu_seqlens, self._pool, *rows, added)
        return as_tensor(hidden).float()  # fp64 of a backbone in fp64

    def _rows(self, plan: Sequence[tuple[OpenRequest, int]]) -> tuple[list[int], list[int]]:
        """Return the pool rows that each request's state is read from and written to; see
        `Backbone.step`.
        """
        read_rows = []
        write_rows = []
        for item, count in plan:
            continues = item.row >= 0
            if not continues and (
                item.request.state is not None or item.request.keep_state or count < item.left
            ):
                item.row = self._row(item.request.state)
                continues = item.request.state is not None
            read_rows.append(item.row if continues else -1)
            write_rows.append(item.row if item.request.keep_state or count < item.left else -1)
        return read_rows, write_rows

    def _deliver(
        self, item: OpenRequest, hidden: Array, picked: Array, rows: Array
    ) -> Result | None:
        try:
            # The sum is fast and propagates NaN and infinity; it may also overflow although every
            # number is finite.
            if not math.isfinite(hidden.sum()):
                broken = ~np.isfinite(np.asarray(on_cpu(hidden))).all(axis=1)
                if broken.any():
                    at = item.done + int(broken.argmax())
                    raise NumericalError.while_reading(f"the hidden vectors at token {at}")
            item.add(len(hidden), on_cpu(picked), on_cpu(rows))
            if item.request.take is not None:
                item.request.take(item.done - len(hidden), on_cpu(hidden))
            if item.left:
                return None
            state = self._pool.select([item.row]).to("cpu") if item.request.keep_state else None
            return item.result(state)
        except Exception as error:  # one request's failure is its own result; the others continue
            return Result(item.index, item.request.tag, error=error)

    @cached_property
    def _pool(self) -> State:
        """The states of unfinished texts."""
        return self.backbone.new_state(1)

    def _row(self, state: State | None) -> int:
        """Return a free row set to `state`, or to the initial state; the pool doubles when it is
        full.
        """
        if not self._free:
            rows = len(self._pool)
            self._pool = self._pool.concatenate([self._pool, self.backbone.new_state(rows)])
            self._free = list(range(rows, 2 * rows))
        row = self._free.pop()
        if state is not None:
            for name, tensor in self._pool.tensors.items():
                tensor[row] = state[name][0]
        self._pool.tokens[row] = 0 if state is None else state.tokens[0]
        return row


def _step_tokens(
    backbone: Any, step_tokens: int | Plan | None, memory_bytes: int | None
) -> tuple[int, int]:
    """Return the tokens of a step with a single text, and with several."""
    if memory_bytes is not None:
        step_tokens = fit(backbone, memory_bytes)
    if step_tokens is None and backbone.device.type == "cuda":
        import torch

        room = fit(backbone, torch.cuda.mem_get_info(backbone.device)[0] // 2).segment
        return min(_GPU_TEXT, room), room
    tokens = _CPU_STEP if step_tokens is None else step_tokens
    if isinstance(tokens, Plan):
        tokens = tokens.segment
    expect_count(tokens, "step_tokens")
    return tokens, tokens
