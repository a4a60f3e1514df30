"""The place of a message among those of the same due time: see stores/mongodb/places.py."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from bson import DatetimeMS, ObjectId
from pymongo import MongoClient

from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.order import drain, own_ids
from spark_queue.stores.mongodb import store as mongodb_store
from spark_queue.stores.mongodb.documents import INDEXES, OLD_INDEXES
from spark_queue.stores.mongodb.keys import key_of
from spark_queue.stores.mongodb.places import Places
from spark_queue.stores.mongodb.store import MongoStore

PAST = datetime(2020, 1, 1, tzinfo=UTC)
OLD_NAMES = {one.document["name"] for one in OLD_INDEXES}
NEW_NAMES = {one.document["name"] for one in INDEXES}


@pytest.fixture
def collection(mongodb_url):
    with MongoClient(mongodb_url, tz_aware=True) as client:
        found = client.get_default_database()[f"t{uuid.uuid4().hex[:16]}"]
        yield found
        found.drop()


def insert_old(collection, ids, first):
    """Insert messages as a version without `_seq` did."""
    collection.insert_many(
        {"_id": key_of(id), "_sid": id, "mature": PAST, "payload": first + n, "tries": 0, "hdrs": {}}
        for n, id in enumerate(ids)
    )


def names_of(collection):
    return {one["name"] for one in collection.list_indexes()}


def test_a_queue_of_the_version_before_is_taken_over(mongodb_url, collection):
    collection.create_indexes([*OLD_INDEXES, *INDEXES[2:]])
    insert_old(collection, [f"order-{n}" for n in range(12)], 0)
    by_key = sorted(range(12), key=lambda n: key_of(f"order-{n}"))
    with open_store(mongodb_url) as store:
        assert store.sizes(collection.name).ready == 12
        assert names_of(collection) >= OLD_NAMES, "looking changes nothing"
        store.push(
            collection.name, pushes(list(range(12, 20)), ids=[f"new {one}" for one in own_ids(8)], mature=PAST)
        )
        assert names_of(collection) >= NEW_NAMES and not names_of(collection) & OLD_NAMES
        assert drain(store, collection.name, 5) == by_key + list(range(12, 20))


def test_a_client_of_the_version_before_may_go_on_beside(mongodb_url, collection):
    with MongoStore(mongodb_url) as store, MongoStore(mongodb_url) as later:
        store.push(collection.name, pushes([0, 1, 2], ids=["c", "b", "a"]))
        collection.create_indexes(list(OLD_INDEXES))  # as that client does when it misses its indexes
        insert_old(collection, ["x"], 9)
        assert drain(store, collection.name, 2) == [9, 0, 1, 2]
        for client in (store, later):
            client._marks.expire()
            client.push(collection.name, pushes([3]))
            assert not names_of(collection) & OLD_NAMES, "a new client drops them"
            collection.create_indexes(list(OLD_INDEXES))
        for client in (store, later):
            client._marks.expire()
            client.push(collection.name, pushes([4]))
        assert names_of(collection) >= OLD_NAMES, "each client does so once: the other one needs them"


def test_messages_with_generated_ids_are_as_before(mongodb_url, collection, monkeypatch):
    monkeypatch.setattr(mongodb_store, "PLACES", Places())  # other tests have pushed scheduled messages
    with open_store(mongodb_url) as store:
        for n in range(5):
            store.push(collection.name, pushes([n] * 10))
    assert [one for one in collection.find() if "_seq" in one] == []


class Clock:
    """Pushes of documents without a server, at moments that a test chooses."""

    def __init__(self):
        self.places = Places()

    def push(self, moment, *ids):
        documents = [{"_id": key_of(id), "mature": DatetimeMS(moment)} for id in ids]
        self.places.add_to(documents, pushes([0] * len(ids), ids=list(ids)).column("id"))
        return [one.get("_seq") for one in documents]


def test_only_what_needs_a_place_gets_one():
    clock = Clock()
    low, high = f"{5:024x}", f"{9:024x}"
    assert clock.push(10, low) == [None]
    assert clock.push(10, high) == [None], "its id is greater"
    (first,) = clock.push(10, f"{7:024x}")
    assert isinstance(first, ObjectId), "its id is not"
    assert clock.push(10, f"{11:024x}") > [first], "it has to come after that one"
    assert clock.push(11, low) == [None], "at another moment the order is known"
    own = clock.push(11, "b", "a")
    assert own == sorted(own) and None not in own
    assert clock.push(12, low, f"{4:024x}") != [None, None], "they do not grow"
    assert clock.push(13, low, high) == [None, None]


def test_scheduled_messages_keep_their_order_with_later_ones(mongodb_url, collection):
    due = datetime.now(UTC) + timedelta(hours=1)
    with open_store(mongodb_url) as store:
        store.push(collection.name, pushes([0, 1], ids=["b", "a"], mature=due))
        store.push(collection.name, pushes([2, 3], mature=due))
        store.push(collection.name, pushes([4, 5], ids=["B", "A"], mature=due))
        collection.update_many({}, {"$set": {"mature": PAST}})
        assert drain(store, collection.name, 2) == list(range(6))
