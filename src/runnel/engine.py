"""The engine: many texts of any length through one backbone, in steps of bounded size
(docs/how-it-works.md).

The words of this file:

    step      one run of all layers of the backbone over a bounded number of tokens, of one text or
              of several laid end to end
    reading   a request that is being read (`OpenRequest`), from its first step to its last
    call      one `map`, `as_completed` or `run`. Its news: the results finished and the tokens read
              since it last looked, or the error of a step
    share     what a step reads of one reading: its next `count` tokens
    block     tokens of a text that must be read in one step. A recurrent backbone carries a state
              from token to token, so a text may be cut anywhere (its `block_ends` are None). An
              encoder sees the tokens of a block together: a block is the whole text, or a passage
              if the encoder reads long texts in passages. It has no state, except a Mamba-2
              encoder, which is recurrent too and carries one from passage to passage
    pool      the states of unfinished readings of a recurrent backbone, one row each; row -1: none
    mark      a number of a token, with a vector for each kind of mark: number times vector is added
              to the token's embedding. A kind is, for example, "also occurs in the query"

Of a reading, `left` is how many tokens are still to be read, `least` how many its next block has
(recurrent: 1), and `most(room)` how many tokens of whole blocks fit next into `room` tokens.

For example, three texts of 3,000, 200 and 400 tokens in steps of 1,000, in this order:

    step 1    500 of the first, all 200 of the second, 300 of the third
    step 2    900 of the first, the last 100 of the third
    step 3    1,000 of the first, and so on

Calls from several threads share the steps: each step is run by one of the threads that wait for
results, in turn, and reads for all.

The way of a request: `map`, `as_completed` or `run` -> `_completed` (takes requests while there is
room) -> `_turn` (waits, or gives this thread the turn) -> `_step` -> `_choose_shares` (which tokens
of which readings) -> `_run_shares` (`_read`, the backbone) -> `_deliver` (hidden vectors to the
readings).

    T  tokens of a text or of a step     D  width of hidden vectors     V  vocabulary
    K  kinds of mark                     n  texts of `extend`
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

# Default tokens of a step. On a CPU longer steps gain little (docs/performance.md). The GPU values,
# 4096 of a single text and for several `planning.GPU_STEP`, are from Grantner et al., "Linear-Time
# and Constant-Memory Text Embeddings Based on Recurrent Language Models" (4.2, E.1): 4096 tokens of
# one text, 32 x 512 of a batch. Not measured here.
_CPU_STEP, _GPU_TEXT = 1024, 4096
# the most readings of a call: enough to fill a step with texts of a few tokens
_WINDOW = 512
# results that wait for an older one before a call takes its requests one at a time
_MANY_PENDING = 8 * _WINDOW


class Engine:
    """A scheduler that runs requests through a backbone. Safe to call from several threads: their
    requests share steps.

    Args:
        backbone: a prepared backbone (`load_backbone`).
        step_tokens: the most tokens of a step, or a `Plan` that `Engine.plan` made for a memory
            budget; longer steps are slightly faster and take more memory. Default: 1024 on a CPU;
            on a GPU 4096 while a single text is read and 16,384 while several are, as far as half
            of its free memory allows. A block that is longer has a step of its own.
        memory_bytes: instead of `step_tokens`: the limit of memory for steps and states, without
            the weights.
        mark_vectors: (K, D) fp32, the vector of each kind of mark in `Request.marks`.
        weight: (V,) fp32 weight of each token id in the sums over `Request.ranges` (default: 1).
        whole: read each text in a single step, all its tokens through the first layer, then through
            the second ("horizontal" inference), so that memory grows with the longest text.

    Attributes:
        text_tokens, step_tokens: the most tokens of a step that reads a single text, and of one
            that reads several; different only by default on a GPU.

    Raises:
        InputError: a budget is not positive, or too small for one token, or given together with
            `whole`.
    """

    # Engine.plan(backbone, memory_bytes) returns a `Plan`: the longest step that a memory budget
    # allows, and the speed to expect
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
    ) -> None:
        # A backbone without a state reads each block in a single step with any budget, so `whole`
        # takes nothing from it.
        whole_in_budget = whole and backbone.recurrent and memory_bytes is not None
        if whole_in_budget or (step_tokens is not None and memory_bytes is not None):
            raise InputError(
                "give only one of step_tokens, memory_bytes and whole (whose memory grows with the"
                " longest text)"
            )
        self.backbone: Any = backbone
        self.whole = whole
        self.text_tokens, self.step_tokens = _step_limits(backbone, step_tokens, memory_bytes)
        self.mark_vectors, self.weight = mark_vectors, weight
        # `_changed` is a lock: who holds it may use `_active`, `_turns`, and the readings and news
        # of every call. It is notified after each step. `_free` and `_pool` belong to the thread
        # whose turn it is; while no thread has a turn, to the holder of the lock.
        self._changed = threading.Condition()
        self._active: dict[OpenRequest, None] = {}  # the readings of all calls, oldest first
        # an object for each thread that wants to run a step or does; it is the first one's turn
        self._turns: list[object] = []
        self._free = [0]  # rows of `_pool` that no reading has

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
        """Run `as_completed`. `pending` are results that the caller cannot use before an older one;
        while there are many, take requests one at a time.
        """
        source = enumerate(requests)
        call = Call()
        exhausted = False
        try:
            while call.active or call.has_news or not exhausted:
                # 1. Take requests until they fill a step, `room` being what is left of it.
                # The call's oldest reading, [0], is not counted: a long one takes only half of each
                # step, and a short one ends with the next, so the others should be enough alone.
                # With steps of 1,000 and a text of 3,000 tokens, more is taken until others have
                # 1,000 tokens together.
                with self._changed:
                    room = self.step_tokens - sum(map(self._can_fill, list(call.active)[1:]))
                while (
                    not exhausted
                    and room > 0
                    and len(call.active) < (_WINDOW if len(pending) < _MANY_PENDING else 1)
                ):
                    drawn = next(source, None)
                    if drawn is None:
                        exhausted = True
                        break
                    started = self._start(call, *drawn)
                    if isinstance(started, Result):  # done already, or refused
                        yield started
                        continue
                    with self._changed:
                        room -= self._can_fill(started) if call.active else 0
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

        `states` has a row for each text, on the model's device, and may be overwritten; with
        `keep_states` its rows become the states after the tokens. `marks` are (n, T, K) float32. A
        step reads the same part of all texts, n `step_tokens` tokens at most.
        """
        import torch

        rows = torch.arange(len(states))
        added = None  # what the marks add to the embeddings, (n, T, D)
        if marks is not None and self.mark_vectors is not None:
            added = (torch.from_numpy(marks) @ self.mark_vectors).to(self.backbone.device)
        pieces = []
        with self._turn():  # no step of another thread runs meanwhile
            # more than one step only if T is larger than `step_tokens`
            for start in range(0, len(ids), self.step_tokens):
                piece = torch.from_numpy(ids[start : start + self.step_tokens].astype(np.int64))
                stop = start + len(piece)
                part = None if added is None else added[:, start:stop].flatten(0, 1)
                cu_seqlens = torch.arange(0, (len(rows) + 1) * len(piece), len(piece))
                # each state is read from its row, and written back if it is still needed
                write_rows = rows if keep_states or stop < len(ids) else torch.full_like(rows, -1)
                hidden = self.backbone.step(
                    piece.repeat(len(rows)).to(self.backbone.device),
                    cu_seqlens,
                    states,
                    rows,
                    write_rows,
                    part,
                )
                pieces.append(hidden.float().cpu().unflatten(0, (len(rows), len(piece))))
        return torch.cat(pieces, dim=1)

    @contextmanager
    def _turn(self, call: Call | None = None) -> Iterator[bool]:
        """Wait for this thread's turn to use the backbone, first come first served, and yield True;
        if `call` has news before or with it, yield False: no step is needed.
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
        """Check a request and open it; return its result if it is wrong or needs no step."""
        try:
            ids = np.asarray(request.ids)  # not copied: a step copies its own tokens
            wants_nothing = (
                request.positions is not None
                and not len(request.positions)
                and not request.keep_state
            )
            # An empty text has no hidden vector and no state to give. If none is wanted, as of an
            # empty document of which only sums over ranges are, it is done without a step.
            if ids.ndim == 1 and not len(ids) and wants_nothing:
                return OpenRequest(request, ids, index=index).result()
            expect_ids(ids, self.backbone.vocab_size, least=1)
            # the tokens after which the text may be cut; None: after any
            block_ends = self.backbone.block_ends(ids)
            if block_ends is not None:
                continues = request.state is not None or request.keep_state
                # raises if a block is too long, or if a state is asked of a backbone without one
                self.backbone.check_whole(
                    np.append(0, block_ends), continues=continues and not self.backbone.recurrent
                )
            if self.whole:
                block_ends = np.array([len(ids)])
            if request.state is not None:
                request.state.check(self.backbone.state_shapes(), rows=1)
            return OpenRequest(request, ids, block_ends, call, index)
        except RunnelError as error:
            return Result(index, request.tag, error=error)

    def _can_fill(self, reading: OpenRequest) -> int:
        """Return how many tokens a reading can add to a step that it shares with others; 0 if its
        next block is longer than a step and so gets one of its own.
        """
        return reading.left if reading.least <= self.step_tokens else 0

    def _choose_shares(self, active: list[OpenRequest]) -> list[tuple[OpenRequest, int]]:
        """Return what the next step reads: (reading, count) pairs, `count` tokens of each.

        The oldest gets half of the step, and its next block even if that is longer; then the others
        in order of the tokens they have left, the fewest first, all that fit; then the oldest what
        is left of the step.
        """
        oldest = active[0]
        room = self.step_tokens if len(active) > 1 else self.text_tokens
        counts = {id(oldest): max(oldest.most(room // 2), oldest.least)}
        room -= counts[id(oldest)]
        for reading in sorted(active[1:], key=lambda other: other.left):
            if room <= 0:
                break
            counts[id(reading)] = reading.most(room)
            room -= counts[id(reading)]
        if room > 0:
            counts[id(oldest)] = oldest.most(counts[id(oldest)] + room)
        return [(reading, counts[id(reading)]) for reading in active if counts.get(id(reading))]

    def _step(self) -> None:
        """Run one step over shares of the readings of all calls, and give each call its news."""
        # 1. Forget readings that nobody wants any more.
        with self._changed:
            self._drop_unwanted()
            active = list(self._active)
        if not active:
            return
        # 2. Choose the tokens that the step reads of each reading.
        shares = self._choose_shares(active)
        try:
            # The calling program may have set a default dtype or autocast; a step is without them.
            with nullcontext() if self.backbone.without_torch else plain_numbers():
                self._run_shares(shares)
        except BaseException as error:  # also Ctrl-C: states and outputs may be half updated
            with self._changed:
                for reading, _ in shares:
                    reading.call.error = (
                        error
                        if isinstance(error, Exception)
                        else Cancelled("another thread was interrupted")
                    )
                    self._remove(reading)
            raise

    def _run_shares(self, shares: Sequence[tuple[OpenRequest, int]]) -> None:
        """Run the rest of `_step`: steps 3 to 5."""
        # 3. Lay the tokens end to end, and run them through the backbone.
        packed = pack(shares, by_block=not self.backbone.recurrent)
        hidden = self._read(packed)
        # 4. Give each reading its own hidden vectors (`split`), those at its positions and the sums
        # over its ranges (`parts`). After its last token it returns a result.
        outputs = zip(shares, packed.split(hidden), packed.parts(hidden, self.weight), strict=True)
        results = [self._deliver(reading, own, *parts) for (reading, _), own, parts in outputs]
        # 5. Tell the calls.
        with self._changed:
            for (reading, count), result in zip(shares, results, strict=True):
                reading.call.tokens += count
                if result is not None:
                    reading.call.finished.append(result)
                    self._remove(reading)
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        """Remove the readings of cancelled requests and of closed calls."""
        for reading in [a for a in self._active if a.request._cancelled or a.call.closed]:
            reading.call.finished.append(
                Result(
                    reading.index, reading.request.tag, error=Cancelled("the request was cancelled")
                )
            )
            self._remove(reading)

    def _remove(self, reading: OpenRequest) -> None:
        """Free a reading's row of the pool and forget the reading, after its call has got the news.
        A second time nothing happens.
        """
        if reading.row >= 0:
            self._free.append(reading.row)
            reading.row = -1
        self._active.pop(reading, None)
        reading.call.active.pop(reading, None)

    def _read(self, packed: Packed) -> Array:
        """Return the hidden vectors of a step's tokens, (T, D) fp32."""
        if self.backbone.without_torch:
            # An encoder's upper layers have several variants, its forms; `step_forms` by default
            # runs the one for whole texts.
            return self.backbone.step_forms(packed.ids, packed.cu_seqlens)
        import torch

        device = self.backbone.device
        added = None  # what the marks add to the embeddings, (T, D)
        if self.mark_vectors is not None and packed.marks is not None:
            added = (torch.from_numpy(packed.marks) @ self.mark_vectors).to(device)
        ids = torch.from_numpy(packed.ids).to(device)
        cu_seqlens = torch.from_numpy(packed.cu_seqlens)
        if self.backbone.recurrent:
            read_rows, write_rows = self._state_rows(packed.shares)
        else:
            read_rows = write_rows = [-1] * (len(cu_seqlens) - 1)
        rows = torch.tensor(read_rows), torch.tensor(write_rows)
        hidden = self.backbone.step(ids, cu_seqlens, self._pool, *rows, added)
        return as_tensor(hidden).float()  # fp64 of a backbone in fp64

    def _state_rows(self, shares: Sequence[tuple[OpenRequest, int]]) -> tuple[list[int], list[int]]:
        """Return the pool rows from which the step reads each reading's state (-1: the initial
        state) and to which it writes it (-1: not needed after the step); see `Backbone.step`.
        """
        read_rows = []
        write_rows = []
        for reading, count in shares:
            has_state = reading.row >= 0
            keeps_state = reading.request.keep_state or count < reading.left
            if not has_state and (reading.request.state is not None or keeps_state):
                reading.row = self._take_row(reading.request.state)
                has_state = reading.request.state is not None
            read_rows.append(reading.row if has_state else -1)
            write_rows.append(reading.row if keeps_state else -1)
        return read_rows, write_rows

    def _deliver(
        self, reading: OpenRequest, hidden: Array, picked: Array, sums: Array
    ) -> Result | None:
        """Give a reading the hidden vectors (count, D) of its next tokens, those `picked` at its
        positions and the `sums` over its ranges (rows of `RangeSums`); return its result, or None
        if tokens are left.
        """
        try:
            # The sum is fast and propagates NaN and infinity; it may also overflow although every
            # number is finite.
            if not math.isfinite(hidden.sum()):
                broken = ~np.isfinite(np.asarray(on_cpu(hidden))).all(axis=1)
                if broken.any():
                    at = reading.done + int(broken.argmax())
                    raise NumericalError.while_reading(f"the hidden vectors at token {at}")
            reading.add(len(hidden), on_cpu(picked), on_cpu(sums))  # `done` is now after them
            if reading.request.take is not None:
                reading.request.take(reading.done - len(hidden), on_cpu(hidden))
            if reading.left:
                return None
            state = None
            if reading.request.keep_state:
                state = self._pool.select([reading.row]).to("cpu")
            return reading.result(state)
        except Exception as error:  # one request's failure is its own result; the others continue
            return Result(reading.index, reading.request.tag, error=error)

    @cached_property
    def _pool(self) -> State:
        """The states of unfinished readings; a first access makes a pool of one row."""
        return self.backbone.new_state(1)

    def _take_row(self, state: State | None) -> int:
        """Return a row of the pool that no reading has, set to `state`. Without one it is not set:
        the first step reads no row. The pool doubles when it is full.
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


def _step_limits(
    backbone: Any, step_tokens: int | Plan | None, memory_bytes: int | None
) -> tuple[int, int]:
    """Return the most tokens of a step with a single text, and with several. A plan calls the
    tokens of a step a segment.
    """
    if memory_bytes is not None:
        step_tokens = fit(backbone, memory_bytes)
    if step_tokens is None and backbone.device.type == "cuda":
        import torch

        # of the device's (free, total) bytes, half of the free ones
        tokens_that_fit = fit(backbone, torch.cuda.mem_get_info(backbone.device)[0] // 2).segment
        return min(_GPU_TEXT, tokens_that_fit), tokens_that_fit
    tokens = _CPU_STEP if step_tokens is None else step_tokens
    if isinstance(tokens, Plan):
        tokens = tokens.segment
    expect_count(tokens, "step_tokens")
    return tokens, tokens
