"""runnel's own routes: /v1/find, sentences of given documents; /v1/search, documents of an index; /v1/verify, quotes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from runnel.records import Hit, highest
from runnel.request import total_progress
from runnel.search.finding import locate_sentences
from runnel.server.context import MAX_TEXTS, Body, InContext, Query
from runnel.server.refusals import Refusal, error_responses
from runnel.server.work import Progress
from runnel.text.nearest import Change
from runnel.text.quotes import LONGEST_QUOTE, verify_quote

router = APIRouter(prefix="/v1", tags=["retrieval"])


class TextDocument(Body):
    """A text with an id of the client's own."""

    id: str | None = None
    text: str


class FindRequest(Body):
    """A query, and the documents to find answering sentences in."""

    query: Query
    documents: Annotated[list[str | TextDocument], Field(min_length=1, max_length=MAX_TEXTS)]
    model: str | None = None
    top_k: int = Field(10, ge=1, le=10_000, description="Sentences to return, of all documents together.")
    unit: Literal["sentence", "clauses", "paragraph"] | None = None


class FoundSentence(BaseModel):
    """A sentence; `start` and `end` count characters (code points) of its document."""

    document: int
    id: str | None
    text: str
    start: int
    end: int
    score: float
    index: int


Answers = Annotated[
    float | None, Field(description="Probability that there is an answer at all; null if the model cannot say. Below 0.15: none.")
]


class FindResponse(BaseModel):
    """Sentences, best first."""

    model: str
    answers: Answers
    sentences: list[FoundSentence]
    tokens: int


class SearchRequest(Body):
    """A query to the index; see `Index.search`."""

    query: Query
    top_k: int = Field(10, ge=1, le=1000)
    where: dict[str, Any] | None = Field(None, description='Filter by metadata, e.g. {"year": {">=": 2020}}.')
    dense_weight: float | None = Field(None, ge=0)
    rerank: int | None = Field(None, ge=0, le=1000)
    read: int | None = Field(None, ge=0, le=1000)
    sentences: int = Field(3, ge=0, le=1000)


class HitSentence(BaseModel):
    """A sentence of a document; `start` and `end` count characters (code points) of the stored text."""

    text: str
    start: int
    end: int
    score: float
    index: int
    page: int | None
    headings: list[str]
    after: str = Field(description="The first text below a question or heading.")


class SearchHit(BaseModel):
    """A document of the index."""

    id: str
    rank: int
    score: float
    answers: Answers
    title: str
    source: str
    metadata: dict[str, Any]
    sentences: list[HitSentence]


class SearchResponse(BaseModel):
    """Documents, best first."""

    model: str
    answers: Answers
    documents: list[SearchHit]


class VerifyRequest(Body):
    """A quote, and the text that it should be from, or the id of a document of the index."""

    quote: Annotated[str, Field(min_length=1, max_length=LONGEST_QUOTE)]
    text: str | None = None
    document: str | None = None


class VerifiedPlace(BaseModel):
    """A place of the quote: characters (code points) [start, end) of the text, and the text there."""

    text: str
    start: int
    end: int
    match: Literal["exact", "normalized", "changed"]
    case_differs: bool
    changes: list[Change]


class VerifyResponse(BaseModel):
    """Whether the text has the quote word for word, and all its places; see `verify_quote`."""

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float
    places: list[VerifiedPlace]


@router.post("/find", responses=error_responses("/v1/find"))
async def find(body: FindRequest, request: Request, context: InContext) -> FindResponse:
    """Return the sentences of the documents that answer the query."""
    loaded = context.loaded(body.model)
    retriever = loaded.expect_retriever()
    documents = [TextDocument(text=one) if isinstance(one, str) else one for one in body.documents]
    texts = [one.text for one in documents]

    def call(progress: Progress) -> tuple[float | None, list[FoundSentence]]:
        ranked = retriever.rank(body.query, texts, unit=body.unit, progress=total_progress(progress))
        best = [(place, one) for place, scored in enumerate(ranked) for one in islice(scored.ranked(), body.top_k)]
        best = sorted(best, key=lambda found: -found[1].score)[: body.top_k]  # stable: ties in reading order
        found = [FoundSentence(document=place, id=documents[place].id, **asdict(one)) for place, one in best]
        return highest(one.answers for one in ranked), found

    done = await context.run(request, [body.query, *texts], call)
    answers, sentences = done.value
    return FindResponse(model=loaded.name, answers=answers, sentences=sentences, tokens=done.tokens)


@router.post("/search", responses=error_responses("/v1/search"))
async def search(body: SearchRequest, request: Request, context: InContext) -> SearchResponse:
    """Return the documents of the server's index that answer the query, each with its best sentences."""
    loaded = context.loaded()
    index = loaded.expect_index()

    def call(progress: Progress) -> list[SearchHit]:
        options = body.model_dump(exclude={"query", "top_k"})
        hits = index.newest().search(body.query, body.top_k, **options, progress=progress)
        return [_as_json(hit) for hit in hits]

    done = await context.run(request, [body.query], call)
    return SearchResponse(model=loaded.name, answers=highest(one.answers for one in done.value), documents=done.value)


@router.post("/verify", responses=error_responses("/v1/verify"))
async def verify(body: VerifyRequest, request: Request, context: InContext) -> VerifyResponse:
    """Find a quote in a text: word for word, in another typography, or the nearest words."""
    if (body.text is None) == (body.document is None):
        raise Refusal("invalid", "give either text or document: the text to look in, or the id of a document of the index")
    if body.text is not None:
        text = body.text
    else:
        index = context.loaded().expect_index()
        text = (await asyncio.to_thread(index.document, str(body.document))).text

    def call(progress: Progress) -> VerifyResponse:
        found = verify_quote(body.quote, text)
        places = [VerifiedPlace(text=text[one.start : one.end], **asdict(one)) for one in found.places]
        return VerifyResponse(match=found.match, word_for_word=found.word_for_word, similarity=found.similarity, places=places)

    return (await context.run(request, [body.quote, text], call)).value


def _as_json(hit: Hit) -> SearchHit:
    sentences = [
        HitSentence(**asdict(one), page=place.page, headings=list(place.headings), after=below)
        for one, below, place in zip(hit.sentences, hit.below, locate_sentences(hit.id, hit), strict=True)
    ]
    return SearchHit(
        id=hit.id, rank=hit.rank, score=hit.score, answers=hit.answers, title=hit.title, source=hit.source,
        metadata=dict(hit.metadata), sentences=sentences,
    )  # fmt: skip
