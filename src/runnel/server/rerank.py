"""Reranking: /rerank, /v1/rerank and /v2/rerank in the shapes of Cohere, Jina and Voyage.

/rerank also takes the shape of TEI (text-embeddings-inference): a body with `texts` is TEI's, one
with `documents` is not. /predict, also TEI's, scores pairs of a query and a text.

In order: the bodies of requests and answers, the routes, and what they share: `_ranked` scores
texts, and finds the sentences of the best.
"""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Annotated, Any, Literal
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from runnel.batching import top
from runnel.models.memory import Remembered
from runnel.models.scored import Scored
from runnel.records import probability, trimmed
from runnel.request import Progress, TokenCount
from runnel.server.context import (
    Body,
    InContext,
    Loaded,
    ModelBody,
    Query,
    Some,
    Text,
    TextObject,
    TextOrObject,
    no_effect,
)
from runnel.server.embeddings import cohere_meta
from runnel.server.refusals import Refusal, error_responses

router = APIRouter(tags=["rerank"])

_READ_WHOLE = "documents are read whole"
LABEL = "LABEL_0"  # the only class of a reranker, as TEI calls it
_LEAST = 0.2  # the probability that sentences of a `pruned_text` and relevant spans exceed


class RelevantSpans(Body):
    """Whether to return the spans of each document that answer the query."""

    mode: Literal["enabled", "disabled"]
    threshold: Annotated[
        float | None,
        Field(ge=0, le=1, description="The score of a span exceeds it (default: 0.2)."),
    ] = None
    max_spans: Annotated[int | None, Field(ge=1)] = None


TopN = Annotated[int | None, Field(ge=1, description="Results to return (default: all).")]


FieldValue = Annotated[
    Annotated[Text, Tag("a str")]
    | Annotated[int, Tag("a int")]
    | Annotated[float, Tag("a float")]
    | Annotated[bool, Tag("a bool")]
    | Annotated[None, Tag("a NoneType")],
    Discriminator(lambda given: f"a {type(given).__name__}"),
]
# a text, or the fields of one by name
RankDocument = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[dict[Text, FieldValue], Tag("an object")],
    TextOrObject,
]


class RerankRequest(ModelBody):
    """A query and documents, with the fields of Cohere, Jina and Voyage."""

    query: Annotated[
        Query,
        BeforeValidator(  # Jina's may be an object, as documents may
            lambda given: (
                given["text"] if isinstance(given, dict) and given.keys() == {"text"} else given
            ),
            json_schema_input_type=Query | TextObject,
        ),
    ]
    documents: Annotated[list[RankDocument], Some]
    top_n: TopN = None
    top_k: TopN = None
    return_documents: bool | None = None
    relevant_spans: RelevantSpans | None = None
    return_embeddings: Literal[False] | None = None
    rank_fields: list[str] | None = Field(
        None,
        description=(
            "The fields of documents that are objects to rank by, joined by line ends (default:"
            " text)."
        ),
    )
    max_tokens_per_doc: int | None = no_effect(_READ_WHOLE)
    max_chunks_per_doc: int | None = no_effect(_READ_WHOLE)
    max_doc_length: int | None = no_effect(_READ_WHOLE)
    max_query_length: int | None = no_effect("queries are read whole")
    truncate: bool | None = no_effect(_READ_WHOLE)
    truncation: bool | None = no_effect(_READ_WHOLE)
    priority: int | None = no_effect("requests are answered in turn")


class TeiScoring(Body):
    """How to score texts, in TEI's shape."""

    raw_scores: bool | None = Field(None, description="Return logits, not their sigmoid.")
    truncate: bool | None = no_effect(_READ_WHOLE)
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = no_effect(_READ_WHOLE)


class TeiRerankRequest(TeiScoring):
    """A query and documents, in TEI's shape."""

    query: Query
    texts: Annotated[list[Text], Some]
    return_text: bool | None = None
    pruned_text: bool | None = Field(
        None,
        description=(
            "Return the sentences of each text that answer with more than 20 % (default: as"
            " return_text, if the model finds sentences)."
        ),
    )
    top_n: TopN = None


Pair = Annotated[tuple[Query, Text], Field(strict=False)]


class PredictParameters(Body):
    """How to give a score."""

    function_to_apply: Literal["sigmoid", "none"] | None = None
    top_k: TopN = None


class PredictRequest(TeiScoring):
    """A pair [query, text], or a list of pairs, in TEI's shape."""

    inputs: Annotated[
        Annotated[Pair, Tag("a pair")] | Annotated[Annotated[list[Pair], Some], Tag("some pairs")],
        Discriminator(
            lambda given: (
                "some pairs"
                if isinstance(given, list) and given and isinstance(given[0], list)
                else "a pair"
            )
        ),
    ]
    parameters: PredictParameters | None = None


class Span(BaseModel):
    """The characters (code points) [start, end) of a document, and their score in [0, 1]."""

    start: int
    end: int
    score: float


class RerankResult(BaseModel):
    """A document's position in the request and its score in [0, 1]."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None
    relevant_spans: list[Span] | None = None


class RerankResponse(BaseModel):
    """Documents, best first; `usage` is for clients of Jina and Voyage, `meta` for Cohere's, `data`
    (of /v1/rerank alone) for Voyage's.
    """

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    data: list[dict[str, Any]] | None = None
    usage: dict[str, int]
    meta: dict[str, Any]


class TeiRank(BaseModel):
    """A document's position in the request and its score; `pruned_text` holds its sentences that
    answer.
    """

    index: int
    score: float
    text: str | None = None
    pruned_text: str | None = None


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
    loaded = context.loaded_for(request, body)
    texts = [
        _text_of(place, given, body.rank_fields or ["text"])
        for place, given in enumerate(body.documents)
    ]
    objects = [{"text": given} if isinstance(given, str) else given for given in body.documents]
    _, most = body.agreed("top_n", "top_k")
    spans = body.relevant_spans or RelevantSpans(mode="disabled")
    wanted = spans.mode == "enabled"

    def call(progress: Progress) -> list[RerankResult]:
        scores, best, found = _ranked(loaded, body.query, texts, most, wanted, progress)
        return [
            RerankResult(
                index=place,
                relevance_score=probability(scores[place]),
                document=objects[place] if body.return_documents else None,
                relevant_spans=_spans(found[place], spans) if wanted else None,
            )
            for place in best
        ]

    results, tokens = await context.run(request, [body.query, *texts], call)
    data = [
        {"index": result.index, "relevance_score": result.relevance_score}
        | ({"document": texts[result.index]} if body.return_documents else {})
        for result in results
    ]
    return RerankResponse(
        id=str(uuid4()),
        model=loaded.name,
        results=results,
        data=data if request.url.path == "/v1/rerank" else None,
        usage={"total_tokens": tokens},
        meta=cohere_meta(request, tokens),
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
    loaded = context.loaded_for(request, body)
    pruned = body.pruned_text
    if pruned is None:
        pruned = body.return_text and loaded.model.finds_sentences

    def call(progress: Progress) -> list[TeiRank]:
        scores, best, found = _ranked(
            loaded, body.query, body.texts, body.top_n, bool(pruned), progress
        )
        return [
            TeiRank(
                index=place,
                score=_score(scores[place], raw=body.raw_scores),
                text=body.texts[place] if body.return_text else None,
                pruned_text=_pruned(found[place]) if pruned else None,
            )
            for place in best
        ]

    return (await context.run(request, [body.query, *body.texts], call))[0]


@router.post("/predict", responses=error_responses("/predict"))
async def predict(
    body: PredictRequest, request: Request, context: InContext
) -> list[dict[str, object]] | list[list[dict[str, object]]]:
    """Score pairs of a query and a text, as of a classifier with one class."""
    loaded = context.loaded_for(request, body)
    single = isinstance(body.inputs[0], str)
    pairs: list[Any] = [body.inputs] if single else [*body.inputs]
    raw = body.raw_scores or (body.parameters or PredictParameters()).function_to_apply == "none"

    def call(progress: Progress) -> np.ndarray:
        return loaded.reranker.score_text_pairs(pairs, progress=progress)

    scores, _ = await context.run(request, [text for pair in pairs for text in pair], call)
    predictions = [[{"score": _score(score, raw=raw), "label": LABEL}] for score in scores.tolist()]
    return predictions[0] if single else predictions


def _text_of(place: int, document: str | dict[str, Any], names: Sequence[str]) -> str:
    """Return the text to rank of a document; refuse an object without it."""
    if isinstance(document, str):
        return document
    for name in names:
        if not isinstance(document.get(name), str):
            raise Refusal(
                "invalid",
                f"documents[{place}] has the fields {list(document)}, without a text in {name!r};"
                " rank_fields names the fields to rank by (default: text)",
                param="documents",
            )
    return "\n".join(document[name] for name in names)


def _score(score: float, *, raw: bool | None) -> float:
    return float(score) if raw else probability(score)


def _ranked(
    loaded: Loaded,
    query: str,
    texts: Sequence[str],
    most: int | None,
    sentences: bool,
    progress: Progress,
) -> tuple[np.ndarray, list[int], dict[int, Scored]]:
    """Return the scores of texts, the places of the best and, if wanted, the sentences of these."""
    reranker = loaded.reranker
    count = TokenCount(progress)
    documents: list[str | Remembered] = [*texts]
    # each text is read once, for both scores
    if sentences and loaded.retriever.remembers and reranker.remembers:
        memory = reranker.remember({text: text for text in texts}, progress=count.part())
        documents = [memory[text] for text in texts]
    scores = reranker.score(query, documents, progress=count.part())
    best = top(scores, most).tolist()
    chosen = [documents[place] for place in best if sentences]
    ranked = loaded.retriever.rank(query, chosen, progress=count.part()) if sentences else []
    return scores, best, dict(zip(best, ranked, strict=False))


def _pruned(scored: Scored) -> str:
    """Return the sentences that seem to answer, in reading order."""
    return " ".join(
        trimmed(one).text for one in scored.sentences() if probability(one.score) > _LEAST
    )


def _spans(scored: Scored, options: RelevantSpans) -> list[Span] | None:
    """Return the sentences above the threshold, best first, without the whitespace around them;
    None if there are none.
    """
    least = _LEAST if options.threshold is None else options.threshold
    above = takewhile(lambda sentence: probability(sentence.score) > least, scored.ranked())
    spans = [
        Span(start=one.start, end=one.end, score=probability(one.score))
        for one in map(trimmed, islice(above, options.max_spans))
    ]
    return spans or None
