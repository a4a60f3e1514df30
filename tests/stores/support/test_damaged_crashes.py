"""A reader dies while it dead-letters damaged records: another completes that, exactly once."""

from __future__ import annotations

import itertools

import pytest

from spark_queue.messages.message import messages, pushes
from spark_queue.stores.policy import QueuePolicy
from tests import odd, registered
from tests.stores.crash import Way
from tests.stores.crash_worlds import BOTH
from tests.stores.test_crash_points import cases


def fetched(store, queues):
    """What a reader gets, and buries."""
    one, two = queues
    pages = store.queue(one, QueuePolicy(dead_letter_queue=two)).read("c/1/0")
    return [message.payload["n"] for page in pages for message in messages(page)]


@cases(*registered.schemes(server=False))
def test_burying_is_completed_whatever_request_fails(world, name, way):
    check_reader(world, way)


@pytest.mark.full
@cases(*registered.schemes(server=True))
def test_burying_is_completed_on_a_server_whatever_request_fails(world, name, way):
    check_reader(world, way)


def check_reader(world, way):
    """Cut a reader off at one request after the other, and let another go on."""
    scheme = world.store.url.partition(":")[0]
    kind = f"{scheme}/{registered.default_layout(scheme)}"
    bad = next(one for one in odd.TABLE[kind] if one.rows > 1)
    one, two = queues = [f"{world.prefix}.{place}" for place in BOTH]
    world.store.now()  # makes the file
    for at in itertools.count(0):
        odd.put(kind, world.store.url, one, bad.record, mature=5)
        world.store.push(one, pushes([{"n": 1}, {"n": 2}]))
        assert world.store.reserve(one, "c/1", 10) == [2 + bad.rows]
        if at == 0:
            assert world.undisturbed(fetched, queues) == [1, 2]
            struck, what = True, "nothing"
        else:
            struck, got = world.disturbed(at, way, fetched, queues)
            what = world.describe(at, way)
            assert way is Way.KILLED or got == [1, 2], what
            world.bury()
        assert fetched(world.store, queues) == [1, 2], what
        assert world.store.commit(one, "c/1") == 2, what
        assert world.store.sizes(one).total == 0, what
        assert world.store.sizes(two).total == 1, what
        world.store.purge(two)
        if not struck:
            return
