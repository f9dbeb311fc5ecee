"""What a call holds in memory."""

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def with_peak(call: Callable[[], Value]) -> tuple[Value, int]:
    """Return what a call returns, and the most bytes of Python's that it held."""
    tracemalloc.start()
    try:
        value = call()
        return value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
