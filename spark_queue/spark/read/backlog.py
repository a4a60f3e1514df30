"""Count the backlog that a query reports: often, but never for long.

Spark asks for it at every batch, and in some databases a count takes longer if the queue is longer.
So a count ends at COUNT_LIMIT messages of a state. If there are more, a thread counts all of them,
in COUNT_SHARE of the time. A report waits COUNT_WAIT for that: a fast count is in the report that
began it. Until a slow one ends, its last result is reported, with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any, NamedTuple

from spark_queue.errors import OptionError, StoreError
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.types import COUNT_LIMIT, ZERO_SIZES, Sizes

log = logging.getLogger(__name__)

#: Seconds between two counts of an idle query, and of a busy one.
IDLE_INTERVAL, BUSY_INTERVAL = 10.0, 1.0

#: The share of the time in which all messages are counted, and how long (s) a report waits for it.
COUNT_SHARE, COUNT_WAIT = 0.01, 0.05


class _Counted(NamedTuple):
    """The sizes of a queue and of its dead-letter queue, and when they were counted (s)."""

    queue: Sizes
    dead: Sizes
    at: float

    @property
    def capped(self) -> frozenset[str]:
        """The states that may have more messages than were counted."""
        return self.queue.capped | ({"dead"} if self.dead.capped else frozenset())

    def completed(self, whole: _Counted) -> _Counted:
        """Return the same with the numbers of a count of all messages, for the states that need it.

        If one of those is below the lower bound, it was counted too long ago: return `self`.
        """
        numbers = {state: getattr(whole.queue, state) for state in self.queue.capped}
        dead = whole.dead if self.dead.capped else self.dead
        if dead.total < self.dead.total or any(numbers[one] < getattr(self.queue, one) for one in numbers):
            return self
        return _Counted(replace(self.queue, **numbers, capped=frozenset()), dead, whole.at)


class Backlog:
    """The sizes of one queue and of its dead-letter queue, as they were counted last."""

    def __init__(self, store: Store, queue: str, dead: str | None = None) -> None:
        """Count nothing yet. `dead`: the dead-letter queue; `None` if there are no dead letters."""
        self._store, self._queue = store, queue
        self._dead = dead if dead is not None and _may_exist(store, dead) else None
        self._reports_dead = dead is not None
        self._counted = _Counted(ZERO_SIZES, ZERO_SIZES, 0.0)  # up to the limit
        self._all: _Counted | None = None  # all messages
        self._next_full_count = 0.0
        self._thread: threading.Thread | None = None

    def report(self, busy: bool) -> dict[str, Any]:
        """Return the sizes, their age, and the states that may have more messages.

        Counts again if the last count is too old for a `busy` or an idle query.
        """
        if not self.counted_at or time.monotonic() - self.counted_at > (BUSY_INTERVAL if busy else IDLE_INTERVAL):
            self._counted = self._count(self._store, COUNT_LIMIT)
        counted = self._counted
        if counted.capped:
            self._start_full_count()
            if self._all is not None:
                counted = counted.completed(self._all)
        sizes = counted.queue
        return {
            "ready": sizes.ready,
            "scheduled": sizes.scheduled,
            "reserved": sizes.reserved,
            **({"dead": counted.dead.total} if self._reports_dead else {}),
            "oldestReadyAgeMs": self._counted.queue.oldest_ready_age,
            "sizesAgeMs": round((time.monotonic() - counted.at) * 1000),
            "capped": sorted(counted.capped),
        }

    @property
    def counted_at(self) -> float:
        """When the messages were counted last (monotonic s); 0: never."""
        return self._counted.at

    def _count(self, store: Store, limit: int | None = None) -> _Counted:
        queues = [self._queue] if self._dead is None else [self._queue, self._dead]
        found = store.sizes_of(queues, limit)
        if self._queue not in found:
            store.check_is_queue(self._queue)  # raises `NotAQueue`
        dead = found.get(self._dead or "", ZERO_SIZES)
        return _Counted(found.get(self._queue, ZERO_SIZES), dead, time.monotonic())

    def _start_full_count(self) -> None:
        if time.monotonic() >= self._next_full_count and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._count_all, name="spark_queue sizes", daemon=True)
            self._thread.start()
            self._thread.join(COUNT_WAIT)

    def _count_all(self) -> None:
        began = time.monotonic()
        try:
            with open_store(self._store.url, retry_timeout=self._store.retry_timeout) as store:
                self._all = self._count(store)
        except StoreError as error:
            log.warning("cannot count all messages for the progress of this query, so it has lower bounds: %s", error)
        now = time.monotonic()
        self._next_full_count = now + (now - began) / COUNT_SHARE


def _may_exist(store: Store, queue: str) -> bool:
    """Return whether the database allows the name of a queue: else it has no messages."""
    try:
        store.check_queue(queue)
    except OptionError:
        return False
    return True
