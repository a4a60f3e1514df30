"""Metrics for Prometheus, under the names of keuss-server.

`keuss_q_*`: messages that this server pushed, popped and settled, under the names of keuss-server
and, as Prometheus wants it, with `_total`. `http_request_duration_seconds`: how long requests took.
Those that are read from the stores are in `looks/`: `q_global_*`, sizes and counters of queues, and
`keuss_exchange_hops`, messages of exchanges and how long their batch took (ms).

Callers can make up names of queues. So counters name the first ones only, and the others together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_queue.rest.looks.queue_metrics import MAX_QUEUES, OTHERS

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

#: Acts of messages that are counted.
COUNTED = ("push", "pop", "reserve", "commit", "rollback")

#: Methods that the durations of requests name.
METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"})


class ServerMetrics:
    """The metrics of one server: what it did itself."""

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        """`max_queues`: how many queues have their own names."""
        self._registry, self._max_queues = CollectorRegistry(), max_queues
        self._acts = {
            act: Counter(
                f"keuss_q_{act}", f"Messages of {act} over HTTP, by outcome", ("proto", "ns", "q", "status"),
                registry=self._registry,
            )
            for act in COUNTED
        }  # fmt: skip
        self._registry.register(KeussNames(self._acts.values()))
        self.requests = Histogram(
            "http_request_duration_seconds", "Duration of requests", ("method", "route", "status"),
            buckets=DURATION_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._queues: set[tuple[str, str]] = set()

    def count(self, act: str, ns: str, queue: str, status: str, messages: int) -> None:
        """Count outcomes of messages."""
        if (ns, queue) not in self._queues:
            if len(self._queues) < self._max_queues:
                self._queues.add((ns, queue))
            else:
                queue = OTHERS
        self._acts[act].labels("rest", ns, queue, status).inc(messages)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' format."""
        return generate_latest(self._registry)


class KeussNames(Collector):
    """A collector that repeats counters under the names of keuss, which have no `_total`."""

    def __init__(self, counters: Iterable[Counter]) -> None:
        self._counters = list(counters)

    def describe(self) -> Iterable[Metric]:
        """Return no names: they may be taken by the counters."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the counters."""
        for counter in self._counters:
            for one in counter.collect():
                again = Metric(one.name, one.documentation, "unknown")
                for sample in one.samples:
                    if sample.name.endswith("_total"):
                        again.add_sample(one.name, sample.labels, sample.value)
                yield again


class TimingMiddleware:
    """Middleware that measures every request, by method, route and status."""

    def __init__(self, app: ASGIApp, meters: ServerMetrics) -> None:
        self._app, self._meters = app, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and record its duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self._meters.requests.time() as timer:
            try:
                await self._app(scope, receive, sending)
            finally:
                method = scope["method"] if scope["method"] in METHODS else OTHERS
                timer.labels(method, getattr(scope.get("route"), "path", ""), status)
