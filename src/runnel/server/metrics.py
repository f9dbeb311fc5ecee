"""Metrics of the server in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runnel.server.work import Work

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class _Queue(Collector):
    """The state of the work, read when metrics are asked for."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def collect(self) -> Iterator[Metric]:
        work = self._work
        yield CounterMetricFamily("runnel_tokens", "Tokens that the models have read.", value=work.read)
        yield GaugeMetricFamily("runnel_queue_tokens", "Tokens admitted and not read yet.", value=work.left)
        yield GaugeMetricFamily("runnel_tokens_per_second", "Speed while there was work.", value=work.tokens_per_s)
        yield GaugeMetricFamily("runnel_requests_running", "Requests that a thread works on.", value=work.running)
        yield GaugeMetricFamily("runnel_requests_waiting", "Requests that wait for a thread.", value=work.waiting)


class Metrics:
    """Counters of requests, and the state of the queue. Each server has its own registry."""

    def __init__(self, work: Work) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Queue(work))
        self.requests = Counter("runnel_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram("runnel_request_seconds", "Seconds per request.", ["route"], buckets=_BUCKETS, registry=registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)
