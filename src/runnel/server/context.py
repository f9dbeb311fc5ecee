"""What the routes share: the application's state, and running a model call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from runnel.server.loading import Loaded
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings
from runnel.server.view import Opened
from runnel.server.work import Job, Work
from runnel.work import Recent

T = TypeVar("T")
MAX_TEXTS = 10_000  # of one request: more are refused before they are looked at
Some = Field(min_length=1, max_length=MAX_TEXTS)
MAX_QUERY_CHARS = 20_000  # a query is read in one call that does not end early
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS, description="A question, or words to look for.")]


class Body(BaseModel):
    """A request's JSON object, read strictly: unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Context:
    """The state of one application. The models are loaded while the server already answers /health."""

    settings: ServerSettings
    loading: Future[Loaded]
    work: Work
    opened: Recent[Opened]

    def loaded(self, model: str | None = None) -> Loaded:
        """Return the models; refuse if they are not loaded, or if `model` is another one."""
        if not self.loading.done():
            raise Refusal("unavailable", "the model is being loaded; retry in a few seconds", retry_after_s=2)
        if error := self.loading.exception():
            raise Refusal("unavailable", f"the model could not be loaded: {error}")
        loaded = self.loading.result()
        if model is not None and model != loaded.name:
            raise Refusal(
                "not_found", f"the model {model!r} is not served here; use {loaded.name!r}", code="model_not_found", param="model"
            )
        return loaded

    async def run(
        self, request: Request, texts: Sequence[str], call: Callable[[Job], T], count: Callable[[], int] | None = None
    ) -> tuple[T, int]:
        """Return what a model call returns, and `count` of its tokens (default: those of `texts`). Both run in threads."""
        loaded = self.loaded()
        result, tokens = await self.work.run(request, sum(map(len, texts)), count or (lambda: loaded.count(texts)), call)
        request.state.tokens = tokens
        return result, tokens


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


InContext = Annotated[Context, Depends(_context)]
