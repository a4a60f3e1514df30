"""Which queues are paused: what a client knows of it, and for how long it believes that.

The database has the flag, beside the statistics, where keuss keeps it. A client reads it anew when what it knows is
older than KNOWN and it matters, and learns of a change at once where a signal tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_queue.errors import AccessDenied

#: Seconds for which the flag is believed; and for which a queue is taken for running whose flag cannot be read.
KNOWN, UNREADABLE_KNOWN = 0.25, 60.0

#: Most queues that are known at a time.
MOST_QUEUES = 10_000

log = logging.getLogger(__name__)


class Pauses:
    """What one client knows. Safe to share among threads."""

    def __init__(self, ask: Callable[[str], bool]) -> None:
        """`ask` reads the flag of a queue. Raises `StoreError`."""
        self._ask = ask
        self._known: dict[str, tuple[bool, float]] = {}  # queue -> its flag, as it was then (monotonic s)

    def learn(self, queue: str, paused: bool) -> None:
        """Know this from now on."""
        self._know(queue, (paused, time.monotonic()))

    def _know(self, queue: str, told: tuple[bool, float]) -> None:
        if len(self._known) >= MOST_QUEUES:
            self._known.clear()  # it is asked again
        self._known[queue] = told

    def forget(self, queue: str) -> None:
        """Know nothing of the queue."""
        self._known.pop(queue, None)

    def paused(self, queue: str, known: float = KNOWN) -> bool:
        """Whether the queue is paused, as known so many seconds ago at most.

        One whose flag this user may not read is not, and the log says so. Raises `StoreError`.
        """
        found = self._known.get(queue)
        now = time.monotonic()
        if found is not None and now - found[1] <= known:
            return found[0]
        try:
            told = self._ask(queue), now
        except AccessDenied as error:
            log.warning("whether %r is paused cannot be read, so it is taken for running: %s", queue, error)
            told = False, now + UNREADABLE_KNOWN
        if self._known.get(queue) is found:  # else a signal has told something newer
            self._know(queue, told)
            return told[0]
        return self._known.get(queue, told)[0]
