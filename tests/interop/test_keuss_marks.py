"""Collections that the real keuss has just created are queues; those of its other backends are none."""

from __future__ import annotations

import uuid

import pytest
from pymongo import MongoClient

from spark_queue import NotAQueue, open_store
from spark_queue.messages.message import messages, pushes
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.types import Sizes
from tests.interop.keuss import Keuss

pytestmark = pytest.mark.full


@pytest.fixture
def name():
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def collections(mongodb_url):
    with MongoClient(mongodb_url) as client:
        yield client.get_default_database()


def as_it_is(collection):
    return collection.index_information(), collection.options(), list(collection.find())


@pytest.mark.parametrize("backend", ["mongo", "ps-mongo", "pl-mongo", "bucket-mongo-safe"])
def test_a_queue_that_keuss_has_just_created_is_a_queue(mongodb_url, collections, name, backend):
    pipeline = backend == "pl-mongo"
    collection = collections["default" if pipeline else name]
    if pipeline:
        collection.drop()
    with Keuss(backend, mongodb_url, name) as keuss, open_store(f"{mongodb_url}&layout={backend}") as store:
        wait_until(lambda: len(collection.index_information()) > 1, description="keuss' indexes")
        before = as_it_is(collection)
        assert store.sizes(name) == Sizes(0, 0, 0)
        assert list(store.peek(name)) == [] and store.reserve(name, "c/1", 1) == []
        if not pipeline:  # else the queue has no trace yet
            assert store.exists(name) and name in store.queues()
        assert as_it_is(collection) == before, "looking changes nothing"
        keuss.push({"of": "keuss"})
        wait_until(lambda: store.sizes(name).ready == 1, description="the message of keuss")
    with open_store(f"{mongodb_url}&layout={backend}") as store:  # nothing is cached
        assert name in store.queues()
        assert store.reserve(name, "c/1", 1) == [1]
        assert [one.payload for batch in store.fetch(name, "c/1/0") for one in messages(batch)] == [{"of": "keuss"}]
        assert store.commit(name, "c/1") == 1
        store.push(name, pushes([{"of": "ours"}]))
        with Keuss(backend, mongodb_url, name) as keuss:
            popped = keuss.pop()
            assert popped is not None and popped.payload == {"of": "ours"}
        store.drop(name)


@pytest.mark.parametrize("backend", ["intraorder", "stream-mongo"])
def test_a_queue_of_a_backend_that_we_do_not_speak_is_not_touched(mongodb_url, collections, name, backend):
    with Keuss(backend, mongodb_url, name), open_store(mongodb_url) as store:
        before = as_it_is(collections[name])
        assert name not in store.queues()
        for act in (store.sizes, store.drop, lambda queue: store.push(queue, pushes(["a"]))):
            with pytest.raises(NotAQueue):
                act(name)
        assert as_it_is(collections[name]) == before
