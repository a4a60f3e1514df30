"""The source without Spark: batches are planned, read, fail, come again, and lose messages."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from spark_queue import CheckpointError, FencedError, Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read import lease_renewer
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.owner import OWNER_NOTE, consumers, revoke
from spark_queue.stores.types import queue_note_key
from tests.owners import owner_of
from tests.queues import push_numbers
from tests.spark.drive import Query


class Died(Exception):
    """Ends a run of a query."""


def reservations(url, name):
    with open_store(url) as store:
        return store.reservations(name)


def sizes_in_store(url, name):
    with open_store(url) as store:
        return store.sizes(name)


def run_to_the_end(url, name, **options):
    """The numbers in the messages of a run to the end, by batches."""
    batches = []
    query = Query(lambda batch: batches.append(numbers_of_batch(batch)), url=url, queue=name, **options)
    query.run()
    return batches


def numbers_of_batch(batch):
    return [one["n"] for one in batch.payloads]


@pytest.mark.every_store
def test_batches_are_no_larger_than_wanted_and_keep_the_order(any_url, name):
    push_numbers(any_url, name, 20)
    batches = run_to_the_end(any_url, name, maxRecordsPerTrigger="7", numPartitions="2")
    assert batches == [list(range(7)), list(range(7, 14)), list(range(14, 20))]
    assert sizes_in_store(any_url, name).total == 0


@pytest.mark.every_store
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_is_read_as_often_as_wanted_and_held_until_it_is_done(any_url, name, delivery):
    push_numbers(any_url, name, 10)
    held = []

    def work(batch):
        half = next(batch.read(0))  # a task that fails in the middle, and is tried again
        first, second = batch.rows, batch.rows
        assert first == second and half.num_rows <= len(first) == 10
        assert {row["tries"] for row in first} == {0}
        assert sum(one.rows for one in reservations(any_url, name)) == 10
        held.append(batch.number)

    Query(work, url=any_url, queue=name, delivery=delivery, numPartitions="2").run()
    assert held == [0]
    assert sizes_in_store(any_url, name).total == 0


@pytest.mark.every_store
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_that_fails_comes_again_with_the_same_rows_and_tries(any_url, name, delivery):
    ids = push_numbers(any_url, name, 25)
    runs, failures = [], [0, 0, 1]

    def work(batch):
        runs.append((batch.number, batch.rows))
        if failures and failures[0] == batch.number:
            raise Died(failures.pop(0))

    query = Query(work, url=any_url, queue=name, delivery=delivery, maxRecordsPerTrigger="10", numPartitions="2")
    for _ in range(3):
        with pytest.raises(Died):
            query.run()
    query.run()
    assert [number for number, _ in runs] == [0, 0, 0, 1, 1, 2]
    assert runs[0] == runs[1] == runs[2] and runs[3] == runs[4]
    assert sorted(row["id"] for number in (0, 3, 5) for row in runs[number][1]) == sorted(ids)
    assert {row["tries"] for _, rows in runs for row in rows} == {0}, "a query that dies blames no message"
    assert sizes_in_store(any_url, name).total == 0


@pytest.mark.every_store
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_checkpoint_that_has_lost_its_first_offset_is_refused(any_url, name, delivery):
    """A sink of files knows a batch by its number: it would take the new batch 0 for written."""
    push_numbers(any_url, name, 20)
    seen = []
    work = lambda batch: seen.extend(numbers_of_batch(batch))  # noqa: E731
    query = Query(work, url=any_url, queue=name, delivery=delivery, maxRecordsPerTrigger="10")
    query.run()
    lost = query.offsets[-1]["consumer"]
    query.offsets, query.finished = [], 0
    push_numbers(any_url, name, 10)
    with pytest.raises(CheckpointError, match=f"has read queue '{name}' as consumer {lost}, and now begins again"):
        query.run()
    assert seen == list(range(20)) and sizes_in_store(any_url, name).reserved == 10
    fresh = Query(work, url=any_url, queue=name, delivery=delivery)
    with open_store(any_url) as store:
        store.rollback(name, query.offsets[-1]["consumer"], failed=False)
    fresh.run()
    assert sorted(seen) == sorted([*range(20), *range(10)])


@pytest.mark.every_store
def test_a_query_may_read_a_queue_twice_as_two_consumers(any_url, name):
    push_numbers(any_url, name, 20)
    seen = []
    work = lambda batch: seen.extend(numbers_of_batch(batch))  # noqa: E731
    queries = [Query(work, url=any_url, queue=name, consumer=one) for one in ("first", "second")]
    queries[1].id = queries[0].id  # one query, two sources
    for query in queries:
        query.run()
        push_numbers(any_url, name, 10)
    assert sorted(seen) == sorted([*range(20), *range(10)])
    again = Query(work, url=any_url, queue=name, consumer="second")
    again.id = queries[0].id
    with pytest.raises(CheckpointError, match="set a different option 'consumer' for each load"):
        again.run()


@pytest.mark.every_store
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("damage", ["an older copy", "its newest files are lost"])
def test_no_sink_sees_rows_of_an_older_checkpoint(any_url, name, delivery, damage):
    """By its number alone, the batch would count as written, and its messages would be removed."""
    seen = []
    query = Query(
        lambda batch: seen.extend(numbers_of_batch(batch)),
        url=any_url,
        queue=name,
        delivery=delivery,
        numPartitions="1",
    )
    for rows in (3, 4, 5):
        push_numbers(any_url, name, rows)
        query.run()
        if rows == 3:
            copy = list(query.offsets), query.finished
    if damage == "an older copy":
        query.offsets, query.finished = copy
    else:
        query.offsets, query.finished = query.offsets[:-1], query.finished - 1
    push_numbers(any_url, name, 6)
    with pytest.raises(CheckpointError, match="was started since: the checkpoint is an older copy, or has lost"):
        query.run()
    assert len(seen) == 12 and sizes_in_store(any_url, name).ready == 6


@pytest.mark.every_store
def test_reservations_of_an_exactly_once_source_never_end(any_url, name):
    push_numbers(any_url, name, 10)
    held = []

    def fail_at_first(batch):
        held.append([one.until for one in reservations(any_url, name)])
        assert numbers_of_batch(batch) == list(range(10))
        if len(held) == 1:
            raise Died

    query = Query(fail_at_first, url=any_url, queue=name, delivery="exactly-once", numPartitions="1")
    with pytest.raises(Died):
        query.run()
    with Queue(any_url, name) as rival:
        assert rival.reserve(10) == []
    query.run()
    assert held == [[None], [None]]
    push_numbers(any_url, name, 1)
    work = lambda batch: held.append([one.until for one in reservations(any_url, name)])  # noqa: E731
    Query(work, url=any_url, queue=name, delivery="at-least-once").run()
    assert None not in held[2], "the one of an at-least-once source does"


def test_an_at_most_once_batch_is_not_delivered_twice(any_url, name):
    push_numbers(any_url, name, 30)
    seen = []

    def fail_first(batch):
        seen.append(numbers_of_batch(batch))
        if len(seen) == 1:
            assert numbers_of_batch(batch) == seen[0], "within a batch it can be looked at again"
            raise Died

    options = {"delivery": "at-most-once", "maxRecordsPerTrigger": "10"}
    query = Query(fail_first, url=any_url, queue=name, **options)
    with pytest.raises(Died):
        query.run()
    query.run()
    query.run()
    assert seen[:2] == [list(range(10)), []], "the batch that was being worked on is given up"
    assert sorted(n for batch in seen for n in batch) == list(range(30))
    assert sizes_in_store(any_url, name).total == 0


@pytest.mark.every_store
def test_a_batch_that_takes_ten_times_its_lease_is_delivered_once(any_url, name, monkeypatch):
    push_numbers(any_url, name, 20)
    seen, others = [], []
    passed = SimpleNamespace(seconds=0.0)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed.seconds)
    monkeypatch.setattr(lease_renewer, "time", clock)  # of the thread that renews leases

    def slow(batch):
        seen.extend(numbers_of_batch(batch))
        renews = batch.reader.planner.owned.lease_renewer
        with Queue(any_url, name) as rival, open_store(any_url) as store:
            while passed.seconds < 10 * 3_600:
                wait_until(lambda: min(renews._renew_at.values()) > clock.monotonic(), description="its rest")
                (held,) = reservations(any_url, name)
                store.renew(name, held.tag, 1_200_000)  # of the lease so much is left
                passed.seconds += 0.4 * 3_600
                renews._wake.set()
                wait_until(
                    lambda: reservations(any_url, name)[0].until > store.now() + 2_400_000, description="a renewal"
                )
                others.extend(rival.reserve(100))

    Query(slow, url=any_url, queue=name, reserveTimeout="1h", numPartitions="1").run()
    assert (seen, others) == (list(range(20)), [])
    assert sizes_in_store(any_url, name).total == 0


def steal(url, name, count):
    """Let another consumer hold some messages of the only reservation, as if its lease had ended."""
    with open_store(url) as store:
        (tag,) = {one.tag for one in store.reservations(name)}
        ids = [one.id for batch in store.fetch(name, tag) for one in messages(batch)][:count]
        assert store.transfer(name, tag, "thief/0", ids, lease=3_600_000) == count


@pytest.mark.every_store
def test_a_query_whose_messages_were_taken_fails_instead_of_committing_them(any_url, name):
    push_numbers(any_url, name, 20)
    seen = []

    def work(batch):
        seen.append(numbers_of_batch(batch))
        if len(seen) == 1:
            steal(any_url, name, 5)

    query = Query(work, url=any_url, queue=name, numPartitions="1")
    with pytest.raises(FencedError, match=r"5 of 20 messages of queue .* are no longer held"):
        query.run()
    assert sizes_in_store(any_url, name).reserved == 5, "the thief's are still there, ours are done"
    with open_store(any_url) as store:
        store.rollback(name, "thief")
    query.run()
    assert sorted(seen[1]) == list(range(5)), "started again, the query goes on"
    assert sizes_in_store(any_url, name).total == 0


@pytest.mark.every_store
def test_a_task_that_finds_too_few_rows_fails(any_url, name):
    push_numbers(any_url, name, 20)

    def work(batch):
        assert len(numbers_of_batch(batch)) == 20
        steal(any_url, name, 3)
        numbers_of_batch(batch)

    query = Query(work, url=any_url, queue=name, numPartitions="1", delivery="exactly-once")
    with pytest.raises(FencedError, match=r"3 of 20 messages of queue .* are no longer held"):
        query.run()
    with open_store(any_url) as store:
        store.rollback(name, "thief", failed=False)
        store.rollback(name, query.offsets[-1]["consumer"], failed=False)
    assert sorted(run_to_the_end(any_url, name)[0]) == list(range(20))


@pytest.mark.every_store
@pytest.mark.parametrize("seen_by", ["a task", "the driver"])
def test_messages_that_the_database_has_lost_are_not_said_to_come_again(any_url, name, seen_by):
    """A Redis that failed over: the messages are gone, and it is not known why."""
    push_numbers(any_url, name, 20)

    def work(batch):
        rows = batch.rows
        with open_store(any_url) as store:
            (tag,) = {one.tag for one in store.reservations(name)}
            assert store.commit(name, tag, [row["id"] for row in rows[:5]]) == 5
        if seen_by == "a task":
            numbers_of_batch(batch)

    query = Query(work, url=any_url, queue=name, numPartitions="1")
    with pytest.raises(FencedError) as raised:
        query.run()
    text = str(raised.value)
    assert "5 of 20 messages" in text and "it reserved 20 and found 15" in text
    assert "the database has lost acknowledged writes, as a Redis does that fails over" in text
    assert f"spark-queue size URL {name}" in text and "They are delivered again" not in text


@pytest.mark.every_store
def test_a_note_that_the_database_has_lost_names_no_other_process(any_url, name):
    """It is as old as the process before this one, which has not taken over."""
    push_numbers(any_url, name, 2)
    before = []

    def work(batch):
        with open_store(any_url) as store:
            ((_, consumer, _),) = consumers(store, name)
            key = queue_note_key(name, OWNER_NOTE, consumer)
            before.append(note := store.note(key))
            assert note is not None and before[0] is not None
            if len(before) == 1:
                raise Died
            assert store.set_note(key, before[0].value, note.version)

    query = Query(work, url=any_url, queue=name, delivery="exactly-once", maxRecordsPerTrigger="1")
    with pytest.raises(Died):
        query.run()
    with pytest.raises(FencedError, match="the database has lost its last writes, and knows only an earlier process"):
        query.run()
    assert sizes_in_store(any_url, name).total == 2


@pytest.mark.every_store
def test_a_query_whose_consumer_was_released_by_force_fails(any_url, name):
    push_numbers(any_url, name, 2)
    seen = []

    def work(batch):
        seen.extend(numbers_of_batch(batch))
        with open_store(any_url) as store:
            ((_, consumer, owner),) = consumers(store, name)
            assert owner is not None and owner == owner_of(store, name, consumer)
            revoke(store, name, consumer)

    query = Query(work, url=any_url, queue=name, delivery="exactly-once", maxRecordsPerTrigger="1")
    with pytest.raises(FencedError, match=r"no longer runs consumer .* released manually"):
        query.run()
    assert seen == [0]
    assert sizes_in_store(any_url, name).total == 2, "it has committed nothing"


def test_hashes_are_the_same_at_every_replay(any_url, name):
    push_numbers(any_url, name, 100)
    seen, runs = {}, []

    def fail_at_first(batch):
        hashes = {row["id"]: row["delivery_hash"] for row in batch.rows}
        assert seen.setdefault(batch.number, hashes) == hashes
        runs.append(batch.number)
        if runs.count(batch.number) == 1:
            raise Died

    query = Query(
        fail_at_first, url=any_url, queue=name, delivery="exactly-once", maxRecordsPerTrigger="50", numPartitions="2"
    )
    for _ in range(2):
        with pytest.raises(Died):
            query.run()
    query.run()
    assert runs == [0, 0, 1, 1]
    assert len({one for hashes in seen.values() for one in hashes.values()}) == 100
