"""Cache the backlog that a query reports: Spark asks for it at every batch, but counting costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds between two counts of an idle query, and of a busy one.
IDLE, BUSY = 10.0, 1.0

#: The shortest interval between two counts, in durations of the last one: in some databases a count
#: takes longer if the queue is longer.
REST = 20


class Backlog:
    """The last result of `count`."""

    def __init__(self, look: Callable[[], dict[str, Any]]) -> None:
        self._look = look
        self._found: dict[str, Any] = {}
        self._at = self._rest = 0.0

    def seen(self, busy: bool) -> dict[str, Any]:
        """Return the last result; count again if it is too old for a `busy` or an idle query."""
        begun = time.monotonic()
        if begun - self._at > max(BUSY if busy else IDLE, self._rest):
            self._found = self._look()
            self._at = time.monotonic()
            self._rest = REST * (self._at - begun)
        return self._found
