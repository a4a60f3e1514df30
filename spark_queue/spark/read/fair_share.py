"""Leave their share of a queue to its other consumers: large batches would take all of it."""

from __future__ import annotations

import time

from spark_queue.spark.read.batch_size import MAX_ROWS
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import consumers

#: How often the consumers of a queue are counted (s).
COUNT_INTERVAL = 0.5

#: A share is at least this part of the limit of a batch, or this number of rows. Otherwise the last
#: messages would be shared in ever smaller batches.
SMALLEST_PART, SMALLEST_ROWS = 8, 10_000


class FairShare:
    """How many messages one of several consumers may reserve: its part of those that are ready."""

    def __init__(self, queue: str, consumer: str) -> None:
        """`consumer`: its name and epoch."""
        self.rows = MAX_ROWS  #: how many messages it may reserve
        self._queue, self._consumer = queue, consumer
        self._others, self._counted_at = 0, -COUNT_INTERVAL

    def update(self, store: Store, limit: int, before: int, recent: int) -> None:
        """Set `rows` for a batch of up to `limit` messages that are due by `before` (ms).

        `recent`: the messages of its last two batches. It takes less if it had many.
        """
        now = time.monotonic()
        if now - self._counted_at >= COUNT_INTERVAL:
            alive = [name for _, name, owner in consumers(store, self._queue) if owner and name != self._consumer]
            self._others, self._counted_at = len(alive), now
        self.rows = MAX_ROWS
        if self._others:
            # Half of the difference to an equal part: so the first one to ask does not get more.
            parts = 2 * (1 + self._others)
            ready = store.ready(self._queue, limit * parts, before=before)
            part = (ready + recent) // (1 + self._others)
            self.rows = max((part - recent) // 2, min(limit // SMALLEST_PART, SMALLEST_ROWS), 1)
