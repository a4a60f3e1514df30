"""Reserve the messages of a micro-batch: as many as fit, and those that have tries left."""

from __future__ import annotations

import time
from collections import deque

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.batch_size import FIRST_ROWS
from spark_queue.spark.read.fair_share import FairShare
from spark_queue.spark.read.limits import ALL_ROWS, partition_limits
from spark_queue.spark.read.memory_limit import MemoryLimit
from spark_queue.spark.read.pacing import SHORTEST
from spark_queue.stores.base import Store
from spark_queue.stores.queue import StoredQueue
from spark_queue.stores.services.option_policy import stream_policy
from spark_queue.stores.types import Reserved


class Reserver:
    """Reserves messages for one consumer, by any store of its database.

    A batch has no more messages than fit into memory. If batches find their size, it leaves their
    share to other consumers of the queue.
    """

    def __init__(self, options: StreamOptions, consumer: str, lease: int) -> None:
        """`lease`: that of reserved messages (ms)."""
        self._options = options
        self._queue = options.queue
        self._policy = stream_policy(options).replace(lease=lease)
        self.memory = MemoryLimit(options)
        self._full = False  # whether the last batch has all the bytes that it may have
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
        """Return how many messages a batch with this limit may have, however small they are."""
        return min(limit, self._share.rows) if self._is_auto(limit) else limit

    def is_full(self, rows: int, limit: int) -> bool:
        """Return whether the last batch, of `rows` messages, was as large as this limit allows."""
        return self._full or rows >= self.possible_rows(limit)

    def limit_guess(self, limit: int) -> int:
        """Return the limit of a batch whose size is a guess: what can be reserved in the target.

        A slow database would take long to reserve too many messages, and to release them.
        """
        within_target = round(self._speed * self._options.target_batch_duration / 1000)
        return min(limit, max(within_target, FIRST_ROWS)) if self._is_auto(limit) else limit

    def reserve(self, store: Store, tag: str, limit: int, before: int) -> list[int]:
        """Reserve messages that are due by `before` (ms); return the rows by partition."""
        if self._is_auto(limit):
            self._share.update(store, limit, before, sum(self._recent))
        began = time.monotonic()
        reserved = self._reserve_usable(store.queue(self._queue, self._policy), tag, limit, before)
        rows = sum(reserved.rows)
        if rows:
            self._speed = rows / max(time.monotonic() - began, SHORTEST)
        self._full = reserved.full
        self.memory.note_batch(rows, reserved.bytes)
        return reserved.rows

    def _reserve_usable(self, stored: StoredQueue[Store], tag: str, limit: int, before: int) -> Reserved:
        """Reserve up to `limit` messages. Those at `maxTries` become dead letters."""
        most, least = partition_limits(self._options)
        rows, max_bytes = self.possible_rows(limit), self.memory.batch_bytes(limit)
        while True:
            reserved = stored.reserve(tag, rows, max_bytes, partitions=most, min_partitions=least, before=before)
            if not reserved.rows or not stored.move_exhausted(tag):
                return reserved
            held = {one.tag: one.rows for one in stored.store.reservations(stored.name, tag)}
            if held:
                return reserved._replace(
                    rows=[held.get(f"{tag}/{partition}", 0) for partition in range(len(reserved.rows))]
                )
