"""What the routes share.

Body        the base of all request bodies: strict, and with fields that have no effect here
ModelBody   the base of bodies that may name the model
Text, TextItem, Query, Some    types of fields
Loaded      the model with its jobs (embed, rerank, find), and the index
OpenIndex   the index at its newest commit
Context     the state of the application; `run` runs a model call in the queue (`work`)
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from runnel.batching import Recent
from runnel.errors import StoreError
from runnel.models.embedder import Embedder
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.index import Index
from runnel.search.records import DocumentRow
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings
from runnel.server.view import Opened
from runnel.server.work import QueuedRequest, Work
from runnel.text.tokenizer import Encoded

T = TypeVar("T")
MAX_TEXTS = 10_000  # the most texts of one request: more are refused before they are looked at
Some = Field(min_length=1, max_length=MAX_TEXTS)  # the limits of a list: not empty
MAX_QUERY_CHARS = 20_000  # a query is read in one call that does not end early
Query = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_QUERY_CHARS, description="A question, or words to look for."
    ),
]
_BATCH = 32  # short texts counted in one call of the tokenizer
LONG_CHARS = 1 << 15  # longer texts are counted piece by piece
_UNCUT_CHARS = 1 << 18  # characters of a text without a place to cut; twice as many take seconds


def no_effect(why: str) -> Any:
    """Declare a field of another service that is accepted and has no effect here; the answer's
    header X-Runnel-Ignored names it.
    """
    return Field(None, description=f"No effect: {why}.", json_schema_extra={"x-ignored": why})


class Body(BaseModel):
    """A request's JSON object, read strictly: unknown fields and values of another type are errors.
    In fields of other services, null counts as missing.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def ignored(self) -> dict[str, str]:
        """Return the fields without effect (`no_effect`) that ask for something, and why they have
        none.
        """
        return {
            name: str(field.json_schema_extra["x-ignored"])
            for name, field in type(self).model_fields.items()
            if isinstance(field.json_schema_extra, dict)
            and getattr(self, name) not in (None, False)
        }

    def agreed(self, *names: str) -> tuple[str, Any]:
        """Return the name and the value of a field that services name differently, None if it is
        not given; refuse two values.
        """
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if len(set(values.values())) > 1:
            raise Refusal(
                "invalid",
                " and ".join(f"{name} is {value}" for name, value in values.items())
                + "; send one of them",
                param=next(iter(values)),
            )
        return next(iter(values.items()), (names[0], None))


class ModelBody(Body):
    """A body that may name the model."""

    model: str | None = None


# The limit finds lone surrogates here, where the error names the place of the text.
Text = Annotated[str, Field(min_length=0)]


class TextObject(Body):
    """A text as an object."""

    text: Text


# Discriminators: without them, errors would be about all types of a union. Tags have a space: names
# without one are shown in errors, as fields are (`field_names` of refusals.py).
TextOrObject = Discriminator(lambda given: "an object" if isinstance(given, dict) else "a text")
TextItem = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[TextObject, Tag("an object")], TextOrObject
]


class OpenIndex:
    """An index that is searched at its newest commit, by any number of threads. One that replaces
    it at its place, with the same model, is opened.
    """

    def __init__(self, place: str, embedder: Embedder) -> None:
        self._place = place
        self._embedder = embedder
        self._lock = threading.Lock()
        self._watched = Index.open(place, embedder)  # refreshed, to see whether there is a commit
        self._now: Index | None = None  # given to callers, never refreshed

    def newest(self) -> Index:
        """Return the index at its newest commit. Indexes returned before do not change."""
        with self._lock:
            try:
                if self._watched.refresh():
                    self._now = None
            except StoreError:  # it was removed or replaced
                self._now = None
                self._watched = Index.open(self._place, self._embedder)
            # opened after the look, so that it misses no commit that comes meanwhile
            if self._now is None:
                self._now = Index.open(self._place, self._embedder)
            return self._now

    def document(self, id: str) -> DocumentRow:
        """Return a document of the newest commit; refuse an unknown id."""
        documents = self.newest().store.documents([id])
        if id not in documents:
            raise Refusal(
                "not_found",
                f"the index has no document {id!r}; it may have been removed",
                code="document_not_found",
                param="document",
            )
        return documents[id]


@dataclass(frozen=True)
class Loaded:
    """A model with its jobs, which raise CheckpointError if it has no head for
    them, and an index.
    """

    name: str
    model: Model
    place: str | None = None  # the place of the index

    @cached_property
    def embedder(self) -> Embedder:
        return Embedder(self.model)

    @cached_property
    def reranker(self) -> Reranker:
        return Reranker(self.model)

    @cached_property
    def retriever(self) -> SentenceRetriever:
        return SentenceRetriever(self.model)

    @cached_property
    def index(self) -> OpenIndex:
        """The index; raises a Refusal if there is none."""
        if self.place is None:
            raise Refusal(
                "not_found",
                "this server has no index; start it with --in INDEX",
                code="index_not_found",
            )
        return OpenIndex(self.place, self.embedder)

    def count(self, texts: Sequence[str], expect_few: Callable[[int], None]) -> int:
        """Count the tokens of texts, no special ones; `expect_few` gets each count so far."""
        tokens = 0
        for part in self._encoded(texts):
            tokens += len(part)
            expect_few(tokens)
        return tokens

    def _encoded(self, texts: Sequence[str]) -> Iterator[Encoded]:
        """Yield the tokens of short texts, and then of long ones in pieces."""
        tokenizer = self.model.tokenizer
        short = [text for text in texts if len(text) <= LONG_CHARS]
        for start in range(0, len(short), _BATCH):
            yield from tokenizer.encode_batch(short[start : start + _BATCH])
        for text in texts:
            for start in range(0, len(text) - _UNCUT_CHARS + 1, _UNCUT_CHARS):
                if not tokenizer.may_cut(text[start : start + _UNCUT_CHARS]):
                    raise Refusal(
                        "too_long",
                        f"a text has no space after a letter in {_UNCUT_CHARS:,} characters from"
                        f" {start:,} on; split it",
                    )
            if len(text) > LONG_CHARS:
                yield from tokenizer.encode_pieces([text])


def load(settings: ServerSettings) -> Loaded:
    """Load the model and the index of the settings, and run each job once: the first call compiles
    kernels.
    """
    loaded = Loaded(
        settings.model, load_model(settings.model, settings.dtype, arrays=True), settings.index
    )
    if settings.index is not None:
        loaded.index.newest()
    if "embed" in loaded.model.heads:
        loaded.embedder.encode("ready")
    if "rerank" in loaded.model.heads:
        loaded.reranker.score("ready", ["ready"])
    if loaded.model.finds_sentences:
        loaded.retriever.score("ready", "ready")
    return loaded


@dataclass
class Context:
    """The state of one application. The model is loaded while the server already answers /health.

    Attributes:
        loading: of the model and the index, in a thread, once the application has started.
    """

    settings: ServerSettings
    work: Work
    opened: Recent[Opened]
    loading: Future[Loaded] = field(default_factory=Future)

    def loaded(self, model: str | None = None) -> Loaded:
        """Return the model and the index; refuse if they are not loaded, or if `model` is another
        one.
        """
        if not self.loading.done():
            raise Refusal(
                "unavailable", "the model is being loaded; retry in a few seconds", retry_after_s=2
            )
        if error := self.loading.exception():
            raise Refusal("unavailable", f"the model could not be loaded: {error}")
        loaded = self.loading.result()
        if model is not None and model != loaded.name:
            raise Refusal(
                "not_found",
                f"the model {model!r} is not served here; use {loaded.name!r}",
                code="model_not_found",
                param="model",
            )
        return loaded

    def loaded_for(self, request: Request, body: Body) -> Loaded:
        """Return the model and the index for a body, as `loaded`; its answer names the fields
        without effect.
        """
        request.state.ignored = body.ignored()
        return self.loaded(getattr(body, "model", None))

    async def run(
        self,
        request: Request,
        texts: Sequence[str],
        call: Callable[[QueuedRequest], T],
        count: Callable[[QueuedRequest], int] | None = None,
    ) -> tuple[T, int]:
        """Return what a model call returns, and `count` of its tokens (default: those of `texts`).
        Both run in threads.
        """
        count = count or (lambda job: self.loaded().count(texts, job.expect_few))
        result, tokens = await self.work.run(request, sum(map(len, texts)), count, call)
        request.state.tokens = tokens
        return result, tokens


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


InContext = Annotated[Context, Depends(_context)]
