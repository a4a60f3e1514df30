"""A cache of the pause flags of queues.

The database stores the flag with the statistics, as keuss does. A client reads it when it needs it
and the cached one is older than the limit `pause_cache`. A signal updates the cache at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_queue.errors import AccessDenied
from spark_queue.stores.limits import StoreLimits

#: How long a queue with an unreadable flag is taken as running (s).
UNREADABLE_CACHE_SECONDS = 60.0

log = logging.getLogger(__name__)


class PauseCache:
    """The cached pause flags of one client. Safe to share among threads."""

    def __init__(self, read_flag: Callable[[str], bool], limits: StoreLimits) -> None:
        """`read_flag` reads the flag of a queue; it raises `StoreError` if it cannot."""
        self._read_flag, self._limits = read_flag, limits
        self._flags: dict[str, tuple[bool, float]] = {}  # queue -> flag, when read (monotonic s)

    def update(self, queue: str, paused: bool) -> None:
        """Set the cached flag of a queue."""
        self._put(queue, (paused, time.monotonic()))

    def _put(self, queue: str, entry: tuple[bool, float]) -> None:
        if len(self._flags) >= self._limits.cached_pauses:
            self._flags.clear()  # they are read again
        self._flags[queue] = entry

    def discard(self, queue: str) -> None:
        """Remove a queue from the cache."""
        self._flags.pop(queue, None)

    def is_paused(self, queue: str, max_age: float | None = None) -> bool:
        """Return whether the queue is paused; a cached flag may be `max_age` s old.

        If the user has no right to read the flag, log that and return `False`. Raises `StoreError`
        if it cannot be read for another reason.
        """
        max_age = self._limits.pause_cache if max_age is None else max_age
        cached = self._flags.get(queue)
        now = time.monotonic()
        if cached is not None and now - cached[1] <= max_age:
            return cached[0]
        try:
            entry = self._read_flag(queue), now
        except AccessDenied as error:
            log.warning("cannot read whether queue %r is paused, so it is taken as running: %s", queue, error)
            entry = False, now + UNREADABLE_CACHE_SECONDS
        if self._flags.get(queue) is cached:  # else a signal brought a newer flag
            self._put(queue, entry)
            return entry[0]
        return self._flags.get(queue, entry)[0]
