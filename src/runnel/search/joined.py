"""Search several indexes of one model as if they were one.

    index = join({"notes": Index.open("notes"), "papers": Index.open("papers")})
    print([hit.id for hit in index.search("who pays?")])  # "notes:/home/me/notes/a.md", "papers:..."

The nearest passages of all indexes are merged by cosine, those with the query's words by BM25 score. A word's weight in BM25
depends on how often it occurs in its own index; lists that take turns by rank were worse, because a small index gets as many
places as a large one. The best documents of all are then reranked together, as in one index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NoReturn, TypeVar

import numpy as np

from runnel.errors import InputError, StoreError
from runnel.search.encoding import same_model
from runnel.search.filters import Condition
from runnel.search.index import Index
from runnel.search.records import Commit, ContentHashes, DocumentRow, PassageRow, ScoredPassage
from runnel.search.store import Store

T = TypeVar("T")


def join(indexes: Mapping[str, Index]) -> Index:
    """Return an index that searches all of these, and cannot be written.

    A document's id is the name of its index, a colon, and its id there. Filters may use the fields that all indexes have.

    Args:
        indexes: by name.

    Raises:
        InputError: no index.
        StoreError: indexes of different models.
    """
    if not indexes:
        raise InputError("there is no index to search; give at least one")
    first = next(iter(indexes.values()))
    return Index(JoinedStore({name: index.store for name, index in indexes.items()}), first.embedder)


def names_of(places: Sequence[str]) -> list[str]:
    """Return a name for each place of an index: the last part of its path, or all of it where others end the same."""
    ends = [PurePath(place).name for place in places]
    return [end if end and ends.count(end) == 1 else place for end, place in zip(ends, places, strict=True)]


class JoinedStore:
    """The reading half of a `Store` over several stores; see `join`."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = dict(stores)
        (name, first), *others = self._stores.items()
        for other, store in others:
            if not same_model(first.settings.probe, store.settings.probe):
                models = f"{name} was made with the model {first.settings.model!r}, {other} with {store.settings.model!r}"
                raise StoreError(f"{models}: their scores cannot be compared; search them one by one")
        every = [store.settings for store in self._stores.values()]
        fields = {field: kind for field, kind in every[0].fields.items() if all(one.fields.get(field) == kind for one in every)}
        self.settings = replace(every[0], fields=fields, remember=all(one.remember for one in every))
        self.uri = ", ".join(store.uri for store in self._stores.values())

    # ---- reading -----------------------------------------------------------------------------------------------------

    def content_hashes(self) -> dict[str, ContentHashes]:
        found = {name: store.content_hashes() for name, store in self._stores.items()}
        return {f"{name}:{own}": content for name, some in found.items() for own, content in some.items()}

    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        found = self._by_id(ids, lambda store, own: store.documents(own, saved=saved))
        return {name: replace(row, id=name) for name, row in found.items()}

    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        return self._by_id(ids, lambda store, own: store.memories(own))

    def passages(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], PassageRow]:
        found: dict[tuple[str, int], PassageRow] = {}
        for name, store in self._stores.items():
            own = [(document[len(name) + 1 :], number) for document, number in keys if document.startswith(f"{name}:")]
            rows = store.passages(own).values()
            found |= {(f"{name}:{row.document}", row.number): replace(row, document=f"{name}:{row.document}") for row in rows}
        return found

    def scan(self) -> Iterator[list[PassageRow]]:
        for name, store in self._stores.items():
            for rows in store.scan():
                yield [replace(row, document=f"{name}:{row.document}") for row in rows]

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[ScoredPassage]:
        return self._merged(lambda store: store.nearest(vector, count, where), count)

    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        return self._merged(lambda store: store.lexical(query, count, where), count)

    def commits(self) -> list[Commit]:
        last = [store.commits()[-1] for store in self._stores.values()]
        documents, passages = sum(one.documents for one in last), sum(one.passages for one in last)
        return [Commit(0, documents, passages, max(one.time for one in last))]

    def refresh(self) -> bool:
        return any([store.refresh() for store in self._stores.values()])

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def _merged(self, search: Callable[[Store], list[ScoredPassage]], count: int) -> list[ScoredPassage]:
        """Return the best of what the stores find, with the index's name in the ids; ties in the order of the stores."""
        found = [replace(one, document=f"{name}:{one.document}") for name, store in self._stores.items() for one in search(store)]
        return sorted(found, key=lambda one: -one.score)[:count]

    def _by_id(self, ids: Sequence[str], read: Callable[[Store, list[str]], Mapping[str, T]]) -> dict[str, T]:
        """Return what the stores have of documents, in the order of `ids`."""
        found: dict[str, T] = {}
        for name, store in self._stores.items():
            own = [one[len(name) + 1 :] for one in ids if one.startswith(f"{name}:")]
            found |= {f"{name}:{one}": value for one, value in read(store, own).items()}
        return {one: found[one] for one in ids if one in found}

    # ---- writing -----------------------------------------------------------------------------------------------------

    def commit(self, documents: Sequence[DocumentRow], passages: Sequence[PassageRow], delete: Sequence[str]) -> Commit:
        self._refuse()

    def rollback(self, number: int) -> Commit:
        self._refuse()

    def optimize(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(f"{self.uri} are open together, to be searched; open the index to change by itself")
