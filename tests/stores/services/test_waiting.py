"""Waiting for many queues takes one thread and one connection; a pool in use is an error."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from spark_queue import PoolExhausted, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import DEADLINE, wait_until
from tests.stores.services.test_signals import HOUR, deaf_for_an_hour, listeners, other  # noqa: F401

pytestmark = pytest.mark.every_store  # each has signals of its own

#: Each store that carries signals, in turn.
signalling = pytest.mark.stores(server=True)


@pytest.fixture
def store(url_of, scheme):
    with opened(url_of(scheme)) as one:
        yield one


@pytest.fixture
def url(url_of, scheme):
    return url_of(scheme)


@pytest.fixture
def run():
    """How the queues of a test begin."""
    return f"t{uuid.uuid4().hex[:12]}"


class Sleepers:
    """Threads that wait for a message, each of one queue; all have checked, and sleep."""

    def __init__(self, store, queues):
        self.before, self.awake = set(listeners()), {}
        self.threads = [threading.Thread(target=self._wait, args=(store, queue), daemon=True) for queue in queues]
        for one in self.threads:
            one.start()
        wait_until(lambda: self._asleep(store) == len(queues), description="that all of them sleep")

    def _wait(self, store, queue):
        if store.wait(queue, HOUR):
            self.awake[queue] = time.monotonic()

    @staticmethod
    def _asleep(store):
        return sum(one.waiters for one in store._listener._queues.values() if one.listening) if store._listener else 0

    @property
    def listeners(self):
        return set(listeners()) - self.before


def opened(url: str) -> Any:  # a store of the one kind or the other: tests look into it
    return open_store(url)


def with_parameters(url, parameters):
    return f"{url}{'&' if '?' in url else '?'}{parameters}" if parameters else url


@signalling
def test_many_queues_are_waited_for_by_one_thread_and_the_store_goes_on(deaf_for_an_hour, store, other, run):  # noqa: F811
    queues = [f"{run}.{number}" for number in range(150)]
    sleepers = Sleepers(store, queues)
    assert len(sleepers.listeners) == 1
    began = time.monotonic()
    for queue in random.sample(queues, 10):
        pushed = time.monotonic()
        other.push(queue, pushes(["x"]))
        wait_until(lambda: queue in sleepers.awake)  # noqa: B023
        assert sleepers.awake[queue] - pushed < DEADLINE
        assert list(sleepers.awake)[-1] == queue
        assert store.reserve(queue, "c/1", 1) == [1]
    assert len(sleepers.awake) == 10, "the others sleep"
    assert time.monotonic() - began < DEADLINE
    store.close()
    wait_until(lambda: not any(one.is_alive() for one in sleepers.threads), description="the end of all waits")
    wait_until(lambda: not sleepers.listeners, description="the end of its thread")
    assert len(sleepers.awake) == 10
    for queue in sleepers.awake:
        other.drop(queue)


@signalling
def test_a_thousand_queues_that_were_waited_for_leave_one_thread(deaf_for_an_hour, store, other, run):  # noqa: F811
    before = set(listeners())
    for number in range(1_000):
        store._signal_version(f"{run}.{number}")
    assert len(set(listeners()) - before) == 1
    queue = f"{run}.700"
    counts = {number: store._signal_version(f"{run}.{number}") for number in (699, 700, 701)}
    pushed = time.monotonic()
    other.push(queue, pushes(["x"]))
    store._wait_signal(queue, counts[700], HOUR)
    assert time.monotonic() - pushed < DEADLINE
    assert {n for n, count in counts.items() if store._signal_version(f"{run}.{n}") != count} == {700}
    other.drop(queue)


@signalling
@with_limits(listener_heartbeat=0.1)
def test_ten_thousand_queues_are_forgotten(store, run):
    for number in range(10_000):
        store._signal_version(f"{run}.{number}")
    wait_until(lambda: len(store._listener._queues) <= store.limits.idle_queues)
    assert f"{run}.9999" in store._listener._queues
    assert not store._listener._changes or len(store._listener._changes) < 10_000


@with_limits(listener_heartbeat=0.05, idle_queues=5)
def test_forgotten_queues_are_unsubscribed_from_redis(redis_url, raw, run):
    queues = [f"{run}.{number}" for number in range(20)]
    with opened(redis_url) as store:
        for queue in queues:
            store._signal_version(queue)
        channels = [store.topic(queue) for queue in queues]
        heard = lambda: [bool(n) for _, n in raw.pubsub_numsub(*channels)]  # noqa: E731
        wait_until(lambda: heard() == [False] * 15 + [True] * 5, description="that the first are forgotten")
    wait_until(lambda: not any(heard()), description="the end of its connection")


def test_redis_has_one_connection_for_all_signals(redis_url, raw, run):
    before = {one["id"] for one in raw.client_list(_type="pubsub")}
    with opened(redis_url) as store:
        for number in range(100):
            store._signal_version(f"{run}.{number}")
        new = [one for one in raw.client_list(_type="pubsub") if one["id"] not in before]
        assert "100" in [one["sub"] for one in new]  # others may have come meanwhile


def test_mongodb_has_one_cursor_for_signals_and_no_connection_for_each_queue(
    deaf_for_an_hour,  # noqa: F811
    mongodb_url,
    run,
):
    with opened(with_parameters(mongodb_url, f"appname={run}")) as store, MongoClient(mongodb_url) as raw:
        Sleepers(store, [f"{run}.{number}" for number in range(150)])

        def cursors():
            pipeline = [{"$currentOp": {"allUsers": True}}, {"$match": {"appName": run, "op": "getmore"}}]
            return list(raw.admin.aggregate(pipeline))

        assert len(wait_until(cursors)) == 1
        assert cursors()[0]["ns"].endswith("_signal.default")


@signalling
def test_who_waits_is_woken_in_a_process_that_was_forked(deaf_for_an_hour, store, other, run):  # noqa: F811
    Sleepers(store, [run])  # the parent's thread hears, and is not there in the child

    def wait():
        store.wait(f"{run}.child", HOUR)

    child = multiprocessing.get_context("fork").Process(target=wait)
    child.start()
    other.push(f"{run}.child", pushes(["x"]))
    child.join(DEADLINE)
    child.kill()
    assert child.exitcode == 0
    other.drop(f"{run}.child")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the driver's: it was not closed
@signalling
@with_limits(listener_heartbeat=0.05, idle_timeout=0.1)
def test_a_store_without_references_leaves_no_thread(url, run):
    before = set(listeners())
    store = opened(url)
    store._signal_version(run)
    assert len(set(listeners()) - before) == 1
    gone = weakref.ref(store)
    del store
    wait_until(lambda: gc.collect() is not None and gone() is None, description="the end of its thread")


# --- what is lost ---------------------------------------------------------------------------------


def test_a_cursor_that_is_ended_or_overtaken_is_followed_by_another(
    deaf_for_an_hour,  # noqa: F811
    empty_mongodb_url,
    run,
    caplog,
):
    with opened(empty_mongodb_url) as store, MongoClient(empty_mongodb_url) as raw:
        small = raw[f"{raw.get_default_database().name}_signal"]
        small.create_collection("default", capped=True, size=4_096)
        small["default"].insert_one({"dummy": True})
        with caplog.at_level(logging.WARNING), opened(empty_mongodb_url) as other:
            for turn in range(4):
                sleepers = Sleepers(store, [f"{run}.{turn}"])
                if turn == 3:  # dropped
                    raw.drop_database(small.name)
                    wait_until(lambda: small["default"].options().get("capped"), description="that it is made again")
                elif turn == 0:  # overtaken
                    for _ in range(20):
                        small["default"].insert_many(
                            [{"event": f"keuss:signal:N:{run}", "message": 1.0} for _ in range(500)]
                        )
                else:
                    cursor = store._listener._subscription._cursor
                    raw.get_database(small.name).command("killCursors", "default", cursors=[cursor.cursor_id])
                other.push(f"{run}.{turn}", pushes(["x"]))
                wait_until(lambda: sleepers.awake)  # noqa: B023
        assert not caplog.records


@with_limits(reconnect_pause=0.05)
def test_a_connection_that_is_cut_is_followed_by_another(
    deaf_for_an_hour,  # noqa: F811
    redis_url,
    raw,
    run,
):
    with opened(redis_url) as store, opened(redis_url) as other:  # noqa: F811
        sleepers = Sleepers(store, [run])
        port = store._listener._subscription._pubsub.connection._sock.getsockname()[1]
        [mine] = [one for one in raw.client_list() if one["addr"].endswith(f":{port}")]
        raw.client_kill_filter(_id=mine["id"])
        wait_until(lambda: mine["id"] not in [one["id"] for one in raw.client_list()])
        wait_until(lambda: raw.pubsub_numsub(store.topic(run))[0][1], description="another connection")
        other.push(run, pushes(["x"]))
        wait_until(lambda: sleepers.awake)
        other.drop(run)


# --- a pool in use --------------------------------------------------------------------------------


@contextmanager
def connections_held(connections, hold):
    """Hold connections, each in a thread, within the block."""
    with ThreadPoolExecutor(connections) as threads:
        holding = [threads.submit(hold) for _ in range(connections)]
        yield
        assert not any(one.done() for one in holding), "they were not held for long enough"


def test_a_mongodb_pool_in_use_is_an_error_and_no_hang(mongodb_url, run):
    url = with_parameters(mongodb_url, "maxPoolSize=2&waitQueueTimeoutMS=200")
    with opened(url) as store:
        store.push(run, pushes(["x"]))
        client = store._database().client
        version = client.admin.command("hello")["topologyVersion"]

        def hold():  # the server answers late, for nothing changes
            client.admin.command("hello", topologyVersion=version, maxAwaitTimeMS=3_000)

        with connections_held(2, hold):
            wait_until(lambda: [one.pool.active_sockets for one in client._topology._servers.values()] == [2])
            for act in (lambda: store.push(run, pushes(["x"])), lambda: store.reserve(run, "c/1", 1), store.now):
                began = time.monotonic()
                with pytest.raises(PoolExhausted, match=r"all 2 connections .* in 0\.2 s: .* maxPoolSize in the URL"):
                    act()
                assert 0.2 <= time.monotonic() - began < 1
        assert store.push(run, pushes(["x"])) == 1
        store.drop(run)


def test_a_mongodb_pool_has_a_time_limit_unless_the_url_says_another(mongodb_url):
    for parameters, seconds in (("", 10), ("waitqueuetimeoutms=3000", 3)):
        with opened(with_parameters(mongodb_url, parameters)) as store:
            assert store._database().client.options.pool_options.wait_queue_timeout == seconds


@with_limits(pool_size=2, pool_timeout=0.2)
def test_a_redis_pool_in_use_is_an_error_and_no_hang(redis_url, run):
    with opened(redis_url) as store:
        store.push(run, pushes(["x"]))
        with store._connection() as client:
            pass
        begun = threading.Barrier(3)

        def hold():
            begun.wait(DEADLINE)
            client.blpop([f"{run}.none"], timeout=3)

        with connections_held(2, hold):
            begun.wait(DEADLINE)
            wait_until(lambda: client.connection_pool.pool.empty())
            began = time.monotonic()
            with pytest.raises(PoolExhausted, match=r"all 2 connections .* in 0\.2 s"):
                store.push(run, pushes(["x"]))
            assert 0.2 <= time.monotonic() - began < 1
        assert store.push(run, pushes(["x"])) == 1
        store.drop(run)


@with_limits(pool_size=4)
def test_more_threads_than_connections_share_the_redis_pool(redis_url, run):
    with opened(redis_url) as store:
        with ThreadPoolExecutor(50) as threads:
            assert sum(threads.map(lambda n: store.push(run, pushes([n])), range(500))) == 500
        with store._connection() as client:
            assert client.connection_pool._connections and len(client.connection_pool._connections) <= 4
        store.drop(run)


@with_limits(poll_interval_ms=50)
def test_a_pool_of_one_mongodb_connection_is_left_to_the_operations(mongodb_url, run, caplog):
    with (
        opened(with_parameters(mongodb_url, "maxPoolSize=1")) as store,
        opened(mongodb_url) as other,  # noqa: F811
        caplog.at_level(logging.WARNING),
    ):
        sleepers = Sleepers(store, [run])
        other.push(run, pushes(["x"]))
        wait_until(lambda: sleepers.awake)
        assert store.reserve(run, "c/1", 1) == [1]
        store.drop(run)
    [warned] = [one.getMessage() for one in caplog.records]
    assert "maxPoolSize=1 leaves no connection for signals: set 2 or more" in warned


# --- SIGTERM --------------------------------------------------------------------------------------

WAITS = """
import signal, sys, threading
from spark_queue.stores import open_store

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
with open_store(sys.argv[1]) as store:
    queues = [f"{sys.argv[2]}.{number}" for number in range(100)]
    for queue in queues:
        threading.Thread(target=store.wait, args=(queue, 3_600_000), daemon=True).start()
    while sum(one.waiters for one in store._get_listener()._queues.values()) < 100:
        store.now()
    print("all wait", flush=True)
    store.wait(sys.argv[2], 3_600_000)
"""


@signalling
def test_sigterm_ends_a_process_with_a_hundred_waiting_threads(url, run):
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, url, run], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "all wait\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 3
        finally:
            process.kill()
