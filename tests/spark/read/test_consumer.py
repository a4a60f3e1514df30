"""The reader process, without Spark: processes that stand still while others take over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_queue import CheckpointError, FencedError, Queue, StoreError, open_store
from spark_queue.messages.message import messages
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read import backlog, batches
from spark_queue.spark.read import lease_renewer as keeper
from spark_queue.spark.read import prefetch as ahead
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.offsets import Offset, commit_offset
from spark_queue.spark.read.prefetch import Prefetcher
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.services import owner, ownership
from spark_queue.stores.services.dead_letters import add_settled
from spark_queue.stores.services.owner import revoke
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.types import Sizes, queue_note_key
from tests.owners import owner_of

MOST, LEAST, EXACTLY = "at-most-once", "at-least-once", "exactly-once"

#: The delivery of a planned batch, and the option after the restart: the batch does not come again.
DROPPED = [(MOST, MOST), (MOST, EXACTLY), (MOST, LEAST), (EXACTLY, MOST)]


@pytest.fixture
def consumers():
    """Makes consumers of a queue, and closes them."""
    made = []

    def make(url, queue, **options):
        raw = {"url": url, "queue": queue, "numPartitions": "2", "waitTimeout": "50ms"} | options
        made.append(Consumer(QueueOptions.parse(raw, "stream", "snapshot")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fetched(url, queue, shares):
    with open_store(url) as store:
        return [one.id for share in shares for batch in store.fetch(queue, share.tag) for one in messages(batch)]


def taken_over(url, queue, start):
    """As if the process that runs the consumer were gone."""
    with open_store(url) as store:
        revoke(store, queue, start["consumer"])


class Clock:
    """The server's time as owners see it. It moves only while one of them waits to take over."""

    def __init__(self, monkeypatch, *stores):
        self.now = stores[0].now()
        self.looks = 0
        self.meanwhile: Callable[[], object] = lambda: None  #: what happens between two looks of the one that waits
        for store in stores:
            monkeypatch.setattr(store, "now", lambda: self.now)
        clock = SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now / 1000)
        monkeypatch.setattr(ownership, "time", clock)
        monkeypatch.setattr(owner, "time", clock)

    def sleep(self, seconds):
        self.now += round(seconds * 1000)
        self.looks += 1
        assert self.looks < 1_000, "it waits for ever"
        self.meanwhile()


@pytest.fixture
def brisk(monkeypatch):
    """Make processes of consumers write heartbeats often, and none count as gone for a slow one."""
    monkeypatch.setattr(keeper, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(owner, "OWNER_TIMEOUT_MS", 3_600_000)


@pytest.fixture
def renewing(monkeypatch):
    """Make consumers renew leases of an hour every 50 ms: a slow machine loses none.

    By default they renew after a third of the lease, which this checks.
    """
    monkeypatch.setattr(keeper, "HEARTBEAT_SECONDS", 0.05)

    def make(options, *rest):
        made = keeper.LeaseRenewer(options, *rest)
        assert made._interval == (options.reserve_timeout or batches.UNSTARTED_LEASE) / 3000
        made._interval = 0.05
        return made

    monkeypatch.setattr(batches, "LeaseRenewer", make)
    return {"reserveTimeout": "1h"}


def renewed(url, queue, tags, endless=()):
    """Wait until just the leases of these tags were renewed twice; endless ones are held."""
    with open_store(url) as store:

        def ends():
            return {one.tag.partition("/")[2].partition("/")[2]: one.until for one in store.reservations(queue)}

        for _ in range(2):
            before = ends()
            assert set(before) == set(tags)
            assert {tag for tag, end in before.items() if end is None} == set(endless)
            wait_until(lambda: all(end is None or end > before[tag] for tag, end in ends().items()))  # noqa: B023
        assert store.reserve(queue, "rival", 100) == []


def all_come(url, name, consumer, start, seen, ids):
    """All other messages come, each once, when the leases of late reservations have ended."""
    with open_store(url) as store:
        for one in store.reservations(name):
            assert one.until is not None, "only what is started is held without an end"
            end_lease(store, name, one.tag)
    while (offset := consumer.next(start, 5_000)) != start:
        seen.extend(fetched(url, name, consumer.plan(start, offset)))
        start = offset
    assert sorted(seen) == sorted(ids)
    with open_store(url) as store:
        assert store.sizes(name).total == 0


@pytest.mark.parametrize("late", ["before the batch is planned", "after it is committed"])
def test_what_a_predecessor_reserves_late_is_neither_lost_nor_kept(any_url, name, consumers, late):
    with Queue(any_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(3_000)])
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    start, waits, go = old.initial, threading.Event(), threading.Event()
    claim = old.store._claim

    def stand_still(queue, tag, *rest):
        if tag.endswith("/1.1/1"):
            waits.set()
            go.wait()
        return claim(queue, tag, *rest)

    old.store._claim = stand_still
    fenced = []

    def reserve_late():
        with pytest.raises(FencedError) as error:
            old.next(start, 1_200)
        fenced.append(error)

    thread = threading.Thread(target=reserve_late)
    thread.start()
    assert waits.wait(60)
    taken_over(any_url, name, start)
    offset = new.next(start, 1_200)
    assert offset["rows"] == [600, 600], "what its predecessor had reserved is given back"
    if late == "before the batch is planned":
        go.set()
        thread.join()
    seen = []
    while offset["seq"] > start["seq"]:
        seen += fetched(any_url, name, new.plan(start, offset))
        start, offset = offset, new.next(offset, 1_200)
        go.set()
        thread.join()
    assert fenced, "Spark never logs it"
    all_come(any_url, name, new, start, seen, ids)


@pytest.mark.usefixtures("brisk")
def test_the_first_batch_that_comes_again_is_owned_by_the_consumer_that_its_offset_names(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(10)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    offset = old.next(old.initial, 100)
    with pytest.raises(FencedError, match="a second query on a copy"):
        new.plan(new.initial, offset)  # Spark asks for the start of batch 0 again, and `initial` is another epoch now
    taken_over(any_url, name, offset)
    new.plan(new.initial, offset)
    with open_store(any_url) as store:
        assert owner_of(store, name, offset["consumer"]) is not None
        assert owner_of(store, name, new.initial["consumer"]) is None


@pytest.mark.parametrize("deliveries", [*DROPPED, (LEAST, EXACTLY)])
def test_a_batch_comes_again_as_what_it_was_planned(any_url, name, consumers, deliveries):
    before, after = deliveries
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(30)))
        old, new = consumers(any_url, name, delivery=before), consumers(any_url, name, delivery=after)
        start = old.initial
        end = old.next(start, 10)
        assert fetched(any_url, name, old.plan(start, end)) == ids[:10]
        taken_over(any_url, name, end)
        assert fetched(any_url, name, new.plan(new.initial, end)) == ([] if deliveries in DROPPED else ids[:10])
        last = new.next(end, 10)
        assert fetched(any_url, name, new.plan(end, last)) == ids[10:20]
        assert new.next(last, 10).get("delivery") == (after if after != LEAST else None), "each batch by itself"
        assert new.backlog().keys() >= {"seq", "ready"} and "delivery" not in new.backlog()


def test_a_living_owner_is_not_taken_over(any_url, name, monkeypatch):
    with open_store(any_url) as store, open_store(any_url) as other:
        first, second = Ownership(store, name, "c/1"), Ownership(other, name, "c/1")
        clock = Clock(monkeypatch, store, other)
        first.take()
        clock.meanwhile = lambda: clock.looks < 20 or first.renew()
        with pytest.raises(FencedError, match=f"is run by process {os.getpid()} on"):
            second.take()
        assert clock.looks == 20, "at its first sign of life"
        first.check()
        Ownership(other, name, "c/2").take()  # another checkpoint is another consumer
        store.drop(name)


def test_an_owner_that_is_about_to_end_is_waited_for(any_url, name, monkeypatch):
    """A query that restarts at once meets the process of the failed run, which releases."""
    with open_store(any_url) as store, open_store(any_url) as other:
        first, second = Ownership(store, name, "c/1"), Ownership(other, name, "c/1")
        clock = Clock(monkeypatch, store, other)
        first.take()
        first.announce_exit()
        clock.meanwhile = lambda: clock.looks > 2 or first.renew()
        second.take()
        assert clock.looks == 2 + owner.OWNER_TIMEOUT_MS / 1000 / ownership.TAKEOVER_POLL, (
            "until it has been silent for LIFE"
        )
        with pytest.raises(FencedError, match="has taken over"):
            first.renew()
        store.drop(name)


def test_a_dead_owner_is_taken_over_at_once_and_a_silent_one_after_a_while(sqlite_url, name, monkeypatch):
    program = (
        "import sys; from spark_queue import open_store; from spark_queue.stores.services import owner, ownership\n"
        "owner.OWNER_TIMEOUT_MS = 3_600_000\n"
        "with open_store(sys.argv[1]) as store: ownership.Ownership(store, sys.argv[2], 'c/1').take()"
    )
    subprocess.run(
        [sys.executable, "-c", program, sqlite_url, name], check=True, env=os.environ | {"PYTHONPATH": "."}
    )
    with open_store(sqlite_url) as store:
        assert owner_of(store, name, "c/1") is None
        clock = Clock(monkeypatch, store)
        mine = Ownership(store, name, "c/1")
        mine.take()
        assert clock.looks == 0
        # now of another machine, of which nobody can tell whether its process lives
        key = queue_note_key(name, "consumer", "c/1")
        note = store.note(key)
        assert note is not None
        elsewhere = note.value["owner"] | {"host": "elsewhere", "until": store.now() + 700}
        store.set_note(key, note.value | {"owner": elsewhere}, note.version)
        next_one = Ownership(store, name, "c/1")
        next_one.take()
        assert clock.looks == 7
        with pytest.raises(FencedError, match=f"process {os.getpid()} on .* has taken over"):
            mine.renew()
        with pytest.raises(FencedError):
            mine.check()
        revoke(store, name, "c/1")
        with pytest.raises(FencedError, match="released manually"):
            next_one.check()


def test_a_zombie_and_another_process_of_the_same_number_are_dead(sqlite_url, name):
    with open_store(sqlite_url) as store:
        mine = Ownership(store, name, "c/1")
        mine.take()
        key = queue_note_key(name, "consumer", "c/1")
        note = store.note(key)
        assert note is not None and owner_of(store, name, "c/1") is not None
        child = subprocess.Popen([sys.executable, "-c", ""])
        wait_until(
            lambda: not owner._start_time(child.pid)
        )  # it has ended, and nobody has asked for its exit code yet
        assert owner._start_time(child.pid) == 0
        child.wait()
        other = note.value["owner"] | {"started": note.value["owner"]["started"] + 1}
        store.set_note(key, note.value | {"owner": other}, note.version)
        assert owner_of(store, name, "c/1") is None


def test_a_note_of_a_newer_version_is_refused(sqlite_url, name):
    with open_store(sqlite_url) as store:
        store.set_note(queue_note_key(name, "consumer", "c/1"), {"v": 3}, 0)
        with pytest.raises(StoreError, match=r"version 3.*upgrade"):
            Ownership(store, name, "c/1").take()


def test_a_consumer_that_was_taken_over_commits_nothing(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(10)))
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    offset = old.next(old.initial, 100)
    old.plan(old.initial, offset)
    taken_over(any_url, name, offset)
    shares = new.plan(old.initial, offset)
    with pytest.raises(FencedError):
        old.next(offset, 100)
    assert len(fetched(any_url, name, shares)) == 10
    new.next(offset, 100)
    with open_store(any_url) as store:
        assert store.sizes(name).total == 0


def test_what_an_offset_names_as_empty_is_not_committed(any_url, name):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    with open_store(any_url) as store:
        assert store.reserve(name, "c/1/1", 10) == [10]
        store.transfer(
            name, "c/1/1/0", "c/1/1/1", [next(store.fetch(name, "c/1/1/0")).column("id")[0].as_py()], lease=None
        )
        offset = Offset(v=1, queue=name, consumer="c/1", seq=1, rows=[9, 0])
        assert commit_offset(store, offset, 0) == 9


def test_a_backlog_is_counted_up_to_a_limit_and_rarely_as_a_whole(any_url, name, consumers, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(backlog, "COUNT_LIMIT", 10)
    counted, sizes_of = [], Store.sizes_of

    def count(store, queues, limit=None):
        nonlocal now
        counted.append(limit)
        now += 0 if limit else 3  # as in a queue of millions
        found = sizes_of(store, queues, limit)
        if limit and found[name].ready > limit:
            found[name] = replace(found[name], ready=limit, capped=frozenset({"ready"}))
        return found

    monkeypatch.setattr(Store, "sizes_of", count)
    with Queue(any_url, name) as queue:
        queue.push_many(["x"] * 25)
    consumer = consumers(any_url, name)

    def report():
        nonlocal now
        now += backlog.IDLE_INTERVAL + 0.1
        return consumer.backlog()

    assert report()["ready"] in (10, 25), "perhaps all of them are counted already"
    consumer.state._backlog._thread.join()
    found = report()
    assert (found["ready"], found["capped"]) == (25, []) and found["sizesAgeMs"] >= 10_000
    assert counted.count(None) == 1
    for _ in range(40):
        report()
    consumer.state._backlog._thread.join()
    assert counted.count(None) == 2, "counting took 3 s, so it rests for 300 s"
    with Queue(any_url, name) as queue:
        queue.purge()
    found = report()
    assert (found["ready"], found["sizesAgeMs"], found["capped"]) == (0, 0, [])
    with Queue(any_url, name) as queue:
        queue.push_many(["x"] * 12)
    monkeypatch.setattr(consumer.state._backlog, "_all", backlog._Counted(Sizes(5, 0, 0), Sizes(0, 0, 0), now))
    assert (found := report())["ready"] in (10, 12), "what was counted long ago is below the lower bound"
    assert found["capped"] in (["ready"], [])


# --- the next batch, reserved while one is worked on ----------------------------------------------


def reserved(url, queue):
    """Rows by the number of their batch."""
    with open_store(url) as store:
        found = Counter()
        for one in store.reservations(queue):
            found[int(one.tag.split("/")[2].partition(".")[0])] += one.rows
        return dict(found)


def later_than(store, moment):
    """Wait until that moment (ms) has passed, even for a client whose clock is wrong by some ms."""
    wait_until(lambda: store.now() > moment + 50)


def eventually(look, wanted):
    with suppress(AssertionError):  # which would not tell what there is instead
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
    monkeypatch.setattr(ahead, "RELEASE_TIMEOUT", 60)
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

    def stand_still(store, queue, tag, *rest):
        if tag.endswith("/2.1/1") and not waits.is_set():
            waits.set()
            go.wait()
        return claim(store, queue, tag, *rest)

    start = old.initial
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(old.store), "_claim", stand_still)
        offset = old.next(start, 1_000, prefetch=1_000)
        old.plan(start, offset)
        assert waits.wait(60)
        taken_over(any_url, name, offset)
        seen = fetched(any_url, name, new.plan(start, offset))
        start, offset = offset, new.next(offset, 1_000)
        assert offset["rows"] == [500, 500], "what was reserved ahead is given back"
        go.set()
        eventually(lambda: reserved(any_url, name), {2: 1_500})
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
    monkeypatch.setattr(batches, "UNSTARTED_LEASE", 3_600_000)
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


# --- what is reserved, and what is started --------------------------------------------------------


def held_until(url, queue):
    """The end of each lease by batch, `None` for never."""
    with open_store(url) as store:
        return {one.tag.split("/")[2]: one.until for one in store.reservations(queue)}


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
    told = f"consumer {end['consumer']}, of another checkpoint, still holds 10 messages of {name}"
    way = f"spark-queue recover URL {name} {end['consumer']} --sink URL"
    assert [one.getMessage() for one in caplog.records] == [f"{told}; if its query never starts again: {way}"]


# --- older checkpoints ----------------------------------------------------------------------------


def numbered(offset: Offset, seq: int) -> Offset:
    other = offset.copy()
    other["seq"] = seq
    return other


def worked(url, name, consumer, start, most, seen):
    """Let a batch be planned, read, and finished; return the offset that Spark has then."""
    end = consumer.next(start, most)
    seen += fetched(url, name, consumer.plan(start, end))
    return end


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


# --- checkpoints and notes of version 1 -----------------------------------------------------------


def of_version_1(url, queue, consumer, rows, seq=1):
    """Make what earlier versions left of a batch under way, and return its offset."""
    with open_store(url) as store:
        assert store.reserve(queue, f"{consumer}/{seq}", rows, lease=None) == [rows]
        gone = {"token": "t", "host": "elsewhere", "boot": "", "pid": 1, "started": 1, "until": 1, "leaves": False}
        store.set_note(queue_note_key(queue, "consumer", consumer), {"v": 1, **gone}, 0)
    return Offset(v=1, queue=queue, consumer=consumer, seq=seq, rows=[rows])


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
