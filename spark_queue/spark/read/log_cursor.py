"""Read one log for a query: its next messages after a place, and its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import FROM_EARLIEST
from spark_queue.spark.read.arrival import next_arrival
from spark_queue.spark.read.backlog import Backlog
from spark_queue.spark.read.limits import ALL_ROWS
from spark_queue.spark.read.log_range import starting_place
from spark_queue.spark.read.memory_limit import MemoryLimit
from spark_queue.spark.read.opening import open_query_store
from spark_queue.spark.read.queue_state import QUEUE_PAUSE_CACHE_MS
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPosition, LogRange


class LogCursor:
    """A log as one query reads it, in the driver's reader process. Callers keep the place."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._store = open_query_store(options)
        self.log = log_of(self._store, options, retention=options.retention)
        self._store.register(self._queue)  # it exists from now on
        self.memory = MemoryLimit(options)
        self._backlog = Backlog(self._store, self._queue)
        self._positions, self._positions_at = (0, 0), 0.0  # those of the log, and when they were read
        self.before: int | None = None  #: messages that are due later (ms) are not read
        self._end_place: LogPosition | None = None  # where a bounded run ends, once that is known

    def initial_place(self) -> LogPosition:
        """Return the place at which a query with a new checkpoint begins."""
        if self._options.starting_offsets != FROM_EARLIEST or self._options.starting_timestamp is not None:
            self.log.latest()  # seal the messages that are ready: one of them may be the first
        return starting_place(self.log, self._options)

    def next_arrival(self, start: Mapping[str, Any]) -> int:
        """Return when the batch after `start` was taken: see `arrival.py`."""
        return next_arrival(self._store, start)

    def batch_limit(self, place: LogPosition, limit: int) -> int:
        """Return how many messages a batch after `place` may have, if Spark allows `limit`."""
        return self.log.latest().position - place.position if limit >= ALL_ROWS else limit

    def next_pieces(self, place: LogPosition, limit: int, *, all_rows: bool = False) -> list[LogRange]:
        """Return the pieces after a place, up to `limit` messages; seal new messages for that.

        At most as many as fit into memory, unless Spark wants `all_rows`: see `MemoryLimit`.
        """
        pieces = self._read_pieces(place, limit)
        max_bytes = self.memory.batch_bytes(ALL_ROWS if all_rows else rows_of(pieces))
        if not pieces or max_bytes is None:
            return pieces
        rows, size = self.log.count_fitting(pieces, max_bytes)
        self.memory.note_batch(rows, size)
        return split_pieces(pieces, [rows])[0]

    def _read_pieces(self, place: LogPosition, limit: int) -> list[LogRange]:
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

    def report(self, position: int, busy: bool) -> dict[str, Any]:
        """Return the ready messages after a position, the scheduled and the retained ones.

        Also whether the queue is paused. `busy`: as in `Backlog.report`.
        """
        sizes = self._backlog.report(busy)
        if self._positions_at != self._backlog.counted_at:  # as often as the messages are counted
            self._positions, self._positions_at = self.log.positions, self._backlog.counted_at
        first, end = self._positions
        return {
            "ready": max(0, end - max(first, position)) + sizes["ready"],
            "scheduled": sizes["scheduled"],
            "retained": end - first,
            "sizesAgeMs": sizes["sizesAgeMs"],
            "capped": [state for state in sizes["capped"] if state != "reserved"],  # those of the log
            "paused": self._store.is_paused(self._queue, max_age_ms=QUEUE_PAUSE_CACHE_MS),
        }

    def close(self) -> None:
        """Close the connection."""
        self._store.close()


def log_of(store: Store, options: QueueOptions, *, retention: int | None = None) -> Log:
    """Return the log that a query reads."""
    return Log(store, options.queue or "", retention=retention, allow_data_loss=not options.fail_on_data_loss)


def split_pieces(pieces: Sequence[LogRange], sizes: Sequence[int]) -> list[list[LogRange]]:
    """Return the pieces, split into lists with the given numbers of messages, in order."""
    found: list[list[LogRange]] = []
    rest = list(reversed(pieces))
    for size in sizes:
        task_pieces: list[LogRange] = []
        left = size
        while left and rest:
            piece = rest.pop()
            part = LogRange(piece.tag, piece.start, min(piece.rows, left))
            if part.rows < piece.rows:
                rest.append(LogRange(piece.tag, part.end, piece.rows - part.rows))
            task_pieces.append(part)
            left -= part.rows
        found.append(task_pieces)
    return found


def rows_of(pieces: Sequence[LogRange]) -> int:
    """Return the number of messages in the pieces."""
    return sum(one.rows for one in pieces)
