"""Sizes of queues, and their rates of change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_queue.admin.common import moment_of, open_existing
from spark_queue.errors import OptionError, QueueError
from spark_queue.options.queue_names import dead_letter_queue, is_dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.log.log import count_retained
from spark_queue.stores.support.counters import Statistics
from spark_queue.stores.types import COUNT_LIMIT, ZERO_SIZES, Sizes

if TYPE_CHECKING:  # needs the extra `graph`
    from spark_queue.graph.model import Graph, Place

#: The counters of `Store.statistics`.
COUNTERS = ("put", "get", "reserve", "commit", "rollback", "deadletter")


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The numbers of messages of a queue by state, and whether it is paused.

    `dead`: the size of `<queue>.dead`. `oldest`: seconds since the first message became ready,
    `None` if none is. `retained`: the messages that its log retains, which `reserved` does not
    count. `capped`: the numbers that are lower bounds, because counting ended at COUNT_LIMIT.
    """

    queue: str
    ready: int
    scheduled: int
    reserved: int
    dead: int
    oldest: float | None
    paused: bool
    retained: int = 0
    capped: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of messages, without dead letters."""
        return self.ready + self.scheduled + self.reserved + self.retained

    @property
    def idle(self) -> bool:
        """Whether it holds nothing, dead letters included, and is not paused."""
        return not (self.total or self.dead or self.capped or self.paused)


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


def sizes(url: str, queues: Sequence[str] = (), *, exact: bool = True) -> list[QueueSummary]:
    """Return the sizes of queues, by default of all.

    If they need not be `exact`, counting ends at COUNT_LIMIT messages of a state, which takes some
    ms even if there are millions. Raises `OptionError` if one of `queues` does not exist.
    """
    with open_existing(url, *queues) as store:
        found = load_summaries(store, queues or store.queues(), None if exact else COUNT_LIMIT)
        empty = [one.queue for one in found if queues and not one.total]
        used = store.statistics_of(empty)  # one request for many: few are left for `check_exists`
        for queue in empty:
            if queue not in used:
                check_exists(store, queue)
        return found


def load_summaries(store: Store, queues: Sequence[str], limit: int | None = None) -> list[QueueSummary]:
    """Return the sizes of queues, in this order. With a `limit`, counting ends there.

    It takes a few requests for each 100 queues. Raises `NotAQueue` if data of another program has
    one of the names.
    """
    dead_queues = {queue: dead_letter_queue(queue) for queue in queues if not is_dead_letter_queue(queue)}
    counted = store.sizes_of([*queues, *dead_queues.values()], limit)
    own = {queue: counted[queue] if queue in counted else store.sizes(queue) for queue in queues}  # or it raises
    retained, statistics = count_retained(store, queues), store.statistics_of(queues)
    return [
        _summarize(
            queue,
            own[queue],
            counted.get(dead_queues.get(queue, ""), ZERO_SIZES),  # others' data may have its name
            retained.get(queue, 0),
            statistics.get(queue, Statistics()).paused,
        )
        for queue in queues
    ]


def load_summary(store: Store, queue: str, limit: int | None) -> QueueSummary:
    """Return the sizes of a queue. With a `limit`, counting ends there."""
    (found,) = load_summaries(store, [queue], limit)
    return found


def _summarize(queue: str, own: Sizes, dead: Sizes, retained: int, paused: bool) -> QueueSummary:
    oldest = None if own.oldest_ready_age is None else own.oldest_ready_age / 1000
    if "reserved" not in own.capped:
        retained = min(retained, own.reserved)  # it may be growing just now
    reserved = max(0, own.reserved - retained)
    capped: list[str] = [state for state in ("ready", "scheduled", "reserved") if state in own.capped]
    if dead.capped:
        capped.append("dead")
    return QueueSummary(
        queue, own.ready, own.scheduled, reserved, dead.total, oldest, paused, retained, tuple(capped)
    )


def statistics(url: str, queues: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the COUNTERS of queues, by default of all, and whether each is `paused`."""
    with open_existing(url, *queues) as store:
        return _load_counters(store, queues)


def _load_counters(store: Store, queues: Sequence[str]) -> dict[str, dict[str, Any]]:
    if queues:
        known = store.statistics_of(queues)
        found = {queue: known.get(queue, Statistics()) for queue in queues}
    else:
        found = store.all_statistics()
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
    with open_existing(url, *queues) as store:
        before: dict[str, _Sample] = {}
        due = time.monotonic()
        while True:
            at, now = moment_of(store.now()), time.monotonic()
            summaries = load_summaries(store, queues or sorted({*store.queues(), *before}))
            counters = _load_counters(store, queues)
            rates = []
            for summary in summaries:
                sample = _Sample(now, summary, counters.get(summary.queue))
                rates.append(_compute_rates(at, sample, before.get(summary.queue)))
                before[summary.queue] = sample
            yield rates
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


class _Sample(NamedTuple):
    """The sizes and counters of a queue at a time of `time.monotonic`."""

    time: float
    summary: QueueSummary
    counters: dict[str, Any] | None


def _compute_rates(at: datetime, now: _Sample, before: _Sample | None) -> QueueRates:
    if before is None:
        return QueueRates(at, now.summary, None, None, None)
    elapsed = max(now.time - before.time, 1e-3)
    pushed = done = None
    if now.counters is not None and before.counters is not None:
        added = {name: now.counters[name] - before.counters[name] for name in COUNTERS}
        pushed = added["put"] / elapsed
        done = (added["get"] + added["commit"] + added["deadletter"]) / elapsed
    return QueueRates(at, now.summary, pushed, done, (now.summary.total - before.summary.total) / elapsed)


def graph_sizes(graph: Graph) -> tuple[dict[Place, Sizes], list[str]]:
    """Return the sizes of the queues of a graph, and an error for each unreadable namespace."""
    sizes: dict[Place, Sizes] = {}
    queues = [*graph.queues(), *graph.unrouted_queues()]
    unknown: list[str] = []
    for ns, namespace in graph.namespaces.items():
        try:
            with open_existing(namespace.url) as store:
                places = {place.queue: place for place in queues if place.ns == ns}
                counted = store.sizes_of(places)
                sizes |= {
                    place: counted[queue] if queue in counted else store.sizes(queue)  # which raises
                    for queue, place in places.items()
                }
        except QueueError as error:
            unknown.append(f"namespace {ns!r}: {error}")
    return sizes, unknown
