"""No false alarms: after each of these events a query goes on without an error, and loses nothing.

Queries run without Spark here. What depends on Spark itself is in read/test_stream.py,
test_delivery.py and tests/chaos.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from spark_queue import CheckpointError, FencedError, Queue, StoreError, open_store
from spark_queue.admin import release, set_ledger
from spark_queue.spark.read.offsets import Offset
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.services.ledger import delete_sink
from spark_queue.stores.types import queue_note_key
from tests.spark.drive import Batch, Query, payloads, source
from tests.spark_session import SPARK

MOST, LEAST, EXACTLY = DELIVERIES = "at-most-once", "at-least-once", "exactly-once"


class Died(Exception):
    """Ends a run of a query."""


class Moved:
    """A query that moves numbers to another queue, exactly once. It dies around a write."""

    def __init__(self, url: str, name: str, **options: str) -> None:
        self.url, self.out = url, f"{name}.out"
        self.sink = {"url": url, "queue": self.out}
        self.seen: list[list[int]] = []  #: the numbers of each batch that was run
        self.dies: dict[int, str] = {}  #: batch → "before" or "after" it is written
        usual = {"url": url, "queue": name, "maxRecordsPerTrigger": "10", "numPartitions": "1"}
        self.query = Query(self.work, **usual | options)

    def work(self, batch: Batch) -> None:
        self.seen.append([one["n"] for one in batch.payloads])
        when = self.dies.pop(batch.number, "")
        if when == "before":
            raise Died
        batch.write(**self.sink)
        if when == "after":
            raise Died

    def run(self, **how: bool) -> None:
        """Run to the end, or until it dies."""
        expected = bool(self.dies)
        try:
            self.query.run(**how)
        except Died:
            assert expected and not self.dies
        else:
            assert not expected, "it was to die"

    def push(self, *numbers: int) -> None:
        with Queue(self.url, self.query.options["queue"]) as queue:
            queue.push_many([{"n": n} for n in numbers])

    @property
    def written(self) -> list[int]:
        return sorted(one["n"] for one in payloads(self.url, self.out))

    @property
    def left(self) -> int:
        with open_store(self.url) as store:
            return store.sizes(self.query.options["queue"]).total


@pytest.fixture
def moving(any_url, name):
    """Make a query from a queue of 30 numbers to another one."""
    made: list[Moved] = []

    def make(**options):
        made.append(Moved(any_url, name, **options))
        made[-1].push(*range(30))
        return made[-1]

    yield make
    with open_store(any_url) as store:
        store.drop(f"{name}.out")
        for one in made:
            delete_sink(store, one.query.id)


# --- other options --------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["within a batch", "between batches"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"numPartitions": "1"}, {"numPartitions": "4"}),
        ({"numPartitions": "4"}, {"numPartitions": "1"}),
        ({"numPartitions": "1"}, {"numPartitions": "", "minPartitions": "3"}),
        ({"maxRecordsPerTrigger": "10"}, {"maxRecordsPerTrigger": "3"}),
        ({"maxRecordsPerTrigger": "10"}, {"maxRecordsPerTrigger": "100"}),
        ({"reserveTimeout": "1h"}, {"reserveTimeout": "2m"}),
        ({"isolateFailures": "true"}, {"isolateFailures": "false", "reserveAhead": "false"}),
    ],
    ids=lambda one: ",".join(map("=".join, one.items())),
)
def test_other_options(moving, before, after, moment):
    moved = moving(**before)
    moved.dies = {1: "before"} if moment == "within a batch" else {1: "after"}
    moved.run()
    if moment == "between batches":
        moved.query.finished = 2  # Spark has noted that it was written
    moved.query.options = {key: one for key, one in (moved.query.options | after).items() if one}
    moved.run()
    if moment == "within a batch":
        assert moved.seen[1] == moved.seen[2] == list(range(10, 20)), "the batch is the same"
    assert (moved.written, moved.left) == (list(range(30)), 0)


@pytest.mark.parametrize("after", DELIVERIES)
@pytest.mark.parametrize("before", DELIVERIES)
@pytest.mark.parametrize("died", ["before", "after"])
def test_another_delivery_of_the_source(moving, before, after, died):
    moved = moving(delivery=before)
    moved.dies = {1: died}
    moved.run()
    moved.query.options["delivery"] = after
    moved.run()
    given_up = died == "before" and MOST in (before, after)
    assert moved.written == [n for n in range(30) if not (given_up and 10 <= n < 20)]
    assert moved.left == 0


# --- another version of Spark ---------------------------------------------------------------------


@pytest.mark.parametrize("died", ["before", "after"])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("first", ["old", "new"])
def test_another_version_of_spark(moving, first, at, died):
    """Spark 4.0 and 4.1 ask without a start, for empty partitions first. It goes there and back."""
    moved, old = moving(delivery=EXACTLY), first == "old"
    for calls in (old, not old, old):
        if calls is old and not moved.seen:
            moved.dies = {at: died}
        moved.run(old=calls)
        moved.push(*range(len(moved.seen) * 100, len(moved.seen) * 100 + 10))
    moved.run(old=old)
    assert len(moved.written) == len(set(moved.written)) == 60
    assert moved.left == 0


# --- a lease that ended ---------------------------------------------------------------------------


def rival_takes(url, name, count):
    """End all leases, and let another consumer commit some messages; return their numbers."""
    with open_store(url) as store, Queue(url, name) as rival:
        for one in store.reservations(name):
            if one.until is not None:
                end_lease(store, name, one.tag)
        held = rival.reserve(count)
        assert rival.commit(*held) == len(held)
        return [one.payload["n"] for one in held]


@pytest.mark.parametrize("taken", [4, 100])
@pytest.mark.parametrize("died", ["before", "after"])
def test_a_lease_that_ended_while_a_batch_was_worked_on(moving, died, taken):
    """The batch comes again with fewer rows, or with none."""
    moved = moving(delivery=LEAST)
    moved.dies = {1: died}
    moved.run()
    others = rival_takes(moved.url, moved.query.options["queue"], taken)
    moved.run()
    assert not set(moved.seen[2]) & set(others), "another consumer has these"
    found = Counter([*moved.written, *others])
    assert set(found) == set(range(30)) and moved.left == 0
    twice = {n for n, times in found.items() if times > 1}
    assert twice <= (set(range(10, 20)) if died == "after" else set()), "at least once, of rows that had been written"


@pytest.mark.parametrize("taken", [4, 100])
@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("log", ["has the batch", "has lost the batch"])
def test_a_lease_that_ended_before_a_batch_was_started(moving, delivery, log, taken):
    moved = moving(delivery=delivery)
    query, name = moved.query, moved.query.options["queue"]
    moved.dies = {0: "after"}
    moved.run()
    query.finished = 1
    data_source = source(query.options)
    reader = data_source.streamReader(data_source.schema())
    end = reader.latestOffset(query.offsets[-1], reader.getDefaultReadLimit() if SPARK >= (4, 2) else None)
    reader.stop()
    query.dies()
    if log == "has the batch":
        query.offsets.append(end)
    others = rival_takes(moved.url, name, taken)
    moved.run()
    assert sorted(moved.written + others) == list(range(30)) and moved.left == 0


# --- release --force ------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("then", ["it fails, and is started again", "it hangs, while another process works"])
def test_a_release_by_force(moving, delivery, then):
    """As docs/operations.md says: the query fails. Restarted with its checkpoint, it goes on."""
    moved = moving(delivery=delivery, consumer="etl", reserveAhead="false")
    query, name = moved.query, moved.query.options["queue"]
    work, hangs = query.work, []

    def released(batch):
        work(batch)
        query.work = work
        assert release(moved.url, name, "etl", force=True) == 10
        if then == "it hangs, while another process works":
            other = Query(work, **query.options)
            other.id, other.offsets = query.id, list(query.offsets)
            other.run()
            hangs.append(other)

    query.work = released
    with pytest.raises(FencedError, match=r"it was released manually|has taken over"):
        query.run()
    query = hangs[0] if hangs else query
    moved.query = query
    moved.push(30)
    moved.run()
    assert set(moved.written) == set(range(31)), "nothing is lost"
    assert len(moved.written) == 41, "the batch that was released had been written, and comes again"
    assert moved.left == 0


# --- another guarantee or target of the sink ------------------------------------------------------


@pytest.mark.parametrize("change", ["guarantee", "target"])
def test_another_guarantee_or_target_of_the_sink_is_refused_until_the_ledger_is_set(moving, tmp_path, change):
    moved = moving(delivery=EXACTLY)
    if change == "guarantee":
        moved.sink["delivery"] = LEAST
    moved.dies = {1: "after"}
    moved.run()
    moved.query.finished = 2
    before = moved.written
    moved.sink = {"url": moved.url if change == "guarantee" else f"sqlite:///{tmp_path}/other.db", "queue": moved.out}
    with pytest.raises(CheckpointError, match="there is no ledger, so it is unknown whether batch 1 was") as refused:
        moved.run()
    said = re.search(r"spark-queue ledger set URL (\S+) (\d+)", str(refused.value))
    assert said is not None
    assert set_ledger(moved.sink["url"], said[1], int(said[2])) is None
    moved.run()
    there = sorted(one["n"] for one in payloads(moved.sink["url"], moved.out))
    assert there == (list(range(30)) if change == "guarantee" else list(range(20, 30)))
    assert before == list(range(20)) and moved.left == 0


# --- the version before ---------------------------------------------------------------------------


def old_note(store: Store, queue: str, consumer: str, **owner: object) -> None:
    """Write the note of a consumer as version 1 did: its owner, and nothing else."""
    gone = {"token": "t", "host": "elsewhere", "boot": "", "pid": 1, "started": 1, "until": 1, "leaves": False}
    store.set_note(queue_note_key(queue, "consumer", consumer), {"v": 1, **gone, **owner}, 0)


def old_check(store: Store, queue: str, consumer: str, token: str) -> None:
    """Check the note as a process of version 1 does, before it commits and at each heartbeat."""
    note = store.note(queue_note_key(queue, "consumer", consumer))
    assert note is not None
    if note.value.get("token") == token:
        return
    if note.value.get("v") != 1:
        raise StoreError("upgrade spark_queue")
    raise AssertionError("a process of version 1 would go on, or end with another error")


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("batch", ["is under way", "is done"])
def test_a_running_process_of_the_version_before(moving, delivery, batch, caplog):
    """The new process takes over; the old one stands still, reserves one more batch, and ends."""
    moved = moving(delivery=delivery, reserveAhead="false")
    query, name, consumer = moved.query, moved.query.options["queue"], "etl/3fa9c1"
    lease = None if delivery == EXACTLY else 300_000
    with open_store(moved.url) as store:
        assert store.reserve(name, f"{consumer}/1", 10, lease=lease) == [10]
        old_note(store, name, consumer, token="old")
        old_check(store, name, consumer, "old")
        query.offsets = [dict(Offset(v=1, queue=name, consumer=consumer, seq=1, rows=[10]))]
        if batch == "is done":
            query.finished = 1
            set_ledger(moved.url, query.id, 0)
        work = query.work

        def while_an_old_one_runs(rows):
            work(rows)
            query.work = work
            with pytest.raises(StoreError, match="upgrade spark_queue"):
                old_check(store, name, consumer, "old")
            assert store.reserve(name, f"{consumer}/2", 5, lease=lease) == [5]  # it stood still before this
            raise Died

        query.work = while_an_old_one_runs
        with pytest.raises(Died):
            query.run()
        moved.run()
        stray = [one.tag for one in store.reservations(name)]
        assert stray == ([f"{consumer}/2/0"] if delivery == EXACTLY else []), "a lease that ends is given back"
        if stray:
            assert f"to release them: spark-queue release URL {name} {stray[0]}" in caplog.text
            assert release(moved.url, name, stray[0]) == 5
            moved.run()
        assert moved.written == list(range(10 if batch == "is done" else 0, 30)) and moved.left == 0
