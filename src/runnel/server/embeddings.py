"""Vectors: /v1/embeddings and /v1/models in OpenAI's shape, /embed in the shape of
text-embeddings-inference (TEI).

d  width of the vectors
"""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from runnel.errors import InputError
from runnel.models.embedder import Embedder
from runnel.models.precision import check_width, truncated
from runnel.server.context import LONG_CHARS, Body, Context, InContext, Some
from runnel.server.refusals import error_responses
from runnel.server.work import QueuedRequest

router = APIRouter(tags=["embeddings"])

Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Input = Text | Annotated[list[Text], Some] | Annotated[list[Ids], Some] | Ids
Write = Callable[[Iterator[np.ndarray], int], str]  # of vectors and the tokens read
Dimensions = Annotated[
    int | None, Field(ge=1, description="Cut vectors to this width and normalize them again.")
]


class EmbeddingsRequest(Body):
    """Texts, or ids of this model's tokenizer without special tokens, to embed."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions = None
    user: str | None = Field(None, description="Accepted and not used.")


class Embedding(BaseModel):
    """One vector; base64 holds little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TokenUsage(BaseModel):
    """Tokens read, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors in the order of the input."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage


class ModelFacts(BaseModel):
    """One model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models of this server."""

    object: Literal["list"]
    data: list[ModelFacts]


class EmbedRequest(Body):
    """Texts, or ids of this model's tokenizer without special tokens, to embed."""

    inputs: Input
    normalize: Literal[True] = Field(True, description="Vectors always have unit length.")
    truncate: bool | None = Field(
        None,
        description=(
            "Cut texts that are longer than the model can read (default: true); recurrent models"
            " read any length."
        ),
    )
    truncation_direction: Literal["right", "Right"] = "right"
    prompt_name: str | None = None
    dimensions: Dimensions = None


@router.post(
    "/v1/embeddings", response_model=Embeddings, responses=error_responses("/v1/embeddings")
)
async def create_embeddings(
    body: EmbeddingsRequest, request: Request, context: InContext
) -> Response:
    """Embed texts."""
    loaded = context.loaded(body.model)

    def write(vectors: Iterator[np.ndarray], tokens: int) -> str:
        data = []
        for index, vector in enumerate(vectors):
            raw = vector.astype("<f4").tobytes()
            value = (
                base64.b64encode(raw).decode()
                if body.encoding_format == "base64"
                else vector.tolist()
            )
            data.append({"object": "embedding", "index": index, "embedding": value})
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json.dumps({"object": "list", "data": data, "model": loaded.name, "usage": usage})

    return await _embed(context, request, body.input, body.dimensions, None, True, write)


@router.get("/v1/models", responses=error_responses("/v1/models"))
async def list_models(context: InContext) -> ModelList:
    """List the model of this server."""
    facts = ModelFacts(id=context.loaded().name, object="model", created=0, owned_by="runnel")
    return ModelList(object="list", data=[facts])


@router.post("/", include_in_schema=False)  # where some of TEI's clients send
@router.post("/embed", response_model=list[list[float]], responses=error_responses("/embed"))
async def embed(body: EmbedRequest, request: Request, context: InContext) -> Response:
    """Embed texts, in TEI's shape."""
    return await _embed(
        context,
        request,
        body.inputs,
        body.dimensions,
        body.prompt_name,
        body.truncate is not False,
        lambda vectors, _: json.dumps([vector.tolist() for vector in vectors]),
    )


async def _embed(
    context: Context,
    request: Request,
    given: Input,
    dimensions: int | None,
    prompt: str | None,
    cut: bool,
    write: Write,
) -> Response:
    """Embed texts or ids; `write` runs in the thread of the model call, so that long answers do not
    hold up the event loop.
    """
    loaded = context.loaded()
    embedder = loaded.embedder
    check_width(dimensions, embedder.dimension, "dimensions")
    width = dimensions or embedder.dimension
    items = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
    texts = [item for item in items if isinstance(item, str)]
    rows: list[np.ndarray] = []

    def count(job: QueuedRequest) -> int:
        loaded.count([text for text in texts if len(text) > LONG_CHARS], job.expect_few)  # in parts
        limit = loaded.model.backbone.longest_text if cut else None
        rendered = embedder.render(texts, prompt=prompt, max_tokens=limit)
        tokens = 0
        for row in rendered if texts else (_row(embedder, ids) for ids in items):
            rows.append(row)
            tokens += len(row)
            job.expect_few(tokens)
        return tokens

    def call(job: QueuedRequest) -> str:
        return write(
            (truncated(vector, width) for vector in embedder.encode_rows(rows, job)), job.tokens
        )

    body, _ = await context.run(request, texts, call, count)
    return Response(body, media_type="application/json")


def _row(embedder: Embedder, ids: object) -> np.ndarray:
    """Return the ids to read for a text's ids: special tokens added."""
    model = embedder.model
    row = (
        model.templates["document"]
        .render(model.tokenizer, document=np.array(ids, dtype=np.int32))
        .ids
    )
    if embedder.reader.cuts(row):
        raise InputError(
            f"the input has {len(row):,} token ids; inputs longer than"
            f" {model.backbone.max_tokens:,} are read in passages of whole sentences, which ids do"
            " not show: send the text"
        )
    return row
