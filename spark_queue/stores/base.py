"""The contract of a store: one database behind one URL, holding many queues.

These rules hold for every database:

* **Time** is the database's. No promise depends on the clock of a client.
* **Order** is that of `mature`, in ms, then of the pushes. Messages of one push are in the order of
  the batch. Of two pushes of one process, the one that begins after the other was acknowledged
  comes later. A message that is put back keeps its place among those of its due time. A store may
  order a message whose lease ended in another way.
* **`pushed`** is when a message was pushed, or staged. No operation changes it. The rows of a
  PUSHES batch are pushed now; those of a WRITTEN batch were pushed before.
* A message is *ready* (mature and free), *scheduled* (not mature yet) or *reserved* (held under
  a tag until its lease ends).
* A **tag** names a reservation: `consumer/sequence/partition`. The reader chooses it. Tags form a
  tree: an operation on `etl/7` also applies to `etl/7/0`, `etl/7/1`, ….
* **Fencing**: a tag that has lost a message cannot commit, roll back, renew, transfer or fetch it.
* When a lease ends, the next reserve may take its messages; their tries then increase by one. A
  store frees them when it next reserves or counts ready messages. Until then the tag holds them,
  so a late holder loses nothing.
* Messages under a tag that ends with `/unseen` are reserved ahead: no consumer has seen them. When
  their lease ends, their tries do not increase. A consumer *hands out* such a message before it
  works on it: the message goes to another tag.
* A **stage** holds messages that no client can see yet. The writer chooses its name:
  `sink/batch/attempt`. To **publish** a stage makes its messages visible. They leave the stage in
  the same step.
* **Every operation may be repeated** after a failure, even if it is unknown how far it got. The
  second call completes the missing part and changes nothing else.
* While a queue is **paused**, no further message is reserved. All other operations work.
* Durations and moments are `int` ms. A lease of `None` never ends.

A store implements the methods that begin with `_`. Callers use the others, which check their
arguments, and retry for `retry_timeout` (ms) while the database cannot be reached.

The methods that begin with `_` work on *records*. A record is a message or a bucket of many
(`messages/buckets.py`), and both are treated alike. A message is passed by its id, a bucket by
its own id. Counts are counts of messages. The other methods work on messages: they open buckets,
and split them if they must.

Errors are `StoreError` (its subclass `StoreUnavailable` if a retry may help) and `OptionError`
for names that the database forbids: `NotAQueue` if data of another program has the name.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa

from spark_queue.errors import (
    AccessDenied,
    MessageError,
    OptionError,
    PoolExhausted,
    StoreError,
    StoreUnavailable,
    plural,
)
from spark_queue.messages.buckets import Buckets, Layout, Record, bytes_of, pack_buckets, rows_of
from spark_queue.messages.columns import earliest_due, fill_null_payloads, with_due_time
from spark_queue.messages.dead_letter import cut_text
from spark_queue.messages.ids import new_ids
from spark_queue.messages.json_text import is_text
from spark_queue.messages.rules import replace_invalid_utf8, validate_rows
from spark_queue.messages.schema import HISTORY, MESSAGES
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.masking import mask, scheme_of
from spark_queue.options.queue_names import MAX_QUEUE_BYTES, source_queue
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.policy import QueuePolicy, StoredSettings
from spark_queue.stores.queue import StoredQueue
from spark_queue.stores.spans import WHOLE, Sample, Span, cut_spans, sample_size
from spark_queue.stores.support.bucket_split import isolate, split_bucket
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.claiming import ClaimRequest, share_evenly
from spark_queue.stores.support.conditions import check_conditions
from spark_queue.stores.support.counters import Counters, Counts, Statistics
from spark_queue.stores.support.damaged import Records, check_payloads, open_buckets, slice_records
from spark_queue.stores.support.patience import retry_timeout_or
from spark_queue.stores.support.pause import PauseCache
from spark_queue.stores.support.refit import has_buckets, split_unfit
from spark_queue.stores.support.scan import Scan, Scanned, ScanPage, ScanStep
from spark_queue.stores.support.scanning import PageReader
from spark_queue.stores.support.settings import SettingsCache
from spark_queue.stores.support.summary import Summary, SummaryRequest
from spark_queue.stores.support.waiting import AwaitedQueue, OneQueue, wait
from spark_queue.stores.types import (
    ZERO_SIZES,
    Claim,
    Commit,
    Condition,
    DeadLetterInfo,
    Finding,
    ForeignData,
    HandOut,
    LayoutFeature,
    Note,
    RawNote,
    Reservation,
    Reserved,
    Rollback,
    Selection,
    Sizes,
    Staged,
    View,
    check_duration,
    check_outcome,
    check_tag,
    filter_rows,
    possible_ids,
    queue_note_key,
    seen_tag,
    unseen_tag,
)

T = TypeVar("T")
V = TypeVar("V", bound=dict[str, Any] | None)

#: Rows in one page of a fetch, and the bytes of payload at which a page ends early.
PAGE_ROWS = 10_000
PAGE_BYTES = 16 << 20

#: How long an empty result is cached (ms).
EMPTY_CACHE_MS = 50

log = logging.getLogger(__name__)


class Store(ABC):
    """One database behind one URL. The docstring of this module has the rules for all methods."""

    #: The largest payload in bytes.
    max_payload: ClassVar[int]

    #: JSON values that the layout cannot store, or examples of them: a push of one is refused.
    unsupported_payloads: ClassVar[tuple[object, ...]] = ()

    #: The parts of this contract that the layout does not support.
    unsupported: ClassVar[frozenset[LayoutFeature]] = frozenset()

    #: The layouts of the database, `module:class` by their name in a URL.
    layouts: ClassVar[Mapping[str, str]] = {}

    #: The name of this layout, and the parameters of a URL that it knows besides `layout`: see
    #: `options/url.py`.
    layout_name: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ()

    #: Whether an id names one message in all queues together. A push then skips an id that another
    #: queue holds.
    ids_unique_per_store: ClassVar[bool] = False

    #: Whether every committed message goes to the history, even with `history=0`.
    always_keeps_history: ClassVar[bool] = False

    #: The limits of a store that is made without any.
    default_limits: ClassVar[StoreLimits] = StoreLimits()

    #: Why no other data can have the name of a queue: a clause.
    adoption_hint: ClassVar[str] = ""

    #: How a server reclaims space: a sentence.
    shrink_hint: ClassVar[str] = "its server manages the space"

    #: Whether messages can change and move to another queue in one step: see `forward`.
    supports_forward: ClassVar[bool] = False

    #: Opens another store by its URL. The registry sets it, for one database does not know another.
    open_other: ClassVar[Callable[[str], Store]]

    #: How messages are pushed, whatever the setting of their queue; `None`: as that says.
    default_layout: ClassVar[Layout] = None

    @classmethod
    def resolve(cls, url: str) -> str:
        """Return the URL in the form that is valid in every process.

        Raises `OptionError` for an invalid URL.
        """
        return url

    def __init__(
        self, url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
    ) -> None:
        """Connect to nothing yet.

        `retry_timeout`: how long to retry while the database cannot be reached (ms). `create`:
        whether the first operation creates a missing SQLite file. `limits`: an object of the class
        of `default_limits`. A store has no other settings, and they do not change: programs share
        it. A `QueuePolicy` says how a program uses a queue.
        """
        self._url = self.resolve(url)
        self.limits = limits or self.default_limits
        self._retry_timeout = retry_timeout
        self._create_missing = create
        #: The number of retries so far. An operation that was retried may return too small a
        #: number.
        self.retries = 0
        #: The last wait without a result: queue, cached until, due (monotonic s), and the signal
        #: version.
        self._last_empty_wait = ("", 0.0, math.inf, 0)
        self._settings = SettingsCache(self._read_settings)
        self._close_count = 0
        self._counters = Counters(self._count, self.limits)
        self._pause_cache = PauseCache(self._read_paused, self.limits)

    @property
    def url(self) -> str:
        """The URL, in the form that is valid in every process."""
        return self._url

    @property
    def retry_timeout(self) -> int:
        """How long operations are retried here (ms): see `retrying_for`."""
        return retry_timeout_or(self._retry_timeout)

    @property
    def create_missing(self) -> bool:
        """Whether the first operation creates a missing SQLite file."""
        return self._create_missing

    def queue(self, name: str, policy: QueuePolicy | None = None) -> StoredQueue[Self]:
        """Return a queue, as a program with this policy uses it. Calls no database.

        Raises `OptionError` for an invalid name.
        """
        self.check_queue(name)
        return StoredQueue(self, name, policy or QueuePolicy())

    # --- messages in ------------------------------------------------------------------------------

    def native_ids(self, made: pa.Array) -> pa.Array:
        """Return as many ids as `made`, in the native form of the layout (by default `made`)."""
        return made

    def push(self, queue: str, batch: pa.RecordBatch, *, layout: Layout = None) -> int:
        """Push the rows of a PUSHES batch to `queue`, visible at once, and return their number.

        `layout`: how they are stored; by default as the setting of the queue says.

        An id that the queue already holds is skipped and not counted, so a push may be repeated.
        Ids in buckets are not compared: to repeat such a push, push the same rows. A batch is
        atomic if the database is (see each store); else a failed push may have pushed a part.

        Raises `MessageError` before anything is written if rows break a rule; its `rows` names
        them. Raises `OptionError` for an invalid queue, or if the layout has no buckets.
        """
        self._check_push(queue, batch)
        if not batch.num_rows:
            return 0
        pushed = self._write_records(queue, batch, layout, lambda records: self._push(queue, records))
        self._counters.add(queue, put=pushed)
        self._notify(queue, earliest_due(batch))
        return pushed

    @abstractmethod
    def _push(self, queue: str, batch: pa.RecordBatch) -> int: ...

    def _check_push(self, queue: str, batch: pa.RecordBatch) -> None:
        self.check_queue(queue)
        wrong = validate_rows(batch, self.max_payload)
        if wrong:
            raise rejected_rows_error(queue, batch, wrong)

    def _to_records(self, queue: str, batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
        """Return the rows as records, a PUSHES or WRITTEN batch again.

        Raises `OptionError` as `check_buckets` does.
        """
        layout = type(self).default_layout if layout is None else layout
        if isinstance(layout, Buckets):
            self.check_buckets()
        if "buckets" in self.unsupported or batch.num_rows < 2:  # a single message never becomes a bucket
            return batch
        layout = self.layout_of(queue) if layout is None else layout
        if not isinstance(layout, Buckets):
            return batch
        return pack_buckets(with_due_time(batch, self.now()), layout)

    def _write_records(
        self, queue: str, batch: pa.RecordBatch, layout: Layout, write: Callable[[pa.RecordBatch], T]
    ) -> T:
        """Write the rows as records; a bucket that the database cannot hold, as smaller ones.

        Raises `MessageError`, whose rows are those of the batch, and `OptionError` as
        `check_buckets` does.
        """
        records = self._to_records(queue, batch, layout)
        while True:
            try:
                return self._attempt(write, records)
            except MessageError as error:
                if not (error.rows and has_buckets(records)):
                    raise
                records, wrong = split_unfit(batch, records, error.rows)
                if wrong:
                    raise rejected_rows_error(queue, batch, wrong) from error

    def check_buckets(self) -> None:
        """Raise `OptionError` if the layout has no buckets."""
        if "buckets" in self.unsupported:
            raise OptionError(
                f"the layout {self.layout_name} has no buckets: leave layout=bucket out", option="layout"
            )

    def check_log(self, queue: str) -> None:
        """Raise `OptionError` if the layout cannot retain messages, as `mode=log` does."""
        if "holds" in self.unsupported:
            raise OptionError(
                f"a queue of layout {self.layout_name} cannot be read with mode=log: other programs of that layout "
                "release retained messages",
                option="mode",
                queue=queue,
            )

    def layout_of(self, queue: str) -> Layout:
        """Return how messages are stored that are pushed without a layout; `None`: single.

        The setting of the queue may be SETTINGS_CACHE_SECONDS old.
        """
        always = type(self).default_layout
        return self._settings.get(queue).layout if always is None else always

    def _read_settings(self, queue: str) -> StoredSettings:
        return StoredSettings(layout=read_layout(self, queue))

    # --- messages in, all at once -----------------------------------------------------------------

    def stage(self, queue: str, stage: str, batch: pa.RecordBatch, *, layout: Layout = None) -> int:
        """Stage the rows of a PUSHES batch for `queue`, and return their number.

        `layout`: as in `push`.

        No client sees them before `publish`. A `delay` counts from now, and now is when they are
        pushed. The rows are added to those that the stage holds already, for this queue or others.
        Raises `MessageError` and `OptionError` as `push` does, before anything is written.
        """
        check_tag(stage)
        self._check_push(queue, batch)
        part = new_ids(1)[0]  # a retry writes the same part again
        if batch.num_rows:
            self._write_records(queue, batch, layout, lambda records: self._stage(queue, stage, part, records))
        return int(batch.num_rows)

    @abstractmethod
    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        """Store the rows as this part of the stage.

        Parts are published in the order of their names.
        """

    def publish(self, stages: Sequence[str]) -> int:
        """Make the rows of these stages (not of those below) messages; return their number.

        They leave the stage in the same step. So a second call completes an interrupted one, and no
        message appears twice, even if it is reserved and committed in between. Each store says how
        many messages appear in one step. An id that the queue already holds is skipped and not
        counted.
        """
        for stage in stages:
            check_tag(stage)
        published = self._attempt(self._publish, stages) if stages else {}
        for queue, rows in published.items():
            self._counters.add(queue, put=rows)
            self._notify(queue)
        return sum(published.values())

    @abstractmethod
    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        """Return the number of messages by queue, for all queues that the stages held rows for."""

    def staged(self, stage: str = "") -> list[Staged]:
        """Return the rows of the stage and those below it, by stage and queue (empty: of all)."""
        return sorted(self._attempt(self._staged, stage), key=lambda one: (one.stage, one.queue))

    @abstractmethod
    def _staged(self, stage: str) -> list[Staged]: ...

    def unstage(self, stage: str, keep: Sequence[str] = ()) -> int:
        """Discard the stage and those below it, but not `keep`; return the number of rows."""
        check_tag(stage)
        return self._attempt(self._unstage, stage, keep)

    @abstractmethod
    def _unstage(self, stage: str, keep: Sequence[str]) -> int: ...

    # --- reservations -----------------------------------------------------------------------------

    def reserve(
        self,
        queue: str,
        tag: str,
        limit: int,
        *,
        partitions: int = 1,
        min_partitions: int = 1,
        lease: int | None = 120_000,
        before: int = MAX_TIME_MS,
        unseen: bool = False,
    ) -> list[int]:
        """Reserve up to `limit` ready messages, in order, under the tags `tag/0`, `tag/1`, ….

        With `unseen` and one partition they are reserved ahead, under `unseen_tag(tag)`.

        Return the number of messages of each tag; an empty list if none is ready. There are at most
        `partitions` tags. Few messages get fewer tags, but `min_partitions` if there are as many
        messages. Each message is held by one tag at a time, however many clients reserve at once.
        Messages that mature after the moment `before` (ms) are not reserved, even if they are
        ready.

        If the tag already holds messages, it takes no more, and their numbers are returned: that
        resumes a reserve that a crash interrupted. While the queue is paused, no tag takes more.
        Raises `OptionError` for an invalid queue or tag.
        """
        return self.reserve_bytes(
            queue, tag, limit, None, partitions=partitions, min_partitions=min_partitions, lease=lease, before=before,
            unseen=unseen,
        ).rows  # fmt: skip

    def reserve_bytes(
        self,
        queue: str,
        tag: str,
        limit: int,
        max_bytes: int | None,
        *,
        partitions: int = 1,
        min_partitions: int = 1,
        lease: int | None = 120_000,
        before: int = MAX_TIME_MS,
        unseen: bool = False,
    ) -> Reserved:
        """Reserve as `reserve` does, but no more than `max_bytes` of messages (`None`: any number).

        The first message is reserved however large it is. The bytes are those of payloads, headers
        and ids in the database; for a bucket, those of its messages. The database adds them up,
        and sends no payloads.

        The partitions get equal shares of the bytes. If large messages fill them, there are as
        many partitions as are allowed. Raises `OptionError` as `reserve` does.
        """
        self.check_queue(queue)
        check_tag(tag)
        check_duration("lease", lease)
        request = ClaimRequest(
            tag, max(0, limit), max_bytes, partitions, min_partitions, lease, before, unseen,
            self.limits.smallest_partition,
        )  # fmt: skip
        if self._pause_cache.is_paused(queue):
            return Reserved(request.held_rows({one.tag: one.rows for one in self.reservations(queue, tag)}))
        claim = self._claim_or_split(queue, request)
        return Reserved(claim.rows, claim.bytes, claim.full)

    def ready(self, queue: str, limit: int, *, before: int = MAX_TIME_MS) -> int:
        """Return how many messages can be reserved now, counted up to `limit`.

        0 while the queue is paused. Messages that mature after the moment `before` (ms) are not
        counted, if the layout keeps messages in order.
        """
        if limit <= 0 or self._pause_cache.is_paused(queue):
            return 0
        return self._attempt(self._ready, queue, limit, before)

    def _claim_or_split(self, queue: str, request: ClaimRequest) -> Claim:
        """Claim records; split the first bucket if it exceeds the limit."""
        while True:
            claim = self._attempt(self._claim, queue, request)
            if not claim.already_held:
                self._counters.add(queue, reserve=sum(claim.rows))
            if claim.oversized_bucket is None:
                return claim
            rows = request.limit().rows_in(claim.oversized_bucket)
            if not split_bucket(self, queue, claim.oversized_bucket, rows):  # a damaged one is claimed alone
                request = replace(request, rows=rows_of(claim.oversized_bucket), bytes=None, partitions=1)

    @abstractmethod
    def _claim(self, queue: str, request: ClaimRequest) -> Claim:
        """Reserve ready records, in order, under the tags of the request: see `ClaimRequest`.

        A step for all partitions together, whose price is in `conformance/price.py`. If the tags
        hold messages already, reserve none. Return in both cases how many each of them holds now,
        so a call whose answer was lost may be repeated.
        """

    @abstractmethod
    def _ready(self, queue: str, limit: int, before: int) -> int:
        """Return how many messages can be claimed now, counted up to `limit`."""

    def fetch(
        self, queue: str, tag: str, rows: int = PAGE_ROWS, *, check_json: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one tag (not of those below), in order, as MESSAGES batches.

        A batch has up to `rows` rows. Changes nothing, and is repeatable: it yields the same rows
        until the tag is committed, rolled back or lost. `mature` is when the message was due, not
        when the lease ends. A record that cannot be read is not yielded, and with `check_json`
        neither is a message of kind `json` whose payload is not JSON: `StoredQueue.read` moves
        these to the dead-letter queue. Raises `StoreError` if the next page cannot be read.
        """
        for found in self.read_reserved(queue, tag, rows, check_json=check_json):
            batch = found.readable()
            yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))

    def peek_reserved(
        self, queue: str, tag: str, rows: int = PAGE_ROWS, *, fill: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one tag without changing any.

        A record that cannot be read is a row with the reason in header `x-error`. With `fill`, a
        damaged bucket is as many rows as it has messages. Raises `StoreError` as `fetch` does.
        """
        for found in self.read_reserved(queue, tag, rows, fill=fill):
            yield from (found.batch.slice(start, rows) for start in range(0, found.batch.num_rows, rows))

    def sizes_of_reserved(self, queue: str, tag: str, limit: int) -> list[tuple[int, int]]:
        """Return the sizes of the first `limit` records of one tag, in order: messages, and bytes.

        The database measures them, and sends no payloads. The bytes are as in `reserve_bytes`.
        """
        check_tag(tag)
        found = self._attempt(self._record_sizes, queue, tag, limit)
        return [(rows_of(id), bytes_of(id, stored)) for id, stored in found]

    @abstractmethod
    def _record_sizes(self, queue: str, tag: str, limit: int) -> list[tuple[str, int]]:
        """Return the ids of the first `limit` records of one tag, and their bytes as stored."""

    def last_due(self, queue: str, tag: str) -> int | None:
        """Return when the last record of one tag was due (ms), `None` if it holds none.

        Reads no payload.
        """
        check_tag(tag)
        return self._attempt(self._last_due, queue, tag)

    @abstractmethod
    def _last_due(self, queue: str, tag: str) -> int | None: ...

    def held_ids(self, queue: str, tag: str) -> list[str]:
        """Return the ids of the messages of one tag. Raises `StoreError` as `fetch` does."""
        return [id for batch in self.peek_reserved(queue, tag) for id in batch.column("id").to_pylist()]

    def read_reserved(
        self, queue: str, tag: str, rows: int = PAGE_ROWS, *, check_json: bool = False, fill: bool = False
    ) -> Iterator[Records]:
        """Yield pages of the messages of one tag, with its damaged records among them.

        `check_json` and `fill`: as in `fetch` and `peek_reserved`. Changes nothing. Raises
        `StoreError` as `fetch` does.
        """
        for page in self._records(queue, tag, rows):
            yield from (check_payloads(found, check_json=check_json) for found in open_buckets(page, fill=fill))

    def _records(self, queue: str, tag: str, rows: int = PAGE_ROWS) -> Iterator[Records]:
        """Yield the records of one tag. Raises `StoreError` as `fetch` does."""
        return self._read_pages(lambda after: self._page(queue, tag, after, rows))

    def _read_pages(self, read: Callable[[Any], Records]) -> Iterator[Records]:
        """Yield pages of records; each follows the last record of the page before.

        Raises `StoreError` if the database changes the key of that record, so it is no cursor.
        """
        after: Any = None
        while (page := self._attempt(read, after)).batch.num_rows:
            yield page
            if page.after == after:  # the database changes this key on the way
                raise StoreError(f"{mask(self.url)}: no record can be read after {after!r}: remove that record")
            after = page.after

    @abstractmethod
    def _page(self, queue: str, tag: str, after: Any, rows: int) -> Records:
        """Return up to `rows` records of the tag that follow the cursor `after`.

        The page at the end is empty. `after` is that of the page before, `None` at first. A page
        ends early at PAGE_BYTES.
        """

    def renew(self, queue: str, tag: str, lease: int | None) -> int:
        """Let the leases of the tag end in `lease` ms from now; return the number of messages."""
        check_tag(tag)
        check_duration("lease", lease)
        return self._attempt(self._renew, queue, tag, lease)

    @abstractmethod
    def _renew(self, queue: str, tag: str, lease: int | None) -> int: ...

    def commit(
        self, queue: str, tag: str, ids: Sequence[str] | None = None, *, history: int = 0, outcome: str = "commit"
    ) -> int:
        """Remove the messages of the tag (only `ids`, if given) and return their number.

        For `history` ms they can still be read with `peek(view="history")`, with this outcome:
        `commit`, or a word that the caller chooses. Atomic for each message. Atomic for all
        together if the database has transactions and no bucket must be split.
        """
        check_tag(tag)
        check_outcome(outcome)
        check_duration("history", history)
        done = self._apply_by_ids(
            queue, tag, ids, lambda some: self._commit(queue, tag, some, history, outcome), in_place=False
        )
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
        include_endless: bool = True,
    ) -> int:
        """Roll back the messages of the tag (only `ids`, if given); return their number.

        They mature in `delay` ms; with `None` they keep their due time, and so their old place in
        the queue. `failed` adds one to their tries. Without `include_endless`, messages whose lease
        never ends stay reserved: then the effect is that of the end of a lease. Atomic as `commit`.
        Raises `OptionError` for a negative delay.
        """
        check_tag(tag)
        check_duration("delay", delay)
        rolled_back = self._apply_by_ids(
            queue, tag, ids, lambda some: self._rollback(queue, tag, some, delay, failed, include_endless)
        )
        self._counters.add(queue, rollback=rolled_back)
        self._notify_rolled_back(queue, delay)
        return rolled_back

    def _notify_rolled_back(self, queue: str, delay: int | None) -> None:
        self._notify(queue, round(time.time() * 1000) + delay if delay else 0)

    @abstractmethod
    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, include_endless: bool
    ) -> int: ...

    def transfer(self, queue: str, tag: str, to: str, ids: Sequence[str] | None = None, *, lease: int | None) -> int:
        """Transfer the messages of the tag (only `ids`, if given) to `to`; return their number.

        Their lease then ends in `lease` ms. `to` is one tag, and may hold messages already. Atomic
        as `commit`.
        """
        check_tag(tag)
        check_tag(to)
        check_duration("lease", lease)
        return self._apply_by_ids(queue, tag, ids, lambda some: self._transfer(queue, tag, to, some, lease))

    @abstractmethod
    def _transfer(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int: ...

    def hand_out(self, queue: str, next: HandOut) -> bool:
        """Hand out a message that was reserved ahead: from now on, the end of its lease is a try.

        Return whether it is still held; if not, another consumer may work on it. Atomic, and may be
        repeated. Raises `StoreError` as `fetch` does.
        """
        done = self.transfer(queue, unseen_tag(next.tag), seen_tag(next.tag), [next.record.id], lease=next.lease)
        return bool(done) or self._is_handed_out(queue, next)

    def _is_handed_out(self, queue: str, next: HandOut) -> bool:
        """Return whether an earlier call has handed out the message, and the reply was lost.

        Raises `StoreError` as `fetch` does.
        """
        return next.record.id in self.held_ids(queue, seen_tag(next.tag))

    def settle_and_hand_out(
        self, queue: str, tag: str, records: Sequence[Record], how: Commit | Rollback, next: HandOut
    ) -> tuple[int, bool]:
        """Settle messages of a tag as `commit` or `rollback` does, and hand out another message.

        Both happen in one round trip: a consumer that works on one message after the other needs no
        more than one for each. The first part is done before the second; each is atomic. Return how
        many messages were settled, and whether the other one is held. If an earlier call has handed
        it out, that number may be too small. Raises `OptionError` for an invalid tag or delay, and
        `StoreError` as `fetch` does.
        """
        check_tag(tag)
        check_duration("delay", how.delay if isinstance(how, Rollback) else how.history)
        settled, handed_out = self._attempt(self._settle_and_hand_out, queue, tag, records, how, next)
        self._counters.add(queue, **{"commit" if isinstance(how, Commit) else "rollback": settled})
        if isinstance(how, Rollback):
            self._notify_rolled_back(queue, how.delay)
        if settled < len(records):  # the others are lost, or in buckets
            settled += self.settle(queue, tag, [one.id for one in records], how)
        return settled, bool(handed_out) or self._is_handed_out(queue, next)

    def settle(self, queue: str, tag: str, ids: Sequence[str] | None, how: Commit | Rollback) -> int:
        """Commit or roll back messages of the tag (only `ids`, if given); return their number.

        Raises `OptionError` as `commit` and `rollback` do.
        """
        if isinstance(how, Commit):
            return self.commit(queue, tag, ids, history=how.history, outcome=how.outcome)
        return self.rollback(queue, tag, ids, delay=how.delay, failed=how.failed)

    @abstractmethod
    def _settle_and_hand_out(
        self, queue: str, tag: str, records: Sequence[Record], how: Commit | Rollback, next: HandOut
    ) -> tuple[int, int]:
        """Return how many messages were settled, and how many handed out. Buckets may be left."""

    def _apply_by_ids(
        self,
        queue: str,
        tag: str | None,
        ids: Sequence[str] | None,
        act: Callable[[Sequence[str] | None], int],
        *,
        in_place: bool = True,
    ) -> int:
        """Apply `act` to records of these ids (`None`: all), then to messages in buckets.

        They are those of the tag, or with `None` those that are not reserved. `in_place`: as in
        `isolate`.
        """
        ids = possible_ids(ids)
        done = self._attempt(act, ids)
        if ids is not None and done < len(set(ids)):
            isolated = isolate(self, queue, tag, ids, in_place=in_place)
            done += self._attempt(act, isolated) if isolated else 0
        return done

    @abstractmethod
    def _replace_records(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        """Replace records by those of a WRITTEN batch, which have the same messages.

        Return whether it was done: it is atomic, and needs all records to be still there, and the
        ids of the new ones to be free. Exactly this tag must hold the records; the new ones get the
        same tag and lease. If `tag` is `None`, they must be free, or their lease has ended.
        """

    @abstractmethod
    def _scan_free(self, queue: str, after: Any, rows: int) -> Records:
        """Return up to `rows` ready records, in order, that follow `after`: see `_page`."""

    def reservations(self, queue: str, tag: str = "") -> list[Reservation]:
        """Return the reservations of the tag and those below it, by tag (empty: all)."""
        return self._attempt(self._reservations, queue, tag)

    @abstractmethod
    def _reservations(self, queue: str, tag: str) -> list[Reservation]: ...

    # --- between queues ---------------------------------------------------------------------------

    def move(
        self,
        queue: str,
        to: str,
        *,
        tag: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int | None = None,
        min_tries: int = 0,
        dead_letter: DeadLetterInfo | None = None,
    ) -> int:
        """Move messages to another queue of the store and return their number.

        It moves the messages of `tag`, or with `None` those that are not reserved. `ids` and
        `min_tries` narrow them; `limit` then takes the first ones in order. They keep id, payload,
        headers and maturity; their tries start again at 0. With `dead_letter` they get the headers
        of a dead letter. The history may then keep them with the outcome `dead`, except in
        `pl-mongo`, where an id is in one place.

        Each message is in exactly one of the queues at every moment; a store documents exceptions.
        If the target already holds the id, the message is removed here and replaces nothing there.
        Raises `OptionError` for an invalid queue or tag, or if both queues are the same.
        """
        self.check_queue(queue)
        self.check_queue(to)
        if tag is not None:
            check_tag(tag)
        if dead_letter is not None:
            check_duration("history", dead_letter.history)
        if queue == to:
            raise OptionError(f"a queue cannot be moved to itself: {queue!r}", queue=queue)
        ids = possible_ids(ids)
        moved = self._attempt(self._move, queue, to, Selection(tag, ids, limit, min_tries), dead_letter)
        self._notify(to)
        wanted = [] if limit is None else [limit]
        if ids is not None:
            wanted.append(len(set(ids)))
        if wanted and moved < min(wanted):
            isolated = isolate(self, queue, tag, ids, in_place=True, limit=min(wanted) - moved, min_tries=min_tries)
            if isolated:
                moved += self._attempt(self._move, queue, to, Selection(tag, isolated, None, min_tries), dead_letter)
                self._notify(to)
        self._counters.add(queue, **{"get" if dead_letter is None else "deadletter": moved})
        self._counters.add(to, put=moved)
        return moved

    @abstractmethod
    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        """Move the selected records.

        The limit counts messages: the first bucket that exceeds it ends the move.
        """

    def forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        """Change messages of the tag, move them to another queue, and return their number.

        `batch` has the schema PUSHES and the ids of the messages. A NULL `payload` or `headers`
        leaves that of the message unchanged. Each message changes and moves in one step, and is in
        exactly one of the queues at every moment. A repeated call changes the messages that are
        left.

        Raises `MessageError` as `push` does, before anything is moved; for a message that would
        become too large with what stays of it, the others are moved. Raises `OptionError` for an
        invalid queue or tag, if both queues are the same, or if the layout does not support it.
        """
        self.check_queue(queue)
        self.check_queue(to)
        check_tag(tag)
        self.check_forward()
        if queue == to:
            raise OptionError(f"a queue cannot be moved to itself: {queue!r}", queue=queue)
        self._check_push(to, fill_null_payloads(batch))
        if not batch.num_rows:
            return 0
        moved = self._attempt(self._forward, queue, to, tag, batch)
        self._counters.add(queue, get=moved)
        self._counters.add(to, put=moved)
        self._notify(to, earliest_due(batch))
        return moved

    def check_forward(self) -> None:
        """Raise `OptionError` if the layout cannot change and move messages in one step."""
        if not self.supports_forward:
            layout = f"the layout {self.layout_name}" if self.layout_name else f"{scheme_of(self.url)}://"
            raise OptionError(
                f"{layout} cannot change and move a message in one step, as outcome 'move' to the queue in column "
                "'to' does: that takes layout=pl-mongo. Push a new message instead, and commit this one",
                option="url",
            )

    def _forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        raise NotImplementedError

    # --- pause ------------------------------------------------------------------------------------

    def pause(self, queue: str) -> None:
        """Pause the queue: no client, keuss included, can reserve messages until `resume`.

        Reserved messages stay reserved, and all other operations work. A pause survives restarts.
        Clients that wait and receive signals notice it at once, others of this package within 250
        ms. Raises `OptionError` for an invalid queue.
        """
        self._set_pause(queue, True)

    def resume(self, queue: str) -> None:
        """End a pause and wake waiting clients. Raises `OptionError` for an invalid queue."""
        self._set_pause(queue, False)

    def _set_pause(self, queue: str, paused: bool) -> None:
        self.check_is_queue(queue)
        self._attempt(self._set_paused, queue, paused)
        self._pause_cache.update(queue, paused)
        self._notify_paused(queue, paused)

    def is_paused(self, queue: str, *, max_age_ms: int = 0) -> bool:
        """Return whether the queue is paused.

        A cached answer may be `max_age_ms` old; 0 asks the database.
        """
        if max_age_ms:
            return self._pause_cache.is_paused(queue, max_age_ms / 1000)
        paused = self._read_paused(queue)
        self._pause_cache.update(queue, paused)
        return paused

    def _read_paused(self, queue: str) -> bool:
        return self._attempt(self._statistics, [queue]).get(queue, Statistics()).paused

    def _notify_paused(self, queue: str, paused: bool) -> None:  # noqa: B027 not all have signals
        """Notify clients that wait for the queue: it was paused, or resumed. Never raises."""

    # --- statistics -------------------------------------------------------------------------------

    def statistics(self, queue: str) -> Statistics:
        """Return the statistics of the queue over all clients; all zero if it was never used.

        The counts of this client are complete. Those of others may lack the last 100 ms.
        """
        return self.statistics_of([queue]).get(queue, Statistics())

    def statistics_of(self, queues: Iterable[str]) -> dict[str, Statistics]:
        """Return the statistics of those of these queues that have any: see `statistics`.

        This takes a few round trips for each `queues_chunk` queues.
        """
        self.write_counts()
        found: dict[str, Statistics] = {}
        for some in chunked(list(dict.fromkeys(queues)), self.limits.queues_chunk):
            found |= self._attempt(self._statistics, some)
        return found

    def all_statistics(self) -> dict[str, Statistics]:
        """Return the statistics of all queues, empty ones too, sorted by name."""
        self.write_counts()
        return dict(sorted(self._attempt(self._statistics, None).items()))

    def register(self, queue: str) -> None:
        """Register the queue: it is listed from now on, even while it is empty.

        Other clients see that within 100 ms. Raises `OptionError` for an invalid queue, `NotAQueue`
        if the name is taken.
        """
        self.check_is_queue(queue)
        self._counters.add(queue)

    def count(self, queue: str, **acts: int) -> None:
        """Correct the counts of this client: `count("flights", reserve=-1, commit=-1, get=1)`.

        That registers the queue, as each operation does that changes messages.
        """
        self._counters.add(queue, **acts)

    def write_counts(self) -> None:
        """Write the counts of this client now, and not up to 100 ms later.

        Logs a failure; never raises.
        """
        self._counters.write()

    @abstractmethod
    def _count(self, counts: Counts) -> None:
        """Add to the counters in one round trip, and register queues that have none."""

    @abstractmethod
    def _statistics(self, queues: Sequence[str] | None) -> dict[str, Statistics]:
        """Return the statistics by queue: of these that are registered, or (`None`) of all."""

    @abstractmethod
    def _set_paused(self, queue: str, paused: bool) -> None:
        """Set the flag, and register the queue if it has none."""

    @abstractmethod
    def _delete_statistics(self, queue: str) -> None:
        """Remove the flag and the counters of the queue."""

    # --- notes ------------------------------------------------------------------------------------

    def note(self, key: str) -> Note | None:
        """Return the note with this key, or `None`. Raises `StoreError` if it is damaged."""
        found = self._attempt(self._note, key)
        return None if found is None else found.parse(key)

    @abstractmethod
    def _note(self, key: str) -> RawNote | None: ...

    def notes_of(self, keys: Iterable[str]) -> dict[str, Note]:
        """Return the notes with these keys that exist. Raises `StoreError` if one is damaged.

        This takes one round trip for each `queues_chunk` keys.
        """
        found: dict[str, RawNote] = {}
        for some in chunked(list(dict.fromkeys(keys)), self.limits.queues_chunk):
            found |= self._attempt(self._notes_of, some)
        return {key: note.parse(key) for key, note in found.items()}

    @abstractmethod
    def _notes_of(self, keys: Sequence[str]) -> dict[str, RawNote]: ...

    def set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        """Write the note if it still has this version (0: no note yet); return whether it had.

        Atomic. `None` removes the note; it succeeds if there is none. If a reply is lost, two
        writers of the same value may both see `True`; include a unique token if that matters.
        """
        if value is None and not version:
            return self.note(key) is None
        retries = self.retries
        if self._attempt(self._set_note, key, value, version):
            return True
        if self.retries == retries:
            return False
        # The reply to the first attempt may have been lost.
        return self.note(key) == (None if value is None else Note(value, version + 1))

    @abstractmethod
    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool: ...

    def change_note(self, key: str, change: Callable[[dict[str, Any] | None], V]) -> V:
        """Write the value that `change` returns for the value of the note, and return it.

        `None` means no note. Both steps are repeated if another client writes in between. An equal
        value is not written. `change` may raise, and must not modify its argument.
        """
        while True:
            note = self.note(key)
            value, version = (note.value, note.version) if note else (None, 0)
            changed = change(value)
            if changed == value or self.set_note(key, changed, version):
                return changed

    def notes(self, prefix: str, *, skip_damaged: bool = False) -> dict[str, Note]:
        """Return the notes whose keys begin with `prefix`, by key.

        For tools only: it may scan all keys.

        Raises `StoreError` if one is damaged; with `skip_damaged` it is left out.
        """
        found = sorted(self._attempt(self._notes, prefix).items())
        return {key: note.parse(key) for key, note in found if not (skip_damaged and note.fault(key))}

    def raw_notes(self) -> dict[str, RawNote]:
        """Return all notes by key, including damaged ones. For tools only: it may scan all keys."""
        return dict(sorted(self._attempt(self._notes, "").items()))

    @abstractmethod
    def _notes(self, prefix: str) -> dict[str, RawNote]: ...

    # --- reading ----------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the database's time (ms since 1970)."""
        return self._attempt(self._now)

    @abstractmethod
    def _now(self) -> int: ...

    def sizes(self, queue: str, limit: int | None = None) -> Sizes:
        """Return how many messages the queue holds, by state; all zero if it does not exist.

        With a `limit`, counting ends soon after this number of messages of a state: the time does
        not grow with the queue. Such states are `capped`. States are not counted at one moment.
        Raises `OptionError` for an invalid queue, `NotAQueue` for data of another program.
        """
        found = self.sizes_of([queue], limit)
        if queue not in found:
            self.check_is_queue(queue)  # raises `NotAQueue`
        return found.get(queue, ZERO_SIZES)

    def sizes_of(self, queues: Iterable[str], limit: int | None = None) -> dict[str, Sizes]:
        """Return the sizes of queues by name, in the order of `queues`: see `sizes`.

        This takes a few round trips for each `queues_chunk` queues. A name is left out if data of
        another program has it.
        """
        found: dict[str, Sizes] = {}
        for some in chunked(list(dict.fromkeys(queues)), self.limits.queues_per_count):
            found |= self._attempt(self._sizes, some, limit)
        return found

    @abstractmethod
    def _sizes(self, queues: Sequence[str], limit: int | None) -> dict[str, Sizes]: ...

    def summary(self, request: SummaryRequest) -> Summary:
        """Return sizes, pause flags and notes of many queues: see `SummaryRequest`.

        It takes one step for each `queues_per_summary` queues, whose price is in
        `conformance/price.py`. A queue is registered once this client has written its counts.
        Raises `OptionError` for an invalid queue.
        """
        found = Summary()
        for part in request.parts(self.limits.queues_per_summary):
            found |= self._attempt(self._summary, part)
        return found

    @abstractmethod
    def _summary(self, request: SummaryRequest) -> Summary: ...

    def next_mature(self, queue: str) -> int | None:
        """Return the ms until a message can next be reserved; `None` if there is no message.

        The end of a lease counts too. 0 or less: one can be reserved now.
        """
        return self._attempt(self._next_mature, queue)

    @abstractmethod
    def _next_mature(self, queue: str) -> int | None: ...

    def next_reservable(self, queue: str) -> int | None:
        """Return `next_mature`, or while the queue is paused, the ms until one should ask again."""
        wait = self.next_mature(queue)
        if wait is not None and wait <= 0 and self._pause_cache.is_paused(queue):
            return round(self._pause_poll_interval(queue) * 1000)
        return wait

    def poll_interval(self, queue: str) -> float:
        """Return after how many seconds a client that waits for the queue should check again."""
        return self.limits.poll_interval_ms / 1000

    def _pause_poll_interval(self, queue: str) -> float:
        """Return the same for a client that waits for the end of a pause."""
        return self.limits.pause_cache  # the cached flag has expired then

    def missed_signal(self, queue: str) -> None:  # noqa: B027 not all have signals
        """Note that a check found a message of the queue that no signal has announced."""

    def watch(self, queue: str, on_signal: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `on_signal` when a message may have come, until the returned function is called.

        It gets the name of the queue, or `None` if it may be any queue. Any thread may call it, and
        it must return at once. Signals may be lost, and the end of a lease or of a delay has none:
        ask `next_reservable` when you begin, and now and then.
        """
        return lambda: None

    def wait(self, queue: str, timeout: int, *, hint: bool = False) -> bool:
        """Sleep until a message can be reserved, at most `timeout` ms; return whether one can.

        `close` ends the sleep: then `False` is returned. A push and `resume` send a signal. If it
        is lost, a message, or the end of a pause, is noticed by the next poll: see `poll_interval`.
        With `hint`, a signal for this queue returns `True` without another check: for callers that
        reserve next, and may find no message.
        """
        now = time.monotonic()
        end = now + timeout / 1000
        name, until, due, version = self._last_empty_wait
        if name == queue and now < until:  # the result of the last wait is still cached
            pause = min(end - now, due - now, self.poll_interval(queue))
            self._wait_signal(queue, version, max(0.0, pause))

        def is_hint(version: int) -> bool:
            return hint and self._signalled_for(queue, version)

        waited = wait([AwaitedQueue(self, queue)], OneQueue(self, queue), end, is_hint=is_hint)
        now = time.monotonic()
        if not waited.found and now >= end:
            self._last_empty_wait = queue, now + EMPTY_CACHE_MS / 1000, waited.due, waited.version
        return waited.found

    @property
    def close_count(self) -> int:
        """How often it was closed: that ends a wait."""
        return self._close_count

    def _notify(self, queue: str, mature: int = 0) -> None:  # noqa: B027 not all have signals
        """Notify waiting clients: a message can be reserved at this moment (ms), or (0) at once.

        Never raises.
        """

    def _signal_version(self, queue: str) -> int:
        """Return a number that changes when a message may have come.

        The first call begins to listen.
        """
        return 0

    def _wait_signal(self, queue: str, version: int, timeout: float) -> None:
        """Sleep until that number differs from `version`, at most `timeout` seconds."""
        time.sleep(timeout)

    def _signalled_for(self, queue: str, version: int) -> bool:
        """Return whether that number differs from `version` because of this queue."""
        return False

    def peek(
        self,
        queue: str,
        where: Sequence[Condition] = (),
        *,
        limit: int | None = None,
        view: View = "messages",
        rows: int = PAGE_ROWS,
        check_json: bool = True,
        span: Span = WHOLE,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the queue that meet every condition, reserved ones too.

        The schema is MESSAGES, or HISTORY in that view. With a `limit` they are the first in order;
        else they come in no particular order. No message is yielded twice. `span`, which excludes a
        `limit`: one of `spans` of the same view. The history has a row
        for each time that an id was processed (SQLite), or for the last time only. `mature` of a
        reserved message is when it was due.

        A record that cannot be read is a row with the reason in header `x-error`. With
        `check_json`, so is a message of kind `json` whose payload is not JSON. Raises `OptionError`
        for a condition on a column of the history in another view.
        """
        if limit is not None:
            first = PageReader(self, Scan(queue, where, limit, view, check_json=check_json)) if limit else ()
            yield from (batch.slice(start, rows) for batch in first for start in range(0, batch.num_rows, rows))
            return
        check_conditions(where, view)
        schema = MESSAGES if view == "messages" else HISTORY
        where = [one.possible() for one in where]
        for page in self._peek(queue, where, view, rows, span):
            if page.batch.schema != schema:
                page = page._replace(batch=page.batch.cast(schema))
            for found in open_buckets(page):
                batch = check_payloads(found, check_json=check_json).batch
                if found is page:
                    yield batch
                else:
                    spend(batch.num_rows, batch.nbytes)
                    fitting = filter_rows(batch, where)
                    yield from (fitting.slice(start, rows) for start in range(0, fitting.num_rows, rows))

    @abstractmethod
    def _peek(
        self, queue: str, where: Sequence[Condition], view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        """Yield records.

        A bucket meets each condition on `id` or `mature`: these are for its messages.
        """

    def scan(self, scan: Scan) -> ScanPage:
        """Return the next page of messages in order, reserved ones too, and the cursor after it.

        A page costs what it returns: no page reads those before it again. While no client changes
        the queue, the pages have each message once. Meanwhile no message comes twice, unless it was
        pushed again, or rolled back to a later due time. A message that others move or release may
        be missed. A cursor is text that any client can use, also after a restart. The rows are
        those of `peek`. Raises `OptionError` for a cursor that is damaged, or of another queue or
        view, for a limit below 1, and for conditions as `peek` does.
        """
        if scan.limit < 1:
            raise OptionError(f"limit must be 1 or more, not {scan.limit}", option="limit")
        reader = PageReader(self, scan)
        batches = list(reader)
        return ScanPage(batches, reader.cursor)

    def scan_step(self, step: ScanStep) -> Scanned:
        """Read one step of a scan."""
        return self._attempt(self._scan, step)

    def scan_scope(self, scan: Scan) -> str:
        """Return the name of that for which a cursor is valid."""
        return f"{self.layout_name} {scan.view} {scan.queue}"

    @abstractmethod
    def _scan(self, step: ScanStep) -> Scanned:
        """Examine the next records of a scan.

        Raises `OptionError` for a place of another layout.
        """

    def spans(
        self, queue: str, parts: int, *, view: View = "messages", smallest: int = StoreLimits.smallest_partition
    ) -> list[Span]:
        """Return up to `parts` spans, which together have all messages of the queue or its history.

        They have about the same size. There is one for each `smallest` messages. A message stays in
        its span until it leaves the queue. So if each span is peeked at another time, no message
        comes twice, and each that was there all the time comes. Reads a few records for each span.
        There is only one span if the queue has buckets, between which messages move, or if the
        layout has no order that stays. Raises `OptionError` for an invalid queue.
        """
        self.check_queue(queue)
        if parts < 2:
            return [WHOLE]
        sample = self._attempt(self._sample, queue, view, sample_size(parts, self.limits.places_per_part))
        return cut_spans(sample, parts, smallest)

    def _sample(self, queue: str, view: View, size: int) -> Sample:
        """Return about `size` places of records, spread evenly; all of them if there are fewer.

        The empty sample means that the records cannot be cut.
        """
        return Sample()

    @abstractmethod
    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        """Yield the buckets of the queue, reserved ones too, in order; with `id` only that one."""

    def queues(self) -> list[str]:
        """Return the names of the queues, sorted.

        A queue is listed from its first message or consumer until it is dropped, even while it is
        empty.
        """
        return sorted({*self._attempt(self._queues), *self.all_statistics()})

    @abstractmethod
    def _queues(self) -> list[str]:
        """Return the names of queues with messages or history.

        Empty queues and duplicates are allowed.
        """

    def exists(self, queue: str) -> bool:
        """Return whether `queues` lists this queue; reads this queue only.

        Raises `NotAQueue` if data of another program has the name.
        """
        if self.missing_database():
            return False
        self.write_counts()
        views: tuple[View, ...] = "messages", "history"
        return bool(self._attempt(self._statistics, [queue])) or any(
            next(self.peek(queue, view=view, rows=1), None) is not None for view in views
        )

    def task_url(self) -> str:
        """Return the URL for tasks, which may run on other machines.

        The URL of a file then also identifies the file of this machine. A missing file is created
        first, unless `create_missing` is unset.
        """
        return self.url

    def missing_database(self) -> str:
        """Return a sentence that names the missing file; empty if no file is missing."""
        return ""

    def server(self) -> str:
        """Return the name and the version of the database: `redis 7.0.15`."""
        return self._attempt(self._server)

    @abstractmethod
    def _server(self) -> str: ...

    def eviction(self) -> str | None:
        """Return the policy by which the database evicts data when its memory is full.

        Empty if it evicts none, `None` if it is unknown.
        """
        return ""

    def examine(self) -> list[Finding]:
        """Check how the database is set up for queues. Changes nothing; may read all queues."""
        return self._attempt(self._examine)

    def never_due(self, queue: str) -> list[str]:
        """Return the ids of the first 1,000 records that are never due: `mature` is no moment."""
        return self._attempt(self._never_due, queue)

    def _never_due(self, queue: str) -> list[str]:
        return []

    def damaged_buckets(self, queue: str, limit: int) -> list[str]:
        """Return the ids of the buckets, among the first `limit`, that cannot be opened."""
        found: list[str] = []
        for page in self._buckets(queue, None):
            for row, id in enumerate(page.batch.column("id").to_pylist()[:limit]):
                if any(one.damaged for one in open_buckets(slice_records(page, row, row + 1))):
                    found.append(id)
            limit -= page.batch.num_rows
            if limit <= 0:
                break
        return found

    @abstractmethod
    def _examine(self) -> list[Finding]: ...

    # --- data of other programs -------------------------------------------------------------------

    def check_is_queue(self, queue: str) -> None:
        """Raise `NotAQueue` if data of another program has this name. Changes nothing.

        All other operations on a queue do so, too. The queue need not exist. Raises `OptionError`
        for an invalid queue.
        """
        self.check_queue(queue)
        self._attempt(self._check_is_queue, queue)

    def _check_is_queue(self, queue: str) -> None:  # noqa: B027 not all databases are shared
        """Raise `NotAQueue` as `check_is_queue` does."""

    def inspect_foreign(self, queue: str) -> ForeignData:
        """Return the data that has the name of a queue, and whether it is one already.

        Raises `OptionError` if there is no data, or if this database has no data of other programs
        among its queues. Raises `NotAQueue` if it cannot become a queue.
        """
        self.check_queue(queue)
        return self._attempt(self._inspect_foreign, queue)

    def _inspect_foreign(self, queue: str) -> ForeignData:
        raise OptionError(f"{mask(self.url)}: {self.adoption_hint}: nothing needs to be adopted", option="url")

    def adopt(self, queue: str) -> ForeignData:
        """Mark data of another program as a queue, and return what it was before.

        Its documents stay as they are. Raises `OptionError` and `NotAQueue` as `inspect_foreign`
        does.
        """
        found = self.inspect_foreign(queue)
        if not found.is_queue:
            self._attempt(self._adopt, queue)
        return found

    def _adopt(self, queue: str) -> None:
        raise NotImplementedError

    # --- housekeeping -----------------------------------------------------------------------------

    def delete_history(self, queue: str, ids: Sequence[str]) -> int:
        """Remove the messages with these ids from the history, and return their number.

        The messages of the queue stay. So do messages of the history that were in a bucket.
        """
        ids = possible_ids(ids) or ()
        return self._attempt(self._delete_history, queue, ids) if ids else 0

    @abstractmethod
    def _delete_history(self, queue: str, ids: Sequence[str]) -> int: ...

    def purge(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Remove the messages that are not reserved (only `ids`, if given); return their number.

        Messages under a lease that has not ended stay, and so does the history. Atomic as `commit`.
        """
        return self._apply_by_ids(queue, None, ids, lambda some: self._purge(queue, some), in_place=False)

    @abstractmethod
    def _purge(self, queue: str, ids: Sequence[str] | None) -> int: ...

    def drop(self, queue: str) -> None:
        """Remove the queue: its messages, reservations, history, statistics and notes.

        Staged messages stay. A pause ends. A queue that does not exist is no error. Raises
        `OptionError` for an invalid queue.
        """
        self.check_queue(queue)
        self._attempt(self._drop, queue)
        for key, note in self._attempt(self._notes, queue_note_key(queue)).items():  # damaged ones too
            left: RawNote | None = note
            while left is not None and not self.set_note(key, None, left.version):
                failed, left = left, self._attempt(self._note, key)
                if left == failed:
                    break  # its version is damaged
        self._counters.discard(queue)
        self._pause_cache.discard(queue)
        try:
            self._attempt(self._delete_statistics, queue)
        except AccessDenied as error:  # a user without rights to statistics may drop queues
            log.warning("the statistics of queue %r are not removed: %s", queue, error)

    @abstractmethod
    def _drop(self, queue: str) -> None: ...

    def shrink(self) -> int:
        """Return unused space of the file to the disk, and return the number of bytes.

        Other clients need not stop: they wait while the file is rewritten. Raises `OptionError` if
        there is a server.
        """
        raise OptionError(f"{mask(self.url)} is no file: {self.shrink_hint}", option="url")

    def check_queue(self, queue: str) -> None:
        """Raise `OptionError` if the database forbids the name."""
        size = len((source_queue(queue) or queue).encode(errors="replace"))
        if not size or size > MAX_QUEUE_BYTES or "\0" in queue or not is_text(queue):
            raise OptionError(
                f"{cut_text(queue, 2 * MAX_QUEUE_BYTES)!r} cannot name a queue: 1 to {MAX_QUEUE_BYTES} bytes "
                "(.dead at the end does not count) of UTF-8 without the character NUL",
                option="queue",
                queue=queue,
            )

    @abstractmethod
    def close(self) -> None:
        """Write the counts, release connections, and end all waits.

        A closed store opens again when it is used.
        """
        self._close_count += 1
        self._counters.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T:
        """Call `operation`. While the database cannot be reached, retry it with growing pauses."""
        spend()  # the time of a look may have ended
        begun = time.monotonic()
        try:
            return operation(*arguments)  # tenacity itself takes as long as a short operation
        except StoreUnavailable as error:
            failed = [error]
        import tenacity  # only here: it takes as long to import as all stores, in each process of Spark

        def retry() -> T:
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
            stop=tenacity.stop_after_delay(begun + self.retry_timeout / 1000 - time.monotonic()),
            reraise=True,
        )(retry)


def chunked(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items, `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def partition_sizes(
    rows: int, partitions: int, min_partitions: int = 1, smallest: int = StoreLimits.smallest_partition
) -> list[int]:
    """Return the sizes of partitions that share `rows` evenly; none is empty.

    There is one partition for each `smallest` rows, but at least `min_partitions` and at
    most `partitions`.
    """
    return share_evenly(rows, partitions, min_partitions, smallest)


def read_layout(store: Store, queue: str) -> Buckets | None:
    """Return how messages of a queue are put into buckets, or `None` if they are not."""
    note = store.note(queue_note_key(queue, "layout"))
    return Buckets(note.value["size"], note.value["compression"]) if note else None


def set_layout(store: Store, queue: str, layout: Buckets | None) -> None:
    """Set the layout for messages that are pushed from now on.

    Other clients notice it within SETTINGS_CACHE_SECONDS. Raises `OptionError` for an invalid
    queue, or if the store has no buckets.
    """
    store.check_is_queue(queue)
    if layout is not None:
        store.check_buckets()
    value = None if layout is None else {"v": 1, "size": layout.size, "compression": layout.compression}
    store.change_note(queue_note_key(queue, "layout"), lambda _: value)
    store._settings.discard(queue)
    store.register(queue)


def rejected_rows_error(queue: str | None, batch: pa.RecordBatch, wrong: Mapping[int, str]) -> MessageError:
    """Return an error that names the first of the wrong rows by its id, and counts the others.

    `queue`: `None` if the rows name none.
    """
    row, rule = next(iter(wrong.items()))
    rest = f" (and {plural(len(wrong) - 1, 'more row')})" if len(wrong) > 1 else ""
    id = replace_invalid_utf8(batch.slice(row, 1)).column("id")[0].as_py()
    place = "" if queue is None else f"queue {queue!r}, "
    return MessageError(
        f"{place}row with id {id!r}: {rule}{rest}; nothing of this batch was pushed",
        rows=wrong,
        queue=queue,
    )
