"""The engine: whatever is packed with what, in one thread or several, every request gets what it
would get alone.
"""

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from helpers.children import GIVE_UP_S, wait_for
from helpers.toy import Toy, alone, ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runnel.backbones.state import State
from runnel.engine import Engine, Request, Result
from runnel.errors import Cancelled, InputError, NumericalError, StateError


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    step=st.integers(1, 40),
    whole=st.booleans(),
)
def test_any_packing_and_any_step_size_give_the_same(
    lengths: list[int], step: int, whole: bool
) -> None:
    """Also horizontally, where each text is read in one step. Every second text has marks, which
    move its embeddings.
    """
    backbone = Toy()
    vectors = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    texts = [ids_of(n, seed) for seed, n in enumerate(lengths)]
    marks = [
        None if i % 2 else np.random.default_rng(i).random((n, 2), dtype=np.float32)
        for i, n in enumerate(lengths)
    ]
    places = [[*reversed(range(n)), n // 2, 0] for n in lengths]
    requests = [
        Request(ids, at, keep_state=True, marks=mark)
        for ids, at, mark in zip(texts, places, marks, strict=True)
    ]
    results = Engine(backbone, step, mark_vectors=vectors, whole=whole).run(requests)
    assert sum(backbone.steps) == sum(lengths)
    assert whole or (
        max(backbone.steps) <= step and (max(backbone.steps) == step or max(lengths) < step)
    )
    for ids, at, mark, result in zip(texts, places, marks, results, strict=True):
        hidden, state = backbone(
            torch.as_tensor(ids), added=None if mark is None else torch.from_numpy(mark) @ vectors
        )
        torch.testing.assert_close(result.hidden, hidden[at], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(result.state["h"], state["h"], rtol=1e-5, atol=1e-5)
        assert result.state.tokens.tolist() == [len(ids)]


def test_results_come_in_request_order_or_as_they_finish() -> None:
    engine = Engine(Toy(), step_tokens=16)
    lengths = [500, 3, 4, 5, 6, 7]
    requests = [Request(ids_of(n, n)) for n in lengths]
    assert [r.index for r in engine.map(requests)] == [0, 1, 2, 3, 4, 5]
    finished = [r.index for r in engine.as_completed([Request(ids_of(n, n)) for n in lengths])]
    assert finished[-1] == 0 and sorted(finished) == [
        0,
        1,
        2,
        3,
        4,
        5,
    ], "short requests do not wait for the long one"


def test_requests_are_drawn_as_there_is_room() -> None:
    drawn = 0

    def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield Request(ids_of(5, drawn))

    results = Engine(Toy(), step_tokens=32).map(endless())
    for _ in range(20):
        next(results)
    results.close()
    assert drawn < 20 + 64


@pytest.mark.parametrize("wrong", [-1, 3])
def test_what_is_wanted_outside_of_a_text_is_the_error_of_its_request(wrong: int) -> None:
    ids = ids_of(3)
    position = Request(ids, positions=[0, wrong])
    stretch = Request(ids, ranges=np.array([[0, 3], [min(wrong, 0), max(wrong + 1, 0)]]))
    found = list(
        Engine(Toy(), step_tokens=2).map(
            [position, stretch, Request(ids, ranges=np.array([[0, 3]]))]
        )
    )
    assert [str(result.error) for result in found] == [
        f"positions are [0, {wrong}]; expected numbers from 0 to 2",
        (
            f"ranges are [[0, 3], [{min(wrong, 0)}, {max(wrong + 1, 0)}]]; expected numbers from 0"
            " to 3"
        ),
        "None",
    ]


def test_a_state_is_forked_over_many_requests_and_left_unchanged() -> None:
    backbone = Toy()
    prefix = ids_of(9, 99)
    engine = Engine(backbone, step_tokens=8)
    state = next(engine.map([Request(prefix, keep_state=True)])).state
    before = state.clone()
    tails = [ids_of(n, n) for n in (1, 20, 3, 5)]
    for tail, result in zip(
        tails, engine.run([Request(t, state=state) for t in tails]), strict=True
    ):
        torch.testing.assert_close(
            result.hidden[0],
            alone(backbone, np.concatenate([prefix, tail]))[-1],
            rtol=1e-5,
            atol=1e-5,
        )
    assert (
        torch.equal(before["h"], state["h"])
        and int(state.tokens[0]) == 9
        and state.bytes == backbone.state_bytes
    )


def test_one_failing_request_does_not_harm_the_others() -> None:
    def broken(start: int, hidden: torch.Tensor) -> None:
        raise RuntimeError("this reader is broken")

    backbone = Toy()
    good = ids_of(40)
    nothing = np.array([], dtype=int)
    bad = [Request(ids_of(10), take=broken), Request(np.array([1, 999])), Request(nothing)]
    requests = [Request(good), *bad, Request(good), Request(nothing, (), tag="nothing is wanted")]
    results = list(Engine(backbone, step_tokens=8).map(requests))
    assert [r.error is None for r in results] == [True, False, False, False, True, True]
    assert results[5].tag == "nothing is wanted" and not len(results[5].hidden)
    assert "1 to 999, int64 of shape" in str(results[2].error)
    assert "T >= 1" in str(results[3].error)
    torch.testing.assert_close(
        results[4].get().hidden[0], alone(backbone, good)[-1], rtol=1e-5, atol=1e-5
    )
    with pytest.raises(RuntimeError, match="this reader is broken"):
        results[1].get()


def test_nan_is_reported_with_its_position() -> None:
    backbone = Toy()
    backbone.table.data[7] = float("nan")
    results = list(
        Engine(backbone, step_tokens=4).map(
            [Request(np.array([1, 2, 3, 4, 5, 7, 1])), Request(np.array([1, 2]))]
        )
    )
    assert isinstance(results[0].error, NumericalError) and "token 5" in str(results[0].error)
    assert results[1].error is None


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_and_closing_free_the_rows_and_the_engine_goes_on(end: str) -> None:
    backbone = Toy()
    ids = ids_of(20)
    long = Request(ids_of(1000))
    engine = Engine(backbone, step_tokens=8)
    results = engine.as_completed([long, Request(ids_of(3))])
    assert next(results).index == 1
    if end == "cancel":
        long.cancel()
        assert isinstance(next(results).error, Cancelled)
    else:
        results.close()
    assert len(engine._free) == len(engine._pool)
    torch.testing.assert_close(
        engine.run([Request(ids)])[0].hidden[0], alone(backbone, ids)[-1], rtol=1e-5, atol=1e-5
    )


def test_budgets() -> None:
    backbone = Toy()
    for wrong in (0, 2.5, "8"):
        with pytest.raises(InputError, match=f"step_tokens is {wrong!r}"):
            Engine(backbone, step_tokens=wrong)
    with pytest.raises(InputError, match="memory_bytes=-5 is too small"):
        Engine(backbone, memory_bytes=-5)
    for other in ({"step_tokens": 4}, {"whole": True}):
        with pytest.raises(InputError, match="only one of step_tokens"):
            Engine(backbone, memory_bytes=1000, **other)


def test_the_same_tokens_after_several_states() -> None:
    """`extend`: as requests from these states, in steps shorter than the tokens."""
    backbone = Toy()
    ids = ids_of(11, 5)
    heads = [ids_of(n, n) for n in (1, 4, 7)]
    vectors = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    marks = np.random.default_rng(0).random((3, 11, 2), dtype=np.float32)
    for step in (4, 64):
        engine = Engine(backbone, step_tokens=step, mark_vectors=vectors)
        states = [
            result.state
            for result in engine.run([Request(head, keep_state=True) for head in heads])
        ]
        wanted = engine.run([Request(ids, range(11), state=state) for state in states])
        torch.testing.assert_close(
            engine.extend(State.concatenate(states), ids),
            torch.stack([one.hidden for one in wanted]),
        )
        wanted = engine.run(
            [Request(ids, range(11), state=s, marks=m) for s, m in zip(states, marks, strict=True)]
        )
        torch.testing.assert_close(
            engine.extend(State.concatenate(states), ids, marks),
            torch.stack([one.hidden for one in wanted]),
        )


LONGEST = 40
BEGIN = 7  # the id that begins a block


class Blocks(Toy):
    """Every token becomes the sum of the embeddings of its block."""

    title = "Toy encoder"
    block = 4
    max_tokens = 9
    recurrent = False

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[list[int]] = []  # of the blocks in each step

    def block_ends(self, ids: np.ndarray) -> np.ndarray:
        return np.append(np.flatnonzero(ids[1:] == BEGIN) + 1, len(ids))

    def step(self, ids: Tensor, cu_seqlens: Tensor, *_: object) -> Tensor:
        self.check_whole(cu_seqlens, continues=False)
        self.lengths.append(cu_seqlens.diff().tolist())
        return torch.cat([self.alone(ids[a:b]) for a, b in pairwise(cu_seqlens.tolist())])

    def alone(self, ids: Tensor) -> Tensor:
        return self.table[ids].sum(0).repeat(len(ids), 1).detach()


class Whole(Blocks):
    """A text is one block."""

    title = "Toy transformer"
    block = None
    max_tokens = LONGEST
    block_ends = Toy.block_ends


def blocks_of(lengths: list[int]) -> np.ndarray:
    ids = np.concatenate([ids_of(n, n) for n in lengths])
    ids[ids == BEGIN] = BEGIN + 1
    ids[np.cumsum([0, *lengths[:-1]])] = BEGIN
    return ids


@pytest.mark.parametrize("kind", [Blocks, Whole])
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 40),
)
def test_steps_are_of_whole_blocks(kind: type[Blocks], texts: list[list[int]], step: int) -> None:
    backbone = kind()
    texts = texts if kind is Blocks else [[min(sum(lengths), LONGEST)] for lengths in texts]
    requests = [Request(blocks_of(lengths), positions=range(sum(lengths))) for lengths in texts]
    for lengths, found in zip(texts, Engine(backbone, step_tokens=step).run(requests), strict=True):
        parts = np.split(blocks_of(lengths), np.cumsum(lengths)[:-1])
        torch.testing.assert_close(
            found.hidden, torch.cat([backbone.alone(torch.as_tensor(part)) for part in parts])
        )
    assert sorted(n for packed in backbone.lengths for n in packed) == sorted(
        n for lengths in texts for n in lengths
    )
    assert all(sum(packed) <= step or len(packed) == 1 for packed in backbone.lengths)


def test_short_requests_share_a_step_and_a_long_one_takes_its_own() -> None:
    whole = Whole()
    Engine(whole, step_tokens=16).run([Request(ids_of(n, n)) for n in (4, 30, 5, 6, 3)])
    assert [sorted(packed) for packed in whole.lengths] == [[3, 4, 5], [30], [6]]


def test_what_a_model_without_a_state_cannot_do_harms_no_other() -> None:
    whole = Whole()
    good = ids_of(20)
    state = State({}, torch.zeros(1, dtype=torch.int64))
    requests = [
        Request(good),
        Request(good, keep_state=True),
        Request(ids_of(LONGEST + 1)),
        Request(good, state=state),
        Request(good),
    ]
    results = list(Engine(whole, step_tokens=16).map(requests))
    for result in (results[1], results[3]):
        assert isinstance(
            result.error, StateError
        ) and f"{whole.title} reads a text only whole" in str(result.error)
    assert isinstance(results[2].error, InputError) and "41 tokens" in str(results[2].error)
    for result in (results[0], results[4]):
        torch.testing.assert_close(result.get().hidden[0], whole.alone(torch.as_tensor(good))[-1])


def test_horizontally_each_text_is_read_in_one_step_also_from_a_state() -> None:
    backbone = Toy()
    ids = ids_of(50)
    Engine(backbone, step_tokens=16, whole=True).run(
        [Request(ids_of(n, n)) for n in (100, 3, 5, 40, 1)]
    )
    assert sorted(backbone.steps) == [9, 40, 100]
    engine = Engine(backbone, step_tokens=8, whole=True)
    state = next(engine.map([Request(ids[:20], keep_state=True)])).state
    (result,) = engine.run([Request(ids[20:], state=state)])
    torch.testing.assert_close(result.hidden[0], alone(backbone, ids)[-1], rtol=1e-5, atol=1e-5)


def test_a_map_that_is_closed_within_a_step_of_the_same_thread_does_not_block() -> None:
    """As the garbage collector does with one that was never finished."""
    engine = Engine(Toy(), step_tokens=16)
    unfinished = engine.map([Request(ids_of(3)), Request(ids_of(200), keep_state=True)])
    next(unfinished)

    def closing(start: int, hidden: Tensor) -> None:
        unfinished.close()

    thread = threading.Thread(
        target=lambda: engine.run([Request(ids_of(40), take=closing)]), daemon=True
    )
    thread.start()
    thread.join(GIVE_UP_S)
    assert not thread.is_alive()


class Gate(Toy):
    """A backbone whose steps wait until the test allows each one."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.failing: BaseException | None = None

    def step(self, *args: Any) -> Tensor:
        self.started.release()
        assert self.allowed.acquire(timeout=GIVE_UP_S)
        if self.failing is not None:
            raise self.failing
        return super().step(*args)

    def allow(self, steps: int = 1) -> None:
        """Wait for steps to start, and let them end."""
        for _ in range(steps):
            assert self.started.acquire(timeout=GIVE_UP_S)
            self.allowed.release()


class Caller(threading.Thread):
    def __init__(self, engine: Engine, *lengths: int) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.texts = [ids_of(n, n) for n in lengths]
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self.read: list[int] = []
        self.start()

    def run(self) -> None:
        try:
            self.results = self.engine.run([Request(ids) for ids in self.texts], self.read.append)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        self.join(GIVE_UP_S)
        assert self.error is None
        for ids, result in zip(self.texts, self.results, strict=True):
            torch.testing.assert_close(
                result.hidden[0], alone(Toy(), ids)[-1], rtol=1e-5, atol=1e-5
            )
        assert sum(self.read) == sum(map(len, self.texts)), (
            "each call is told of its own tokens only"
        )


def test_a_short_text_of_another_thread_joins_the_next_step_of_a_long_one() -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=16)
    long = Caller(engine, 160)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    shorts = [Caller(engine, 3), Caller(engine, 4)]
    wait_for(lambda: len(engine._active) == 3)
    backbone.allowed.release()  # the step that runs already
    backbone.allow()
    for short in shorts:
        short.check()
    assert backbone.steps == [16, 16] and long.is_alive(), (
        "the second step has read both short texts and a part of the long one"
    )
    for _ in range(20):
        backbone.allowed.release()
    long.check()
    assert sum(backbone.steps) == 167


@pytest.mark.parametrize("failing", [ValueError("no memory"), KeyboardInterrupt()])
def test_a_failed_step_fails_every_call_in_it_and_no_other(failing: BaseException) -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=8)
    long = Caller(engine, 800)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    short = Caller(engine, 3)
    wait_for(lambda: len(engine._active) == 2)
    backbone.allowed.release()
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    backbone.failing = failing
    backbone.allowed.release()
    for caller in (long, short):
        caller.join(GIVE_UP_S)
        assert caller.error is not None
    assert {type(long.error), type(short.error)} <= {type(failing), Cancelled} and failing in (
        long.error,
        short.error,
    )
    backbone.failing = None
    assert not engine._active and len(engine._free) == len(engine._pool)
    after = Caller(engine, 3)
    backbone.allow()
    after.check()


def test_a_map_closed_while_another_thread_runs_a_step_is_dropped_after_it() -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=8)
    backbone.allowed.release()
    unfinished = engine.as_completed([Request(ids_of(400)), Request(ids_of(3))])
    next(unfinished)
    assert backbone.started.acquire(blocking=False)
    other = Caller(engine, 3)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    unfinished.close()
    assert len(engine._active) == 2, "the step still reads for it"
    backbone.allowed.release()
    other.check()
    assert not engine._active and len(engine._free) == len(engine._pool)


def test_a_thread_with_other_work_gets_its_turn_beside_a_long_text() -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=4)
    long = Caller(engine, 400)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    done = threading.Event()

    def extend() -> None:
        engine.extend(backbone.new_state(2), ids_of(2))
        done.set()

    threading.Thread(target=extend, daemon=True).start()
    wait_for(lambda: len(engine._turns) == 2)
    backbone.allowed.release()
    backbone.allow()
    assert done.wait(GIVE_UP_S), "the next step after the running one"
    assert long.is_alive()
    for _ in range(100):
        backbone.allowed.release()
    long.check()


def test_threads_share_an_engine() -> None:
    engine = Engine(Toy(), step_tokens=16)
    for caller in [Caller(engine, 50 + i, 3, 17) for i in range(6)]:
        caller.check()
