"""Report the state of a queue in the progress of a query: its sizes, and whether it is paused."""

from __future__ import annotations

import logging
from typing import Any

from spark_queue.spark.read.backlog import Backlog
from spark_queue.stores.base import Store

log = logging.getLogger(__name__)

#: How long (ms) the pause state of a queue without ready messages is cached. A signal ends that
#: sooner. If messages are ready, the cache is not used.
QUEUE_PAUSE_CACHE_MS = 10_000


class QueueState:
    """The state of one queue."""

    def __init__(self, store: Store, queue: str, dead: str) -> None:
        """Report the state of `queue`, whose dead-letter queue is `dead`."""
        self._store = store
        self._queue = queue
        self._paused = False
        self._backlog = Backlog(store, queue, dead)

    def report(self, busy: bool) -> dict[str, Any]:
        """Return the sizes, which may come from a cache, and whether the queue is paused."""
        return self._backlog.report(busy) | {"paused": self.check_paused()}

    def check_paused(self) -> bool:
        """Return whether the queue is paused, perhaps from a cache; warn when that begins."""
        paused = self._store.is_paused(self._queue, max_age_ms=QUEUE_PAUSE_CACHE_MS)
        if paused and not self._paused:
            log.warning("queue %s is paused: no messages are read until it is resumed", self._queue)
        self._paused = paused
        return paused
