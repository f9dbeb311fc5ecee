"""Replies of a language model, stored on disk: no reply is paid for twice, and a budget is kept."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import NoReturn

from runnel.errors import EndpointError, InputError, RunnelError, StoreError
from runnel.files import open_own
from runnel.generation.endpoint import LanguageModelClient, Reply
from runnel.lock import WriterLock
from runnel.text.dialogue import Message

_PATIENCE = 5  # requests in a row that fail, each after the endpoint's own repeats, before no more are sent
_BYTES_PER_TOKEN = 3  # for estimates: English has about 4, Chinese 3
BATCH_BYTES = 150_000_000  # of the texts of a batch; OpenAI takes files of 200 MB
_TABLE = """CREATE TABLE IF NOT EXISTS replies (
    key BLOB PRIMARY KEY, version TEXT NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, estimated INTEGER NOT NULL
) WITHOUT ROWID"""


class Stopped(RunnelError):
    """No further request is sent: the budget is spent, or the endpoint fails again and again."""


class Deferred(EndpointError):
    """The request waits for a batch; see `runnel.generation.batches`."""


class BudgetSpent(Stopped):
    """The next request might exceed the budget."""


@dataclass(frozen=True)
class Usage:
    """What replies have cost.

    Attributes:
        estimated: replies whose tokens the endpoint did not count; they are estimated from the number of bytes.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0

    def __add__(self, other: Usage) -> Usage:
        return self._combined(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self._combined(other, -1)

    def _combined(self, other: Usage, sign: int) -> Usage:
        mine, theirs = asdict(self), asdict(other)
        return Usage(**{name: mine[name] + sign * theirs[name] for name in mine})


@dataclass(frozen=True)
class Budget:
    """The most that all replies of a store may cost, over all runs. Prices are for a million tokens, in any currency.

    Raises:
        InputError: a number is negative or not finite, or there is a budget of money without a price.
    """

    tokens: int | None = None
    money: float | None = None
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} of the budget is {value}; expected 0 or more")
        if self.money is not None and not self.price_in + self.price_out:
            raise InputError("a budget of money needs prices; give price_in and price_out, for a million tokens")

    def cost(self, usage: Usage) -> float:
        """Return the price of replies."""
        return (usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out) / 1e6

    def allows(self, usage: Usage) -> bool:
        """Return whether replies may cost this much."""
        fits = self.tokens is None or usage.prompt_tokens + usage.completion_tokens <= self.tokens
        return fits and (self.money is None or self.cost(usage) <= self.money)


@dataclass(frozen=True)
class BatchedRequest:
    """A request that waits for a batch.

    Attributes:
        expected: what it may cost.
    """

    endpoint: LanguageModelClient
    messages: list[Message]
    max_tokens: int
    version: str
    expected: Usage


class Replies:
    """A language model whose replies are stored. Use as a context manager, from any number of threads.

    A reply is stored before it is returned; after a crash only requests that were not yet answered are sent again. A request is
    sent only if its estimated cost fits into the rest of the budget, next to all requests under way.

    Args:
        endpoint: the language model.
        path: the store, an SQLite file; created, as a file that others cannot read, if it does not exist.
        budget: see `Budget`.
        temperature: of all requests.
        batch_size: collect up to this many requests instead of sending them, for `runnel.generation.batches`.

    Attributes:
        file: the open store.
        waiting: the requests collected, by their keys.
        spent: by all runs with this store.
        used: by the replies of this run, including stored ones, each once.
        used_by: the same for each `version` of `ask`.

    Raises:
        StoreBusy: another process uses the store.
        StoreError: the file is damaged, or not a store of replies.
    """

    def __init__(
        self,
        endpoint: LanguageModelClient,
        path: Path,
        *,
        budget: Budget | None = None,
        temperature: float = 0.0,
        batch_size: int | None = None,
    ) -> None:
        self.endpoint, self.budget, self.temperature, self.batch_size = endpoint, budget or Budget(), temperature, batch_size
        self.waiting: dict[bytes, BatchedRequest] = {}
        self._failed: dict[bytes, str] = {}  # requests of a batch without a reply
        self.spent = self.used = Usage()
        self.used_by: dict[str, Usage] = {}
        self._path, self._lock = path, WriterLock(path.with_name(path.name + ".lock"), path)
        self._changed = Condition()  # guards everything below
        self._asking: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._reserved = Usage()
        self._failures = 0
        self._bytes = 0  # of the requests that wait

    def __enter__(self) -> Replies:
        open_own(self._path, mode=0o600).close()
        self._lock.acquire()
        try:
            self.file = sqlite3.connect(self._path, check_same_thread=False)
            self.file.execute(_TABLE)
            sums = "COUNT(*), SUM(prompt_tokens), SUM(completion_tokens), SUM(estimated)"
            self.spent = Usage(*(n or 0 for n in self.file.execute(f"SELECT {sums} FROM replies").fetchone()))
        except sqlite3.Error as error:
            self._lock.release(remove=True)
            raise StoreError(f"{self._path} cannot be used as a store of replies ({error}); move it away") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()
        self._lock.release(remove=True)

    def ask(
        self, messages: list[Message], *, max_tokens: int, version: str, endpoint: LanguageModelClient | None = None
    ) -> Reply:
        """Return the model's reply, a stored one if the same has been asked before.

        Args:
            max_tokens: the most tokens of the reply.
            version: of the prompt's wording and of how its reply is read; part of what makes requests the same.
            endpoint: another language model, for this request; default: the store's own.

        Raises:
            BudgetSpent: the request might exceed the budget; it was not sent.
            Deferred: the request waits for a batch.
            EndpointError: the endpoint does not answer this request.
            Stopped: the last requests all failed; this one was not sent.
        """
        endpoint = endpoint or self.endpoint
        key = _digest(endpoint.model, messages, max_tokens, self.temperature, version)
        expected = Usage(1, _tokens("".join(one["content"] for one in messages)), max_tokens)
        with self._changed:
            while key in self._asking:
                self._changed.wait()
            if (stored := self._stored(key, version)) is not None:
                return stored
            if self.batch_size is not None:
                self._defer(key, BatchedRequest(endpoint, messages, max_tokens, version, expected), self.batch_size)
            self._reserve(expected, endpoint)
            self._asking.add(key)
        reply = None
        try:
            reply = endpoint.complete(messages, max_tokens=max_tokens, temperature=self.temperature)
            return reply
        except EndpointError:
            with self._changed:
                self._failures += 1
            raise
        finally:
            with self._changed:  # at once: a cost is never counted as reserved and as spent
                self._reserved -= expected
                self._asking.discard(key)
                self._changed.notify_all()
                if reply is not None:
                    self._failures = 0
                    self._store(key, version, reply, expected)

    def _defer(self, key: bytes, request: BatchedRequest, batch_size: int) -> NoReturn:
        if key in self._failed:
            raise EndpointError(f"{request.endpoint.url} did not answer a request of a batch: {self._failed[key]}")
        if key not in self.waiting:
            if len(self.waiting) >= batch_size or self._bytes + _size(request) > BATCH_BYTES:
                raise Stopped(f"{len(self.waiting):,} requests wait for a batch; no more were added")
            self._reserve(request.expected, request.endpoint)
            self.waiting[key] = request
            self._bytes += _size(request)
        raise Deferred(f"{request.endpoint.url} has not answered a request of a batch yet")

    def take_waiting(self) -> dict[bytes, BatchedRequest]:
        """Return the requests that wait for a batch; they wait no longer, and nothing is reserved for them."""
        with self._changed:
            taken, self.waiting, self._bytes = self.waiting, {}, 0
            for request in taken.values():
                self._reserved -= request.expected
            return taken

    def deliver(self, key: bytes, version: str, expected: Usage, result: Reply | str) -> None:
        """Store the reply of a batch to a request, or remember for this run why there is none."""
        with self._changed:
            if isinstance(result, str):
                self._failed[key] = result
            elif self._stored(key, version) is None:
                self._store(key, version, result, expected)

    def _reserve(self, expected: Usage, endpoint: LanguageModelClient) -> None:
        if self._failures >= _PATIENCE:
            raise Stopped(f"{endpoint.url} failed {_PATIENCE} requests in a row; no more were sent")
        if not self.budget.allows(self.spent + self._reserved + expected):
            raise BudgetSpent("the budget is spent; no more requests were sent")
        self._reserved += expected

    def _stored(self, key: bytes, version: str) -> Reply | None:
        query = "SELECT text, finish, prompt_tokens, completion_tokens, estimated FROM replies WHERE key = ?"
        row = self.file.execute(query, [key]).fetchone()
        if row is None:
            return None
        self._count(key, version, Usage(1, *row[2:]))
        return Reply(*row[:4])

    def _store(self, key: bytes, version: str, reply: Reply, expected: Usage) -> None:
        counted = reply.prompt_tokens is not None and reply.completion_tokens is not None
        prompt_tokens = expected.prompt_tokens if reply.prompt_tokens is None else reply.prompt_tokens
        completion_tokens = _tokens(reply.raw) if reply.completion_tokens is None else reply.completion_tokens
        usage = Usage(1, prompt_tokens, completion_tokens, 0 if counted else 1)
        row = (key, version, reply.raw, reply.finish, usage.prompt_tokens, usage.completion_tokens, usage.estimated)
        with self.file:
            self.file.execute("INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.spent += usage
        self._count(key, version, usage)

    def _count(self, key: bytes, version: str, usage: Usage) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self.used += usage
            self.used_by[version] = self.used_by.get(version, Usage()) + usage


def _digest(*request: object) -> bytes:
    return hashlib.blake2b(json.dumps(request).encode(), digest_size=16).digest()


def _size(request: BatchedRequest) -> int:
    return sum(len(one["content"].encode()) for one in request.messages)


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)
