"""What an index asks of the place where it is kept.

Every change goes through `commit`, which adds and removes documents as one: after it returns, the change outlives a crash;
until then nothing of it can be seen, however the process ends. Searches see the last commit that was there when the store
was opened or last written or refreshed. `QdrantStore` keeps less of this, and says what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from runnel.search.filters import Condition
from runnel.search.records import Commit, DocumentRow, Found, Known, PassageRow, Settings


class Store(Protocol):
    """A crash-safe place for documents and passages; see `LanceStore`, `LocalStore` and `QdrantStore`."""

    settings: Settings

    @property
    def uri(self) -> str:
        """The place, for messages."""

    def known(self) -> dict[str, Known]:
        """By document id, what tells whether it has changed."""

    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        """Documents by id; those that are not there are left out. `saved` also reads where reading can go on.

        Their `memory` is not read.
        """

    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The `memory` of documents by id, of those that have one."""

    def passages(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], PassageRow]:
        """Passages by (document id, number), with their vectors."""

    def scan(self) -> Iterator[list[PassageRow]]:
        """All passages with their vectors, in lists that fit in memory."""

    def commit(self, documents: Sequence[DocumentRow], passages: Sequence[PassageRow], delete: Sequence[str]) -> Commit:
        """Put documents in, replacing those of the same id, and take others out.

        Raises:
            StoreError: another writer was there first.
        """

    def commits(self) -> list[Commit]:
        """The commits that can be gone back to, oldest first; the last one is what searches see."""

    def rollback(self, number: int) -> Commit:
        """Make the content of an earlier commit the newest commit."""

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[Found]:
        """The passages (whole documents among them) with the highest cosine, best first."""

    def lexical(self, query: str, count: int, where: list[Condition]) -> list[Found]:
        """The passages with the highest BM25 score, best first."""

    def refresh(self) -> bool:
        """Move to the newest commit; return whether there was a newer one."""

    def optimize(self) -> None:
        """Merge small pieces and bring the search structures up to date; nothing that can be seen changes."""

    def close(self) -> None:
        """Give the lock back."""
