"""A consumer of a queue: what plans micro-batches, in the driver's reader process.

It reserves a batch before it answers Spark's `latestOffset`, under the tags `consumer/sequence/partition` that the
offset names. When Spark asks for the next offset, all up to its `start` is durable in Spark's own log; that is when a
batch is committed, so the offset log and the queue can never disagree by more than the batch in flight, and a
restarted query finds its batch under the same tags.
"""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypedDict

from spark_queue.errors import CheckpointError
from spark_queue.options import QueueOptions
from spark_queue.spark.ahead import Ahead
from spark_queue.spark.backlog import Backlog
from spark_queue.spark.delivery import GIVEN_UP, given_up, planned_as
from spark_queue.spark.keeper import Keeper
from spark_queue.spark.share import Share, lost
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.existence import expect
from spark_queue.store.isolation import Isolation, Rules
from spark_queue.store.owner import Ownership
from spark_queue.store.policy import bury_exhausted, set_history, settled

log = logging.getLogger(__name__)

OFFSET_VERSION = 1

#: ms for which it is believed, of a queue in which nothing is ready, whether it is paused: signals tell sooner, and
#: whoever finds something that is ready asks.
PAUSE_KNOWN = 10_000


class Offset(TypedDict, total=False):
    """A place in the life of one consumer: `seq` batches were reserved, the last one of `rows` by partition.

    `delivery`: what the last batch was planned as, where that is at most once. `places`: of a log beside other
    inputs, see `LogInput`.
    """

    v: int
    queue: str
    consumer: str
    seq: int
    rows: list[int]
    delivery: str
    places: list[dict[str, Any]]


def opened(options: QueueOptions) -> Store:
    """Return the store of a query. If its queue does not exist, raise `OptionError` or warn, by `failIfMissing`."""
    fail = bool(options.fail_if_missing)
    store = open_store(options.url, patience=options.retry_timeout / 1000, create=not fail)
    try:
        expect(store, options.queue or "", fail=fail)
    except BaseException:
        store.close()
        raise
    return store


class Consumer:
    """The store, the place in the queue, and the signs of life of one consumer."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._store = opened(options)
        name = options.consumer or uuid.uuid4().hex[:12]
        # A fresh checkpoint is a fresh epoch: what an older one still holds must not be mistaken for its own.
        self.initial: Offset = {
            "v": OFFSET_VERSION,
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
        self._settled_before = self._missed = 0
        self._first: int | None = None  # the batch that an earlier process may have been reserving
        self._strays_at = math.inf  # when to look for what one that stood still has reserved since
        self._busy = self._paused = False
        self._backlog = Backlog(self._sizes)

    def next(self, start: Offset, most: int, *, ahead: bool = False) -> Offset:
        """Commit up to `start`, reserve the next batch; give where that leads, or `start` if nothing is ready.

        `ahead`: where the batch turns out to be full, the one after it is reserved as soon as this one is planned.
        """
        self.commit(start)
        self._full = most if ahead else None
        rows = self.take(start, most, wait=self._options.wait_timeout)
        return self.reserved(start, rows) if rows else start

    def take(self, start: Offset, most: int, *, wait: int | None = None) -> list[int]:
        """Reserve the batch after `start`, and give its rows by partition; none where nothing is ready.

        What is held for that batch already, it is, and no more. `wait`: for so many ms, if need be.
        """
        seq = start["seq"] + 1
        looked = self._first is not None  # else an earlier process may hold the batch, though nothing is ready
        if self._first is None:
            self._first = seq
        tag = f"{start['consumer']}/{seq}"
        self._reserved_at = time.monotonic()
        rows = self._next_parked(seq)
        if not rows:
            rows = self._taken_ahead(tag)
        if not rows:
            if wait is not None and looked and not self.wait(wait):
                self.idle(start)
                return []
            self._reserved_at = time.monotonic()
            rows = self._reserve(self._store, tag, most, self._before)
        if not rows:
            self._look_whether_paused()
        return rows

    def reserved(self, start: Offset, rows: list[int]) -> Offset:
        """The offset of the batch after `start`, which this process has reserved just now."""
        end: Offset = {**start, "seq": start["seq"] + 1, "rows": rows}
        self._reserved = planned_as(end, self._options)
        return self._reserved

    def keep(self, start: Offset, rows: list[int], most: int) -> list[int]:
        """Of the batch after `start`, give back what comes after its first `most` messages; give the rows that stay.

        They go back to their place, and not as failed.
        """
        assert self._keeper is not None
        tag, kept = f"{start['consumer']}/{start['seq'] + 1}", []
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
        """Those of the messages that a tag holds, from the `first` on."""
        found: list[str] = []
        for batch in self._store.fetch(self._queue, tag):
            found += batch.column("id").to_pylist()
        return found[first:]

    def wait(self, timeout: int) -> bool:
        """Sleep until a message may be taken, `timeout` ms at most; give whether one may."""
        return self._before is not None or self._store.wait(self._queue, timeout)

    def ready(self, most: int) -> int:
        """How many messages may be taken, counted up to `most`."""
        return self._store.ready(self._queue, most, **({} if self._before is None else {"before": self._before}))

    def idle(self, start: Offset) -> None:
        """Look after what one looks after while there is nothing to take."""
        self._look_for_strays(start["seq"] + 1)
        self._look_whether_paused()

    def holds_next(self, start: Offset) -> bool:
        """Whether messages are held for the batch after `start`."""
        return bool(self._store.reservations(self._queue, f"{start['consumer']}/{start['seq'] + 1}"))

    def missing(self, end: Offset) -> int:
        """How many messages of the batch that `end` ended are not held any more."""
        tag = tag_of(end)
        held = {one.tag: one.rows for one in self._store.reservations(self._queue, tag)}
        return sum(max(0, rows - held.get(f"{tag}/{part}", 0)) for part, rows in enumerate(end["rows"]))

    def lies(self, end: Offset) -> list[Share]:
        """Where the messages of the batch that `end` ended lie, in their order."""
        return [Share(f"{tag_of(end)}/{part}", rows, first=0) for part, rows in enumerate(end["rows"]) if rows]

    @contextmanager
    def watching(self) -> Iterator[Callable[[int], bool]]:
        """What `wait` does, for another thread."""
        with open_store(self._options.url, patience=self._options.retry_timeout / 1000) as store:
            yield partial(store.wait, self._queue)

    def release(self, end: Offset) -> int:
        """Give the batch that `end` ended back, each message to its place, and not as failed; give their number."""
        assert self._keeper is not None
        self._keeper.check()
        return self._store.rollback(self._queue, tag_of(end), delay=None, failed=False)

    def _next_parked(self, seq: int) -> list[int]:
        rows = self._isolation.next_parked(seq) if self._isolation else 0
        return [rows] if rows else []

    def _reserve(self, store: Store, tag: str, most: int, before: int | None) -> list[int]:
        """Reserve a batch without messages that have failed too often."""
        options = self._options
        partitions, least = options.partitions(cores())
        while True:
            rows = store.reserve(
                self._queue,
                tag,
                most,
                partitions=partitions,
                least=least,
                lease=options.reserve_timeout,
                **({} if before is None else {"before": before}),
            )
            if not rows or options.max_tries is None:
                return rows
            dead = options.dead(self._queue)
            buried = bury_exhausted(store, self._queue, tag, options.max_tries, dead, options.history_ms)
            if not buried:
                return rows
            log.warning("%d messages of %s failed too often: moved to %s", buried, self._queue, dead)
            held = {one.tag: one.rows for one in store.reservations(self._queue, tag)}
            if held:
                return [held.get(f"{tag}/{partition}", 0) for partition in range(len(rows))]

    def plan(self, start: Offset, end: Offset) -> list[Share]:
        """What the tasks of a batch fetch; from now on its lease is renewed.

        A batch that this process has reserved needs no store for that. One that comes again after a restart is run
        again as it was, dropped (`given_up`), or split, if it fails again and again.
        """
        self._check(start)
        self._own(end)  # `start` of batch 0 is what `initialOffset` says now: after a restart, another epoch
        self.planned = end
        if end["seq"] == start["seq"]:
            return []
        tag, parts = tag_of(end), end.get("rows", [])
        fresh = self._reserved == end
        runs = 1
        if not fresh:
            if given_up(end, self._options):
                self._drop(end)
                return []
            if self._isolation and self._replayed != end["seq"]:
                runs = self._isolation.run_again(end["seq"])
            self._replayed = end["seq"]
        assert self._keeper is not None
        self._keeper.watch(tag, self._reserved_at if fresh else -math.inf)
        self._busy = True
        following = f"{end['consumer']}/{end['seq'] + 1}"
        if not fresh:
            self._keeper.watch(following)  # an earlier process may have reserved it ahead
        elif self._full is not None and sum(parts) >= self._full:
            self._reserve_ahead(following, self._full)
        return [Share(f"{tag}/{part}", rows if fresh else None, runs > 1) for part, rows in enumerate(parts) if rows]

    def commit(self, end: Offset) -> None:
        """Remove the messages of the batch that `end` ended; those before it are removed already."""
        self._own(end)
        self._commit(end)

    def _commit(self, end: Offset) -> None:
        seq = end["seq"]
        if seq <= self._committed or not end.get("rows"):  # of several inputs, not each is in every batch
            return
        assert self._keeper is not None
        self._keeper.check()
        retries = self._store.retries
        done = self._remove(end)
        self._keeper.forget(tag_of(end))
        self._busy = False
        self._committed = seq
        log.debug("committed %d messages of %s under %s", done, self._queue, tag_of(end))
        self._store.write_counts()  # a run that is over is ended by a signal, which leaves no time for that
        if self._reserved == end and self._store.retries == retries:
            self._account(end, done)

    def _remove(self, end: Offset) -> int:
        """Commit a batch, and give the number of messages removed."""
        tag, history = tag_of(end), self._options.history_ms
        if self._first is not None and end["seq"] > self._first:
            return self._store.commit(self._queue, tag, history=history)
        done = commit_named(self._store, end, history)
        self._store.rollback(self._queue, tag, failed=False)
        return done

    def _reserve_ahead(self, tag: str, most: int) -> None:
        """Take the batch after the one that is planned, unless parts of one that failed come first."""
        assert self._keeper is not None and self._ahead is not None
        if self._isolation is not None and self._isolation.parking:
            return
        # What this batch gives back itself, message by message, is not taken before it has ended: to give it back
        # once more, as a task does that is tried again, must change nothing.
        now = self._store.now()
        self._keeper.watch(tag, time.monotonic())
        self._ahead.start(tag, most, now if self._before is None else min(now, self._before))

    def _taken_ahead(self, tag: str) -> list[int]:
        """What was reserved under this tag while the last batch was worked on, by partition."""
        assert self._keeper is not None and self._ahead is not None
        rows, began = self._ahead.take(tag)
        if rows:
            self._reserved_at = began
        else:
            self._keeper.forget(tag)
        return rows

    def _look_for_strays(self, seq: int) -> None:
        """Give back what a process that stood still has reserved for batches that were finished meanwhile."""
        if time.monotonic() < self._strays_at:
            return
        self._strays_at = math.inf
        consumer = self.planned["consumer"]
        for one in self._store.reservations(self._queue, consumer):
            number = one.tag.removeprefix(f"{consumer}/").partition("/")[0]
            if number.isdigit() and int(number) < seq:
                given = self._store.rollback(self._queue, one.tag, failed=False)
                log.warning(
                    "%d messages of %s were left reserved under %s by an earlier process: released",
                    given,
                    self._queue,
                    one.tag,
                )

    def _account(self, end: Offset, done: int) -> None:
        """Raise `FencedError` where messages of a batch of ours were lost to others while we worked on it."""
        self._missed += sum(end["rows"]) - done
        if self._missed <= 0:
            return
        name = end["consumer"].partition("/")[0]
        gone = self._missed - (settled(self._store, self._queue, name) - self._settled_before)
        if gone > 0:
            self._missed -= gone
            raise lost(self._options, gone, sum(end["rows"]), tag_of(end))

    def _drop(self, end: Offset) -> None:
        """At most once: what was delivered once, perhaps in part, is not delivered again."""
        if rows := self._store.commit(self._queue, tag_of(end), history=self._options.history_ms):
            log.warning(GIVEN_UP, rows, self._queue)

    def stop_at_now(self) -> None:
        """Take nothing from now on that matures later than now."""
        self._before = self._store.now()

    def backlog(self) -> dict[str, Any]:
        """The place of this consumer and the sizes of the queue."""
        place = {key: value for key, value in self.planned.items() if key not in ("rows", "delivery", "places")}
        return place | self._backlog.seen(self._busy) | {"paused": self._look_whether_paused()}

    def _sizes(self) -> dict[str, Any]:
        sizes = self._store.sizes(self._queue)
        return {
            "ready": sizes.ready,
            "scheduled": sizes.scheduled,
            "reserved": sizes.reserved,
            "oldestReadyAgeMs": sizes.oldest_ready_age,
        }

    def _look_whether_paused(self) -> bool:
        """Whether the queue is paused, as the store knows it; the log tells when that begins."""
        paused = self._store.paused(self._queue, known=PAUSE_KNOWN)
        if paused and not self._paused:
            log.warning("queue %s is paused: nothing is taken from it until it is resumed", self._queue)
        self._paused = paused
        return paused

    @property
    def holds_ahead(self) -> bool:
        """Whether `close` has something to give back."""
        return self._ahead is not None and self._ahead.holds

    def leave(self) -> None:
        """Say that this process is about to end: a query that is started again now waits, and is not refused."""
        if self._ownership is not None:
            self._ownership.leave()

    def close(self) -> None:
        """Give back what was reserved ahead, end the signs of life and the connections.

        What Spark was told of stays reserved.
        """
        self.leave()
        if self._ahead is not None:
            self._ahead.close()
        if self._keeper is not None:
            self._keeper.stop()
        self._store.close()

    def _own(self, offset: Offset) -> None:
        """Check an offset of Spark's, and become the owner of the consumer it names, unless we are."""
        self._check(offset)
        if self._ownership is not None:
            return
        options, consumer = self._options, offset["consumer"]
        ownership = Ownership(self._store, self._queue, consumer)
        ownership.take()
        self._store.count(self._queue)  # what had a consumer exists
        set_history(self._store, self._queue, consumer.partition("/")[0], options.history_ms)
        if options.isolate_failures:
            dead = options.dead(self._queue)
            rules = Rules(options.retry_delay, options.reserve_timeout, options.max_tries, dead, options.history_ms)
            self._isolation = Isolation(self._store, self._queue, consumer, rules)
        parked = self._isolation.parked_tag if self._isolation else None
        self._keeper = Keeper(options, ownership, parked)
        self._ahead = Ahead(options, ownership, self._reserve)
        self._ownership = ownership
        self.planned = offset
        self._strays_at = time.monotonic() + options.retry_timeout / 1000
        self._settled_before = settled(self._store, self._queue, consumer.partition("/")[0])
        self._tell_of_others(consumer)

    def _check(self, offset: Offset) -> None:
        if offset.get("v") != OFFSET_VERSION:
            raise CheckpointError(
                f"the checkpoint of the query on queue {self._queue!r} holds an offset of version "
                f"{offset.get('v')!r}, this version of spark_queue reads {OFFSET_VERSION}: run it with the version "
                "that wrote it, or start with a new checkpoint",
                queue=self._queue,
            )
        if "segment" in offset:
            raise CheckpointError(
                f"the checkpoint is that of a query on queue {self._queue!r} with mode=log: set mode=log, or start "
                "with a new checkpoint",
                queue=self._queue,
            )
        if offset.get("queue") != self._queue:
            raise CheckpointError(
                f"the checkpoint is that of a query on queue {offset.get('queue')!r}, but option 'queue' is "
                f"{self._queue!r}: a query keeps its queue, another queue needs a new checkpoint",
                queue=self._queue,
            )
        name = offset["consumer"].partition("/")[0]
        if self._options.consumer not in (None, name):
            raise CheckpointError(
                f"the checkpoint is that of consumer {name!r}, but option 'consumer' is {self._options.consumer!r}: "
                "set the same, or start with a new checkpoint",
                consumer=name,
            )

    def _tell_of_others(self, consumer: str) -> None:
        """Say what earlier epochs of this consumer hold: nobody works on it, and nobody gives it back unasked."""
        name = consumer.partition("/")[0]
        held: Counter[str] = Counter()
        for one in self._store.reservations(self._queue, name):
            held["/".join(one.tag.split("/")[:2])] += one.rows
        del held[consumer]
        for other, rows in held.items():
            log.warning(
                "consumer %s with another checkpoint still holds %d messages of %s; to release them: "
                "spark-queue release URL %s %s",
                other, rows, self._queue, self._queue, other,
            )  # fmt: skip


def commit_named(store: Store, end: Offset, history: int) -> int:
    """Commit just what an offset names, and give the number of messages removed.

    A process that stood still may have gone on reserving this batch after its successor had planned it: what the
    offset does not name was never worked on.
    """
    parts = [part for part, rows in enumerate(end.get("rows", [])) if rows]
    return sum(store.commit(end["queue"], f"{tag_of(end)}/{part}", history=history) for part in parts)


def cores() -> int:
    """The cores that this process may use; macOS does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tag_of(offset: Mapping[str, Any]) -> str:
    """The tag under which the batch that this offset ended was reserved, with those below it."""
    return f"{offset['consumer']}/{offset['seq']}"
