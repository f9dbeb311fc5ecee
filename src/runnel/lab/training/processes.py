"""Two ways in which processes prepare the data of a run: `in_processes`, a pool that works on
examples on all cores, in the order of the examples; and `writers_first`, by which the processes
that train together wait until one of them has written the data, with such a pool.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState

from runnel.errors import InputError
from runnel.hardware import cores
from runnel.jobs.progress import Item

Result = TypeVar("Result")

CHUNK = 32  # examples in one call
# Chunks that this process works on alone. Only if there are more, other processes are started,
# which takes seconds.
CHUNKS_ALONE = 32
_PATIENCE = timedelta(days=365)  # how long other processes wait: preparing data may take very long


def in_processes(
    function: Callable[[list[Item]], Result], items: Iterable[Item]
) -> Iterator[tuple[list[Item], Result]]:
    """Yield chunks of items with the function's results for them, in order. The first chunks are
    worked on in this process, the others in processes, which start when they are needed, at most
    one for each core.

    Function, items and results are pickled; a function's error is raised here. Raises InputError if
    a process is killed.
    """
    rest = iter(items)
    chunks = iter(lambda: list(islice(rest, CHUNK)), [])
    for chunk in islice(chunks, CHUNKS_ALONE):
        yield chunk, function(chunk)
    waiting: deque[tuple[list[Item], Future[Result]]] = deque()
    try:
        with ProcessPoolExecutor(cores(), get_context("spawn"), _start, (function,)) as pool:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(_call, chunk)))
                if len(waiting) > 2 * cores():
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of the {cores()} processes that prepare data was killed, probably because memory"
            " ran out; free some, or allow fewer cores (taskset), and repeat the command"
        ) from error


# The function to call in a worker process: `_start` sets it once, so that it is not pickled with
# each chunk.
_function: Callable[[Any], Any]


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes share the cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process if its parent is killed, which would leave it waiting for work forever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _call(chunk: list[Any]) -> Any:
    return _function(chunk)


@contextmanager
def writers_first(state: PartialState) -> Iterator[None]:
    """Let all processes run the block: first one of each machine, which writes files, however long
    it takes; then, when it has finished, the others, which find the files.

    The limit of other collective operations (10 minutes on GPUs) does not count here. If a process
    ends, processes that wait for it fail at once.
    """
    group = None
    if state.num_processes > 1:
        group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    if group is not None and not state.is_local_main_process:
        dist.barrier(group)
    yield
    if group is not None and state.is_local_main_process:
        dist.barrier(group)
