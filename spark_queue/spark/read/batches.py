"""The batches of one consumer, in the process that runs it: the life of a batch, step by step.

1. `reserve`: the messages get the tag `consumer/sequence.by/partition`, and a limited lease. `by`
   is the number of this process, so no other process reserves under such a tag.
2. `offset`: the batch gets its offset, which Spark writes to its offset log. With exactly-once, the
   note of the consumer names the batch first.
3. `start`: the note of the consumer names the batch as the last one started (see `Ownership`).
4. `hold`: the batch gets the lease that the options set, and its tasks fetch it. A replayed batch
   begins here.
5. `check`, `remove`: Spark's log is past the batch. If it was started last, its messages are
   removed.

So the offset log and the queue differ by at most the batch in flight. A restarted query finds that
batch under the same tags.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from spark_queue.errors import FencedError, StoreError
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.abandoned import AbandonedEpochs
from spark_queue.spark.read.delivery import DROPPED_MESSAGE, is_dropped, is_noted, mark_delivery
from spark_queue.spark.read.fetch import FetchRange
from spark_queue.spark.read.lease_renewer import LeaseRenewer
from spark_queue.spark.read.leftovers import log_others, release_leftovers
from spark_queue.spark.read.loss_detector import LossDetector
from spark_queue.spark.read.offsets import OFFSET_VERSION, Offset, batch_of, batch_of_tag, commit_offset, tag_of
from spark_queue.spark.read.pacing import Stopwatch
from spark_queue.spark.read.prefetch import Prefetcher
from spark_queue.spark.read.reserver import Reserver
from spark_queue.stores.base import Store
from spark_queue.stores.services.ageing import remove_old_notes
from spark_queue.stores.services.dead_letters import note_settings
from spark_queue.stores.services.option_policy import stream_policy
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.poison import PoisonMessageHandler
from spark_queue.stores.support.patience import retrying_for

log = logging.getLogger(__name__)

#: A prefetched batch that exceeds its limit by this factor is released: the limit has changed.
OVERSIZE = 4

#: The size of the next batch is a guess until this number of batches has started. The first one of
#: a process does not show the time of a row, because it starts the workers.
GUESSED = 3

#: The lease (ms), until it is started, of a batch that then gets an unlimited lease, and the
#: shortest one of others. Until then, Spark only writes a file.
UNSTARTED_LEASE, SHORTEST_UNSTARTED_LEASE = 120_000, 30_000

#: How long (ms) to retry to note the end of a process: Spark waits for it.
LEAVE_TIMEOUT = 1_000


class Batches:
    """The batches of one consumer, `name/epoch`, which this process owns."""

    def __init__(self, store: Store, options: StreamOptions, last: Offset, waiting: Stopwatch) -> None:
        """Become the owner of a consumer. `last`: its last offset in the checkpoint.

        `waiting` measures how long it waits for a batch that is being prefetched.
        Raises `FencedError` if another process runs the consumer, `CheckpointError` if the
        checkpoint does not match the consumer's note.
        """
        self.queue = options.queue
        self._waiting = waiting
        self._store, self._options = store, options
        consumer = last["consumer"]
        self.ownership = Ownership(store, self.queue, consumer)
        self.ownership.take(batch_of(last), noted=is_noted(last))
        store.register(self.queue)  # it exists from now on
        name, outcomes = consumer.partition("/")[0], options.outcomes
        note_settings(store, self.queue, name, outcomes.history_ms, options.dead_letters.dead_letter_queue)
        self.isolation: PoisonMessageHandler | None = None
        if options.isolate_failures:
            self.isolation = PoisonMessageHandler(store.queue(self.queue, stream_policy(options)), consumer)
        parked = self.isolation.parked_tag if self.isolation and options.reserve_timeout else None
        self.lease_renewer = LeaseRenewer(options, self.ownership, self._lease, parked)
        self.reserver = Reserver(options, consumer, self._unstarted_lease)
        self.prefetcher = Prefetcher(options, self.ownership, self.reserver.reserve)
        self._loss_detector = LossDetector(store, options, consumer)
        self.abandoned = AbandonedEpochs(store, self.queue, consumer)
        self.leftovers_released = False  # those of earlier processes
        self.busy = False
        self._committed = 0
        self._reserved: Offset | None = None  # the batch that this process reserved last
        self._reserved_at = -math.inf  # when it began to do so (monotonic s)
        self._limit = 0  # that of the batch that this process reserved last
        self._prefetch_limits = (0, MAX_TIME_MS)  # `limit` and `before` of the batch to prefetch; 0: none
        self._started_batches = 0  # how many batches this process started
        self._started: Batch | None = None  # the batch that this process started last
        self._replayed_seq = 0  # the batch of an earlier process that was replayed last

    @property
    def number(self) -> int:
        """The number of this process among those of its consumer; it is part of each tag."""
        return self.ownership.number

    def tag_after(self, offset: Offset) -> str:
        """Return the tag under which this process reserves the batch after `offset`."""
        return f"{offset['consumer']}/{Batch(offset['seq'] + 1, self.number)}"

    @property
    def max_rows(self) -> int:
        """The most rows of the next batch: those that fit into memory, and that may be guessed."""
        memory = self.reserver.memory.rows
        return self.reserver.limit_guess(memory) if 0 < self._started_batches < GUESSED else memory

    @property
    def _lease(self) -> int:
        """The lease (ms) of a batch that is not held without end."""
        return self._options.reserve_timeout or UNSTARTED_LEASE

    @property
    def _unstarted_lease(self) -> int:
        """The lease (ms) of a batch until it is started.

        If this process dies before that, the next one gives the messages back with the tries that
        they had. The end of a lease would count as a failed try.
        """
        return max(self._lease, SHORTEST_UNSTARTED_LEASE)

    def clean_up(self, start: Offset) -> None:
        """Remove old notes, and release batches after `start` of earlier processes. Runs once.

        What abandoned epochs hold is released, too; that is repeated.
        """
        first = not self.leftovers_released
        if first:
            self.leftovers_released = True
            remove_old_notes(self._store)
            release_leftovers(self._store, self.queue, start)
        self.abandoned.release_when_due()
        if first:
            log_others(self._store, self.queue, start["consumer"])

    # --- 1. reserved

    def reserve(
        self,
        start: Offset,
        limit: int,
        *,
        before: int = MAX_TIME_MS,
        wait: Callable[[], bool] = lambda: True,
        prefetch: int = 0,
    ) -> list[int]:
        """Reserve the batch after `start`; return its rows by partition, none if nothing is ready.

        Parts of a failed batch come first, then the prefetched batch. Without these, it calls
        `wait`, which returns whether a message is ready. Then it reserves up to `limit` messages
        that are due by `before` (ms). `prefetch`: if this batch is full, reserve up to this number
        as soon as this one is held.
        """
        prefetched_limit, _ = self._prefetch_limits
        self._limit, self._prefetch_limits = limit, (prefetch, before)
        tag = self.tag_after(start)
        self._reserved_at = time.monotonic()
        rows = self._reserve_parked(tag)
        if not rows and (rows := self._take_prefetched(tag, limit)):
            self._limit = min(limit, prefetched_limit)
        if not rows and wait():
            tag = self.tag_after(start)
            self._reserved_at = time.monotonic()
            rows = self.reserver.reserve(self._store, tag, limit, before)
        return rows

    def _reserve_parked(self, tag: str) -> list[int]:
        rows = self.isolation.take_parked_group(tag, self._unstarted_lease) if self.isolation else 0
        return [rows] if rows else []

    def _take_prefetched(self, tag: str, limit: int) -> list[int]:
        """Return the rows, by partition, that were prefetched under this tag.

        If they are far more than `limit`, they are released, and none are returned. This process
        then gets another number, because no tag names two reservations.
        """
        with self._waiting:
            rows, began = self.prefetcher.take(tag)
        self.lease_renewer.forget(tag)  # `hold` may set an unlimited lease, which a renewal would end
        if sum(rows) > OVERSIZE * limit:
            self._store.rollback(self.queue, tag, delay=None, failed=False)
            self.ownership.renumber()
            return []
        if rows:
            self._reserved_at = began
        return rows

    # --- 2. in Spark's log

    def offset(self, start: Offset, rows: list[int], arrived: int) -> Offset:
        """Return the end offset of the batch after `start`, which this process just reserved.

        `arrived`: see `next_arrival`. Raises `FencedError` if this process lost the consumer.
        """
        seq = start["seq"] + 1
        end: Offset = {**start, "v": OFFSET_VERSION, "seq": seq, "by": self.number, "rows": rows, "arrived": arrived}
        self._reserved = mark_delivery(end, self._options)
        if is_noted(self._reserved):
            self.ownership.note_reserved(batch_of(end))
        return self._reserved

    # --- 3. started

    def is_started(self, end: Offset) -> bool:
        """Return whether the batch of `end` or a later one is started.

        Else no task has read the batch. Raises `FencedError` if this process lost the consumer.
        """
        started = self.ownership.check().started
        return started is not None and started.seq >= end["seq"]

    def start(self, end: Offset) -> None:
        """Record once that the batch of `end` is started: see `Ownership.start`."""
        if self._started != (batch := batch_of(end)):
            if self._reserved != end:
                self._check_committed_before(end)
            self.ownership.start(batch, noted=is_noted(end))
            self._started = batch
            self._started_batches += 1
            self.reserver.note_batch(sum(end.get("rows", [])))

    def _check_committed_before(self, end: Offset) -> None:
        """Raise `CheckpointError` if an earlier batch than that of `end` is started and still held.

        It was committed before that of `end` was reserved.
        """
        started = self.ownership.check().started
        for one in self._store.reservations(self.queue, end["consumer"]):
            _, batch = batch_of_tag(one.tag)
            if batch is not None and batch.seq < end["seq"] and (one.until is None or batch == started):
                raise self.ownership.went_back(batch_of(end), batch)

    # --- 4. held, while its tasks work on it

    def hold(self, end: Offset) -> list[FetchRange]:
        """Set the lease of a started batch by the options; return the ranges that its tasks fetch.

        Returns no range if a replayed batch is dropped. Call `start` first: a process that lost its
        consumer must not set an unlimited lease.
        """
        tag, parts = tag_of(end), end.get("rows", [])
        fresh = self._reserved == end
        if not fresh and not self._prepare_replay(end):
            return []
        if self._options.reserve_timeout is None:
            self._store.renew(self.queue, tag, None)
        else:
            lasts = fresh and self._unstarted_lease == self._lease
            self.lease_renewer.watch(tag, self._reserved_at if lasts else -math.inf)
        self.busy = True
        if fresh:
            self._prefetch(end)
        suspect = self.isolation is not None and self.isolation.may_have_parked
        return [
            FetchRange(f"{tag}/{part}", rows if fresh else None, suspect) for part, rows in enumerate(parts) if rows
        ]

    def _prepare_replay(self, end: Offset) -> bool:
        """Prepare a batch that is replayed after a restart, and return whether it runs.

        It runs as before, is dropped (`is_dropped`), or is split if it fails repeatedly.
        """
        tag = tag_of(end)
        if is_dropped(end, self._options):
            if rows := self._store.commit(self.queue, tag, history=self._options.outcomes.history_ms):
                log.warning(DROPPED_MESSAGE, rows, self.queue)
            return False
        if self.isolation and self._replayed_seq != end["seq"]:
            self.isolation.handle_rerun(tag, self.ownership.deaths)
        self._replayed_seq = end["seq"]
        return True

    def _prefetch(self, end: Offset) -> None:
        """Prefetch the batch after a full one, unless parts of a failed batch come first."""
        limit, before = self._prefetch_limits
        if not limit or (self.isolation and self.isolation.may_have_parked):
            return
        if not self.reserver.is_full(sum(end.get("rows", [])), self._limit):
            return
        # Only messages that are due by now, so none that this batch releases one by one: a retried
        # task releases these again, which must change nothing.
        before = min(before, self._store.now())
        if self._started_batches < GUESSED:
            limit = self.reserver.limit_guess(limit)
            self._prefetch_limits = limit, before
        tag = self.tag_after(end)
        self.lease_renewer.watch(tag, time.monotonic(), self._unstarted_lease)
        self.prefetcher.start(tag, limit, before)

    # --- 5. removed

    def check(self, end: Offset) -> bool:
        """Return whether the batch of `end` is not committed yet.

        Raises `CheckpointError` unless it was started last, `FencedError` if this process lost its
        consumer.
        """
        if end["seq"] <= self._committed:
            return False
        self.lease_renewer.check_newest(batch_of(end))
        return True

    def remove(self, end: Offset) -> None:
        """Remove the messages of a batch for which `check` returned true.

        Raises `FencedError` if other consumers took some of them.
        """
        retries = self._store.retries
        # One of several inputs may have no messages in a batch.
        removed = self._remove(end) if end.get("rows") else 0
        self._committed = end["seq"]
        if self._reserved == end and self._store.retries == retries:
            self._loss_detector.add(end, removed)

    def _remove(self, end: Offset) -> int:
        """Commit a batch, and return the number of messages removed."""
        tag, history = tag_of(end), self._options.outcomes.history_ms
        if end.get("by"):
            removed = self._store.commit(self.queue, tag, history=history)
        else:
            removed = commit_offset(self._store, end, history)
            self._store.rollback(self.queue, tag, failed=False)
        self.lease_renewer.forget(tag)
        self.busy = False
        log.debug("committed %d messages of %s under %s", removed, self.queue, tag)
        self._store.write_counts()  # Spark ends the process of a finished run with a signal
        return removed

    def leave(self) -> None:
        """Note that this process ends in order, so that its batch does not count as its death.

        If that fails, or takes long, it does.
        """
        try:
            with retrying_for(LEAVE_TIMEOUT):
                self.ownership.leave()
        except FencedError:
            pass  # another process is the owner
        except StoreError as error:
            log.warning("could not note the end of this process: %s", error)

    def close(self) -> None:
        """Release the prefetched batch, and stop the heartbeat.

        Batches in Spark's log stay reserved.
        """
        self.prefetcher.close()
        self.lease_renewer.stop()
