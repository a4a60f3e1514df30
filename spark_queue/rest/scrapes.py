"""Scrapes of the metrics: one is computed at a time, and all callers share its result.

With many queues, a scrape takes seconds. Callers that do not get a new one in time get the last one
with its age: in the header `Age`, and as `spark_queue_scrape_age_seconds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from spark_queue.rest.errors import Overloaded

#: How long a scrape counts as new (s). After one that took longer, the next begins as much later.
FRESH = 2.0

#: How long a caller waits for a new scrape if there is an older one, and if there is none (s).
PATIENCE, FIRST_PATIENCE = 1.0, 8.0

#: The metric of the age of a scrape.
AGE_METRIC = "spark_queue_scrape_age_seconds"


class Scrape(NamedTuple):
    """The text of all metrics, and how old it is (s)."""

    text: bytes
    age: float


class Scrapes:
    """The scrapes of a server. Call it from one thread, that of the event loop."""

    def __init__(
        self,
        render: Callable[[], bytes],
        *,
        fresh: float = FRESH,
        patience: float = PATIENCE,
        first_patience: float = FIRST_PATIENCE,
    ) -> None:
        """`render` returns the text of all metrics, and may block."""
        self._render, self._fresh = render, fresh
        self._patience, self._first_patience = patience, first_patience
        self._thread = ThreadPoolExecutor(1, "rest metrics")
        self._running: asyncio.Task[None] | None = None
        self._text: bytes | None = None
        self._at = self._next = 0.0

    async def get(self) -> Scrape:
        """Return a new scrape, or the last one if a new one takes long.

        Raises `Overloaded` if there is none yet, and the first one takes long. It goes on.
        """
        clock = asyncio.get_running_loop().time
        if self._running is None and (self._text is None or clock() >= self._next):
            self._running = asyncio.ensure_future(self._scrape())
        if self._running is not None:
            running = self._running
            await asyncio.wait([running], timeout=self._first_patience if self._text is None else self._patience)
            if running.done() and self._text is None:
                running.result()
        if self._text is None:
            raise Overloaded("the first scrape of the metrics takes long, since there are many queues: try again")
        age = clock() - self._at
        text = (
            f"# HELP {AGE_METRIC} Seconds since these metrics were read\n# TYPE {AGE_METRIC} gauge\n"
            f"{AGE_METRIC} {age:.3f}\n"
        )
        return Scrape(self._text + text.encode(), age)

    async def _scrape(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._text = await loop.run_in_executor(self._thread, self._render)
            self._at = began
        finally:
            self._next = loop.time() + max(self._fresh, loop.time() - began)
            self._running = None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
