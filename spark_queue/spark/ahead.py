"""The next batch, reserved while Spark works on the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from spark_queue.options import QueueOptions
from spark_queue.store import open_store
from spark_queue.store.base import Store


@dataclass(frozen=True)
class _Reserving:
    """A batch that is being reserved since `began` (monotonic s)."""

    tag: str
    began: float
    rows: Future[list[int]]


class Ahead:
    """Reserves one batch at a time in a thread, with a connection of its own.

    What it has taken is held under the tag of a batch that is not in Spark's log yet, just as between any reserve
    and the writing of that log: a restarted query finds it under that tag. It is never given back here: a process
    that stood still might take it from its successor.
    """

    def __init__(self, options: QueueOptions, reserve: Callable[[Store, str, int], list[int]]) -> None:
        self._options, self._reserve = options, reserve
        self._thread = ThreadPoolExecutor(1, "spark_queue ahead")
        self._store: Store | None = None
        self._now: _Reserving | None = None

    def start(self, tag: str, most: int) -> None:
        """Begin to reserve up to `most` messages under this tag."""
        self._now = _Reserving(tag, time.monotonic(), self._thread.submit(self._run, tag, most))

    def take(self, tag: str) -> tuple[list[int], float]:
        """What was reserved under this tag, by partition, and since when; nothing where that was not begun.

        Waits until it is done. Raises what made it fail.
        """
        found, self._now = self._now, None
        if found is None or found.tag != tag:
            return [], 0.0
        return found.rows.result(), found.began

    def _run(self, tag: str, most: int) -> list[int]:
        if self._store is None:
            self._store = open_store(self._options.url, patience=self._options.retry_timeout / 1000)
        return self._reserve(self._store, tag, most)

    def close(self) -> None:
        """Wait for the thread, and close the connection."""
        self._thread.shutdown()
        if self._store is not None:
            self._store.close()
