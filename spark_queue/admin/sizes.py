"""How much the queues hold, and how fast that changes."""

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
    """The sizes of a queue; `dead` is that of `<queue>.dead`.

    `oldest` is for how many seconds the first message has been ready, `None` where nothing is. `retained`: what its
    log keeps, where it is read as one; that is not among the reserved.
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
        """All but the dead ones."""
        return self.ready + self.scheduled + self.reserved + self.retained


@dataclass(frozen=True, slots=True)
class Flow:
    """A queue at a moment of a watch, by the database's clock.

    `pushed` and `done`: messages a second since the look before, those that came, and those that left for good;
    `change`: by how many a second the queue grew. `None` at the first look, and where the store does not count.
    """

    at: datetime
    level: Level
    pushed: float | None
    done: float | None
    change: float | None


def sizes(url: str, queues: Sequence[str] = ()) -> list[Level]:
    """The sizes of queues, of all that hold messages where none are given.

    Raises `UsageError` for a queue that is given and does not exist.
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
    """The COUNTERS of queues, of all where none are given, and whether each is `paused`."""
    with opened(url) as store:
        for queue in queues:
            store.check_queue(queue)
        return _counted(store, queues)


def _counted(store: Store, queues: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The counters by queue."""
    found = {queue: store.statistics(queue) for queue in queues} if queues else store.statistics_of_all()
    return {
        queue: {name: getattr(one, name) for name in (*COUNTERS, "paused")} for queue, one in sorted(found.items())
    }


def watch(url: str, queues: Sequence[str] = (), *, interval: float = 2.0) -> Iterator[list[Flow]]:
    """Look at queues, of all that hold messages where none are given, every `interval` seconds, without end.

    A queue that is given need not exist yet.
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
    """The sizes of the queues of a graph, and why those of a namespace are not known, where that is so."""
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
