"""The application, with the model loaded in the background, and its server.

routes of the server's state   /health, /ready, /metrics, /docs, and /info in the shape of TEI
                               (text-embeddings-inference)
create_app                     joins all routes, the error handlers and `Guard`
_refuse, _refuse_invalid       errors of all routes as answers
bind, serve, Server            listen first, then load and serve; on SIGTERM finish running
                               requests, refuse new ones, and exit with code 0
"""

import asyncio
import html
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from runnel import __version__
from runnel.errors import InputError, RunnelError, errors_as
from runnel.server import embeddings, page, rerank, retrieval, tei
from runnel.server.connections import WAITING, LimitedServer
from runnel.server.context import MAX_TEXTS, Context, InContext, Loaded, load
from runnel.server.guard import Guard, Metrics
from runnel.server.refusals import (
    Refusal,
    RefusalKind,
    describe_problems,
    error_responses,
    field_names,
)
from runnel.server.settings import ServerSettings
from runnel.server.view import opened_files
from runnel.server.work import Work

_KINDS: dict[int, RefusalKind] = {403: "forbidden", 404: "not_found", 405: "not_allowed"}
_NO_OBJECT = {"missing", "model_attributes_type"}  # its problems where a body is no object
# routes of other services that do not exist here -> why
_ABSENT = {
    "/embed_sparse": "models here have no sparse vectors; /v1/search also searches by words",
    "/v1/check-api-key": "keys are checked with each request",
}
_PATH_CHARS = 200  # the most characters of a path that an error shows


router = APIRouter(tags=["status"])


class Status(BaseModel):
    """The answer of /health and /ready."""

    status: Literal["ok"] = "ok"


class Info(BaseModel):
    """Facts of the model and the limits of the server."""

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: dict[Literal["embedding", "reranker"], dict[str, object]]
    max_input_length: int = Field(
        description=(
            "The most tokens that the model reads at once. Longer texts are cut if `auto_truncate`,"
            " else read in passages."
        )
    )
    max_text_length: int = Field(description="The most tokens of a text that is read without cut.")
    max_batch_tokens: int = Field(description="The most tokens of a request.")
    max_client_batch_size: int = Field(description="The most texts of a request.")
    auto_truncate: bool
    version: str


@router.get("/health")
async def health() -> Status:
    """Answer while the process runs, also while it loads or drains."""
    return Status()


@router.get("/ready", responses=error_responses("/ready"))
async def ready(context: InContext) -> Status:
    """Answer when requests can be served: the model is loaded, and the server is not stopping."""
    context.loaded()
    context.work.expect_open()
    return Status()


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    metrics: Metrics = request.app.state.metrics
    return metrics.response()


@router.get("/info", responses=error_responses("/info"))
async def info(context: InContext) -> Info:
    """Return facts of the model, in TEI's shape."""
    loaded = context.loaded()
    settings = context.settings
    backbone = loaded.model.backbone
    most = settings.max_request_tokens
    return Info(
        model_id=loaded.name,
        model_sha=await asyncio.to_thread(loaded.model.fingerprint),  # seconds, at first
        model_dtype=settings.dtype,
        served_model_name=loaded.name,
        model_type=(
            {"embedding": {"pooling": loaded.embedder.pooling}}
            if "embed" in loaded.model.heads
            else {"reranker": {"id2label": {"0": rerank.LABEL}, "label2id": {rerank.LABEL: 0}}}
        ),
        max_input_length=min(backbone.max_tokens or most, most),
        max_text_length=min(backbone.longest_text or most, most),
        max_batch_tokens=most,
        max_client_batch_size=MAX_TEXTS,
        auto_truncate=backbone.longest_text is not None,
        version=__version__,
    )


@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show the routes and their fields, without scripts and without other servers; /openapi.json
    also has the answers.
    """
    description = request.app.openapi()
    schemas = description["components"]["schemas"]
    routes = "".join(
        f"<h2>{method.upper()} <code>{html.escape(path)}</code></h2>"
        f"<p>{html.escape(operation.get('description', ''))}</p>{_fields(operation, schemas)}"
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>runnel</title><main>'
        '<h1>runnel</h1><p>Shapes of requests and responses: <a href="/openapi.json">'
        "/openapi.json</a>, for any OpenAPI viewer."
        f" X-Runnel-Ignored names a request's fields without effect.</p>{routes}"
        "</main></html>"
    )


def _fields(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return tables of the fields of a route's body, one for each shape that it may have."""
    if "requestBody" not in operation:
        return ""
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    tables = []
    for shape in body.get("oneOf", [body]):
        fields = schemas[_type_of(shape)]
        rows = [
            f"<tr><td><code>{name}</code><td>{html.escape(_type_of(field))}"
            f"<td>{'yes' if name in fields.get('required', ()) else ''}"
            f"<td>{html.escape(field.get('description', ''))}"
            for name, field in fields["properties"].items()
        ]
        tables.append(
            f"<table><caption>{html.escape(fields['description'])}</caption>"
            f"<tr><th>Field<th>Type<th>Needed<th>Use{''.join(rows)}</table>"
        )
    return "".join(tables)


def _type_of(field: Mapping[str, Any]) -> str:
    """Return the type of a field in a few words; of an object, its name."""
    shapes = map(_type_of, field.get("oneOf") or field.get("anyOf") or ())
    values = map(json.dumps, field.get("enum") or ([field["const"]] if "const" in field else ()))
    if several := " or ".join(dict.fromkeys([*shapes, *values])):
        return several
    kind = str(field.get("$ref") or field.get("type") or "any").rpartition("/")[2]
    return f"list of {_type_of(field.get('items', {}))}" if kind == "array" else kind


def create_app(
    settings: ServerSettings, load_models: Callable[[], Loaded] | None = None
) -> FastAPI:
    """Return the application; `load_models` is called in a thread when it starts (default: `load`
    with the settings).
    """
    work = Work(settings)
    context = Context(settings, work, opened_files())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1, "load") as pool:
            context.loading = pool.submit(load_models or partial(load, settings))
            yield
            if not work.draining:
                await work.drain()
            work.close()

    # LiteLLM sends Voyage's requests without a Content-Type; pages of other sites are refused by
    # their Origin (`Guard`), whatever type they send
    app = FastAPI(
        title="runnel",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        strict_content_type=False,
        exception_handlers={
            RunnelError: _refuse,
            HTTPException: _refuse,
            RequestValidationError: _refuse_invalid,
        },
    )
    app.state.context = context
    app.state.metrics = metrics = Metrics(work)
    for routes in (
        embeddings.router,
        tei.router,
        rerank.router,
        retrieval.router,
        page.router,
        router,
    ):
        app.include_router(routes)
    app.mount("/static", StaticFiles(directory=page.STATIC))
    app.add_middleware(Guard, settings=settings, metrics=metrics)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, RunnelError):
        error = Refusal.of(error)
    if isinstance(error, Refusal):
        return error.response(request.url.path)
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = str(error.detail)
    if error.status_code == 404:
        message = (
            f"there is no route {path[:_PATH_CHARS]!r}: {_ABSENT.get(path, '/docs lists all')}"
        )
    elif error.status_code == 405:
        message = (
            f"{request.method} is not answered at {path[:_PATH_CHARS]!r}; send"
            f" {(error.headers or {}).get('Allow', 'another method')}"
        )
    elif isinstance(error.__cause__, RecursionError):
        message = (
            f"the body's JSON is nested deeper than {sys.getrecursionlimit():,} levels; send what"
            " the route's fields need (/docs)"
        )
    elif isinstance(error.__cause__, ValueError):  # of the encoding, or a number of 4,300 digits
        message = f"the body is not JSON in UTF-8 that can be read: {error.__cause__}"
    response = Refusal(_KINDS.get(error.status_code, "invalid"), message).response(path)
    response.headers.update(error.headers or {})
    return response


async def _refuse_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    of_body = _of_body(problems[0], request.headers.get("content-type", ""))
    # the first part of each place says where the field is, such as "body"
    message = of_body or describe_problems(problems, above=1)
    param = None if of_body else next(iter(field_names(problems[0]["loc"][1:])), None)
    too_long = {"too_long", "string_too_long"} & {problem["type"] for problem in problems}
    kind: RefusalKind = "too_long" if too_long else "invalid"
    return Refusal(kind, message, param=param).response(request.url.path)


def _of_body(problem: ErrorDetails, content_type: str) -> str:
    """Describe a problem of a whole body; "" if it is one of a field."""
    if not field_names(problem["loc"][1:]) and problem["type"] in _NO_OBJECT:
        if isinstance(problem["input"], bytes):
            return f"the Content-Type is {content_type!r}, expected application/json"
        return "the body is not a JSON object, {...}"
    if problem["type"] == "json_invalid":
        return f"the body is not JSON, at character {problem['loc'][-1]}: {problem['ctx']['error']}"
    return ""


class Server(LimitedServer):
    """A server that finishes its work first: while it drains, it refuses new requests with 503."""

    def __init__(self, app: FastAPI, context: Context, on_ready: Callable[[], None]) -> None:
        super().__init__(app, timeout_graceful_shutdown=5)
        self._context = context
        self._on_ready = on_ready
        self._announced = False
        self._drained: asyncio.Task[None] | None = None
        self._stop = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second. Uvicorn itself would raise the signal
        again at the end.
        """
        self.should_exit = self._stop
        self._stop = True

    async def on_tick(self, counter: int) -> bool:
        if self._context.loading.done() and not self._announced:
            if self._context.loading.exception() is not None:
                return True
            self._announced = True
            self._on_ready()
        if self._stop and self._drained is None:
            self._drained = asyncio.create_task(self._context.work.drain())
        if self.should_exit:  # the second signal
            self._context.work.stop()
        if self._drained is not None and self._drained.done():
            return True
        return await super().on_tick(counter)


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket that is bound to the address of the settings."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with errors_as(
        InputError,
        f"cannot listen on {settings.host}, port {settings.port}",
        OSError,
        advice="choose another --host or --port",
    ):
        return socket.create_server((settings.host, settings.port), family=family, backlog=WAITING)


def serve(
    app: FastAPI, sockets: list[socket.socket], on_ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGTERM or SIGINT and the end of running requests, or a second signal; raises
    what loading has raised.
    """
    context: Context = app.state.context
    Server(app, context, on_ready).run(sockets)
    if context.loading.done():
        context.loading.result()
