"""A queue as a log: its messages are kept, and each reader has a place of its own; nobody competes.

A log is a row of numbered *segments*, and a segment is what one tag holds, under a lease that never ends:
`log/<number>/<token>/<part>`. So it lies above the contract of a store, and needs nothing of its own from it. Which
tag segment 7 is, and how many rows it has, stands in a note, the *head*. That is what all readers go by, so each sees
the same messages in the same order. Within a segment they are in order of `(mature, id)`; a message that comes later,
with an earlier maturity, is in a later segment.

Whoever finds ready messages that no segment has *seals* them. One does so at a time, since two that took turns at the
head of the queue would mix up its order:

    head := sealing under a new tag, by me      compare-and-set; who fails leaves it to the other
    reserve(tag, lease=never)                   what it holds belongs to the log from now on
    head := segments of that tag                compare-and-set

    killed before the second     whoever comes next puts a tag of its own into the head, passes on to it what the dead
                                 one's tag holds, and goes on from there. He comes at once where the process is gone
                                 from the same machine, else as soon as it has been silent for LIFE
    stood still until then       it finds another tag in the head, and gives back what it has taken since

Who passes on first and looks afterwards never meets what the other one does with his tag: it holds nothing any more.

A trickle would make a segment of every few messages. So a small one that comes after everything in the last segment
*grows* it: its messages pass to that segment's tag, and the head counts them. Rows that a reader knows of stay where
they are. A crash in between shows in a tag that holds more than the head counts; whoever goes on completes it.

Older segments stand in *pages*, notes of PAGE segments each that never change.
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

#: Seconds between two looks at a log that somebody is sealing.
SEALING_GLANCE = 0.005


class Log:
    """The log of a queue, for one reader of it.

    It holds no place: callers do. Used by one thread at a time. `retention` (ms): what was sealed longer ago is
    removed, as this reader goes on; `None` keeps it until `trim`. With `lossy`, a reader whose place is gone goes on
    at the first message that is there, with a warning, and does not fail. Raises `OptionError` for a layout in which
    nothing can be kept.
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
        self._told = ""  # what was lost

    # --- places -------------------------------------------------------------------------------------------------

    def first(self) -> LogPlace:
        """The place of the first message that is retained."""
        return self._heads.first(self._heads.open())

    def end(self) -> LogPlace:
        """The place after the last message that was sealed."""
        return self._heads.open().end_place

    def latest(self) -> LogPlace:
        """The place after all messages that may be taken now: they are sealed first."""
        before = self._store.now()
        while not self.complete(before):
            if not self._sealer.seal(before=before):
                time.sleep(SEALING_GLANCE)
        return self.end()

    @property
    def positions(self) -> tuple[int, int]:
        """Those of the first message that is retained, and of the next one to come."""
        head = self._heads.open()
        return self._heads.first(head).position, head.end

    def found(self, place: LogPlace) -> LogPlace:
        """The place, or where a `lossy` reader goes on. Raises `CheckpointError` where it is gone."""
        return self._found(self._heads.open(), place)

    def complete(self, before: int) -> bool:
        """Whether the log has all messages that were due at that moment (ms); those of a paused queue can wait."""
        ready = self._sealer.ready(before)  # first: who has taken it since stands in the head
        return not ready and self._heads.open().sealing is None

    def seal(self, most: int | None = None, *, before: int = LATEST) -> int:
        """Put up to `most` messages that are ready and due by `before` (ms) into the log; return their number."""
        return self._sealer.seal(most, before=before)

    def trim(self, older_than: int) -> int:
        """Remove the segments that got their last message longer ago (ms); return the number of messages removed."""
        return self._trimmer.trim(older_than)

    # --- reading ------------------------------------------------------------------------------------------------

    def ahead(self, place: LogPlace, most: int, *, before: int = LATEST) -> list[Piece]:
        """What comes next from a place on: pieces of `most` messages together at most, none where nothing is ready.

        Changes nothing for other readers. Where the log has nothing more, what is ready and due by `before` (ms) is
        sealed. Raises `CheckpointError` where the place is gone, unless the log is `lossy`.
        """
        head = self._heads.open()
        place = self._found(head, place)
        pieces = self._cut(head, place, most)
        if not pieces and self._sealer.seal(before=before):
            pieces = self._cut(self._heads.open(), place, most)
        self._trimmer.retain()
        return pieces

    def between(self, start: LogPlace, end: LogPlace) -> list[Piece]:
        """The pieces from one place to another, the same whenever they are asked for. Raises as `ahead` does."""
        head = self._heads.open()
        start = self._found(head, start)
        return self._cut(head, start, end.position - start.position)

    def fetch(self, piece: Piece, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """The messages of a piece, in order, as MESSAGES batches; of `rows` rows at most, where given.

        One that cannot be read is a row with the reason in header `x-error`, so that the others keep their positions.
        Repeatable. Raises `CheckpointError` where some are gone, unless the log is `lossy`.
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
        """Sleep until something comes after the place, or can be sealed, `timeout` ms at most; give whether it does.

        Who brings a message wakes all readers, and one of them seals it.
        """
        end, closings = time.monotonic() + timeout / 1000, self._store._closings
        while True:
            rung = self._store._rung(self._queue)  # before the look: what comes after it is heard
            due = self._store.next_mature(self._queue)  # before the head: who has taken it since stands there
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
        """The place, as it is to be read from now on."""
        first = self._heads.first(head)
        if place.log != head.id:
            lost = f"the log that the place {place.position} belongs to is gone: the queue was dropped"
        elif place.position < first.position:
            lost = f"{plural(first.position - place.position, 'message')} removed from position {place.position} on"
        elif place.position > head.end:
            lost = f"its end is {head.end}, and the place {place.position} lies beyond it"
        else:
            return first if place.segment < first.segment else place
        self._lost(lost)
        return first

    def _lost(self, what: str) -> None:
        told = f"log of queue {self._queue!r}: {what}"
        if not self._lossy:
            raise CheckpointError(
                f"{told}. Start with a new checkpoint, or set failOnDataLoss=false to go on at the first retained "
                "message",
                queue=self._queue,
            )
        if told != self._told:
            log.warning("%s; going on with what is there", told)
        self._told = told


@dataclass(frozen=True, slots=True)
class Retained:
    """What a queue retains as a log: the messages from position `first` to `end`, in so many segments.

    `oldest`: when the first of these got its last message (ms), `None` where there is none. `tags`: those that belong
    to the log, with those that are just being sealed.
    """

    first: int
    end: int
    segments: int
    oldest: int | None
    tags: frozenset[str]


def retained(store: Store, queue: str) -> Retained | None:
    """What a queue retains, `None` where it is not read as a log. Changes nothing."""
    note = store.note(about(queue, LOG_TAG))
    if note is None:
        return None
    head, heads = Head.read(queue, note), Heads(store, queue)
    all_of_them = list(heads.segments(head, head.first))
    begun = () if head.sealing is None else (head.sealing.tag, *head.sealing.after)
    tags = {f"{LOG_TAG}/{tag}" for tag in (*begun, *(one.tag for _, one in all_of_them))}
    oldest = all_of_them[0][1].sealed if all_of_them else None
    return Retained(heads.first(head).position, head.end, len(all_of_them), oldest, frozenset(tags))
