"""Read one log for a query: its next messages after a place, and its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import FROM_LATEST
from spark_queue.spark.read.limits import ALL_ROWS
from spark_queue.spark.read.opening import open_query_store
from spark_queue.spark.read.queue_state import QUEUE_PAUSE_CACHE_MS
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPosition, LogRange


class LogCursor:
    """A log as one query reads it, in the driver's reader process. Callers keep the place."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._from_latest = options.starting_offsets == FROM_LATEST
        self._queue = options.queue
        self._store = open_query_store(options)
        self.log = log_of(self._store, options, retention=options.retention)
        self._store.count(self._queue)  # registers the queue: it exists from now on
        self.before: int | None = None  #: messages that are due later (ms) are not read
        self._end_place: LogPosition | None = None  # where a bounded run ends, once that is known

    def initial_place(self) -> LogPosition:
        """Return the place at which a query with a new checkpoint begins."""
        return self.log.latest() if self._from_latest else self.log.first()

    def batch_limit(self, place: LogPosition, limit: int) -> int:
        """Return how many messages a batch after `place` may have, if Spark allows `limit`."""
        return self.log.latest().position - place.position if limit >= ALL_ROWS else limit

    def next_pieces(self, place: LogPosition, limit: int) -> list[LogRange]:
        """Return the pieces after a place, up to `limit` messages; seal new messages for that."""
        if self.before is None:
            return self.log.next_ranges(place, limit)
        while self._end_place is None:
            if self.log.is_complete(self.before):
                self._end_place = self.log.end()
            elif pieces := self.log.next_ranges(place, limit, before=self.before):
                return pieces
            else:
                self.log.wait(place, 100)  # another reader is sealing
        limit = min(limit, self._end_place.position - place.position)
        return self.log.next_ranges(place, limit, before=self.before) if limit > 0 else []

    @property
    def ended(self) -> bool:
        """Whether the end of a bounded run is known: an empty `next_pieces` is then final."""
        return self._end_place is not None

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""
        self.before = self._store.now()

    def sizes(self, position: int) -> dict[str, Any]:
        """Count the ready messages after a position, the scheduled ones, and the retained ones."""
        sizes, (first, end) = self._store.sizes(self._queue), self.log.positions
        return {
            "ready": max(0, end - max(first, position)) + sizes.ready,
            "scheduled": sizes.scheduled,
            "retained": end - first,
        }

    def is_paused(self) -> bool:
        """Return whether the queue is paused. The answer may come from a cache."""
        return self._store.is_paused(self._queue, max_age_ms=QUEUE_PAUSE_CACHE_MS)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()


def log_of(store: Store, options: QueueOptions, *, retention: int | None = None) -> Log:
    """Return the log that a query reads."""
    return Log(store, options.queue or "", retention=retention, allow_data_loss=not options.fail_on_data_loss)


def rows_of(pieces: Sequence[LogRange]) -> int:
    """Return the number of messages in the pieces."""
    return sum(one.rows for one in pieces)
