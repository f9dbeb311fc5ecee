"""The models and the index that the server answers with, loaded in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from runnel.errors import CheckpointError
from runnel.models.base import Model, load_model
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.index import Index
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings

_BATCH = 32  # short texts counted in one call of the tokenizer
_PIECE_CHARS = 1 << 15  # longer texts are counted piece by piece


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
        """Return a model with all jobs that it has heads for, and the index at `index`.

        Raises:
            StoreError: no index, or one of another model.
        """
        heads = model.heads
        embedder = Embedder(model) if "embed" in heads else None
        reranker = Reranker(model) if "rerank" in heads else None
        retriever = SentenceRetriever(model) if "sentences" in heads else None
        if index is not None and embedder is None:
            raise CheckpointError(f"{name} has no 'embed' head, so it cannot search an index; use the index's model")
        opened = OpenIndex(index, embedder) if index and embedder else None
        return cls(name, model, embedder, reranker, retriever, model.fingerprint(), opened)

    def expect_retriever(self, why: str = "it was not trained to find sentences") -> SentenceRetriever:
        """Return the sentence retriever; raise a Refusal that says why if there is none."""
        if self.retriever is None:
            raise Refusal("invalid", f"{self.name} has no 'sentences' head; {why}")
        return self.retriever

    def expect_index(self) -> OpenIndex:
        """Return the index; raise a Refusal if there is none."""
        if self.index is None:
            raise Refusal("not_found", "this server has no index; start it with --in INDEX", code="index_not_found")
        return self.index

    def warm_up(self) -> None:
        """Run each job once: the first call compiles kernels."""
        if self.embedder is not None:
            self.embedder.encode("ready")
        if self.reranker is not None:
            self.reranker.score("ready", ["ready"])
        if self.retriever is not None:
            self.retriever.score("ready", "ready")

    def count(self, texts: Iterable[str]) -> int:
        """Return the tokens of texts, without special tokens."""
        tokenizer, tokens = self.model.tokenizer, 0
        for batch in _batches(texts):
            long = len(batch) == 1 and len(batch[0]) > _PIECE_CHARS
            tokens += sum(map(len, tokenizer.encode_pieces(_pieces(batch[0])) if long else tokenizer.encode_batch(batch)))
        return tokens


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield long texts alone, and short ones in batches."""
    short: list[str] = []
    for text in texts:
        if len(text) > _PIECE_CHARS:
            yield [text]
        else:
            short.append(text)
        if len(short) == _BATCH:
            yield short
            short = []
    yield short


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE_CHARS):
        yield text[start : start + _PIECE_CHARS]


def load(settings: ServerSettings) -> Loaded:
    """Load the model and the index of the settings, and compile what they need."""
    loaded = Loaded.of(settings.model, load_model(settings.model, settings.dtype), settings.index)
    loaded.warm_up()
    return loaded


class Loading:
    """Models that are loaded in a thread while the server already answers /health."""

    def __init__(self, load: Callable[[], Loaded]) -> None:
        self._load = load
        self._loaded: Loaded | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Load; an error is kept in `error`."""
        try:
            self._loaded = self._load()
        except Exception as error:  # reported by whoever started the server
            self.error = error

    @property
    def ready(self) -> bool:
        return self._loaded is not None

    def get(self) -> Loaded:
        """Return the models.

        Raises:
            Refusal: they are still being loaded, or could not be loaded.
        """
        if self._loaded is not None:
            return self._loaded
        if self.error is None:
            raise Refusal("unavailable", "the model is being loaded; retry in a few seconds", retry_after_s=2)
        raise Refusal("unavailable", f"the model could not be loaded: {self.error}")
