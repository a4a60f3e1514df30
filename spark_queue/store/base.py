"""The contract of a store: one database behind one URL, holding many queues.

What a store promises, whatever the database:

* **Time** is the database's. No promise depends on the clock of a client.
* **Order** is that of `(mature, id)`, `mature` in ms; of a message whose lease ended, a store may say otherwise.
* A message is *ready* (mature and free), *scheduled* (not mature yet) or *reserved* (held under a tag until the
  lease ends).
* A **tag** names a reservation, made up by whoever reserves: `consumer/sequence/partition`. Tags form a tree: an
  operation on `etl/7` is one on `etl/7/0`, `etl/7/1`, … too.
* **Fencing**: what a tag no longer holds, it cannot commit, roll back, renew, move or fetch.
* When a lease ends, its messages may be taken by the next reserve of anybody, and count one more failed try then.
  Until somebody takes them the tag still holds them, so a holder who was merely late loses nothing.
* A **stage** is a place for messages that nobody can see yet: `sink/batch/attempt`, a name made up by whoever writes.
  To **publish** a stage makes its messages visible; whoever gets them, they leave the stage in the same step.
* **Every operation may be repeated** after a failure of which nobody knows how far it went: the second time it
  completes what is missing and changes nothing else.
* Durations and moments are `int` ms; a lease of `None` never ends.

A store writes the methods that begin with `_`; callers use the others, which check their arguments, and try again for
`patience` seconds while the database cannot be reached. Errors are `StoreError` (its subclass `StoreUnavailable`
where another try may help) and `OptionError` for names that the database forbids.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import quote

import pyarrow as pa
import tenacity

from spark_queue.errors import MessageError, OptionError, StoreUnavailable
from spark_queue.message import HISTORY, LATEST, MESSAGES, faults, new_ids

T = TypeVar("T")

View = Literal["messages", "history"]

#: Rows in one page of a fetch, and the bytes of payload at which a page ends early.
PAGE_ROWS = 10_000
PAGE_BYTES = 16 << 20

#: A partition smaller than this is not worth a task of its own.
SMALLEST_PARTITION = 500

#: ms between two looks of a waiting client, and for how long a look in vain is believed.
POLL, FRESH = 500, 50

_TAG = re.compile(r"[A-Za-z0-9_.:@-]+(/[A-Za-z0-9_.:@-]+)*")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages a queue holds, by state.

    `oldest_ready_age` (ms) is how long the first has been ready, `None` where nothing is; it moves with the clock,
    so it does not count when sizes are compared.
    """

    ready: int
    scheduled: int
    reserved: int
    oldest_ready_age: int | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        return self.ready + self.scheduled + self.reserved


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one tag holds.

    `until` is when its lease ends (ms since 1970), `None` for never.
    """

    tag: str
    rows: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Staged:
    """What one stage holds for one queue."""

    stage: str
    queue: str
    rows: int


@dataclass(frozen=True, slots=True)
class Note:
    """A small record kept beside the queues: a JSON object, and how often it was written."""

    value: dict[str, Any]
    version: int


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of `peek`: `column` is `id`, `mature` (ms) or `tries`; `value` of `in` is a tuple."""

    column: Literal["id", "mature", "tries"]
    op: Literal["=", "<", "<=", ">", ">=", "in"]
    value: str | int | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Death:
    """Why messages move to a dead-letter queue.

    `failed` failures are added to the tries that the header tells.
    """

    reason: str | None = None
    failed: int = 0

    def headers(self, queue: str, tries: int, now: int) -> dict[str, str]:
        """What the headers of a message of `queue` get that dies at `now` (ms) after `tries` failures."""
        moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {"x-dl-from-queue": queue, "x-dl-t": moment, "x-dl-tries": str(tries + self.failed)}
        return told if self.reason is None else told | {"x-error": self.reason}


@dataclass(frozen=True, slots=True)
class Which:
    """The messages that an operation is for: those that `tag` holds, or that nobody holds; narrowed by the rest."""

    tag: str | None = None
    ids: Sequence[str] | None = None
    limit: int | None = None
    min_tries: int = 0


class Store(ABC):
    """See the head of this module for what holds for all methods."""

    #: Most bytes of one payload.
    max_payload: ClassVar[int]

    #: JSON values that the layout cannot keep: a push of one is refused.
    refuses: ClassVar[tuple[object, ...]] = ()

    @classmethod
    def resolve(cls, url: str) -> str:
        """The URL as processes elsewhere must give it.

        Raises `OptionError` for one that cannot be meant.
        """
        return url

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        """Opens nothing yet.

        `patience`: seconds to keep trying while the database cannot be reached.
        """
        self.url = self.resolve(url)
        self.patience = patience
        self.retries = 0  #: how often something was tried again: the number that an operation gives is then a part
        self._in_vain: tuple[str, float, float | None] = ("", 0.0, None)  # queue, believed until, due (monotonic s)

    # --- messages in --------------------------------------------------------------------------------------------

    def push(self, queue: str, batch: pa.RecordBatch) -> int:
        """Make the rows of a PUSHES batch messages of `queue`, visible at once, and give their number.

        An id that the queue already holds is left as it is and not counted, so a push may be repeated. Raises
        `MessageError` before anything is written where rows break a rule; its `rows` tells which. A batch is atomic
        where the database is (see each store), else a failed push may have pushed a part.
        """
        self._check_push(queue, batch)
        return self._attempt(self._push, queue, batch) if batch.num_rows else 0

    @abstractmethod
    def _push(self, queue: str, batch: pa.RecordBatch) -> int: ...

    def _check_push(self, queue: str, batch: pa.RecordBatch) -> None:
        self.check_queue(queue)
        wrong = faults(batch, self.max_payload)
        if wrong:
            raise refused(queue, batch, wrong)

    # --- messages in, all at once -------------------------------------------------------------------------------

    def stage(self, queue: str, stage: str, batch: pa.RecordBatch) -> int:
        """Keep the rows of a PUSHES batch under `stage`, for `queue`, and give their number; nobody sees them.

        A `delay` counts from now. What a stage gets is added to what it holds, for this queue and others. Raises
        `MessageError` as `push` does, before anything is written.
        """
        check_tag(stage)
        self._check_push(queue, batch)
        part = new_ids(1)[0]  # a second attempt writes the same part again
        return self._attempt(self._stage, queue, stage, part, batch) if batch.num_rows else 0

    @abstractmethod
    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> int:
        """Keep the rows as that part of the stage; parts are published in their order."""

    def publish(self, stages: Sequence[str]) -> int:
        """Make what these very stages hold messages of their queues, and give the number of messages.

        They leave the stage in the same step, so a publish that was cut short is completed by another, and no message
        appears twice, even if it is taken and committed in between. Each store says how many messages appear in one
        step. An id that the queue holds already is left as it is and not counted.
        """
        for stage in stages:
            check_tag(stage)
        return self._attempt(self._publish, stages) if stages else 0

    @abstractmethod
    def _publish(self, stages: Sequence[str]) -> int: ...

    def staged(self, stage: str = "") -> list[Staged]:
        """What the stage and those below it hold, by stage and queue; all stages where it is empty."""
        return sorted(self._attempt(self._staged, stage), key=lambda one: (one.stage, one.queue))

    @abstractmethod
    def _staged(self, stage: str) -> list[Staged]: ...

    def unstage(self, stage: str, keep: Sequence[str] = ()) -> int:
        """Remove what the stage and those below it hold, but for the stages to keep; give the number of rows."""
        check_tag(stage)
        return self._attempt(self._unstage, stage, keep)

    @abstractmethod
    def _unstage(self, stage: str, keep: Sequence[str]) -> int: ...

    # --- reservations -------------------------------------------------------------------------------------------

    def reserve(
        self,
        queue: str,
        tag: str,
        limit: int,
        *,
        partitions: int = 1,
        lease: int | None = 120_000,
        before: int = LATEST,
    ) -> list[int]:
        """Take up to `limit` ready messages, in order, under the tags `tag/0`, `tag/1`, …; give the rows of each.

        An empty list says that nothing is ready. There are at most `partitions` tags, and fewer where there is
        little to share out. Each message is held by one tag at a time, however many clients reserve at once.
        Messages that mature after the moment `before` are left alone, even once they are ready. A tag that already
        holds messages is answered with what it holds, and takes no more: that resumes a reserve which a crash cut
        short.
        """
        self.check_queue(queue)
        check_tag(tag)
        if partitions == 1:
            rows = [self._attempt(self._claim, queue, f"{tag}/0", limit, lease, before)]
        elif held := {one.tag: one.rows for one in self.reservations(queue, tag)}:
            last = max(int(name.rpartition("/")[2]) for name in held)
            rows = [held.get(f"{tag}/{partition}", 0) for partition in range(last + 1)]
        else:
            shares = spread(self._attempt(self._ready, queue, limit, before), partitions)
            rows = [
                self._attempt(self._claim, queue, f"{tag}/{partition}", share, lease, before)
                for partition, share in enumerate(shares)
            ]
        return rows if any(rows) else []

    @abstractmethod
    def _claim(self, queue: str, tag: str, limit: int, lease: int | None, before: int) -> int:
        """Take up to `limit` ready messages under this very tag; where it holds some, just give their number."""

    @abstractmethod
    def _ready(self, queue: str, limit: int, before: int) -> int:
        """The number of messages that such a claim could take now, counted up to `limit`."""

    def fetch(self, queue: str, tag: str, rows: int = PAGE_ROWS) -> Iterator[pa.RecordBatch]:
        """What one tag (not those below it) holds, in order, as MESSAGES batches of at most `rows` rows.

        Repeatable: it changes nothing, and gives the same rows until the tag is committed, rolled back or lost.
        `mature` is when the message was due, not when the lease ends.
        """
        after: tuple[int, str] | None = None
        while (batch := self._attempt(self._page, queue, tag, after, rows)).num_rows:
            yield batch
            mature = batch.column("mature")[-1].cast(pa.int64()).as_py() // 1000
            after = (mature, batch.column("id")[-1].as_py())

    @abstractmethod
    def _page(self, queue: str, tag: str, after: tuple[int, str] | None, rows: int) -> pa.RecordBatch:
        """Up to `rows` held messages that come after (mature, id); ends early at PAGE_BYTES; empty at the end."""

    def renew(self, queue: str, tag: str, lease: int | None) -> int:
        """Let what the tag still holds be held for `lease` ms from now; give the number of messages."""
        check_tag(tag)
        return self._attempt(self._renew, queue, tag, lease)

    @abstractmethod
    def _renew(self, queue: str, tag: str, lease: int | None) -> int: ...

    def commit(self, queue: str, tag: str, ids: Sequence[str] | None = None, *, history: int = 0) -> int:
        """Remove what the tag holds (of `ids`, where given) and give the number removed.

        `history` ms long the messages can still be read with `peek(view="history")`. Atomic for each message; for
        all of them together where the database has transactions.
        """
        check_tag(tag)
        return self._attempt(self._commit, queue, tag, ids, history)

    @abstractmethod
    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int) -> int: ...

    def rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None = None, *, delay: int = 0, failed: bool = True
    ) -> int:
        """Give back what the tag holds (of `ids`, where given), mature in `delay` ms; give the number given back.

        `failed` adds one to their tries. Atomic as `commit`.
        """
        check_tag(tag)
        if delay < 0:
            raise OptionError(f"a rollback cannot be delayed by {delay} ms", delay=delay)
        return self._attempt(self._rollback, queue, tag, ids, delay, failed)

    @abstractmethod
    def _rollback(self, queue: str, tag: str, ids: Sequence[str] | None, delay: int, failed: bool) -> int: ...

    def retag(self, queue: str, tag: str, to: str, ids: Sequence[str] | None = None, *, lease: int | None) -> int:
        """Let `to` hold what `tag` holds (of `ids`, where given), for `lease` ms from now; give the number.

        `to` is one very tag, and may hold some messages already. Atomic as `commit`.
        """
        check_tag(tag)
        check_tag(to)
        return self._attempt(self._retag, queue, tag, to, ids, lease)

    @abstractmethod
    def _retag(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int: ...

    def reservations(self, queue: str, tag: str = "") -> list[Reservation]:
        """What the tag and those below it hold, by tag; all reservations of the queue where it is empty."""
        return self._attempt(self._reservations, queue, tag)

    @abstractmethod
    def _reservations(self, queue: str, tag: str) -> list[Reservation]: ...

    # --- between queues -----------------------------------------------------------------------------------------

    def move(
        self,
        queue: str,
        to: str,
        *,
        tag: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int | None = None,
        min_tries: int = 0,
        death: Death | None = None,
    ) -> int:
        """Move messages to another queue of the store and give their number.

        Which: those that nobody holds under a lease that lasts, or those that `tag` holds; of these `ids` where
        given, with at least `min_tries` tries, the first `limit` in order. They keep id, payload, headers and
        maturity; their tries start anew at 0. With `death` they get the headers of a dead letter. Each message is
        in exactly one of the queues at every moment (a store says where it is in doubt); one whose id the target
        holds already replaces nothing there and is gone from here.
        """
        self.check_queue(queue)
        self.check_queue(to)
        if tag is not None:
            check_tag(tag)
        if queue == to:
            raise OptionError(f"a queue cannot be moved to itself: {queue!r}", queue=queue)
        return self._attempt(self._move, queue, to, Which(tag, ids, limit, min_tries), death)

    @abstractmethod
    def _move(self, queue: str, to: str, which: Which, death: Death | None) -> int: ...

    # --- notes --------------------------------------------------------------------------------------------------

    def note(self, key: str) -> Note | None:
        """The note of this key, if there is one."""
        return self._attempt(self._note, key)

    @abstractmethod
    def _note(self, key: str) -> Note | None: ...

    def set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        """Write the note if it still has this version (0: there is none yet), and give whether that was so.

        Atomic. `None` removes it, also where there is none. Two writers of the same version may both be told that
        they did it only where they wrote the same value and the answer to one was lost: who counts puts something of
        its own in it.
        """
        if value is None and not version:
            return self.note(key) is None
        retries = self.retries
        if self._attempt(self._set_note, key, value, version):
            return True
        if self.retries == retries:
            return False
        found = self.note(key)  # the answer to a first attempt may have been lost
        if found is None or value is None:
            return found is None and value is None
        return found == Note(value, version + 1)

    @abstractmethod
    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool: ...

    def notes(self, prefix: str) -> dict[str, Note]:
        """The notes whose keys begin so, by key. It may look at every key of the database: for tools only."""
        return dict(sorted(self._attempt(self._notes, prefix).items()))

    @abstractmethod
    def _notes(self, prefix: str) -> dict[str, Note]: ...

    # --- looking ------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The database's time."""
        return self._attempt(self._now)

    @abstractmethod
    def _now(self) -> int: ...

    def sizes(self, queue: str) -> Sizes:
        """How many messages the queue holds; all zero for a queue that does not exist."""
        return self._attempt(self._sizes, queue)

    @abstractmethod
    def _sizes(self, queue: str) -> Sizes: ...

    def next_mature(self, queue: str) -> int | None:
        """Milliseconds until a message may next be reserved, leases that end included; `None` if there is none.

        0 or less: one may be reserved now.
        """
        return self._attempt(self._next_mature, queue)

    @abstractmethod
    def _next_mature(self, queue: str) -> int | None: ...

    def wait(self, queue: str, timeout: int) -> bool:
        """Sleep until a message may be reserved, `timeout` ms at most; give whether one may."""
        now = time.monotonic()
        end = now + timeout / 1000
        name, until, due = self._in_vain
        if name == queue and now < until:  # a wait that follows on another need not look again
            time.sleep(min(timeout / 1000, POLL / 1000, POLL if due is None else max(0.0, due - now)))
        while True:
            wait = self.next_mature(queue)
            if wait is not None and wait <= 0:
                return True
            now = time.monotonic()
            due = None if wait is None else now + wait / 1000
            if now >= end:
                self._in_vain = queue, now + FRESH / 1000, due
                return False
            time.sleep(min(end - now, POLL / 1000, POLL if due is None else due - now))

    def peek(
        self,
        queue: str,
        where: Sequence[Condition] = (),
        *,
        limit: int | None = None,
        view: View = "messages",
        rows: int = PAGE_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """All messages of the queue that meet every condition, reserved ones included, changing nothing.

        Batches of MESSAGES, or of HISTORY (which adds the moment `processed`) in that view. With a `limit` they are
        the first in order; without, they come in no particular order. No message is given twice. `mature` of a
        reserved message is when it was due.
        """
        schema = MESSAGES if view == "messages" else HISTORY
        for batch in self._peek(queue, where, limit, view, rows):
            yield batch.cast(schema) if batch.schema != schema else batch

    @abstractmethod
    def _peek(
        self, queue: str, where: Sequence[Condition], limit: int | None, view: View, rows: int
    ) -> Iterator[pa.RecordBatch]: ...

    def queues(self) -> list[str]:
        """The names of the queues that hold messages, sorted.

        An emptied one may be among them, a dropped one is not.
        """
        return sorted(self._attempt(self._queues))

    @abstractmethod
    def _queues(self) -> list[str]: ...

    # --- housekeeping -------------------------------------------------------------------------------------------

    def purge(self, queue: str) -> int:
        """Remove the messages that nobody holds and give their number.

        Those held under a lease that has not ended stay, and so does the history.
        """
        return self._attempt(self._purge, queue)

    @abstractmethod
    def _purge(self, queue: str) -> int: ...

    def drop(self, queue: str) -> None:
        """Remove the queue: messages, reservations, history, the notes about it. What is staged for it stays.

        A queue that does not exist is dropped already.
        """
        self._attempt(self._drop, queue)
        for key, note in self.notes(about(queue)).items():
            self.set_note(key, None, note.version)

    @abstractmethod
    def _drop(self, queue: str) -> None: ...

    def check_queue(self, queue: str) -> None:
        """Raise `OptionError` where the database forbids the name."""
        if not queue or "\0" in queue or len(queue.encode()) > 200:
            raise OptionError(
                f"{queue!r} cannot name a queue: 1 to 200 bytes without the character NUL",
                option="queue",
                queue=queue,
            )

    @abstractmethod
    def close(self) -> None:
        """Give back connections.

        A closed store opens again when it is used.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T:
        """Call until it succeeds, while the database cannot be reached and patience lasts, with growing pauses."""

        def count(_: tenacity.RetryCallState) -> None:
            self.retries += 1

        return tenacity.Retrying(
            before_sleep=count,
            retry=tenacity.retry_if_exception_type(StoreUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=3),
            stop=tenacity.stop_after_delay(self.patience),
            reraise=True,
        )(operation, *arguments)


def spread(rows: int, partitions: int) -> list[int]:
    """How many of `rows` each partition gets: even shares, at most `partitions`, none that is not worth a task."""
    parts = max(1, min(partitions, -(-rows // SMALLEST_PARTITION)))
    return [rows // parts + (part < rows % parts) for part in range(parts)] if rows else []


def check_tag(tag: str) -> None:
    """Raise `OptionError` where a tag is not names joined by slashes."""
    if not _TAG.fullmatch(tag):
        raise OptionError(f"{tag!r} cannot be a tag: letters, digits and _ . : @ - in parts joined by /", tag=tag)


def about(queue: str, *names: str) -> str:
    """The key of a note about a queue; the beginning of all their keys where no names are given."""
    return "/".join(("queue", quote(queue, safe=""), *names, *([] if names else [""])))


def below(tag: str) -> tuple[str, str]:
    """The half-open range of the tags below `tag` in text order ("0" comes right after "/")."""
    return f"{tag}/", f"{tag}0"


def refused(queue: str, batch: pa.RecordBatch, wrong: Mapping[int, str]) -> MessageError:
    """The error for rows of a batch that cannot become messages: it names the first by id, and counts the rest."""
    row, rule = next(iter(wrong.items()))
    rest = f" (and {len(wrong) - 1} more rows)" if len(wrong) > 1 else ""
    id = batch.column("id")[row].as_py()
    return MessageError(
        f"queue {queue!r}, row with id {id!r}: {rule}{rest}; nothing of this batch was pushed",
        rows=wrong,
        queue=queue,
    )
