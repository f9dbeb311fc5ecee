"""Serve the application until a signal: bind first, drain on SIGTERM, exit with code 0."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from runnel.errors import InputError
from runnel.server.context import Context
from runnel.server.settings import ServerSettings


class Server(uvicorn.Server):
    """Uvicorn that finishes its work first: while it drains, it still listens and refuses new requests with 503."""

    def __init__(self, app: FastAPI, context: Context, on_ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
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
    try:
        return socket.create_server(
            (settings.host, settings.port), family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET, backlog=512
        )
    except OSError as error:
        reason = f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}"
        raise InputError(f"{reason}; choose another --host or --port") from error


def serve(app: FastAPI, sockets: list[socket.socket], on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT and the end of running requests, or a second signal; raises what loading has raised."""
    context: Context = app.state.context
    Server(app, context, on_ready).run(sockets)
    if context.loading.done():
        context.loading.result()
