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
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from spark_queue.errors import CheckpointError, StoreError
from spark_queue.message import LATEST, milliseconds
from spark_queue.store.base import POLL, Store
from spark_queue.store.facts import Note, about
from spark_queue.store.owner import Owner, Watch
from spark_queue.words import plural

log = logging.getLogger(__name__)

VERSION = 1

#: The first part of all tags of logs, which no consumer may have as its name.
LOG = "log"

#: Most messages in a segment, unless one bucket holds more, and those that are sealed at a time.
SEGMENT, CLAIM = 2_500, 10_000

#: Most messages by which a segment grows.
SMALL = 250

#: Segments in one page; the head holds up to twice as many.
PAGE = 256

#: ms for which what a sealer that was taken over may have taken since is given back.
STALE = 600_000

#: ms for which it is believed whether a queue is paused, and the most seconds between two looks for what is too old.
PAUSE_KNOWN, LONGEST_REST = 250, 60.0

#: Seconds between two looks at a log that somebody is sealing.
GLANCE = 0.005


@dataclass(frozen=True, slots=True)
class Place:
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
    start: Place
    rows: int

    @property
    def end(self) -> Place:
        """The place after it."""
        return replace(self.start, row=self.start.row + self.rows, position=self.start.position + self.rows)


class Segment(NamedTuple):
    """`sealed`: when it got its last message (ms). `last`: when its last record was due, where it may grow."""

    tag: str
    rows: int
    sealed: int
    last: int | None


class _Page(NamedTuple):
    """Where a page begins, how many segments it has, and how many rows these."""

    number: int
    position: int
    segments: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Sealing:
    """Who seals just now, under which tag; `after`: those of earlier ones, whose messages come with it."""

    tag: str
    after: tuple[str, ...]
    by: Owner


@dataclass(frozen=True, slots=True)
class _Head:
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
    pages: tuple[_Page, ...] = ()
    sealing: _Sealing | None = None
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

    @classmethod
    def read(cls, queue: str, note: Note) -> _Head:
        value = _known(queue, note)
        sealing = value["sealing"]
        return cls(
            value["id"],
            value["first"],
            value["cleared"],
            value["number"],
            value["position"],
            tuple(Segment(*one) for one in value["segments"]),
            tuple(_Page(*one) for one in value["pages"]),
            sealing and _Sealing(sealing["tag"], tuple(sealing["after"]), Owner(**sealing["by"])),
            tuple((tag, at) for tag, at in value["stale"]),
            note.version,
        )

    def value(self) -> dict[str, Any]:
        sealing = self.sealing
        return {
            "v": VERSION,
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
        self._retention = retention
        self._lossy = lossy
        self._token = uuid.uuid4().hex
        self._pages: dict[tuple[str, int], tuple[Segment, ...]] = {}
        self._watch = Watch()
        self._told = ""  # what was lost
        self._trimmed = 0.0  # when it was last looked whether something is too old (monotonic s)

    # --- places -------------------------------------------------------------------------------------------------

    def first(self) -> Place:
        """The place of the first message that is retained."""
        return self._first(self._open())

    def end(self) -> Place:
        """The place after the last message that was sealed."""
        return _end(self._open())

    def latest(self) -> Place:
        """The place after all messages that may be taken now: they are sealed first."""
        before = self._store.now()
        while not self.complete(before):
            if not self.seal(before=before):
                time.sleep(GLANCE)
        return self.end()

    @property
    def positions(self) -> tuple[int, int]:
        """Those of the first message that is retained, and of the next one to come."""
        head = self._open()
        return self._first(head).position, head.end

    def found(self, place: Place) -> Place:
        """The place, or where a `lossy` reader goes on. Raises `CheckpointError` where it is gone."""
        return self._found(self._open(), place)

    def complete(self, before: int) -> bool:
        """Whether the log has all messages that were due at that moment (ms); those of a paused queue can wait."""
        ready = self._ready(before)  # first: who has taken it since stands in the head
        return not ready and self._open().sealing is None

    # --- reading ------------------------------------------------------------------------------------------------

    def ahead(self, place: Place, most: int, *, before: int = LATEST) -> list[Piece]:
        """What comes next from a place on: pieces of `most` messages together at most, none where nothing is ready.

        Changes nothing for other readers. Where the log has nothing more, what is ready and due by `before` (ms) is
        sealed. Raises `CheckpointError` where the place is gone, unless the log is `lossy`.
        """
        head = self._open()
        place = self._found(head, place)
        pieces = self._cut(head, place, most)
        if not pieces and self.seal(before=before):
            pieces = self._cut(self._open(), place, most)
        self._retain()
        return pieces

    def between(self, start: Place, end: Place) -> list[Piece]:
        """The pieces from one place to another, the same whenever they are asked for. Raises as `ahead` does."""
        head = self._open()
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

    def wait(self, place: Place, timeout: int) -> bool:
        """Sleep until something comes after the place, or can be sealed, `timeout` ms at most; give whether it does.

        Who brings a message wakes all readers, and one of them seals it.
        """
        end, closings = time.monotonic() + timeout / 1000, self._store._closings
        while True:
            rung = self._store._rung(self._queue)  # before the look: what comes after it is heard
            due = self._store.next_mature(self._queue)  # before the head: who has taken it since stands there
            head = self._open()
            if head.end > place.position or head.id != place.log:
                return True
            now = time.monotonic()
            pause = POLL / 1000
            if head.sealing is not None and self._lives(head.sealing):
                pause = GLANCE
            elif head.sealing is not None:
                return True
            elif due is not None and due > 0:
                pause = min(pause, due / 1000)
            elif due is not None and not self._store.paused(self._queue, known=PAUSE_KNOWN):
                return True
            if now >= end:
                return False
            if pause == GLANCE:
                time.sleep(pause)
            else:
                self._store._listen(self._queue, rung, min(end - now, pause))
            if closings != self._store._closings:
                return False

    def _cut(self, head: _Head, place: Place, most: int) -> list[Piece]:
        pieces: list[Piece] = []
        for number, segment in self._segments(head, place.segment):
            if number != place.segment:
                place = replace(place, segment=number, row=0)
            rows = min(segment.rows - place.row, most)
            if rows > 0:
                piece = Piece(f"{LOG}/{segment.tag}", place, rows)
                pieces.append(piece)
                place, most = piece.end, most - rows
            if most <= 0:
                break
        return pieces

    def _found(self, head: _Head, place: Place) -> Place:
        """The place, as it is to be read from now on."""
        first = self._first(head)
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

    # --- the head and its pages ---------------------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return about(self._queue, LOG)

    def _open(self) -> _Head:
        """The head, which is made where there is none."""
        while True:
            note = self._store.note(self._key)
            if note is not None:
                return _Head.read(self._queue, note)
            self._store.set_note(self._key, _Head(uuid.uuid4().hex).value(), 0)

    def _write(self, head: _Head) -> _Head | None:
        """The head as it stands from now on; `None` where somebody has written another meanwhile."""
        if self._store.set_note(self._key, head.value(), head.version):
            return replace(head, version=head.version + 1)
        return None

    def _first(self, head: _Head) -> Place:
        start = head.pages[0] if head.pages else head
        position = start.position
        for number, segment in self._segments(head, start.number):
            if number >= head.first:
                return Place(head.id, number, 0, position)
            position += segment.rows
        return Place(head.id, head.next, 0, position)

    def _segments(self, head: _Head, number: int) -> Iterator[tuple[int, Segment]]:
        """All segments from this one on, with their numbers."""
        for page in head.pages:
            if number < page.number + page.segments:
                found = self._page(head.id, page.number)
                yield from list(enumerate(found, page.number))[max(0, number - page.number) :]
        yield from list(enumerate(head.segments, head.number))[max(0, number - head.number) :]

    def _page(self, id: str, number: int) -> tuple[Segment, ...]:
        if (id, number) not in self._pages:
            note = self._store.note(about(self._queue, LOG, str(number)))
            if note is None:
                raise StoreError(
                    f"log of queue {self._queue!r}: the note about segments from {number} on is gone",
                    queue=self._queue,
                )
            self._pages[id, number] = tuple(Segment(*one) for one in _known(self._queue, note)["segments"])
        return self._pages[id, number]

    def _paged(self, head: _Head) -> _Head:
        """The head with its older segments in a page, where it has too many."""
        if len(head.segments) < 2 * PAGE:
            return head
        old, kept = head.segments[:PAGE], head.segments[PAGE:]
        page = _Page(head.number, head.position, PAGE, sum(one.rows for one in old))
        value = {"v": VERSION, "segments": [list(one) for one in old]}
        self._store.set_note(about(self._queue, LOG, str(page.number)), value, 0)  # or it stands there already
        return replace(
            head,
            number=head.number + PAGE,
            position=head.position + page.rows,
            segments=kept,
            pages=(*head.pages, page),
        )

    # --- sealing ------------------------------------------------------------------------------------------------

    def seal(self, most: int | None = None, *, before: int = LATEST) -> int:
        """Put up to `most` messages that are ready and due by `before` (ms) into the log; give their number.

        0 where nothing is ready, or somebody else is at it.
        """
        most = CLAIM if most is None else most
        head = self._open()
        old = head.sealing
        ready = self._ready(before, most)
        if old is None and not ready:
            return 0
        now = self._store.now()
        if old is not None and old.by.token != self._token and self._lives(old):
            return 0
        after = () if old is None else (*old.after, old.tag)
        claim = _Sealing(f"{head.next}/{uuid.uuid4().hex[:12]}", after, Owner.here(self._token, now))
        stale = {tag: at for tag, at in head.stale if at > now - STALE}
        known = tuple((stale | dict.fromkeys(after, now)).items())
        begun = self._write(replace(self._paged(head), sealing=claim, stale=known))
        if begun is None:
            return 0
        for tag in stale.keys() - set(after):
            self._store.rollback(self._queue, f"{LOG}/{tag}", failed=False)
        made = self._adopted(begun, claim) if after else None
        if made is None:
            made = self._taken(begun, claim, most, -(-ready // SEGMENT), before, now)
        return self._decide(begun, claim, made)

    def _lives(self, sealing: _Sealing) -> bool:
        """Whether who seals counts as living: by the database's clock, and by ours for as long as we have seen it."""
        silent = self._watch.silent(sealing.tag)
        return sealing.by.lives(self._store.now()) and not silent

    def _ready(self, before: int, most: int = 1) -> int:
        """How many messages may be sealed, counted up to `most`."""
        if self._store.paused(self._queue, known=PAUSE_KNOWN):
            return 0
        return self._store._attempt(self._store._ready, self._queue, most, before)

    def _adopted(self, head: _Head, claim: _Sealing) -> _Made | None:
        """Go on with what those before have taken; `None` where the last segment was not growing."""
        tag = f"{LOG}/{claim.tag}/0"
        for old in claim.after:
            self._store.retag(self._queue, f"{LOG}/{old}", tag, lease=None)
        # Only now, for nobody else can let it grow any more.
        tail = head.segments[-1] if head.segments and head.next > head.first else None
        if tail is None or self._holds(tail.tag) <= tail.rows:
            return None
        if not self._grow(claim, tail):
            return _Made(())
        return _Made((), tail._replace(rows=self._holds(tail.tag), sealed=self._store.now(), last=None))

    def _grow(self, claim: _Sealing, tail: Segment) -> bool:
        """Pass what the claim holds on to the last segment, unless somebody has taken over.

        Nothing comes to the claim's tag any more. So whoever takes over after the look finds all of it there, or on
        its way, and passes it on before he goes by what the segment holds.
        """
        head = self._open()
        if head.sealing is None or head.sealing.tag != claim.tag:
            return False
        self._store.retag(self._queue, f"{LOG}/{claim.tag}", f"{LOG}/{tail.tag}", lease=None)
        return True

    def _holds(self, tag: str) -> int:
        return sum(one.rows for one in self._store.reservations(self._queue, f"{LOG}/{tag}"))

    def _taken(self, head: _Head, claim: _Sealing, most: int, parts: int, before: int, now: int) -> _Made:
        """Take messages, as new segments or for the last one."""
        tag = f"{LOG}/{claim.tag}"
        taken = self._store.reserve(self._queue, tag, most, partitions=max(1, parts), lease=None, before=before)
        if len(taken) != 1 or taken[0] > SMALL:
            made = [Segment(f"{claim.tag}/{part}", rows, now, None) for part, rows in enumerate(taken) if rows]
            return _Made(tuple(made))
        tag, rows = f"{claim.tag}/0", taken[0]
        span = self._span(tag)
        if span is None:
            return _Made(())  # somebody has taken over
        first, last = span
        tail = head.segments[-1] if head.segments and head.next > head.first else None
        if tail is None or tail.last is None or tail.rows + rows > SEGMENT or first <= tail.last:
            return _Made((Segment(tag, rows, now, last),))
        if not self._grow(claim, tail):
            return _Made(())
        return _Made((), tail._replace(rows=tail.rows + rows, sealed=now, last=last))

    def _span(self, tag: str) -> tuple[int, int] | None:
        """When the first and the last record that a tag holds were due; `None` where it holds none."""
        moments = [
            moment
            for page in self._store._records(self._queue, f"{LOG}/{tag}")
            for moment in milliseconds(page.batch.column("mature")).to_pylist()
        ]
        return (moments[0], moments[-1]) if moments else None

    def _decide(self, head: _Head, claim: _Sealing, made: _Made) -> int:
        """Write down what was sealed, unless it was taken over; give the number of messages."""
        while head.sealing is not None and head.sealing.tag == claim.tag:
            segments = head.segments
            rows = sum(one.rows for one in made.segments)
            if made.grown is not None:
                rows = made.grown.rows - segments[-1].rows
                segments = (*segments[:-1], made.grown)
            if self._write(replace(head, segments=(*segments, *made.segments), sealing=None)):
                return rows
            head = self._open()  # somebody trims, or has taken over
        tags = {one.tag for one in (*made.segments, *([made.grown] if made.grown else []))}
        if any(one.tag in tags for _, one in self._segments(head, 0)):
            return sum(one.rows for one in made.segments)  # the answer was lost, and then somebody else wrote
        given = self._store.rollback(self._queue, f"{LOG}/{claim.tag}", failed=False)
        if given:
            log.warning(
                "log of queue %s: this process stood still while it sealed, and another went on; %d messages were "
                "released",
                self._queue, given,
            )  # fmt: skip
        return 0

    # --- removing -----------------------------------------------------------------------------------------------

    def trim(self, older_than: int) -> int:
        """Remove the segments that got their last message longer ago (ms); give the number of messages removed.

        Readers whose place is among them have lost these messages. May be repeated: what was cut short is completed.
        """
        while True:
            head = self._open()
            limit = self._store.now() - older_than
            first = head.first
            for number, segment in self._segments(head, first):
                # The last one may be growing, unless nobody is sealing.
                if segment.sealed > limit or (number == head.next - 1 and head.sealing is not None):
                    break
                first = number + 1
            if first == head.first or self._write(replace(head, first=first)):
                return self._remove()

    def _remove(self) -> int:
        """Commit what lies before the first segment that is retained, and forget it."""
        removed = 0
        while True:
            head = self._open()
            if head.cleared == head.first:
                return removed
            for number, segment in self._segments(head, head.cleared):
                if number >= head.first:
                    break
                removed += self._store.commit(self._queue, f"{LOG}/{segment.tag}")
            gone = [one for one in head.pages if one.number + one.segments <= head.first]
            some = max(0, head.first - head.number)
            dropped = head.segments[:some]
            shorter = replace(
                head,
                cleared=head.first,
                number=head.number + some,
                position=head.position + sum(one.rows for one in dropped),
                segments=head.segments[some:],
                pages=tuple(one for one in head.pages if one not in gone),
            )
            if self._write(shorter) is None:
                continue
            for page in gone:
                self._pages.pop((head.id, page.number), None)
                key = about(self._queue, LOG, str(page.number))
                if note := self._store.note(key):
                    self._store.set_note(key, None, note.version)
            return removed

    def _retain(self) -> None:
        """Remove what is too old, now and then."""
        if self._retention is None:
            return
        now = time.monotonic()
        if now - self._trimmed >= min(self._retention / 10_000, LONGEST_REST):
            self._trimmed = now
            self.trim(self._retention)


class _Made(NamedTuple):
    """What was sealed: new segments, or the last one as it has grown."""

    segments: Sequence[Segment]
    grown: Segment | None = None


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
    note = store.note(about(queue, LOG))
    if note is None:
        return None
    head, found = _Head.read(queue, note), Log(store, queue)
    all_of_them = list(found._segments(head, head.first))
    begun = () if head.sealing is None else (head.sealing.tag, *head.sealing.after)
    tags = {f"{LOG}/{tag}" for tag in (*begun, *(one.tag for _, one in all_of_them))}
    oldest = all_of_them[0][1].sealed if all_of_them else None
    return Retained(found._first(head).position, head.end, len(all_of_them), oldest, frozenset(tags))


def _end(head: _Head) -> Place:
    if not head.segments:
        return Place(head.id, head.next, 0, head.position)
    rows = head.segments[-1].rows
    return Place(head.id, head.next - 1, rows, head.end)


def _known(queue: str, note: Note) -> dict[str, Any]:
    if note.value.get("v") != VERSION:
        raise StoreError(
            f"the log of queue {queue!r} was written by version {note.value.get('v')!r}, this version of spark_queue "
            f"reads {VERSION}: upgrade spark_queue",
            queue=queue,
        )
    return note.value
