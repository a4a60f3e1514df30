"""Seal ready messages: make them segments of a log. One process at a time does this."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_queue.messages.columns import milliseconds
from spark_queue.messages.schema import LATEST
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.head import Heads
from spark_queue.stores.services.log.segments import LOG_TAG, Head, Sealing, Segment
from spark_queue.stores.services.owner import Owner, Watch

log = logging.getLogger(__name__)

#: Maximum number of messages in a segment (unless one bucket holds more), and in one seal.
SEGMENT, CLAIM = 2_500, 10_000

#: Maximum number of messages by which a segment grows.
SMALL = 250

#: ms for which messages are released that a process reserves after another has taken over its seal.
STALE = 600_000

#: ms for which it is cached whether a queue is paused.
LOG_PAUSE_KNOWN = 250


class _Made(NamedTuple):
    """The result of a seal: new segments, or the last segment with more messages."""

    segments: Sequence[Segment]
    grown: Segment | None = None


class Sealer:
    """The sealing of ready messages of a queue, for one reader of its log."""

    def __init__(self, store: Store, queue: str, heads: Heads) -> None:
        self._store = store
        self._queue = queue
        self._heads = heads
        self._token = uuid.uuid4().hex
        self._watch = Watch()

    def seal(self, most: int | None = None, *, before: int = LATEST) -> int:
        """Put up to `limit` messages that are ready and due by `before` (ms) into the log.

        Return their number. It is 0 if none are ready, or if another process is sealing.
        """
        most = CLAIM if most is None else most
        head = self._heads.open()
        old = head.sealing
        ready = self.ready(before, most)
        if old is None and not ready:
            return 0
        now = self._store.now()
        if old is not None and old.by.token != self._token and self.lives(old):
            return 0
        after = () if old is None else (*old.after, old.tag)
        claim = Sealing(f"{head.next}/{uuid.uuid4().hex[:12]}", after, Owner.here(self._token, now))
        stale = {tag: at for tag, at in head.stale if at > now - STALE}
        known = tuple((stale | dict.fromkeys(after, now)).items())
        begun = self._heads.write(replace(self._heads.paged(head), sealing=claim, stale=known))
        if begun is None:
            return 0
        for tag in stale.keys() - set(after):
            self._store.rollback(self._queue, f"{LOG_TAG}/{tag}", failed=False)
        made = self._adopted(begun, claim) if after else None
        if made is None:
            made = self._taken(begun, claim, most, -(-ready // SEGMENT), before, now)
        return self._decide(begun, claim, made)

    def lives(self, sealing: Sealing) -> bool:
        """Return whether the sealing process is alive, by the database's clock and by ours."""
        silent = self._watch.silent(sealing.tag)
        return sealing.by.lives(self._store.now()) and not silent

    def ready(self, before: int, most: int = 1) -> int:
        """Return how many messages due by `before` (ms) can be sealed, counted up to `limit`."""
        if self._store.paused(self._queue, known=LOG_PAUSE_KNOWN):
            return 0
        return self._store._attempt(self._store._ready, self._queue, most, before)

    def _adopted(self, head: Head, claim: Sealing) -> _Made | None:
        """Transfer the messages of superseded tags to the claim's tag.

        If they were to make the last segment grow, complete this and return the result. Else return
        `None`.
        """
        tag = f"{LOG_TAG}/{claim.tag}/0"
        for old in claim.after:
            self._store.retag(self._queue, f"{LOG_TAG}/{old}", tag, lease=None)
        # Only after the transfer: no other process can make the segment grow any more.
        tail = head.segments[-1] if head.segments and head.next > head.first else None
        if tail is None or self._holds(tail.tag) <= tail.rows:
            return None
        if not self._grow(claim, tail):
            return _Made(())
        return _Made((), tail._replace(rows=self._holds(tail.tag), sealed=self._store.now(), last=None))

    def _grow(self, claim: Sealing, tail: Segment) -> bool:
        """Transfer the messages of the claim's tag to the last segment.

        Return `False`, and transfer none, if another process has taken over. The tag gets no more
        messages. So a process that takes over after this check finds all of them under the tag or
        in the segment. It transfers them before it counts the rows of the segment.
        """
        head = self._heads.open()
        if head.sealing is None or head.sealing.tag != claim.tag:
            return False
        self._store.retag(self._queue, f"{LOG_TAG}/{claim.tag}", f"{LOG_TAG}/{tail.tag}", lease=None)
        return True

    def _holds(self, tag: str) -> int:
        return sum(one.rows for one in self._store.reservations(self._queue, f"{LOG_TAG}/{tag}"))

    def _taken(self, head: Head, claim: Sealing, most: int, parts: int, before: int, now: int) -> _Made:
        """Reserve messages, as new segments or for the last segment."""
        tag = f"{LOG_TAG}/{claim.tag}"
        taken = self._store.reserve(self._queue, tag, most, partitions=max(1, parts), lease=None, before=before)
        if len(taken) != 1 or taken[0] > SMALL:
            made = [Segment(f"{claim.tag}/{part}", rows, now, None) for part, rows in enumerate(taken) if rows]
            return _Made(tuple(made))
        tag, rows = f"{claim.tag}/0", taken[0]
        span = self._span(tag)
        if span is None:
            return _Made(())  # another process has taken over
        first, last = span
        tail = head.segments[-1] if head.segments and head.next > head.first else None
        if tail is None or tail.last is None or tail.rows + rows > SEGMENT or first <= tail.last:
            return _Made((Segment(tag, rows, now, last),))
        if not self._grow(claim, tail):
            return _Made(())
        return _Made((), tail._replace(rows=tail.rows + rows, sealed=now, last=last))

    def _span(self, tag: str) -> tuple[int, int] | None:
        """Return when the first and last record of a tag were due (ms), `None` if it has none."""
        moments = [
            moment
            for page in self._store._records(self._queue, f"{LOG_TAG}/{tag}")
            for moment in milliseconds(page.batch.column("mature")).to_pylist()
        ]
        return (moments[0], moments[-1]) if moments else None

    def _decide(self, head: Head, claim: Sealing, made: _Made) -> int:
        """Write the result of a seal into the metadata, unless another process has taken over.

        Return the number of sealed messages.
        """
        while head.sealing is not None and head.sealing.tag == claim.tag:
            segments = head.segments
            rows = sum(one.rows for one in made.segments)
            if made.grown is not None:
                rows = made.grown.rows - segments[-1].rows
                segments = (*segments[:-1], made.grown)
            if self._heads.write(replace(head, segments=(*segments, *made.segments), sealing=None)):
                return rows
            head = self._heads.open()  # another process trims, or has taken over
        tags = {one.tag for one in (*made.segments, *([made.grown] if made.grown else []))}
        if any(one.tag in tags for _, one in self._heads.segments(head, 0)):
            # The write was done, but its reply was lost; then another process wrote.
            return sum(one.rows for one in made.segments)
        given = self._store.rollback(self._queue, f"{LOG_TAG}/{claim.tag}", failed=False)
        if given:
            log.warning(
                "log of queue %s: this process was suspended while it sealed messages, and another one took over; "
                "%d messages were released",
                self._queue, given,
            )  # fmt: skip
        return 0
