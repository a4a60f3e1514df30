"""Sizes of queues, and their rates of change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_queue.admin.common import moment_of, opened
from spark_queue.errors import OptionError, QueueError
from spark_queue.options.queue_names import dead_letter_queue, is_dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.log.log import retained
from spark_queue.stores.types import Sizes

if TYPE_CHECKING:  # needs the extra `graph`
    from spark_queue.graph.model import Graph, Place

#: The counters of `Store.statistics`.
COUNTERS = ("put", "get", "reserve", "commit", "rollback", "deadletter")


@dataclass(frozen=True, slots=True)
class Level:
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
class Flow:
    """The sizes of a queue at a moment, and its rates since the last update.

    The moment is by the database's clock. In messages per second: `pushed` to the queue, `done`
    (they left it for good), and the `change` of its size. Rates are `None` in the first update.
    `pushed` and `done` are also `None` if the queue has no counters.
    """

    at: datetime
    level: Level
    pushed: float | None
    done: float | None
    change: float | None


def sizes(url: str, queues: Sequence[str] = ()) -> list[Level]:
    """Return the sizes of queues, by default of all.

    Raises `OptionError` if one of `queues` does not exist.
    """
    with opened(url) as store:
        for queue in queues:
            store.check_queue(queue)
            check_exists(store, queue)
        return _levels(store, queues)


def _levels(store: Store, queues: Sequence[str]) -> list[Level]:
    return [_level(store, queue) for queue in queues or store.queues()]


def _level(store: Store, queue: str) -> Level:
    own = store.sizes(queue)
    dead = 0 if is_dead_letter_queue(queue) else store.sizes(dead_letter_queue(queue)).total
    oldest = None if own.oldest_ready_age is None else own.oldest_ready_age / 1000
    paused = getattr(store, "paused", lambda _: False)
    log = retained(store, queue)
    kept = 0 if log is None else min(log.end - log.first, own.reserved)  # it may be growing just now
    return Level(queue, own.ready, own.scheduled, own.reserved - kept, dead, oldest, paused(queue), kept)


def statistics(url: str, queues: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the COUNTERS of queues, by default of all, and whether each is `paused`."""
    with opened(url) as store:
        for queue in queues:
            store.check_queue(queue)
        return _counted(store, queues)


def _counted(store: Store, queues: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {queue: store.statistics(queue) for queue in queues} if queues else store.statistics_of_all()
    return {
        queue: {name: getattr(one, name) for name in (*COUNTERS, "paused")} for queue, one in sorted(found.items())
    }


def watch(url: str, queues: Sequence[str] = (), *, interval: float = 2.0) -> Iterator[list[Flow]]:
    """Yield the sizes and rates of queues every `interval` seconds, without end.

    By default of all queues. The queues need not exist yet. Raises `OptionError` if `interval` is
    not 0.1 seconds to a day.
    """
    if not 0.1 <= interval <= 86_400:
        raise OptionError(f"interval must be 0.1 seconds to a day, not {interval}", option="interval")
    with opened(url) as store:
        for queue in queues:
            store.check_queue(queue)
        before: dict[str, tuple[float, Level, dict[str, Any] | None]] = {}
        due = time.monotonic()
        while True:
            moment, now = moment_of(store.now()), time.monotonic()
            levels = _levels(store, queues or sorted({*store.queues(), *before}))
            counted = _counted(store, queues)
            flows = []
            for level in levels:
                flows.append(_flow(moment, now, level, counted.get(level.queue), before.get(level.queue)))
                before[level.queue] = now, level, counted.get(level.queue)
            yield flows
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _flow(
    at: datetime,
    now: float,
    level: Level,
    counted: dict[str, Any] | None,
    before: tuple[float, Level, dict[str, Any] | None] | None,
) -> Flow:
    if before is None:
        return Flow(at, level, None, None, None)
    then, was, had = before
    passed = max(now - then, 1e-3)
    pushed = done = None
    if counted is not None and had is not None:
        pushed = (counted["put"] - had["put"]) / passed
        done = sum(counted[name] - had[name] for name in ("get", "commit", "deadletter")) / passed
    return Flow(at, level, pushed, done, (level.total - was.total) / passed)


def graph_sizes(graph: Graph) -> tuple[dict[Place, Sizes], list[str]]:
    """Return the sizes of the queues of a graph, and an error for each unreadable namespace."""
    sizes: dict[Place, Sizes] = {}
    queues = [*graph.queues(), *graph.leftovers()]
    unknown: list[str] = []
    for ns, namespace in graph.namespaces.items():
        try:
            with opened(namespace.url) as store:
                found = {place: store.sizes(place.queue) for place in queues if place.ns == ns}
        except QueueError as error:
            unknown.append(f"namespace {ns!r}: {error}")
        else:
            sizes |= found
    return sizes, unknown
