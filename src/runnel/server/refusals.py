"""Errors as HTTP responses, each with the status and body that clients of its route expect.

A route raises a `Refusal` of a kind; `_KINDS` has the status of each kind, and `_BODIES` the shape
of the body for each path. `describe_problems` puts pydantic's problems in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from runnel.errors import (
    BackendUnavailable,
    Cancelled,
    CheckpointError,
    InputError,
    RunnelError,
    StoreError,
)

RefusalKind = Literal[
    "invalid", "ambiguous", "unauthorized", "forbidden", "not_found", "not_allowed", "slow",
    "too_long", "too_large", "busy", "gone", "unavailable", "deadline", "failed",
]  # fmt: skip

# kind -> status, OpenAI's type, TEI's type
_KINDS: Mapping[RefusalKind, tuple[int, str, str]] = {
    "invalid": (400, "invalid_request_error", "Validation"),
    "ambiguous": (400, "invalid_request_error", "Validation"),
    "unauthorized": (401, "authentication_error", "Unauthorized"),
    "forbidden": (403, "permission_error", "Forbidden"),
    "not_found": (404, "not_found_error", "NotFound"),
    "not_allowed": (405, "invalid_request_error", "Validation"),
    "slow": (408, "timeout_error", "Validation"),
    "too_long": (413, "invalid_request_error", "Validation"),
    "too_large": (413, "invalid_request_error", "Validation"),
    "busy": (429, "rate_limit_error", "Overloaded"),
    # the client is gone: only the log has this status
    "gone": (499, "client_closed_request", "Backend"),
    "failed": (500, "server_error", "Backend"),
    "unavailable": (503, "unavailable_error", "Unhealthy"),
    "deadline": (504, "timeout_error", "Backend"),
}
_SHOWN = 3  # the most problems of one request to list
# the statuses of TEI that differ from the ones in `_KINDS`
_TEI_STATUS: Mapping[RefusalKind, int] = {"invalid": 422, "too_long": 422}


class Refusal(HTTPException):
    """A request that is not answered, and why; `code`: a word for programs, where the kind alone is
    ambiguous.
    """

    def __init__(
        self,
        kind: RefusalKind,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        self.kind = kind
        self.message = message
        self.code = code
        self.param = param
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if kind == "unauthorized":
            headers["WWW-Authenticate"] = "Bearer"
        if kind in ("slow", "ambiguous"):
            headers["Connection"] = "close"  # the body's rest could be read as a request
        super().__init__(_KINDS[kind][0], message, headers)

    @classmethod
    def of(cls, error: RunnelError) -> Refusal:
        """Return the refusal for an error of a model call."""
        # the loaded model has no head for the job
        if isinstance(error, InputError | CheckpointError):
            return cls("invalid", str(error))
        return cls(
            "unavailable"
            if isinstance(error, StoreError | BackendUnavailable | Cancelled)
            else "failed",
            str(error),
        )

    def response(self, path: str) -> JSONResponse:
        """Return the response with the body that clients of the route expect."""
        body = _BODIES.get(path, OpenAIErrorBody)
        status, openai, tei = _KINDS[self.kind]
        if issubclass(body, TeiErrorBody):
            status = _TEI_STATUS.get(self.kind, status)
        openai_error = {
            "message": self.message,
            "type": openai,
            "param": self.param,
            "code": self.code,
        }
        fields = {
            "message": self.message,
            "error": openai_error if issubclass(body, OpenAIErrorBody) else self.message,
            "error_type": tei,
            "detail": self.message,
        }
        return JSONResponse(
            {name: fields[name] for name in body.model_fields}, status, self.headers
        )


class OpenAIError(BaseModel):
    """The error of a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    """An error as OpenAI's clients read it; also of runnel's own routes."""

    error: OpenAIError


class EmbeddingsErrorBody(OpenAIErrorBody):
    """An error of /v1/embeddings, for clients of OpenAI, Jina and Voyage."""

    detail: str


class CohereErrorBody(BaseModel):
    """An error as Cohere's clients read it."""

    message: str


class FirstRerankErrorBody(CohereErrorBody):
    """An error of /v1/rerank, for clients of Cohere, Jina and Voyage."""

    detail: str


class TeiErrorBody(BaseModel):
    """An error as clients of text-embeddings-inference read it."""

    error: str
    error_type: str


class RerankErrorBody(TeiErrorBody):
    """An error of /rerank, for clients of Cohere and of text-embeddings-inference."""

    message: str


_TEI = (
    "/", "/embed", "/embed_all", "/embed_sparse", "/similarity", "/predict", "/tokenize", "/decode",
    "/info", "/invocations", "/vertex",
)  # fmt: skip
_COHERE = (
    "/v1/rerank", "/v2/rerank", "/v1/embed", "/v2/embed", "/v1/tokenize", "/v1/detokenize",
    "/v1/chat", "/v2/chat", "/v1/classify", "/v1/check-api-key", "/v1/embed-jobs", "/v1/datasets",
    "/v1/generate", "/v1/summarize", "/v1/connectors",
)  # fmt: skip
# by path, the body of its errors; other paths have `OpenAIErrorBody`
_BODIES: Mapping[str, type[BaseModel]] = {
    **dict.fromkeys(_TEI, TeiErrorBody),
    **dict.fromkeys(_COHERE, CohereErrorBody),
    "/v1/embeddings": EmbeddingsErrorBody,
    "/v1/multimodalembeddings": EmbeddingsErrorBody,
    "/v1/contextualizedembeddings": EmbeddingsErrorBody,
    "/v1/rerank": FirstRerankErrorBody,
    "/rerank": RerankErrorBody,
}


def describe_problems(problems: Iterable[ErrorDetails], above: int = 0) -> str:
    """Describe the problems of fields that pydantic found in one line: places, without pydantic's
    names of the types that it tried, and its messages.

    Where it tried several types of a value, the problems of types that the value does not have
    ("..._type") are left out, if there are problems of a type that it has.

    Args:
        above: the parts of each place before the name of the field.
    """
    fields: dict[object, list[ErrorDetails]] = {}
    for problem in problems:
        fields.setdefault(problem["loc"][: above + 1], []).append(problem)
    lines: dict[str, None] = {}
    for found in fields.values():
        fitting = [problem for problem in found if not problem["type"].endswith("_type")]
        for problem in fitting or found:
            names = field_names(problem["loc"][above:])
            lines[f"{'.'.join(names) or 'body'}: {problem['msg']}"] = None
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return "; ".join([*list(lines)[:_SHOWN], *more])


def field_names(parts: Iterable[str | int]) -> list[str]:
    """Return the fields and the positions in lists among the parts of a place, without tags, which
    have a space (`context.py`).
    """
    return [str(part) for part in parts if isinstance(part, int) or part.isidentifier()]


def error_responses(path: str) -> dict[int | str, dict[str, object]]:
    """Return the errors of a route for its OpenAPI description."""
    body = _BODIES.get(path, OpenAIErrorBody)
    changed = _TEI_STATUS if issubclass(body, TeiErrorBody) else {}
    statuses = sorted(
        {changed.get(kind, status) for kind, (status, _, _) in _KINDS.items() if kind != "gone"}
    )
    return {status: {"model": body} for status in statuses}
