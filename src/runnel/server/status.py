"""The state of the server: /health, /ready, /metrics, /info in the shape of text-embeddings-inference (TEI), and /docs."""

from __future__ import annotations

import html
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse, Response

from runnel import __version__
from runnel.server.context import MAX_TEXTS, InContext
from runnel.server.guard import CONTENT_TYPE
from runnel.server.refusals import error_responses

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
    model_type: dict[Literal["embedding"], dict[Literal["pooling"], str]] | None
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
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
    return Response(request.app.state.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/info", responses=error_responses("/info"))
async def info(context: InContext) -> Info:
    """Return facts of the model, in TEI's shape."""
    loaded, settings = context.loaded(), context.settings
    longest = loaded.model.backbone.longest_text
    return Info(
        model_id=loaded.name,
        model_sha=loaded.fingerprint,
        model_dtype=settings.dtype,
        served_model_name=loaded.name,
        model_type={"embedding": {"pooling": loaded.embedder.pooling}} if "embed" in loaded.model.heads else None,
        max_input_length=longest or settings.max_request_tokens,
        max_batch_tokens=settings.max_request_tokens,
        max_client_batch_size=MAX_TEXTS,
        auto_truncate=longest is not None,
        version=__version__,
    )


@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show the routes, without scripts and without other servers; /openapi.json has the details."""
    rows = [
        f"<tr><td>{method.upper()}<td><code>{html.escape(path)}</code><td>{html.escape(operation.get('description', ''))}"
        for path, methods in request.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>runnel</title><h1>runnel</h1>'
        '<p>Shapes of requests and responses: <a href="/openapi.json">/openapi.json</a>, for any OpenAPI viewer.</p>'
        f"<table><tr><th>Method<th>Path<th>What it does{''.join(rows)}</table></html>"
    )
