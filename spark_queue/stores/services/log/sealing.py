"""Seal ready messages: make them segments of a log. One process at a time does this."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_queue.messages.columns import milliseconds
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log_notes import LogNotes
from spark_queue.stores.services.log.segments import LOG_TAG, LogMetadata, Sealing, Segment
from spark_queue.stores.services.owner import Owner, SilenceTimer

log = logging.getLogger(__name__)

#: ms for which messages are released that a process reserves after another has taken over its seal.
STALE_MS = 600_000

#: ms for which it is cached whether a queue is paused.
PAUSE_CACHE_MS = 250


class _Sealed(NamedTuple):
    """The result of a seal: new segments, or the last segment with more messages."""

    segments: Sequence[Segment]
    grown: Segment | None = None


class Sealer:
    """The sealing of ready messages of a queue, for one reader of its log."""

    def __init__(self, store: Store, queue: str, heads: LogNotes) -> None:
        self._store = store
        self._queue = queue
        self._notes = heads
        self._token = uuid.uuid4().hex
        self._watch = SilenceTimer(store.limits.owner_timeout_ms)

    def seal(self, limit: int | None = None, *, before: int = MAX_TIME_MS) -> int:
        """Put up to `limit` messages that are ready and due by `before` (ms) into the log.

        Return their number. It is 0 if none are ready, or if another process is sealing.
        """
        limit = self._store.limits.seal_rows if limit is None else limit
        metadata = self._notes.load_or_create()
        previous = metadata.sealing
        ready = self.count_ready(before, limit)
        if previous is None and not ready:
            return 0
        now = self._store.now()
        if previous is not None and previous.owner.token != self._token and self.is_alive(previous):
            return 0
        after = () if previous is None else (*previous.superseded, previous.tag)
        me = Owner.current(self._token, now, timeout_ms=self._store.limits.owner_timeout_ms)
        claim = Sealing(f"{metadata.next_number}/{uuid.uuid4().hex[:12]}", after, me)
        stale = {tag: at for tag, at in metadata.stale if at > now - STALE_MS}
        stale_tags = tuple((stale | dict.fromkeys(after, now)).items())
        started = self._notes.write(replace(self._notes.page_out(metadata), sealing=claim, stale=stale_tags))
        if started is None:
            return 0
        for tag in stale.keys() - set(after):
            self._store.rollback(self._queue, f"{LOG_TAG}/{tag}", failed=False)
        sealed = self._adopt(started, claim) if after else None
        if sealed is None:
            parts = -(-ready // self._store.limits.segment_rows)
            sealed = self._reserve(started, claim, limit, parts, before, now)
        return self._write_result(started, claim, sealed)

    def is_alive(self, sealing: Sealing) -> bool:
        """Return whether the sealing process is alive, by the database's clock and by ours."""
        silent = self._watch.is_silent(sealing.tag)
        return sealing.owner.is_alive(self._store.now()) and not silent

    def count_ready(self, before: int, limit: int = 1) -> int:
        """Return how many messages due by `before` (ms) can be sealed, counted up to `limit`."""
        if self._store.is_paused(self._queue, max_age_ms=PAUSE_CACHE_MS):
            return 0
        return self._store._attempt(self._store._ready, self._queue, limit, before)

    def _adopt(self, metadata: LogMetadata, claim: Sealing) -> _Sealed | None:
        """Transfer the messages of superseded tags to the claim's tag.

        If they were to make the last segment grow, complete this and return the result. Else return
        `None`.
        """
        tag = f"{LOG_TAG}/{claim.tag}/0"
        for old in claim.superseded:
            self._store.transfer(self._queue, f"{LOG_TAG}/{old}", tag, lease=None)
        # Only after the transfer: no other process can make the segment grow any more.
        last_segment = metadata.segments[-1] if metadata.segments and metadata.next_number > metadata.first else None
        if last_segment is None or self._count_rows(last_segment.tag) <= last_segment.rows:
            return None
        if not self._grow_segment(claim, last_segment):
            return _Sealed(())
        rows = self._count_rows(last_segment.tag)
        return _Sealed((), last_segment._replace(rows=rows, sealed=self._store.now(), last=None))

    def _grow_segment(self, claim: Sealing, segment: Segment) -> bool:
        """Transfer the messages of the claim's tag to the last segment.

        Return `False`, and transfer none, if another process has taken over. The tag gets no more
        messages. So a process that takes over after this check finds all of them under the tag or
        in the segment. It transfers them before it counts the rows of the segment.
        """
        metadata = self._notes.load_or_create()
        if metadata.sealing is None or metadata.sealing.tag != claim.tag:
            return False
        self._store.transfer(self._queue, f"{LOG_TAG}/{claim.tag}", f"{LOG_TAG}/{segment.tag}", lease=None)
        return True

    def _count_rows(self, tag: str) -> int:
        return sum(one.rows for one in self._store.reservations(self._queue, f"{LOG_TAG}/{tag}"))

    def _reserve(
        self, metadata: LogMetadata, claim: Sealing, limit: int, parts: int, before: int, now: int
    ) -> _Sealed:
        """Reserve messages, as new segments or for the last segment."""
        tag = f"{LOG_TAG}/{claim.tag}"
        reserved = self._store.reserve(self._queue, tag, limit, partitions=max(1, parts), lease=None, before=before)
        if len(reserved) != 1 or reserved[0] > self._store.limits.segment_growth:
            segments = [Segment(f"{claim.tag}/{part}", rows, now, None) for part, rows in enumerate(reserved) if rows]
            return _Sealed(tuple(segments))
        tag, rows = f"{claim.tag}/0", reserved[0]
        span = self._due_range(tag)
        if span is None:
            return _Sealed(())  # another process has taken over
        first, last = span
        last_segment = metadata.segments[-1] if metadata.segments and metadata.next_number > metadata.first else None
        if (
            last_segment is None
            or last_segment.last is None
            or last_segment.rows + rows > self._store.limits.segment_rows
            or first <= last_segment.last
        ):
            return _Sealed((Segment(tag, rows, now, last),))
        if not self._grow_segment(claim, last_segment):
            return _Sealed(())
        return _Sealed((), last_segment._replace(rows=last_segment.rows + rows, sealed=now, last=last))

    def _due_range(self, tag: str) -> tuple[int, int] | None:
        """Return when the first and last record of a tag were due (ms), `None` if it has none."""
        moments = [
            moment
            for page in self._store._records(self._queue, f"{LOG_TAG}/{tag}")
            for moment in milliseconds(page.batch.column("mature")).to_pylist()
        ]
        return (moments[0], moments[-1]) if moments else None

    def _write_result(self, metadata: LogMetadata, claim: Sealing, sealed: _Sealed) -> int:
        """Write the result of a seal into the metadata, unless another process has taken over.

        Return the number of sealed messages.
        """
        while metadata.sealing is not None and metadata.sealing.tag == claim.tag:
            segments = metadata.segments
            rows = sum(one.rows for one in sealed.segments)
            if sealed.grown is not None:
                rows = sealed.grown.rows - segments[-1].rows
                segments = (*segments[:-1], sealed.grown)
            if self._notes.write(replace(metadata, segments=(*segments, *sealed.segments), sealing=None)):
                return rows
            metadata = self._notes.load_or_create()  # another process trims, or has taken over
        tags = {one.tag for one in (*sealed.segments, *([sealed.grown] if sealed.grown else []))}
        if any(one.tag in tags for _, one in self._notes.segments(metadata, 0)):
            # The write was done, but its reply was lost; then another process wrote.
            return sum(one.rows for one in sealed.segments)
        released = self._store.rollback(self._queue, f"{LOG_TAG}/{claim.tag}", failed=False)
        if released:
            log.warning(
                "log of queue %s: this process was suspended while it sealed messages, and another one took over; "
                "%d messages were released",
                self._queue, released,
            )  # fmt: skip
        return 0
