"""A cache of the settings that are stored with queues: one for each store."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_queue.stores.policy import StoredSettings

#: How long the settings of a queue are cached (s).
SETTINGS_CACHE_SECONDS = 30.0

#: The largest number of queues whose settings are cached.
MAX_CACHED_SETTINGS = 10_000


class SettingsCache:
    """The settings of queues, as one client has read them. Safe to share among threads."""

    def __init__(self, read: Callable[[str], StoredSettings]) -> None:
        """`read` reads the settings of a queue; it raises `StoreError` if it cannot."""
        self._read = read
        self._cached: dict[str, tuple[StoredSettings, float]] = {}  # queue -> settings, cached until (s)

    def get(self, queue: str) -> StoredSettings:
        """Return the settings of a queue, at most SETTINGS_CACHE_SECONDS old."""
        found, until = self._cached.get(queue, (StoredSettings(), 0.0))
        if time.monotonic() >= until:
            found = self._read(queue)
            if len(self._cached) >= MAX_CACHED_SETTINGS:
                self._cached.clear()  # they are read again
            self._cached[queue] = found, time.monotonic() + SETTINGS_CACHE_SECONDS
        return found

    def discard(self, queue: str) -> None:
        """Remove a queue from the cache."""
        self._cached.pop(queue, None)
