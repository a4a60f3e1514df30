"""A log beside other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.at_most_once import given_up
from spark_queue.spark.read.fetch import Share
from spark_queue.spark.read.limits import ALL
from spark_queue.spark.read.log_consumer import LogReader
from spark_queue.spark.read.offsets import Offset
from spark_queue.stores import open_store
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import Piece, Place


class LogInput(LogReader):
    """What a `Consumer` is to a queue: see there. Nothing is held, so that there is nothing to give back.

    The offset of a batch names the place before it, and the one after it, as `places`.
    """

    def __init__(self, options: QueueOptions) -> None:
        super().__init__(options)
        self._at: Place | None = None  # where the next batch begins
        self._taken: list[Piece] = []  # what that is going to be
        self._reserved = -1  # the number of the last batch that this very process has taken

    def begin(self) -> dict[str, Any]:
        """The place at which a query begins that has a new checkpoint."""
        return asdict(self._place(self.initial))

    def check(self, end: Offset) -> bool:
        return True

    def remove(self, end: Offset) -> None:
        self._at = self._log.found(Place(**end["places"][1]))
        self._taken = []

    def wait(self, timeout: int) -> bool:
        assert self._at is not None
        return self._before is not None or self._log.wait(self._at, timeout)

    @contextmanager
    def watching(self) -> Iterator[Callable[[int], bool]]:
        with open_store(self._options.url, patience=self._options.retry_timeout / 1000) as store:
            log = Log(store, self._queue, lossy=True)
            yield lambda timeout: self._at is not None and log.wait(self._at, timeout)

    def ready(self, most: int) -> int:
        assert self._at is not None
        if most >= ALL:
            most = self._log.latest().position - self._at.position
        self._taken = self._ahead(self._at, most) if most > 0 else []
        return sum(one.rows for one in self._taken)

    def take(self, start: Offset, most: int) -> list[int]:
        rows = self.ready(most)
        return [rows] if rows else []

    def readable(self, start: Offset, rows: list[int]) -> list[int]:
        return rows  # a log shows what cannot be read, and keeps its place

    def keep(self, start: Offset, rows: list[int], most: int) -> list[int]:
        return [min(sum(rows), most)] if rows and most else []

    def reserved(self, start: Offset, rows: list[int]) -> None:
        self._reserved = start["seq"] + 1

    def passed(self, rows: int) -> list[dict[str, Any]]:
        """The places before and after so many rows of what was taken."""
        assert self._at is not None
        begin = end = self._taken[0].start if rows else self._at
        for piece in self._taken:
            if rows > 0:
                end = replace(piece, rows=min(rows, piece.rows)).end
                rows -= piece.rows
        return [asdict(begin), asdict(end)]

    def hold(self, end: Offset) -> list[Share]:
        self._planned = self._offset(Place(**end["places"][1]), end["consumer"])
        self._busy = True
        if self._reserved != end["seq"] and given_up(end, self._options):
            return []
        return self.lies(end)

    def lies(self, end: Offset, *, again: bool = False) -> list[Share]:
        begin, last = (Place(**one) for one in end["places"])
        pieces = self._log.between(begin, last)
        return [Share(one.tag, one.rows, first=one.start.row, position=one.start.position) for one in pieces]

    def missing(self, end: Offset) -> int:
        return sum(end["rows"]) - sum(one.rows or 0 for one in self.lies(end))

    def release(self, end: Offset) -> int:
        return 0

    def leave(self) -> None:
        pass

    def start(self, end: Offset) -> None:
        pass

    def tidy(self, start: Offset) -> None:
        pass

    def idle(self) -> None:
        self._busy = False
