"""Helpers of several tests of queries with several inputs."""

from __future__ import annotations

import json

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages, pushes
from spark_queue.options.roles import parse_options
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import fetch_zipped
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.schema import read_schema
from spark_queue.stores.services.owner import revoke


class World:
    """Queues of one or several stores, and the ways they are read together, without Spark."""

    def __init__(self, urls, queues):
        self.urls, self.queues = urls, queues  # ns -> URL, binding -> (ns, queue)
        self.logs, self.made = set(), []

    @property
    def inputs(self):
        return {
            binding: {"queue": queue, "ns": ns, "mode": "log" if binding in self.logs else "queue"}
            for binding, (ns, queue) in self.queues.items()
        }

    def columns(self, reader):
        """Those of the first input."""
        return [one.name for one in read_schema(reader._options).fields[0].dataType]  # type: ignore[attr-defined]

    def options(self, bindings=None, **options):
        inputs = {binding: self.inputs[binding] for binding in bindings or self.inputs}
        raw = {"urls": json.dumps(self.urls), "inputs": json.dumps(inputs), "waitTimeout": "50ms"} | options
        return parse_options(raw, "stream")

    def reader(self, bindings=None, **options):
        made = MultiInputPlanner(self.options(bindings, **{"numPartitions": "2"} | options))
        self.made.append(made)
        return made

    def push(self, binding, values, **options):
        ns, queue = self.queues[binding]
        tries = options.pop("tries", 0)
        with Queue(self.urls[ns], queue, **options) as opened:
            batch = pushes(list(values), tries=tries)
            opened.store.push(queue, batch)
            return batch.column("id").to_pylist()

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
            for batches in fetch_zipped(reader._options, share):
                of = {binding: [one.payload for one in messages(batch)] for binding, batch in batches.items()}
                found += [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
        return found

    def close(self):
        for one in self.made:
            one.close()

    def gone(self, offset):
        """As if the process that runs the consumer were gone."""
        for ns, queue in self.queues.values():
            with open_store(self.urls[ns]) as store:
                revoke(store, queue, offset["consumer"])


def make_world(name, urls, count=2):
    places = list(urls)
    queues = {binding: (places[i % len(places)], f"{name}.{binding}") for i, binding in enumerate("abc"[:count])}
    return World(urls, queues)


def same(numbers):
    return [{"a": n, "b": n} for n in numbers]


def begun(world, **options):
    """A batch whose process died while tasks worked on it, and the reader that goes on with it."""
    world.push("a", range(20))
    world.push("b", range(20))
    old, new = (world.reader(**options) for _ in range(2))
    end = old.next(old.initial, 12)
    shares = old.plan(old.initial, end)
    return old, new, end, shares


def stream(spark, world, bindings="ab", schema=None, **options):
    raw = {"urls": json.dumps(world.urls), "inputs": json.dumps({one: world.inputs[one] for one in bindings})}
    reader = spark.readStream.format("queue").options(
        **raw | {"waitTimeout": "200ms", "numPartitions": "2"} | options
    )
    return (reader.schema(schema) if schema else reader).load()


def start(df, folder, on_batch, **trigger):
    writer = df.writeStream.foreachBatch(on_batch).option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(**trigger or {"processingTime": "0 seconds"}).start()


def planner_of(url, name, **options):
    raw = {"url": url, "numPartitions": "2", "waitTimeout": "0s"} | options
    raw |= {} if "inputs" in raw else {"queue": name}
    parsed = parse_options(raw, "stream")
    return (MultiInputPlanner if "inputs" in raw else Consumer)(parsed)
