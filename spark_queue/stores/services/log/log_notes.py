"""The metadata of a log and its pages, as notes of the database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from spark_queue.errors import StoreError
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.segments import (
    LOG_TAG,
    LOG_VERSION,
    LogMetadata,
    LogPosition,
    Page,
    Segment,
    read_note,
)
from spark_queue.stores.types import queue_note_key


class LogNotes:
    """The notes of one log in the database: its metadata and its pages."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._key = queue_note_key(queue, LOG_TAG)
        self._pages: dict[tuple[str, int], tuple[Segment, ...]] = {}

    def load_or_create(self) -> LogMetadata:
        """Return the metadata; create it if there is none.

        Raises `StoreError` if a newer version wrote it.
        """
        while True:
            note = self._store.note(self._key)
            if note is not None:
                return LogMetadata.from_note(self._queue, note)
            self._store.set_note(self._key, LogMetadata(uuid.uuid4().hex).to_note(), 0)

    def write(self, metadata: LogMetadata) -> LogMetadata | None:
        """Write the metadata in one compare-and-set, and return it with its new version.

        Return `None` if another process has written it since it was read.
        """
        if self._store.set_note(self._key, metadata.to_note(), metadata.version):
            return replace(metadata, version=metadata.version + 1)
        return None

    def first_position(self, metadata: LogMetadata) -> LogPosition:
        """Return the position of the first retained message.

        Raises `StoreError` as `segments` does.
        """
        start = metadata.pages[0] if metadata.pages else metadata
        position = start.position
        if metadata.first == start.number:
            return LogPosition(metadata.id, start.number, 0, position)
        for number, segment in self.segments(metadata, start.number):
            if number >= metadata.first:
                return LogPosition(metadata.id, number, 0, position)
            position += segment.rows
        return LogPosition(metadata.id, metadata.next_number, 0, position)

    def segments(self, metadata: LogMetadata, number: int) -> Iterator[tuple[int, Segment]]:
        """Yield all segments from this number on, with their numbers.

        Raises `StoreError` if a page is missing, or if a newer version wrote it.
        """
        for page in metadata.pages:
            if number < page.number + page.segments:
                found = self._load_page(metadata.id, page.number)
                yield from list(enumerate(found, page.number))[max(0, number - page.number) :]
        yield from list(enumerate(metadata.segments, metadata.number))[max(0, number - metadata.number) :]

    def _load_page(self, id: str, number: int) -> tuple[Segment, ...]:
        if (id, number) not in self._pages:
            note = self._store.note(f"{self._key}/{number}")
            if note is None:
                raise StoreError(
                    f"log of queue {self._queue!r}: the note that lists its segments from {number} on is missing",
                    queue=self._queue,
                )
            self._pages[id, number] = tuple(Segment(*one) for one in read_note(self._queue, note)["segments"])
        return self._pages[id, number]

    def page_out(self, metadata: LogMetadata) -> LogMetadata:
        """Return the metadata with its older segments moved into a page, if it has too many."""
        size = self._store.limits.page_segments
        if len(metadata.segments) < 2 * size:
            return metadata
        old, kept = metadata.segments[:size], metadata.segments[size:]
        page = Page(metadata.number, metadata.position, size, sum(one.rows for one in old))
        value = {"v": LOG_VERSION, "segments": [list(one) for one in old]}
        self._store.set_note(f"{self._key}/{page.number}", value, 0)  # or the page exists already
        return replace(
            metadata,
            number=metadata.number + size,
            position=metadata.position + page.rows,
            segments=kept,
            pages=(*metadata.pages, page),
        )

    def delete_page(self, metadata: LogMetadata, page: Page) -> None:
        """Remove the note of a page."""
        self._pages.pop((metadata.id, page.number), None)
        self._store.change_note(f"{self._key}/{page.number}", lambda _: None)
