"""Read a log as one of several inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.delivery import is_dropped
from spark_queue.spark.read.fetch import FetchRange
from spark_queue.spark.read.limits import ALL_ROWS
from spark_queue.spark.read.log_cursor import LogCursor, rows_of
from spark_queue.spark.read.offsets import Offset
from spark_queue.stores.services.log.log import AwaitedLog
from spark_queue.stores.services.log.segments import LogPosition, LogRange


class LogInput:
    """A log whose batches are planned with those of other inputs, as those of a `QueueInput`.

    It reserves nothing. `places` in the offset of a batch: the places before and after the batch.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._queue = options.queue
        self._cursor = LogCursor(options)
        self._planned_place: LogPosition | None = None  # where the last batch ended
        self._checked_place: LogPosition | None = None  # where the last checked batch ended
        self._next_place: LogPosition | None = None  # where the next batch begins
        self._taken_pieces: list[LogRange] = []  # its messages
        self._taken_seq = -1  # the number of the last batch that this process took
        self.active = False  #: whether the query found messages when it last looked for a batch

    def initial_offset(self) -> dict[str, Any]:
        """Return the place at which a query with a new checkpoint begins, as JSON data."""
        return asdict(self._initial_place)

    @cached_property
    def _initial_place(self) -> LogPosition:
        return self._cursor.initial_place()

    @property
    def _current_place(self) -> LogPosition:
        return self._planned_place or self._next_place or self._initial_place

    def check(self, end: Offset) -> bool:
        """Find the place after a batch, and return true.

        Raises `CheckpointError` if its messages are gone and `failOnDataLoss` is set.
        """
        self._checked_place = self._cursor.log.resolve(LogPosition(**end["places"][1]))
        return True

    def remove(self, end: Offset) -> None:
        """Continue after a batch for which `check` returned true. Its messages stay in the log."""
        self._next_place, self._taken_pieces = self._checked_place, []

    def awaited(self) -> AwaitedLog:
        """Return what a wait for the next batch is for."""
        assert self._next_place is not None
        return self._cursor.log.awaited(self._next_place)

    def count_ready(self, limit: int) -> int:
        """Return the number of the next messages, up to `limit`."""
        assert self._next_place is not None
        all_rows, limit = limit >= ALL_ROWS, self._cursor.batch_limit(self._next_place, limit)
        self._taken_pieces = []
        if limit > 0:
            self._taken_pieces = self._cursor.next_pieces(self._next_place, limit, all_rows=all_rows)
        return rows_of(self._taken_pieces)

    def claim(self, start: Offset, limit: int) -> list[int]:
        """Take the batch after `start`; return its rows by partition, none if nothing is ready."""
        rows = self.count_ready(limit)
        return [rows] if rows else []

    def trim(self, start: Offset, rows: list[int], limit: int) -> list[int]:
        """Keep the first `limit` messages for this batch; return the rows that stay."""
        return [min(sum(rows), limit)] if rows and limit else []

    def next_arrival(self, start: Mapping[str, Any]) -> int:
        """Return when the batch after `start` was taken: see `arrival.py`."""
        return self._cursor.next_arrival(start)

    def mark_reserved(self, start: Offset, rows: list[int], arrived: int) -> None:
        """Record that this process took the batch after `start`."""
        self._taken_seq = start["seq"] + 1

    def batch_places(self, rows: int) -> list[dict[str, Any]]:
        """Return the places before and after the first `rows` messages that were taken."""
        assert self._next_place is not None
        begin = end = self._taken_pieces[0].start if rows else self._next_place
        for piece in self._taken_pieces:
            if rows > 0:
                end = replace(piece, rows=min(rows, piece.rows)).end
                rows -= piece.rows
        return [asdict(begin), asdict(end)]

    def hold(self, end: Offset) -> list[FetchRange]:
        """Return the ranges that the tasks of a batch fetch; none if it is replayed and dropped."""
        self._planned_place = LogPosition(**end["places"][1])
        if self._taken_seq != end["seq"] and is_dropped(end, self._options):
            return []
        return self.ranges(end)

    def ranges(self, end: Offset, *, replayed: bool = False) -> list[FetchRange]:
        """Return the ranges of a batch's messages, in order. `replayed` has no effect on a log."""
        begin, last = (LogPosition(**one) for one in end["places"])
        pieces = self._cursor.log.ranges_between(begin, last)
        return [FetchRange(one.tag, one.rows, first=one.start.row, position=one.start.position) for one in pieces]

    def lost_rows(self, end: Offset) -> int:
        """Return the number of a batch's messages that the log no longer has."""
        return sum(end["rows"]) - sum(one.rows or 0 for one in self.ranges(end))

    def on_idle(self) -> None:
        """Do nothing: no message is ready."""

    @property
    def max_rows(self) -> int:
        """How many messages fit into memory, as far as it is known."""
        return self._cursor.memory.rows

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""
        self._cursor.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the place that the query has reached, and the sizes of the log."""
        progress = {"queue": self._queue} | asdict(self._current_place)
        return progress | self._cursor.report(self._current_place.position, self.active)

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()
