"""The metrics that are read from the stores: those of queues, and of exchanges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from spark_queue.errors import QueueError
from spark_queue.rest.looks.contents import Contents
from spark_queue.rest.looks.queue_metrics import QueueCollector
from spark_queue.runner.declared import DeclaredExchanges
from spark_queue.runner.traffic import HOP_BOUNDS, Traffic, traffic_of
from spark_queue.stores.base import Store


def render_metrics(contents: Contents, max_queues: int) -> bytes:
    """Return the metrics in Prometheus' format; `max_queues` queues have their own names.

    It is a look without a budget: one is computed at a time, for all callers.
    """
    registry = CollectorRegistry()
    queues = QueueCollector(contents.stores, max_queues)
    registry.register(queues)  # the first one: the other does not wait for stores that it has missed
    registry.register(HopCollector(contents.declared, contents.stores, lambda: queues.away))
    return generate_latest(registry)


class HopCollector(Collector):
    """A collector that reads the hops of messages through exchanges from the stores."""

    def __init__(
        self, declared: DeclaredExchanges, stores: Mapping[str, Store], get_away: Callable[[], Collection[str]]
    ) -> None:
        """`get_away` returns the names of stores that are known to be away."""
        self._declared, self._stores, self._get_away = declared, stores, get_away

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram. What cannot be read is left out: see `q_global_up`."""
        found = HistogramMetricFamily(
            "keuss_exchange_hops",
            "Duration of a hop of a message through an exchange (ms): of its batch, from start to end",
            labels=("exchange", "status"),
        )
        with suppress(QueueError):
            away = self._get_away()
            for name, one in self._declared.load(patient=True, away=away).items():
                if one.ns not in away:
                    with suppress(QueueError):
                        _add_hops(found, name, traffic_of(self._stores[one.ns], name) or Traffic())
        yield found


def _add_hops(found: HistogramMetricFamily, name: str, traffic: Traffic) -> None:
    for outcome, milliseconds in traffic.hop_milliseconds.items():
        counts = [traffic.hops[f"{outcome}/{bound}"] for bound in (*HOP_BOUNDS, "+Inf")]
        bounds = map(str, (*HOP_BOUNDS, "+Inf"))
        buckets = [(bound, float(total)) for bound, total in zip(bounds, accumulate(counts), strict=True)]
        found.add_metric((name, outcome), buckets, float(milliseconds))
