"""The checks before a route: Host, Origin, key and body limit; and after it: headers, metrics, one log line."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.server.metrics import Metrics
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings

log = logging.getLogger("runnel.server")
_BODIES = 4  # all bodies in memory have at most this many times the limit of one
PUBLIC = frozenset({"/", "/health", "/ready", "/metrics"})  # may be read without a key
PUBLIC_FILES = "/static/"  # of the page, which asks for the key
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around the whole application.

    Host and Origin are checked against DNS rebinding: a page of another site that resolves its own name to this server's
    address sends that name as Host. An IP address cannot be rebound.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        self._held = 0  # bytes of all bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        scope.setdefault("state", {})

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        body = _Body(self, scope, receive)
        try:
            refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
            if refusal is not None:
                await refusal.response(scope["path"])(scope, receive, respond)
            else:
                await self._app(scope, body.receive, respond)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                failed = Refusal("failed", "the server failed; its log has the reason")
                await failed.response(scope["path"])(scope, receive, respond)
        finally:
            self._held -= body.bytes
            self._note(scope, status, time.perf_counter() - started)

    def _refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        name = _host_name(host)
        if name not in self._names and not _is_address(name):
            return Refusal(
                "forbidden", f"the Host {host!r} is not served here; start the server with --allow-host {name or 'NAME'}"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Refusal(
                "forbidden", f"requests of pages from {origin!r} are not answered; only this server's own page may ask"
            )
        public = method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_FILES))
        if self._keys and not public:
            given = headers.get("authorization", "").encode("latin-1")
            # All keys are compared, each in constant time, so that the time says nothing about them.
            if not sum(hmac.compare_digest(given, b"Bearer " + key) for key in self._keys):
                return Refusal("unauthorized", "send a valid API key as 'Authorization: Bearer KEY'", code="invalid_api_key")
        return None

    def _note(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")  # not the path itself: clients choose it
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        facts = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 4)}
        log.info(facts | {"tokens": scope["state"].get("tokens", 0)})


class _Body:
    """The body of one request, counted while it arrives."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._limit = guard._settings.max_body_bytes
        self.bytes = 0

    async def receive(self) -> Message:
        """Receive as the server does.

        Raises:
            Refusal: the body exceeds the limit, or all bodies together do. The rest of the body has been read and dropped, up to
                twice the limit: a client that is still sending would not read the response.
        """
        message = await self._receive()
        size = len(message.get("body", b""))
        self.bytes += size
        self._guard._held += size
        if self.bytes <= self._limit and self._guard._held <= _BODIES * self._limit:
            return message
        too_large = self.bytes > self._limit
        dropped = self.bytes
        while message.get("more_body") and dropped < 2 * self._limit:
            message = await self._receive()
            dropped += len(message.get("body", b""))
        if too_large:
            raise Refusal("too_large", f"the body has more than {self._limit:,} bytes; send several requests")
        raise Refusal("busy", "too many large requests arrive at once; retry later", retry_after_s=1)


def _host_name(host: str) -> str:
    """Return the name or address of a Host header, without brackets and port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
