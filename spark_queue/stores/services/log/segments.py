"""The contents of the notes of a log: its metadata, pages of older segments, positions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from spark_queue.errors import StoreError
from spark_queue.stores.services.owner import Owner
from spark_queue.stores.types import Note

LOG_VERSION = 1

#: The first part of all tags of logs. No consumer can have this name.
LOG_TAG = "log"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in a log: the next message is row `row` of the segment with this number.

    `position` messages come before it. `log` is the id of the log: it changes if the queue is
    dropped.
    """

    log: str
    segment: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of rows of one segment: `rows` of them from `start` on. `tag` holds the segment."""

    tag: str
    start: LogPosition
    rows: int

    @property
    def end(self) -> LogPosition:
        """The position after the range."""
        return replace(self.start, row=self.start.row + self.rows, position=self.start.position + self.rows)


class Segment(NamedTuple):
    """A segment: its tag and number of rows.

    `sealed`: when it got its last message (ms). `last`: when its last record was due (ms), `None`
    if it cannot grow.
    """

    tag: str
    rows: int
    sealed: int
    last: int | None


class Page(NamedTuple):
    """A page: its first segment and position, and its numbers of segments and rows."""

    number: int
    position: int
    segments: int
    rows: int


@dataclass(frozen=True, slots=True)
class Sealing:
    """A seal in progress: its tag, and the process that runs it.

    `superseded`: tags of processes that it took over from, whose messages it also takes.
    """

    tag: str
    superseded: tuple[str, ...]
    owner: Owner


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """The metadata of a log.

    `number` and `position` are those of the first of `segments`; older segments are in `pages`.
    `first`: the first retained segment. Segments from `cleared` to `first` are being removed.
    `stale`: tags that were taken over, and when (ms).
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
    def next_number(self) -> int:
        """The number of the next segment."""
        return self.number + len(self.segments)

    @property
    def end(self) -> int:
        """The number of messages that were ever sealed."""
        return self.position + sum(one.rows for one in self.segments)

    @property
    def end_position(self) -> LogPosition:
        """The position after the last message."""
        if not self.segments:
            return LogPosition(self.id, self.next_number, 0, self.position)
        return LogPosition(self.id, self.next_number - 1, self.segments[-1].rows, self.end)

    @classmethod
    def from_note(cls, queue: str, note: Note) -> LogMetadata:
        """Return the metadata in a note. Raises `StoreError` if a newer version wrote it."""
        value = read_note(queue, note)
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

    def to_note(self) -> dict[str, Any]:
        """Return the metadata as the value of its note."""
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
            "sealing": sealing
            and {"tag": sealing.tag, "after": list(sealing.superseded), "by": asdict(sealing.owner)},
            "stale": [list(one) for one in self.stale],
        }


def read_note(queue: str, note: Note) -> dict[str, Any]:
    """Return the value of a note of a log. Raises `StoreError` if a newer version wrote it."""
    if note.value.get("v") != LOG_VERSION:
        raise StoreError(
            f"the log of queue {queue!r} has format version {note.value.get('v')!r}, but this version of spark_queue "
            f"reads {LOG_VERSION}: upgrade spark_queue",
            queue=queue,
        )
    return note.value
