"""The next batch, reserved while Spark works on the last one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from spark_queue.errors import FencedError, StoreError
from spark_queue.masking import mask
from spark_queue.options import QueueOptions
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.ownership import Ownership

log = logging.getLogger(__name__)

#: Seconds that the end of a process may wait for a batch to be given back: less than an owner counts as living.
GRACE = 5


@dataclass(frozen=True)
class _Reserving:
    """A batch that is being reserved since `began` (monotonic s)."""

    tag: str
    began: float
    rows: Future[list[int]]


class Ahead:
    """Reserves one batch at a time in a thread, with a connection of its own.

    What it has taken is held under the tag of a batch that is not in Spark's log yet, just as between any reserve
    and the writing of that log: a restarted query finds it under that tag.
    """

    def __init__(
        self, options: QueueOptions, ownership: Ownership, reserve: Callable[[Store, str, int, int], list[int]]
    ) -> None:
        self._options, self._ownership, self._reserve = options, ownership, reserve
        self._store = open_store(options.url, patience=options.retry_timeout / 1000)
        self._now: _Reserving | None = None

    @property
    def holds(self) -> bool:
        """Whether something is reserved, or being reserved, that nobody has asked for yet."""
        return self._now is not None

    def start(self, tag: str, most: int, before: int) -> None:
        """Begin to reserve up to `most` messages that mature by then under this tag, unless that has begun."""
        if self._now is None:
            self._now = _Reserving(tag, time.monotonic(), Future())
            run = threading.Thread(
                target=self._run, args=(self._now, most, before), name="spark_queue ahead", daemon=True
            )
            run.start()

    def take(self, tag: str) -> tuple[list[int], float]:
        """What was reserved under this tag, by partition, and since when; nothing where that was not begun.

        Waits until it is done. Raises what made it fail. From now on it is not given back.
        """
        found, self._now = self._now, None
        if found is None or found.tag != tag:
            return [], 0.0
        return found.rows.result(), found.began

    def _run(self, found: _Reserving, most: int, before: int) -> None:
        try:
            self._ownership.on(self._store).check()  # whoever stood still until now takes nothing
            found.rows.set_result(self._reserve(self._store, found.tag, most, before))
        except BaseException as error:  # noqa: BLE001 - it is raised where the batch is taken
            found.rows.set_exception(error)

    def close(self) -> None:
        """Give back what nobody has asked for, and close the connection.

        Where that cannot be done soon, it stays reserved, as it does behind a process that is killed.
        """
        found, self._now = self._now, None
        if found is not None:
            self._give_back(found)
        if found is None or found.rows.done():
            self._store.close()

    def _give_back(self, found: _Reserving) -> None:
        try:
            found.rows.exception(GRACE)
            self._store.patience = GRACE / 2
            # Until LIFE has passed nobody takes over, so what is given back is not a successor's.
            self._ownership.on(self._store).renew()
            given = self._store.rollback(self._options.queue or "", found.tag, failed=False)
            log.debug("%d messages of %s, reserved under %s, were released", given, self._options.queue, found.tag)
        except FencedError:
            pass  # it is for the new owner to use
        except (StoreError, TimeoutError) as error:
            log.warning(
                "messages reserved under %s could not be released to %s: %s",
                found.tag,
                mask(self._options.url),
                error,
            )
