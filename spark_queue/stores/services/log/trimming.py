"""Segments of a log that are too old are removed."""

from __future__ import annotations

import time
from dataclasses import replace

from spark_queue.stores.base import Store
from spark_queue.stores.services.log.head import Heads
from spark_queue.stores.services.log.segments import LOG_TAG

#: The most seconds between two looks for what is too old.
LONGEST_REST = 60.0


class Trimmer:
    """Removes old segments. `retention` (ms): what `retain` removes; `None`: nothing."""

    def __init__(self, store: Store, queue: str, heads: Heads, retention: int | None) -> None:
        self._store = store
        self._queue = queue
        self._heads = heads
        self._retention = retention
        self._trimmed = 0.0  # when it was last looked whether something is too old (monotonic s)

    def trim(self, older_than: int) -> int:
        """Remove the segments that got their last message longer ago (ms); give the number of messages removed.

        Readers whose place is among them have lost these messages. May be repeated: what was cut short is completed.
        """
        while True:
            head = self._heads.open()
            limit = self._store.now() - older_than
            first = head.first
            for number, segment in self._heads.segments(head, first):
                # The last one may be growing, unless nobody is sealing.
                if segment.sealed > limit or (number == head.next - 1 and head.sealing is not None):
                    break
                first = number + 1
            if first == head.first or self._heads.write(replace(head, first=first)):
                return self._remove()

    def _remove(self) -> int:
        """Commit what lies before the first segment that is retained, and forget it."""
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
        """Remove what is too old, now and then."""
        if self._retention is None:
            return
        now = time.monotonic()
        if now - self._trimmed >= min(self._retention / 10_000, LONGEST_REST):
            self._trimmed = now
            self.trim(self._retention)
