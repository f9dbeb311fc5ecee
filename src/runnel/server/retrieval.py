"""runnel's own routes.

    /v1/find     the sentences of the request's documents that answer a query
    /v1/search   the documents of the server's index that answer it
    /v1/verify   whether a text or a document of the index has a quote word for word

The bodies of requests and answers come first, in this order, then the routes.
"""

import asyncio
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, Tag

from runnel.records import AnsweringSentence, Explanation, Place, Sentence, highest
from runnel.request import Progress
from runnel.server.context import (
    Body,
    InContext,
    ModelBody,
    Query,
    Some,
    Text,
    TextObject,
    TextOrObject,
)
from runnel.server.refusals import Refusal, error_responses
from runnel.text.quotes import LONGEST_QUOTE, QuotePlace, verify_quote

router = APIRouter(prefix="/v1", tags=["retrieval"])


class TextDocument(TextObject):
    """A text with an id of the client's own."""

    id: str | None = None


FindDocument = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[TextDocument, Tag("an object")], TextOrObject
]


class FindRequest(ModelBody):
    """A query, and the documents to find answering sentences in."""

    query: Query
    documents: Annotated[list[FindDocument], Some]
    top_k: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Sentences to return, of all documents together (default: 10).",
    )
    unit: Literal["sentence", "clauses", "paragraph"] | None = None


@dataclass(frozen=True)
class DocumentSentence(Sentence):
    """A sentence; `start` and `end` count characters (code points) of its document, the one at
    position `document`.
    """

    document: int
    id: str | None


Answers = Annotated[
    float | None,
    Field(
        description=(
            "Probability that there is an answer at all; null if the model cannot say. Below 0.15:"
            " none."
        )
    ),
]


class FindResponse(BaseModel):
    """Sentences, best first."""

    model: str
    answers: Answers
    sentences: list[DocumentSentence]
    tokens: int


class SearchRequest(Body):
    """A query to the index; see `Index.search`."""

    query: Query
    top_k: int | None = Field(None, ge=1, le=1000, description="Documents (default: 10).")
    where: dict[str, object] | None = Field(
        None, description='Filter by metadata, e.g. {"year": {">=": 2020}}.'
    )
    dense_weight: float | None = Field(None, ge=0)
    rerank: int | None = Field(None, ge=0, le=1000)
    read: int | None = Field(None, ge=0, le=1000)
    sentences: int | None = Field(
        None, ge=0, le=1000, description="The most of each document (default: 3)."
    )


class SearchHit(BaseModel):
    """A document of the index."""

    id: str
    rank: int
    score: float
    answers: Answers
    title: str
    source: str
    metadata: dict[str, Any]
    sentences: list[AnsweringSentence]
    also: list[Place]
    explanation: Explanation


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


class VerifyResponse(BaseModel):
    """Whether the text has the quote word for word, and all its places; see `verify_quote`."""

    match: Literal["exact", "normalized", "changed", "absent"]
    word_for_word: bool
    similarity: float
    places: list[QuotePlace]


@router.post("/find", responses=error_responses("/v1/find"))
async def find(body: FindRequest, request: Request, context: InContext) -> FindResponse:
    """Return the sentences of the documents that answer the query."""
    loaded = context.loaded(body.model)
    documents = [
        TextDocument(text=text) if isinstance(text, str) else text for text in body.documents
    ]
    texts = [document.text for document in documents]
    most = body.top_k or 10

    def call(progress: Progress) -> tuple[float | None, list[DocumentSentence]]:
        ranked = loaded.retriever.rank(body.query, texts, unit=body.unit, progress=progress)
        best = [
            (place, sentence)
            for place, scored in enumerate(ranked)
            for sentence in islice(scored.ranked(), most)
        ]
        # stable: ties in reading order
        best = sorted(best, key=lambda found: -found[1].score)[:most]
        sentences = [
            DocumentSentence(document=place, id=documents[place].id, **asdict(sentence))
            for place, sentence in best
        ]
        return highest(scored.answers for scored in ranked), sentences

    (answers, sentences), tokens = await context.run(request, [body.query, *texts], call)
    return FindResponse(model=loaded.name, answers=answers, sentences=sentences, tokens=tokens)


@router.post("/search", responses=error_responses("/v1/search"))
async def search(body: SearchRequest, request: Request, context: InContext) -> SearchResponse:
    """Return the documents of the server's index that answer the query, each with its best
    sentences.
    """
    loaded = context.loaded()

    def call(progress: Progress) -> list[SearchHit]:
        options = {name: value for name, value in body if value is not None}
        return [
            SearchHit(**hit.as_json())
            for hit in loaded.index.newest().search(**options, progress=progress)
        ]

    documents, _ = await context.run(request, [body.query], call)
    return SearchResponse(
        model=loaded.name, answers=highest(hit.answers for hit in documents), documents=documents
    )


@router.post("/verify", responses=error_responses("/v1/verify"))
async def verify(body: VerifyRequest, request: Request, context: InContext) -> VerifyResponse:
    """Find a quote in a text: word for word, in another typography, or the nearest words."""
    if (body.text is None) == (body.document is None):
        raise Refusal(
            "invalid",
            "give either text or document: the text to look in, or the id of a document of the"
            " index",
        )
    text = body.text
    if body.document is not None:
        text = (await asyncio.to_thread(context.loaded().index.document, body.document)).text
    assert text is not None

    def call(progress: Progress) -> VerifyResponse:
        verified = verify_quote(body.quote, text)
        return VerifyResponse(**asdict(verified), word_for_word=verified.word_for_word)

    return (await context.run(request, [body.quote, text], call))[0]
