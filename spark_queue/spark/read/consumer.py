"""A consumer of a queue: it plans micro-batches, in the driver's reader process.

1. Spark calls `latestOffset`. The consumer reserves a batch, and answers with an offset that names its tags,
   `consumer/sequence.by/partition`. `by` is the number of this process, so no other process reserves under them. The
   reservation has a lease that ends.
2. Spark writes the offset to its log, and asks for the partitions. The batch is started, in the note of the consumer
   (see `Ownership`), and is held as the options say.
3. Spark asks for the next offset. All up to its `start` is durable in Spark's log now, so the batch is committed, if
   it is the one that was started last.

So the offset log and the queue differ by the batch in flight at most, and a restarted query finds its batch under
the same tags.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.accounting import Accounting
from spark_queue.spark.read.at_most_once import GIVEN_UP, given_up, planned_as
from spark_queue.spark.read.fetch import Share
from spark_queue.spark.read.lease_renewer import Keeper
from spark_queue.spark.read.leftovers import log_others, release_leftovers
from spark_queue.spark.read.offsets import VERSION, Offset, batch_of, check_offset, commit_named, tag_of
from spark_queue.spark.read.opening import opened
from spark_queue.spark.read.prefetch import Ahead
from spark_queue.spark.read.queue_state import QueueState
from spark_queue.spark.read.reserving import reserve_batch
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.ageing import remove_old_notes
from spark_queue.stores.services.dead_letters import set_history
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.poison import Isolation, Rules

log = logging.getLogger(__name__)

#: The lease (ms), until it is started, of a batch that is then held without an end. Spark writes a file in between.
UNSTARTED = 120_000


class Consumer:
    """The store, the place in the queue, and the heartbeat of one consumer."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._store = opened(options)
        name = options.consumer or uuid.uuid4().hex[:12]
        # A fresh checkpoint is a fresh epoch: messages that an older one still holds are not its own.
        self.initial: Offset = {
            "v": VERSION,
            "queue": self._queue,
            "consumer": f"{name}/{uuid.uuid4().hex[:6]}",
            "seq": 0,
        }
        self.planned = self.initial
        self._committed = 0
        self._before: int | None = None
        self._ownership: Ownership | None = None
        self._keeper: Keeper | None = None
        self._isolation: Isolation | None = None
        self._reserved: Offset | None = None  # the batch that this very process has reserved
        self._reserved_at = -math.inf  # when it began to (monotonic s)
        self._ahead: Ahead | None = None
        self._full: int | None = None  # the rows of a batch after which the next one is reserved ahead
        self._replayed = 0  # the batch that comes again since an earlier process has planned it
        self._accounting: Accounting | None = None
        self._started: Batch | None = None  # the batch that this very process has started last
        self._tidied = False  # whether leftovers of earlier processes were released
        self._busy = False
        self._state = QueueState(self._store, self._queue)

    def next(self, start: Offset, most: int, *, ahead: bool = False) -> Offset:
        """Commit up to `start` and reserve the next batch; return its end, or `start` if nothing is ready.

        `ahead`: if the batch is full, the one after it is reserved as soon as this one is planned.
        """
        self.commit(start)
        self.tidy(start)
        self._full = most if ahead else None
        rows = self.take(start, most, wait=self._options.wait_timeout)
        return self.reserved(start, rows) if rows else start

    def take(self, start: Offset, most: int, *, wait: int | None = None) -> list[int]:
        """Reserve the batch after `start`, and return its rows by partition; none if nothing is ready.

        `wait`: how long to wait for a message (ms).
        """
        tag = self._following(start)
        self._reserved_at = time.monotonic()
        rows = self._next_parked(tag)
        if not rows:
            rows = self._taken_ahead(tag)
        if not rows:
            if wait is not None and not self.wait(wait):
                self.idle()
                return []
            self._reserved_at = time.monotonic()
            rows = self._reserve(self._store, tag, most, self._before)
        if not rows:
            self._state.paused()
        return rows

    def reserved(self, start: Offset, rows: list[int]) -> Offset:
        """Return the offset of the batch after `start`, which this process has just reserved."""
        end: Offset = {**start, "v": VERSION, "seq": start["seq"] + 1, "by": self.number, "rows": rows}
        self._reserved = planned_as(end, self._options)
        return self._reserved

    def readable(self, start: Offset, rows: list[int]) -> list[int]:
        """Let what cannot be read of the batch after `start` become dead letters; return the rows that stay.

        With several inputs a task finds its messages by their place, so none may leave the batch later.
        """
        dead, history = self._options.dead(self._queue), self._options.history_ms
        tags = [f"{self._following(start)}/{part}" for part in range(len(rows))]
        stay = [sum(map(len, self._store.fetch(self._queue, tag, dead=dead, history=history))) for tag in tags]
        return stay if any(stay) else []

    def keep(self, start: Offset, rows: list[int], most: int) -> list[int]:
        """Release all but the first `most` messages of the batch after `start`; return the rows that stay.

        Released messages go back to their place; their tries do not change.
        """
        assert self._keeper is not None
        tag, kept = self._following(start), []
        if sum(rows) > most:
            self._keeper.check()
        for part, held in enumerate(rows):
            stays = min(held, most)
            most -= stays
            kept.append(stays)
            if stays < held:
                ids = self._ids(f"{tag}/{part}", stays) if stays else None
                self._store.rollback(self._queue, f"{tag}/{part}", ids, delay=None, failed=False)
        while kept and not kept[-1]:
            kept.pop()
        return kept

    def _ids(self, tag: str, first: int) -> list[str]:
        """Return the ids of the messages that a tag holds, from the `first` on."""
        found: list[str] = []
        for batch in self._store.look(self._queue, tag):
            found += batch.column("id").to_pylist()
        return found[first:]

    def wait(self, timeout: int) -> bool:
        """Wait until a message is ready, for `timeout` ms at most; return whether one is."""
        return self._before is not None or self._store.wait(self._queue, timeout)

    def ready(self, most: int) -> int:
        """Count the messages that are ready, up to `most`."""
        return self._store.ready(self._queue, most, **({} if self._before is None else {"before": self._before}))

    def idle(self) -> None:
        """Do what is due while no message is ready."""
        self._state.paused()

    def missing(self, end: Offset) -> int:
        """Count the messages of the batch that `end` ended that it no longer holds."""
        return sum(max(0, rows - held) for rows, held in zip(end["rows"], self._held(end), strict=True))

    def lies(self, end: Offset, *, again: bool = False) -> list[Share]:
        """Return where the messages of the batch that `end` ended lie, in their order.

        `again`: the batch comes again, and what it no longer holds is left out.
        """
        parts = self._held(end) if again else end["rows"]
        return [Share(f"{tag_of(end)}/{part}", rows, first=0) for part, rows in enumerate(parts) if rows]

    def _held(self, end: Offset) -> list[int]:
        """Count the messages that the batch that `end` ended holds, by partition."""
        tag = tag_of(end)
        held = {one.tag: one.rows for one in self._store.reservations(self._queue, tag)}
        return [held.get(f"{tag}/{part}", 0) for part in range(len(end["rows"]))]

    @contextmanager
    def watching(self) -> Iterator[Callable[[int], bool]]:
        """Return `wait` for another thread."""
        with open_store(self._options.url, patience=self._options.retry_timeout / 1000) as store:
            yield partial(store.wait, self._queue)

    def release(self, end: Offset) -> int:
        """Release the batch that `end` ended, and return the number of messages; their tries do not change."""
        assert self._keeper is not None
        self._keeper.check()
        return self._store.rollback(self._queue, tag_of(end), delay=None, failed=False)

    @property
    def number(self) -> int:
        """The number of this process among those of its consumer: a part of each of its tags."""
        assert self._ownership is not None
        return self._ownership.number

    def _following(self, offset: Offset) -> str:
        """The tag under which this process reserves the batch after `offset`."""
        return f"{offset['consumer']}/{Batch(offset['seq'] + 1, self.number)}"

    @property
    def _lease(self) -> int:
        """The lease (ms) of a batch until it is started."""
        return self._options.reserve_timeout or UNSTARTED

    def _next_parked(self, tag: str) -> list[int]:
        rows = self._isolation.next_parked(tag, self._lease) if self._isolation else 0
        return [rows] if rows else []

    def _reserve(self, store: Store, tag: str, most: int, before: int | None) -> list[int]:
        return reserve_batch(store, self._options, tag, most, lease=self._lease, before=before)

    def plan(self, start: Offset, end: Offset) -> list[Share]:
        """Start the batch from `start` to `end`, and return what its tasks fetch."""
        check_offset(start, self._options)
        self._own(end)  # `start` of batch 0 is what `initialOffset` says now: after a restart, another epoch
        self.planned = end
        if end["seq"] == start["seq"]:
            # Spark begins with a batch without messages: it counts, so its task notes what the query reads.
            return [] if end["seq"] else [Share(f"{tag_of(end)}/0", 0)]
        self.start(end)
        return self.hold(end)

    def hold(self, end: Offset) -> list[Share]:
        """Hold a batch that is started, or renew its lease, as the options say; return what its tasks fetch.

        Starting comes first: a process that lost its consumer must not hold messages without an end. A batch that
        comes again after a restart runs as before, is dropped (`given_up`), or is split if it fails repeatedly.
        """
        assert self._keeper is not None
        tag, parts = tag_of(end), end.get("rows", [])
        fresh = self._reserved == end
        if not fresh:
            if given_up(end, self._options):
                self._drop(end)
                return []
            if self._isolation and self._replayed != end["seq"]:
                self._isolation.run_again(tag)
            self._replayed = end["seq"]
        if self._options.reserve_timeout is None:
            self._store.renew(self._queue, tag, None)
        else:
            self._keeper.watch(tag, self._reserved_at if fresh else -math.inf)
        self._busy = True
        if fresh and self._full is not None and sum(parts) >= self._full:
            self._reserve_ahead(self._following(end), self._full)
        suspect = self._isolation is not None and self._isolation.parking
        return [Share(f"{tag}/{part}", rows if fresh else None, suspect) for part, rows in enumerate(parts) if rows]

    def start(self, end: Offset) -> None:
        """Note that the batch that `end` ended is started, unless that is noted: see `Ownership.start`."""
        self._own(end)
        assert self._ownership is not None
        if self._started != (batch := batch_of(end)):
            self._ownership.start(batch)
            self._started = batch

    def commit(self, end: Offset) -> None:
        """Remove the messages of the batch that `end` ended; those before it are removed already."""
        if self.check(end):
            self.remove(end)

    def check(self, end: Offset) -> bool:
        """Return whether the batch that `end` ended is still to be committed.

        Raises `CheckpointError` unless it was started last, `FencedError` if this process lost its consumer.
        """
        self._own(end)
        if end["seq"] <= self._committed:
            return False
        assert self._keeper is not None
        self._keeper.check_newest(batch_of(end))
        return True

    def remove(self, end: Offset) -> None:
        """Remove the messages of a batch for which `check` returned true."""
        retries = self._store.retries
        done = self._remove(end) if end.get("rows") else 0  # of several inputs, not each is in every batch
        self._committed = end["seq"]
        if self._reserved == end and self._store.retries == retries:
            assert self._accounting is not None
            self._accounting.add(end, done)

    def _remove(self, end: Offset) -> int:
        """Commit a batch, and return the number of messages removed."""
        assert self._keeper is not None
        tag, history = tag_of(end), self._options.history_ms
        if end.get("by"):
            done = self._store.commit(self._queue, tag, history=history)
        else:
            done = commit_named(self._store, end, history)
            self._store.rollback(self._queue, tag, failed=False)
        self._keeper.forget(tag_of(end))
        self._busy = False
        log.debug("committed %d messages of %s under %s", done, self._queue, tag)
        self._store.write_counts()  # a signal ends the process of a finished run, and leaves no time for that
        return done

    def _reserve_ahead(self, tag: str, most: int) -> None:
        """Reserve the batch after the planned one, unless parts of a failed one come first."""
        assert self._keeper is not None and self._ahead is not None
        if self._isolation is not None and self._isolation.parking:
            return
        # Messages that this batch releases one by one are not reserved before it has ended: a task that is tried
        # again releases them again, which must change nothing.
        now = self._store.now()
        self._keeper.watch(tag, time.monotonic())
        self._ahead.start(tag, most, now if self._before is None else min(now, self._before))

    def _taken_ahead(self, tag: str) -> list[int]:
        """Return the rows, by partition, that were reserved ahead under this tag."""
        assert self._keeper is not None and self._ahead is not None
        rows, began = self._ahead.take(tag)
        self._keeper.forget(tag)  # its lease is renewed no more: the batch may be held without an end soon
        if rows:
            self._reserved_at = began
        return rows

    def tidy(self, start: Offset) -> None:
        """Remove old notes, and release what earlier processes reserved beyond `start`."""
        if not self._tidied:
            self._tidied = True
            remove_old_notes(self._store)
            release_leftovers(self._store, self._queue, start)

    def _drop(self, end: Offset) -> None:
        """Commit a batch unread: with at-most-once it is not delivered a second time, even if it was in part only."""
        if rows := self._store.commit(self._queue, tag_of(end), history=self._options.history_ms):
            log.warning(GIVEN_UP, rows, self._queue)

    def stop_at_now(self) -> None:
        """Reserve only messages that are mature now, from now on."""
        self._before = self._store.now()

    def backlog(self) -> dict[str, Any]:
        """Return the place of this consumer and the sizes of the queue."""
        place = {key: value for key, value in self.planned.items() if key not in ("rows", "delivery", "places")}
        return place | self._state.report(self._busy)

    @property
    def holds_ahead(self) -> bool:
        """Whether `close` has messages to release."""
        return self._ahead is not None and self._ahead.holds

    def leave(self) -> None:
        """Note that this process is about to end: a query that is started now waits, and is not refused."""
        if self._ownership is not None:
            self._ownership.leave()

    def close(self) -> None:
        """Release what was reserved ahead, end the heartbeat and the connections.

        The batch whose offset Spark has stays reserved.
        """
        self.leave()
        if self._ahead is not None:
            self._ahead.close()
        if self._keeper is not None:
            self._keeper.stop()
        self._store.close()

    def _own(self, offset: Offset) -> None:
        """Check an offset of Spark's, and become the owner of its consumer, unless this process is."""
        check_offset(offset, self._options)
        if self._ownership is not None:
            return
        options, consumer = self._options, offset["consumer"]
        ownership = Ownership(self._store, self._queue, consumer)
        ownership.take(batch_of(offset))
        self._store.count(self._queue)  # a queue with a consumer exists
        set_history(self._store, self._queue, consumer.partition("/")[0], options.history_ms)
        if options.isolate_failures:
            dead = options.dead(self._queue)
            rules = Rules(options.retry_delay, options.reserve_timeout, options.max_tries, dead, options.history_ms)
            self._isolation = Isolation(self._store, self._queue, consumer, rules)
        parked = self._isolation.parked_tag if self._isolation else None
        self._keeper = Keeper(options, ownership, self._lease, parked if options.reserve_timeout else None)
        self._ahead = Ahead(options, ownership, self._reserve)
        self._ownership = ownership
        self.planned = offset
        self._accounting = Accounting(self._store, options, consumer)
        log_others(self._store, self._queue, consumer)
