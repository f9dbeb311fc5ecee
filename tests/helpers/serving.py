"""A server in a thread of this process, on a free port."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from helpers.children import GIVE_UP_S

from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.server.app import Server, bind, create_app
from runnel.server.context import Loaded
from runnel.server.settings import ServerSettings


class Client(httpx.Client):
    """A client that knows its server."""

    app: FastAPI
    server: Server


@contextmanager
def serving(
    model: str | Model = "pocket",
    *,
    name: str = "pocket",
    index: str | Path | None = None,
    go: threading.Event | None = None,
    **limits: Any,
) -> Iterator[Client]:
    """Yield a client of a server for a model (a name, or a `Model`), which has loaded it, or will
    once `go` is set. The server drains at the end.
    """
    settings = ServerSettings(
        model=name, port=0, index=None if index is None else str(index), **limits
    )
    held = load_model(model, arrays=True) if isinstance(model, str) else model

    def load() -> Loaded:
        assert go is None or go.wait(GIVE_UP_S)
        return Loaded(name, held, settings.index)

    app = create_app(settings, load)
    socket = bind(settings)
    ready = threading.Event()
    server = Server(app, app.state.context, ready.set)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        assert go is not None or ready.wait(GIVE_UP_S)
        with Client(
            base_url=f"http://127.0.0.1:{socket.getsockname()[1]}",
            timeout=GIVE_UP_S,
            trust_env=False,
        ) as client:
            client.app, client.server = app, server
            yield client
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(GIVE_UP_S)
    assert not thread.is_alive()
