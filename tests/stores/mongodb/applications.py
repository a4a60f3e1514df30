"""Collections as applications have them, and operations on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo.collection import Collection
from pymongo.database import Database

from spark_queue.messages.message import messages, pushes

PAST = datetime(2020, 1, 1, tzinfo=UTC)

#: The indexes that a queue has had since the first commit, by layout, and the one of buckets, which came later.
FIRST: list[Any] = [
    ([("processed", 1), ("mature", 1), ("_id", 1)], {"name": "spark_queue_ready"}),
    (
        [("_tag", 1), ("_mature", 1), ("_id", 1)],
        {"name": "spark_queue_held", "partialFilterExpression": {"reserved": {"$exists": True}}},
    ),
    ([("_until", 1)], {"name": "spark_queue_ending", "sparse": True, "expireAfterSeconds": 0}),
]


def as_it_is(collection: Collection) -> object:
    database: Database = collection.database
    listed = [one for one in database.list_collections() if one["name"] == collection.name]
    kind = listed[0]["type"] if listed else None
    indexes = collection.index_information() if kind == "collection" else None
    return listed, indexes, list(collection.find())


def like_messages(collection):
    document = {"mature": PAST, "payload": {"a": 1}, "tries": 0, "hdrs": {}, "_q": "sales"}
    collection.insert_many([document | {"_id": ObjectId()} for _ in range(3)])


def same_name_of_index(collection):
    collection.create_index("name", name="spark_queue_ready")
    like_messages(collection)


def capped(collection):
    collection.database.create_collection(collection.name, capped=True, size=4096)
    collection.create_index("mature")
    like_messages(collection)


def view(collection):
    source = collection.database[f"{collection.name}.source"]
    like_messages(source)
    collection.database.create_collection(collection.name, viewOn=source.name)


def time_series(collection):
    collection.database.create_collection(collection.name, timeseries={"timeField": "mature"})
    collection.insert_one({"mature": PAST, "payload": 1, "tries": 0, "hdrs": {}})


def of_another_layout(collection):
    collection.create_index([("_q", 1), ("processed", 1), ("mature", 1), ("_id", 1)], name="spark_queue_ready")
    like_messages(collection)


def is_whole(store, name, collection, layout, *, held=0):
    """Whether it works as a queue: it is listed, its message comes out, and a push goes in."""
    if held or layout != "pl-mongo":
        assert name in store.queues()
    assert store.exists(name) or layout == "pl-mongo"
    assert store.sizes(name).ready == held
    assert sum(store.reserve(name, "c/1", 10)) == held
    assert store.commit(name, "c/1") == held
    store.push(name, pushes(["new"]))
    assert store.reserve(name, "c/2", 10) == [1]
    assert [one.payload for batch in store.fetch(name, "c/2/0") for one in messages(batch)] == ["new"]
    names = {one["name"] for one in collection.list_indexes()}
    assert names >= {"spark_queue_next", "spark_queue_tagged", "spark_queue_buckets"}
    assert not names & {"spark_queue_ready", "spark_queue_held"}, "those of earlier versions are dropped"
    store.drop(name)
    assert name not in store.queues()
