"""The sizes of many queues take few requests: their number does not grow with each queue."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from pymongo.monitoring import CommandListener
from redis.connection import AbstractConnection

from spark_queue import open_store
from spark_queue.admin import sizes as admin_sizes
from spark_queue.messages.message import pushes
from spark_queue.rest.looks.queue_metrics import queue_statuses
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.mongodb import store as mongodb_store
from spark_queue.stores.mongodb.counting import FEW_PLACES, JOINED_PIPELINES
from spark_queue.stores.redis.store import RedisStore


class Commands(CommandListener):
    """The names of the commands that MongoDB's driver sends, and how many pipelines it joins at most."""

    def __init__(self):
        self.names, self.joined = [], 0

    def started(self, event):
        self.names.append(event.command_name)
        self.joined = max(self.joined, len(event.command.get("pipeline", ())))

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def filled(store, number, ending=""):
    """Return the names of queues, each with a message."""
    prefix = f"q{uuid.uuid4().hex[:12]}"
    names = [f"{prefix}.{one}{ending}" for one in range(number)]
    for name in names:
        store.push(name, pushes([{"n": "1"}]))
    return names


@with_limits(queues_per_count=5)
def test_mongodb_gets_three_commands_for_each_chunk(mongodb_url, monkeypatch):
    listener = Commands()
    monkeypatch.setitem(mongodb_store.DEFAULTS, "event_listeners", [listener])
    with open_store(mongodb_url) as store:
        names = filled(store, 12)
        try:
            store.write_counts()  # which is not done in between then
            for chunks, some in ((1, names[:5]), (2, names[:7]), (3, names)):
                listener.names.clear()
                assert [one.ready for one in store.sizes_of(some).values()] == [1] * len(some)
                each = ["aggregate", "hello", "listCollections"]
                assert sorted(listener.names) == sorted(each * chunks)
            listener.names.clear()
            assert store.sizes(names[0]).ready == 1
            assert sorted(listener.names) == ["aggregate", "hello"], "one queue is not listed"
            listener.names.clear()
            assert len(store.sizes_of([f"{name}.missing" for name in names[:5]])) == 5
            assert "aggregate" not in listener.names
        finally:
            for name in names:
                store.drop(name)


def test_no_request_to_mongodb_has_more_stages_than_it_takes(mongodb_url, monkeypatch):
    listener = Commands()
    monkeypatch.setitem(mongodb_store.DEFAULTS, "event_listeners", [listener])
    url = f"{mongodb_url}{'&' if '?' in mongodb_url else '?'}layout=pl-mongo&pipeline=p{uuid.uuid4().hex[:12]}"
    with open_store(url) as store:
        names = filled(store, FEW_PLACES + 1)
        try:
            for some, least in ((names[:-1], 7 * FEW_PLACES), (names, len(names))):
                listener.joined = 0
                assert [one.ready for one in store.sizes_of(some).values()] == [1] * len(some)
                assert least <= listener.joined <= 1_000, "the most stages of a pipeline"
            assert JOINED_PIPELINES < 1_000
        finally:
            store._database()[store.pipeline].drop()  # type: ignore[attr-defined]


def sent(monkeypatch):
    """Return a list that grows with each request to Redis."""
    found, send = [], AbstractConnection.send_packed_command

    def counted(self, command, *args, **named):
        found.append(command)
        return send(self, command, *args, **named)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    return found


@with_limits(queues_per_count=5)
@pytest.mark.parametrize("layout", ["redis-oq", "redis-list", "rfq"])
def test_redis_gets_one_request_for_each_chunk(redis_url, layout, monkeypatch):
    with open_store(f"{redis_url}?layout={layout}") as store:
        names = filled(store, 12)
        try:
            assert len(store.sizes_of(names)) == 12
            store.write_counts()  # which is not done in between then
            requests = sent(monkeypatch)
            for chunks, some in ((1, names[:1]), (1, names[:5]), (2, names[:6]), (3, names)):
                requests.clear()
                assert [one.ready for one in store.sizes_of(some).values()] == [1] * len(some)
                assert len(requests) == chunks
        finally:
            for name in names:
                store.drop(name)


def test_a_redis_that_has_forgotten_its_scripts_gets_one_request_more(redis_url, monkeypatch):
    with open_store(redis_url) as store:
        assert isinstance(store, RedisStore)
        names = filled(store, 3)
        try:
            store.sizes_of(names)
            store.write_counts()
            # A text that no server knows yet, as after a restart. SCRIPT FLUSH would disturb others.
            new = f"-- {uuid.uuid4().hex}\n{store._scripts['sizes'][1]}"
            store._scripts = store._scripts | {"sizes": (hashlib.sha1(new.encode()).hexdigest(), new)}
            requests = sent(monkeypatch)
            for expected in (2, 1):
                requests.clear()
                assert [one.ready for one in store.sizes_of(names).values()] == [1] * 3
                assert len(requests) == expected
        finally:
            for name in names:
                store.drop(name)


@pytest.mark.every_store
def test_what_lists_queues_asks_for_all_of_them_at_once(store, any_url, monkeypatch):
    names = filled(store, 4)
    calls = []
    attempt = type(store)._attempt

    def counted(self, operation, *arguments):
        calls.append(getattr(operation, "__name__", ""))
        return attempt(self, operation, *arguments)

    monkeypatch.setattr(type(store), "_attempt", counted)
    try:
        found = admin_sizes.sizes(any_url, names)
        assert [one.ready for one in found] == [1] * 4
        assert calls == ["_summary"]
        statuses = queue_statuses(store)
        assert [statuses[name]["size"] for name in names] == [1] * 4
        assert all(statuses[name]["next_t"] <= 0 for name in names)
    finally:
        for name in names:
            store.drop(name)
