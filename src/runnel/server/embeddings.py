"""Vectors: /v1/embeddings and /v1/models in OpenAI's shape, with the fields of Jina and Voyage;
/v1/embed and /v2/embed in Cohere's. Vectors in TEI's shape are in `tei.py`.

In order: types of fields (`Input`: texts, or token ids), bodies of requests and answers, the
routes, and what they call:

    prompt_for    the text that the model reads before texts of a use, such as "query"
    embed_texts   texts or ids -> vectors -> the answer
    read_rows     renders texts as rows of ids, counts and admits them, and runs the model call
    coded         a vector as a list or in base64, in a precision

d  width of the vectors
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from runnel.errors import InputError
from runnel.models.embedder import Embedder
from runnel.models.precision import CALIBRATED, quantize, truncated
from runnel.server.context import (
    LONG_CHARS,
    Body,
    Context,
    InContext,
    Loaded,
    ModelBody,
    Some,
    Text,
    TextItem,
    TextObject,
    no_effect,
)
from runnel.server.refusals import Refusal, error_responses
from runnel.server.work import QueuedRequest

router = APIRouter(tags=["embeddings"])

# what services call the use of a text -> the name of the model's prompt for it, if it has one
_ROLES: Mapping[str, str] = {
    "query": "query",
    "document": "document",
    "passage": "document",
    "retrieval.query": "query",
    "retrieval.passage": "document",
    "search_query": "query",
    "search_document": "document",
}

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]


def _shape(given: object) -> str:
    """Return the tag of the type that a value of `Input` should have."""
    match given:
        case [list(), *_]:
            return "rows of ids"
        case [int() | float(), *_]:
            return "a row of ids"
        case list():
            return "some texts"
        case _:
            return "a text"


Input = Annotated[
    Annotated[TextItem, Tag("a text")]
    | Annotated[Annotated[list[TextItem], Some], Tag("some texts")]
    | Annotated[Annotated[list[Ids], Some], Tag("rows of ids")]
    | Annotated[Ids, Tag("a row of ids")],
    Discriminator(_shape),
]
Dimensions = Annotated[
    int | None, Field(ge=1, description="Cut vectors to this width and normalize them again.")
]
Use = Annotated[
    str | None,
    Field(description="What the texts are for: chooses the model's prompt, if it has one for it."),
]
Cut = Annotated[
    bool | None,
    Field(
        description=(
            "Cut texts that are longer than a transformer can read (default: true); other models"
            " read any length."
        ),
    ),
]
UnitLength = Annotated[bool | None, Field(description="Give vectors unit length (default: true).")]
Precision = Literal["float", "int8", "uint8", "binary", "ubinary"]

# the least and the greatest number for `quantize`: int8 is then 127 times a number, rounded, for
# every model and width: no number of a vector of unit length is outside
_BOUNDS = np.array([-128.5, 126.5], np.float32) / 127


class EmbeddingsRequest(ModelBody):
    """Texts, or ids of this model's tokenizer without special tokens, to embed, with the fields of
    OpenAI, Jina and Voyage.
    """

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions = None
    output_dimension: Dimensions = None
    task: Use = None
    input_type: Use = None
    normalized: UnitLength = None
    embedding_type: Literal["base64", Precision] | None = None
    output_dtype: Precision | None = None
    truncate: Cut = None
    truncation: Cut = None
    return_multivector: Literal[False] | None = None
    user: str | None = no_effect("requests are not counted by user")
    late_chunking: bool | None = no_effect("each text is read alone")


class Embedding(BaseModel):
    """One vector; base64 holds little-endian float32, or the bytes of whole numbers or bits."""

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
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "runnel"


class ModelList(BaseModel):
    """The models of this server."""

    object: Literal["list"]
    data: list[ModelFacts]


class CohereContent(Body):
    """A part of an input."""

    type: Literal["text"]
    text: Text


class CohereInput(Body):
    """An input; its parts are joined by a line end."""

    content: Annotated[list[CohereContent], Field(min_length=1)]


class CohereEmbedRequest(ModelBody):
    """Texts to embed, in the shape of Cohere: `texts` or `inputs`."""

    texts: Annotated[list[Text], Some] | None = None
    inputs: Annotated[list[CohereInput], Some] | None = None
    input_type: Use = None
    embedding_types: Annotated[list[Literal["base64", Precision]], Field(min_length=1)] | None = (
        None
    )
    output_dimension: Dimensions = None
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description=(
            "Where to cut texts that are longer than a transformer can read (default: END); with"
            " NONE and START they are refused."
        ),
    )
    max_tokens: int | None = no_effect("texts are read whole")
    priority: int | None = no_effect("requests are answered in turn")


@dataclass(frozen=True)
class TextsToRead:
    """What to read, and how."""

    items: Mapping[str, str] | Mapping[str, list[int]]  # texts or ids, by their place in the body
    prompt: str | None = None
    cut: bool = True  # whether to cut texts that are longer than a transformer can read

    @classmethod
    def of(cls, field: str, given: Any, prompt: str | None, *cuts: object) -> Self:
        """Return what to read for a field's value of `Input`. Texts are cut, at their end, unless
        one of `cuts` is False, or "left": to cut at the beginning.
        """
        single = isinstance(given, str | TextObject) or isinstance(given[0], int)
        items = {field: getattr(given, "text", given)} if single else placed(field, given)
        cut = not any(wish is False or str(wish).lower() == "left" for wish in cuts)
        return cls(items, prompt, cut)


def placed(field: str, given: Sequence[Any]) -> dict[str, Any]:
    """Return the items of a field's list by their place: "input[0]", ..."""
    return {
        f"{field}[{place}]": item.text if isinstance(item, TextObject) else item
        for place, item in enumerate(given)
    }


def prompt_for(loaded: Loaded, request: Request, field: str, use: str | None) -> str | None:
    """Return the text of the model's prompt for the value of a field. A use that the model has no
    prompt for has no effect; any other name of TEI's `prompt_name` is refused.
    """
    prompts = loaded.model.prompts
    name = _ROLES.get(use or "", use)
    if name is None or name in prompts:
        return None if name is None else prompts[name]
    if field == "prompt_name" and use not in _ROLES:
        raise Refusal(
            "invalid",
            f"prompt_name is {use!r}; choose from"
            f" {', '.join(sorted({*prompts, *_ROLES.values()}))}",
            param=field,
        )
    request.state.ignored[field] = "the model has no prompt for it"
    return None


def coded(vector: np.ndarray, kind: str | None, *, as_base64: bool) -> list[float] | str:
    """Return a vector (d,) for JSON, a list or base64, in a precision (default: float)."""
    precision = "float32" if kind in (None, "float", "base64") else kind
    ranges = np.outer(_BOUNDS, np.ones_like(vector)) if kind in CALIBRATED else None
    numbers = quantize(vector, precision, ranges)
    return base64.b64encode(numbers.tobytes()).decode() if as_base64 else numbers.tolist()


@router.post(
    "/v1/embeddings", response_model=Embeddings, responses=error_responses("/v1/embeddings")
)
async def create_embeddings(
    body: EmbeddingsRequest, request: Request, context: InContext
) -> Response:
    """Embed texts."""
    loaded = context.loaded_for(request, body)
    prompt = prompt_for(loaded, request, *body.agreed("task", "input_type"))
    field, kind = body.agreed("embedding_type", "output_dtype")
    if kind in CALIBRATED and body.normalized is False:
        raise Refusal(
            "invalid",
            f"{field} is {kind}, which needs vectors of unit length, and normalized is false",
            param=field,
        )
    # Jina's field says the form alone: OpenAI's client asks for base64 by itself
    as_base64 = "base64" in (body.embedding_type or body.encoding_format, kind)

    def write(vectors: Iterator[np.ndarray], tokens: int) -> str:
        values = (coded(vector, kind, as_base64=as_base64) for vector in vectors)
        return json.dumps(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": value}
                    for index, value in enumerate(values)
                ],
                "model": loaded.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    _, cut = body.agreed("truncate", "truncation")
    wanted = TextsToRead.of("input", body.input, prompt, cut)
    return await embed_texts(
        context,
        request,
        wanted,
        write,
        body.agreed("dimensions", "output_dimension"),
        normalize=body.normalized is not False,
    )


@router.get("/v1/models", responses=error_responses("/v1/models"))
async def list_models(context: InContext) -> ModelList:
    """List the model of this server."""
    return ModelList(object="list", data=[ModelFacts(id=context.loaded().name)])


@router.get("/v1/models/{id:path}", responses=error_responses("/v1/models"))
async def retrieve_model(id: str, context: InContext) -> ModelFacts:
    """Return the model of this server, by its name."""
    return ModelFacts(id=context.loaded(id).name)


@router.post("/v1/embed", response_model=dict[str, object], responses=error_responses("/v1/embed"))
@router.post("/v2/embed", response_model=dict[str, object], responses=error_responses("/v2/embed"))
async def embed_for_cohere(
    body: CohereEmbedRequest, request: Request, context: InContext
) -> Response:
    """Embed texts: vectors by type or, of /v1/embed without `embedding_types`, a list."""
    loaded = context.loaded_for(request, body)
    prompt = prompt_for(loaded, request, "input_type", body.input_type)
    if (body.texts is None) == (body.inputs is None):
        raise Refusal("invalid", "send either texts or inputs")
    joined = ["\n".join(part.text for part in one.content) for one in body.inputs or []]
    items = placed("texts", body.texts) if body.texts else placed("inputs", joined)
    types = body.embedding_types
    if types is None and request.url.path == "/v2/embed":
        types = ["float"]

    def write(vectors: Iterator[np.ndarray], tokens: int) -> str:
        rows = list(vectors)
        by_type = {
            kind: [coded(vector, kind, as_base64=kind == "base64") for vector in rows]
            for kind in types or ["float"]
        }
        return json.dumps(
            {
                "id": str(uuid4()),
                "response_type": "embeddings_by_type" if types else "embeddings_floats",
                "embeddings": by_type if types else by_type["float"],
                "texts": list(items.values()),
                "meta": cohere_meta(request, tokens),
            }
        )

    wanted = TextsToRead(items, prompt, cut=body.truncate in (None, "END"))
    return await embed_texts(context, request, wanted, write, body.agreed("output_dimension"))


def cohere_meta(request: Request, tokens: int) -> dict[str, object]:
    """Return the facts about a request that Cohere's clients read; `warnings` names the fields
    without effect.
    """
    warnings = [f"{name} has no effect: {why}" for name, why in request.state.ignored.items()]
    return {
        "billed_units": {"input_tokens": tokens},
        "tokens": {"input_tokens": tokens},
        **({"warnings": warnings} if warnings else {}),
    }


async def embed_texts(
    context: Context,
    request: Request,
    wanted: TextsToRead,
    write: Callable[[Iterator[np.ndarray], int], str],
    wanted_width: tuple[str, int | None] = ("dimensions", None),
    *,
    normalize: bool = True,
) -> Response:
    """Embed texts or ids; `write` returns the answer for their vectors and the tokens read.

    Args:
        wanted_width: the name of the request's field and its value.
    """
    embedder = context.loaded().embedder
    field, width = wanted_width
    if width is not None and width > embedder.dimension:
        raise Refusal(
            "invalid",
            f"{field} is {width}; the model's vectors have {embedder.dimension} numbers",
            param=field,
        )

    def call(rows: list[np.ndarray], job: QueuedRequest) -> str:
        vectors = embedder.encode_rows(rows, job, normalize)
        if normalize:
            shortened = (truncated(vector, width or len(vector)) for vector in vectors)
        else:
            shortened = (vector[:width] for vector in vectors)
        return write(shortened, job.tokens)

    return await read_rows(context, request, wanted, call)


async def read_rows(
    context: Context,
    request: Request,
    wanted: TextsToRead,
    call: Callable[[list[np.ndarray], QueuedRequest], str],
    most: int | None = None,
) -> Response:
    """Render texts, or ids; `call` returns the answer for the rows of ids. It runs in the thread of
    the model call, so that long answers do not hold up the event loop.

    Args:
        most: refuse more tokens.
    """
    loaded = context.loaded()
    embedder = loaded.embedder
    texts = [item for item in wanted.items.values() if isinstance(item, str)]
    rows: list[np.ndarray] = []  # filled by `count`, for the call
    if wanted.prompt and not texts:
        raise InputError("a prompt goes before a text, and ids came; send the text")

    def count(job: QueuedRequest) -> int:
        # long texts first, in parts, so that counting can be stopped
        loaded.count([text for text in texts if len(text) > LONG_CHARS], job.expect_few)
        rendered = embedder.render(
            texts,
            prompt=wanted.prompt,
            max_tokens=loaded.model.backbone.longest_text if wanted.cut else None,
        )
        tokens = 0
        try:
            for row in (
                rendered if texts else (_row(embedder, *item) for item in wanted.items.items())
            ):
                rows.append(row)
                tokens += len(row)
                job.expect_few(tokens, most)
        except InputError:
            for place, text in zip(wanted.items, texts, strict=False):
                if embedder.is_empty(text):
                    raise Refusal(
                        "invalid",
                        f"{place} is {text[:20]!a}: cannot embed an empty text; remove it, or"
                        " replace it with a placeholder",
                        param=place.partition("[")[0],
                    ) from None
            raise
        return tokens

    body, _ = await context.run(request, texts, lambda job: call(rows, job), count)
    return Response(body, media_type="application/json")


def _row(embedder: Embedder, place: str, ids: Sequence[int]) -> np.ndarray:
    """Return the ids to read for a text's ids: special tokens added."""
    model = embedder.model
    field = place.partition("[")[0]
    last = model.backbone.vocab_size - 1
    if max(ids) > last:
        raise Refusal(
            "invalid",
            f"{place} has the token id {max(ids)}; the ids of this model are 0 to {last}",
            param=field,
        )
    row = (
        model.templates["document"]
        .render(model.tokenizer, document=np.array(ids, dtype=np.int32))
        .ids
    )
    if embedder.reader.splits(row):
        raise Refusal(
            "invalid",
            f"{place} has {len(row):,} token ids; inputs longer than"
            f" {model.backbone.max_tokens:,} are read in passages of whole sentences, which ids do"
            " not show: send the text",
            param=field,
        )
    return row
