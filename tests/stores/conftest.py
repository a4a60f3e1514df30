"""What tests of several folders need to look at Redis itself."""

from __future__ import annotations

import pymongo
import pytest
import redis
import tenacity

from spark_queue.stores import STORES
from spark_queue.stores.mongodb import store as mongodb_store
from spark_queue.stores.sqlite import file as sqlite_file
from tests.stores.crash import Plan, watched
from tests.stores.crash_worlds import MongoWorld, RedisWorld, SqliteWorld, World


@pytest.fixture
def raw(redis_url):
    """What other programs see of Redis."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def world(request, url_of, monkeypatch, set_limits):
    """A world in which no client waits long before it tries again."""
    # Counts are no part of an operation, so none is written while it runs.
    set_limits(smallest_partition=3, flush_interval=3_600, kill_delay=0.005, publisher_timeout=0.03)
    monkeypatch.setattr(tenacity, "wait_random_exponential", lambda **_: tenacity.wait_fixed(0.005))
    scheme, _, variant = request.param.partition(" ")
    url, plan = url_of(scheme), Plan()
    opened: World
    match STORES[scheme].server:
        case "":
            monkeypatch.setattr(sqlite_file, "Connection", watched(plan))
            opened = SqliteWorld(url, url, plan)
        case "redis":
            opened = RedisWorld(url, plan, forgets=variant == "forgets its scripts")
        case "mongodb":
            monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)  # of the driver
            if variant == "without transactions":
                hello = mongodb_store.MongoStore._hello
                monkeypatch.setattr(mongodb_store.MongoStore, "_hello", lambda self: (hello(self)[0], False))
            opened = MongoWorld(url, plan)
        case server:
            pytest.fail(f"{scheme}: no World knows the requests of a {server} server; write one")
    yield opened
    opened.close()
