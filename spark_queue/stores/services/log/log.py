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
machine, this happens at once, else after it was silent for `owner_timeout_ms` of
`services/owner.py`. A process that was suspended until then finds another tag in the metadata, and
releases what it has reserved since.

A process that takes over transfers the messages before it counts the rows of the last segment.
After that, the other process can change nothing: its tag holds no messages.

A slow flow would make a segment of every few messages. So a few messages that come after all of the
last segment make that segment *grow*: they are transferred to its tag, and the metadata counts
them. Rows that a reader knows of keep their positions. After a crash in between, the tag holds more
messages than the metadata counts. The process that takes over completes this.

Older segments are listed in *pages*: notes of 256 segments each, which never change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from spark_queue.errors import CheckpointError, plural
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.finding import find_number, find_time
from spark_queue.stores.services.log.log_notes import LogNotes
from spark_queue.stores.services.log.sealing import Sealer
from spark_queue.stores.services.log.segments import LOG_TAG, LogMetadata, LogPosition, LogRange
from spark_queue.stores.services.log.trimming import Trimmer
from spark_queue.stores.support.waiting import OneQueue, wait
from spark_queue.stores.types import Note, queue_note_key

log = logging.getLogger(__name__)

#: The ms between two checks of a log that another process is sealing.
SEALING_POLL_MS = 5


class AwaitedLog(NamedTuple):
    """Messages of a log after a position, and those that can be sealed."""

    store: Store
    queue: str
    notes: LogNotes
    sealer: Sealer
    after: LogPosition

    def due(self) -> int | None:
        """Return the ms until there is a message; 0 or less: now. `None`: none is known."""
        # Before the metadata: a message that another process takes in between is listed there.
        due = self.store.next_reservable(self.queue)
        metadata = self.notes.load_or_create()
        if metadata.end > self.after.position or metadata.id != self.after.log:
            return 0
        if metadata.sealing is not None:
            return SEALING_POLL_MS if self.sealer.is_alive(metadata.sealing) else 0
        return due

    def missed_signal(self) -> None:
        """Do nothing: what another process has sealed needs no signal."""


class Log:
    """The log of a queue, for one reader of it.

    It holds no position: callers do. Use it in one thread at a time. `retention` (ms): as it reads,
    segments that were sealed longer ago are removed; `None` keeps them until `trim`. With
    `allow_data_loss`, a reader whose position was removed continues at the first retained message
    with a warning, and does not fail. Raises `OptionError` for a layout that cannot hold a log.
    """

    def __init__(
        self, store: Store, queue: str, *, retention: int | None = None, allow_data_loss: bool = False
    ) -> None:
        store.check_queue(queue)
        store.check_log(queue)
        self._store = store
        self._queue = queue
        self._allow_data_loss = allow_data_loss
        self._notes = LogNotes(store, queue)
        self._sealer = Sealer(store, queue, self._notes)
        self._trimmer = Trimmer(store, queue, self._notes, retention)
        self._last_warning = ""  # the last warning about lost messages

    # --- positions --------------------------------------------------------------------------------

    def first(self) -> LogPosition:
        """Return the position of the first retained message."""
        return self._notes.first_position(self._notes.load_or_create())

    def end(self) -> LogPosition:
        """Return the position after the last sealed message."""
        return self._notes.load_or_create().end_position

    def latest(self) -> LogPosition:
        """Seal all messages that are ready now, and return the position after them."""
        before = self._store.now()
        while not self.is_complete(before):
            if not self._sealer.seal(before=before):
                time.sleep(SEALING_POLL_MS / 1000)
        return self.end()

    @property
    def positions(self) -> tuple[int, int]:
        """The positions of the first retained message and of the next message to come."""
        metadata = self._notes.load_or_create()
        return self._notes.first_position(metadata).position, metadata.end

    def position_at(self, number: int) -> LogPosition | None:
        """Return the position with this number, `None` if it is not retained, or after the end."""
        return find_number(self._notes, self._notes.load_or_create(), number)

    def position_since(self, moment: int) -> LogPosition | None:
        """Return the position of the first message that was due at `moment` (ms) or later.

        `None` if none is retained. Later messages may have been due earlier: see the module.
        """
        metadata = self._notes.load_or_create()
        return find_time(self._store, self._queue, self._notes, metadata, moment, self.fetch)

    def resolve(self, log_position: LogPosition) -> LogPosition:
        """Return the position if it is retained.

        Else return where a reader with `allow_data_loss` continues. Other readers get
        `CheckpointError`.
        """
        return self._resolve(self._notes.load_or_create(), log_position)

    def is_complete(self, before: int) -> bool:
        """Return whether the log has all messages that were due at this moment (ms).

        Messages of a paused queue do not count.
        """
        # Count first: messages that another process takes after that are in the metadata.
        ready = self._sealer.count_ready(before)
        return not ready and self._notes.load_or_create().sealing is None

    def seal(self, limit: int | None = None, *, before: int = MAX_TIME_MS) -> int:
        """Put up to `limit` messages that are ready and due by `before` (ms) into the log.

        Return their number. It is 0 if none are ready, or if another process is sealing.
        """
        return self._sealer.seal(limit, before=before)

    def trim(self, older_than: int) -> int:
        """Remove segments whose last message is older than this (ms).

        Return the number of removed messages.
        """
        return self._trimmer.trim(older_than)

    # --- reading ----------------------------------------------------------------------------------

    def next_ranges(self, start: LogPosition, limit: int, *, before: int = MAX_TIME_MS) -> list[LogRange]:
        """Return the next ranges from a position on, with at most `limit` messages together.

        If the log has no more messages, those that are ready and due by `before` (ms) are sealed
        first. The list is empty if there are none. Other readers are not affected. Raises
        `CheckpointError` if the position was removed, unless the log has `allow_data_loss`.
        """
        metadata = self._notes.load_or_create()
        start = self._resolve(metadata, start)
        ranges = self._cut_ranges(metadata, start, limit)
        if not ranges and self._sealer.seal(before=before):
            ranges = self._cut_ranges(self._notes.load_or_create(), start, limit)
        self._trimmer.trim_expired()
        return ranges

    def ranges_between(self, start: LogPosition, end: LogPosition) -> list[LogRange]:
        """Return the ranges from one position to another: the same in every call.

        Raises `CheckpointError` if `start` was removed, unless the log has `allow_data_loss`.
        """
        metadata = self._notes.load_or_create()
        start = self._resolve(metadata, start)
        return self._cut_ranges(metadata, start, end.position - start.position)

    def count_fitting(self, ranges: Sequence[LogRange], max_bytes: int) -> tuple[int, int]:
        """Return how many messages of ranges fit into `max_bytes`, in order, and their bytes.

        At least one message, however large it is. No payload is read.
        """
        rows, size = 0, 0
        for one in ranges:
            first, last, at = one.start.row, one.start.row + one.rows, 0
            for messages, record_bytes in self._store.sizes_of_reserved(self._queue, one.tag, last):
                begin, at = at, at + messages
                wanted = min(at, last) - max(begin, first)
                if wanted <= 0:
                    continue
                fitting = min(wanted, (max_bytes - size) * messages // max(1, record_bytes))
                taken = max(fitting, 0 if rows else 1)
                rows, size = rows + taken, size + record_bytes * taken // messages
                if taken < wanted:
                    return rows, size
            rows += max(0, last - max(at, first))  # messages that are gone: the fetch reports them
        return rows, size

    def fetch(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range in order, as MESSAGES batches.

        A message that cannot be read is a row with the reason in header `x-error`, so other
        messages keep their positions. The call can be repeated. Raises `CheckpointError` if
        messages are missing, unless the log has `allow_data_loss`.
        """
        skip, left = log_range.start.row, log_range.rows
        for batch in self._store.peek_reserved(self._queue, log_range.tag, fill=True):
            part = batch.slice(skip, left)
            skip = max(0, skip - batch.num_rows)
            if part.num_rows:
                left -= part.num_rows
                yield part
            if not left:
                return
        self._handle_loss(
            f"{left:,} of {plural(log_range.rows, 'message')} from position {log_range.start.position} on are gone"
        )

    def wait(self, after: LogPosition, timeout: int) -> bool:
        """Sleep until a message comes after the position or can be sealed, at most `timeout` ms.

        Return whether there is one. `Store.close` ends the sleep. A push notifies all readers, and
        one of them seals the message.
        """
        end = time.monotonic() + timeout / 1000
        return wait([self.awaited(after)], OneQueue(self._store, self._queue), end).found

    def awaited(self, after: LogPosition) -> AwaitedLog:
        """Return what a wait is for: a message after the position, or one that can be sealed."""
        return AwaitedLog(self._store, self._queue, self._notes, self._sealer, after)

    def _cut_ranges(self, metadata: LogMetadata, cursor: LogPosition, limit: int) -> list[LogRange]:
        ranges: list[LogRange] = []
        for number, segment in self._notes.segments(metadata, cursor.segment):
            if number != cursor.segment:
                cursor = replace(cursor, segment=number, row=0)
            rows = min(segment.rows - cursor.row, limit)
            if rows > 0:
                log_range = LogRange(f"{LOG_TAG}/{segment.tag}", cursor, rows)
                ranges.append(log_range)
                cursor, limit = log_range.end, limit - rows
            if limit <= 0:
                break
        return ranges

    def _resolve(self, metadata: LogMetadata, log_position: LogPosition) -> LogPosition:
        """Return the position if it is retained, else the first retained one.

        Raises `CheckpointError` instead of the latter, unless the log has `allow_data_loss`.
        """
        first = self._notes.first_position(metadata)
        if log_position.log != metadata.id:
            lost = f"the log that position {log_position.position} belongs to is gone: the queue was dropped"
        elif log_position.position < first.position:
            position = log_position.position
            lost = f"{plural(first.position - position, 'message')} removed from position {position} on"
        elif log_position.position > metadata.end:
            lost = f"position {log_position.position} is after its end, {metadata.end}"
        else:
            return first if log_position.segment < first.segment else log_position
        self._handle_loss(lost)
        return first

    def _handle_loss(self, loss: str) -> None:
        text = f"log of queue {self._queue!r}: {loss}"
        if not self._allow_data_loss:
            raise CheckpointError(
                f"{text}. Start with a new checkpoint, or set failOnDataLoss=false to continue at the first retained "
                "message",
                queue=self._queue,
            )
        if text != self._last_warning:
            log.warning("%s; continuing with the retained messages", text)
        self._last_warning = text


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """The retained messages of a log: those from position `first` to `end`, in `segments` segments.

    `oldest`: when the first segment got its last message (ms), `None` if there is none. `tags`: the
    tags of the log, also those that are being sealed.
    """

    first: int
    end: int
    segments: int
    oldest: int | None
    tags: frozenset[str]


def find_retained(store: Store, queue: str) -> RetainedRange | None:
    """Return what a queue retains as a log, `None` if it has no log. Changes nothing.

    Raises `StoreError` if a newer version wrote the log.
    """
    note = store.note(queue_note_key(queue, LOG_TAG))
    if note is None:
        return None
    metadata, notes = LogMetadata.from_note(queue, note), LogNotes(store, queue)
    segments = list(notes.segments(metadata, metadata.first))
    sealing_tags = () if metadata.sealing is None else (metadata.sealing.tag, *metadata.sealing.superseded)
    tags = {f"{LOG_TAG}/{tag}" for tag in (*sealing_tags, *(one.tag for _, one in segments))}
    first = notes.first_position(metadata).position
    oldest = segments[0][1].sealed if segments else None
    return RetainedRange(first, metadata.end, len(segments), oldest, frozenset(tags))


def load_logs(store: Store, queues: Iterable[str]) -> dict[str, LogMetadata]:
    """Return the metadata of those of these queues that are read as logs.

    It takes one request for many queues. Raises `StoreError` if a newer version wrote a log.
    """
    keys = {log_note(queue): queue for queue in queues}
    return {keys[key]: LogMetadata.from_note(keys[key], note) for key, note in store.notes_of(keys).items()}


def count_retained(store: Store, queues: Iterable[str]) -> dict[str, int]:
    """Return how many messages each of these queues retains as a log; others are left out.

    Raises `StoreError` as `load_logs` does.
    """
    return {queue: _retained(store, queue, metadata) for queue, metadata in load_logs(store, queues).items()}


def log_note(queue: str) -> str:
    """Return the key of the note with the metadata of a log."""
    return queue_note_key(queue, LOG_TAG)


def retained_by(store: Store, queue: str, note: Note) -> int:
    """Return how many messages a queue retains as a log. `note`: that of its metadata.

    Raises `StoreError` if a newer version wrote it.
    """
    return _retained(store, queue, LogMetadata.from_note(queue, note))


def _retained(store: Store, queue: str, metadata: LogMetadata) -> int:
    return metadata.end - LogNotes(store, queue).first_position(metadata).position
