"""A queue has the policy that each program asked for, and programs that share a store keep their own."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import spark_queue
from spark_queue import Buckets, OptionError, Queue
from spark_queue.events import Events
from spark_queue.messages.message import pushes
from spark_queue.stores.base import set_layout
from spark_queue.stores.policy import NOT_GIVEN, QueuePolicy
from spark_queue.stores.support.patience import retrying_for

ROWS = 500


def rows_of_records(store, queue):
    """Return the ids of the buckets of a queue."""
    return [id for page in store._buckets(queue, None) for id in page.batch.column("id").to_pylist()]


def test_two_queues_of_one_store_write_as_each_was_asked(store, name):
    packed = Queue(store, name, layout=Buckets(100))
    single = Queue(store, name, layout="single")
    usual = Queue(store, f"{name}.usual")
    for queue in (packed, single, usual):
        queue.push_many(range(ROWS))
    assert len(rows_of_records(store, name)) == ROWS / 100  # those of `packed`
    assert rows_of_records(store, f"{name}.usual") == []
    packed.push_many(range(ROWS))
    assert len(rows_of_records(store, name)) == 2 * ROWS / 100


def test_events_change_no_other_queue(store, name):
    queue = Queue(store, name, layout=Buckets(100))
    events = Events(store, f"{name}.events")
    queue.push_many(range(ROWS))
    assert len(rows_of_records(store, name)) == ROWS / 100
    events.create_batch("http://example.org/flights", "landed", None, [f"/{n}" for n in range(5)], max_uris=1)
    events.take()
    assert rows_of_records(store, events.name) == rows_of_records(store, events.log.queue) == []


def test_events_are_single_whatever_the_setting_of_their_queue(store, name):
    events = Events(store, name)
    for queue in (name, events.log.queue):
        set_layout(store, queue, Buckets(10))
    events.create_batch("http://example.org/flights", "landed", None, [f"/{n}" for n in range(5)], max_uris=1)
    for number in range(3):
        events.log.add(f"entry {number}", [])
    events.log.write()
    assert store.sizes(name).ready == 5 and store.sizes(events.log.queue).ready == 3
    assert rows_of_records(store, name) == rows_of_records(store, events.log.queue) == []


def test_what_was_not_given_is_the_setting_of_the_queue(store, name):
    set_layout(store, name, Buckets(50))
    given, not_given = store.queue(name, QueuePolicy(layout="single")), store.queue(name)
    assert (given.layout, not_given.layout) == ("single", Buckets(50))
    given.push(pushes(range(ROWS)))
    assert rows_of_records(store, name) == []
    not_given.stage("s/0/a", pushes(range(ROWS)))
    store.publish(["s/0/a"])
    assert len(rows_of_records(store, name)) == ROWS / 50


def test_a_policy_knows_what_was_given():
    policy = QueuePolicy(lease=None, max_tries=3)
    assert policy.lease is None and policy.history is NOT_GIVEN
    assert repr(policy) == "QueuePolicy(lease=None, max_tries=3)"


def test_a_queue_of_a_store_is_frozen_and_checked(store, name):
    queue = store.queue(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.policy = QueuePolicy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.policy.lease = 5
    with pytest.raises(OptionError, match="negative"):
        QueuePolicy(lease=-1)
    with pytest.raises(OptionError, match="cannot name a queue"):
        store.queue("")
    other = queue.with_policy(lease=5)
    assert (queue.lease, other.lease) == (120_000, 5)


@pytest.mark.parametrize("setting", ["url", "retry_timeout", "create_missing"])
def test_a_store_has_no_setting_that_can_be_set(store, setting):
    with pytest.raises(AttributeError):
        setattr(store, setting, None)


def test_patience_ends_with_its_block(store):
    usual = store.retry_timeout
    with retrying_for(7):
        assert store.retry_timeout == 7
    assert store.retry_timeout == usual


def settings_of_stores(source):
    """Return the public attributes of stores that a module sets."""
    targets = [
        target
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return [
        ast.unparse(one)
        for one in targets
        if isinstance(one, ast.Attribute)
        and not one.attr.startswith("_")
        and ast.unparse(one.value).endswith("store")
    ]


def test_no_module_sets_an_attribute_of_a_store():
    modules = Path(spark_queue.__file__).parent.rglob("*.py")
    assert {str(path): found for path in modules if (found := settings_of_stores(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source", ["self.store.layout = 5", "store.retry_timeout += 1", "queue._store.front: bool = True"]
)
def test_a_set_attribute_is_seen(source):
    assert settings_of_stores(source)
