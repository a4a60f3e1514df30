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
        self._stores, self._away = stores, dict.fromkeys(stores, False)
        self._threads = ThreadPoolExecutor(max(1, len(stores)), "rest ready")
        self._asking: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def ready(self) -> bool:
        """Return whether all stores answered, at most ANSWER_FRESH seconds ago.

        `False` if they do not answer within LONGEST_CHECK seconds.
        """
        now = asyncio.get_running_loop().time
        if self._asking is None or (self._asking.done() and now() >= self._until):
            self._asking = asyncio.ensure_future(self._ask())
        done, _ = await asyncio.wait([self._asking], timeout=LONGEST_CHECK)
        return bool(done) and self._asking.result()

    async def _ask(self) -> bool:
        loop = asyncio.get_running_loop()
        asked = [loop.run_in_executor(self._threads, self._answers, ns) for ns in self._stores]
        found = await asyncio.gather(*asked)
        self._until = loop.time() + ANSWER_FRESH
        return all(found)

    def _answers(self, ns: str) -> bool:
        """Return whether a store answers with its time, and log a change."""
        try:
            self._stores[ns].now()
        except QueueError as error:
            if not self._away[ns]:
                log.warning("not ready: the store of namespace %r cannot be reached: %s", ns, error)
            self._away[ns] = True
        else:
            if self._away[ns]:
                log.warning("the store of namespace %r can be reached again", ns)
            self._away[ns] = False
        return not self._away[ns]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
