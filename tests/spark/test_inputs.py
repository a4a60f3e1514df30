"""Several queues read at once: rows side by side, or of the first that has some; restarts, kills, other consumers."""

from __future__ import annotations

import json

import pytest

from spark_queue import Queue, open_store
from spark_queue.message import messages
from spark_queue.options import QueueOptions
from spark_queue.spark.inputs import Inputs
from spark_queue.spark.share import side_by_side
from spark_queue.store.owner import revoke


@pytest.fixture
def two(any_url, name):
    """Two queues of a store."""
    return any_url, f"{name}.a", f"{name}.b"


class World:
    """Queues of one or several stores, and the ways they are read together, without Spark."""

    def __init__(self, urls, queues):
        self.urls, self.queues = urls, queues  # ns -> URL, binding -> (ns, queue)
        self.made = []

    @property
    def inputs(self):
        return {binding: {"queue": queue, "ns": ns} for binding, (ns, queue) in self.queues.items()}

    def options(self, bindings=None, **options):
        inputs = {binding: self.inputs[binding] for binding in bindings or self.inputs}
        raw = {"urls": json.dumps(self.urls), "inputs": json.dumps(inputs), "waitTimeout": "50ms"} | options
        return QueueOptions.parse(raw, "stream", "snapshot")

    def reader(self, bindings=None, **options):
        made = Inputs(self.options(bindings, **{"numPartitions": "2"} | options))
        self.made.append(made)
        return made

    def push(self, binding, values, **options):
        ns, queue = self.queues[binding]
        with Queue(self.urls[ns], queue) as opened:
            return opened.push_many(values, **options)

    def sizes(self):
        found = {}
        for binding, (ns, queue) in self.queues.items():
            with open_store(self.urls[ns]) as store:
                sizes = store.sizes(queue)
                found[binding] = (sizes.ready, sizes.reserved)
        return found

    def rows(self, reader, shares):
        """What tasks get: by row, the payloads by binding."""
        found = []
        for share in shares:
            for batches in side_by_side(reader._options, share):
                of = {binding: [one.payload for one in messages(batch)] for binding, batch in batches.items()}
                found += [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
        return found

    def gone(self, offset):
        """As if the process that runs the consumer were gone."""
        for ns, queue in self.queues.values():
            with open_store(self.urls[ns]) as store:
                revoke(store, queue, offset["consumer"])


@pytest.fixture
def world(two):
    url, a, b = two
    world = World({"here": url}, {"a": ("here", a), "b": ("here", b)})
    yield world
    for one in world.made:
        one.close()


def same(numbers):
    return [{"a": n, "b": n} for n in numbers]


def test_the_nth_comes_with_the_nth_whatever_comes_meanwhile(world):
    reader, start, seen = world.reader(delivery="exactly-once"), None, []
    start = reader.initial
    world.push("a", range(1_500))
    assert reader.next(start, 1_000) == start, "b has none"
    assert world.sizes() == {"a": (1_500, 0), "b": (0, 0)}
    world.push("b", range(700))
    for most, come in ((1_000, 700), (1_000, 0)):
        end = reader.next(start, most)
        assert end["seq"] - start["seq"] == bool(come)
        if come:
            assert end["rows"] == {"a": [350, 350], "b": [350, 350]}
            assert world.sizes() == {"a": (800, 700), "b": (0, 700)}
            seen += world.rows(reader, reader.plan(start, end))
        start = end
    world.push("b", range(700, 2_000))
    world.push("a", range(1_500, 1_600))
    while (end := reader.next(start, 600)) != start:
        seen += world.rows(reader, reader.plan(start, end))
        start = end
    assert seen == same(range(1_600))
    assert world.sizes() == {"a": (0, 0), "b": (400, 0)}
