"""What stands in the notes of a log: its head, pages of older segments, and places in them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from spark_queue.errors import StoreError
from spark_queue.stores.services.owner import Owner
from spark_queue.stores.types import Note

LOG_VERSION = 1

#: The first part of all tags of logs, which no consumer may have as its name.
LOG_TAG = "log"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in a log: the next message is row `row` of that segment, and comes after `position` others.

    `log` tells this log from one that the queue had before it was dropped.
    """

    log: str
    segment: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one segment: `rows` of them from `start` on. `tag` holds the segment."""

    tag: str
    start: LogPlace
    rows: int

    @property
    def end(self) -> LogPlace:
        """The place after it."""
        return replace(self.start, row=self.start.row + self.rows, position=self.start.position + self.rows)


class Segment(NamedTuple):
    """`sealed`: when it got its last message (ms). `last`: when its last record was due, where it may grow."""

    tag: str
    rows: int
    sealed: int
    last: int | None


class Page(NamedTuple):
    """Where a page begins, how many segments it has, and how many rows these."""

    number: int
    position: int
    segments: int
    rows: int


@dataclass(frozen=True, slots=True)
class Sealing:
    """Who seals just now, under which tag; `after`: those of earlier ones, whose messages come with it."""

    tag: str
    after: tuple[str, ...]
    by: Owner


@dataclass(frozen=True, slots=True)
class Head:
    """What stands in the note. `number`, `position`: of the first of `segments`, those before are in `pages`.

    `first`: the first segment that is retained; those from `cleared` to it are being removed. `stale`: tags that were
    taken over, and when.
    """

    id: str
    first: int = 0
    cleared: int = 0
    number: int = 0
    position: int = 0
    segments: tuple[Segment, ...] = ()
    pages: tuple[Page, ...] = ()
    sealing: Sealing | None = None
    stale: tuple[tuple[str, int], ...] = ()
    version: int = field(default=0, compare=False)

    @property
    def next(self) -> int:
        """The number of the segment that comes after the last one."""
        return self.number + len(self.segments)

    @property
    def end(self) -> int:
        """How many messages were ever sealed."""
        return self.position + sum(one.rows for one in self.segments)

    @property
    def end_place(self) -> LogPlace:
        """The place after the last message."""
        if not self.segments:
            return LogPlace(self.id, self.next, 0, self.position)
        return LogPlace(self.id, self.next - 1, self.segments[-1].rows, self.end)

    @classmethod
    def read(cls, queue: str, note: Note) -> Head:
        """What a note says. Raises `StoreError` for one that a newer version wrote."""
        value = known(queue, note)
        sealing = value["sealing"]
        return cls(
            value["id"],
            value["first"],
            value["cleared"],
            value["number"],
            value["position"],
            tuple(Segment(*one) for one in value["segments"]),
            tuple(Page(*one) for one in value["pages"]),
            sealing and Sealing(sealing["tag"], tuple(sealing["after"]), Owner(**sealing["by"])),
            tuple((tag, at) for tag, at in value["stale"]),
            note.version,
        )

    def value(self) -> dict[str, Any]:
        """The note that says this."""
        sealing = self.sealing
        return {
            "v": LOG_VERSION,
            "id": self.id,
            "first": self.first,
            "cleared": self.cleared,
            "number": self.number,
            "position": self.position,
            "segments": [list(one) for one in self.segments],
            "pages": [list(one) for one in self.pages],
            "sealing": sealing and {"tag": sealing.tag, "after": list(sealing.after), "by": asdict(sealing.by)},
            "stale": [list(one) for one in self.stale],
        }


def known(queue: str, note: Note) -> dict[str, Any]:
    """What a note about a log says. Raises `StoreError` for one that a newer version wrote."""
    if note.value.get("v") != LOG_VERSION:
        raise StoreError(
            f"the log of queue {queue!r} was written by version {note.value.get('v')!r}, this version of spark_queue "
            f"reads {LOG_VERSION}: upgrade spark_queue",
            queue=queue,
        )
    return note.value
