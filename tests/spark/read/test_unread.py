"""`onUnread=fail`: a batch that was not read to its end is not committed. Without Spark, see drive.py."""

from __future__ import annotations

import json
from contextlib import suppress

import pyarrow as pa
import pytest

from spark_queue import OptionError, Queue, UnreadError, open_store, recover_consumer, release
from spark_queue.spark.read import proof
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.reading import READING_NOTE, Reading
from spark_queue.stores.types import queue_note_key
from tests.queues import push_numbers
from tests.spark.drive import TEXT, Query, Write, forget_ledger


class Died(Exception):
    """The process of a query is gone."""


def left(url, name):
    with Queue(url, name) as queue:
        return queue.sizes().total


def notes(url, name):
    with open_store(url) as store:
        return store.notes(queue_note_key(name, READING_NOTE, ""))


def read_all(batch):
    return batch.rows


def read_nothing(batch):
    return None


def read_one_task(batch):
    return list(batch.read(0))


def take_less(batch):
    """Read all tasks to their end, but let Spark take fewer rows: they are ahead of it."""
    read_all(batch)
    batch.taken = 3


NOT_READ = [read_nothing, read_one_task, take_less]


@pytest.fixture
def query(any_url, name):
    """Make a query with two tasks a batch, and ten messages."""
    push_numbers(any_url, name, 10)

    def make(work, **options):
        given = {"url": any_url, "queue": name, "onUnread": "fail", "numPartitions": "2", "minPartitions": "2"}
        return Query(work, **given | options)

    return make


def fails(query, message=r"Nothing was removed\. Read the whole batch, see docs/unread\.md"):
    with pytest.raises(UnreadError, match=message):
        query.run()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once", "at-most-once"])
def test_a_batch_that_was_read_is_committed(any_url, name, query, delivery):
    work = query(read_all, delivery=delivery, maxRecordsPerTrigger="4")
    work.run()
    assert (work.finished, left(any_url, name)) == (3, 0)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("work", NOT_READ)
def test_a_batch_that_was_not_read_is_not_committed(any_url, name, query, work, delivery):
    unread = query(work, delivery=delivery, maxRecordsPerTrigger="4")
    fails(unread, rf"batch \S+/1\.1 of queue '{name}' has 4 messages, but (\d of 2 tasks read all|Spark read 3 of 4)")
    assert left(any_url, name) == 10
    unread.work = read_all
    fails(unread)  # a restart changes nothing: the batch is done for Spark
    assert (unread.finished, left(any_url, name)) == (1, 10)


def test_the_ways_on(any_url, name, query):
    """To release the batch lets its messages come again; onUnread=warn removes them."""
    seen = []
    unread = query(read_one_task, delivery="exactly-once", maxRecordsPerTrigger="4")
    fails(unread)
    assert release(any_url, name, f"{unread.offsets[0]['consumer']}/1.1") == 4
    unread.work = lambda batch: seen.extend(batch.payloads)
    unread.run()
    assert sorted(one["n"] for one in seen) == [*range(10)]
    assert left(any_url, name) == 0
    push_numbers(any_url, name, 4)
    unread.work = read_one_task
    fails(unread)
    unread.options["onUnread"] = "warn"
    unread.run()
    assert left(any_url, name) == 0


def test_any_complete_reading_of_a_task_counts_and_attempts_count_once(any_url, name, query):
    """Several actions, a task that is tried again, and a speculative one."""

    def work(batch):
        read_one_task(batch)  # first()
        read_all(batch)
        next(iter(batch.read(1)))  # take(1)

    query(work).run()
    assert left(any_url, name) == 0

    def twice(batch):  # two attempts of one task are not two tasks
        read_one_task(batch)
        read_one_task(batch)

    push_numbers(any_url, name, 10)
    fails(query(twice), "1 of 2 tasks read all their messages")


@pytest.mark.parametrize("again", NOT_READ)
def test_what_an_earlier_run_has_read_does_not_count(any_url, name, query, again):
    """It died before Spark finished the batch, so its results may be gone."""

    def die(batch):
        read_all(batch)
        raise Died

    replayed = query(die, delivery="exactly-once")
    with pytest.raises(Died):
        replayed.run()
    replayed.work = again
    fails(replayed)
    assert left(any_url, name) == 10


@pytest.mark.parametrize("again", [read_nothing, read_one_task])
def test_nor_does_it_if_spark_never_reports_the_last_run(any_url, name, query, again):
    """Its driver died just after Spark had finished the batch."""

    def die(batch):
        read_all(batch)
        raise Died

    def die_late(batch):
        again(batch)
        replayed.finished += 1
        raise Died

    replayed = query(die, delivery="exactly-once")
    for replayed.work in (die, die_late):
        with pytest.raises(Died):
            replayed.run()
    fails(replayed)
    assert left(any_url, name) == 10


def test_a_batch_that_comes_again_and_is_read_is_committed(any_url, name, query):
    runs = []

    def work(batch):
        runs.append(batch.number)
        if runs.count(batch.number) < 3:
            read_one_task(batch)
            raise Died
        read_all(batch)

    replayed = query(work, delivery="exactly-once", maxRecordsPerTrigger="5")
    for _ in range(4):
        with pytest.raises(Died):
            replayed.run()
    replayed.run()
    assert left(any_url, name) == 0


def test_a_part_of_a_batch_that_was_split_is_committed(any_url, name, query):
    """Fewer messages come again than the offset names."""
    runs = []

    def work(batch):
        runs.append(len(batch.rows))
        if len(runs) < 4:
            raise Died

    split = query(work)
    for _ in range(3):
        with suppress(Died):
            split.run()
    split.run()
    assert runs == [10] * 3 + [1] * 10
    assert left(any_url, name) == 0


@pytest.mark.parametrize("work", [read_all, read_one_task])
def test_if_the_driver_dies_before_spark_reports_the_tasks_decide(any_url, name, query, work):
    died = query(work, delivery="exactly-once")
    died.reports = False

    def die(batch):
        work(batch)
        died.finished += 1  # Spark has logged it
        raise Died

    died.work = die
    with pytest.raises(Died):
        died.run()
    died.work = read_all
    if work is read_all:
        died.run()
        assert left(any_url, name) == 0
    else:
        fails(died)
        assert left(any_url, name) == 10


def test_without_a_listener_nothing_is_read_or_committed(any_url, name, query, monkeypatch):
    unheard = query(read_all)
    unheard.listened = False
    with pytest.raises(OptionError, match=r"'onUnread' is fail, which needs a session of spark_queue\.session\(\)"):
        unheard.run()
    monkeypatch.setattr(proof, "REPORT_TIMEOUT", 0.05)  # of Spark's reader
    push_numbers(any_url, name, 10)
    silent = query(read_all)
    silent.reports = False
    with pytest.raises(OptionError, match=r"Spark has not reported in 0 s how many rows .* so none was removed"):
        silent.run()
    assert left(any_url, name) == 20


def test_a_batch_that_was_planned_without_it_needs_no_proof(any_url, name, query):
    """The option may be set at a restart."""
    stopped = query(read_nothing, onUnread="ignore", delivery="exactly-once")

    def die(batch):
        stopped.finished += 1
        raise Died

    stopped.work = die
    with pytest.raises(Died):
        stopped.run()
    stopped.options["onUnread"], stopped.work = "fail", read_all
    stopped.run()
    assert left(any_url, name) == 0


@pytest.mark.parametrize("choice", ["warn", "ignore"])
def test_by_default_it_is_committed_and_nothing_is_noted(any_url, name, query, choice):
    query(read_nothing, onUnread=choice).run()
    assert (left(any_url, name), notes(any_url, name)) == (0, {})


@pytest.mark.parametrize("how", ["zip", "alts", "with a log", "one"])
@pytest.mark.parametrize("work", [read_all, read_nothing])
def test_several_inputs(any_url, name, how, work):
    names = [f"{name}.a", f"{name}.b"]
    for one in names:
        push_numbers(any_url, one, 4)
    inputs = {"a": {"queue": names[0], "mode": "log" if how == "with a log" else "queue"}, "b": {"queue": names[1]}}
    if how == "one":
        del inputs["a"]
    given = {"combine": "alts"} if how == "alts" else {}
    query = Query(work, url=any_url, inputs=json.dumps(inputs), onUnread="fail", delivery="exactly-once", **given)
    queues = [names[1]] if how in ("with a log", "one") else names
    if work is read_all:
        query.run()
        assert [left(any_url, one) for one in queues] == [0] * len(queues)
        return
    fails(query)
    query.options["inputs"] = json.dumps(dict(reversed(inputs.items())))
    fails(query)  # in any order
    assert [left(any_url, one) for one in queues] == [4] * len(queues)


def test_what_was_prefetched_is_proved_too(any_url, name):
    push_numbers(any_url, name, 300)
    query = Query(read_all, url=any_url, queue=name, onUnread="fail", maxRecordsPerTrigger="100", reserveAhead="true")
    query.run()
    assert left(any_url, name) == 0
    push_numbers(any_url, name, 300)
    query.work = lambda batch: read_all(batch) if batch.number < 4 else None
    fails(query)
    assert left(any_url, name) == 200


def test_a_consumer_that_is_given_up_needs_your_decision(any_url, name, query):
    """The sink has written the batch, but its query did not read all of it."""

    def work(batch):
        parts = [pa.RecordBatch.from_arrays([one.column("payload")], schema=TEXT) for one in batch.read(0)]
        Write(TEXT, query=batch.query.id, batch=batch.number, url=any_url, queue=f"{name}.out").run(parts)

    unread = query(work, delivery="exactly-once")
    fails(unread)
    consumer = unread.offsets[0]["consumer"]
    with pytest.raises(UnreadError, match=r"1 of 2 tasks .*--written .*--not-written"):
        recover_consumer(any_url, name, consumer, sink=any_url)
    assert left(any_url, name) == 10
    assert recover_consumer(any_url, name, consumer, written=False).released == 10
    forget_ledger(any_url, unread.id)


def test_the_notes_of_a_consumer_do_not_grow_and_go_with_its_queue(any_url, name, query):
    """How they age: see test_ageing.py."""
    many = query(read_all, maxRecordsPerTrigger="2")
    many.run()
    push_numbers(any_url, name, 6)
    many.run()
    assert len(notes(any_url, name)) == 4, "the plan, what Spark took, and one of each task"
    with open_store(any_url) as store:
        store.drop(name)
    assert notes(any_url, name) == {}


def test_a_late_task_of_an_earlier_batch_or_run_changes_nothing(any_url, name):
    with open_store(any_url) as store:
        now, late = Reading(name, "c/1", Batch(10, 2), 4), Reading(name, "c/1", Batch(9, 3), 4)
        again = Reading(name, "c/1", Batch(10, 2), 3)
        now.note_plan(store, 1)
        now.note_task(store, 0, 7)
        for one in (late, again):
            one.note_plan(store, 5)
            one.note_task(store, 0, 1)
            one.note_taken(store, 1)
        progress = now.progress(store)
        assert progress is not None
        assert (progress.tasks, progress.ended, progress.rows) == (1, 1, 7)
        assert late.progress(store) is None
