"""Errors as HTTP responses, each with the status and body that clients of its route expect.

A route raises a `Refusal` of a kind; `_KINDS` has the status of each kind, and `_SHAPES` the fields
of the body for each path. `describe_problems` puts pydantic's problems in words.
"""

import reprlib
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Literal, Self

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

# kind -> status, OpenAI's type, TEI's status, TEI's type
_KINDS: Mapping[RefusalKind, tuple[int, str, int, str]] = {
    "invalid": (400, "invalid_request_error", 422, "Validation"),
    "ambiguous": (400, "invalid_request_error", 400, "Validation"),
    "unauthorized": (401, "authentication_error", 401, "Unauthorized"),
    "forbidden": (403, "permission_error", 403, "Forbidden"),
    "not_found": (404, "not_found_error", 404, "NotFound"),
    "not_allowed": (405, "invalid_request_error", 405, "Validation"),
    "slow": (408, "timeout_error", 408, "Validation"),
    "too_long": (413, "invalid_request_error", 422, "Validation"),
    "too_large": (413, "invalid_request_error", 413, "Validation"),
    "busy": (429, "rate_limit_error", 429, "Overloaded"),
    # the client is gone: only the log has this status
    "gone": (499, "client_closed_request", 499, "Backend"),
    "failed": (500, "server_error", 500, "Backend"),
    "unavailable": (503, "unavailable_error", 503, "Unhealthy"),
    "deadline": (504, "timeout_error", 504, "Backend"),
}
_CLOSE = {"Connection": "close"}  # the body's rest could be read as a request
_HEADERS: Mapping[str, Mapping[str, str]] = {
    "unauthorized": {"WWW-Authenticate": "Bearer"},
    "slow": _CLOSE,
    "ambiguous": _CLOSE,
}
_AN_OBJECT = "this should be an object, {...}"
# pydantic's types of problems -> what to say in place of its own words
_PROBLEMS = {
    "missing": "this field is missing",
    "model_attributes_type": _AN_OBJECT,
    "model_type": _AN_OBJECT,
    "dict_type": _AN_OBJECT,
    "extra_forbidden": "this route has no such field; /docs lists its fields",
    "union_tag_invalid": "this should be a text, a number, true, false or null",
    "tuple_type": "this should be a pair [query, text], or be in a list of pairs",
}
_SHOWN = 3  # the most problems of one request to list
_SHOWN_CHARS = 40  # the most characters of a wrong value that an error shows

# the fields of bodies, with their JSON schemas
_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"anyOf": [_TEXT, {"type": "null"}]}
_OPENAI: Mapping[str, object] = {  # also of runnel's own routes
    "error": {
        "type": "object",
        "properties": {
            "message": _TEXT,
            "type": _TEXT,
            "param": _TEXT_OR_NULL,
            "code": _TEXT_OR_NULL,
        },
        "required": ["message", "type", "param", "code"],
    }
}
_COHERE = {"message": _TEXT}
_TEI = {"error": _TEXT, "error_type": _TEXT}
_DETAIL = {"detail": _TEXT}  # for clients of Jina and Voyage
_TEI_PATHS = (
    "/", "/embed", "/embed_all", "/embed_sparse", "/similarity", "/predict", "/tokenize", "/decode",
    "/info", "/invocations", "/vertex",
)  # fmt: skip
_COHERE_PATHS = (
    "/v1/rerank", "/v2/rerank", "/v1/embed", "/v2/embed", "/v1/tokenize", "/v1/detokenize",
    "/v1/chat", "/v2/chat", "/v1/classify", "/v1/check-api-key", "/v1/embed-jobs", "/v1/datasets",
    "/v1/generate", "/v1/summarize", "/v1/connectors",
)  # fmt: skip
# by path, the fields of its errors; other paths have OpenAI's
_SHAPES: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(_TEI_PATHS, _TEI),
    **dict.fromkeys(_COHERE_PATHS, _COHERE),
    "/v1/embeddings": {**_OPENAI, **_DETAIL},
    "/v1/multimodalembeddings": {**_OPENAI, **_DETAIL},
    "/v1/contextualizedembeddings": {**_OPENAI, **_DETAIL},
    "/v1/rerank": _COHERE | _DETAIL,
    "/rerank": _TEI | _COHERE,
}


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
        self.code = code
        self.param = param
        headers = dict(_HEADERS.get(kind, {}))
        if retry_after_s is not None:
            headers["Retry-After"] = str(retry_after_s)
        super().__init__(_KINDS[kind][0], message, headers)

    @classmethod
    def of(cls, error: RunnelError) -> Self:
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
        shape = _SHAPES.get(path, _OPENAI)
        status, openai, tei_status, tei = _KINDS[self.kind]
        is_tei = "error_type" in shape
        error = {"message": self.detail, "type": openai, "param": self.param, "code": self.code}
        fields = {
            "message": self.detail,
            "error": self.detail if is_tei else error,
            "error_type": tei,
            "detail": self.detail,
        }
        return JSONResponse(
            {name: fields[name] for name in shape}, tei_status if is_tei else status, self.headers
        )


def describe_problems(problems: Iterable[ErrorDetails], above: int) -> str:
    """Describe the problems of fields that pydantic found in one line: places, without pydantic's
    names of the types that it tried, what is wrong, and the values that came if they are short.

    Where it tried several types of a value, the problems of types that the value does not have
    ("..._type") are left out, if there are problems of a type that it has.

    Args:
        above: the parts of each place before the name of the field.
    """
    lines: dict[str, None] = {}
    # pydantic checks one field after another
    for _, of_field in groupby(problems, key=lambda problem: problem["loc"][: above + 1]):
        found = list(of_field)
        fitting = [problem for problem in found if not problem["type"].endswith("_type")]
        for problem in fitting or found:
            names = field_names(problem["loc"][above:])
            came = reprlib.repr(problem["input"])
            what = problem["msg"].replace(" after validation", "")
            if len(came) < _SHOWN_CHARS and problem["input"] is not None:
                what += f"; it is {came}"
            lines[f"{'.'.join(names) or 'body'}: {_PROBLEMS.get(problem['type'], what)}"] = None
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return "; ".join([*list(lines)[:_SHOWN], *more])


def field_names(parts: Iterable[str | int]) -> list[str]:
    """Return the fields and the positions in lists among the parts of a place, without tags, which
    have a space (`context.py`).
    """
    return [str(part) for part in parts if isinstance(part, int) or part.isidentifier()]


def error_responses(path: str) -> dict[int | str, dict[str, object]]:
    """Return the errors of a route for its OpenAPI description."""
    shape = _SHAPES.get(path, _OPENAI)
    schema = {
        "description": "An error as the clients of this route read it.",
        "type": "object",
        "properties": shape,
        "required": list(shape),
    }
    column = 2 if "error_type" in shape else 0
    return {
        status: {"content": {"application/json": {"schema": schema}}}
        for status in sorted({row[column] for kind, row in _KINDS.items() if kind != "gone"})
    }
