"""Renew the leases and the heartbeat of a consumer, in a thread of the reader process."""

from __future__ import annotations

import logging
import math
import os
import threading
import time

from spark_queue.errors import FencedError, StoreError
from spark_queue.options.masking import mask
from spark_queue.options.stream import StreamOptions
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership

log = logging.getLogger(__name__)


class LeaseRenewer:
    """A thread that renews the heartbeat of a consumer, and the leases of its batches."""

    def __init__(self, options: StreamOptions, ownership: Ownership, lease: int, parked: str | None) -> None:
        """Start the thread. `lease`: that of batches (ms). `parked`: the tag of parked messages."""
        self._options = options
        self._ownership = ownership
        self._parked = parked
        self._lease = lease
        self._interval = lease / 3000  # seconds between two renewals
        self._renew_at: dict[str, float] = {}  # when to renew the lease of each tag (monotonic s)
        self._leases: dict[str, int] = {}  # the lease of each tag (ms)
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._fenced: FencedError | None = None
        self._parent = os.getppid()
        self._wake = threading.Event()
        self._done = False
        self._thread = threading.Thread(target=self._run, name="spark_queue lease renewer", daemon=True)
        self._thread.start()

    def watch(self, tag: str, since: float = -math.inf, lease: int | None = None) -> None:
        """Begin to renew the lease of this batch, which began at `since` (monotonic s).

        `lease`: its own (ms), instead of that of batches.
        """
        with self._lock:
            self._leases[tag] = lease or self._lease
            self._renew_at[tag] = since + self._interval
        if since + self._interval < time.monotonic():
            self._wake.set()

    def forget(self, tag: str) -> None:
        """Stop renewing the lease of this batch. No renewal follows once this has returned."""
        with self._lock:
            self._renew_at.pop(tag, None)
            self._leases.pop(tag, None)
        with self._renewing:
            pass

    def check(self) -> None:
        """Raise `FencedError` if this process lost the consumer."""
        if self._fenced is not None:
            raise self._fenced
        self._ownership.check()

    def check_newest(self, batch: Batch) -> None:
        """Raise as `check`, and raise `CheckpointError` unless this batch was started last."""
        if self._fenced is not None:
            raise self._fenced
        self._ownership.check_newest(batch)

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._done = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        heartbeat = self._ownership.limits.heartbeat
        interval = min(heartbeat, self._interval)
        beat_at = time.monotonic()
        with open_store(self._options.database.url, retry_timeout=round(interval * 1000)) as store:
            ownership = self._ownership.with_store(store)
            while not self._done and self._fenced is None:
                if os.getppid() != self._parent:
                    log.warning("the Spark driver has ended, so its reader process ends too")
                    os._exit(1)  # the main thread may be waiting for a database
                try:
                    self._renew(store)
                    if time.monotonic() - beat_at >= heartbeat:
                        beat_at = time.monotonic()
                        ownership.renew()
                except FencedError as error:
                    self._fenced = error
                except StoreError as error:
                    # The next renewal may succeed. If the database stays unreachable, the batch
                    # fails.
                    url = mask(self._options.database.url)
                    log.warning("could not write the heartbeat of this query to %s: %s", url, error)
                self._wake.wait(interval)
                self._wake.clear()

    def _renew(self, store: Store) -> None:
        queue, now = self._options.queue, time.monotonic()
        with self._lock:
            due = [tag for tag, moment in self._renew_at.items() if moment <= now]
        for tag in due:
            with self._renewing:
                if lease := self._leases.get(tag):
                    store.renew(queue, tag, lease)
        if due and self._parked is not None:
            store.renew(queue, self._parked, self._lease)
        with self._lock:
            self._renew_at |= {tag: time.monotonic() + self._interval for tag in due if tag in self._renew_at}
