"""Count the backlog that a query reports: often, but never for long.

Spark asks for it at every batch, and in some databases a count takes longer if the queue is longer.
So a count ends at COUNT_LIMIT messages of a state. If there are more, a thread counts all of them,
in COUNT_SHARE of the time; until it ends, its last result is reported, with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from spark_queue.errors import StoreError
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.types import COUNT_LIMIT, Sizes

log = logging.getLogger(__name__)

#: Seconds between two counts of an idle query, and of a busy one.
IDLE_INTERVAL, BUSY_INTERVAL = 10.0, 1.0

#: The share of the time in which all messages are counted.
COUNT_SHARE = 0.01


class Backlog:
    """The sizes of one queue, as they were counted last."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store, self._queue = store, queue
        self._sizes = Sizes(0, 0, 0)  # up to the limit
        self.counted_at = 0.0  #: when they were counted last (monotonic s); 0: never
        self._all: tuple[Sizes, float] | None = None  # all of them, and when they were counted
        self._next_full_count = 0.0
        self._thread: threading.Thread | None = None

    def report(self, busy: bool) -> dict[str, Any]:
        """Return the sizes, their age, and the states that may have more messages.

        Counts again if the last count is too old for a `busy` or an idle query.
        """
        now = time.monotonic()
        if not self.counted_at or now - self.counted_at > (BUSY_INTERVAL if busy else IDLE_INTERVAL):
            self._sizes, self.counted_at = self._store.sizes(self._queue, COUNT_LIMIT), time.monotonic()
        sizes, counted_at = self._sizes, self.counted_at
        if sizes.capped:
            self._start_full_count()
            if self._all is not None and _exceeds(self._all[0], sizes):
                sizes, counted_at = self._all
        return {
            "ready": sizes.ready,
            "scheduled": sizes.scheduled,
            "reserved": sizes.reserved,
            "oldestReadyAgeMs": self._sizes.oldest_ready_age,
            "sizesAgeMs": round((time.monotonic() - counted_at) * 1000),
            "capped": sorted(sizes.capped),
        }

    def _start_full_count(self) -> None:
        if time.monotonic() >= self._next_full_count and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._count_all, name="spark_queue sizes", daemon=True)
            self._thread.start()

    def _count_all(self) -> None:
        began = time.monotonic()
        try:
            with open_store(self._store.url, retry_timeout=self._store.retry_timeout) as store:
                self._all = store.sizes(self._queue), time.monotonic()
        except StoreError as error:
            log.warning("cannot count all messages for the progress of this query, so it has lower bounds: %s", error)
        now = time.monotonic()
        self._next_full_count = now + (now - began) / COUNT_SHARE


def _exceeds(sizes: Sizes, bounds: Sizes) -> bool:
    """Return whether no number is below a lower bound: else it was counted too long ago."""
    return all(getattr(sizes, state) >= getattr(bounds, state) for state in bounds.capped)
