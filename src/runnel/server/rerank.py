"""Reranking: /rerank, /v1/rerank and /v2/rerank in the shapes of Cohere and Jina; /rerank also in
that of TEI.

Which shape a body on /rerank has, its keys show: `documents`, or TEI's `texts`.
"""

from typing import Annotated, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import BaseModel, Discriminator, Field, Tag

from runnel.batching import top
from runnel.models.memory import Remembered
from runnel.models.scored import Scored
from runnel.records import probability, trimmed
from runnel.request import Progress, TokenCount
from runnel.server.context import Body, InContext, Query, Some
from runnel.server.refusals import error_responses

router = APIRouter(tags=["rerank"])


class RerankDocument(Body):
    """A document as an object."""

    text: str


class RelevantSpans(Body):
    """Whether to return the spans of each document that answer the query."""

    mode: Literal["enabled", "disabled"]
    threshold: float = Field(0.1, ge=0, le=1, description="The score that a span must exceed.")
    max_spans: int | None = Field(None, ge=1)


class RerankRequest(Body):
    """A query and documents, in the shape of Cohere or Jina."""

    query: Query
    documents: Annotated[list[str | RerankDocument], Some]
    model: str | None = None
    top_n: int | None = Field(None, ge=1, description="Results to return (default: all).")
    return_documents: bool = False
    relevant_spans: RelevantSpans | None = None
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Has no effect: documents are read whole."
    )
    max_chunks_per_doc: int | None = Field(
        None, ge=1, description="Has no effect: documents are read whole."
    )
    rank_fields: list[Literal["text"]] | None = None
    priority: int | None = Field(None, ge=0, description="Has no effect.")


class TeiRerankRequest(Body):
    """A query and documents, in TEI's shape."""

    query: Query
    texts: Annotated[list[str], Some]
    raw_scores: bool = Field(False, description="Return logits, not their sigmoid.")
    return_text: bool = False
    truncate: bool | None = Field(None, description="Has no effect: documents are read whole.")
    truncation_direction: Literal["right", "Right"] = "right"


class Span(BaseModel):
    """The characters (code points) [start, end) of a document, and their score in [0, 1]."""

    start: int
    end: int
    score: float


class RerankResult(BaseModel):
    """A document's position in the request and its score in [0, 1]."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None
    relevant_spans: list[Span] | None = None


class RerankResponse(BaseModel):
    """Documents, best first; `usage` is for Jina's clients, `meta` for Cohere's."""

    id: str
    model: str
    results: list[RerankResult]
    usage: dict[str, int]
    meta: dict[str, object]


class TeiRank(BaseModel):
    """A document's position in the request and its score."""

    index: int
    score: float
    text: str | None = None


EitherRequest = Annotated[
    Annotated[RerankRequest, Tag("with documents")]
    | Annotated[TeiRerankRequest, Tag("with texts")],
    Discriminator(
        lambda body: (
            "with texts" if isinstance(body, dict) and "texts" in body else "with documents"
        )
    ),
]


@router.post(
    "/v1/rerank", response_model_exclude_none=True, responses=error_responses("/v1/rerank")
)
@router.post(
    "/v2/rerank", response_model_exclude_none=True, responses=error_responses("/v2/rerank")
)
async def rerank(body: RerankRequest, request: Request, context: InContext) -> RerankResponse:
    """Rank documents by their relevance to a query, with the spans that answer it if wanted."""
    loaded = context.loaded(body.model)
    reranker = loaded.reranker
    texts = [item if isinstance(item, str) else item.text for item in body.documents]
    spans = body.relevant_spans
    if spans is not None and spans.mode == "disabled":
        spans = None
    retriever = None if spans is None else loaded.retriever

    def call(progress: Progress) -> list[RerankResult]:
        count = TokenCount(progress)
        documents: list[str | Remembered] = [*texts]
        # each text is read once, for both scores
        if retriever is not None and retriever.remembers and reranker.remembers:
            memory = reranker.remember({text: text for text in texts}, progress=count.part())
            documents = [memory[text] for text in texts]
        scores = reranker.score(body.query, documents, progress=count.part())
        best = top(scores, body.top_n).tolist()
        results = [
            RerankResult(index=place, relevance_score=probability(scores[place])) for place in best
        ]
        if retriever is not None and spans is not None:
            ranked = retriever.rank(
                body.query, [documents[place] for place in best], progress=count.part()
            )
            for result, scored in zip(results, ranked, strict=True):
                result.relevant_spans = _spans(scored, spans) or None
        if body.return_documents:
            for result in results:
                result.document = RerankDocument(text=texts[result.index])
        return results

    results, tokens = await context.run(request, [body.query, *texts], call)
    ignored = [
        name
        for name in ("max_tokens_per_doc", "max_chunks_per_doc")
        if getattr(body, name) is not None
    ]
    meta: dict[str, object] = {"tokens": {"input_tokens": tokens}}
    if ignored:
        meta["warnings"] = [f"{name} has no effect: documents are read whole" for name in ignored]
    return RerankResponse(
        id=str(uuid4()),
        model=loaded.name,
        results=results,
        usage={"total_tokens": tokens},
        meta=meta,
    )


@router.post("/rerank", response_model_exclude_none=True, responses=error_responses("/rerank"))
async def rerank_either(
    body: EitherRequest, request: Request, context: InContext
) -> RerankResponse | list[TeiRank]:
    """Rank documents by their relevance to a query: with `documents` as /v2/rerank, with `texts` in
    TEI's shape.
    """
    if isinstance(body, RerankRequest):
        return await rerank(body, request, context)
    loaded = context.loaded()
    reranker = loaded.reranker

    def call(progress: Progress) -> list[TeiRank]:
        scores = reranker.score(body.query, body.texts, progress=progress)
        return [
            TeiRank(
                index=place,
                score=float(scores[place]) if body.raw_scores else probability(scores[place]),
                text=body.texts[place] if body.return_text else None,
            )
            for place in top(scores).tolist()
        ]

    return (await context.run(request, [body.query, *body.texts], call))[0]


def _spans(scored: Scored, options: RelevantSpans) -> list[Span]:
    """Return the sentences above the threshold, best first, without the whitespace around them."""
    spans: list[Span] = []
    for sentence in scored.ranked():
        score = probability(sentence.score)
        if score <= options.threshold or len(spans) == options.max_spans:
            break
        span = trimmed(sentence)
        spans.append(Span(start=span.start, end=span.end, score=score))
    return spans
