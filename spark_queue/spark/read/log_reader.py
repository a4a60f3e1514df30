"""Plan the batches of a query with `mode=log`, which reserves and removes nothing.

The checkpoint has the place of the query in the log. The driver's reader process plans, and seals
messages that no reader has sealed yet; executors fetch. An offset names a place in the log. The
messages between two places never change, so there is nothing to commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict, cast

from spark_queue.errors import CheckpointError
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.arrival import ARRIVED
from spark_queue.spark.read.delivery import DROPPED_MESSAGE, ON_UNREAD, is_dropped, mark_delivery
from spark_queue.spark.read.limits import ALL_ROWS, partition_limits
from spark_queue.spark.read.log_cursor import LogCursor, rows_of, split_pieces
from spark_queue.spark.read.offsets import check_query, new_consumer
from spark_queue.spark.read.pacing import SIZE_FIELDS, Stopwatch
from spark_queue.stores.base import partition_sizes
from spark_queue.stores.services.log.segments import LogPosition, LogRange

log = logging.getLogger(__name__)

LOG_OFFSET_VERSION = 1


class LogOffset(TypedDict):
    """The offset of one reader in a log. `reader`: `name/epoch`; a new checkpoint is a new epoch.

    `begin`: in the end of the first batch, the place before it. Spark keeps only the ends of
    batches, and asks a restarted query again for its initial offset. `delivery`,
    `onUnread`, `arrived`, `size` and `firstFull`: as in `Offset`.
    """

    v: int
    queue: str
    reader: str
    log: str
    segment: int
    row: int
    position: int
    begin: NotRequired[dict[str, Any]]
    delivery: NotRequired[str]
    onUnread: NotRequired[str]
    arrived: NotRequired[int]
    size: NotRequired[int]
    firstFull: NotRequired[bool]


class LogReader:
    """Plans the batches of one query that reads a log."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._cursor = LogCursor(options)
        self._reader = new_consumer(options)
        self._initial: LogOffset | None = None
        self._planned: LogOffset | None = None
        self._asked: LogOffset | None = None  # after which Spark asked for a batch last
        self._last_returned: LogOffset | None = None  # the last end of a batch that this process returned
        self._busy = False
        self.waiting = Stopwatch()

    @property
    def initial(self) -> LogOffset:
        """The offset at which a query with a new checkpoint begins. It stays the same."""
        if self._initial is None:
            self._initial = self._build_offset(self._cursor.initial_place(), self._reader)
        return self._initial

    @property
    def planned(self) -> LogOffset:
        """The end of the last batch.

        Spark 4.0 and 4.1 restore the offset of a restarted query with an empty `plan`, before they
        ask for the next batch. So without any `plan`, the query is new.
        """
        return self.initial if self._planned is None else self._planned

    def next(self, start: LogOffset, limit: int) -> LogOffset:
        """Return the end of the next batch, of up to `limit` messages; `start` if none is ready.

        Waits for a message up to `waitTimeout`. Raises `CheckpointError` if `start` is of another
        query, or its messages are gone.
        """
        place = self._cursor.log.resolve(self._parse_place(start))
        self._asked = start
        all_rows, limit = limit >= ALL_ROWS, self._cursor.batch_limit(place, limit)
        end = time.monotonic() + self._options.wait_timeout / 1000
        self._busy = False
        while limit > 0:
            if pieces := self._cursor.next_pieces(place, limit, all_rows=all_rows):
                self._busy = True
                found = mark_delivery(self._build_offset(pieces[-1].end, start["reader"]), self._options)
                found["arrived"] = self._cursor.next_arrival(start)
                if start == self._initial:
                    found["begin"] = asdict(place)
                self._last_returned = found
                return found
            left = end - time.monotonic()
            if self._cursor.ended or left <= 0:
                break
            with self.waiting:
                self._cursor.log.wait(place, round(left * 1000))
        return start

    def plan(self, start: LogOffset, end: LogOffset) -> list[list[LogRange]]:
        """Return the pieces of each task of a batch. Raises `CheckpointError` as `next`."""
        begin, stop = self._parse_place(start), self._parse_place(end)
        self._planned = end
        if start == end:  # no batch, see `next`
            return []
        if "begin" in end:
            begin = LogPosition(**end["begin"])
        pieces = self._cursor.log.ranges_between(begin, stop) if begin != stop else []
        if pieces and self._last_returned != end and is_dropped(end, self._options):
            log.warning(DROPPED_MESSAGE, rows_of(pieces), self._queue)
            return []
        return split_pieces(pieces, partition_sizes(rows_of(pieces), *partition_limits(self._options)))

    def rows(self, start: LogOffset, end: LogOffset) -> int:
        """Return the number of rows of a batch."""
        begin: Mapping[str, Any] = end.get("begin") or start
        return int(end["position"] - begin["position"])

    @property
    def max_rows(self) -> int:
        """How many rows fit into memory, as far as it is known."""
        return self._cursor.memory.rows

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""
        self._cursor.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset and the sizes of the log."""
        # A restarted query has planned nothing yet, and may not find its initial offset any more.
        planned = self._planned or self._asked or self.initial
        offset = {key: value for key, value in planned.items() if key not in (ON_UNREAD, ARRIVED, *SIZE_FIELDS)}
        return offset | self._cursor.report(planned["position"], self._busy)

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()

    def _build_offset(self, place: LogPosition, reader: str) -> LogOffset:
        offset = {"v": LOG_OFFSET_VERSION, "queue": self._queue, "reader": reader, **asdict(place)}
        return cast("LogOffset", offset)

    def _parse_place(self, offset: Mapping[str, Any]) -> LogPosition:
        """Return the place in an offset. Raises `CheckpointError` if that is of another query."""
        queue = self._queue
        if "segment" not in offset or offset["v"] != LOG_OFFSET_VERSION:
            raise CheckpointError(
                f"the checkpoint of the query on queue {queue!r} is not one of mode=log, or of another version of "
                f"spark_queue (version {offset.get('v')!r}, this one reads {LOG_OFFSET_VERSION}): set the mode that "
                "it had, or start with a new checkpoint",
                queue=queue,
            )
        check_query(offset["queue"], offset["reader"], self._options)
        return LogPosition(offset["log"], offset["segment"], offset["row"], offset["position"])
