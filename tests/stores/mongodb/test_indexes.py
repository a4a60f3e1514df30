"""Notes, reservations that pass on, and indexes in MongoDB."""

from __future__ import annotations

import json
import uuid

from bson import DatetimeMS, ObjectId
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from spark_queue.errors import StoreUnavailable
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.waiting import MINUTE_MS
from spark_queue.stores.mongodb.documents import READY_INDEX, WAITING_ORDER
from spark_queue.stores.types import Condition, Note, Sizes
from tests.stores.mongodb.programs import keuss_ko, keuss_ok, keuss_push, keuss_reserve

# --- notes, and reservations that pass on ---------------------------------------------------------


def test_a_note_may_hold_what_bson_cannot(store, raw_of):
    key = f"{uuid.uuid4().hex}/$ünï.\u2028"
    value = {"$set": {"a.b": 2**70, "\0": None}, "": [1.5, True]}
    assert store.set_note(key, value, 0)
    assert store.note(key) == Note(value, 1)
    assert list(store.notes(key[:20])) == [key]
    (kept,) = raw_of(store)["spark_queue.notes"].find({"_id": key})
    assert kept.keys() == {"_id", "version", "value", "written"}
    assert store.set_note(key, None, 1)


def test_a_server_that_does_not_know_yet_what_most_have_is_asked_again(store):
    error = OperationFailure("Read concern majority reads are currently not possible", 134)
    assert isinstance(store._to_store_error(error), StoreUnavailable)


def test_a_note_is_read_as_most_servers_have_it(store, monkeypatch):
    read = []
    find = Collection.find

    def watched(self, *arguments, **options):
        read.append((self.name, self.read_concern.level))
        return find(self, *arguments, **options)

    monkeypatch.setattr(Collection, "find", watched)
    store.note("none")
    store.notes("none")
    assert read == [("spark_queue.notes", "majority")] * 2


def test_what_keuss_took_meanwhile_is_not_passed_on(store, queue, collection):
    store.push(queue, pushes(["a", "b", "c"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE_MS)
    first, second, third = ids_of(store.fetch(queue, "c/1/0"))
    assert keuss_ok(collection, ObjectId(first)) == 1
    assert keuss_ko(collection, ObjectId(second)) == 1
    assert keuss_reserve(collection)["_id"] == ObjectId(second)
    assert store.transfer(queue, "c/1", "c/2/0", lease=None) == 1
    assert ids_of(store.fetch(queue, "c/2/0")) == [third]
    assert (
        keuss_ko(collection, ObjectId(third)) == 1
    )  # keuss may give back what was passed on, and that is the end of it
    assert store.transfer(queue, "c/2", "c/3/0", lease=None) == store.commit(queue, "c/2") == 0


def test_what_lies_under_the_new_tag_already_keeps_its_lease(store, queue, collection):
    store.push(queue, pushes(["a", "b"]))
    store.reserve(queue, "c/1", 1, lease=MINUTE_MS)
    store.reserve(queue, "c/2", 1, lease=None)
    before = collection.find_one({"_tag": "c/1/0"})
    assert store.transfer(queue, "c", "c/1/0", lease=5 * MINUTE_MS) == 1
    assert collection.find_one({"_id": before["_id"]}) == before
    assert store.reservations(queue)[0].rows == 2


# --- indexes --------------------------------------------------------------------------------------


def test_a_claim_looks_at_an_index_alone(store, queue, collection):
    store.push(queue, pushes(list(range(100)), delay=[None, MINUTE_MS] * 50))
    due = {"processed": None, "mature": {"$lte": DatetimeMS(store.now())}}
    looking = (
        collection.find(due, {"_id": 1}, limit=20, hint=READY_INDEX.document["name"]).sort(WAITING_ORDER).explain()
    )
    assert looking["executionStats"]["totalDocsExamined"] == 0
    assert looking["executionStats"]["totalKeysExamined"] <= 22
    plan = json.dumps(looking["queryPlanner"]["winningPlan"])
    assert "SORT" not in plan
    if [int(part) for part in collection.database.client.server_info()["versionArray"][:2]] >= [6, 0]:
        assert "PROJECTION_COVERED" in plan


def test_an_id_is_looked_up_by_its_index(store, queue, monkeypatch):
    ids = new_ids(2_000)
    store.push(queue, pushes(list(range(2_000)), ids=ids))
    plans = []
    find = Collection.find

    def explained(self, *arguments, **options):
        plans.append(find(self, *arguments, **options).explain()["executionStats"]["totalKeysExamined"])
        return find(self, *arguments, **options)

    monkeypatch.setattr(Collection, "find", explained)
    for limit in (None, 10):
        assert ids_of(store.peek(queue, [Condition("id", "in", (ids[7], ids[1999]))], limit=limit)) == [
            ids[7],
            ids[1999],
        ]
    assert max(plans) < 10


def test_looking_makes_nothing(store, queue, collection):
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.reserve(queue, "c/1", 1) == []
    assert queue not in store.queues()
    keuss_push(collection, "a")
    assert store.sizes(queue).ready == 1
    assert (store.next_mature(queue) or 0) <= 0
    assert len(messages_of(store.peek(queue, limit=1))) == 1
    assert list(collection.index_information()) == ["_id_", "mature_1"]


def test_dropped_indexes_are_made_again(store, queue, collection):
    store.push(queue, pushes(["a", "b"]))
    collection.drop_indexes()
    assert store.reserve(queue, "c/1", 1) == [1]
    collection.drop()
    assert store.commit(queue, "c/1") == 0
    store.push(queue, pushes(["c"]))
    assert store.reserve(queue, "c/2", 1) == [1]
    assert store.commit(queue, "c/2") == 1
