"""Counters of the operations on each queue, shared by all programs, in keuss' format.

The counts are approximate. A client writes them for all its queues after 100 ms. If its process is
killed, the counts of the last 100 ms are lost; they are not lost if the store is closed, or if the
process ends by itself. No operation waits for a count, or fails because it cannot be written.
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
from spark_queue.stores.limits import StoreLimits

#: The operations that are counted, by keuss' names.
ACTS = ("put", "get", "reserve", "commit", "rollback", "deadletter")

#: How long to wait before a retry, at most (s).
MAX_RETRY_PAUSE = 60.0

#: Numbers to add, by queue and operation.
Counts = Mapping[str, Mapping[str, int]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of messages by operation, over all clients, since the queue was created.

    `put`: pushed, published, or moved to this queue. `get`: reserved and committed in one
    operation, or moved to another queue. `reserve`, `commit`, `rollback`: by operation of that
    name. `deadletter`: moved to a dead-letter queue. `paused`: whether the queue is paused.
    """

    put: int = 0
    get: int = 0
    reserve: int = 0
    commit: int = 0
    rollback: int = 0
    deadletter: int = 0
    paused: bool = False

    @classmethod
    def from_counts(cls, counted: Mapping[str, Any], paused: bool) -> Self:
        """Return the statistics that a database has; its other counters are ignored."""
        return cls(**{act: int(counted.get(act) or 0) for act in ACTS}, paused=paused)


class Counters:
    """Counts of one client that are not written yet.

    Safe to share among threads. A forked process does not write the counts of its parent.
    """

    def __init__(self, write: Callable[[Counts], None], limits: StoreLimits) -> None:
        """`write` adds counts to those of the database. It raises `StoreError` if it cannot."""
        self._add_to_database, self._limits = write, limits
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._timer: threading.Timer | None = None
        self._retry_pause = 0.0  # s until the next try, after one that failed

    def add(self, queue: str, **acts: int) -> None:
        """Add to the counts: `add("flights", put=100)`. Without counts, only register the queue."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            if not acts or any(acts.values()):
                counted = self._counts.setdefault(queue, Counter())
                for act, number in acts.items():
                    counted[act] += number
            if self._counts and self._timer is None:
                self._schedule_write(self._retry_pause or self._limits.flush_interval)

    def discard(self, queue: str) -> None:
        """Discard the unwritten counts of a queue."""
        if self._pid == os.getpid():
            with self._writing, self._lock:
                self._counts.pop(queue, None)

    def write(self) -> None:
        """Write the counts. If that fails, log it and keep them."""
        if self._pid != os.getpid():
            return
        with self._writing:
            with self._lock:
                counted, self._counts = self._counts, {}
                self._cancel_write()
            counts = {queue: {act: n for act, n in acts.items() if n} for queue, acts in counted.items()}
            counts = {queue: acts for queue, acts in counts.items() if acts or not counted[queue]}
            if not counts:
                return
            try:
                self._add_to_database(counts)
                self._retry_pause = 0.0
            except StoreError as error:
                self._restore(counts, error)

    def _restore(self, counts: Counts, error: StoreError) -> None:
        if not self._retry_pause:
            log.warning("cannot write the statistics of %s, they are kept: %s", ", ".join(map(repr, counts)), error)
        self._retry_pause = min(2 * self._retry_pause or self._limits.flush_retry, MAX_RETRY_PAUSE)
        with self._lock:
            for queue, acts in counts.items():
                self._counts.setdefault(queue, Counter()).update(acts)
            if self._timer is None:
                self._schedule_write(self._retry_pause)

    def close(self) -> None:
        """Write the counts. If that fails, the next `add` or the exit of the process retries it."""
        self.write()
        if self._pid == os.getpid():
            with self._lock:
                self._cancel_write()

    def _schedule_write(self, seconds: float) -> None:
        _write_at_exit(self)
        later = threading.Timer(seconds, self.write)
        later.daemon = True
        with suppress(RuntimeError):  # no new thread while the interpreter ends: see `_write_all`
            later.start()
            self._timer = later

    def _cancel_write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_written_at_exit: weakref.WeakSet[Counters] = weakref.WeakSet()
_exit_pid = 0  # the id of the process that writes at its exit


def _write_at_exit(counters: Counters) -> None:
    global _exit_pid
    _written_at_exit.add(counters)
    if _exit_pid != os.getpid():  # multiprocessing clears the exit functions of its forks
        _exit_pid = os.getpid()
        atexit.register(_write_all)


def _write_all() -> None:
    for counters in list(_written_at_exit):
        counters.close()
