"""The work of the server: every request that runs a model is counted, admitted, queued and run
here, in a lane of threads.

    QueuedRequest   one request: its tokens, and how it is ended early
    Work            the queue; `run` for model calls, `parse` for files, `drain` at the end

Short and long requests have threads of their own, so that a question never waits behind long
documents. Requests that run share an engine's steps, half for the oldest, half for the shortest;
those in which `pocket` reads sentences take turns, a step each. A request ends early when its
`progress` callback raises.
"""

import asyncio
import ctypes
import math
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

from runnel.errors import Cancelled
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings
from runnel.text.documents.reader import DocumentReader

T = TypeVar("T")
_SHORT_CHARS = 1 << 14  # a request with more text is long
# lane -> its threads, which requests get in the order in which they come
_THREADS = {"short": 16, "long": 4, "count-short": 1, "count-long": 1, "parse": 2}
_MEMORY_S = 60.0  # seconds of work, about, that the measured speed is a mean of
_STOP_S = 10.0  # the longest wait for cancelled calls, which end after their current step


class QueuedRequest:
    """One request in the queue, and the `progress` of its model call."""

    def __init__(self, work: "Work") -> None:
        self._work = work
        self.tokens = 0  # counted before the call
        self.read = 0
        self.refusal: Refusal | None = None  # why the request was cancelled
        self.cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call: Future[Any] = Future()  # what a thread does for it, or will do

    def __call__(self, done: int, total: int | None) -> None:
        """Record the tokens read so far; raise Cancelled if the request has ended."""
        self.expect_wanted()
        self.record(done)

    def record(self, done: int) -> None:
        """Record the tokens read so far."""
        self._work._record(self, done - self.read)

    def expect_wanted(self) -> None:
        if self.refusal is not None:
            raise Cancelled(self.refusal.detail)

    def expect_few(self, tokens: int, most: int | None = None) -> None:
        """Check a count so far: the request may have ended, or have too many tokens already
        (`most`: for its route; default: for any).
        """
        self.expect_wanted()
        limit = self._work._settings.max_request_tokens
        most = limit if most is None else min(most, limit)
        if tokens > most:
            raise Refusal(
                "too_long",
                f"the request has more than {most:,} tokens; send several requests",
                code="context_length_exceeded",
            )

    def cancel(self, refusal: Refusal) -> None:
        """End the request: the client is answered now; a running call ends after its current step,
        and one that waits for a thread leaves the queue.
        """
        self.refusal = refusal
        self.call.cancel()
        if not self.cancelled.done():
            self.cancelled.set_result(None)


class Work:
    """The queue in front of the models. All methods but `QueuedRequest` run in the event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._lanes = {name: ThreadPoolExecutor(most, name) for name, most in _THREADS.items()}
        # asyncio itself keeps no reference to running tasks
        self._jobs: dict[asyncio.Task[object], QueuedRequest] = {}
        self._lock = threading.Lock()  # guards the counters below, which threads change
        self.left = 0  # tokens admitted and not read yet
        self.read = 0  # tokens read since the start
        self._recent = (0.0, 0.0)  # tokens, and seconds with work, of about the last minute
        self._since = 0.0
        self.draining = False

    @property
    def running(self) -> int:
        """Return the number of requests that a thread works on."""
        return sum(job.call.running() for job in self._jobs.values())

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for a thread."""
        return len(self._jobs) - self.running

    def expect_open(self) -> None:
        if self.draining:
            raise _stopping()

    async def run(
        self,
        request: Request,
        characters: int,
        count: Callable[[QueuedRequest], int],
        call: Callable[[QueuedRequest], T],
    ) -> tuple[T, int]:
        """Return what `call` returns in a thread, and `count` of its tokens before.

        `count` calls `QueuedRequest.expect_few`, which ends it. The number of characters chooses
        the lane.
        """
        self.expect_open()
        job = QueuedRequest(self)
        lane = "long" if characters > _SHORT_CHARS else "short"
        result = await self._wait(request, job, self._run(job, lane, count, call))
        return result, job.tokens

    async def parse(
        self, request: Request, data: bytes, call: Callable[[DocumentReader, Path], T]
    ) -> T:
        """Read a file in memory for a request, in a thread, a few at the same time, by way of a
        temporary file that is removed at once. What parses it ends with the request.
        """
        self.expect_open()
        job = QueuedRequest(self)
        reader = DocumentReader()
        job.cancelled.add_done_callback(lambda _: reader.stop())

        def read(job: QueuedRequest) -> T:
            with reader, tempfile.TemporaryDirectory(prefix="runnel-") as folder:
                path = Path(folder) / "file"
                path.write_bytes(data)
                return call(reader, path)

        return await self._wait(request, job, self._in_thread(job, "parse", read))

    async def _wait(self, request: Request, job: QueuedRequest, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work of a request returns, or end it."""
        task = asyncio.create_task(work)
        self._jobs[task] = job
        task.add_done_callback(self._jobs.pop)
        task.add_done_callback(take_error)
        gone = asyncio.create_task(_disconnect(request))
        try:
            ends: set[asyncio.Future[Any]] = {task, gone, job.cancelled}
            await asyncio.wait(
                ends, timeout=self._settings.deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
            if not task.done() and job.refusal is None:
                job.cancel(
                    Refusal("gone", "the client disconnected")
                    if gone.done()
                    else Refusal(
                        "deadline",
                        f"the request took longer than {self._settings.deadline_s:g} s; send less"
                        " text",
                    )
                )
        if gone.done():  # the thread still holds the texts, which count until this returns
            await asyncio.wait({task})
        if job.refusal is not None:
            raise job.refusal
        return task.result()

    async def _run(
        self,
        job: QueuedRequest,
        lane: str,
        count: Callable[[QueuedRequest], int],
        call: Callable[[QueuedRequest], T],
    ) -> T:
        try:
            self._admit(job, await self._in_thread(job, f"count-{lane}", count))
            return await self._in_thread(job, lane, call)
        finally:
            if lane == "long":
                self._lanes["count-long"].submit(_trim)
            with self._lock:
                self.left -= max(0, job.tokens - job.read)

    async def _in_thread(
        self, job: QueuedRequest, lane: str, call: Callable[[QueuedRequest], T]
    ) -> T:
        """Return what a call for a request returns in a thread of a lane."""
        # A pool keeps what was cancelled until a thread is free: then this list is empty, so that
        # texts of clients that have left are let go at once.
        calls = [partial(call, job)]
        job.call = self._lanes[lane].submit(lambda: calls.pop()())
        try:
            return await asyncio.wrap_future(job.call)
        finally:
            calls.clear()

    def _admit(self, job: QueuedRequest, tokens: int) -> None:
        job.expect_few(tokens)
        if self.left and self.left + tokens > self._settings.max_queue_tokens:
            raise Refusal(
                "busy",
                f"{self.left:,} tokens are queued, and with {tokens:,} more the limit of"
                f" {self._settings.max_queue_tokens:,} would be exceeded; retry later",
                code="rate_limit_exceeded",
                retry_after_s=self.retry_after_s(tokens),
            )
        job.tokens = tokens
        with self._lock:
            if not self.left:  # seconds without work do not count
                self._since = time.perf_counter()
            self.left += tokens

    def _record(self, job: QueuedRequest, tokens: int) -> None:
        with self._lock:
            now = time.perf_counter()
            counted, seconds = self._recent
            recent = (counted + tokens, seconds + now - self._since)
            # halved from time to time, so that old work counts less and less
            self._recent = recent if recent[1] < _MEMORY_S else (recent[0] / 2, recent[1] / 2)
            self._since = now
            # a call may read more tokens than were counted for it
            self.left -= min(tokens, max(0, job.tokens - job.read))
            job.read += tokens
            self.read += tokens

    @property
    def tokens_per_s(self) -> float:
        """Return the measured speed while there was work, of about the last minute; 0: not measured
        yet.
        """
        tokens, seconds = self._recent
        return tokens / seconds if seconds else 0.0

    def retry_after_s(self, tokens: int) -> int:
        """Return the seconds until `tokens` more will fit into the queue, at the measured speed."""
        excess = self.left + tokens - self._settings.max_queue_tokens
        return max(1, math.ceil(excess / self.tokens_per_s)) if self.tokens_per_s else 1

    async def drain(self) -> None:
        """Refuse new requests, and return when all others are finished; after the time limit,
        cancel them.
        """
        self.draining = True
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=self._settings.drain_s)
        self.stop()
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=_STOP_S)

    def stop(self) -> None:
        """Refuse new requests, and end all others."""
        self.draining = True
        for job in self._jobs.values():
            job.cancel(_stopping())

    def close(self) -> None:
        for pool in self._lanes.values():
            pool.shutdown(wait=False, cancel_futures=True)


def take_error(task: asyncio.Task[Any]) -> None:
    """Take the error of a task whose client may have left, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _stopping() -> Refusal:
    return Refusal(
        "unavailable",
        "the server is stopping; retry with another server, or when it runs again",
        retry_after_s=1,
    )


def _trim() -> None:
    """Return free memory to the system: glibc keeps what long texts used, for
    each thread (0.03 s).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
