"""The check of the stores, for `/ready`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_queue.errors import QueueError
from spark_queue.stores.base import Store

#: How long an answer of the stores is cached, and how long a caller waits for one at most (s).
ANSWER_FRESH, LONGEST_CHECK = 1.0, 2.5

log = logging.getLogger(__name__)


class Readiness:
    """A cached check of all stores. One thread at a time asks each store, for all callers."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores, self._unreachable = stores, dict.fromkeys(stores, False)
        self._threads = ThreadPoolExecutor(max(1, len(stores)), "rest ready")
        self._running_check: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def ready(self) -> bool:
        """Return whether all stores answered, at most ANSWER_FRESH seconds ago.

        `False` if they do not answer within LONGEST_CHECK seconds.
        """
        now = asyncio.get_running_loop().time
        if self._running_check is None or (self._running_check.done() and now() >= self._until):
            self._running_check = asyncio.ensure_future(self._check_stores())
        done, _ = await asyncio.wait([self._running_check], timeout=LONGEST_CHECK)
        return bool(done) and self._running_check.result()

    async def _check_stores(self) -> bool:
        loop = asyncio.get_running_loop()
        checks = [loop.run_in_executor(self._threads, self._check_store, ns) for ns in self._stores]
        found = await asyncio.gather(*checks)
        self._until = loop.time() + ANSWER_FRESH
        return all(found)

    def _check_store(self, ns: str) -> bool:
        """Return whether a store answers with its time, and log a change."""
        try:
            self._stores[ns].now()
        except QueueError as error:
            if not self._unreachable[ns]:
                log.warning("not ready: the store of namespace %r cannot be reached: %s", ns, error)
            self._unreachable[ns] = True
        else:
            if self._unreachable[ns]:
                log.warning("the store of namespace %r can be reached again", ns)
            self._unreachable[ns] = False
        return not self._unreachable[ns]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
