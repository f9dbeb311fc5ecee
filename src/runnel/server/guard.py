"""The checks before a route: Host, Origin, key, size and speed of the body; and after it: headers, metrics, one log line."""

from __future__ import annotations

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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.server.refusals import Refusal
from runnel.server.settings import ServerSettings, address_of
from runnel.server.work import Work

log = logging.getLogger("runnel.server")
_BODIES = 4  # all bodies in memory have at most this many times the limit of one, those of one client half of that
_SMALL = 64  # a body that is this many times smaller than the limit may also use room that large ones leave free
_BODY_S = 30.0  # a body has this long to arrive, and then a second for each of so many bytes:
_BODY_BYTES_PER_S = 1 << 20
_HOST = re.compile(r"(?:\[([^][]*)\]|([^][:]*))(?::\d*)?", re.ASCII)  # an address in brackets or a name, and a port
PUBLIC = frozenset({"/", "/health", "/ready", "/metrics"})  # may be read without a key
PUBLIC_FILES = "/static/"  # of the page, which asks for the key
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
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
        self._held: Counter[str] = Counter()  # bytes of bodies in memory, by client

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

        headers = Headers(scope=scope)
        address = scope["client"][0] if scope.get("client") else ""
        body = _Body(self, headers.get("authorization", "") if self._keys else address, receive)
        try:
            refusal = self._refusal(scope["method"], scope["path"], headers)
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
            body.count(-body.bytes)
            path = getattr(scope.get("route"), "path", "other")  # not the path itself: clients choose it
            seconds = time.perf_counter() - started
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            facts = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 4)}
            log.info(facts | {"tokens": scope["state"].get("tokens", 0)})

    def _refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2] or "").lower() if match else ""
        if name not in self._names and address_of(name) is None:
            advice = f"start the server with --allow-host {name or 'NAME'}"
            return Refusal("forbidden", f"the Host {host!r} is not served here; {advice}")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Refusal("forbidden", f"requests of pages from {origin!r} are not answered; only this server's own may ask")
        public = method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_FILES))
        if self._keys and not public:
            given = headers.get("authorization", "").encode("latin-1")
            # All keys are compared, each in constant time, so that the time says nothing about them.
            if not sum(hmac.compare_digest(given, b"Bearer " + key) for key in self._keys):
                return Refusal("unauthorized", "send a valid API key as 'Authorization: Bearer KEY'", code="invalid_api_key")
        return None


class _Body:
    """The body of one request, counted while it arrives."""

    def __init__(self, guard: Guard, client: str, receive: Receive) -> None:
        self._held, self._client, self._receive = guard._held, client, receive
        self._limit = guard._settings.max_body_bytes
        self._arrived, self._whole, self._began = 0, False, time.monotonic()
        self.bytes = 0  # in memory

    def count(self, more: int) -> Refusal | None:
        """Count more bytes, or fewer; return why they are too many."""
        self.bytes += more
        self._held[self._client] += more
        if not self._held[self._client]:
            del self._held[self._client]
        if more <= 0:
            return None
        if self.bytes > self._limit:
            return Refusal("too_large", f"the body has more than {self._limit:,} bytes; send several requests")
        spare = self._limit // 2 if self.bytes <= self._limit // _SMALL else 0  # for questions beside large uploads
        most = _BODIES // 2 * self._limit + spare
        if self._held.total() > 2 * most:
            return Refusal("busy", "too many large requests arrive at once; retry later", retry_after_s=1)
        if self._held[self._client] > most:
            return Refusal("busy", "this client sends too many large requests at once; retry later", retry_after_s=1)
        return None

    async def receive(self) -> Message:
        """Receive as the server does; refuse a body that is too slow, or too large alone or with others.

        The rest of a large one is read and dropped, up to twice the limit: a client that still sends would not read the response.
        """
        message = await self._next()
        size = len(message.get("body", b""))
        refusal = self.count(size)
        if refusal is None:
            return message
        self.count(-size)  # dropped: bodies that are refused take no room of others
        while message.get("more_body") and self._arrived < 2 * self._limit:
            message = await self._next()
        raise refusal

    async def _next(self) -> Message:
        if self._whole:  # what comes next is that the client leaves
            return await self._receive()
        ends = self._began + _BODY_S + self._arrived / _BODY_BYTES_PER_S
        try:
            async with asyncio.timeout(ends - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            came = f"{self._arrived:,} bytes of the body arrived in {time.monotonic() - self._began:.0f} s"
            expected = f"all of it within {_BODY_S:g} s, and a second more for each {_BODY_BYTES_PER_S:,} bytes"
            raise Refusal("slow", f"{came}; expected {expected}; send it again") from None
        self._arrived += len(message.get("body", b""))
        self._whole = not message.get("more_body")
        return message


class Metrics(Collector):
    """Counters of requests, and the state of the queue. Each server has its own registry."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        self.requests = CounterMetric("runnel_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram("runnel_request_seconds", "Seconds per request.", ["route"], buckets=_BUCKETS, registry=registry)

    def collect(self) -> Iterator[Metric]:
        work = self._work
        yield CounterMetricFamily("runnel_tokens", "Tokens that the models have read.", value=work.read)
        yield GaugeMetricFamily("runnel_queue_tokens", "Tokens admitted and not read yet.", value=work.left)
        yield GaugeMetricFamily("runnel_tokens_per_second", "Speed while there was work.", value=work.tokens_per_s)
        yield GaugeMetricFamily("runnel_requests_running", "Requests that a thread works on.", value=work.running)
        yield GaugeMetricFamily("runnel_requests_waiting", "Requests that wait for a thread.", value=work.waiting)

    def text(self) -> bytes:
        return generate_latest(self._registry)
