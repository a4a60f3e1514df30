"""A queue of a store with the policy of a program, and the one way to consume it.

To consume is: reserve messages, move those that failed too often or cannot be read to the
dead-letter queue, and read the others. `StoredQueue.consume` does it, and its parts have names for
callers that do something in between.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from spark_queue.errors import plural
from spark_queue.messages.buckets import Buckets, Layout, count_rows
from spark_queue.messages.message import Message, messages
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.queue_names import dead_letter_queue, takes_dead_letters
from spark_queue.stores.policy import NOT_GIVEN, QueuePolicy, RetryPolicy, given_or
from spark_queue.stores.support.bucket_split import unpack
from spark_queue.stores.support.damaged import Records
from spark_queue.stores.support.dead_lettering import dead_letter_damaged
from spark_queue.stores.support.record_store import QueueStore
from spark_queue.stores.types import DeadLetterInfo, Reserved, seen_tag, unseen_tag

#: How long a reservation lasts (ms), unless the policy says otherwise.
DEFAULT_LEASE_MS = 120_000

#: How long one call of `Store.wait` lasts if the caller waits forever (ms).
LONG_WAIT_MS = 3_600_000

#: The most rows of a batch of messages.
BATCH_ROWS = 10_000

log = logging.getLogger(__name__)

S = TypeVar("S", bound=QueueStore)


@dataclass(frozen=True, slots=True)
class Consumed:
    """Reserved messages that can be read, in order, as MESSAGES batches; none if none came.

    They are held by `tag` and the tags below it. `whole`: these hold no others.
    """

    tag: str
    batches: Sequence[pa.RecordBatch] = ()
    whole: bool = True

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(one.num_rows for one in self.batches)

    @property
    def messages(self) -> list[Message]:
        """The messages."""
        return [one for batch in self.batches for one in messages(batch)]


@dataclass(frozen=True, slots=True)
class StoredQueue(Generic[S]):
    """One queue, as one program uses it: `store.queue(name, QueuePolicy(...))`.

    It is frozen: to use the queue in another way, make another one, or call `with_policy`. Threads
    may share it, as they may share the store. Durations are ms.
    """

    store: S
    name: str
    policy: QueuePolicy = field(default_factory=QueuePolicy)

    def with_policy(self, **given: Any) -> Self:
        """Return the same queue with other values in its policy."""
        return replace(self, policy=self.policy.replace(**given))

    # --- the policy, with what was not given ------------------------------------------------------

    @property
    def lease(self) -> int | None:
        """How long a reservation lasts; `None`: until it is settled."""
        return given_or(self.policy.lease, DEFAULT_LEASE_MS)

    @property
    def max_tries(self) -> int | None:
        """The number of failures after which a message becomes a dead letter; `None`: never."""
        return given_or(self.policy.max_tries, None)

    @property
    def dead_letter_queue(self) -> str:
        """The queue for dead letters.

        One that several queues share may be read, too: its own dead letters go to its default.
        """
        shared = given_or(self.policy.dead_letter_queue, "")
        return shared if shared and takes_dead_letters(shared, self.name) else dead_letter_queue(self.name)

    @property
    def history(self) -> int:
        """How long settled messages are kept."""
        return given_or(self.policy.history, 0)

    @property
    def layout(self) -> Layout:
        """How pushed messages are stored; `None`: single, as no setting says otherwise."""
        given = self.policy.layout
        return self.store.layout_of(self.name) if given is NOT_GIVEN else given

    @property
    def retry(self) -> RetryPolicy:
        """When a message that failed alone is due again."""
        return given_or(self.policy.retry, RetryPolicy())

    # --- messages in ------------------------------------------------------------------------------

    def push(self, batch: pa.RecordBatch) -> int:
        """Push the rows of a PUSHES batch in the layout of the policy: see `Store.push`."""
        return self.store.push(self.name, batch, layout=given_or(self.policy.layout, None))

    def stage(self, stage: str, batch: pa.RecordBatch) -> int:
        """Stage the rows of a PUSHES batch in the layout of the policy: see `Store.stage`."""
        return self.store.stage(self.name, stage, batch, layout=given_or(self.policy.layout, None))

    def compaction_layout(self) -> Buckets:
        """Return the buckets into which small ones are merged."""
        layout = self.layout
        return layout if isinstance(layout, Buckets) else Buckets()

    # --- consume ----------------------------------------------------------------------------------

    def consume(
        self,
        limit: int,
        max_bytes: int | None = None,
        timeout: float | None = 0.0,
        *,
        tag: str,
        ahead: bool = False,
        singly: bool = False,
    ) -> Consumed:
        """Reserve up to `limit` messages under `tag`, and return them.

        Waits up to `timeout` seconds (`None`: forever) for the first. Messages that failed too
        often, and records that cannot be read, move to the dead-letter queue. `max_bytes`: the most
        bytes of messages, though the first one may be larger. With `ahead` they are held under
        `unseen_tag(tag)`; with `singly`, each is in a record of its own, so that it can be handed
        out.

        If this raises, the tag may hold messages: `release` it, or let its lease end.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            # The first message is reserved however large it is.
            reserved = sum(self.reserve(tag, limit, None if limit == 1 else max_bytes, ahead=ahead).rows)
            if reserved:
                part = unseen_tag(tag) if ahead else seen_tag(tag)
                if singly and reserved > 1:  # a single one is handed out next, as a whole
                    unpack(self.store, self.name, part)
                found = self._read_usable(tag, part, reserved)
                if found.batches:
                    return found
                continue  # all of them are dead letters now
            left = end - time.monotonic()
            if left <= 0 or not (self.wait(left) or timeout is None):
                return Consumed(tag)

    def _read_usable(self, tag: str, part: str, rows: int) -> Consumed:
        """Return the messages that `part` has just reserved, without new dead letters."""
        rows -= self.move_exhausted(tag)
        batches = list(self.read(part, rows, check_json=True)) if rows else []
        return Consumed(tag, batches, sum(one.num_rows for one in batches) == rows)

    def reserve(
        self,
        tag: str,
        limit: int,
        max_bytes: int | None = None,
        *,
        partitions: int = 1,
        min_partitions: int = 1,
        before: int = MAX_TIME_MS,
        ahead: bool = False,
    ) -> Reserved:
        """Reserve messages for the lease of the policy: see `Store.reserve_bytes`."""
        return self.store.reserve_bytes(
            self.name, tag, limit, max_bytes, partitions=partitions, min_partitions=min_partitions,
            lease=self.lease, before=before, unseen=ahead,
        )  # fmt: skip

    def move_exhausted(self, tag: str) -> int:
        """Move messages of `tag` that had failed `max_tries` times to the dead-letter queue.

        Return their number. They failed before this reservation, so no error is known.
        """
        if self.max_tries is None:
            return 0
        reason = f"failed {plural(self.max_tries, 'time')}: it was rolled back, or its lease ended; no error is known"
        moved = self._move(tag, None, DeadLetterInfo(reason, history=self.history), min_tries=self.max_tries)
        if moved:
            log.warning("%d messages of %s failed too often: moved to %s", moved, self.name, self.dead_letter_queue)
        return moved

    def read(
        self,
        tag: str,
        rows: int | None = None,
        *,
        check_json: bool = False,
        before_settle: Callable[[int], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one tag (not of those below), in order, as MESSAGES batches.

        A record that cannot be read moves to the dead-letter queue: see `settle_damaged`. With
        `check_json`, so does a message of kind `json` whose payload is not JSON. `rows`: how many
        messages the tag holds, if that is known: it saves the request that finds no more.
        """
        seen = 0
        for page in self.store.read_reserved(self.name, tag, check_json=check_json):
            seen += count_rows(page.batch.column("id")) if page.damaged else page.batch.num_rows
            batch = self.settle_damaged(tag, page, before_settle) if page.damaged else page.batch
            yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))
            if rows is not None and seen >= rows:
                return

    def settle_damaged(
        self, tag: str, page: Records, before_settle: Callable[[int], None] | None = None
    ) -> pa.RecordBatch:
        """Move the damaged records of a page of one tag to the dead-letter queue.

        Return the other rows. The history keeps the records as it keeps other dead letters.
        `before_settle` is called first, with the number of their messages. May be repeated.
        """
        return dead_letter_damaged(
            self.store,
            self.name,
            tag,
            page,
            self.dead_letter_queue,
            history=self.history,
            before_settle=before_settle,
        )

    def wait(self, seconds: float) -> bool:
        """Wait until a message may be ready; return whether one may: see `Store.wait`."""
        ms = LONG_WAIT_MS if seconds == math.inf else round(seconds * 1000)
        return self.store.wait(self.name, ms, hint=True)

    # --- outcomes ---------------------------------------------------------------------------------

    def commit(self, tag: str, ids: Sequence[str] | None = None) -> int:
        """Remove messages of `tag` (only `ids`, if given), and return their number."""
        return self.store.commit(self.name, tag, ids, history=self.history)

    def roll_back(
        self, tag: str, ids: Sequence[str] | None = None, *, delay: int = 0, reason: str | None = None
    ) -> tuple[int, int]:
        """Roll back messages of `tag` (only `ids`, if given) as failed; they are due in `delay` ms.

        A message that has then failed `max_tries` times moves to the dead-letter queue instead,
        with `reason` in its headers. Return the numbers rolled back and moved. Each message goes
        one way or the other, atomically. Repeat the call if it fails.
        """
        moved = self.move_failed(tag, ids, reason=reason)
        return self.store.rollback(self.name, tag, ids, delay=delay), moved

    def move_failed(
        self, tag: str, ids: Sequence[str] | None = None, *, tries: int | None = None, reason: str | None = None
    ) -> int:
        """Move messages of `tag` that fail now for the last time to the dead-letter queue.

        Return their number. `tries`: the most tries that one of them had before, if that is known.
        """
        most = self.max_tries
        if most is None or (tries is not None and tries + 1 < most):
            return 0
        return self.dead_letter(tag, ids, reason=reason or f"failed {plural(most, 'time')}", min_tries=most - 1)

    def dead_letter(
        self,
        tag: str,
        ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        failed: int = 1,
        min_tries: int = 0,
    ) -> int:
        """Move messages of `tag` (only `ids`, if given) to the dead-letter queue.

        Return their number. `reason` becomes the header `x-error`. `failed` is added to their
        tries. Only those with at least `min_tries` tries move.
        """
        return self._move(tag, ids, DeadLetterInfo(reason, failed, self.history), min_tries=min_tries)

    def _move(self, tag: str, ids: Sequence[str] | None, letter: DeadLetterInfo, *, min_tries: int) -> int:
        dead = self.dead_letter_queue
        return self.store.move(self.name, dead, tag=tag, ids=ids, min_tries=min_tries, dead_letter=letter)

    def release(self, tag: str) -> int:
        """Put the messages of `tag` back, with their tries as they were; return their number."""
        return self.store.rollback(self.name, tag, failed=False)

    def renew(self, tag: str) -> int:
        """Restart the lease of the messages of `tag`, and return their number."""
        return self.store.renew(self.name, tag, self.lease)
