"""Find a position in a log by its number, or by the time when messages were due."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_queue.messages.columns import milliseconds
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log_notes import LogNotes
from spark_queue.stores.services.log.segments import LOG_TAG, LogMetadata, LogPosition, LogRange, Segment

#: How long (ms) after the time of its seal a message of a segment may be due. That time is noted
#: before the messages are reserved, and the reserve may be retried.
SEAL_DELAY = 120_000


def find_number(notes: LogNotes, metadata: LogMetadata, position: int) -> LogPosition | None:
    """Return the position with this number, `None` if it is not retained, or after the end."""
    for start, segment in _segments(notes, metadata):
        if 0 <= position - start.position < segment.rows:
            return LogPosition(metadata.id, start.segment, position - start.position, position)
    end = metadata.end_position
    return end if position == end.position else None


def find_time(
    store: Store,
    queue: str,
    notes: LogNotes,
    metadata: LogMetadata,
    moment: int,
    fetch: Callable[[LogRange], Iterator[pa.RecordBatch]],
) -> LogPosition | None:
    """Return the position of the first retained message that was due at `moment` (ms) or later.

    `None` if there is none. Reads the messages of one segment only. `fetch`: that of the log.
    """
    for start, segment in _segments(notes, metadata):
        tag = f"{LOG_TAG}/{segment.tag}"
        if segment.sealed + SEAL_DELAY < moment:
            continue  # no message is sealed before it is due
        last = store.last_due(queue, tag) if segment.last is None else segment.last
        if last is None or last < moment:
            continue
        row = 0
        for batch in fetch(LogRange(tag, start, segment.rows)):
            for due in milliseconds(batch.column("mature")).to_pylist():
                if due >= moment:
                    return LogPosition(metadata.id, start.segment, row, start.position + row)
                row += 1
    return None


def _segments(notes: LogNotes, metadata: LogMetadata) -> Iterator[tuple[LogPosition, Segment]]:
    """Yield the retained segments, each with the position of its first message."""
    position = notes.first_position(metadata).position
    for number, segment in notes.segments(metadata, metadata.first):
        yield LogPosition(metadata.id, number, 0, position), segment
        position += segment.rows
