"""The engine called from several threads: their requests share steps, and each gets what it would get alone."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toy import Toy, alone, ids_of
from helpers.waiting import GIVE_UP_S
from torch import Tensor

from runnel.engine import Engine, Request, Result
from runnel.errors import Cancelled


class Gate(Toy):
    """A backbone whose steps wait until the test allows each one."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.allowed = threading.Semaphore(0), threading.Semaphore(0)
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
    """A thread that reads texts, and keeps what came of it."""

    def __init__(self, engine: Engine, *lengths: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.texts = engine, [ids_of(n, n) for n in lengths]
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
        """Assert that every text was read as it would be alone."""
        self.join(GIVE_UP_S)
        assert self.error is None
        for ids, result in zip(self.texts, self.results, strict=True):
            torch.testing.assert_close(result.hidden[0], alone(Toy(), ids)[-1], rtol=1e-5, atol=1e-5)
        assert sum(self.read) == sum(map(len, self.texts)), "each call is told of its own tokens only"


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_a_short_text_of_another_thread_joins_the_next_step_of_a_long_one() -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=16)
    long = Caller(engine, 160)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    shorts = [Caller(engine, 3), Caller(engine, 4)]
    wait_until(lambda: len(engine._active) == 3)
    backbone.allowed.release()  # the step that runs already
    backbone.allow()
    for short in shorts:
        short.check()
    assert backbone.steps == [16, 16] and long.is_alive(), "the second step has read both short texts and a part of the long one"
    for _ in range(20):
        backbone.allowed.release()
    long.check()
    assert sum(backbone.steps) == 167


def test_short_texts_of_many_threads_share_steps() -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=64)
    first = Caller(engine, 5)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    others = [Caller(engine, 4) for _ in range(16)]
    wait_until(lambda: len(engine._active) == 17)
    for _ in range(2):
        backbone.allowed.release()
    for caller in (first, *others):
        caller.check()
    assert backbone.steps == [5, 64]


@pytest.mark.parametrize("failing", [ValueError("no memory"), KeyboardInterrupt()])
def test_a_failed_step_fails_every_call_in_it_and_no_other(failing: BaseException) -> None:
    backbone = Gate()
    engine = Engine(backbone, step_tokens=8)
    long = Caller(engine, 800)
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    short = Caller(engine, 3)
    wait_until(lambda: len(engine._active) == 2)
    backbone.allowed.release()
    assert backbone.started.acquire(timeout=GIVE_UP_S)
    backbone.failing = failing
    backbone.allowed.release()
    for caller in (long, short):
        caller.join(GIVE_UP_S)
        assert caller.error is not None
    assert {type(long.error), type(short.error)} <= {type(failing), Cancelled} and failing in (long.error, short.error)
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
    wait_until(lambda: len(engine._turns) == 2)
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
