"""Vectors and tokens in the shape of text-embeddings-inference (TEI): /embed, /embed_all,
/similarity, /tokenize; and /v1/tokenize in Cohere's. /rerank and /predict are in `rerank.py`.

T  tokens of a text   D  width of hidden vectors
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Tag
from starlette.responses import Response

from runnel.models.model import Model
from runnel.server.context import Body, Context, InContext, Loaded, ModelBody, Some, Text
from runnel.server.embeddings import (
    Cut,
    Dimensions,
    Input,
    TextsToRead,
    UnitLength,
    embed_texts,
    placed,
    prompt_for,
    read_rows,
)
from runnel.server.refusals import error_responses
from runnel.server.rerank import PredictRequest, predict
from runnel.server.work import QueuedRequest

router = APIRouter(tags=["TEI"])

_MOST_TOKEN_VECTORS = 4096  # the most vectors of one request: as JSON, each has some 8 kB
_MOST_LISTED = 200_000  # tokens of one request, each an object of the answer
Prompt = Annotated[str | None, Field(description="The name of one of the model's prompts.")]


class ReadParameters(Body):
    """How to read texts."""

    truncate: Cut = None
    truncation_direction: Annotated[
        Literal["right", "Right", "left", "Left"] | None,
        Field(description="Where to cut; texts that would be cut on the left are refused."),
    ] = None
    prompt_name: Prompt = None


class EmbedAllRequest(ReadParameters):
    """Texts, or ids of this model's tokenizer without special tokens, to read."""

    inputs: Input


class EmbedRequest(EmbedAllRequest):
    """Texts, or ids of this model's tokenizer without special tokens, to embed."""

    normalize: UnitLength = None
    dimensions: Dimensions = None
    encoding_format: Literal["float"] | None = None


class SimilarityInputs(Body):
    """A text, and texts to compare it with."""

    source_sentence: Text
    sentences: Annotated[list[Text], Some]


class SimilarityRequest(Body):
    """Texts to compare by the cosine of their vectors."""

    inputs: SimilarityInputs
    parameters: ReadParameters | None = None


class TokenizeRequest(Body):
    """Texts to cut into tokens."""

    inputs: Annotated[
        Annotated[Text, Tag("a text")] | Annotated[Annotated[list[Text], Some], Tag("some texts")],
        Discriminator(lambda given: "some texts" if isinstance(given, list) else "a text"),
    ]
    add_special_tokens: bool | None = Field(None, description="Default: true.")
    prompt_name: Prompt = None


class CohereTokenizeRequest(ModelBody):
    """A text to cut into tokens."""

    text: Text


@router.post("/embed", response_model=list[list[float]], responses=error_responses("/embed"))
async def embed(body: EmbedRequest, request: Request, context: InContext) -> Response:
    """Embed texts."""
    return await embed_texts(
        context,
        request,
        _reading(context.loaded_for(request, body), request, body.inputs, body),
        lambda vectors, _: json.dumps([vector.tolist() for vector in vectors]),
        body.agreed("dimensions"),
        normalize=body.normalize is not False,
    )


@router.post(
    "/embed_all", response_model=list[list[list[float]]], responses=error_responses("/embed_all")
)
async def embed_all(body: EmbedAllRequest, request: Request, context: InContext) -> Response:
    """Return the hidden vectors of all tokens, special ones included; a text's vector is pooled
    from these.
    """
    loaded = context.loaded_for(request, body)

    def call(rows: list[np.ndarray], job: QueuedRequest) -> str:
        return json.dumps([part.tolist() for part in loaded.embedder.token_vectors(rows, job)])

    return await read_rows(
        context,
        request,
        _reading(loaded, request, body.inputs, body),
        call,
        most=_MOST_TOKEN_VECTORS,
    )


@router.post("/similarity", response_model=list[float], responses=error_responses("/similarity"))
async def similarity(body: SimilarityRequest, request: Request, context: InContext) -> Response:
    """Return the cosines of a text with others."""
    options = body.parameters or ReadParameters()
    wanted = _reading(context.loaded_for(request, body), request, "", options)
    texts = {
        "inputs.source_sentence": body.inputs.source_sentence,
        **placed("inputs.sentences", body.inputs.sentences),
    }

    def write(vectors: Iterator[np.ndarray], tokens: int) -> str:
        source = next(vectors)
        return json.dumps([float(source @ vector) for vector in vectors])

    return await embed_texts(context, request, replace(wanted, items=texts), write)


# huggingface_hub's classifier always sends `parameters`
ToEmbedOrScore = Annotated[
    Annotated[EmbedRequest, Tag("to embed")] | Annotated[PredictRequest, Tag("to score")],
    Discriminator(
        lambda body: "to score" if isinstance(body, dict) and "parameters" in body else "to embed"
    ),
]


@router.post("/", include_in_schema=False)  # where some of TEI's clients send
async def embed_compare_or_score(
    body: Annotated[
        Annotated[ToEmbedOrScore, Tag("of texts")]
        | Annotated[SimilarityRequest, Tag("to compare")],
        Discriminator(
            lambda body: (
                "to compare"
                if isinstance(body, dict) and isinstance(body.get("inputs"), dict)
                else "of texts"
            )
        ),
    ],
    request: Request,
    context: InContext,
) -> Any:
    """Answer as /embed; for a `source_sentence`, as /similarity; with `parameters`, as /predict."""
    routes: Any = {EmbedRequest: embed, PredictRequest: predict, SimilarityRequest: similarity}
    return await routes[type(body)](body, request, context)


@router.post(
    "/tokenize",
    response_model=list[list[dict[str, int | str | bool | None]]],
    responses=error_responses("/tokenize"),
)
async def tokenize(body: TokenizeRequest, request: Request, context: InContext) -> Response:
    """Cut texts into tokens; `start` and `stop` count characters (code points), null for a special
    token.
    """
    loaded = context.loaded_for(request, body)
    prompt = prompt_for(loaded, request, "prompt_name", body.prompt_name) or ""
    given = [body.inputs] if isinstance(body.inputs, str) else body.inputs

    def write(texts: Sequence[str]) -> str:
        return json.dumps(
            [
                tokens_of(loaded.model, text, special=body.add_special_tokens is not False)
                for text in texts
            ]
        )

    return await list_tokens(context, request, [prompt + text for text in given], write)


@router.post(
    "/v1/tokenize", response_model=dict[str, object], responses=error_responses("/v1/tokenize")
)
async def tokenize_v1(
    body: CohereTokenizeRequest, request: Request, context: InContext
) -> Response:
    """Cut a text into tokens, no special ones."""
    model = context.loaded_for(request, body).model

    def write(texts: Sequence[str]) -> str:
        tokens = tokens_of(model, body.text)
        names = {"id": "tokens", "text": "token_strings"}
        return json.dumps({name: [one[key] for one in tokens] for key, name in names.items()})

    return await list_tokens(context, request, [body.text], write)


def _reading(loaded: Loaded, request: Request, given: Any, options: ReadParameters) -> TextsToRead:
    return TextsToRead.of(
        "inputs",
        given,
        prompt_for(loaded, request, "prompt_name", options.prompt_name),
        options.truncate,
        options.truncation_direction,
    )


async def list_tokens(
    context: Context, request: Request, texts: Sequence[str], write: Callable[[Sequence[str]], str]
) -> Response:
    """Return the answer that `write` returns for texts, if they have few tokens."""

    def count(job: QueuedRequest) -> int:
        return context.loaded().count(texts, partial(job.expect_few, most=_MOST_LISTED))

    answer, _ = await context.run(request, texts, lambda job: write(texts), count)
    return Response(answer, media_type="application/json")


def tokens_of(model: Model, text: str, *, special: bool = False) -> list[dict[str, object]]:
    """Return the tokens of a text as objects; `special`: with the tokens around it."""
    template = model.templates["document"]
    encoded = template.encode(model.tokenizer, "document", text)
    inside = [
        {"id": id, "text": text[start:stop], "special": False, "start": start, "stop": stop}
        for id, start, stop in zip(
            encoded.ids.tolist(), encoded.starts.tolist(), encoded.ends.tolist(), strict=True
        )
    ]
    rendered = template.render(model.tokenizer, document=encoded.ids)
    around: list[dict[str, object]] = [
        {"id": id, "text": model.tokenizer.decode([id]), "special": True}
        | {"start": None, "stop": None}
        for id in np.delete(rendered.ids, rendered.slices["document"]).tolist()
    ]
    before = rendered.slices["document"].start
    return [*around[:before], *inside, *around[before:]] if special else inside
