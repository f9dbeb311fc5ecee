"""Waiting for what another thread or process must do."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

GIVE_UP_S = 600  # not a measure of speed: on a busy machine, processes have stood still for more than a minute


def wait_for(condition: Callable[[], Value]) -> Value:
    """Return the first value of the condition that is true."""
    deadline = time.monotonic() + GIVE_UP_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found
