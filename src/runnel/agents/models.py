"""The model and the index of a server for agents, loaded when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

from runnel.agents.documents import AgentSettings
from runnel.errors import InputError, StoreError, describe
from runnel.models.embedder import Embedder
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.files import left_out
from runnel.search.index import Index
from runnel.search.project import Project
from runnel.search.store import Store
from runnel.search.stores import open_store

_NAMED = 5  # the most files to name that an update could not read


class Models:
    """The sentence retriever (default: of the settings' model) and the index. Safe to use from several threads."""

    def __init__(self, settings: AgentSettings, load: Callable[[], SentenceRetriever] | None = None) -> None:
        self._settings = settings
        self._load = load or partial(SentenceRetriever.load, settings.model)
        self._loading, self._searching = threading.Lock(), threading.Lock()
        self._retriever: SentenceRetriever | None = None
        self._store: Store | None = None
        self._index: Index | None = None

    @property
    def loaded(self) -> bool:
        """Whether the retriever is loaded."""
        return self._retriever is not None

    def retriever(self) -> SentenceRetriever:
        """Return the sentence retriever."""
        with self._loading:
            if self._retriever is None:
                self._retriever = self._load()
            return self._retriever

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Yield the content of the index at its last commit, without loading a model, to one thread at a time."""
        with self._searching:
            yield self._newest()

    @contextmanager
    def index(self, notes: list[str], progress: Callable[[int], None]) -> Iterator[Index]:
        """Yield the index at its last commit, to one thread at a time; a project's index is first brought up to date.

        `notes` receives why it could not be, and the files that could not be read.
        """
        with self._searching:
            store = self._newest()
            if self._index is None:
                same = store.settings.model == self._settings.model
                embedder = Embedder(self.retriever().model) if same else Embedder.load(store.settings.model)
                self._index = Index(store, embedder)
            if self._settings.project is not None:
                _update(self._settings.project, self._index, notes, progress)
            yield self._index

    def _newest(self) -> Store:
        place = self._settings.index
        if place is None:
            raise InputError("this server has no index; use find on a file, or run `runnel index` and start the server again")
        if self._store is None:
            self._store = open_store(place)
        self._store.refresh()
        return self._store


def _update(project: Project, index: Index, notes: list[str], progress: Callable[[int], None]) -> None:
    try:
        with index:  # other processes may write afterwards
            failed = project.update(index, keep_missing=True, progress=progress).failed
    except (StoreError, OSError) as error:  # another process writes, or the disk is full
        notes.append(f"{describe(error)}; this is the index as it was before")
        return
    notes += [left_out(name, reason) for name, reason in islice(failed.items(), _NAMED)]
    if len(failed) > _NAMED:
        notes.append(f"{len(failed) - _NAMED:,} more files were left out")
