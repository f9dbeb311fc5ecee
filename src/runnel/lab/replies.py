"""Replies of a language model, stored on disk: no reply is paid for twice."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Condition
from typing import TypeVar

from runnel.errors import EndpointError, RunnelError
from runnel.files import create_folder, digest, sweep
from runnel.generation.endpoint import LanguageModelClient, Reply
from runnel.jobs.progress import Item, notify
from runnel.journal import Journal, Row
from runnel.text.dialogue import Message

# The counts that are kept of replies. "estimated" are replies whose tokens were estimated, because
# the endpoint does not count them.
_COUNTED = ("requests", "prompt_tokens", "completion_tokens", "estimated")
# After this many requests in a row have failed, each repeated by the endpoint's client, no more are
# sent.
_PATIENCE = 5
_BYTES_PER_TOKEN = 3  # for estimates of tokens: English has about 4 bytes, Chinese 3
_WAVE = 64  # items whose results are kept in memory at a time

Result = TypeVar("Result")


class Stopped(RunnelError):
    """No further request is sent: the endpoint fails again and again."""


class Replies:
    """A language model whose replies are stored (`stored_replies`), for any number of threads.

    A reply is stored before it is returned; after a crash only requests that were not yet answered
    are sent again.

    Args:
        endpoint: the language model.
        journal: the store, with a row for each reply.
    """

    def __init__(self, endpoint: LanguageModelClient, journal: Journal) -> None:
        self.endpoint = endpoint
        # For each `version` of `ask`, the counts (`_COUNTED`) of the replies of this run. Stored
        # replies count too; each reply counts once.
        self.used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._journal = journal
        self._changed = Condition()  # guards everything below
        self._asking: set[str] = set()
        self._seen: set[str] = set()
        self._failures = 0

    def ask(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        version: str,
        endpoint: LanguageModelClient | None = None,
    ) -> Reply:
        """Return the model's reply, a stored one if the same has been asked before.

        `version` names a kind of request: the wording of its prompt and the way in which its reply
        is read. Two requests are the same if version, model, messages and `max_tokens` are.
        """
        endpoint = endpoint or self.endpoint
        # 0.0 is the temperature of all requests
        key = digest(json.dumps([endpoint.model, messages, max_tokens, 0.0, version]))
        with self._changed:
            while key in self._asking:
                self._changed.wait()
            if (row := self._journal.get(key)) is not None:
                raw, finish, *counts = row
                self._count(key, version, counts)
                return Reply(raw, finish, *counts[:2])
            if self._failures >= _PATIENCE:
                raise Stopped(
                    f"{endpoint.url} failed {_PATIENCE} requests in a row; no more were sent"
                )
            self._asking.add(key)
        reply = None
        try:
            reply = endpoint.complete(messages, max_tokens=max_tokens)
            return reply
        finally:
            with self._changed:
                self._asking.discard(key)
                self._changed.notify_all()
                self._failures = 0 if reply else self._failures + 1
                if reply:
                    self._store(key, version, reply, messages)

    def _store(self, key: str, version: str, reply: Reply, messages: list[Message]) -> None:
        counted = reply.prompt_tokens is not None and reply.completion_tokens is not None
        prompt = "".join(message["content"] for message in messages)
        prompt_tokens = _tokens(prompt) if reply.prompt_tokens is None else reply.prompt_tokens
        completion_tokens = (
            _tokens(reply.raw) if reply.completion_tokens is None else reply.completion_tokens
        )
        counts = [prompt_tokens, completion_tokens, int(not counted)]
        self._journal.add(Row(key, [reply.raw, reply.finish, *counts]))
        self._count(key, version, counts)

    def _count(self, key: str, version: str, counts: list[int]) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self.used[version].update(dict(zip(_COUNTED, (1, *counts), strict=True)))


@contextmanager
def stored_replies(
    folder: Path, endpoint: LanguageModelClient, *judges: LanguageModelClient
) -> Iterator[Replies]:
    """Open the replies that are stored in a folder, which is created, in replies.sqlite, a file
    that others cannot read.

    Raises StoreBusy if another process uses the store, and StoreError if it is damaged or from
    another program.
    """
    with Journal(create_folder(folder) / "replies", {}) as journal:
        judged = "".join(f", judged by {judge.model}" for judge in judges)
        sweep(folder)  # removes partial files of processes that were killed
        notify(f"note: asking {endpoint.model} at {endpoint.url}{judged}")
        yield Replies(endpoint, journal)


def costs(replies: Replies, **versions: str) -> dict[str, dict[str, int]]:
    """Return the counts of the replies of this run to each kind of request, by its version."""
    return {
        name: {key: replies.used[version][key] for key in _COUNTED}
        for name, version in versions.items()
    }


def _tokens(text: str) -> int:
    """Return an estimate of a text's tokens, rounded up."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


@dataclass
class Inquiry:
    """Work on items with the replies of language models. All replies are stored, so repeated work
    asks only for missing ones.
    """

    replies: Replies
    threads: int = 8
    notes: Counter[str] = field(default_factory=Counter)  # unusual replies, counted by kind
    stopped: Stopped | None = None  # why no more requests are sent; stored replies are still used
    failure: EndpointError | None = None  # the last failure of a request

    def run(
        self, work: Callable[[Item, list[str]], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result | None]]:
        """Yield each item, in order, with its result; None: a reply is missing, and repeating the
        work asks for it.

        `work` is called from several threads, and adds notes to its list.
        """

        def attempt(item: Item) -> tuple[Result | None, list[str]]:
            notes: list[str] = []
            try:
                return work(item, notes), notes
            except Stopped as stopped:
                self.stopped = self.stopped or stopped
            except EndpointError as error:
                self.failure = error
            return None, []  # without notes: repeating the work makes the same ones

        waiting = iter(items)
        with ThreadPoolExecutor(self.threads) as pool:
            while wave := list(islice(waiting, _WAVE)):
                for item, (result, notes) in zip(wave, pool.map(attempt, wave), strict=True):
                    self.notes.update(notes)
                    yield item, result
