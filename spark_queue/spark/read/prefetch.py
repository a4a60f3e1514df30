"""Reserve the next batch while Spark works on the current one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from spark_queue.errors import FencedError, StoreError
from spark_queue.options.masking import mask
from spark_queue.options.stream import StreamOptions
from spark_queue.stores import open_database
from spark_queue.stores.base import Store
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.support.patience import retrying_for

log = logging.getLogger(__name__)

#: How long (s) a process that ends may wait to release a batch: less than `owner_timeout_ms`.
RELEASE_TIMEOUT = 5


@dataclass(frozen=True)
class _Prefetch:
    """A batch that is being reserved, or is reserved. `began`: when that began (monotonic s)."""

    tag: str
    began: float
    rows: Future[list[int]]


class Prefetcher:
    """Reserves one batch at a time in a thread, with its own connection.

    As after any reserve, the batch is not in Spark's log yet. A process that ends releases the
    messages; after a kill, the next process releases them.
    """

    def __init__(
        self, options: StreamOptions, ownership: Ownership, reserve: Callable[[Store, str, int, int], list[int]]
    ) -> None:
        self._options, self._ownership, self._reserve = options, ownership, reserve
        self._store = open_database(options.database)
        self.pending: _Prefetch | None = None  #: what `take` has not returned yet

    def start(self, tag: str, limit: int, before: int) -> None:
        """Begin to reserve up to `limit` messages that are due by `before` (ms), under this tag.

        Does nothing if a batch is pending.
        """
        if self.pending is None:
            self.pending = _Prefetch(tag, time.monotonic(), Future())
            arguments = self.pending, limit, before
            threading.Thread(target=self._run, args=arguments, name="spark_queue prefetch", daemon=True).start()

    def take(self, tag: str) -> tuple[list[int], float]:
        """Return the rows reserved under this tag, by partition, and when that began (monotonic s).

        Returns no rows without a `start` for this tag. Waits until they are reserved, and raises
        the error of that. After this call, `close` does not release them.
        """
        found, self.pending = self.pending, None
        if found is None or found.tag != tag:
            return [], 0.0
        return found.rows.result(), found.began

    def _run(self, found: _Prefetch, limit: int, before: int) -> None:
        try:
            self._ownership.with_store(self._store).check()  # a process that lost its consumer reserves nothing
            found.rows.set_result(self._reserve(self._store, found.tag, limit, before))
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            found.rows.set_exception(error)

    def close(self) -> None:
        """Release the batch that `take` has not returned, and close the connection.

        If that fails or takes long, it stays reserved, as after a kill.
        """
        found, self.pending = self.pending, None
        if found is not None:
            self._release(found)
        if found is None or found.rows.done():
            self._store.close()

    def _release(self, found: _Prefetch) -> None:
        try:
            found.rows.exception(RELEASE_TIMEOUT)
            with retrying_for(RELEASE_TIMEOUT * 1000 // 2):
                # No process takes over before `owner_timeout_ms`: no successor uses these messages.
                self._ownership.with_store(self._store).renew()
                released = self._store.rollback(self._options.queue, found.tag, failed=False)
            log.debug("%d messages of %s, reserved under %s, were released", released, self._options.queue, found.tag)
        except FencedError:
            pass  # the new owner uses the batch
        except (StoreError, TimeoutError) as error:
            url = mask(self._options.database.url)
            log.warning("could not release the messages reserved under %s to %s: %s", found.tag, url, error)
