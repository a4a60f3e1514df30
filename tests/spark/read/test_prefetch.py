"""The next batch, which is reserved while one is worked on."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from spark_queue import FencedError, Queue, StoreError, open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read import batches
from spark_queue.spark.read import prefetch as read_prefetch
from spark_queue.spark.read.prefetch import Prefetcher
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.dead_letters import add_settled
from spark_queue.stores.services.ownership import Ownership
from tests.owners import owner_of
from tests.spark.read.consumers import EXACTLY, LEAST, all_come, fetched, renewed, reserved, taken_over


def later_than(store, moment):
    """Wait until that moment (ms) has passed, even for a client whose clock is wrong by some ms."""
    wait_until(lambda: store.now() > moment + 50)


def eventually(look, wanted):
    with suppress(AssertionError):  # which would not show what there is instead
        wait_until(lambda: look() == wanted)
    assert look() == wanted


def test_after_a_full_batch_the_next_one_is_reserved_ahead(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(2_500)])
    consumer, seen = consumers(any_url, name, delivery="exactly-once"), []
    start = consumer.initial
    for number, rows in ((1, 1_000), (2, 1_000), (3, 500)):
        offset = consumer.next(start, 1_000, prefetch=1_000)
        assert (offset["seq"], sum(offset["rows"])) == (number, rows)
        assert reserved(any_url, name) == {number: rows}
        shares = consumer.plan(start, offset)
        ahead = {2: 1_000, 3: 500}.get(number + 1) if rows == 1_000 else None
        eventually(lambda: reserved(any_url, name), {number: rows} | ({number + 1: ahead} if ahead else {}))
        seen += fetched(any_url, name, shares)
        start = offset
    assert consumer.next(start, 1_000, prefetch=1_000) == start
    assert sorted(seen) == sorted(ids)
    assert reserved(any_url, name) == {}
    assert consumer.owned.lease_renewer._renew_at == {}, "no lease is renewed any more"


@pytest.mark.parametrize("how", ["not asked for", "not full", "a batch that comes again", "parts of one that failed"])
def test_nothing_is_reserved_ahead_where(sqlite_url, name, consumers, how, monkeypatch):
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(30)))
    begun = []
    monkeypatch.setattr(Prefetcher, "start", lambda self, *arguments: begun.append(arguments))
    consumer = consumers(sqlite_url, name)
    offset = consumer.next(
        consumer.initial, 100 if how == "not full" else 10, prefetch=0 if how == "not asked for" else 10
    )
    if how == "a batch that comes again":
        taken_over(sqlite_url, name, offset)
        consumer = consumers(sqlite_url, name)
    if how == "parts of one that failed":
        consumer.owned.isolation.may_have_parked = True
    consumer.plan(consumer.initial, offset)
    assert begun == []


def test_a_batch_that_is_planned_twice_is_followed_by_one(sqlite_url, name, consumers, monkeypatch):
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(30)))
    begun, check = [], Ownership.check
    monkeypatch.setattr(Ownership, "check", lambda self: begun.append(threading.current_thread().name) or check(self))
    consumer = consumers(sqlite_url, name)
    offset = consumer.next(consumer.initial, 10, prefetch=10)
    for _ in range(2):  # as in a self-union
        consumer.plan(consumer.initial, offset)
    assert sum(consumer.next(offset, 10, prefetch=10)["rows"]) == 10
    assert begun.count("spark_queue prefetch") == 1


def killed(consumer):
    """As if its process were gone, once it has reserved ahead what it can."""
    consumer.owned.prefetcher.pending.rows.result(60)
    consumer.owned.prefetcher.pending = None
    consumer.close()
    taken_over(consumer.store.url, consumer.queue, consumer.planned)


@pytest.mark.parametrize("batch", ["has ended", "comes again"])
def test_what_a_killed_process_had_reserved_ahead_is_the_next_batch(any_url, name, consumers, batch):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
        mature = {one.id: one.mature for one in queue.peek(20)}
    old, new = (consumers(any_url, name, delivery="exactly-once", waitTimeout="0s") for _ in range(2))
    first = old.next(old.initial, 10, prefetch=10)
    old.plan(old.initial, first)
    killed(old)
    assert reserved(any_url, name) == {1: 10, 2: 10}
    seen = []
    if batch == "comes again":
        seen += fetched(any_url, name, new.plan(old.initial, first))
    second = new.next(first, 10, prefetch=10)  # though nothing is ready
    assert (second["seq"], sum(second["rows"])) == (2, 10)
    shares = new.plan(first, second)
    seen += fetched(any_url, name, shares)
    assert seen == (ids if batch == "comes again" else ids[10:]), "in order"
    with open_store(any_url) as store:
        found = [one for share in shares for rows in store.fetch(name, share.tag) for one in messages(rows)]
        assert {one.id: (one.mature, one.tries) for one in found} == {id: (mature[id], 0) for id in ids[10:]}
    assert new.next(second, 10, prefetch=10) == second
    assert reserved(any_url, name) == {}


def test_a_run_to_the_end_that_is_killed_and_started_again_leaves_nothing(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(35)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    old.stop_at_now()
    offset = old.next(old.initial, 10, prefetch=10)
    old.plan(old.initial, offset)
    killed(old)
    new.stop_at_now()
    seen, start = fetched(any_url, name, new.plan(old.initial, offset)), offset
    with Queue(any_url, name) as queue:
        later_than(queue.store, new.before)
        queue.push("later")
    while (offset := new.next(start, 10, prefetch=10)) != start:
        seen += fetched(any_url, name, new.plan(start, offset))
        start = offset
    assert seen == ids
    with open_store(any_url) as store:
        assert store.sizes(name).total == 1


def test_a_process_that_ends_gives_back_what_it_has_reserved_ahead(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(3_000)])
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    offset = old.next(old.initial, 1_000, prefetch=1_000)
    old.plan(old.initial, offset)
    eventually(lambda: reserved(any_url, name), {1: 1_000, 2: 1_000})
    old.close()
    assert reserved(any_url, name) == {1: 1_000}
    taken_over(any_url, name, offset)
    seen, start = fetched(any_url, name, new.plan(old.initial, offset)), offset
    while (offset := new.next(start, 1_500, prefetch=1_500)) != start:
        shares = new.plan(start, offset)
        seen += fetched(any_url, name, shares)
        start = offset
    assert sorted(seen) == sorted(ids)
    assert reserved(any_url, name) == {}


def test_a_process_that_ends_while_it_reserves_ahead_waits_for_that(sqlite_url, name, consumers, monkeypatch):
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(20)))
    monkeypatch.setattr(read_prefetch, "RELEASE_TIMEOUT", 60)  # at the end of Spark's reader
    consumer = consumers(sqlite_url, name, delivery="exactly-once")
    offset = consumer.next(consumer.initial, 10, prefetch=10)
    waits, claim = threading.Event(), type(consumer.store)._claim

    def slow(*arguments):
        waits.set()
        wait_until(lambda: not consumer.has_prefetched, description="the end of the process")
        return claim(*arguments)

    monkeypatch.setattr(type(consumer.store), "_claim", slow)
    consumer.plan(consumer.initial, offset)
    assert waits.wait(60)
    consumer.close()
    wait_until(lambda: "spark_queue prefetch" not in {one.name for one in threading.enumerate()})
    assert reserved(sqlite_url, name) == {1: 10}


def test_a_process_that_ends_keeps_the_batch_that_spark_knows(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(30)))
    consumer = consumers(any_url, name, delivery="exactly-once")
    first = consumer.next(consumer.initial, 10, prefetch=10)
    consumer.plan(consumer.initial, first)
    second = consumer.next(first, 10, prefetch=10)
    consumer.close()  # the batch may be in Spark's log already
    assert reserved(any_url, name) == {2: sum(second["rows"])}


def test_a_process_that_gives_back_says_that_it_is_about_to_end(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(30)))
    consumer = consumers(any_url, name)
    first = consumer.next(consumer.initial, 10, prefetch=10)
    consumer.plan(consumer.initial, first)
    eventually(lambda: reserved(any_url, name), {1: 10, 2: 10})
    with open_store(any_url) as store:
        before = owner_of(store, name, first["consumer"])
        consumer.close()
        after = owner_of(store, name, first["consumer"])
        assert before is not None and after is not None
        assert (before.leaves, after.leaves) == (False, True)
        assert reserved(any_url, name) == {1: 10}


def test_a_process_that_was_taken_over_gives_nothing_back(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(30)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    first = old.next(old.initial, 10, prefetch=10)
    old.plan(old.initial, first)
    eventually(lambda: reserved(any_url, name), {1: 10, 2: 10})
    taken_over(any_url, name, first)
    new.plan(old.initial, first)
    second = new.next(first, 10)
    shares = new.plan(first, second)
    old.close()
    assert len(fetched(any_url, name, shares)) == 10
    assert reserved(any_url, name) == {2: 10}


def test_a_process_that_stood_still_reserves_nothing_ahead(any_url, name, consumers, monkeypatch):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(30)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    waits, go, check = threading.Event(), threading.Event(), Ownership.check

    def stand_still(self):
        if threading.current_thread().name == "spark_queue prefetch":
            waits.set()
            go.wait()
        return check(self)

    monkeypatch.setattr(Ownership, "check", stand_still)
    first = old.next(old.initial, 10, prefetch=10)
    old.plan(old.initial, first)
    assert waits.wait(60)
    taken_over(any_url, name, first)
    new.plan(old.initial, first)
    go.set()
    assert isinstance(old.owned.prefetcher.pending.rows.exception(60), FencedError)
    assert reserved(any_url, name) == {1: 10}


def test_what_a_batch_gives_back_itself_is_not_in_the_batch_reserved_meanwhile(any_url, name, consumers, monkeypatch):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(15)))
    consumer, go, check = consumers(any_url, name), threading.Event(), Ownership.check

    def late(self):
        if threading.current_thread().name == "spark_queue prefetch":
            go.wait()
        return check(self)

    monkeypatch.setattr(Ownership, "check", late)
    first = consumer.next(consumer.initial, 10, prefetch=10)
    consumer.plan(consumer.initial, first)
    with open_store(any_url) as store:  # what `operation=settle` does
        later_than(store, store.now())
        add_settled(store, name, first["consumer"].partition("/")[0], 1)
        store.rollback(name, first["consumer"], ids[:1])
        wait_until(lambda: store.ready(name, 10) == 6, description="what was given back may be taken")
    go.set()
    second = consumer.next(first, 100, prefetch=100)
    assert fetched(any_url, name, consumer.plan(first, second)) == ids[10:]


def test_a_process_that_stands_still_while_it_reserves_ahead_takes_nothing_from_the_next(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(4_000)])
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    waits, go, claim = threading.Event(), threading.Event(), type(old.store)._claim

    def stand_still(store, queue, request):
        if request.tag.endswith("/2.1") and not waits.is_set():
            waits.set()
            go.wait()
        return claim(store, queue, request)

    start = old.initial
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(old.store), "_claim", stand_still)
        offset = old.next(start, 1_000, prefetch=1_000)
        old.plan(start, offset)
        assert waits.wait(60)
        taken_over(any_url, name, offset)
        seen = fetched(any_url, name, new.plan(start, offset))
        start, offset = offset, new.next(offset, 1_000)
        assert offset["rows"] == [500, 500]
        go.set()
        eventually(lambda: reserved(any_url, name), {2: 2_000})
        while offset != start:
            seen += fetched(any_url, name, new.plan(start, offset))
            start, offset = offset, new.next(offset, 1_000)
    all_come(any_url, name, new, start, seen, ids)


def test_a_failure_to_reserve_ahead_is_that_of_the_next_batch(sqlite_url, name, consumers, monkeypatch):
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(30)))
    consumer = consumers(sqlite_url, name, delivery="exactly-once")
    offset = consumer.next(consumer.initial, 10, prefetch=10)

    def fails(*_):
        raise StoreError("no")

    monkeypatch.setattr(type(consumer.store), "_claim", fails)
    consumer.plan(consumer.initial, offset)
    with pytest.raises(StoreError, match="no"):
        consumer.next(offset, 10, prefetch=10)
    monkeypatch.undo()
    following = consumer.next(offset, 10, prefetch=10)  # as a restarted query does
    assert (following["seq"], sum(following["rows"])) == (2, 10)


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
def test_the_lease_of_what_is_reserved_ahead_is_renewed(sqlite_url, name, consumers, renewing, monkeypatch, delivery):
    monkeypatch.setattr(batches, "UNSTARTED_LEASE", 3_600_000)  # a promise, not a setting
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(20)))
    options = renewing if delivery == LEAST else {"delivery": delivery}
    consumer = consumers(sqlite_url, name, **options)
    offset = consumer.next(consumer.initial, 10, prefetch=10)
    consumer.plan(consumer.initial, offset)
    eventually(lambda: reserved(sqlite_url, name), {1: 10, 2: 10})
    renewed(sqlite_url, name, ["1.1/0", "2.1/0"], endless=["1.1/0"] if delivery == EXACTLY else [])
    following = consumer.next(offset, 10, prefetch=10)
    assert (following["seq"], sum(following["rows"])) == (2, 10)
    assert consumer.owned.lease_renewer._renew_at == {}, "from now on it may be held without an end"


def with_a_batch_ahead(url, name, consumers, total, limit, ahead):
    """Return a consumer that works on a batch and has reserved the next one, and the end of the batch."""
    with Queue(url, name) as queue:
        queue.push_many(list(range(total)))
    consumer = consumers(url, name, numPartitions="1")
    first = consumer.next(consumer.initial, limit, prefetch=ahead)
    consumer.plan(consumer.initial, first)
    eventually(lambda: reserved(url, name), {1: limit, 2: ahead})
    return consumer, first


def test_a_batch_ahead_that_is_smaller_than_the_limit_is_a_full_one(any_url, name, consumers):
    """Sizes differ from batch to batch: without this, half of the batches would not be reserved ahead."""
    consumer, first = with_a_batch_ahead(any_url, name, consumers, 40, 20, 5)
    second = consumer.next(first, 20, prefetch=10)
    assert second["rows"] == [5]
    consumer.plan(first, second)
    eventually(lambda: reserved(any_url, name), {2: 5, 3: 10})


def test_a_batch_ahead_that_is_far_too_large_is_released(any_url, name, consumers):
    consumer, first = with_a_batch_ahead(any_url, name, consumers, 60, 10, 50)
    second = consumer.next(first, 10)
    assert (second["rows"], second["by"]) == ([10], first["by"] + 1), "no tag names two reservations"
    assert reserved(any_url, name) == {2: 10}
    with Queue(any_url, name) as queue:
        assert queue.sizes().ready == 40
        tries = {one.tries for one in queue.peek(100)}
    assert tries == {0}, "a release is no failure"
    consumer.plan(first, second)
    assert sum(consumer.next(second, 100)["rows"]) == 40
