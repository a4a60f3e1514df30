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
from spark_queue.stores.services.log.log import log_note, retained_by
from spark_queue.stores.support.counters import Statistics
from spark_queue.stores.support.summary import SummaryOf, SummaryRequest
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
        found = _look(store, queues or store.queues(), None if exact else COUNT_LIMIT)
        for one, registered in found if queues else ():
            if not (one.total or registered):
                check_exists(store, one.queue)
        return [one for one, _ in found]


def load_summaries(store: Store, queues: Sequence[str], limit: int | None = None) -> list[QueueSummary]:
    """Return the sizes of queues, in this order. With a `limit`, counting ends there.

    It looks once for many queues: see `Store.summary`. Raises `NotAQueue` if data of another
    program has one of the names.
    """
    return [one for one, _ in _look(store, queues, limit)]


def _look(store: Store, queues: Sequence[str], limit: int | None) -> list[tuple[QueueSummary, bool]]:
    """Return the same, each with whether the queue is registered."""
    names = [
        SummaryOf(queue, "" if is_dead_letter_queue(queue) else dead_letter_queue(queue), log_note(queue))
        for queue in queues
    ]
    found = store.summary(SummaryRequest(tuple(names), limit))
    looked: list[tuple[QueueSummary, bool]] = []
    for queue, dead, key in names:
        own = found.sizes[queue] if queue in found.sizes else store.sizes(queue)  # or it raises
        letters = found.sizes.get(dead, ZERO_SIZES)  # others' data may have its name
        retained = retained_by(store, queue, found.notes[key].parse(key)) if key in found.notes else 0
        paused = found.paused.get(queue)
        looked.append((_summarize(queue, own, letters, retained, bool(paused)), paused is not None))
    return looked


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
