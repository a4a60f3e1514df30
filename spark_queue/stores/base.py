"""The contract of a store: one database behind one URL, holding many queues.

What a store promises, whatever the database:

* **Time** is the database's. No promise depends on the clock of a client.
* **Order** is that of `(mature, id)`, `mature` in ms; of a message whose lease ended, a store may say otherwise.
* A message is *ready* (mature and free), *scheduled* (not mature yet) or *reserved* (held under a tag until the
  lease ends).
* A **tag** names a reservation, chosen by the reader: `consumer/sequence/partition`. Tags form a tree: an
  operation on `etl/7` is one on `etl/7/0`, `etl/7/1`, … too.
* **Fencing**: what a tag no longer holds, it cannot commit, roll back, renew, move or fetch.
* When a lease ends, the next reserve may take its messages, and they count one more failed try then. A store frees
  them when it next reserves or counts what is ready. Until then the tag holds them: a late holder loses nothing.
* A **stage** is a place for messages that nobody can see yet: `sink/batch/attempt`, a name chosen by the writer.
  To **publish** a stage makes its messages visible; whoever gets them, they leave the stage in the same step.
* **Every operation may be repeated** after a failure of which nobody knows how far it went: the second time it
  completes what is missing and changes nothing else.
* From a queue that is **paused** nothing is taken that is not held yet; all else goes on.
* Durations and moments are `int` ms; a lease of `None` never ends.

A store writes the methods that begin with `_`; callers use the others, which check their arguments, and try again for
`patience` seconds while the database cannot be reached. The former know *records*, each a message or a bucket of many
(`messages/buckets.py`), which they treat alike: a message passes them by its id, a bucket by its own; only where they
count, they count messages. The latter know messages: they open buckets, and take them apart where they must.

Errors are `StoreError` (its subclass `StoreUnavailable` where another try may help) and `OptionError` for names that
the database forbids.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa
import tenacity

from spark_queue.errors import (
    AccessDenied,
    MessageError,
    OptionError,
    PoolExhausted,
    StoreError,
    StoreUnavailable,
    plural,
)
from spark_queue.messages.buckets import Buckets, Layout, Record, packed, rows_of
from spark_queue.messages.columns import dated, filled, first_due
from spark_queue.messages.ids import new_ids
from spark_queue.messages.rules import faults, legible
from spark_queue.messages.schema import HISTORY, LATEST, MESSAGES, TOLD
from spark_queue.options.masking import mask
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.support.bucket_split import apart, split
from spark_queue.stores.support.burial import bury
from spark_queue.stores.support.counters import Counters, Counts, Statistics
from spark_queue.stores.support.damaged import Records, checked, opened, part
from spark_queue.stores.support.pause import KNOWN, Pauses
from spark_queue.stores.types import (
    Claim,
    Condition,
    Death,
    Finding,
    Lacking,
    Note,
    RawNote,
    Reservation,
    Sizes,
    Staged,
    View,
    Which,
    about,
    check_outcome,
    check_tag,
    meeting,
)

T = TypeVar("T")

#: Rows in one page of a fetch, and the bytes of payload at which a page ends early.
PAGE_ROWS = 10_000
PAGE_BYTES = 16 << 20

#: A partition smaller than this is not worth a task of its own.
SMALLEST_PARTITION = 500

#: ms between two looks of a waiting client, and for how long a look in vain is believed.
POLL, FRESH = 500, 50

#: Seconds for which the layout of a queue is believed.
LAYOUT_KNOWN = 30.0

log = logging.getLogger(__name__)


class Store(ABC):
    """See the head of this module for what holds for all methods."""

    #: Most bytes of one payload.
    max_payload: ClassVar[int]

    #: JSON values that the layout cannot keep, or some of them: a push of one is refused.
    refuses: ClassVar[tuple[object, ...]] = ()

    #: What the layout cannot do of what is promised here.
    lacks: ClassVar[frozenset[Lacking]] = frozenset()

    #: Layouts that the database may have beside each other, by the name that a URL gives: module:class.
    layouts: ClassVar[Mapping[str, str]] = {}

    #: The layout of this class, and the parameters of a URL that it knows beside `layout`: see `options/url.py`.
    kind: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ()

    #: Whether an id names one message in all queues together: a push of one that another queue holds is left out.
    one_id: ClassVar[bool] = False

    #: Whether what is committed becomes history although nobody asks for that.
    remembers: ClassVar[bool] = False

    #: What gives space back where there is a server: a sentence.
    shrinks_by: ClassVar[str] = "its server manages the space"

    #: Whether messages change and move to another queue in one step: see `forward`.
    forwards: ClassVar[bool] = False

    #: Whether what this client pushes goes into buckets.
    layout: Layout = None

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
        self.creates = True  #: whether the first operation creates a database that is missing: a SQLite file
        self.retries = 0  #: how often something was tried again: the number that an operation gives is then a part
        #: A wait in vain: queue, believed until, due (monotonic s), and what had rung.
        self._in_vain: tuple[str, float, float | None, int] = ("", 0.0, None, 0)
        self._layouts: dict[str, tuple[Buckets | None, float]] = {}  # queue -> its setting, believed until (s)
        self._closings = 0  # how often it was closed: a wait ends then
        self._counters = Counters(self._count)
        self._pauses = Pauses(self._read_paused)

    # --- messages in --------------------------------------------------------------------------------------------

    def own_ids(self, made: pa.Array) -> pa.Array:
        """As many ids as were made for messages that come without, in the form that the layout has for its own."""
        return made

    def push(self, queue: str, batch: pa.RecordBatch) -> int:
        """Make the rows of a PUSHES batch messages of `queue`, visible at once, and give their number.

        An id that the queue already holds is left as it is and not counted, so a push may be repeated; the ids in
        buckets are not looked at, so there the same rows must be pushed again. Raises `MessageError` before anything
        is written where rows break a rule; its `rows` tells which. A batch is atomic where the database is (see each
        store), else a failed push may have pushed a part.
        """
        self._check_push(queue, batch)
        if not batch.num_rows:
            return 0
        pushed = self._attempt(self._push, queue, self._laid_out(queue, batch))
        self._counters.add(queue, put=pushed)
        self._tell(queue, first_due(batch))
        return pushed

    @abstractmethod
    def _push(self, queue: str, batch: pa.RecordBatch) -> int: ...

    def _check_push(self, queue: str, batch: pa.RecordBatch) -> None:
        self.check_queue(queue)
        wrong = faults(batch, self.max_payload)
        if wrong:
            raise refused(queue, batch, wrong)

    def _laid_out(self, queue: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as records: a PUSHES batch again."""
        if isinstance(self.layout, Buckets):
            self.check_buckets()
        if "buckets" in self.lacks:
            return batch
        if batch.num_rows < 2:  # what is alone is no bucket, whatever is set
            return batch
        how = self._setting(queue) if self.layout is None else self.layout
        if not isinstance(how, Buckets):
            return batch
        return packed(dated(batch, self.now()), how)

    def check_buckets(self) -> None:
        """Raise `OptionError` where the layout has no buckets."""
        if "buckets" in self.lacks:
            raise OptionError(f"the layout {self.kind} has no buckets: leave layout=bucket out", option="layout")

    def check_log(self, queue: str) -> None:
        """Raise `OptionError` where nothing of the layout can be retained."""
        if "holds" in self.lacks:
            raise OptionError(
                f"a queue of layout {self.kind} cannot be read with mode=log: other programs of that layout release "
                "retained messages",
                option="mode",
                queue=queue,
            )

    def _setting(self, queue: str) -> Buckets | None:
        setting, until = self._layouts.get(queue, (None, 0.0))
        if time.monotonic() >= until:
            setting = layout_of(self, queue)
            self._layouts[queue] = setting, time.monotonic() + LAYOUT_KNOWN
        return setting

    # --- messages in, all at once -------------------------------------------------------------------------------

    def stage(self, queue: str, stage: str, batch: pa.RecordBatch) -> int:
        """Keep the rows of a PUSHES batch under `stage`, for `queue`, and give their number; nobody sees them.

        A `delay` counts from now. What a stage gets is added to what it holds, for this queue and others. Raises
        `MessageError` as `push` does, before anything is written.
        """
        check_tag(stage)
        self._check_push(queue, batch)
        part = new_ids(1)[0]  # a second attempt writes the same part again
        if batch.num_rows:
            self._attempt(self._stage, queue, stage, part, self._laid_out(queue, batch))
        return int(batch.num_rows)

    @abstractmethod
    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        """Keep the rows as that part of the stage; parts are published in their order."""

    def publish(self, stages: Sequence[str]) -> int:
        """Make what these very stages hold messages of their queues, and give the number of messages.

        They leave the stage in the same step, so a publish that was cut short is completed by another, and no message
        appears twice, even if it is taken and committed in between. Each store says how many messages appear in one
        step. An id that the queue holds already is left as it is and not counted.
        """
        for stage in stages:
            check_tag(stage)
        published = self._attempt(self._publish, stages) if stages else {}
        for queue, rows in published.items():
            self._counters.add(queue, put=rows)
            self._tell(queue)
        return sum(published.values())

    @abstractmethod
    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        """Give the number of messages by queue, for all queues that the stages held something for."""

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
        least: int = 1,
        lease: int | None = 120_000,
        before: int = LATEST,
    ) -> list[int]:
        """Take up to `limit` ready messages, in order, under the tags `tag/0`, `tag/1`, …; give the rows of each.

        An empty list says that nothing is ready. There are at most `partitions` tags, and fewer where there is
        little to share out, but `least` where there are as many messages. Each message is held by one tag at a time,
        however many clients reserve at once.
        Messages that mature after the moment `before` are left alone, even once they are ready. A tag that already
        holds messages is answered with what it holds, and takes no more: that resumes a reserve which a crash cut
        short. So is any tag while the queue is paused.
        """
        self.check_queue(queue)
        check_tag(tag)
        paused = self._pauses.paused(queue)
        if partitions == 1 and not paused:
            rows = [self._take(queue, f"{tag}/0", limit, limit, lease, before)]
        elif (held := {one.tag: one.rows for one in self.reservations(queue, tag)}) or paused:
            last = max((int(name.rpartition("/")[2]) for name in held), default=-1)
            rows = [held.get(f"{tag}/{partition}", 0) for partition in range(last + 1)]
        else:
            rows, left = [], self._attempt(self._ready, queue, limit, before)
            for partition, share in enumerate(spread(left, partitions, least)):
                rows.append(self._take(queue, f"{tag}/{partition}", left, min(share, left), lease, before, any(rows)))
                left -= min(rows[-1], left)
            while rows and not rows[-1]:
                rows.pop()  # whole buckets may have left nothing to the last ones
        return rows if any(rows) else []

    def ready(self, queue: str, limit: int, *, before: int = LATEST) -> int:
        """The number of messages that a reserve could take now, counted up to `limit`; 0 while the queue is paused.

        What matures after the moment `before` is not counted, where the layout keeps messages in order.
        """
        if limit <= 0 or self._pauses.paused(queue):
            return 0
        return self._attempt(self._ready, queue, limit, before)

    def _take(
        self, queue: str, tag: str, limit: int, enough: int, lease: int | None, before: int, content: bool = False
    ) -> int:
        """Claim, and where the first bucket is larger than that, split it; unless one is `content` with nothing."""
        while True:
            claim = self._attempt(self._claim, queue, tag, limit, enough, lease, before)
            if not claim.held:
                self._counters.add(queue, reserve=claim.rows)
            if claim.rows or claim.large is None or content:
                return claim.rows
            if not split(self, queue, claim.large, limit):  # a damaged one is taken as a whole
                limit = enough = max(limit, rows_of(claim.large))

    @abstractmethod
    def _claim(self, queue: str, tag: str, limit: int, enough: int, lease: int | None, before: int) -> Claim:
        """Take ready records under this very tag, in order, until they hold `enough` messages; never over `limit`.

        Where the tag holds some, just give their number.
        """

    @abstractmethod
    def _ready(self, queue: str, limit: int, before: int) -> int:
        """The number of messages that could be claimed now, counted up to `limit`."""

    def fetch(
        self,
        queue: str,
        tag: str,
        rows: int = PAGE_ROWS,
        *,
        dead: str = "",
        history: int = 0,
        decoded: bool = False,
        settling: Callable[[int], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What one tag (not those below it) holds, in order, as MESSAGES batches of at most `rows` rows.

        Repeatable: it gives the same rows until the tag is committed, rolled back or lost. `mature` is when the
        message was due, not when the lease ends. A record that cannot be read is not among the rows: it becomes a
        message of the dead-letter queue `dead` (`<queue>.dead` by default), see `burial.py` for the rest. `decoded`:
        so does a message whose payload is no JSON, though its kind says so.
        """
        for found in self._opened(queue, tag, rows, decoded=decoded):
            batch = found.batch
            if found.damaged:
                grave = dead or dead_letter_queue(queue)
                batch = bury(self, queue, tag, found, grave, history=history, settling=settling)
            yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))

    def look(self, queue: str, tag: str, rows: int = PAGE_ROWS, *, fill: bool = False) -> Iterator[pa.RecordBatch]:
        """The same, changing nothing: a record that cannot be read is a row with the reason in header `x-error`.

        `fill`: a bucket is then as many rows as it has messages.
        """
        for found in self._opened(queue, tag, rows, fill=fill):
            yield from (found.batch.slice(start, rows) for start in range(0, found.batch.num_rows, rows))

    def _opened(
        self, queue: str, tag: str, rows: int, *, decoded: bool = False, fill: bool = False
    ) -> Iterator[Records]:
        """What one tag holds, as messages and damaged records."""
        for page in self._records(queue, tag, rows):
            yield from (checked(found, decoded=decoded) for found in opened(page, fill=fill))

    def _records(self, queue: str, tag: str, rows: int = PAGE_ROWS) -> Iterator[Records]:
        """The same, of records."""
        return self._paged(lambda after: self._page(queue, tag, after, rows))

    def _paged(self, read: Callable[[Any], Records]) -> Iterator[Records]:
        """Page after page of records, each read as what comes after the last record of the one before."""
        after: Any = None
        while (page := self._attempt(read, after)).batch.num_rows:
            yield page
            if page.after == after:  # its key is one that the database changes on the way
                raise StoreError(f"{mask(self.url)}: no record can be read after {after!r}: remove that one")
            after = page.after

    @abstractmethod
    def _page(self, queue: str, tag: str, after: Any, rows: int) -> Records:
        """Up to `rows` held records that come after that place; ends early at PAGE_BYTES; empty at the end.

        `after` is that of the page before, `None` at first.
        """

    def renew(self, queue: str, tag: str, lease: int | None) -> int:
        """Let what the tag still holds be held for `lease` ms from now; give the number of messages."""
        check_tag(tag)
        return self._attempt(self._renew, queue, tag, lease)

    @abstractmethod
    def _renew(self, queue: str, tag: str, lease: int | None) -> int: ...

    def commit(
        self, queue: str, tag: str, ids: Sequence[str] | None = None, *, history: int = 0, outcome: str = "commit"
    ) -> int:
        """Remove what the tag holds (of `ids`, where given) and give the number removed.

        `history` ms long they can still be read with `peek(view="history")`, with this outcome: `commit`, or a word
        of the caller's own. Atomic for each message; for all of them together where the database has transactions,
        and no bucket has to be taken apart.
        """
        check_tag(tag)
        check_outcome(outcome)
        done = self._each(queue, tag, ids, lambda some: self._commit(queue, tag, some, history, outcome))
        self._counters.add(queue, commit=done)
        return done

    @abstractmethod
    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int: ...

    def rollback(
        self,
        queue: str,
        tag: str,
        ids: Sequence[str] | None = None,
        *,
        delay: int | None = 0,
        failed: bool = True,
        endless: bool = True,
    ) -> int:
        """Give back what the tag holds (of `ids`, where given), mature in `delay` ms; give the number given back.

        Without a delay (`None`) they are due when they were due before, and so have their old place in the queue.
        `failed` adds one to their tries. Without `endless`, what is held without an end stays held: so this does to
        a message what the end of its lease would do, in one step. Atomic as `commit`.
        """
        check_tag(tag)
        if delay is not None and delay < 0:
            raise OptionError(f"a rollback cannot be delayed by {delay} ms", delay=delay)
        given = self._each(queue, tag, ids, lambda some: self._rollback(queue, tag, some, delay, failed, endless))
        self._counters.add(queue, rollback=given)
        self._tell(queue, round(time.time() * 1000) + delay if delay else 0)
        return given

    @abstractmethod
    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, endless: bool
    ) -> int: ...

    def retag(self, queue: str, tag: str, to: str, ids: Sequence[str] | None = None, *, lease: int | None) -> int:
        """Let `to` hold what `tag` holds (of `ids`, where given), for `lease` ms from now; give the number.

        `to` is one very tag, and may hold some messages already. Atomic as `commit`.
        """
        check_tag(tag)
        check_tag(to)
        return self._each(queue, tag, ids, lambda some: self._retag(queue, tag, to, some, lease))

    @abstractmethod
    def _retag(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int: ...

    def _each(
        self, queue: str, tag: str, ids: Sequence[str] | None, act: Callable[[Sequence[str] | None], int]
    ) -> int:
        """Act on what the tag holds, of `ids` where given: on records of these ids, then on those in buckets."""
        done = self._attempt(act, ids)
        if ids is not None and done < len(set(ids)) and (own := apart(self, queue, tag, ids)):
            done += self._attempt(act, own)
        return done

    @abstractmethod
    def _recast(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        """Replace records by those of a PUSHES batch, which hold the same messages; give whether it was done.

        In one step, and only if all of them are there: held by this very tag, and so are the others then, under the
        same lease; or, where it is `None`, held by nobody under a lease that lasts.
        """

    @abstractmethod
    def _spare(self, queue: str, after: Any, rows: int) -> Records:
        """Up to `rows` records in order that may be reserved now and come after that place: see `_page`."""

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
        maturity; their tries start anew at 0. With `death` they get the headers of a dead letter, and the history may
        tell of them with the outcome `dead` (not in `pl-mongo`, where an id is in one place). Each message is
        in exactly one of the queues at every moment (a store says where it is in doubt); one whose id the target
        holds already replaces nothing there and is gone from here.
        """
        self.check_queue(queue)
        self.check_queue(to)
        if tag is not None:
            check_tag(tag)
        if queue == to:
            raise OptionError(f"a queue cannot be moved to itself: {queue!r}", queue=queue)
        moved = self._attempt(self._move, queue, to, Which(tag, ids, limit, min_tries), death)
        self._tell(to)
        if ids is not None or limit is not None:
            wanted = min(len(set(ids)) if ids is not None else LATEST, limit if limit is not None else LATEST)
            if moved < wanted and (own := apart(self, queue, tag, ids, most=wanted - moved, min_tries=min_tries)):
                moved += self._attempt(self._move, queue, to, Which(tag, own, None, min_tries), death)
                self._tell(to)
        self._counters.add(queue, **{"get" if death is None else "deadletter": moved})
        self._counters.add(to, put=moved)
        return moved

    @abstractmethod
    def _move(self, queue: str, to: str, which: Which, death: Death | None) -> int:
        """A limit counts messages: the first bucket that holds too many ends it."""

    def forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        """Change messages that `tag` holds, move them to another queue of the store, and give their number.

        `batch`: PUSHES, by the ids of the messages; where `payload` or `headers` is NULL they stay what they are.
        Each message is changed and moved in one step, and is in exactly one of the queues at every moment; repeated,
        it touches what is left. Raises `MessageError` before anything is moved where rows break a rule, as `push`
        does, and `OptionError` where the layout has no such step.
        """
        self.check_queue(queue)
        self.check_queue(to)
        check_tag(tag)
        if not self.forwards:
            raise OptionError(
                f"{type(self).__name__} cannot change and move messages in one step: that takes layout=pl-mongo",
                option="url",
            )
        if queue == to:
            raise OptionError(f"a queue cannot be moved to itself: {queue!r}", queue=queue)
        self._check_push(to, filled(batch))
        if not batch.num_rows:
            return 0
        moved = self._attempt(self._forward, queue, to, tag, batch)
        self._counters.add(queue, get=moved)
        self._counters.add(to, put=moved)
        self._tell(to, first_due(batch))
        return moved

    def _forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        raise NotImplementedError

    # --- pause --------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> None:
        """Let nobody take messages of the queue, until it is resumed; whatever else is done to it goes on.

        It holds for all clients, keuss' too, and across restarts: at once for those that wait and hear signals, for
        the others of ours when they next look, which is after a quarter of a second. What is held stays held.
        """
        self._set_pause(queue, True)

    def resume(self, queue: str) -> None:
        """Let messages be taken again; who waits for one is woken."""
        self._set_pause(queue, False)

    def _set_pause(self, queue: str, paused: bool) -> None:
        self.check_queue(queue)
        self._attempt(self._set_paused, queue, paused)
        self._pauses.learn(queue, paused)
        self._tell_paused(queue, paused)

    def paused(self, queue: str, *, known: int = 0) -> bool:
        """Whether the queue is paused, as this client knew `known` ms ago at most; 0 asks the database."""
        if known:
            return self._pauses.paused(queue, known / 1000)
        paused = self._read_paused(queue)
        self._pauses.learn(queue, paused)
        return paused

    def _read_paused(self, queue: str) -> bool:
        return self._attempt(self._statistics, queue).get(queue, Statistics()).paused

    def _tell_paused(self, queue: str, paused: bool) -> None:  # noqa: B027 not all databases carry signals
        """Tell those who wait. Never raises for it."""

    # --- statistics ---------------------------------------------------------------------------------------------

    def statistics(self, queue: str) -> Statistics:
        """What was done to the messages of the queue, by all clients; all zero where nobody has used it.

        What this client did is in it, what others did in the last tenth of a second may not be yet.
        """
        self.write_counts()
        return self._attempt(self._statistics, queue).get(queue, Statistics())

    def statistics_of_all(self) -> dict[str, Statistics]:
        """The same of all queues that were ever used and not dropped, by name, sorted; empty ones are among them."""
        self.write_counts()
        return dict(sorted(self._attempt(self._statistics, None).items()))

    def count(self, queue: str, **acts: int) -> None:
        """Correct what this client has counted: `count("flights", reserve=-1, commit=-1, get=1)`."""
        self._counters.add(queue, **acts)

    def write_counts(self) -> None:
        """Write what this client has counted now, and not in a tenth of a second. Never raises for it."""
        self._counters.write()

    @abstractmethod
    def _count(self, counts: Counts) -> None:
        """Add to the counters, in one round trip. A queue that has none is known from then on."""

    @abstractmethod
    def _statistics(self, queue: str | None) -> dict[str, Statistics]:
        """By queue: of this one, if it is known, or of all."""

    @abstractmethod
    def _set_paused(self, queue: str, paused: bool) -> None:
        """Set the flag. A queue is known from then on."""

    @abstractmethod
    def _forget(self, queue: str) -> None:
        """Remove flag and counters."""

    # --- notes --------------------------------------------------------------------------------------------------

    def note(self, key: str) -> Note | None:
        """The note of this key, if there is one. Raises `StoreError` for one that cannot be read."""
        found = self._attempt(self._note, key)
        return None if found is None else found.read(key)

    @abstractmethod
    def _note(self, key: str) -> RawNote | None: ...

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

    def notes(self, prefix: str, *, sound: bool = False) -> dict[str, Note]:
        """The notes whose keys begin so, by key. It may look at every key of the database: for tools only.

        Raises `StoreError` for one that cannot be read; with `sound` those are left out.
        """
        found = sorted(self._attempt(self._notes, prefix).items())
        return {key: note.read(key) for key, note in found if not (sound and note.fault(key))}

    def raw_notes(self) -> dict[str, RawNote]:
        """All notes, by key, those that cannot be read among them: for tools only."""
        return dict(sorted(self._attempt(self._notes, "").items()))

    @abstractmethod
    def _notes(self, prefix: str) -> dict[str, RawNote]: ...

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

    def wait(self, queue: str, timeout: int, *, hint: bool = False) -> bool:
        """Sleep until a message may be reserved, `timeout` ms at most; give whether one may. A close ends the sleep.

        Whoever brings one rings; a ring that nobody hears costs half a second at most. So does who lets a queue go on
        that was paused: there a quarter. With a `hint` it is not looked once more after a ring that was for this
        queue: for who looks by himself, and may find that there is none.
        """
        now, closings = time.monotonic(), self._closings
        end = now + timeout / 1000
        name, until, due, rung = self._in_vain
        if name == queue and now < until:  # a wait that follows on another need not look again
            self._listen(queue, rung, min(timeout / 1000, POLL / 1000, POLL if due is None else max(0.0, due - now)))
        while True:
            rung = self._rung(queue)  # before the look: what comes after it is heard
            wait = self.next_mature(queue)
            if wait is not None and wait <= 0:
                if not self._pauses.paused(queue):
                    return True
                wait = round(KNOWN * 1000)  # then the flag is read anew
            now = time.monotonic()
            due = None if wait is None else now + wait / 1000
            if now >= end:
                self._in_vain = queue, now + FRESH / 1000, due, rung
                return False
            self._listen(queue, rung, min(end - now, POLL / 1000, POLL if due is None else due - now))
            if closings != self._closings:
                return False
            if hint and self._heard(queue, rung):
                return True

    def _tell(self, queue: str, mature: int = 0) -> None:  # noqa: B027 not all databases carry signals
        """Wake those who wait: a message may be taken at this moment (ms), or (0) at once. Never raises for it."""

    def _rung(self, queue: str) -> int:
        """A number that changes when a message may have come; who asks for it begins to listen."""
        return 0

    def _listen(self, queue: str, rung: int, timeout: float) -> None:
        """Sleep until that number is another than `rung`, `timeout` seconds at most."""
        time.sleep(timeout)

    def _heard(self, queue: str, rung: int) -> bool:
        """Whether that number is another than `rung` because of this very queue."""
        return False

    def peek(
        self,
        queue: str,
        where: Sequence[Condition] = (),
        *,
        limit: int | None = None,
        view: View = "messages",
        rows: int = PAGE_ROWS,
        decoded: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """All messages of the queue that meet every condition, reserved ones included, changing nothing.

        Batches of MESSAGES, or of HISTORY in that view. With a `limit` they are the first in order; without, they
        come in no particular order. No message is given twice, but a store may keep one for each time that an id was
        processed (SQLite), or the last of them. `mature` of a reserved message is when it was due. A record that
        cannot be read is a row with the reason in header `x-error`; with `decoded` also a payload that is no JSON,
        though its kind says so.
        """
        schema = MESSAGES if view == "messages" else HISTORY
        if odd := [one.column for one in where if one.column in TOLD.names and view != "history"]:
            raise OptionError(f"only the history has a column {odd[0]!r}: set view=history", option="view")
        buckets = 0

        def looked(limit: int | None) -> Iterator[pa.RecordBatch]:
            nonlocal buckets
            for page in self._peek(queue, where, limit, view, rows):
                if page.batch.schema != schema:
                    page = page._replace(batch=page.batch.cast(schema))
                for found in opened(page):
                    batch = checked(found, decoded=decoded).batch
                    if found is page:
                        yield batch
                    else:
                        buckets += 1
                        fitting = meeting(batch, where)
                        yield from (fitting.slice(start, rows) for start in range(0, fitting.num_rows, rows))

        if limit is None:
            yield from looked(None)
            return
        found = pa.Table.from_batches(looked(limit), schema)
        if buckets and where and found.num_rows < limit:  # perhaps there was nothing in them
            found = pa.Table.from_batches(looked(None), schema)
        first = found.sort_by([("mature", "ascending"), ("id", "ascending")]) if buckets else found
        yield from first.slice(0, limit).combine_chunks().to_batches(max_chunksize=rows)

    @abstractmethod
    def _peek(
        self, queue: str, where: Sequence[Condition], limit: int | None, view: View, rows: int
    ) -> Iterator[Records]:
        """Records. All buckets meet a condition on `id` or `mature`, which are those of their messages."""

    @abstractmethod
    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        """The buckets of the queue, the held ones too, or just this one, in order."""

    def queues(self) -> list[str]:
        """Return the names of the queues, sorted.

        A queue is listed from its first message or consumer on, also when it is empty again, until it is dropped.
        """
        return sorted({*self._attempt(self._queues), *self.statistics_of_all()})

    @abstractmethod
    def _queues(self) -> list[str]:
        """Return the names of those that hold messages or history; empty ones and the same name twice are allowed."""

    def exists(self, queue: str) -> bool:
        """Return whether `queues` lists this queue, at the cost of a look at one queue."""
        if self.missing_database():
            return False
        self.write_counts()
        views: tuple[View, ...] = "messages", "history"
        return bool(self._attempt(self._statistics, queue)) or any(
            next(self.peek(queue, view=view, rows=1), None) is not None for view in views
        )

    def here(self) -> str:
        """The URL for tasks, which may run on other machines. Of a file it says which one of this machine it names.

        A file that is missing is created first, unless `creates` is unset.
        """
        return self.url

    def missing_database(self) -> str:
        """Return the sentence that says which file is missing; an empty text if none is, or if there is a server."""
        return ""

    def server(self) -> str:
        """The name and the version of the database: `redis 7.0.15`."""
        return self._attempt(self._server)

    @abstractmethod
    def _server(self) -> str: ...

    def eviction(self) -> str | None:
        """The policy by which the database throws away what it holds when its memory is full; empty if it does not.

        `None` if it does not tell.
        """
        return ""

    def examine(self) -> list[Finding]:
        """How the database is set up, as far as it matters to queues. Changes nothing; may look at all queues."""
        return self._attempt(self._examine)

    def never_due(self, queue: str) -> list[str]:
        """The ids of records that nobody ever takes, since their `mature` is no moment; the first 1,000."""
        return self._attempt(self._never_due, queue)

    def _never_due(self, queue: str) -> list[str]:
        return []

    def damaged_buckets(self, queue: str, most: int) -> list[str]:
        """The ids of the buckets, among the first `most`, that cannot be opened."""
        found: list[str] = []
        for page in self._buckets(queue, None):
            for row, id in enumerate(page.batch.column("id").to_pylist()[:most]):
                found += [id] if any(one.damaged for one in opened(part(page, row, row + 1))) else []
            most -= page.batch.num_rows
            if most <= 0:
                break
        return found

    @abstractmethod
    def _examine(self) -> list[Finding]: ...

    # --- housekeeping -------------------------------------------------------------------------------------------

    def forget(self, queue: str, ids: Sequence[str]) -> int:
        """Let the history of the queue tell no more of the messages with these ids; give how many it told of.

        What the queue holds stays, and so does, in the history, what was in a bucket.
        """
        return self._attempt(self._forget_past, queue, ids) if ids else 0

    @abstractmethod
    def _forget_past(self, queue: str, ids: Sequence[str]) -> int: ...

    def purge(self, queue: str) -> int:
        """Remove the messages that nobody holds and give their number.

        Those held under a lease that has not ended stay, and so does the history.
        """
        return self._attempt(self._purge, queue)

    @abstractmethod
    def _purge(self, queue: str) -> int: ...

    def drop(self, queue: str) -> None:
        """Remove the queue: messages, reservations, history, statistics, the notes about it.

        What is staged for it stays. A queue that does not exist is dropped already; one that was paused is not any
        more.
        """
        self._attempt(self._drop, queue)
        for key, note in self._attempt(self._notes, about(queue)).items():  # those that cannot be read among them
            self.set_note(key, None, note.version)
        self._counters.forget(queue)
        self._pauses.forget(queue)
        try:
            self._attempt(self._forget, queue)
        except AccessDenied as error:  # who may not touch statistics may drop queues all the same
            log.warning("the statistics of %r stay: %s", queue, error)

    @abstractmethod
    def _drop(self, queue: str) -> None: ...

    def shrink(self) -> int:
        """Give the disk back what the file does not need any more, and return how many bytes.

        Others can go on: they wait while the file is written anew. Raises `OptionError` if there is a server.
        """
        raise OptionError(f"{mask(self.url)} is no file: {self.shrinks_by}", option="url")

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
        """Write what was counted, give back connections, and end all waits.

        A closed store opens again when it is used.
        """
        self._closings += 1
        self._counters.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T:
        """Call until it succeeds, while the database cannot be reached and patience lasts, with growing pauses."""
        begun = time.monotonic()
        try:
            return operation(*arguments)  # tenacity alone takes as long as a short operation
        except StoreUnavailable as error:
            failed = [error]

        def again() -> T:
            if failed:
                raise failed.pop()
            return operation(*arguments)

        def count(_: tenacity.RetryCallState) -> None:
            self.retries += 1

        return tenacity.Retrying(
            before_sleep=count,
            retry=tenacity.retry_if_exception(  # an exhausted pool has waited already
                lambda error: isinstance(error, StoreUnavailable) and not isinstance(error, PoolExhausted)
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=3),
            stop=tenacity.stop_after_delay(begun + self.patience - time.monotonic()),
            reraise=True,
        )(again)


def spread(rows: int, partitions: int, least: int = 1) -> list[int]:
    """How many of `rows` each partition gets: even shares, at most `partitions`, none that is not worth a task.

    Where `least` partitions are wanted, there are so many all the same, each with a row at least.
    """
    parts = min(partitions, max(-(-rows // SMALLEST_PARTITION), min(rows, least)))
    return [rows // parts + (part < rows % parts) for part in range(parts)] if rows else []


def layout_of(store: Store, queue: str) -> Buckets | None:
    """The setting of a queue: how its messages are put into buckets, `None` where they are not."""
    note = store.note(about(queue, "layout"))
    return Buckets(note.value["size"], note.value["compression"]) if note else None


def set_layout(store: Store, queue: str, layout: Buckets | None) -> None:
    """Set that. Clients of the queue know it some LAYOUT_KNOWN seconds later; what it holds stays as it is."""
    store.check_queue(queue)
    if layout is not None:
        store.check_buckets()
    value = None if layout is None else {"v": 1, "size": layout.size, "compression": layout.compression}
    key = about(queue, "layout")
    done = False
    while not done:
        note = store.note(key)
        done = store.set_note(key, value, note.version if note else 0)
    store._layouts.pop(queue, None)
    store.count(queue)  # a queue with a setting exists


def refused(queue: str, batch: pa.RecordBatch, wrong: Mapping[int, str]) -> MessageError:
    """The error for rows of a batch that cannot become messages: it names the first by id, and counts the rest."""
    row, rule = next(iter(wrong.items()))
    rest = f" (and {plural(len(wrong) - 1, 'more row')})" if len(wrong) > 1 else ""
    id = legible(batch.slice(row, 1)).column("id")[0].as_py()
    return MessageError(
        f"queue {queue!r}, row with id {id!r}: {rule}{rest}; nothing of this batch was pushed",
        rows=wrong,
        queue=queue,
    )
