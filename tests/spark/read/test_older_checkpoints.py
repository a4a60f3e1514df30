"""Older checkpoints, and those of version 1."""

from __future__ import annotations

import pytest

from spark_queue import CheckpointError, FencedError, Queue, open_store
from spark_queue.spark.read.offsets import Offset
from spark_queue.stores.types import queue_note_key
from tests.spark.read.consumers import EXACTLY, LEAST, fetched, held_until, reserved, taken_over


def numbered(offset: Offset, seq: int) -> Offset:
    other = offset.copy()
    other["seq"] = seq
    return other


def worked(url, name, consumer, start, most, seen):
    """Let a batch be planned, read, and finished; return the offset that Spark has then."""
    end = consumer.next(start, most)
    seen += fetched(url, name, consumer.plan(start, end))
    return end


# --- older checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("how", ["a copy", "the end is lost", "the end is lost, and a batch was under way"])
def test_an_older_checkpoint_is_refused_before_anything_changes(any_url, name, consumers, delivery, how):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(40)))
    old, new = (consumers(any_url, name, delivery=delivery, numPartitions="1") for _ in range(2))
    seen: list[str] = []
    begin = old.initial
    one = worked(any_url, name, old, begin, 10, seen)
    two = worked(any_url, name, old, one, 10, seen)
    old.next(two, 10)
    taken_over(any_url, name, one)
    before = held_until(any_url, name)
    with open_store(any_url) as store:
        noted = store.notes(queue_note_key(name))
    start = {  # as Spark does; 4.0 and 4.1 ask for the partitions of nothing first
        "a copy": lambda: new.next(one, 10),
        "the end is lost": lambda: new.plan(one, one),
        "the end is lost, and a batch was under way": lambda: new.plan(begin, one),
    }[how]
    with pytest.raises(CheckpointError, match=r"ends with batch 1\.1, but batch 2\.1 was started since") as caught:
        start()
    assert f"spark-queue recover URL {name} {one['consumer']} --sink URL" in str(caught.value)
    assert held_until(any_url, name) == before and set(before) == {"3.1"}
    with open_store(any_url) as store:
        assert store.notes(queue_note_key(name)) == noted


def test_a_batch_of_the_same_number_by_another_process_is_refused(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(40)))
    old, new, newest = (consumers(any_url, name, numPartitions="1") for _ in range(3))
    one = worked(any_url, name, old, old.initial, 10, [])
    mine = old.next(one, 10)
    taken_over(any_url, name, one)
    worked(any_url, name, new, one, 10, [])
    with pytest.raises(FencedError):
        old.plan(one, mine)
    taken_over(any_url, name, one)
    with pytest.raises(CheckpointError, match=r"ends with batch 2\.1, but batch 2\.2 was started since"):
        newest.plan(one, mine)


def test_a_database_that_is_older_than_the_checkpoint_is_an_error(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(40)))
    old, new = consumers(any_url, name), consumers(any_url, name)
    one = worked(any_url, name, old, old.initial, 10, [])
    with open_store(any_url) as store:
        (key,) = store.notes(queue_note_key(name, "consumer", ""))
        backup = store.note(key)
        assert backup is not None
        old.next(one, 10)
        newer = store.note(key)
        assert newer is not None
        store.set_note(key, backup.value | {"owner": None}, newer.version)
    with pytest.raises(CheckpointError, match=r"ends with batch 2\.1, but the database knows of batch 1\.1 at most"):
        new.next(numbered(one, 2), 10)


def test_after_a_drop_the_checkpoint_is_refused(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(40)))
        old, new = consumers(any_url, name), consumers(any_url, name)
        one = worked(any_url, name, old, old.initial, 10, [])
        old.next(one, 10)
        queue.store.drop(name)
        with pytest.raises(FencedError, match="its queue was dropped"):
            old.next(numbered(one, 2), 10)
        queue.push_many(list(range(40)))
    with pytest.raises(CheckpointError, match="this consumer is unknown: the queue was dropped"):
        new.next(one, 10)


def test_a_driver_that_stands_still_loses_nothing(any_url, name, consumers):
    """It idles while another one works and ends. Then it reserves a batch that Spark never gets."""
    idle, busy, last = (consumers(any_url, name, numPartitions="1") for _ in range(3))
    with Queue(any_url, name) as queue:
        ids = queue.push_many([1])
        seen: list[str] = []
        one = worked(any_url, name, idle, idle.initial, 10, seen)
        assert idle.next(one, 10) == one
        taken_over(any_url, name, one)
        ids += queue.push_many([2])
        two = worked(any_url, name, busy, one, 10, seen)
        assert busy.next(two, 10) == two
        taken_over(any_url, name, one)
        ids += queue.push_many([3])
        assert idle.next(one, 10)["seq"] == 2, "Spark's log has this offset already, and the query fails"
    assert last.next(two, 10)["seq"] == 3, "it has given back what the idle one had reserved"
    assert reserved(any_url, name) == {3: 1}


def of_version_1(url, queue, consumer, rows, seq=1):
    """Make what earlier versions left of a batch under way, and return its offset."""
    with open_store(url) as store:
        assert store.reserve(queue, f"{consumer}/{seq}", rows, lease=None) == [rows]
        gone = {"token": "t", "host": "elsewhere", "boot": "", "pid": 1, "started": 1, "until": 1, "leaves": False}
        store.set_note(queue_note_key(queue, "consumer", consumer), {"v": 1, **gone}, 0)
    return Offset(v=1, queue=queue, consumer=consumer, seq=seq, rows=[rows])


# --- checkpoints and notes of version 1 -----------------------------------------------------------


@pytest.mark.parametrize("batch", ["has ended", "comes again"])
@pytest.mark.parametrize("note", ["is there", "was removed by release --force"])
def test_a_checkpoint_of_version_1_goes_on(any_url, name, consumers, batch, note):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
    old = of_version_1(any_url, name, "etl/3fa9c1", 10)
    if note != "is there":
        with open_store(any_url) as store:
            store.set_note(queue_note_key(name, "consumer", "etl/3fa9c1"), None, 1)
    consumer, other = consumers(any_url, name), consumers(any_url, name)
    seen: list[str] = []
    if batch == "comes again":
        seen += fetched(any_url, name, consumer.plan(consumer.initial, old))
    else:
        seen += ids[:10]
    end = consumer.next(old, 10)
    assert (end["v"], end["seq"], end["by"]) == (2, 2, 1)
    seen += fetched(any_url, name, consumer.plan(old, end))
    assert seen == ids
    assert consumer.next(end, 10) == end
    taken_over(any_url, name, end)
    with pytest.raises(CheckpointError, match=r"ends with batch 1, but batch 2\.1 was started since"):
        other.next(old, 10)


def test_an_idle_checkpoint_of_version_1_is_older_than_no_other(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    newest = of_version_1(any_url, name, "etl/3fa9c1", 20, seq=2)
    consumer, other = consumers(any_url, name), consumers(any_url, name)
    assert consumer.next(newest, 10) == newest
    taken_over(any_url, name, newest)
    with pytest.raises(CheckpointError, match="ends with batch 1, but batch 2 was started since"):
        other.next(numbered(newest, 1), 10)


def test_the_log_names_what_version_1_left_reserved(any_url, name, consumers, caplog):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    old = of_version_1(any_url, name, "etl/3fa9c1", 10)
    with open_store(any_url) as store:
        store.reserve(name, "etl/3fa9c1/2", 10, lease=None)
    consumer = consumers(any_url, name)
    assert consumer.next(old, 10) == old
    assert f"to release them: spark-queue release URL {name} etl/3fa9c1/2/0" in caplog.text
