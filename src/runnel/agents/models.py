"""The model and the index of a server for agents, loaded when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from runnel.agents.documents import Settings
from runnel.errors import InputError
from runnel.models.embedder import Embedder
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.index import Index
from runnel.search.stores import open_store


class Models:
    """The sentence retriever and the index. Safe to use from several threads.

    Args:
        load: returns the retriever (default: the settings' model).
    """

    def __init__(self, settings: Settings, load: Callable[[], SentenceRetriever] | None = None) -> None:
        self._settings = settings
        self._load = load or partial(SentenceRetriever.load, settings.model)
        self._loading, self._searching = threading.Lock(), threading.Lock()
        self._retriever: SentenceRetriever | None = None
        self._opened: Index | None = None

    @property
    def loaded(self) -> bool:
        """Whether the retriever is loaded."""
        return self._retriever is not None

    def retriever(self) -> SentenceRetriever:
        """Return the sentence retriever.

        Raises:
            CheckpointError: the model is missing or does not find sentences.
        """
        with self._loading:
            if self._retriever is None:
                self._retriever = self._load()
            return self._retriever

    @contextmanager
    def index(self) -> Iterator[Index]:
        """Yield the index at its last commit, to one thread at a time.

        Raises:
            InputError: the server has no index.
            StoreError: the index is missing, damaged or of another model.
        """
        place = self._settings.index
        if place is None:
            raise InputError("this server has no index; use find on a file, or run `runnel index` and start the server again")
        with self._searching:
            if self._opened is None:
                model = open_store(place).settings.model
                self._opened = Index.open(place, Embedder(self.retriever().model) if model == self._settings.model else None)
            self._opened.refresh()
            yield self._opened
