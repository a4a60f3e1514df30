"""Reserve the messages of a micro-batch: as many as fit, and those that have tries left."""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.batch_size import FIRST_ROWS
from spark_queue.spark.read.fair_share import FairShare
from spark_queue.spark.read.limits import ALL_ROWS, partition_limits
from spark_queue.spark.read.memory_limit import MemoryLimit
from spark_queue.spark.read.pacing import SHORTEST
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import dead_letter_exhausted

log = logging.getLogger(__name__)


class Reserver:
    """Reserves messages for one consumer, by any store of its database.

    If batches find their size, a batch has no more messages than fit into memory. It leaves their
    share to other consumers of the queue.
    """

    def __init__(self, options: QueueOptions, consumer: str, lease: int) -> None:
        """`lease`: that of reserved messages (ms)."""
        self._options, self._lease = options, lease
        self._queue = options.queue or ""
        self.memory = MemoryLimit(partition_limits(options)[0])
        self._share = FairShare(self._queue, consumer)
        self._recent = deque([0, 0], maxlen=2)  # the messages of the last two batches
        self._speed = 0.0  # the messages per second that were reserved last

    def _is_auto(self, limit: int) -> bool:
        """Return whether neither the user nor Spark chose this limit."""
        return self._options.max_records_per_trigger is None and limit < ALL_ROWS

    def note_batch(self, rows: int) -> None:
        """Note that a batch with this number of messages starts."""
        self._recent.append(rows)

    def possible_rows(self, limit: int) -> int:
        """Return how many messages a batch with this limit may have."""
        return min(limit, self.memory.rows, self._share.rows) if self._is_auto(limit) else limit

    def limit_guess(self, limit: int) -> int:
        """Return the limit of a batch whose size is a guess: what can be reserved in the target.

        A slow database would take long to reserve too many messages, and to release them.
        """
        within_target = round(self._speed * self._options.target_batch_duration / 1000)
        return min(limit, max(within_target, FIRST_ROWS)) if self._is_auto(limit) else limit

    def reserve(self, store: Store, tag: str, limit: int, before: int) -> list[int]:
        """Reserve messages that are due by `before` (ms); return the rows by partition."""
        if not self._is_auto(limit):
            return self._reserve_usable(store, tag, limit, before)
        self._share.update(store, limit, before, sum(self._recent))
        began = time.monotonic()
        rows = self._reserve_usable(store, tag, self.possible_rows(limit), before)
        if rows:
            self._speed = sum(rows) / max(time.monotonic() - began, SHORTEST)
            first = next(part for part, held in enumerate(rows) if held)
            self.memory.update(partial(store.peek_reserved, self._queue, f"{tag}/{first}"))
        return rows

    def _reserve_usable(self, store: Store, tag: str, limit: int, before: int) -> list[int]:
        """Reserve up to `limit` messages. Those at `maxTries` become dead letters."""
        queue, max_tries, dead = self._queue, self._options.max_tries, self._options.dead_letter_queue_of(self._queue)
        most, least = partition_limits(self._options)
        while True:
            rows = store.reserve(
                queue, tag, limit, partitions=most, min_partitions=least, lease=self._lease, before=before
            )
            if not rows or max_tries is None:
                return rows
            buried = dead_letter_exhausted(store, queue, tag, max_tries, dead, self._options.history_ms)
            if not buried:
                return rows
            log.warning("%d messages of %s failed too often: moved to %s", buried, queue, dead)
            held = {one.tag: one.rows for one in store.reservations(queue, tag)}
            if held:
                return [held.get(f"{tag}/{partition}", 0) for partition in range(len(rows))]
