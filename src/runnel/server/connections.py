"""Limits of connections, of `runnel serve` and of the HTTP server of `runnel mcp`.

    Connection                limits the time for headers and for reading an answer, and makes room
                              for a new connection by closing the oldest idle one
    refuse_two_ends           refuses a request that says twice where its body ends
    with_unambiguous_bodies   does so for an application without `Guard`
    LimitedServer             uvicorn's server whose connections are of the class `Connection`

uvicorn limits only the time between requests; its setting `http` takes a protocol class with more.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection
from typing import Literal

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from runnel.server.refusals import Refusal
from runnel.server.settings import address_of

HEADERS_S = 10.0  # from a connection's start, or a later request's first byte, to their end
IDLE_S = 60  # between two requests
UNREAD_S = 60.0  # the longest time for a client to read the bytes of one write
MOST = 1024  # connections; fewer if half of the files that this process may open are fewer
MOST_OF_CLIENT = 256  # connections of one client, and at most half of all
WAITING = 512  # connections that the system keeps until they are accepted
_ACCEPTED = 16  # connections accepted in a row, before the first of them can be closed


class Connection(H11Protocol):
    """A connection with limits; its parser is h11, also where uvicorn would choose another."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` is called while anything is unread
        self.host = client_of(self.client[0] if self.client else "")
        self.began = self.loop.time()
        self._headers_timer = self.loop.call_later(HEADERS_S, transport.abort)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._headers_timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # while a request is being answered, its headers have come; other bytes begin new headers
        if self.cycle is not None and not self.cycle.response_complete:
            self._headers_timer.cancel()
        elif self._headers_timer.cancelled():
            self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_timer.cancel()

    @property
    def busy(self) -> bool:
        """Return whether a complete request has arrived and its answer has not been written."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _make_room(self) -> None:
        """Close the oldest connection that is not busy if there are too many."""
        connections = [each for each in self.connections if isinstance(each, Connection)]
        counts = Counter(each.host for each in connections)
        most = most_connections()
        crowded = counts[self.host] > min(MOST_OF_CLIENT, most // 2)
        if crowded or len(connections) > most:
            # of a client with too many, its own; else, of the client with the most, the oldest;
            # among idle connections, the new one included
            idle = (
                each
                for each in connections
                if not each.busy and (each.host == self.host or not crowded)
            )
            oldest = max(idle, key=lambda each: (counts[each.host], -each.began))
            oldest.transport.abort()
            self.connections.discard(oldest)  # others may begin before its connection_lost


def most_connections() -> int:
    """Return how many connections leave half of the open files to models and indexes."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)


def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    ip = address_of(address)
    if ip is None:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.packed[:8].hex()


def refuse_two_ends(names: Collection[str]) -> Refusal | None:
    """Return why a request with headers of these names is refused: with both lengths, a proxy might
    find the end of its body elsewhere.
    """
    if "content-length" in names and "transfer-encoding" in names:
        return Refusal(
            "ambiguous", "Content-Length and Transfer-Encoding both end the body; send one of them"
        )
    return None


def with_unambiguous_bodies(app: ASGIApp) -> ASGIApp:
    """Return an application without checks of its own that refuses a body with two ends."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        names = Headers(scope=scope).keys() if scope["type"] == "http" else ()
        refusal = refuse_two_ends(names)
        answer = app if refusal is None else refusal.response(scope["path"])
        await answer(scope, receive, send)

    return checked


class LimitedServer(uvicorn.Server):
    """uvicorn's server for an application whose connections have these limits."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        lifespan: Literal["auto", "on", "off"] = "auto",
        timeout_graceful_shutdown: int | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                timeout_keep_alive=IDLE_S,
                backlog=_ACCEPTED,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan=lifespan,
                timeout_graceful_shutdown=timeout_graceful_shutdown,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(WAITING)  # asyncio takes `backlog` for both numbers
