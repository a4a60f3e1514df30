"""The real keuss and spark_queue count in one place, pause for each other, and wake each other."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from urllib.parse import urlencode

import pytest
from pymongo import MongoClient

from spark_queue import Queue, Statistics
from spark_queue.stores.conformance.waiting import wait_until
from tests.interop.keuss import Keuss, unavailable

pytestmark = [pytest.mark.interop, pytest.mark.full]

#: Seconds after which what should have happened has not: less than keuss sleeps between two looks.
DEADLINE = 50


@pytest.fixture
def deaf_for_an_hour(set_limits):
    """Let a client that waits poll after an hour only: nothing but a signal can wake it in time."""
    set_limits(poll_interval_ms=3_600_000)


#: What carries signals, and where they and the statistics are: beside the queues, or as the samples of keuss-server
#: have it, in databases of other names, which our URL names or has as URLs; or signals go over Redis.
PLACES = ["redis-pubsub", "mongo-capped", "mongo-capped, named", "mongo-capped, URLs", "mongo over Redis"]


@pytest.fixture(params=PLACES)
def carried(request, redis_url, mongodb_url):
    """A queue, and a keuss that hears and sends the signals of its database: gives both, and our URL.

    keuss follows a capped collection only if it makes it itself, and once: so its database is new.
    """
    if reason := unavailable():
        pytest.skip(reason)
    name = f"t{uuid.uuid4().hex[:16]}"
    with ExitStack() as stack:
        if request.param == "redis-pubsub":
            url, places, theirs = redis_url, {}, {"stats": True, "signals": ("redis-pubsub", redis_url)}
        else:
            head, mark, query = mongodb_url.partition("?")
            database = f"t{uuid.uuid4().hex[:12]}"
            url, stats, signals = (
                f"{head.rpartition('/')[0]}/{database}{end}{mark}{query}"
                for end in ("", "_keuss_stats", "_keuss_signal")
            )
            raw = stack.enter_context(MongoClient(url))
            for kind in ("", "_signal", "_stats", "_keuss_stats", "_keuss_signal"):
                stack.callback(raw.drop_database, f"{database}{kind}")
            places, theirs = {
                "mongo-capped": ({}, {"stats": True, "signals": ("mongo-capped", url)}),
                "mongo-capped, named": (
                    {"stats": f"{database}_keuss_stats", "signals": f"{database}_keuss_signal"},
                    {"stats": stats, "signals": ("mongo-capped", signals), "exact": True},
                ),
                "mongo-capped, URLs": (
                    {"stats": stats, "signals": signals},
                    {"stats": stats, "signals": ("mongo-capped", signals), "exact": True},
                ),
                "mongo over Redis": ({"signals": redis_url}, {"stats": True, "signals": ("redis-pubsub", redis_url)}),
            }[request.param]
        ours_url = f"{url}{'&' if '?' in url else '?'}{urlencode(places)}" if places else url
        backend = "redis-oq" if url == redis_url else "mongo"
        keuss = stack.enter_context(Keuss(backend, url, name, **theirs))
        ours = stack.enter_context(Queue(ours_url, name))
        stack.callback(ours.store.drop, name)
        yield keuss, ours


class Waiting:
    """Something that takes a message, begun, and given the time to wait for one.

    It cannot be seen when keuss waits. If it needs longer than it is given, it finds the message at once.
    """

    def __init__(self, take):
        self.got = []
        threading.Thread(target=lambda: self.got.append(take()), daemon=True).start()
        time.sleep(0.5)

    def end(self):
        """Wait until it has taken one, and return that."""
        return wait_until(lambda: self.got, DEADLINE, description="the end of a wait")[0]


@pytest.fixture
def sleeps(carried, monkeypatch):
    """Whenever our client falls asleep it adds to this."""
    fallen: list[object] = []
    store = carried[1].store
    listen = store._wait_signal
    monkeypatch.setattr(store, "_wait_signal", lambda *arguments: fallen.append(arguments) or listen(*arguments))
    return fallen


# --- statistics -----------------------------------------------------------------------------------------------------


def test_keuss_reads_our_counts(shared):
    keuss, ours = shared.keuss(stats=True), shared.ours()
    ours.push_many([1, 2, 3, 4, 5])
    held = ours.reserve(4)
    ours.commit(*held[:2])
    ours.rollback(held[2])
    ours.dead_letter(held[3])
    ours.pop()
    assert ours.statistics() == Statistics(put=5, reserve=4, commit=2, rollback=1, deadletter=1, get=1)
    assert keuss.stats() == {"put": 5, "reserve": 4, "commit": 2, "rollback": 1, "deadletter": 1, "get": 1}
    assert shared.keuss(ours.dead_name, stats=True).stats() == {"put": 1}


@pytest.mark.needs("hold")
def test_we_read_the_counts_of_keuss_and_add_to_them(shared):
    keuss, ours = shared.keuss(stats=True), shared.ours()
    for n in range(4):
        keuss.push(n)
    keuss.ok(keuss.reserve().id)
    keuss.ko(keuss.reserve().id)
    keuss.pop()
    wait_until(lambda: ours.statistics() == Statistics(put=4, reserve=2, commit=1, rollback=1, get=1))
    ours.push(5)
    assert ours.statistics() == Statistics(put=5, reserve=2, commit=1, rollback=1, get=1)
    keuss.push(6)
    wait_until(lambda: keuss.stats()["put"] == ours.statistics().put == 6)


def test_keuss_lists_a_queue_of_ours_and_we_one_of_keuss(shared):
    keuss, ours = shared.keuss(f"{shared.name}.theirs", stats=True), shared.ours()
    ours.push("x")
    ours.commit(*ours.reserve())
    shared.store.pause(f"{shared.name}.paused")
    assert ours.statistics().put == 1
    listed = {name: facts for name, facts in keuss.list().items() if name.startswith(shared.name)}
    assert listed.keys() == {shared.name, f"{shared.name}.theirs", f"{shared.name}.paused"}
    mine = listed[shared.name]
    assert (mine["ns"], mine["name"], mine["opts"], mine["paused"]) == ("N", shared.name, {}, False)
    assert mine["counters"] == {"put": 1, "reserve": 1, "commit": 1}
    assert listed[f"{shared.name}.paused"]["paused"] is True
    keuss.push("y")
    wait_until(lambda: shared.store.all_statistics()[f"{shared.name}.theirs"] == Statistics(put=1))


# --- pause ----------------------------------------------------------------------------------------------------------


def test_a_pause_of_keuss_stops_us_until_keuss_ends_it(shared):
    keuss, ours = shared.keuss(stats=True), shared.ours()
    ours.push_many([1, 2])
    ours.commit(*ours.reserve())
    keuss.pause()
    wait_until(lambda: ours.store._pause_cache.is_paused(ours.name), description="that it is asked for again")
    assert ours.paused()
    assert ours.reserve() == ours.reserve(timeout=0.3) == []
    assert keuss.push(3)
    keuss.pause(False)
    assert len(ours.reserve(2, timeout=DEADLINE)) == 2


def test_a_pause_of_ours_stops_a_keuss_that_starts_later(shared):
    ours = shared.ours()
    ours.push(1)
    ours.pause()
    keuss = shared.keuss(stats=True)
    assert keuss.paused()
    assert keuss.pop(timeout=0.5) is None
    ours.resume()
    assert not keuss.paused()
    assert shared.keuss(stats=True).pop().payload == 1


def test_both_count_and_pause_in_one_place(carried):
    keuss, ours = carried
    keuss.push(1)
    ours.push(2)
    wait_until(lambda: keuss.stats().get("put") == ours.statistics().put == 2)
    ours.pause()
    wait_until(keuss.paused)
    keuss.pause(False)
    wait_until(lambda: not ours.paused())


def test_our_pause_and_resume_are_heard_by_a_keuss_that_waits(carried):
    keuss, ours = carried
    assert keuss.pop(timeout=1) is None  # it reads the flag once, and follows the signals from then on
    ours.pause()
    wait_until(keuss.heard)
    ours.push("x")
    assert keuss.pop(timeout=0.5) is None
    waiting = Waiting(lambda: keuss.pop(timeout=DEADLINE))
    assert not waiting.got
    ours.resume()
    assert waiting.end().payload == "x"


def test_a_pause_and_a_resume_of_keuss_are_heard_by_us_who_wait(deaf_for_an_hour, carried, sleeps):
    keuss, ours = carried
    waiting = Waiting(lambda: ours.reserve(timeout=3_600))
    wait_until(lambda: sleeps)
    keuss.pause()
    wait_until(lambda: ours.store.is_paused(ours.name, max_age_ms=3_600_000))  # a signal says so: no client asks
    before = len(sleeps)
    keuss.push("x")
    wait_until(lambda: len(sleeps) > before, description="that the signal has woken it, and it sleeps again")
    assert not waiting.got
    keuss.pause(False)
    assert [one.payload for one in waiting.end()] == ["x"]


def test_a_push_of_one_wakes_the_other(deaf_for_an_hour, carried, sleeps):
    keuss, ours = carried
    waiting = Waiting(lambda: ours.reserve(timeout=3_600))
    wait_until(lambda: sleeps)
    keuss.push("theirs")
    (message,) = waiting.end()
    assert ours.commit(message) == 1
    waiting = Waiting(lambda: keuss.pop(timeout=DEADLINE))
    ours.push("ours")
    assert waiting.end().payload == "ours"


# --- Spark ----------------------------------------------------------------------------------------------------------


def test_a_pause_of_keuss_stops_spark_until_keuss_ends_it(shared, spark, tmp_path):
    keuss, got = shared.keuss(stats=True), []
    keuss.push(1)
    writing = (
        spark.readStream.format("queue").options(url=shared.url, queue=shared.name, waitTimeout="300ms").load()
        .writeStream.foreachBatch(lambda df, i: got.extend(df.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )  # fmt: skip
    query = writing.start()
    try:
        wait_until(lambda: shared.ours().statistics().commit == 1)  # else the batch comes again
        assert len(got) == 1
        query.stop()
        keuss.pause()
        keuss.push(2)
        query = writing.start()
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", description="that it has looked")
        assert (len(got), query.isActive, shared.ours().sizes().ready) == (1, True, 1)
        keuss.pause(False)
        wait_until(lambda: len(got) == 2)
        wait_until(lambda: shared.ours().statistics() == Statistics(put=2, reserve=2, commit=2))
    finally:
        query.stop()
    assert keuss.stats() == {"put": 2, "reserve": 2, "commit": 2}
