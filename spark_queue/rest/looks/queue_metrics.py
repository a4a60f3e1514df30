"""Metrics of queues, read from the stores: sizes and counters, under the names of keuss-server.

A server may have a hundred thousand queues. So only the busiest have their own names, and the
others are summed: an answer then has a bounded size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from spark_queue.errors import QueueError
from spark_queue.stores.base import Store
from spark_queue.stores.support.counters import ACTS, Statistics
from spark_queue.stores.types import Sizes

#: Most queues that metrics name by default, and the name of all others.
MAX_QUEUES, OTHERS = 1_000, "__other__"

#: The numbers of a queue, by the names of keuss-server.
SIZES = {
    "size": "Messages that are ready",
    "totalSize": "All messages",
    "schedSize": "Scheduled messages: due later",
    "resvSize": "Reserved messages",
    "next_t": "Milliseconds until a message is ready; 0 or less if one is ready now",
    "paused": "1 if the queue is paused; of several queues: how many are",
}

#: The number that makes no sum.
NOT_SUMMED = "next_t"


def queue_status(store: Store, queue: str) -> dict[str, Any]:
    """Return the sizes and counters of a queue, under the names of keuss."""
    return _status(store.sizes(queue), store.statistics(queue))


def queue_statuses(store: Store) -> dict[str, dict[str, Any]]:
    """Return the same of all queues, by name. The database gets one request for many queues."""
    counted = store.all_statistics()
    return {
        queue: _status(sizes, counted.get(queue, Statistics()))
        for queue, sizes in store.sizes_of(store.queues()).items()
    }


def _status(sizes: Sizes, counted: Statistics) -> dict[str, Any]:
    return {
        "size": sizes.ready,
        "totalSize": sizes.total,
        "schedSize": sizes.scheduled,
        "resvSize": sizes.reserved,
        "next_t": sizes.next_mature,
        "paused": counted.paused,
        "stats": {act: getattr(counted, act) for act in ACTS},
    }


class QueueCollector(Collector):
    """A collector that reads the sizes and counters of queues from the stores.

    The `most` busiest queues have their names: those with the largest sum of counters. The others
    of a namespace are summed under the name OTHERS.
    """

    def __init__(self, stores: Mapping[str, Store], most: int) -> None:
        self._stores, self._most = stores, most
        self.away: set[str] = set()  #: the stores that could not be reached at the last `collect`

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of every store. A store that cannot be reached has `q_global_up` 0."""
        texts = SIZES | {act: f"Messages of {act} by all programs, since the queue exists" for act in ACTS}
        families = {
            name: GaugeMetricFamily(f"q_global_{name}", text, labels=("ns", "q")) for name, text in texts.items()
        }
        up = GaugeMetricFamily("q_global_up", "1 if the database of the namespace answers", labels=("ns",))
        counted: dict[tuple[str, str], Statistics] = {}
        reachable: dict[str, Store] = {}
        for ns, store in self._stores.items():
            try:
                known = store.all_statistics()
                counted |= {(ns, queue): known.get(queue, Statistics()) for queue in store.queues()}
                reachable[ns] = store
            except QueueError:
                pass
        named = set(nlargest(self._most, counted, lambda place: (_activity(counted[place]), place)))
        others: dict[str, Counter[str]] = {}
        for ns, store in reachable.items():
            try:
                sizes = store.sizes_of(queue for own, queue in counted if own == ns)
                found = [(queue, _status(one, counted[ns, queue])) for queue, one in sizes.items()]
            except QueueError:
                up.add_metric((ns,), 0)
                continue
            up.add_metric((ns,), 1)
            for queue, facts in found:
                values = facts | facts["stats"]
                if (ns, queue) not in named:
                    rest = others.setdefault(ns, Counter())
                    rest.update({name: int(values[name]) for name in families if name != NOT_SUMMED})
                    continue
                for name, family in families.items():
                    if values[name] is not None:
                        family.add_metric((ns, queue), float(values[name]))
        self.away = self._stores.keys() - reachable.keys()
        for ns in self.away:
            up.add_metric((ns,), 0)
        for ns, rest in others.items():
            for name, total in rest.items():
                families[name].add_metric((ns, OTHERS), float(total))
        yield up
        yield from families.values()


def _activity(counted: Statistics) -> int:
    return sum(getattr(counted, act) for act in ACTS)
