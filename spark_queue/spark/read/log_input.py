"""Read a log as one of several inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.at_most_once import given_up
from spark_queue.spark.read.backlog import Backlog
from spark_queue.spark.read.fetch import Share
from spark_queue.spark.read.log_cursor import LogCursor, rows_of
from spark_queue.spark.read.offsets import Offset
from spark_queue.stores import open_store
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPlace, Piece


class LogInput:
    """A log whose batches are planned with those of other inputs: see `PlannedInput`.

    It reserves nothing. `places` in the offset of a batch: the places before and after the batch.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._queue = options.queue or ""
        self._cursor = LogCursor(options)
        self._initial: LogPlace | None = None
        self._planned: LogPlace | None = None  # where the last batch ended
        self._checked: LogPlace | None = None  # where the last checked batch ended
        self._at: LogPlace | None = None  # where the next batch begins
        self._taken: list[Piece] = []  # its messages
        self._reserved = -1  # the number of the last batch that this process took
        self._busy = False
        self._backlog = Backlog(lambda: self._cursor.sizes(self._reached.position))

    def begin(self) -> dict[str, Any]:
        """Return the place at which a query with a new checkpoint begins, as JSON data."""
        return asdict(self._beginning)

    @property
    def _beginning(self) -> LogPlace:
        if self._initial is None:
            self._initial = self._cursor.beginning()
        return self._initial

    @property
    def _reached(self) -> LogPlace:
        return self._planned or self._beginning

    def check(self, end: Offset) -> bool:
        """Find the place after a batch, and return true.

        Raises `CheckpointError` if its messages are gone and `failOnDataLoss` is set.
        """
        self._checked = self._cursor.log.found(LogPlace(**end["places"][1]))
        return True

    def remove(self, end: Offset) -> None:
        """Continue after a batch for which `check` returned true. Its messages stay in the log."""
        self._at, self._taken = self._checked, []

    def wait(self, timeout: int) -> bool:
        """Wait up to `timeout` ms until a message is ready; return whether one is."""
        assert self._at is not None
        return self._cursor.before is not None or self._cursor.log.wait(self._at, timeout)

    @contextmanager
    def watching(self) -> Iterator[Callable[[int], bool]]:
        """Yield a `wait` for another thread, with its own connection."""
        with open_store(self._options.url, patience=self._options.retry_timeout / 1000) as store:
            log = Log(store, self._queue, lossy=True)  # `check` reports messages that are gone
            yield lambda timeout: self._at is not None and log.wait(self._at, timeout)

    def ready(self, most: int) -> int:
        """Return the number of the next messages, up to `limit`."""
        assert self._at is not None
        most = self._cursor.most(self._at, most)
        self._taken = self._cursor.ahead(self._at, most) if most > 0 else []
        return rows_of(self._taken)

    def take(self, start: Offset, most: int) -> list[int]:
        """Take the batch after `start`; return its rows by partition, none if nothing is ready."""
        rows = self.ready(most)
        return [rows] if rows else []

    def trim(self, start: Offset, rows: list[int], most: int) -> list[int]:
        """Keep the first `limit` messages for this batch; return the rows that stay."""
        return [min(sum(rows), most)] if rows and most else []

    def reserved(self, start: Offset, rows: list[int]) -> None:
        """Record that this process took the batch after `start`."""
        self._reserved = start["seq"] + 1

    def passed(self, rows: int) -> list[dict[str, Any]]:
        """Return the places before and after the first `rows` messages that were taken."""
        assert self._at is not None
        begin = end = self._taken[0].start if rows else self._at
        for piece in self._taken:
            if rows > 0:
                end = replace(piece, rows=min(rows, piece.rows)).end
                rows -= piece.rows
        return [asdict(begin), asdict(end)]

    def hold(self, end: Offset) -> list[Share]:
        """Return the ranges that the tasks of a batch fetch; none if it is replayed and dropped."""
        self._planned = LogPlace(**end["places"][1])
        self._busy = True
        if self._reserved != end["seq"] and given_up(end, self._options):
            return []
        return self.ranges(end)

    def ranges(self, end: Offset, *, again: bool = False) -> list[Share]:
        """Return the ranges of a batch's messages, in order. `replayed` has no effect on a log."""
        begin, last = (LogPlace(**one) for one in end["places"])
        pieces = self._cursor.log.between(begin, last)
        return [Share(one.tag, one.rows, first=one.start.row, position=one.start.position) for one in pieces]

    def missing(self, end: Offset) -> int:
        """Return the number of a batch's messages that the log no longer has."""
        return sum(end["rows"]) - sum(one.rows or 0 for one in self.ranges(end))

    def idle(self) -> None:
        """Note that no message is ready: the sizes are counted less often."""
        self._busy = False

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""
        self._cursor.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the place that the query has reached, and the sizes of the log."""
        place = {"queue": self._queue} | asdict(self._reached)
        return place | self._backlog.seen(self._busy) | {"paused": self._cursor.paused()}

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()
