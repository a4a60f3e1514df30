"""A reader that dies while it buries damaged records: another completes that, and nothing is lost or comes twice."""

from __future__ import annotations

import itertools

from spark_queue.message import messages, pushes
from tests import stores
from tests.store import odd
from tests.store.crash import Way
from tests.store.test_crash_points import BOTH, SCHEMES, cases, world

__all__ = ["world"]


def fetched(store, queues):
    """What a reader gets, and buries."""
    one, two = queues
    return [message.payload["n"] for page in store.fetch(one, "c/1/0", dead=two) for message in messages(page)]


@cases(*SCHEMES)
def test_burying_is_completed_whatever_request_fails(world, name, way):
    scheme = world.store.url.partition(":")[0]
    kind = f"{scheme} {stores.default_layout(scheme)}"
    bad = [one for one in odd.TABLE[kind] if one.rows > 1 or "list" in one.name][:2]
    one, two = queues = [f"{world.prefix}.{place}" for place in BOTH]
    world.store.now()  # makes the file
    for at in itertools.count(0):
        for record in bad:
            odd.put(kind, world.store.url, one, record.record, mature=5)
        world.store.push(one, pushes([{"n": 1}, {"n": 2}]))
        assert world.store.reserve(one, "c/1", 10) == [2 + sum(record.rows for record in bad)]
        if at == 0:
            assert world.undisturbed(fetched, queues) == [1, 2]
            struck, what = True, "nothing"
        else:
            struck, got = world.disturbed(at, way, fetched, queues)
            what = world.told(at, way)
            assert way is Way.KILLED or got == [1, 2], what
            world.bury()
        assert fetched(world.store, queues) == [1, 2], what
        assert world.store.commit(one, "c/1") == 2, what
        assert world.store.sizes(one).total == 0, what
        assert world.store.sizes(two).total == len(bad), what
        world.store.purge(two)
        if not struck:
            return
