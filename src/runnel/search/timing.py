"""The times of the stages of a search."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a stage to `seconds`: of a block, or of each call of a function that this
    decorates.

    The times of stages inside it, which grow the sum of `seconds` meanwhile, are taken off: scoring
    reads the next file, but that time counts as reading.
    """
    start = time.perf_counter() - sum(seconds.values())
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - sum(seconds.values()) - start
