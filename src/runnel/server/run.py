"""Serve the application until a signal: bind first, drain on SIGTERM, exit with code 0."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from runnel.errors import InputError, errors_as
from runnel.server.context import Context
from runnel.server.settings import ServerSettings


class Server(uvicorn.Server):
    """Uvicorn that finishes its work first: while it drains, it still listens and refuses new requests with 503."""

    def __init__(self, app: FastAPI, context: Context, on_ready: Callable[[], None]) -> None:
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
        super().__init__(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=5, **quiet))
        self._context, self._on_ready = context, on_ready
        self._announced = False
        self._drained: asyncio.Task[None] | None = None
        self._stop = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second. Uvicorn itself would raise the signal again at the end."""
        self.should_exit, self._stop = self._stop, True

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
    address, family = (settings.host, settings.port), socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    problem = f"cannot listen on {settings.host}, port {settings.port}"
    with errors_as(InputError, problem, OSError, advice="choose another --host or --port"):
        return socket.create_server(address, family=family, backlog=512)


def serve(app: FastAPI, sockets: list[socket.socket], on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT and the end of running requests, or a second signal; raises what loading has raised."""
    context: Context = app.state.context
    Server(app, context, on_ready).run(sockets)
    if context.loading.done():
        context.loading.result()
