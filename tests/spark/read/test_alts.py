"""The first of several inputs that has messages."""

from __future__ import annotations

import threading

import pytest

from spark_queue import CheckpointError, Queue, StoreError, open_store
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.types import queue_note_key
from tests.spark.read.inputs import same


def test_alts_takes_from_the_first_that_has_some(world):
    world.push("b", range(10, 16))
    reader = world.reader(combine="alts", delivery="exactly-once")
    start, seen = reader.initial, []
    for more in (None, "a", None, None, None):
        end = reader.next(start, 4)
        seen.append((end["rows"] if end != start else None, world.rows(reader, reader.plan(start, end))))
        start = end
        if more:
            world.push(more, range(5))
    assert [rows for rows, _ in seen] == [{"b": [4]}, {"b": [2]}, {"a": [4]}, {"a": [1]}, None]
    assert [one for _, rows in seen for one in rows] == [
        *({"b": n} for n in range(10, 16)), *({"a": n} for n in range(5))
    ]  # fmt: skip
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_the_choice_of_alts_is_durable_before_anything_is_read(world):
    world.push("b", ["first"])
    old = world.reader("ab", combine="alts", delivery="exactly-once")
    end = old.next(old.initial, 10)
    assert end["rows"] == {"b": [1]}
    old.close()
    world.push("a", ["second"])
    world.gone(end)
    for bindings in ("ba", "ab"):
        new = world.reader(bindings, combine="alts", delivery="exactly-once")
        assert world.rows(new, new.plan(new.initial, end)) == [{"b": "first"}]
        new.close()
        world.gone(end)
    new = world.reader("ab", combine="alts", delivery="exactly-once")
    assert new.next(end, 10)["rows"] == {"a": [1]}


def test_what_a_process_took_before_spark_knew_is_given_back(world):
    world.push("b", ["first"])
    old, new = (world.reader(combine="alts", delivery="exactly-once") for _ in range(2))
    old.next(old.initial, 10)
    old.close()  # Spark has not written it down
    world.push("a", ["second"])
    world.gone(old.initial)
    end = new.next(old.initial, 10)
    assert end["rows"] == {"a": [1]}
    assert world.rows(new, new.plan(old.initial, end)) == [{"a": "second"}]
    after = new.next(end, 10)
    assert world.rows(new, new.plan(end, after)) == [{"b": "first"}]


@pytest.mark.parametrize("taken", [1, 2])
def test_a_batch_of_one_input_that_comes_again_has_what_it_still_holds(world, taken):
    """Its lease ended before it was started, and another consumer took some of its messages."""
    world.push("a", ["first", "second"])
    old, new = (world.reader(combine="alts", delivery="exactly-once") for _ in range(2))
    end = old.next(old.initial, 10)
    ns, queue = world.queues["a"]
    with Queue(world.urls[ns], queue) as rival:
        for one in rival.store.reservations(queue):
            end_lease(rival.store, queue, one.tag)
        others = rival.reserve(taken)
        assert rival.commit(*others) == taken
    world.gone(end)
    world.push("b", ["third"])
    seen = world.rows(new, new.plan(new.initial, end))
    while (after := new.next(end, 10)) != end:
        seen += world.rows(new, new.plan(end, after))
        end = after
    left = {"first", "second"} - {one.payload for one in others}  # some stores free it with the others
    assert seen == [*({"a": one} for one in left), {"b": "third"}]
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


@pytest.mark.parametrize("combine", ["zip", "alts"])
def test_an_older_checkpoint_is_refused_by_whichever_queue_went_on(world, combine):
    old, new = (world.reader(combine=combine, delivery="exactly-once") for _ in range(2))
    offsets = [old.initial]
    for binding in ("a", "b", "a"):
        for one in "ab" if combine == "zip" else binding:
            world.push(one, [1])
        offsets.append(old.next(offsets[-1], 10))
        old.plan(*offsets[-2:])
    before = world.sizes()
    world.gone(old.initial)
    with pytest.raises(CheckpointError, match=r"ends with batch 2\.1, but batch 3\.1 was started since"):
        new.next(offsets[2], 10)
    with pytest.raises(CheckpointError, match=r"ends with batch 1\.1, but batch 3\.1 was started since"):
        new.plan(offsets[0], offsets[1])
    assert world.sizes() == before
    assert new.next(offsets[3], 10) == offsets[3]


@pytest.mark.parametrize("combine", ["zip", "alts"])
@pytest.mark.parametrize("batch", ["has ended", "comes again"])
def test_the_calls_of_older_versions_of_spark(world, combine, batch):
    """They ask for empty partitions first, and for a batch without a start; and then back."""
    for binding in "ab":
        world.push(binding, range(30))
    first, second, third = (world.reader(combine=combine, delivery="exactly-once") for _ in range(3))
    begin = first.initial
    one = first.next(begin, 10)
    seen = world.rows(first, first.plan(begin, one))
    world.gone(one)
    assert second.plan(one, one) == []
    if batch == "comes again":
        assert world.rows(second, second.plan(begin, one)) == seen
    two = second.next(second.planned, 10)
    second.commit(one)
    seen += world.rows(second, second.plan(one, two))
    world.gone(two)
    start = two
    while (end := third.next(start, 10)) != start:
        seen += world.rows(third, third.plan(start, end))
        start = end
    expected = same(range(30)) if combine == "zip" else [{one: n} for one in "ab" for n in range(30)]
    assert seen == expected
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_no_queue_loses_a_message_if_one_refuses_the_checkpoint(world):
    """The second queue's database went on, and the first one's was restored from a backup."""
    world.push("a", range(20))
    world.push("b", range(20))
    old, new = (world.reader(delivery="exactly-once") for _ in range(2))
    first = old.next(old.initial, 10)
    old.plan(old.initial, first)
    world.gone(first)
    ns, queue = world.queues["b"]
    with open_store(world.urls[ns]) as store:
        key = queue_note_key(queue, "consumer", first["consumer"])
        note = store.note(key)
        assert note is not None
        store.set_note(key, note.value | {"started": [2, 1]}, note.version)
    with pytest.raises(CheckpointError, match=r"ends with batch 1\.1, but batch 2\.1 was started since"):
        new.next(first, 10)
    assert world.sizes() == {"a": (10, 10), "b": (10, 10)}


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("combine", ["zip", "alts"])
def test_an_idle_reader_wakes_when_it_gets_what_it_lacks(by_signals, world, combine, late, listening):
    reader = world.reader(combine=combine, waitTimeout="2m")
    if combine == "zip":
        world.push("b" if late == "a" else "a", [0])
    woken = []
    thread = threading.Thread(target=lambda: woken.append(reader.next(reader.initial, 10)), daemon=True)
    thread.start()
    listening()
    assert not woken
    world.push(late, [0])
    thread.join(60)
    (end,) = woken
    assert end["seq"] == 1


def test_a_store_that_cannot_be_reached_is_reported_while_alts_waits(small, tmp_path):
    small.urls["gone"] = f"sqlite:///{tmp_path}/no/such/folder/q.db"
    small.queues["b"] = ("gone", small.queues["b"][1])
    reader = small.reader(combine="alts", retryTimeout="100ms")
    with pytest.raises(StoreError, match="no/such/folder"):
        reader._wait(any)
    small.queues.pop("b")
