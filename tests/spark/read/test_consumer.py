"""The consumer of a query: deliveries, owners, and heartbeats."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_queue import FencedError, Queue, StoreError, open_store
from spark_queue.spark.read import backlog
from spark_queue.spark.read.offsets import Offset, commit_offset
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services import owner, ownership
from spark_queue.stores.services.owner import revoke
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.types import Sizes, queue_note_key
from tests.owners import owner_of
from tests.spark.read.consumers import DROPPED, EXACTLY, LEAST, all_come, fetched, taken_over


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
        assert self.looks < 1_000, "it waits forever"
        self.meanwhile()


@pytest.mark.parametrize("late", ["before the batch is planned", "after it is committed"])
def test_what_a_predecessor_reserves_late_is_neither_lost_nor_kept(any_url, name, consumers, late):
    with Queue(any_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(3_000)])
    old, new = (consumers(any_url, name, delivery="exactly-once") for _ in range(2))
    start, waits, go = old.initial, threading.Event(), threading.Event()
    claim = old.store._claim

    def stand_still(queue, request):
        if request.tag.endswith("/1.1"):
            waits.set()
            go.wait()
        return claim(queue, request)

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
    assert offset["rows"] == [600, 600]
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
        assert clock.looks == 2 + StoreLimits.owner_timeout_ms / 1000 / StoreLimits.takeover_poll, (
            "until it has been silent for LIFE"
        )
        with pytest.raises(FencedError, match="has taken over"):
            first.renew()
        store.drop(name)


def test_a_dead_owner_is_taken_over_at_once_and_a_silent_one_after_a_while(sqlite_url, name, monkeypatch):
    program = (
        "import sys; from spark_queue import open_store\n"
        "from spark_queue.stores.conformance.limits import limits_of\n"
        "from spark_queue.stores.services.ownership import Ownership\n"
        "limits = limits_of(sys.argv[1], owner_timeout_ms=3_600_000)\n"
        "with open_store(sys.argv[1], limits=limits) as store: Ownership(store, sys.argv[2], 'c/1').take()"
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
        # now of another machine, so no process can know whether it lives
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
        wait_until(lambda: not owner._start_time(child.pid))  # it has ended, and its exit code was not read yet
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


@with_limits(count_limit=10)
def test_a_backlog_is_counted_up_to_a_limit_and_rarely_as_a_whole(any_url, name, consumers, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: now))
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
