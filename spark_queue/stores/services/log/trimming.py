"""Remove the segments of a log that are too old."""

from __future__ import annotations

import time
from dataclasses import replace

from spark_queue.stores.base import Store
from spark_queue.stores.services.log.head import Heads
from spark_queue.stores.services.log.segments import LOG_TAG

#: Maximum seconds between two checks for segments that are too old.
LONGEST_REST = 60.0


class Trimmer:
    """The removal of old segments. `retention` (ms): the age that `trim_expired` allows.

    `None`: any age.
    """

    def __init__(self, store: Store, queue: str, heads: Heads, retention: int | None) -> None:
        self._store = store
        self._queue = queue
        self._heads = heads
        self._retention = retention
        self._trimmed = 0.0  # time of the last check (monotonic s)

    def trim(self, older_than: int) -> int:
        """Remove segments whose last message is older than this (ms).

        Return the number of removed messages. Readers whose position is in these segments lose the
        messages. A repeated call completes one that was interrupted.
        """
        while True:
            head = self._heads.open()
            limit = self._store.now() - older_than
            first = head.first
            for number, segment in self._heads.segments(head, first):
                # The last segment may be growing while a process is sealing.
                if segment.sealed > limit or (number == head.next - 1 and head.sealing is not None):
                    break
                first = number + 1
            if first == head.first or self._heads.write(replace(head, first=first)):
                return self._remove()

    def _remove(self) -> int:
        """Commit the messages before the first retained segment, then remove their metadata."""
        removed = 0
        while True:
            head = self._heads.open()
            if head.cleared == head.first:
                return removed
            for number, segment in self._heads.segments(head, head.cleared):
                if number >= head.first:
                    break
                removed += self._store.commit(self._queue, f"{LOG_TAG}/{segment.tag}")
            gone = [one for one in head.pages if one.number + one.segments <= head.first]
            some = max(0, head.first - head.number)
            dropped = head.segments[:some]
            shorter = replace(
                head,
                cleared=head.first,
                number=head.number + some,
                position=head.position + sum(one.rows for one in dropped),
                segments=head.segments[some:],
                pages=tuple(one for one in head.pages if one not in gone),
            )
            if self._heads.write(shorter) is None:
                continue
            for page in gone:
                self._heads.forget(head, page)
            return removed

    def retain(self) -> None:
        """Remove segments older than the retention, if the last check is some time ago."""
        if self._retention is None:
            return
        now = time.monotonic()
        if now - self._trimmed >= min(self._retention / 10_000, LONGEST_REST):
            self._trimmed = now
            self.trim(self._retention)
