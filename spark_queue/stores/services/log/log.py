"""Read a queue as a log: its messages are kept, and each reader has its own position.

A log is a sequence of numbered *segments*. A segment is the messages that one tag holds under a
lease that never ends: `log/<number>/<token>/<part>`. So a log is built on the contract of a store,
and needs no methods of its own. A note, the *metadata*, lists the tag and the rows of each segment.
All readers follow it, so each reads the same messages in the same order. Within a segment, messages
are in the order of `(mature, id)`. A message that comes later, with an earlier maturity, is in a
later segment.

A reader *seals* ready messages that are in no segment. One process seals at a time: two processes
that reserve in turns would mix up the order of the queue.

    1. metadata := sealing under a new tag, by this process. Compare-and-set: it fails if another
       process seals.
    2. reserve(tag, lease=never). The messages belong to the log from now on.
    3. metadata := the segments of that tag. Compare-and-set.

If the process dies before step 3, another one takes over. It writes a new tag into the metadata,
transfers the messages of the old tag to it, and continues. If the process has ended on the same
machine, this happens at once, else after it was silent for `owner.LIFE` ms. A process that was
suspended until then finds another tag in the metadata, and releases what it has reserved since.

A process that takes over transfers the messages before it counts the rows of the last segment.
After that, the other process can change nothing: its tag holds no messages.

A slow flow would make a segment of every few messages. So a few messages that come after all of the
last segment make that segment *grow*: they are transferred to its tag, and the metadata counts
them. Rows that a reader knows of keep their positions. After a crash in between, the tag holds more
messages than the metadata counts. The process that takes over completes this.

Older segments are listed in *pages*: notes of PAGE_SEGMENTS segments each, which never change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_queue.errors import CheckpointError, plural
from spark_queue.messages.schema import LATEST
from spark_queue.stores.base import POLL, Store
from spark_queue.stores.services.log.head import Heads
from spark_queue.stores.services.log.sealing import LOG_PAUSE_KNOWN, Sealer
from spark_queue.stores.services.log.segments import LOG_TAG, Head, LogPlace, Piece
from spark_queue.stores.services.log.trimming import Trimmer
from spark_queue.stores.types import about

log = logging.getLogger(__name__)

#: Seconds between two checks of a log that another process is sealing.
SEALING_GLANCE = 0.005


class Log:
    """The log of a queue, for one reader of it.

    It holds no position: callers do. Use it in one thread at a time. `retention` (ms): as it reads,
    segments that were sealed longer ago are removed; `None` keeps them until `trim`. With
    `allow_data_loss`, a reader whose position was removed continues at the first retained message
    with a warning, and does not fail. Raises `OptionError` for a layout that cannot hold a log.
    """

    def __init__(self, store: Store, queue: str, *, retention: int | None = None, lossy: bool = False) -> None:
        store.check_queue(queue)
        store.check_log(queue)
        self._store = store
        self._queue = queue
        self._lossy = lossy
        self._heads = Heads(store, queue)
        self._sealer = Sealer(store, queue, self._heads)
        self._trimmer = Trimmer(store, queue, self._heads, retention)
        self._told = ""  # the last warning about lost messages

    # --- positions ----------------------------------------------------------------------------------------------

    def first(self) -> LogPlace:
        """Return the position of the first retained message."""
        return self._heads.first(self._heads.open())

    def end(self) -> LogPlace:
        """Return the position after the last sealed message."""
        return self._heads.open().end_place

    def latest(self) -> LogPlace:
        """Seal all messages that are ready now, and return the position after them."""
        before = self._store.now()
        while not self.complete(before):
            if not self._sealer.seal(before=before):
                time.sleep(SEALING_GLANCE)
        return self.end()

    @property
    def positions(self) -> tuple[int, int]:
        """The positions of the first retained message and of the next message to come."""
        head = self._heads.open()
        return self._heads.first(head).position, head.end

    def found(self, place: LogPlace) -> LogPlace:
        """Return the position if it is retained.

        Else return where a reader with `allow_data_loss` continues. Other readers get
        `CheckpointError`.
        """
        return self._found(self._heads.open(), place)

    def complete(self, before: int) -> bool:
        """Return whether the log has all messages that were due at this moment (ms).

        Messages of a paused queue do not count.
        """
        # Count first: messages that another process takes after that are in the metadata.
        ready = self._sealer.ready(before)
        return not ready and self._heads.open().sealing is None

    def seal(self, most: int | None = None, *, before: int = LATEST) -> int:
        """Put up to `limit` messages that are ready and due by `before` (ms) into the log.

        Return their number. It is 0 if none are ready, or if another process is sealing.
        """
        return self._sealer.seal(most, before=before)

    def trim(self, older_than: int) -> int:
        """Remove segments whose last message is older than this (ms).

        Return the number of removed messages.
        """
        return self._trimmer.trim(older_than)

    # --- reading ------------------------------------------------------------------------------------------------

    def ahead(self, place: LogPlace, most: int, *, before: int = LATEST) -> list[Piece]:
        """Return the next ranges from a position on, with at most `limit` messages together.

        If the log has no more messages, those that are ready and due by `before` (ms) are sealed
        first. The list is empty if there are none. Other readers are not affected. Raises
        `CheckpointError` if the position was removed, unless the log has `allow_data_loss`.
        """
        head = self._heads.open()
        place = self._found(head, place)
        pieces = self._cut(head, place, most)
        if not pieces and self._sealer.seal(before=before):
            pieces = self._cut(self._heads.open(), place, most)
        self._trimmer.retain()
        return pieces

    def between(self, start: LogPlace, end: LogPlace) -> list[Piece]:
        """Return the ranges from one position to another: the same in every call.

        Raises `CheckpointError` if `start` was removed, unless the log has `allow_data_loss`.
        """
        head = self._heads.open()
        start = self._found(head, start)
        return self._cut(head, start, end.position - start.position)

    def fetch(self, piece: Piece, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range in order, as MESSAGES batches of at most `rows` rows.

        A message that cannot be read is a row with the reason in header `x-error`, so other
        messages keep their positions. The call can be repeated. Raises `CheckpointError` if
        messages are missing, unless the log has `allow_data_loss`.
        """
        skip, left = piece.start.row, piece.rows
        pages = self._store.look(self._queue, piece.tag, *([] if rows is None else [rows]), fill=True)
        for batch in pages:
            some = batch.slice(skip, left)
            skip = max(0, skip - batch.num_rows)
            if some.num_rows:
                left -= some.num_rows
                yield some
            if not left:
                return
        self._lost(f"{left:,} of {plural(piece.rows, 'message')} from position {piece.start.position} on are gone")

    def wait(self, place: LogPlace, timeout: int) -> bool:
        """Sleep until a message comes after the position or can be sealed, at most `timeout` ms.

        Return whether there is one. `Store.close` ends the sleep. A push notifies all readers, and
        one of them seals the message.
        """
        end, closings = time.monotonic() + timeout / 1000, self._store._closings
        while True:
            rung = self._store._rung(self._queue)  # before the check, so that no later signal is lost
            # Before the metadata: a message that another process takes in between is listed there.
            due = self._store.next_mature(self._queue)
            head = self._heads.open()
            if head.end > place.position or head.id != place.log:
                return True
            now = time.monotonic()
            pause = POLL / 1000
            if head.sealing is not None and self._sealer.lives(head.sealing):
                pause = SEALING_GLANCE
            elif head.sealing is not None:
                return True
            elif due is not None and due > 0:
                pause = min(pause, due / 1000)
            elif due is not None and not self._store.paused(self._queue, known=LOG_PAUSE_KNOWN):
                return True
            if now >= end:
                return False
            if pause == SEALING_GLANCE:
                time.sleep(pause)
            else:
                self._store._listen(self._queue, rung, min(end - now, pause))
            if closings != self._store._closings:
                return False

    def _cut(self, head: Head, place: LogPlace, most: int) -> list[Piece]:
        pieces: list[Piece] = []
        for number, segment in self._heads.segments(head, place.segment):
            if number != place.segment:
                place = replace(place, segment=number, row=0)
            rows = min(segment.rows - place.row, most)
            if rows > 0:
                piece = Piece(f"{LOG_TAG}/{segment.tag}", place, rows)
                pieces.append(piece)
                place, most = piece.end, most - rows
            if most <= 0:
                break
        return pieces

    def _found(self, head: Head, place: LogPlace) -> LogPlace:
        """Return the position if it is retained, else the first retained one.

        Raises `CheckpointError` instead of the latter, unless the log has `allow_data_loss`.
        """
        first = self._heads.first(head)
        if place.log != head.id:
            lost = f"the log that position {place.position} belongs to is gone: the queue was dropped"
        elif place.position < first.position:
            lost = f"{plural(first.position - place.position, 'message')} removed from position {place.position} on"
        elif place.position > head.end:
            lost = f"position {place.position} is after its end, {head.end}"
        else:
            return first if place.segment < first.segment else place
        self._lost(lost)
        return first

    def _lost(self, what: str) -> None:
        told = f"log of queue {self._queue!r}: {what}"
        if not self._lossy:
            raise CheckpointError(
                f"{told}. Start with a new checkpoint, or set failOnDataLoss=false to continue at the first retained "
                "message",
                queue=self._queue,
            )
        if told != self._told:
            log.warning("%s; continuing with the retained messages", told)
        self._told = told


@dataclass(frozen=True, slots=True)
class Retained:
    """The retained messages of a log: those from position `first` to `end`, in `segments` segments.

    `oldest`: when the first segment got its last message (ms), `None` if there is none. `tags`: the
    tags of the log, also those that are being sealed.
    """

    first: int
    end: int
    segments: int
    oldest: int | None
    tags: frozenset[str]


def retained(store: Store, queue: str) -> Retained | None:
    """Return what a queue retains as a log, `None` if it has no log. Changes nothing.

    Raises `StoreError` if a newer version wrote the log.
    """
    note = store.note(about(queue, LOG_TAG))
    if note is None:
        return None
    head, heads = Head.read(queue, note), Heads(store, queue)
    all_of_them = list(heads.segments(head, head.first))
    begun = () if head.sealing is None else (head.sealing.tag, *head.sealing.after)
    tags = {f"{LOG_TAG}/{tag}" for tag in (*begun, *(one.tag for _, one in all_of_them))}
    oldest = all_of_them[0][1].sealed if all_of_them else None
    return Retained(heads.first(head).position, head.end, len(all_of_them), oldest, frozenset(tags))
