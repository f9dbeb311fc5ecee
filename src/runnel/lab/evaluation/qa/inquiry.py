"""Many requests to language models, several at a time, whose replies are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from runnel.errors import EndpointError
from runnel.lab.replies import Replies, Stopped
from runnel.records import expect_count

_WAVE = 64  # items whose results are kept in memory at a time

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class Inquiry:
    """Work on items with the replies of language models. All replies are stored, so repeated work asks only for missing ones."""

    replies: Replies
    threads: int = 8
    notes: Counter[str] = field(default_factory=Counter)  # what was unusual about replies
    stopped: Stopped | None = None  # why no more requests are sent; stored replies are still used
    failure: EndpointError | None = None  # the last one

    def __post_init__(self) -> None:
        expect_count(self.threads, "threads")

    def run(self, work: Callable[[Item, list[str]], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | None]]:
        """Yield each item, in order, with its result; None: a reply is missing, and repeating the work asks for it.

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
            return None, []  # the notes come again when the work is repeated

        waiting = iter(items)
        with ThreadPoolExecutor(self.threads) as pool:
            while wave := list(islice(waiting, _WAVE)):
                for item, (result, notes) in zip(wave, pool.map(attempt, wave), strict=True):
                    self.notes.update(notes)
                    yield item, result
