"""A cache of the pause flags of queues.

The database stores the flag with the statistics, as keuss does. A client reads it when it needs it
and the cached one is older than PAUSE_CACHE_SECONDS. A signal updates the cache at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_queue.errors import AccessDenied

#: How long a flag is cached (s); and how long a queue with an unreadable flag is taken as running.
KNOWN, UNREADABLE_KNOWN = 0.25, 60.0

#: The largest number of cached flags.
MOST_QUEUES = 10_000

log = logging.getLogger(__name__)


class Pauses:
    """The cached pause flags of one client. Safe to share among threads."""

    def __init__(self, ask: Callable[[str], bool]) -> None:
        """`read_flag` reads the flag of a queue; it raises `StoreError` if it cannot."""
        self._ask = ask
        self._known: dict[str, tuple[bool, float]] = {}  # queue -> flag, when read (monotonic s)

    def learn(self, queue: str, paused: bool) -> None:
        """Set the cached flag of a queue."""
        self._know(queue, (paused, time.monotonic()))

    def _know(self, queue: str, told: tuple[bool, float]) -> None:
        if len(self._known) >= MOST_QUEUES:
            self._known.clear()  # they are read again
        self._known[queue] = told

    def forget(self, queue: str) -> None:
        """Remove a queue from the cache."""
        self._known.pop(queue, None)

    def paused(self, queue: str, known: float = KNOWN) -> bool:
        """Return whether the queue is paused; a cached flag may be `max_age` s old.

        If the user has no right to read the flag, log that and return `False`. Raises `StoreError`
        if it cannot be read for another reason.
        """
        found = self._known.get(queue)
        now = time.monotonic()
        if found is not None and now - found[1] <= known:
            return found[0]
        try:
            told = self._ask(queue), now
        except AccessDenied as error:
            log.warning("cannot read whether queue %r is paused, so it is taken as running: %s", queue, error)
            told = False, now + UNREADABLE_KNOWN
        if self._known.get(queue) is found:  # else a signal brought a newer flag
            self._know(queue, told)
            return told[0]
        return self._known.get(queue, told)[0]
