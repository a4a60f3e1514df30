"""Queues read with `mode=log`: nothing is reserved or removed, and the place of a query lies in its checkpoint.

The driver's reader process plans, and seals what no reader has sealed yet; executors fetch. An offset names a place
in the log, so what lies between two is the same whenever it is asked for, and there is nothing to commit.
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
from spark_queue.options.values import FROM_LATEST
from spark_queue.spark.read.at_most_once import GIVEN_UP, given_up, planned_as
from spark_queue.spark.read.backlog import Backlog
from spark_queue.spark.read.limits import ALL, cores
from spark_queue.spark.read.opening import opened
from spark_queue.spark.read.queue_state import PAUSE_KNOWN
from spark_queue.stores.base import Store, spread
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import Piece, Place

log = logging.getLogger(__name__)

OFFSET_VERSION = 1


class LogOffset(TypedDict):
    """The place of one reader in a log. `reader`: `name/epoch`, where a fresh checkpoint is a fresh epoch.

    `begin`: in the end of the first batch, the place before it. Spark keeps the ends of batches only, and asks a
    restarted query anew where it begins. `delivery`: as in `Offset`.
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
    """The place of one query, and what comes next from there."""

    holds_ahead = False

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._store = opened(options)
        self._log = log_of(self._store, options, retention=options.retention)
        self._store.count(self._queue)  # what had a reader exists
        self._reader = f"{options.consumer or uuid.uuid4().hex[:12]}/{uuid.uuid4().hex[:6]}"
        self._initial: LogOffset | None = None
        self._planned: LogOffset | None = None
        self._answered: LogOffset | None = None  # what this very process has given as the end of a batch
        self._before: int | None = None
        self._last: Place | None = None  # where a run ends that takes what was there at its start
        self._busy = False
        self._backlog = Backlog(self._sizes)

    @property
    def initial(self) -> LogOffset:
        """Where a query begins; the same whenever it is asked for."""
        if self._initial is None:
            latest = self._options.starting_offsets == FROM_LATEST
            place = self._log.latest() if latest else self._log.first()
            self._initial = self._offset(place, self._reader)
        return self._initial

    @property
    def planned(self) -> LogOffset:
        """Where the last batch ended.

        Before Spark 4.0 and 4.1 ask what comes next, they have told a restarted query where it stands, by `plan` from
        there to there; so one that knows nothing is new.
        """
        return self.initial if self._planned is None else self._planned

    def next(self, start: LogOffset, most: int, *, ahead: bool = False) -> LogOffset:
        """Where up to `most` messages lead, or `start` if none is there. Nothing is held, so nothing `ahead`."""
        place = self._log.found(self._place(start))
        if most >= ALL:
            most = self._log.latest().position - place.position
        end = time.monotonic() + self._options.wait_timeout / 1000
        self._busy = False
        while most > 0:
            if pieces := self._ahead(place, most):
                self._busy = True
                found = self._answer(pieces[-1].end, start["reader"])
                if start == self._initial:
                    found["begin"] = asdict(place)
                return found
            left = end - time.monotonic()
            if self._last is not None or left <= 0:
                break
            self._log.wait(place, round(left * 1000))
        return start

    def _ahead(self, place: Place, most: int) -> list[Piece]:
        if self._before is None:
            return self._log.ahead(place, most)
        while self._last is None:
            if self._log.complete(self._before):
                self._last = self._log.end()
            elif pieces := self._log.ahead(place, most, before=self._before):
                return pieces
            else:
                self._log.wait(place, 100)  # somebody else is sealing
        most = min(most, self._last.position - place.position)
        return self._log.ahead(place, most, before=self._before) if most > 0 else []

    def plan(self, start: LogOffset, end: LogOffset) -> list[list[Piece]]:
        """What the tasks of a batch fetch."""
        begin, stop = self._place(start), self._place(end)
        self._planned = end
        if start == end:  # no batch, see `next`
            return []
        if "begin" in end:
            begin = Place(**end["begin"])
        pieces = self._log.between(begin, stop) if begin != stop else []
        if pieces and self._answered != end and given_up(end, self._options):
            log.warning(GIVEN_UP, sum(one.rows for one in pieces), self._queue)
            return []
        rows = sum(one.rows for one in pieces)
        return shared(pieces, spread(rows, *self._options.partitions(cores())))

    def stop_at_now(self) -> None:
        """Take nothing from now on that is not there yet."""
        self._before = self._store.now()

    def backlog(self) -> dict[str, Any]:
        """The place of this reader and what lies before it."""
        found = self._backlog.seen(self._busy)
        return dict(self.planned) | found | {"paused": self._store.paused(self._queue, known=PAUSE_KNOWN)}

    def _sizes(self) -> dict[str, Any]:
        sizes, (first, end) = self._store.sizes(self._queue), self._log.positions
        return {
            "ready": max(0, end - max(first, self.planned["position"])) + sizes.ready,
            "scheduled": sizes.scheduled,
            "retained": end - first,
        }

    def commit(self, end: LogOffset) -> None:
        """Nothing: what was read stays."""

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def _answer(self, place: Place, reader: str) -> LogOffset:
        self._answered = planned_as(self._offset(place, reader), self._options)
        return self._answered

    def _offset(self, place: Place, reader: str) -> LogOffset:
        return {"v": OFFSET_VERSION, "queue": self._queue, "reader": reader, **asdict(place)}  # type: ignore[typeddict-item]

    def _place(self, offset: Mapping[str, Any]) -> Place:
        """The place in an offset of Spark's. Raises `CheckpointError` where it is that of another query."""
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
        return Place(offset["log"], offset["segment"], offset["row"], offset["position"])


def shared(pieces: Sequence[Piece], shares: Sequence[int]) -> list[list[Piece]]:
    """The pieces cut into shares of so many rows, in their order."""
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


def log_of(store: Store, options: QueueOptions, *, retention: int | None = None) -> Log:
    """The log that a query reads, as its options say."""
    return Log(store, options.queue or "", retention=retention, lossy=not options.fail_on_data_loss)
