"""Messages at the limits between all pairs of stores: each becomes a message, a dead letter, or an error of its push.

Nothing waits: after a query from the one queue to the other, the first one is empty.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter

import pyarrow as pa
import pytest

from spark_queue import open_store
from spark_queue.errors import MessageError
from spark_queue.messages.headers import broken_rule
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.types import DeadLetterInfo
from tests import registered
from tests.limits import Limits
from tests.spark.drive import Query, Write, save
from tests.tiers import param

KINDS = registered.kinds()
PAIRS = [
    param(f"{source} -> {target}", fast=registered.embedded(source.partition(" ")[0]))
    for source, target in itertools.product(KINDS, KINDS)
]


@pytest.fixture
def address(url_of):
    """The URL of a layout of a store; each name has a database, or a pipeline, of its own."""

    def find(kind, name):
        scheme, _, layout = kind.partition(" ")
        url = registered.in_layout(url_of(scheme), layout)
        with open_store(url) as store:
            shared = store.ids_unique_per_store  # an id names one message in all queues: they differ in `pipeline`
        return f"{url}&pipeline={name}" if shared else url

    return find


def push_all_kinds(url, queue, limits, number):
    """Push messages, bad ones as dead letters, and messages of older versions. Return how many there are."""
    rows = 0
    for kind, batch in limits.batches(number):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if kind != "binary":
            columns["payload"] = columns["payload"].view(pa.string())
        save(
            pa.record_batch(columns), url=url, queue=queue, payloadFormat=kind, onBadRow="deadLetter",
            delivery="at-least-once",
        )  # fmt: skip
        rows += batch.num_rows
    with open_store(url) as store:
        stored = limits.stored(5)
        for row in range(stored.num_rows):
            try:
                rows += store._attempt(store._push, queue, stored.slice(row, 1))
            except MessageError:  # no older version of this layout has stored it either
                continue
    return rows


def forward(source, queue, target, to, delivery):
    """Run a query from the one queue to the other until nothing is left."""

    def work(batch):
        parts = [[one.select(["id", "payload", "headers"]) for one in part] for part in batch.partitions]
        columns = next((one.schema for part in parts for one in part), None)
        if columns is not None:
            write = Write(
                columns, query=query.id, batch=batch.number, url=target, queue=to, onBadRow="deadLetter",
                delivery=delivery,
            )  # fmt: skip
            write.run(*parts)

    query = Query(work, url=source, queue=queue, reserveAhead="false")
    query.run()


def rows_in(url, queue):
    with open_store(url) as store:
        return [row for batch in store.peek(queue, check_json=False) for row in batch.to_pylist()]


def bury(url, queue):
    """Make dead letters of all messages of a queue, some as a client does after their last try."""
    with open_store(url) as store:
        while store.reserve(queue, "end/1", 10_000):
            for _ in store.fetch(queue, "end/1/0", check_json=True):
                pass  # what cannot be read is a dead letter now
            reason = DeadLetterInfo("é" * 10_000, failed=1, history=1_000)
            store.move(queue, dead_letter_queue(queue), tag="end/1", dead_letter=reason)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("seed", [pytest.param(1), *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 6))])
def test_each_message_arrives_or_is_a_dead_letter(pair, seed, address):
    name = f"t{uuid.uuid4().hex[:12]}"
    kinds = pair.split(" -> ")
    source, target = address(kinds[0], f"{name}a"), address(kinds[1], f"{name}b")
    delivery = ("exactly-once", "at-least-once")[seed % 2]
    number = 12 if seed == 1 else 40
    queue, to = f"{name}.from", f"{name}.to"
    try:
        given = push_all_kinds(source, queue, Limits(seed, largest=seed > 1), number)
        forward(source, queue, target, to, delivery)
        arrived = len(rows_in(target, to))
        refused, lost = len(rows_in(source, f"{queue}.dead")), len(rows_in(target, f"{to}.dead"))
        print(f"{pair} {delivery}: {given} = {arrived} arrived + {refused} dead at the source + {lost} at the sink")
        with open_store(source) as store:
            assert store.sizes(queue).total == 0, "nothing waits"
        assert arrived + refused + lost == given
        bury(target, to)
        letters = rows_in(target, f"{to}.dead")
        assert len(letters) + refused == given
        assert not rows_in(target, to)
        rules = Counter(broken_rule(dict(one["headers"])) for one in letters)
        assert set(rules) <= {None}, "a dead letter keeps the bounds of headers"
        assert all(dict(one["headers"])["x-error"] for one in letters)
    finally:
        for url, one in ((source, queue), (target, to)):
            with open_store(url) as store:
                store.drop(one)
                store.drop(f"{one}.dead")
