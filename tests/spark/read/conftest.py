"""Fixtures of several tests of readers."""

from __future__ import annotations

import threading

import pytest

from spark_queue.options.roles import parse_options
from spark_queue.spark.read import batches, lease_renewer
from spark_queue.spark.read.consumer import Consumer
from spark_queue.stores import store_class
from spark_queue.stores.services import signals
from spark_queue.stores.support.waiting import Bell
from tests.spark.read.inputs import make_world


@pytest.fixture
def consumers():
    """Makes consumers of a queue, and closes them."""
    made = []

    def make(url, queue, **options):
        raw = {"url": url, "queue": queue, "numPartitions": "2", "waitTimeout": "50ms"} | options
        made.append(Consumer(parse_options(raw, "stream")))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def brisk(set_limits):
    """Make processes of consumers write heartbeats often, and none count as gone for a slow one."""
    set_limits(heartbeat=0.05, owner_timeout_ms=3_600_000)


@pytest.fixture
def renewing(set_limits, monkeypatch):
    """Make consumers renew leases of an hour every 50 ms: a slow machine loses none.

    By default they renew after a third of the lease, which this checks.
    """
    set_limits(heartbeat=0.05)

    def make(options, *rest):
        made = lease_renewer.LeaseRenewer(options, *rest)
        assert made._interval == (options.reserve_timeout or batches.UNSTARTED_LEASE) / 3000
        made._interval = 0.05
        return made

    monkeypatch.setattr(batches, "LeaseRenewer", make)
    return {"reserveTimeout": "1h"}


@pytest.fixture
def world(any_url, name):
    """Two queues of each store in turn."""
    world = make_world(name, {"here": any_url})
    yield world
    world.close()


@pytest.fixture
def small(sqlite_url, name):
    """Two queues of SQLite."""
    world = make_world(name, {"here": sqlite_url})
    yield world
    world.close()


@pytest.fixture
def file_world(sqlite_url, tmp_path, name):
    world = make_world(name, {"one": sqlite_url, "two": f"sqlite:///{tmp_path}/two.db"})
    yield world
    world.close()


@pytest.fixture
def by_signals(any_url, set_limits):
    """Make clients of the store wait for signals only. They listen before they check.

    A signal of a file does not say that a queue was resumed: there, clients still poll for that.
    """
    set_limits(poll_interval_ms=3_600_000, listen_timeout=60)
    if issubclass(store_class(any_url), signals.SignallingStore):
        set_limits(pause_cache=3_600)


@pytest.fixture
def listening(any_url, monkeypatch):
    """Return a function that waits until a client of the store has found nothing, and sleeps."""
    of, begun = store_class(any_url), threading.Event()
    listen = of._wait_signal

    def spy(*arguments):
        begun.set()
        listen(*arguments)

    monkeypatch.setattr(of, "_wait_signal", spy)
    sleep = Bell.sleep

    def spy_bell(*arguments):
        begun.set()
        sleep(*arguments)

    monkeypatch.setattr(Bell, "sleep", spy_bell)

    def wait():
        assert begun.wait(60)
        begun.clear()

    return wait
