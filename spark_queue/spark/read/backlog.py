"""What lies before a query, for its progress: counted now and then only, for Spark asks at every batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds between two looks of an idle query, and of a busy one.
IDLE, BUSY = 10.0, 1.0

#: How many times as long as a look took is waited for the next one: counting grows with the queue in some databases.
REST = 20


class Backlog:
    """What `look` found last."""

    def __init__(self, look: Callable[[], dict[str, Any]]) -> None:
        self._look = look
        self._found: dict[str, Any] = {}
        self._at = self._rest = 0.0

    def seen(self, busy: bool) -> dict[str, Any]:
        """It, and anew if it is too old for a query that is so busy."""
        begun = time.monotonic()
        if begun - self._at > max(BUSY if busy else IDLE, self._rest):
            self._found = self._look()
            self._at = time.monotonic()
            self._rest = REST * (self._at - begun)
        return self._found
