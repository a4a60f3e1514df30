"""Remove the segments of a log that are too old."""

from __future__ import annotations

import time
from dataclasses import replace

from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log_notes import LogNotes
from spark_queue.stores.services.log.segments import LOG_TAG


class Trimmer:
    """The removal of old segments. `retention` (ms): the age that `trim_expired` allows.

    `None`: any age.
    """

    def __init__(self, store: Store, queue: str, heads: LogNotes, retention: int | None) -> None:
        self._store = store
        self._queue = queue
        self._notes = heads
        self._retention = retention
        self._last_check = 0.0  # time of the last check (monotonic s)

    def trim(self, older_than: int) -> int:
        """Remove segments whose last message is older than this (ms).

        Return the number of removed messages. Readers whose position is in these segments lose the
        messages. A repeated call completes one that was interrupted.
        """
        while True:
            metadata = self._notes.load_or_create()
            cutoff = self._store.now() - older_than
            first = metadata.first
            for number, segment in self._notes.segments(metadata, first):
                # The last segment may be growing while a process is sealing.
                if segment.sealed > cutoff or (number == metadata.next_number - 1 and metadata.sealing is not None):
                    break
                first = number + 1
            if first == metadata.first or self._notes.write(replace(metadata, first=first)):
                return self._remove()

    def _remove(self) -> int:
        """Commit the messages before the first retained segment, then remove their metadata."""
        removed = 0
        while True:
            metadata = self._notes.load_or_create()
            if metadata.cleared == metadata.first:
                return removed
            for number, segment in self._notes.segments(metadata, metadata.cleared):
                if number >= metadata.first:
                    break
                removed += self._store.commit(self._queue, f"{LOG_TAG}/{segment.tag}")
            gone = [one for one in metadata.pages if one.number + one.segments <= metadata.first]
            count = max(0, metadata.first - metadata.number)
            dropped = metadata.segments[:count]
            trimmed = replace(
                metadata,
                cleared=metadata.first,
                number=metadata.number + count,
                position=metadata.position + sum(one.rows for one in dropped),
                segments=metadata.segments[count:],
                pages=tuple(one for one in metadata.pages if one not in gone),
            )
            if self._notes.write(trimmed) is None:
                continue
            for page in gone:
                self._notes.delete_page(metadata, page)
            return removed

    def trim_expired(self) -> None:
        """Remove segments older than the retention, if the last check is some time ago."""
        if self._retention is None:
            return
        now = time.monotonic()
        if now - self._last_check >= min(self._retention / 10_000, self._store.limits.trim_interval):
            self._last_check = now
            self.trim(self._retention)
