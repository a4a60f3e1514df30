"""Batches that are reserved, and those that are started."""

from __future__ import annotations

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read import batches
from tests.spark.read.consumers import EXACTLY, all_come, fetched, held_until, reserved, taken_over


@pytest.mark.parametrize("ahead", [False, True], ids=["alone", "ahead"])
def test_until_it_is_started_a_batch_has_a_lease_that_ends(any_url, name, consumers, ahead):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    consumer = consumers(any_url, name, delivery="exactly-once", numPartitions="1")
    start = consumer.initial
    for _ in range(2):
        end = consumer.next(start, 10, prefetch=10 if ahead else 0)
        (until,) = held_until(any_url, name).values()
        with open_store(any_url) as store:
            assert until is not None and 0 < until - store.now() <= batches.UNSTARTED_LEASE
        consumer.plan(start, end)
        assert held_until(any_url, name)[f"{end['seq']}.1"] is None
        start = end


def test_what_was_reserved_and_never_started_comes_again_without_its_checkpoint(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    old.next(old.initial, 100)  # and then it is killed, before Spark has written the offset
    start = new.initial
    assert new.next(start, 100) == start
    all_come(any_url, name, new, start, [], ids)


def test_messages_of_a_batch_that_was_never_started_keep_their_tries(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
    old, new = (consumers(any_url, name, delivery="exactly-once", numPartitions="1") for _ in range(2))
    first = old.next(old.initial, 10)
    old.plan(old.initial, first)
    old.next(first, 10)
    taken_over(any_url, name, first)
    second = new.next(first, 10)
    with open_store(any_url) as store:
        shares = new.plan(first, second)
        found = [one for share in shares for rows in store.fetch(name, share.tag) for one in messages(rows)]
    assert [(one.id, one.tries) for one in found] == [(id, 0) for id in ids[10:]]


def test_a_late_release_leaves_what_another_process_has_started(any_url, name, consumers, monkeypatch):
    """Three processes: the third starts the first's reservation after the second has listed it."""
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
    first, second, third = (consumers(any_url, name, delivery="exactly-once") for _ in range(3))
    start = first.initial
    one = first.next(start, 10)
    first.plan(start, one)
    two = first.next(one, 10)  # Spark writes it to its log, but late
    taken_over(any_url, name, one)
    second.commit(one)
    taken_over(any_url, name, one)
    list_reservations, shares = second.store.reservations, []

    def listed_early(*args):
        found = list_reservations(*args)
        shares[:] = third.plan(one, two)
        return found

    monkeypatch.setattr(second.store, "reservations", listed_early)
    second.batches(one).clean_up(one)
    assert fetched(any_url, name, shares) == ids[10:]
    assert third.next(two, 10) == two
    assert reserved(any_url, name) == {}


def test_the_log_names_what_another_checkpoint_holds_and_the_way_on(any_url, name, consumers, caplog):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    old, new = (consumers(any_url, name, consumer="etl", delivery=EXACTLY) for _ in range(2))
    end = old.next(old.initial, 10)
    old.plan(old.initial, end)
    new.next(new.initial, 10)
    message = f"consumer {end['consumer']}, of another checkpoint, still holds 10 messages of {name}"
    way = f"spark-queue recover URL {name} {end['consumer']} --sink URL"
    assert [one.getMessage() for one in caplog.records] == [f"{message}; if its query never starts again: {way}"]
