"""Plan the batches of a query with `mode=log`, which reserves and removes nothing.

The checkpoint has the place of the query in the log. The driver's reader process plans, and seals
messages that no reader has sealed yet; executors fetch. An offset names a place in the log. The
messages between two places never change, so there is nothing to commit.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict

from spark_queue.errors import CheckpointError
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.at_most_once import GIVEN_UP, given_up, planned_as
from spark_queue.spark.read.backlog import Backlog
from spark_queue.spark.read.limits import cores
from spark_queue.spark.read.log_cursor import LogCursor, rows_of
from spark_queue.stores.base import spread
from spark_queue.stores.services.log.segments import LogPlace, Piece

log = logging.getLogger(__name__)

OFFSET_VERSION = 1


class LogOffset(TypedDict):
    """The offset of one reader in a log. `reader`: `name/epoch`; a new checkpoint is a new epoch.

    `begin`: in the end of the first batch, the place before it. Spark keeps only the ends of
    batches, and asks a restarted query again for its initial offset. `delivery`: as in `Offset`.
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


class LogReader:
    """Plans the batches of one query that reads a log."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._cursor = LogCursor(options)
        self._reader = f"{options.consumer or uuid.uuid4().hex[:12]}/{uuid.uuid4().hex[:6]}"
        self._initial: LogOffset | None = None
        self._planned: LogOffset | None = None
        self._answered: LogOffset | None = None  # the last end of a batch that this process returned
        self._busy = False
        self._backlog = Backlog(lambda: self._cursor.sizes(self.planned["position"]))

    @property
    def initial(self) -> LogOffset:
        """The offset at which a query with a new checkpoint begins. It stays the same."""
        if self._initial is None:
            self._initial = self._offset(self._cursor.beginning(), self._reader)
        return self._initial

    @property
    def planned(self) -> LogOffset:
        """The end of the last batch.

        Spark 4.0 and 4.1 restore the offset of a restarted query with an empty `plan`, before they
        ask for the next batch. So without any `plan`, the query is new.
        """
        return self.initial if self._planned is None else self._planned

    def next(self, start: LogOffset, most: int) -> LogOffset:
        """Return the end of the next batch, of up to `limit` messages; `start` if none is ready.

        Waits for a message up to `waitTimeout`. Raises `CheckpointError` if `start` is of another
        query, or its messages are gone.
        """
        place = self._cursor.log.found(self._place(start))
        most = self._cursor.most(place, most)
        end = time.monotonic() + self._options.wait_timeout / 1000
        self._busy = False
        while most > 0:
            if pieces := self._cursor.ahead(place, most):
                self._busy = True
                found = self._answer(pieces[-1].end, start["reader"])
                if start == self._initial:
                    found["begin"] = asdict(place)
                return found
            left = end - time.monotonic()
            if self._cursor.ended or left <= 0:
                break
            self._cursor.log.wait(place, round(left * 1000))
        return start

    def plan(self, start: LogOffset, end: LogOffset) -> list[list[Piece]]:
        """Return the pieces of each task of a batch. Raises `CheckpointError` as `next`."""
        begin, stop = self._place(start), self._place(end)
        self._planned = end
        if start == end:  # no batch, see `next`
            return []
        if "begin" in end:
            begin = LogPlace(**end["begin"])
        pieces = self._cursor.log.between(begin, stop) if begin != stop else []
        if pieces and self._answered != end and given_up(end, self._options):
            log.warning(GIVEN_UP, rows_of(pieces), self._queue)
            return []
        return shared(pieces, spread(rows_of(pieces), *self._options.partitions(cores())))

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""
        self._cursor.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset and the sizes of the log."""
        return dict(self.planned) | self._backlog.seen(self._busy) | {"paused": self._cursor.paused()}

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()

    def _answer(self, place: LogPlace, reader: str) -> LogOffset:
        self._answered = planned_as(self._offset(place, reader), self._options)
        return self._answered

    def _offset(self, place: LogPlace, reader: str) -> LogOffset:
        return {
            "v": OFFSET_VERSION,
            "queue": self._queue,
            "reader": reader,
            "log": place.log,
            "segment": place.segment,
            "row": place.row,
            "position": place.position,
        }

    def _place(self, offset: Mapping[str, Any]) -> LogPlace:
        """Return the place in an offset. Raises `CheckpointError` if that is of another query."""
        queue = self._queue
        if "segment" not in offset or offset["v"] != OFFSET_VERSION:
            raise CheckpointError(
                f"the checkpoint of the query on queue {queue!r} is not one of mode=log, or of another version of "
                f"spark_queue (version {offset.get('v')!r}, this one reads {OFFSET_VERSION}): set the mode that it "
                "had, or start with a new checkpoint",
                queue=queue,
            )
        if offset["queue"] != queue:
            raise CheckpointError(
                f"the checkpoint is that of a query on queue {offset['queue']!r}, but option 'queue' is {queue!r}: a "
                "query keeps its queue, another queue needs a new checkpoint",
                queue=queue,
            )
        name = offset["reader"].partition("/")[0]
        if self._options.consumer not in (None, name):
            raise CheckpointError(
                f"the checkpoint is that of consumer {name!r}, but option 'consumer' is {self._options.consumer!r}: "
                "set the same, or start with a new checkpoint",
                consumer=name,
            )
        return LogPlace(offset["log"], offset["segment"], offset["row"], offset["position"])


def shared(pieces: Sequence[Piece], shares: Sequence[int]) -> list[list[Piece]]:
    """Return the pieces, split into lists with the given numbers of messages, in order."""
    found: list[list[Piece]] = []
    rest = list(reversed(pieces))
    for share in shares:
        mine: list[Piece] = []
        left = share
        while left and rest:
            piece = rest.pop()
            part = Piece(piece.tag, piece.start, min(piece.rows, left))
            if part.rows < piece.rows:
                rest.append(Piece(piece.tag, part.end, piece.rows - part.rows))
            mine.append(part)
            left -= part.rows
        found.append(mine)
    return found
