"""Sizes of queues, and their rates of change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_queue.admin.common import moment_of, open_existing
from spark_queue.errors import OptionError, QueueError
from spark_queue.options.queue_names import dead_letter_queue, is_dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.log.log import find_retained
from spark_queue.stores.types import Sizes

if TYPE_CHECKING:  # needs the extra `graph`
    from spark_queue.graph.model import Graph, Place

#: The counters of `Store.statistics`.
COUNTERS = ("put", "get", "reserve", "commit", "rollback", "deadletter")


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The numbers of messages of a queue by state, and whether it is paused.

    `dead`: the size of `<queue>.dead`. `oldest`: seconds since the first message became ready,
    `None` if none is. `retained`: the messages that its log retains, which `reserved` does not
    count.
    """

    queue: str
    ready: int
    scheduled: int
    reserved: int
    dead: int
    oldest: float | None
    paused: bool
    retained: int = 0

    @property
    def total(self) -> int:
        """The number of messages, without dead letters."""
        return self.ready + self.scheduled + self.reserved + self.retained


@dataclass(frozen=True, slots=True)
class QueueRates:
    """The sizes of a queue at a moment, and its rates since the last update.

    The moment is by the database's clock. In messages per second: `pushed` to the queue, `done`
    (they left it for good), and the `change` of its size. Rates are `None` in the first update.
    `pushed` and `done` are also `None` if the queue has no counters.
    """

    at: datetime
    summary: QueueSummary
    pushed: float | None
    done: float | None
    change: float | None


def sizes(url: str, queues: Sequence[str] = ()) -> list[QueueSummary]:
    """Return the sizes of queues, by default of all.

    Raises `OptionError` if one of `queues` does not exist.
    """
    with open_existing(url) as store:
        for queue in queues:
            store.check_queue(queue)
            check_exists(store, queue)
        return _load_summaries(store, queues)


def _load_summaries(store: Store, queues: Sequence[str]) -> list[QueueSummary]:
    return [_load_summary(store, queue) for queue in queues or store.queues()]


def _load_summary(store: Store, queue: str) -> QueueSummary:
    own_sizes = store.sizes(queue)
    dead = 0 if is_dead_letter_queue(queue) else store.sizes(dead_letter_queue(queue)).total
    oldest = None if own_sizes.oldest_ready_age is None else own_sizes.oldest_ready_age / 1000
    log = find_retained(store, queue)
    retained_rows = 0 if log is None else min(log.end - log.first, own_sizes.reserved)  # it may be growing just now
    return QueueSummary(
        queue,
        own_sizes.ready,
        own_sizes.scheduled,
        own_sizes.reserved - retained_rows,
        dead,
        oldest,
        store.is_paused(queue),
        retained_rows,
    )


def statistics(url: str, queues: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the COUNTERS of queues, by default of all, and whether each is `paused`."""
    with open_existing(url) as store:
        for queue in queues:
            store.check_queue(queue)
        return _load_counters(store, queues)


def _load_counters(store: Store, queues: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {queue: store.statistics(queue) for queue in queues} if queues else store.all_statistics()
    return {
        queue: {name: getattr(one, name) for name in (*COUNTERS, "paused")} for queue, one in sorted(found.items())
    }


def watch(url: str, queues: Sequence[str] = (), *, interval: float = 2.0) -> Iterator[list[QueueRates]]:
    """Yield the sizes and rates of queues every `interval` seconds, without end.

    By default of all queues. The queues need not exist yet. Raises `OptionError` if `interval` is
    not 0.1 seconds to a day.
    """
    if not 0.1 <= interval <= 86_400:
        raise OptionError(f"interval must be 0.1 seconds to a day, not {interval}", option="interval")
    with open_existing(url) as store:
        for queue in queues:
            store.check_queue(queue)
        before: dict[str, tuple[float, QueueSummary, dict[str, Any] | None]] = {}
        due = time.monotonic()
        while True:
            moment, now = moment_of(store.now()), time.monotonic()
            summaries = _load_summaries(store, queues or sorted({*store.queues(), *before}))
            counters = _load_counters(store, queues)
            rates = []
            for summary in summaries:
                rates.append(
                    _compute_rates(moment, now, summary, counters.get(summary.queue), before.get(summary.queue))
                )
                before[summary.queue] = now, summary, counters.get(summary.queue)
            yield rates
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _compute_rates(
    at: datetime,
    now: float,
    summary: QueueSummary,
    counters: dict[str, Any] | None,
    before: tuple[float, QueueSummary, dict[str, Any] | None] | None,
) -> QueueRates:
    if before is None:
        return QueueRates(at, summary, None, None, None)
    previous_time, previous_summary, previous_counters = before
    elapsed = max(now - previous_time, 1e-3)
    pushed = done = None
    if counters is not None and previous_counters is not None:
        pushed = (counters["put"] - previous_counters["put"]) / elapsed
        done = sum(counters[name] - previous_counters[name] for name in ("get", "commit", "deadletter")) / elapsed
    return QueueRates(at, summary, pushed, done, (summary.total - previous_summary.total) / elapsed)


def graph_sizes(graph: Graph) -> tuple[dict[Place, Sizes], list[str]]:
    """Return the sizes of the queues of a graph, and an error for each unreadable namespace."""
    sizes: dict[Place, Sizes] = {}
    queues = [*graph.queues(), *graph.unrouted_queues()]
    unknown: list[str] = []
    for ns, namespace in graph.namespaces.items():
        try:
            with open_existing(namespace.url) as store:
                found = {place: store.sizes(place.queue) for place in queues if place.ns == ns}
        except QueueError as error:
            unknown.append(f"namespace {ns!r}: {error}")
        else:
            sizes |= found
    return sizes, unknown
