"""Lists of queues in MongoDB, and collections that are adopted."""

from __future__ import annotations

import pytest
from pymongo import MongoClient

from spark_queue import NotAQueue, OptionError, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.mongodb import marks
from tests.stores.mongodb.applications import (
    FIRST,
    as_it_is,
    capped,
    is_whole,
    like_messages,
    of_another_layout,
    same_name_of_index,
    time_series,
    view,
)

# --- lists ----------------------------------------------------------------------------------------


def test_who_has_dropped_a_queue_waits_for_its_new_mark(mongodb_url, users):
    """Its own answer is that there is no queue: an operation with a hint fails on the new one, and reads the mark."""
    with open_store(mongodb_url) as store, open_store(mongodb_url) as other:
        other.push(users.name, pushes(["old"]))
        store.drop(users.name)
        assert store.ready(users.name, 1) == 0
        other.push(users.name, pushes(["new"]))  # it believes its answer of just now
        assert store.reserve(users.name, "c/1", 5) == [1]


def test_who_has_dropped_a_queue_and_pushes_at_once_waits_for_its_new_mark(mongodb_url, users):
    with open_store(mongodb_url) as store, open_store(mongodb_url) as other:
        other.push(users.name, pushes(["old"]))
        store.drop(users.name)
        other.push(users.name, pushes(["new"]))
        assert store.push(users.name, pushes(["newer"])) == 1


def test_a_list_asks_once_about_each_collection(empty_mongodb_url, monkeypatch):
    asked = []
    examine = marks.Marks._examine
    monkeypatch.setattr(
        marks.Marks, "_examine", lambda self, name, info=None: (asked.append(name), examine(self, name, info))[1]
    )
    with MongoClient(empty_mongodb_url) as client, open_store(empty_mongodb_url) as store:
        database = client.get_default_database()
        database["invoices"].insert_one({"n": 1})
        database["old"].create_index(FIRST[0][0], **FIRST[0][1])
        with open_store(empty_mongodb_url) as peer:
            peer.push("new", pushes(["a"]))
        asked.clear()
        assert [store.queues() for _ in range(3)] == [["new", "old"]] * 3
        assert sorted(asked) == ["invoices", "old"]


# --- adoption -------------------------------------------------------------------------------------


def test_an_adopted_collection_is_a_queue(mongodb_url, users):
    like_messages(users)
    documents = list(users.find())
    with open_store(mongodb_url) as store, open_store(mongodb_url) as peer:
        found = store.inspect_foreign(users.name)
        assert (found.place, found.documents) == (f"{users.database.name}.{users.name}", 3)
        assert found.indexes == {"_id_": "_id: 1"} and not found.is_queue
        assert store.adopt(users.name) == found
        assert list(users.find()) == documents, "adoption changes no document"
        assert peer.inspect_foreign(users.name).is_queue and peer.adopt(users.name).is_queue
        assert users.name in peer.queues()
        is_whole(peer, users.name, users, "mongo", held=3)


@pytest.mark.parametrize("application", [view, capped, time_series, of_another_layout, same_name_of_index])
def test_what_cannot_be_a_queue_is_not_adopted(mongodb_url, users, application):
    application(users)
    before = as_it_is(users)
    with open_store(mongodb_url) as store, pytest.raises(NotAQueue, match=r"Use another name$"):
        store.adopt(users.name)
    assert as_it_is(users) == before


def test_what_does_not_exist_needs_no_adoption(mongodb_url, users):
    with open_store(mongodb_url) as store, pytest.raises(OptionError, match="nothing needs to be adopted"):
        store.adopt(users.name)
    assert users.name not in users.database.list_collection_names()
