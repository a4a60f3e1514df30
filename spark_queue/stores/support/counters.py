"""What was done to the messages of queues, counted for all programs to see, as keuss counts it.

Statistics, not accounts: what a client counts it writes down a tenth of a second later, for all its queues at once,
so what a process counted in its last tenth is gone if it is killed. Nothing is lost when a store is closed, or when a
process ends by itself; and nothing waits for a count, nor fails because one could not be written.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from spark_queue.errors import StoreError

#: What is counted, in keuss' words.
ACTS = ("put", "get", "reserve", "commit", "rollback", "deadletter")

#: Seconds until what was counted is written; until what could not be is tried again, at first and at most.
PERIOD, PAUSE, LONGEST_PAUSE = 0.1, 1.0, 60.0

#: What is to be added, by queue and act.
Counts = Mapping[str, Mapping[str, int]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What was done to the messages of a queue by all its clients, since it was first used or dropped.

    `put`: pushed, published, moved here. `get`: taken for good in one act, or moved to another queue. `reserve`,
    `commit`, `rollback`: taken under a tag, removed, given back. `deadletter`: moved away as dead letters.
    `paused`: whether nothing is taken from it.
    """

    put: int = 0
    get: int = 0
    reserve: int = 0
    commit: int = 0
    rollback: int = 0
    deadletter: int = 0
    paused: bool = False

    @classmethod
    def of(cls, counted: Mapping[str, Any], paused: bool) -> Self:
        """Statistics from what a database has; what else is counted there is left out."""
        return cls(**{act: int(counted.get(act) or 0) for act in ACTS}, paused=paused)


class Counters:
    """What one client has counted and not written yet.

    Safe to share among threads. What a process had counted before it was forked is its own business.
    """

    def __init__(self, write: Callable[[Counts], None]) -> None:
        """`write` adds to what the database has. Raises `StoreError` where it cannot."""
        self._add_to_database = write
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._later: threading.Timer | None = None
        self._pause = 0.0  # s until the next try, after one that failed

    def add(self, queue: str, **acts: int) -> None:
        """Count acts on so many messages: `add("flights", put=100)`. Without acts, a queue just has statistics."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if not acts or any(acts.values()):
                counted = self._counts.setdefault(queue, Counter())
                for act, number in acts.items():
                    counted[act] += number
            if self._counts and self._later is None:
                self._write_in(self._pause or PERIOD)

    def forget(self, queue: str) -> None:
        """Count anew: what is not written of this queue never is."""
        if self._pid == os.getpid():
            with self._writing, self._lock:
                self._counts.pop(queue, None)

    def write(self) -> None:
        """Write what was counted so far; where that cannot be it is kept, and the log says so."""
        if self._pid != os.getpid():
            return
        with self._writing:
            with self._lock:
                counted, self._counts = self._counts, {}
                self._write_no_more()
            counts = {queue: {act: n for act, n in acts.items() if n} for queue, acts in counted.items()}
            counts = {queue: acts for queue, acts in counts.items() if acts or not counted[queue]}
            if not counts:
                return
            try:
                self._add_to_database(counts)
                self._pause = 0.0
            except StoreError as error:
                self._keep(counts, error)

    def _keep(self, counts: Counts, error: StoreError) -> None:
        if not self._pause:
            log.warning("the statistics of %s are not written, and kept: %s", ", ".join(map(repr, counts)), error)
        self._pause = min(2 * self._pause or PAUSE, LONGEST_PAUSE)
        with self._lock:
            for queue, acts in counts.items():
                self._counts.setdefault(queue, Counter()).update(acts)
            if self._later is None:
                self._write_in(self._pause)

    def close(self) -> None:
        """Write what was counted. What cannot be written is tried again when something is counted, or at exit."""
        self.write()
        if self._pid == os.getpid():
            with self._lock:
                self._write_no_more()

    def _write_in(self, seconds: float) -> None:
        _write_at_exit(self)
        later = threading.Timer(seconds, self.write)
        later.daemon = True
        with suppress(RuntimeError):  # the interpreter is ending, and starts no thread: it is written at exit
            later.start()
            self._later = later

    def _write_no_more(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None


_unwritten: weakref.WeakSet[Counters] = weakref.WeakSet()
_exits_of = 0  # the process that writes at its exit


def _write_at_exit(counters: Counters) -> None:
    global _exits_of
    _unwritten.add(counters)
    if _exits_of != os.getpid():  # what multiprocessing has forked begins without what was to be done at exit
        _exits_of = os.getpid()
        atexit.register(_write_all)


def _write_all() -> None:
    for counters in list(_unwritten):
        counters.close()
