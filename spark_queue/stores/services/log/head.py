"""The metadata of a log and its pages, as notes of the database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from spark_queue.errors import StoreError
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.segments import LOG_TAG, LOG_VERSION, Head, LogPlace, Page, Segment, known
from spark_queue.stores.types import about

#: Number of segments in one page. The metadata itself lists up to twice as many.
PAGE = 256


class Heads:
    """The notes of one log in the database: its metadata and its pages."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._pages: dict[tuple[str, int], tuple[Segment, ...]] = {}

    @property
    def _key(self) -> str:
        return about(self._queue, LOG_TAG)

    def open(self) -> Head:
        """Return the metadata; create it if there is none.

        Raises `StoreError` if a newer version wrote it.
        """
        while True:
            note = self._store.note(self._key)
            if note is not None:
                return Head.read(self._queue, note)
            self._store.set_note(self._key, Head(uuid.uuid4().hex).value(), 0)

    def write(self, head: Head) -> Head | None:
        """Write the metadata in one compare-and-set, and return it with its new version.

        Return `None` if another process has written it since it was read.
        """
        if self._store.set_note(self._key, head.value(), head.version):
            return replace(head, version=head.version + 1)
        return None

    def first(self, head: Head) -> LogPlace:
        """Return the position of the first retained message.

        Raises `StoreError` as `segments` does.
        """
        start = head.pages[0] if head.pages else head
        position = start.position
        for number, segment in self.segments(head, start.number):
            if number >= head.first:
                return LogPlace(head.id, number, 0, position)
            position += segment.rows
        return LogPlace(head.id, head.next, 0, position)

    def segments(self, head: Head, number: int) -> Iterator[tuple[int, Segment]]:
        """Yield all segments from this number on, with their numbers.

        Raises `StoreError` if a page is missing, or if a newer version wrote it.
        """
        for page in head.pages:
            if number < page.number + page.segments:
                found = self._page(head.id, page.number)
                yield from list(enumerate(found, page.number))[max(0, number - page.number) :]
        yield from list(enumerate(head.segments, head.number))[max(0, number - head.number) :]

    def _page(self, id: str, number: int) -> tuple[Segment, ...]:
        if (id, number) not in self._pages:
            note = self._store.note(about(self._queue, LOG_TAG, str(number)))
            if note is None:
                raise StoreError(
                    f"log of queue {self._queue!r}: the note that lists its segments from {number} on is missing",
                    queue=self._queue,
                )
            self._pages[id, number] = tuple(Segment(*one) for one in known(self._queue, note)["segments"])
        return self._pages[id, number]

    def paged(self, head: Head) -> Head:
        """Return the metadata with its older segments moved into a page, if it has too many."""
        if len(head.segments) < 2 * PAGE:
            return head
        old, kept = head.segments[:PAGE], head.segments[PAGE:]
        page = Page(head.number, head.position, PAGE, sum(one.rows for one in old))
        value = {"v": LOG_VERSION, "segments": [list(one) for one in old]}
        self._store.set_note(about(self._queue, LOG_TAG, str(page.number)), value, 0)  # or the page exists already
        return replace(
            head,
            number=head.number + PAGE,
            position=head.position + page.rows,
            segments=kept,
            pages=(*head.pages, page),
        )

    def forget(self, head: Head, page: Page) -> None:
        """Remove the note of a page."""
        self._pages.pop((head.id, page.number), None)
        key = about(self._queue, LOG_TAG, str(page.number))
        if note := self._store.note(key):
            self._store.set_note(key, None, note.version)
