"""The models and the index that the server answers with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from runnel.errors import CheckpointError
from runnel.models.base import Model, load_model
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.index import Index
from runnel.search.records import DocumentRow
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings

T = TypeVar("T")
_BATCH = 32  # short texts counted in one call of the tokenizer
_LONG_CHARS = 1 << 15  # longer texts are counted piece by piece


class OpenIndex:
    """An index that is searched at its newest commit, by any number of threads."""

    def __init__(self, place: str, embedder: Embedder) -> None:
        self._place, self._embedder = place, embedder
        self._lock = threading.Lock()
        self._now, self._next = Index.open(place, embedder), Index.open(place, embedder)

    def newest(self) -> Index:
        """Return the index at its newest commit. Indexes returned before do not change."""
        with self._lock:
            if self._next.refresh():
                self._now, self._next = self._next, Index.open(self._place, self._embedder)
            return self._now

    def document(self, id: str) -> DocumentRow:
        """Return a document of the newest commit; refuse an unknown id."""
        documents = self.newest().store.documents([id])
        if id not in documents:
            message = f"the index has no document {id!r}; it may have been removed"
            raise Refusal("not_found", message, code="document_not_found", param="document")
        return documents[id]


@dataclass(frozen=True)
class Loaded:
    """One model with its jobs; None: the model has no head for the job."""

    name: str
    model: Model
    embedder: Embedder | None
    reranker: Reranker | None
    retriever: SentenceRetriever | None
    fingerprint: str
    index: OpenIndex | None = None

    @classmethod
    def of(cls, name: str, model: Model, index: str | None = None) -> Loaded:
        """Return a model with all jobs that it has heads for, and the index at `index`."""
        heads = model.heads
        embedder = Embedder(model) if "embed" in heads else None
        reranker = Reranker(model) if "rerank" in heads else None
        retriever = SentenceRetriever(model) if model.finds_sentences else None
        if index is not None and embedder is None:
            raise CheckpointError(f"{name} has no 'embed' head, so it cannot search an index; use the index's model")
        opened = OpenIndex(index, embedder) if index and embedder else None
        return cls(name, model, embedder, reranker, retriever, model.fingerprint(), opened)

    def expect(self, job: T | None, head: str) -> T:
        """Return one of the model's jobs; raise a Refusal if it has no head for it."""
        if job is None:
            raise Refusal("invalid", f"{self.name} has no {head!r} head; it was not trained for this")
        return job

    def expect_index(self) -> OpenIndex:
        """Return the index; raise a Refusal if there is none."""
        if self.index is None:
            raise Refusal("not_found", "this server has no index; start it with --in INDEX", code="index_not_found")
        return self.index

    def count(self, texts: Sequence[str]) -> int:
        """Return the tokens of texts, without special tokens."""
        tokenizer, short = self.model.tokenizer, [text for text in texts if len(text) <= _LONG_CHARS]
        tokens = sum(len(piece) for text in texts if len(text) > _LONG_CHARS for piece in tokenizer.encode_pieces([text]))
        for start in range(0, len(short), _BATCH):
            tokens += sum(map(len, tokenizer.encode_batch(short[start : start + _BATCH])))
        return tokens


def load(settings: ServerSettings) -> Loaded:
    """Load the model and the index of the settings, and run each job once: the first call compiles kernels."""
    loaded = Loaded.of(settings.model, load_model(settings.model, settings.dtype, arrays=True), settings.index)
    if loaded.embedder is not None:
        loaded.embedder.encode("ready")
    if loaded.reranker is not None:
        loaded.reranker.score("ready", ["ready"])
    if loaded.retriever is not None:
        loaded.retriever.score("ready", "ready")
    return loaded
