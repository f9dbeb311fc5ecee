"""The checks before a route, and what follows it.

    Metrics   what /metrics shows
    _Body     the body of a request while it arrives: too large, too slow, or too much with others
    Guard     middleware: before a route it checks Host, Origin and key; after it, it adds headers,
              counts the request, and logs one line

A client is a key, or without keys an address. Bytes in memory are counted by client: bodies that
have arrived (`_held`), and answers that the client has not read (`_unread`).
"""

import asyncio
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.server.connections import client_of, refuse_two_ends
from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings, address_of
from runnel.server.work import Work

log = logging.getLogger("runnel.server")
# All bodies in memory have at most this many times the limit of one body; the bodies of one client
# have at most half as many bytes.
_BODIES = 4
# a body that is this many times smaller than the limit may also use room that large ones leave free
_SMALL = 64
_BODY_S = 30.0  # the time in which a body must arrive, ...
_BODY_BYTES_PER_S = 1 << 20  # ... and a second more for each of these bytes
_SMALL_ANSWER = 1 << 16  # bytes of an answer that is not counted
_WRITTEN = 1 << 19  # bytes of an answer that are written at once
_PAGES = frozenset({"/", "/docs"})  # a link on a page of another site may open these
# an address in brackets or a name, and a port
_HOST = re.compile(r"(?:\[([^][]*)\]|([^][:]*))(?::\d*)?", re.ASCII)
PUBLIC = frozenset({"/", "/health", "/ready", "/metrics"})  # may be read without a key
# the files of the page, which anybody may read: the page asks for the key
PUBLIC_FILES = "/static/"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Metrics(Collector):
    """Counters of requests, and the state of the queue. Each server has its own registry."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        self.requests = CounterMetric(
            "runnel_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "runnel_request_seconds",
            "Seconds per request.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        work = self._work
        yield CounterMetricFamily(
            "runnel_tokens", "Tokens that the models have read.", value=work.read
        )
        for name, meaning, value in (
            ("runnel_queue_tokens", "Tokens admitted and not read yet.", work.left),
            ("runnel_tokens_per_second", "Speed while there was work.", work.tokens_per_s),
            ("runnel_requests_running", "Requests that a thread works on.", work.running),
            ("runnel_requests_waiting", "Requests that wait for a thread.", work.waiting),
        ):
            yield GaugeMetricFamily(name, meaning, value=value)

    def response(self) -> Response:
        return Response(
            generate_latest(self._registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _count(held: Counter[str], client: str, more: int) -> None:
    """Count more bytes of a client, or fewer; clients without any are forgotten."""
    held[client] += more
    if not held[client]:
        del held[client]


def _too_much(held: Counter[str], client: str, most: int, what: str) -> Refusal | None:
    """Return why nothing more fits: a client has more than `most` bytes, or all have twice that."""
    of_client = held[client]
    total = held.total()
    if of_client <= most and total <= 2 * most:
        return None
    return Refusal(
        "busy",
        f"{of_client:,} bytes of {what} of this client are in memory, {total:,} of all clients;"
        " retry later",
        retry_after_s=1,
    )


class _Body:
    """The body of one request, counted while it arrives."""

    def __init__(self, held: Counter[str], client: str, limit: int, receive: Receive) -> None:
        self._held = held
        self._client = client
        self._limit = limit
        self._receive = receive
        self._arrived = 0
        self._complete = False
        self._began = time.monotonic()
        self.bytes = 0  # the bytes of this body in memory

    def count(self, more: int) -> None:
        """Count more bytes in memory, or fewer."""
        self.bytes += more
        _count(self._held, self._client, more)

    def _refusal(self) -> Refusal | None:
        """Return why the bytes are too many."""
        if self.bytes > self._limit:
            return Refusal(
                "too_large", f"the body has more than {self._limit:,} bytes; send several requests"
            )
        # reserved for small requests, so that questions are answered during large uploads
        spare = self._limit // 2 if self.bytes <= self._limit // _SMALL else 0
        return _too_much(self._held, self._client, _BODIES // 2 * self._limit + spare, "requests")

    async def receive(self) -> Message:
        """Receive as the server does; refuse a body that is too slow, or too large alone or with
        others.

        The rest of a large one is read and dropped, up to twice the limit: a client that still
        sends would not read the response.
        """
        message = await self._next()
        size = len(message.get("body", b""))
        self.count(size)
        refusal = self._refusal()
        if refusal is None:
            return message
        self.count(-size)  # dropped: bodies that are refused take no room of others
        while message.get("more_body") and self._arrived < 2 * self._limit:
            message = await self._next()
        raise refusal

    async def _next(self) -> Message:
        if self._complete:  # the next message says that the client has left
            return await self._receive()
        ends = self._began + _BODY_S + self._arrived / _BODY_BYTES_PER_S
        try:
            async with asyncio.timeout(ends - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                "slow",
                f"{self._arrived:,} bytes of the body arrived in"
                f" {time.monotonic() - self._began:.0f} s; expected all of it within"
                f" {_BODY_S:g} s, and a second more for each {_BODY_BYTES_PER_S:,} bytes; send it"
                " again",
            ) from None
        self._arrived += len(message.get("body", b""))
        self._complete = not message.get("more_body")
        return message


class Guard:
    """ASGI middleware around the whole application.

    Host and Origin are checked against DNS rebinding: a page of another site that resolves its own
    name to this server's address sends that name as Host. An IP address cannot be rebound.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        self._held: Counter[str] = Counter()  # bytes of bodies in memory, by client
        self._unread: Counter[str] = Counter()  # bytes of answers in memory, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        dropped = False
        headers = Headers(scope=scope)
        address = client_of(scope["client"][0] if scope.get("client") else "")
        client = headers.get("authorization", "") if self._keys else address
        body = _Body(self._held, client, self._settings.max_body_bytes, receive)
        # routes answer GET alone; uvicorn leaves the content out
        asked = dict(scope, method="GET") if scope["method"] == "HEAD" else scope

        async def respond(message: Message) -> None:
            nonlocal status, dropped
            if dropped:
                return
            if message["type"] != "http.response.start":
                await self._write(client, message, send)
                return
            answer_headers = MutableHeaders(scope=message)
            large = int(answer_headers.get("content-length", 0)) > _SMALL_ANSWER
            refusal = _too_much(
                self._unread,
                client,
                _BODIES // 2 * self._settings.max_body_bytes,
                "unread answers",
            )
            if large and refusal is not None:  # the refusal is sent in place of an answer
                await refusal.response(scope["path"])(scope, receive, respond)
                dropped = True
                return
            status = message["status"]
            answer_headers.update(_HEADERS)
            if ignored := scope["state"].get("ignored"):
                answer_headers["X-Runnel-Ignored"] = ", ".join(ignored)
            await send(message)

        try:
            refusal = refuse_two_ends(headers.keys()) or self._refusal(
                scope["method"], scope["path"], headers
            )
            if refusal is not None:
                await refusal.response(scope["path"])(scope, receive, respond)
            else:
                await self._app(asked, body.receive, respond)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                refusal = Refusal("failed", "the server failed; its log has the reason")
                await refusal.response(scope["path"])(scope, receive, respond)
        finally:
            body.count(-body.bytes)
            # not the path itself: clients choose it
            path = getattr(asked.get("route"), "path", "other")
            seconds = time.perf_counter() - started
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            log.info(
                {
                    "method": scope["method"],
                    "path": path,
                    "status": status,
                    "seconds": round(seconds, 4),
                    "tokens": scope["state"].get("tokens", 0),
                }
            )

    def _refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2] or "").lower() if match else ""
        if name not in self._names and address_of(name) is None:
            return Refusal(
                "forbidden",
                f"the Host {host!r} is not served here; start the server with --allow-host"
                f" {name or 'NAME'}",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Refusal(
                "forbidden",
                f"requests of pages from {origin!r} are not answered; only this server's own"
                " may ask",
            )
        reads = method in ("GET", "HEAD")
        site = headers.get("sec-fetch-site", "none")
        opens = reads and path in _PAGES and headers.get("sec-fetch-mode") == "navigate"
        if site not in ("none", "same-origin") and not opens:
            return Refusal(
                "forbidden",
                f"{site} requests are not answered; only this server's own pages may ask",
            )
        public = reads and (path in PUBLIC or path.startswith(PUBLIC_FILES))
        if self._keys and not public:
            given = headers.get("authorization", "").encode("latin-1")
            # All keys are compared, each in constant time, so that the time says nothing about
            # them.
            if not sum(hmac.compare_digest(given, b"Bearer " + key) for key in self._keys):
                return Refusal(
                    "unauthorized",
                    "send a valid API key as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                )
        return None

    async def _write(self, client: str, message: Message, send: Send) -> None:
        """Send a part of an answer; a large one in pieces, unread until the last is written: `send`
        waits until what was sent before has left (the buffer of connections.py has limit 0).
        """
        body = message.get("body", b"")
        if len(body) <= _SMALL_ANSWER:
            await send(message)
            return
        _count(self._unread, client, len(body))
        try:
            for start in range(0, len(body), _WRITTEN):
                await send(
                    {
                        "type": "http.response.body",
                        "body": body[start : start + _WRITTEN],
                        "more_body": True,
                    }
                )
            await send({**message, "body": b""})
        finally:
            _count(self._unread, client, -len(body))
