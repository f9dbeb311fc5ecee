"""Choose the store of an index by its place (docs/search.md). For tests: qdrant+file:///folder/library, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from runnel.errors import InputError, StoreError
from runnel.search.filters import Condition
from runnel.search.lance import LanceStore
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
        """Return known documents by id, without their `memory`. `saved`: also read the point where reading continues."""

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


if TYPE_CHECKING:
    from runnel.integrations.qdrant import QdrantStore

_PARTIAL = ("writer.lock", "documents.lance", "passages.lance", "commits.lance")  # files of an interrupted creation


def create_store(place: str | Path, settings: IndexSettings) -> Store:
    """Create an empty store."""
    return _store_of(place).create(str(place), settings)


def open_store(place: str | Path) -> Store:
    """Open the store of an existing index."""
    return _store_of(place).open(str(place))


def holds_index(place: str | Path) -> bool:
    """Return whether a place has an index. If not, one can be created: a folder with other content is an error."""
    store, folder = _store_of(place), Path(place)
    if "://" in str(place):
        return store.holds_index(str(place))
    if folder.is_dir() and store.holds_index(str(place)):
        return True
    inside = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    if any(path.name not in _PARTIAL and not path.name.startswith(".") for path in inside):
        raise StoreError(f"{place} has other content than an index; give a new or an empty folder")
    return False


def _store_of(place: str | Path) -> type[LanceStore | QdrantStore]:
    if not isinstance(place, str | Path) or not str(place):
        raise InputError(f"the index's place is {place!r}; expected a folder or a URI")
    if str(place).startswith("qdrant+"):
        from runnel.integrations.qdrant import QdrantStore

        return QdrantStore
    return LanceStore
