"""The interface of an index's storage.

Every change goes through `commit`, which adds and removes documents atomically: after it returns, the change survives a crash;
before that, none of it is visible, however the process ends. Searches see the last commit at the time when the store
was opened or last written or refreshed. `QdrantStore` guarantees less, as it documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from runnel.search.filters import Condition
from runnel.search.records import Commit, ContentHashes, DocumentRow, IndexSettings, PassageRow, ScoredPassage


class Store(Protocol):
    """A crash-safe place for documents and passages; see `LanceStore` and `QdrantStore`."""

    settings: IndexSettings

    @property
    def uri(self) -> str:
        """The place, for messages."""

    def content_hashes(self) -> dict[str, ContentHashes]:
        """Return content hashes by document id."""

    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        """Return documents by id, without unknown ids. `saved`: also read the point where reading continues.

        Their `memory` is not read.
        """

    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the `memory` of documents by id, if they have one."""

    def passages(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], PassageRow]:
        """Return passages by (document id, number), with their vectors."""

    def scan(self) -> Iterator[list[PassageRow]]:
        """Yield all passages with their vectors, in lists that fit in memory."""

    def commit(self, documents: Sequence[DocumentRow], passages: Sequence[PassageRow], delete: Sequence[str]) -> Commit:
        """Add documents, replacing documents of the same id, and delete others."""

    def last_commit(self) -> Commit:
        """Return the commit that searches see."""

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[ScoredPassage]:
        """Return the passages (including whole documents) with the highest cosine, best first."""

    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        """Return the passages with the highest BM25 score, best first."""

    def refresh(self) -> bool:
        """Move to the newest commit; return whether there was a newer one."""

    def optimize(self) -> None:
        """Merge small pieces and update the search structures, without visible changes."""

    def close(self) -> None:
        """Release the lock."""
