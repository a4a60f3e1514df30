"""What survives the kill of a server, by its settings; see docs/reliability.md."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

import pytest

from spark_queue import Queue, open_store
from spark_queue.stores.sqlite.store import SqliteStore
from tests.chaos.servers import Server
from tests.services import ServiceError


@contextmanager
def server(kind, folder, **settings):
    try:
        own = Server(kind, folder, **settings)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        yield own
    finally:
        own.kill()


def lost(own, seconds):
    """How many messages were acknowledged and are gone, after the server was killed the moment that one was."""
    acknowledged = []
    with open_store(own.url, retry_timeout=0) as store, Queue(store, "q") as queue:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            acknowledged += queue.push_many(list(range(10)))
        own.kill()
    own.start()
    with open_store(own.url, retry_timeout=60_000) as store:
        found = {id for batch in store.peek("q") for id in batch.column("id").to_pylist()}
        store.drop("q")
    assert len(acknowledged) >= 20
    return len(set(acknowledged) - found)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("redis", {"aof": "always"}),
        pytest.param("redis", {"aof": "everysec"}, marks=pytest.mark.full),
        pytest.param("redis", {"aof": "no"}, marks=pytest.mark.full),
        pytest.param("mongodb", {}, marks=pytest.mark.full),
        pytest.param("mongodb", {"options": "w=1"}, marks=pytest.mark.full),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(one.values()) or "default",
)
def test_a_killed_server_keeps_what_was_acknowledged(kind, settings, rng, tmp_path):
    with server(kind, tmp_path, **settings) as own:
        assert [lost(own, rng.uniform(0.2, 1)) for _ in range(2)] == [0, 0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("redis", {"aof": "none"}), ("mongodb", {"options": "w=1&journal=false"})],
    ids=["redis-none", "mongodb-journal=false"],
)
def test_a_server_without_durability_loses_messages(kind, settings, rng, tmp_path):
    with server(kind, tmp_path, **settings) as own:
        assert any(lost(own, rng.uniform(0.2, 0.5)) for _ in range(5)), "it is better than the documentation says"


def test_sqlite_has_on_disk_what_it_acknowledges(sqlite_url):
    with SqliteStore(sqlite_url) as store:
        store.now()
        with store._connection.use() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
