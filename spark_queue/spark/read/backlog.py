"""Cache the backlog that a query reports: Spark asks for it at every batch, but counting costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds between two counts of an idle query, and of a busy one.
IDLE_INTERVAL, BUSY_INTERVAL = 10.0, 1.0

#: The shortest interval between two counts, in durations of the last one: in some databases a count
#: takes longer if the queue is longer.
COST_FACTOR = 20


class BacklogCache:
    """The last result of `count`."""

    def __init__(self, count: Callable[[], dict[str, Any]]) -> None:
        self._count = count
        self._sizes: dict[str, Any] = {}
        self._counted_at = self._min_interval = 0.0

    def get(self, busy: bool) -> dict[str, Any]:
        """Return the last result; count again if it is too old for a `busy` or an idle query."""
        started = time.monotonic()
        if started - self._counted_at > max(BUSY_INTERVAL if busy else IDLE_INTERVAL, self._min_interval):
            self._sizes = self._count()
            self._counted_at = time.monotonic()
            self._min_interval = COST_FACTOR * (self._counted_at - started)
        return self._sizes
