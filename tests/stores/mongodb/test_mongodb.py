"""The MongoDB store: its documents, programs that share them, and failures of the server."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, PyMongoError, WriteConcernError

from spark_queue.errors import MessageError, OptionError, StoreError, StoreUnavailable
from spark_queue.messages.buckets import Buckets
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.conformance import StoreContract
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.waiting import MINUTE_MS, end_lease, wait_until
from spark_queue.stores.mongodb import documents as mongodb_documents
from spark_queue.stores.mongodb import stages as mongodb_stages
from spark_queue.stores.mongodb.bson_json import CODEC, MAX_DOCUMENT_BYTES
from spark_queue.stores.mongodb.documents import READY_INDEX, WAITING_ORDER, to_documents
from spark_queue.stores.mongodb.stages import Stages
from spark_queue.stores.mongodb.store import MongoStore
from spark_queue.stores.types import Condition, DeadLetterInfo, Note, Sizes, Staged
from tests.services import HOST, mongod_command

DUE = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def client_of(url, **options) -> MongoClient[dict[str, Any]]:
    return MongoClient(url, **options)


class Mongod:
    """A server of the test's own; `arguments` may make it another than the plain standalone one."""

    def __init__(self, folder, *arguments):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        (folder / "data").mkdir()
        self.log = folder / "mongod.log"
        command, self.env = mongod_command(self.port, folder / "data")
        at = command.index("--replSet")
        del command[at : at + 2]
        at = command.index("--oplogSize")
        del command[at : at + 2]
        self.command = [*command, *arguments]
        self.start()

    def url(self, database, user=""):
        return f"mongodb://{user}{HOST}:{self.port}/{database}"

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=os.environ | self.env, stdout=log, stderr=log)
        with client_of(self.url("admin"), serverSelectionTimeoutMS=500, directConnection=True) as client:
            wait_until(lambda: self._answers(client), 120, description="a server that answers")

    def _answers(self, client):
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            return client.admin.command("ping")
        except PyMongoError:
            return False

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    server = Mongod(tmp_path_factory.mktemp("standalone"))
    yield server
    server.kill()


@pytest.fixture
def url(mongodb_url):
    return mongodb_url


@pytest.fixture
def collection(url, queue):
    """The queue as other programs see it."""
    with client_of(url) as client:
        yield client.get_default_database(codec_options=CODEC)[queue]


@pytest.fixture
def raw_of():
    """The database of a store as other programs see it."""
    return lambda store: store._database()


def without_place(document):
    """Return a document without its place, which one may have or not: see `places.py`."""
    place = document.pop("_seq", None)
    assert place is None or isinstance(place, ObjectId)
    return document


def keuss_push(collection, payload, **fields):
    collection.create_index("mature")  # keuss does so when it opens a queue
    document = {"_id": ObjectId(), "mature": keuss_now(), "payload": payload, "tries": 0, "hdrs": {}} | fields
    collection.insert_one(document)
    return document["_id"]


def keuss_reserve(collection, seconds=120):
    """What keuss does for `pop` with `reserve`; it sees the document as it was."""
    now = keuss_now()
    change = {"$set": {"mature": now + timedelta(seconds=seconds), "reserved": now}, "$inc": {"tries": 1}}
    return collection.find_one_and_update({"mature": {"$lte": now}}, change, sort=[("mature", 1)])


def keuss_ko(collection, id):
    reserved = {"_id": id, "reserved": {"$exists": True}}
    return collection.update_one(
        reserved, {"$set": {"mature": keuss_now()}, "$unset": {"reserved": ""}}
    ).modified_count


def keuss_ok(collection, id):
    return collection.delete_one({"_id": id, "reserved": {"$exists": True}}).deleted_count


def keuss_now():
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def expire(store, collection, tag):
    """End the lease of a tag, without the wait."""
    end_lease(store, collection.name, tag)


# --- documents ------------------------------------------------------------------------------------


def test_a_pushed_message_has_the_fields_of_keuss_and_when_it_was_pushed(store, queue, collection):
    (id,) = new_ids(1)
    store.push(queue, pushes([{"n": 1, "big": 2**53 + 1, "x": [1.5]}], ids=[id], headers={"h": "v"}, mature=DUE))
    document = without_place(collection.find_one())
    assert document == {
        "_id": ObjectId(id),
        "mature": DatetimeMS(DUE),
        "payload": {"n": 1, "big": 2**53 + 1, "x": [1.5]},
        "tries": 0,
        "hdrs": {"h": "v"},
        "_pushed": document["_pushed"],
    }
    assert list(document) == ["_id", "mature", "payload", "tries", "hdrs", "_pushed"]
    types = {"tries": "int", "payload.n": "int", "payload.big": "long", "mature": "date", "_pushed": "date"}
    assert collection.count_documents({name: {"$type": kind} for name, kind in types.items()}) == 1


def test_text_and_bytes_are_a_string_and_a_binary(store, queue, collection):
    store.push(queue, pushes(["text", b"\x00\xff"]))
    assert [one["payload"] for one in collection.find().sort("_id")] == ["text", b"\x00\xff"]


@pytest.mark.parametrize("id", ["flight 1545", "ABCDEF0123456789ABCDEF01"])
def test_an_id_that_is_no_object_id_is_kept_beside_a_hash(store, queue, collection, id):
    store.push(queue, pushes(["a"], ids=[id]))
    (document,) = collection.find()
    assert isinstance(document["_id"], ObjectId)
    assert document["_sid"] == id
    assert ids_of(store.peek(queue, [Condition("id", "=", id)])) == [id]
    assert ids_of(store.peek(queue, [Condition("id", ">=", id)])) == [id]
    assert ids_of(store.peek(queue, [Condition("id", ">", id)])) == []
    store.reserve(queue, "c/1", 1)
    assert store.commit(queue, "c/1", [id]) == 1


def test_a_returned_message_keeps_nothing_of_its_reservation(store, queue, collection):
    store.push(queue, pushes(["a"]))
    (before,) = collection.find()
    store.reserve(queue, "c/1", 1)
    (held,) = collection.find()
    assert held.keys() - before.keys() == {"reserved", "_reserved", "_tag", "_mature"}
    assert held["tries"] == 1
    store.rollback(queue, "c/1", failed=False)
    (after,) = collection.find()
    assert without_place(after).keys() == without_place(before).keys()
    assert after["tries"] == 0


def test_what_keuss_wrote_is_read(store, queue, collection):
    keuss_push(
        collection, {"int": 1, "ms": 1.7e12, "half": 2.5, "two": 2.0}, hdrs={"n": 5, "d": 5e9, "b": True, "s": "x"}
    )
    keuss_push(collection, "text")
    keuss_push(collection, Binary(b"\x00"))
    keuss_push(collection, [1, None])
    collection.insert_one({"_id": ObjectId(), "mature": keuss_now(), "payload": 7.0})
    assert store.reserve(queue, "c/1", 9) == [5]
    got = messages_of(store.fetch(queue, "c/1/0"))
    assert [one.payload for one in got] == [
        {"int": 1, "ms": 1_700_000_000_000, "half": 2.5, "two": 2.0}, "text", b"\x00", [1, None], 7.0,
    ]  # fmt: skip
    assert json.dumps(got[0].payload) == '{"int": 1, "ms": 1700000000000, "half": 2.5, "two": 2.0}'
    assert got[0].headers == {"n": "5", "d": "5000000000", "b": "true", "s": "x"}
    assert got[4].headers == {}
    assert [one.tries for one in got] == [0] * 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"$date":"2024-01-01T00:00:00.123Z"}', DatetimeMS(1704067200123)),
        ('{"$date":{"$numberLong":"999999999999999"}}', DatetimeMS(999_999_999_999_999)),
        ('{"$oid":"5f1d7e0123456789abcdef01"}', ObjectId("5f1d7e0123456789abcdef01")),
        ('{"$numberDecimal":"1.50"}', Decimal128("1.50")),
        ('{"$binary":{"base64":"AA==","subType":"05"}}', Binary(b"\0", 5)),
        ('{"$regularExpression":{"pattern":"^a","options":"i"}}', None),
        ('{"$timestamp":{"t":1,"i":2}}', None),
        ('{"$code":"f()"}', None),
        ('{"$numberDouble":"NaN"}', None),
        ('{"$numberDouble":"-Infinity"}', float("-inf")),
        # names of the user's own, with a $
        ('{"$oid":"no"}', {"$oid": "no"}),
        ('{"$ref":1,"$id":2}', {"$ref": 1, "$id": 2}),
        ('{"$ref":"#/definitions/a"}', {"$ref": "#/definitions/a"}),
        ('{"$set":{"a.b":1}}', {"$set": {"a.b": 1}}),
    ],
)
def test_bson_types_come_and_go_as_extended_json(store, queue, collection, text, value):
    inner = b'{"a":[' + text.encode() + b',null,"$"]}'
    store.push(queue, pushes([json.loads(inner)]))
    store.reserve(queue, "c/1", 1)
    (held,) = store.fetch(queue, "c/1/0")
    assert held.column("payload").to_pylist() == [inner]
    if value is not None:
        assert collection.find_one()["payload"]["a"][0] == value


def test_numbers_that_json_lacks_are_told_from_null(store, queue, collection):
    keuss_push(collection, {"a": float("nan"), "b": None, "c": [float("inf")], "d": Int64(2**62), "e": 1.5})
    (batch,) = store.peek(queue)
    assert batch.column("payload").to_pylist() == [
        b'{"a":{"$numberDouble":"NaN"},"b":null,"c":[{"$numberDouble":"Infinity"}],"d":4611686018427387904,"e":1.5}'
    ]


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (None, "JSON null"),
        ({"a": 2**63}, "beyond 64 bits"),
        ({"a": -(2**70)}, "beyond 64 bits"),
        ({"a\0b": 1}, "MongoDB cannot keep it"),
        ({"$id": 1, "$ref": "c"}, r"\$ref and \$id .* come first"),
        ({"a": [{"$ref": "c", "more": 1, "$id": 2}]}, r"\$ref and \$id .* come first"),
        ({"$ref": "c", "$id": 1, "$db": None}, r"\$ref and \$id .* come first"),
        (eval("[" * 101 + "]" * 101), "deeper than 100"),
        ([0] * 1_500_000, "larger than 16,760,832 bytes"),
    ],
)
def test_what_bson_cannot_hold_is_refused_before_anything_is_written(store, queue, payload, rule):
    with pytest.raises(MessageError, match=rule) as caught:
        store.push(queue, pushes(["good", payload], ids=["one", "two"]))
    assert list(caught.value.rows) == [1]
    assert "'two'" in str(caught.value)
    assert store.sizes(queue).total == 0


def test_what_bson_can_just_hold_is_kept(store, queue):
    payloads = ["x" * store.max_payload, eval("[" * 100 + "]" * 100), {"a": -(2**63), "b": 2**63 - 1}]
    store.push(queue, pushes(payloads))
    store.reserve(queue, "x" * 1000, 3)
    assert [one.payload for one in messages_of(store.fetch(queue, "x" * 1000 + "/0"))] == payloads


def test_headers_that_bson_cannot_hold_are_refused(store, queue):
    with pytest.raises(MessageError, match="has the character NUL"):
        store.push(queue, pushes(["a"], headers={"a\0b": "c"}))
    with pytest.raises(MessageError, match="have 17,825,793 bytes"):
        store.push(queue, pushes(["a"], headers={"a": "c" * (17 << 20)}))


# --- programs that share the queue ----------------------------------------------------------------


def test_a_message_that_keuss_reserves_anew_is_lost_to_the_tag(store, queue, collection):
    store.push(queue, pushes(["a"]))
    store.reserve(queue, "c/1", 1)
    assert keuss_reserve(collection) is None
    expire(store, collection, "c/1")
    assert len(messages_of(store.fetch(queue, "c/1/0"))) == 1
    taken = keuss_reserve(collection)
    assert taken["tries"] == 1  # the lease that ended
    assert list(store.fetch(queue, "c/1/0")) == []
    assert [store.commit(queue, "c/1"), store.rollback(queue, "c/1"), store.renew(queue, "c/1", 1)] == [0, 0, 0]
    assert store.move(queue, f"{queue}.dead", tag="c/1") == 0
    assert store.reservations(queue) == []
    assert store.sizes(queue) == Sizes(0, 0, 1)
    assert keuss_ok(collection, taken["_id"]) == 1


def test_a_message_that_keuss_gave_back_is_lost_to_the_tag(store, queue, collection):
    store.push(queue, pushes(["a"]))
    store.reserve(queue, "c/1", 1)
    (held,) = collection.find()
    assert keuss_ko(collection, held["_id"]) == 1
    assert list(store.fetch(queue, "c/1/0")) == []
    assert store.commit(queue, "c/1") == 0
    assert store.sizes(queue).ready == 1
    assert store.reserve(queue, "c/2", 1) == [1]
    assert [one.tries for one in messages_of(store.fetch(queue, "c/2/0"))] == [1]
    assert store.commit(queue, "c/1") == 0
    assert store.commit(queue, "c/2") == 1


def test_what_keuss_holds_is_left_alone_and_counted(store, queue, collection):
    id = keuss_push(collection, "a")
    assert keuss_reserve(collection)["_id"] == id
    assert store.reserve(queue, "c/1", 1) == []
    assert store.purge(queue) == 0
    assert store.sizes(queue) == Sizes(0, 0, 1)
    assert [one.tries for one in messages_of(store.peek(queue))] == [0]
    assert ids_of(store.peek(queue, [Condition("tries", "=", 0)], limit=5)) == [str(id)]
    collection.update_one({"_id": id}, {"$set": {"mature": keuss_now()}})  # its lease ends
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.tries for one in messages_of(store.fetch(queue, "c/1/0"))] == [1]


def test_keuss_takes_what_we_push_and_what_we_give_back(store, queue, collection):
    store.push(queue, pushes([{"n": 1}]))
    store.reserve(queue, "c/1", 1)
    store.rollback(queue, "c/1")
    taken = keuss_reserve(collection)
    assert (taken["payload"], taken["tries"]) == ({"n": 1}, 1)
    assert keuss_ok(collection, taken["_id"]) == 1


def test_an_ended_lease_keeps_when_a_message_was_due(store, queue, collection):
    store.push(queue, pushes(["a"], mature=DUE))
    store.reserve(queue, "c/1", 1)
    expire(store, collection, "c/1")
    store.reserve(queue, "c/2", 1)
    assert [one.mature for one in messages_of(store.fetch(queue, "c/2/0"))] == [DUE]


def test_history_is_that_of_keuss(store, queue, collection):
    store.push(queue, pushes(["ours"], mature=DUE))
    collection.create_index("processed", expireAfterSeconds=3600)  # made by keuss; the lifetimes must not conflict
    store.reserve(queue, "c/1", 1)
    before = store.now()
    assert store.commit(queue, "c/1", history=MINUTE_MS) == 1
    document = without_place(collection.find_one())
    assert document.keys() == {
        "_id",
        "mature",
        "payload",
        "tries",
        "hdrs",
        "processed",
        "_mature",
        "_until",
        "_consumer",
        "_pushed",
    }
    assert 0 <= int(document["processed"]) - before < MINUTE_MS
    assert int(document["mature"]) - int(document["processed"]) == 100 * MINUTE_MS
    keuss_push(collection, "theirs", processed=keuss_now(), mature=keuss_now() + timedelta(days=4))
    history = list(store.peek(queue, view="history", limit=5))
    assert [(one.payload, one.tries) for batch in history for one in messages(batch)] == [("ours", 0), ("theirs", 0)]
    assert messages(history[0])[0].mature == DUE
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.next_mature(queue) is None
    ttl = {
        name: one["expireAfterSeconds"]
        for name, one in collection.index_information().items()
        if "expire" in str(one)
    }
    assert ttl == {"processed_1": 3600, "spark_queue_ending": 0}


def test_history_tells_what_keuss_did_and_what_we_did_before_it_told_more(store, queue, collection):
    done = {"processed": keuss_now(), "mature": keuss_now() + timedelta(days=4)}
    keuss_push(collection, "popped", **done)
    keuss_push(collection, "removed", **done, removed=True)
    keuss_push(collection, "old", **done, _mature=DUE, _until=keuss_now() + timedelta(days=1))
    wanted = {"popped": "pop", "removed": "remove", "old": "commit"}

    def told(*where):
        rows = [row for batch in store.peek(queue, where, view="history") for row in batch.to_pylist()]
        assert all(row["consumer"] is None and row["mature"] <= row["processed"] for row in rows)
        return {row["payload"].decode(): row["outcome"] for row in rows}

    assert told() == wanted
    for payload, outcome in wanted.items():
        assert told(Condition("outcome", "=", outcome)) == {payload: outcome}
    assert told(Condition("outcome", ">", "commit")) == {"popped": "pop", "removed": "remove"}
    assert told(Condition("mature", "<=", store.now())) == wanted, "keuss has left no other moment"
    assert told(Condition("mature", "=", round(DUE.timestamp() * 1000))) == {"old": "commit"}
    assert told(Condition("consumer", "=", "c")) == told(Condition("consumer", "<", "c")) == {}


def test_ps_mongo_tells_of_all_that_left_without_being_asked(mongodb_url, store, queue):
    with open_store(f"{mongodb_url}&layout=ps-mongo&ttl=60") as keeping:
        keeping.push(queue, pushes(["dead", "done"]))
        keeping.reserve(queue, "c/1", 2)
        assert keeping.move(queue, f"{queue}.dead", tag="c", limit=1, dead_letter=DeadLetterInfo("why")) == 1
        assert keeping.commit(queue, "c") == 1
        (batch,) = keeping.peek(queue, view="history", limit=9)
        assert batch.column("outcome").to_pylist() == ["dead", "commit"]
        assert keeping.commit(queue, "c") == keeping.sizes(queue).total == 0


@pytest.mark.parametrize("ttl", ["0", "1h", "2147483648", "9" * 5_000])
def test_ps_mongo_refuses_a_ttl_that_mongodb_has_not(ttl):
    with pytest.raises(OptionError, match="must be a number of seconds, 1 to 2147483647"):
        open_store(f"mongodb://host/db?layout=ps-mongo&ttl={ttl}")


def test_ps_mongo_takes_the_longest_ttl_of_mongodb():
    with open_store("mongodb://host/db?layout=ps-mongo&ttl=2147483647") as keeping:
        assert keeping.always_keeps_history


def test_pl_mongo_tells_of_what_died_where_it_is(mongodb_url, store, queue):
    with open_store(f"{mongodb_url}&layout=pl-mongo&pipeline={queue}") as pipeline:
        pipeline.push(queue, pushes(["a"], mature=DUE))
        pipeline.reserve(queue, "c/1", 1)
        assert pipeline.move(queue, f"{queue}.dead", tag="c", dead_letter=DeadLetterInfo("why", 1, MINUTE_MS)) == 1
        assert list(pipeline.peek(queue, view="history")) == []
        (one,) = messages_of(pipeline.peek(f"{queue}.dead"))
        assert (one.headers["x-dl-tries"], one.mature) == ("1", DUE)


def test_history_whose_maturity_has_come_is_not_reserved(store, queue, collection):
    keuss_push(collection, "done", processed=keuss_now(), mature=DUE)
    keuss_push(collection, "waits")
    assert store.sizes(queue).total == 1
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.payload for one in messages_of(store.fetch(queue, "c/1/0"))] == ["waits"]
    assert store.purge(queue) == 0


def test_a_message_of_the_history_makes_way_for_a_new_one(store, queue):
    dead = f"{queue}.dead"
    for name in (queue, dead):
        store.push(name, pushes([f"old {name}"], ids=["a"]))
        store.reserve(name, "c/1", 1)
        store.commit(name, "c/1", history=MINUTE_MS)
    assert store.push(queue, pushes(["new", "newer"], ids=["a", "a"])) == 1
    store.reserve(queue, "c/2", 1)
    assert store.move(queue, dead, tag="c/2", dead_letter=DeadLetterInfo("why")) == 1
    assert [one.payload for one in messages_of(store.peek(dead))] == ["new"]
    assert store.sizes(dead) == Sizes(1, 0, 0)


def test_large_messages_move_in_transactions_of_bounded_size(store, queue):
    batch = pushes([f"{i}" + "x" * (1 << 20) for i in range(40)])
    store.push(queue, batch)
    store.reserve(queue, "c/1", 35)
    assert store.move(queue, f"{queue}.dead", tag="c/1", min_tries=0, limit=33) == 33
    assert store.move(queue, f"{queue}.dead", ids=batch.column("id").to_pylist()) == 5
    assert store.sizes(queue) == Sizes(0, 0, 2)
    assert len(ids_of(store.peek(f"{queue}.dead"))) == 38


# --- what is staged -------------------------------------------------------------------------------


@pytest.fixture(params=["transactions", "standalone"])
def anywhere(request):
    """A store with transactions, and one without."""
    plain = request.param == "standalone"
    url = request.getfixturevalue("standalone").url("stages") if plain else request.getfixturevalue("mongodb_url")
    with open_store(url, retry_timeout=20_000) as opened:
        yield opened


@pytest.fixture
def name(anywhere):
    """Of a stage, and what names of queues begin with."""
    made = f"t{uuid.uuid4().hex[:16]}"
    yield made
    anywhere.unstage(made)
    for one in anywhere.queues():
        if one.startswith(made):
            anywhere.drop(one)


@pytest.fixture
def raw(anywhere):
    """The database as other programs see it."""
    with client_of(anywhere.url) as client:
        yield client.get_default_database(codec_options=CODEC)


@pytest.fixture
def small(monkeypatch):
    """Chunks of few messages, and little patience with other publishers."""
    monkeypatch.setattr(mongodb_stages, "CHUNK_ROWS", 4)
    monkeypatch.setattr(mongodb_stages, "PUBLISHER_TIMEOUT", 0.05)


def left_of(raw, stage):
    """What lies in our own collection for a stage and those below it."""
    found = [one["_id"] for one in raw["spark_queue.staged"].find({}, {"_id": 1})]
    names = [one if isinstance(one, str) else one["stage"] for one in found]
    return [one for one in names if one == stage or one.startswith(f"{stage}/")]


def drain(store, queue, tag):
    """Takes whatever is ready, for good, and gives the payloads."""
    store.reserve(queue, tag, 1_000)
    got = [one.payload for one in messages_of(store.fetch(queue, f"{tag}/0"))]
    assert store.commit(queue, tag) == len(got)
    return got


def test_a_published_message_is_no_other_than_a_pushed_one(anywhere, name, raw):
    batch = pushes([{"n": 1, "$set": {"a.b": [1, None]}}, [1, {"$ref": 1}], "x"], headers={"h": "v"}, mature=DUE)
    anywhere.push(f"{name}.1", batch)
    anywhere.stage(f"{name}.2", name, batch)
    assert anywhere.publish([name]) == 3
    pushed, published = (list(raw[queue].find().sort("_id")) for queue in (f"{name}.1", f"{name}.2"))
    for one, later in zip(pushed, published, strict=True):
        assert later.pop("_seq") > one.pop("_seq", one["_id"]), "it was staged after the push"
        assert later.pop("_pushed") >= one.pop("_pushed")
        assert list(later.items()) == list(one.items())
    assert raw[f"{name}.2"].index_information().keys() == raw[f"{name}.1"].index_information().keys()
    assert left_of(raw, name) == []


def test_what_bson_can_just_hold_can_be_staged(anywhere, name):
    def batch(size):
        payloads = ["small", {"list": [0] * 10_000, "text": "x" * size}, "y" * (9 << 20)]
        return pushes(payloads, ids=["a", "i" * 200, "b"], headers=[{}, {"h": "v" * 8_000}, {}])

    queue, stage = f"{name}{'q' * 180}", f"{name}/{'s' * 1000}"
    room = MAX_DOCUMENT_BYTES - len(bson.encode(to_documents(batch(0), 0)[0][1]))
    with pytest.raises(MessageError, match="larger than"):
        anywhere.stage(queue, stage, batch(room + 1))
    assert anywhere.stage(queue, stage, batch(room)) == 3
    assert anywhere.staged(stage) == [Staged(stage, queue, 3)]
    assert anywhere.publish([stage]) == 3
    published = {one.id: one.payload for one in messages_of(anywhere.peek(queue))}
    assert (published["a"], len(published["i" * 200]["text"]), len(published["b"])) == ("small", room, 9 << 20)
    anywhere.drop(queue)


def test_no_chunk_and_no_transaction_is_larger_than_it_may_be(store, queue, monkeypatch):
    sizes = []
    insert_many = Collection.insert_many

    def counted(self, documents, **options):
        documents = list(documents)
        if self.name == queue:
            sizes.append((len(documents), sum(len(one.raw) for one in documents)))
        return insert_many(self, documents, **options)

    monkeypatch.setattr(Collection, "insert_many", counted)
    for part in range(20):
        store.stage(queue, f"{queue}.s/{part}", pushes(["x" * 100] * 20))
    store.stage(queue, f"{queue}.s/20", pushes(["x" * 100] * 12_000))
    store.stage(queue, f"{queue}.s/21", pushes(["x" * (1 << 20)] * 20))
    assert store.publish([f"{queue}.s/{part}" for part in range(22)]) == 12_420
    rows, size = zip(*sizes, strict=True)
    assert max(rows) == 5_000
    assert max(size) <= 8 << 20
    assert sum(rows) == 12_420
    assert len(sizes) == 6, "small chunks are published together"


def test_a_part_that_is_staged_again_is_not_doubled(anywhere, name, small):
    batch = pushes(list(range(10)), delay=1)
    for _ in range(2):
        anywhere._stage(f"{name}.q", name, "part", batch)
    assert anywhere.staged(name) == [Staged(name, f"{name}.q", 10)]
    assert anywhere.publish([name]) == 10


def test_what_is_ours_is_no_queue(anywhere, name):
    anywhere.stage(f"{name}.q", name, pushes(["x"]))
    anywhere.set_note(name, {}, 0)
    assert not [one for one in anywhere.queues() if one.startswith("spark_queue.")]
    for taken in ("spark_queue.staged", "spark_queue.notes", "spark_queue.else"):
        with pytest.raises(OptionError, match="begin with"):
            anywhere.stage(taken, name, pushes(["x"]))
    anywhere.set_note(name, None, 1)


def test_a_stage_of_several_queues_is_published_once_by_each_that_tries(anywhere, name, raw, small):
    for part in range(6):
        anywhere.stage(f"{name}.{part % 2}", f"{name}/{part}", pushes(list(range(10))))
    published: list[int] = []

    def publish():
        with open_store(anywhere.url, retry_timeout=60_000) as mine:
            published.append(mine.publish([f"{name}/{part}" for part in range(6)]))

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(published) == 60
    assert [anywhere.sizes(f"{name}.{one}").total for one in range(2)] == [30, 30]
    assert left_of(raw, name) == []


def test_a_standalone_server_refuses_buckets_before_anything_is_written(standalone, name):
    with open_store(standalone.url("buckets")) as alone:
        alone.layout = Buckets()
        for put in (partial(alone.push, name), partial(alone.stage, name, f"{name}/0/a")):
            with pytest.raises(StoreError, match="layout=bucket needs transactions"):
                put(pushes([1, 2]))
        assert alone.sizes(name).total == 0
        assert alone.staged(name) == []


def test_hidden_messages_are_neither_seen_nor_delivered_and_make_way(standalone, small, monkeypatch):
    name = f"t{uuid.uuid4().hex[:16]}"
    ids = new_ids(4)
    with open_store(standalone.url("stages")) as store, client_of(standalone.url("stages")) as client:
        store.stage(name, name, pushes(["a", "b", "c", "d"], ids=ids))

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "update_one", crash)
            with pytest.raises(KeyboardInterrupt):
                store.publish([name])
        collection = client.stages[name]
        assert collection.count_documents({}) == 4
        assert keuss_reserve(collection) is None
        assert store.sizes(name) == Sizes(0, 0, 0)
        assert store.next_mature(name) is None
        assert list(store.peek(name)) == list(store.peek(name, view="history")) == store.reservations(name) == []
        assert store.reserve(name, "c/1", 9) == []
        assert store.purge(name) == store.move(name, f"{name}.2") == 0
        assert store.push(name, pushes(["new b"], ids=[ids[1]])) == 1
        assert [one.payload for one in messages_of(store.peek(name))] == ["new b"]
        assert store.publish([name]) == 3
        assert {one.payload for one in messages_of(store.peek(name))} == {"a", "c", "d", "new b"}
        store.drop(name)


CHANGES = ("update_one", "update_many", "delete_one", "delete_many")


class Steps:
    """Watches what a thread asks the server, and may end or pause it before the n-th request."""

    def __init__(self, monkeypatch):
        self.local = threading.local()
        watched: dict[type, list[str]] = {
            Collection: ["find", "find_one_and_update", "insert_many", "bulk_write", *CHANGES],
            ClientSession: ["commit_transaction"],
        }
        for owner, names in watched.items():
            for name in names:
                monkeypatch.setattr(owner, name, self.watched(getattr(owner, name)))

    def watched(self, method):
        def call(this, *arguments, **options):
            if hook := getattr(self.local, "hook", None):
                hook(lambda: self.half(method, this, *arguments, **options))
            return method(this, *arguments, **options)

        return call

    @staticmethod
    def half(method, this, first=None, *rest, **options):
        """As a server does that dies at it."""
        if method.__name__ == "insert_many":
            some = list(first)
            with suppress(BulkWriteError):
                method(this, some[: len(some) // 2], *rest, **options)
        elif method.__name__.endswith("_many") and "$in" in first.get("_id", {}):
            some = first["_id"]["$in"]
            method(this, {**first, "_id": {"$in": some[: len(some) // 2]}}, *rest, **options)

    def dies(self, step, partly, work):
        """Whether the thread came to that step; from there on it does nothing any more."""
        left = [step]

        def hook(do_half):
            left[0] -= 1
            if left[0] == -1 and partly:
                self.local.hook = None
                do_half()
                self.local.hook = hook
            if left[0] < 0:
                raise KeyboardInterrupt

        self.local.hook = hook
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            self.local.hook = None
        return False

    def pauses(self, step, work, dies=None):
        """Return a thread that waits before a step, or has ended. It dies `dies` steps later."""
        return Paused(self.local, step, work, dies)


class Paused:
    def __init__(self, local, step, work, dies):
        self.left, self.dies, self.came, self.errors = step, dies, False, []
        self.there, self.on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(local, work))
        self.thread.start()
        assert self.there.wait(60)

    def run(self, local, work):
        local.hook = self.hook
        try:
            with suppress(KeyboardInterrupt):
                work()
        except Exception as error:  # noqa: BLE001 - raised by `go_on`
            self.errors.append(error)
        local.hook = None
        self.there.set()

    def hook(self, do_half):
        self.left -= 1
        if self.left == -1:
            self.came = True
            self.there.set()
            assert self.on.wait(60)
        if self.dies is not None and self.left <= -1 - self.dies:
            if self.left == -1 - self.dies:
                do_half()
            raise KeyboardInterrupt

    def go_on(self):
        """To its end."""
        self.on.set()
        self.thread.join()
        assert self.errors == []


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


class Publishing:
    """A difficult stage: an id that the queue holds, one of its history, and several chunks."""

    def __init__(self, store, name, raw, rows=10):
        self.store, self.raw = store, raw
        self.stage, self.queue = f"{name}/{uuid.uuid4().hex}", f"{name}.{uuid.uuid4().hex}"
        ids = new_ids(rows)
        store.push(self.queue, pushes(["held", "done"], ids=ids[1:3]))
        store.reserve(self.queue, "a/1", 1, lease=None)
        store.reserve(self.queue, "a/2", 1)
        assert store.commit(self.queue, "a/2", history=MINUTE_MS) == 1
        store.stage(self.queue, self.stage, pushes(list(range(rows)), ids=ids))
        self.expected = [one for one in range(rows) if one != 1]
        self.taken: list[int] = []

    def publish(self):
        self.store.publish([self.stage])

    def consume(self):
        self.taken += drain(self.store, self.queue, f"c/{uuid.uuid4().hex}")

    def check(self):
        """All came, each once, and nothing is left."""
        self.store.publish([self.stage])
        self.consume()
        assert sorted(self.taken) == self.expected
        assert [one["payload"] for one in self.raw[self.queue].find()] == ["held"]
        assert left_of(self.raw, self.stage) == []
        self.store.drop(self.queue)


@pytest.mark.parametrize("partly", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_publish_that_broke_off_anywhere_is_completed_by_the_next(anywhere, name, raw, small, steps, partly):
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw)
        died = steps.dies(step, partly, publishing.publish)
        publishing.consume()
        publishing.check()
        if not died:
            break
    assert step >= 10


def test_a_stage_can_be_removed_wherever_its_publish_broke_off(anywhere, name, raw, small, steps):
    counts = set()
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw, rows=4)
        died = steps.dies(step, True, publishing.publish)
        publishing.consume()
        anywhere.unstage(publishing.stage)
        publishing.consume()
        counts.add(len(publishing.taken))
        assert anywhere.publish([publishing.stage]) == 0
        assert left_of(raw, publishing.stage) == []
        assert [one["payload"] for one in raw[publishing.queue].find({"processed": None})] == ["held"]
        assert raw[publishing.queue].count_documents({"_hidden": {"$exists": True}}) == 0
        if not died:
            break
    assert counts == {0, 3}, "all of a chunk or nothing"


def test_a_publisher_that_was_slow_does_no_harm(anywhere, name, raw, small, steps):
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw, rows=6)
        slow = steps.pauses(step, publishing.publish)
        publishing.publish()
        publishing.consume()
        slow.go_on()
        publishing.check()
        if not slow.came:
            break
    assert step >= 10


@pytest.mark.full
def test_publishers_that_are_slow_in_turns_do_no_harm(anywhere, name, raw, small, steps):
    for first in itertools.count():
        for second in range(13):
            publishing = Publishing(anywhere, name, raw, rows=4)
            one = steps.pauses(first, publishing.publish)
            other = steps.pauses(second, publishing.publish)
            publishing.consume()
            one.go_on()
            publishing.consume()
            other.go_on()
            publishing.check()
        if not one.came:
            break
    assert first >= 8


PUBLISHER = """
import sys, time
from pymongo.collection import Collection
from spark_queue.stores import open_store

insert_many = Collection.insert_many

def insert_and_stop(self, *arguments, **options):
    insert_many(self, *arguments, **options)
    print("within", flush=True)
    time.sleep(600)

Collection.insert_many = insert_and_stop
open_store(sys.argv[1]).publish([sys.argv[2]])
"""


def kill_within_a_transaction(url, stage):
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", PUBLISHER, url, stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root}) as killed:
        assert killed.stdout is not None and killed.stdout.read(6) == b"within"
        killed.kill()


def test_a_publisher_that_was_killed_in_its_transaction_holds_up_nobody_for_long(store, queue, raw_of, monkeypatch):
    monkeypatch.setattr(mongodb_stages, "PUBLISHER_TIMEOUT", 0.05)
    for part in range(3):
        store.stage(queue, f"{queue}.s/{part}", pushes(list(range(3_000))))
    kill_within_a_transaction(store.url, f"{queue}.s/0")
    assert store.sizes(queue) == Sizes(0, 0, 0)
    kill_within_a_transaction(store.url, f"{queue}.s/1")
    ended = counted_ends(monkeypatch)
    store.retry_timeout = 60_000  # the server itself would wait as long for who was killed
    assert store.publish([f"{queue}.s/0"]) == 3_000
    assert len(ended) == 1, "it has made an end of who holds the chunk"
    assert store.unstage(f"{queue}.s") == 6_000
    assert len(ended) > 1
    assert store.sizes(queue).total == 3_000
    assert left_of(raw_of(store), f"{queue}.s") == []


def counted_ends(monkeypatch):
    """Each time that a publisher takes others for dead is in the list."""
    ended, stop = [], Stages._end_publishers

    def counted(self, *arguments):
        stop(self, *arguments)
        ended.append(arguments)

    monkeypatch.setattr(Stages, "_end_publishers", counted)
    return ended


def test_two_publishers_that_take_each_other_for_dead_both_come_to_an_end(anywhere, name, raw, small, monkeypatch):
    ended, generations = counted_ends(monkeypatch), []
    publishing = Publishing(anywhere, name, raw, rows=16)
    insert, hide = mongodb_documents.insert_new, mongodb_stages._insert_hidden

    def met():
        """Whether one assumed that the other had ended: it ended its session, or took its chunk."""
        return ended or max(generations, default=0) > 1

    def insert_slowly(*arguments):
        done = insert(*arguments)
        wait_until(met, description="that the other one loses its patience")
        time.sleep(0.3)  # far more than BUSY at first: so it goes on for a while
        return done

    def hide_slowly(*arguments):
        generations.append(arguments[-1])
        hide(*arguments)
        wait_until(met, description="that the other one loses its patience")
        time.sleep(0.3)

    monkeypatch.setattr(mongodb_stages, "insert_new", insert_slowly)
    monkeypatch.setattr(mongodb_stages, "_insert_hidden", hide_slowly)
    threads = [threading.Thread(target=publishing.publish) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    publishing.consume()
    assert sorted(publishing.taken) == publishing.expected
    publishing.check()


@pytest.mark.full
def test_when_a_publish_and_a_removal_meet_a_chunk_appears_whole_or_not_at_all(anywhere, name, raw, small, steps):
    counts = set()
    for first, second, dies in itertools.product(range(12), range(7), (None, 2)):
        publishing = Publishing(anywhere, name, raw, rows=4)
        publish = steps.pauses(first, publishing.publish, dies)
        remove = steps.pauses(second, lambda stage=publishing.stage: anywhere.unstage(stage))
        publish.go_on()
        remove.go_on()
        anywhere.unstage(publishing.stage)
        publishing.consume()
        counts.add(len(publishing.taken))
        assert anywhere.publish([publishing.stage]) == 0
        assert [one["payload"] for one in raw[publishing.queue].find({"processed": None})] == ["held"]
        if dies is None:  # a publisher that comes too late, and dies, may leave some that nobody will ever see
            assert raw[publishing.queue].count_documents({"_hidden": {"$exists": True}}) == 0
        assert left_of(raw, publishing.stage) == []
    assert counts == {0, 3}


def test_a_publisher_at_work_is_left_alone(anywhere, name, raw, steps, monkeypatch):
    monkeypatch.setattr(mongodb_stages, "PUBLISHER_TIMEOUT", 600)
    anywhere.retry_timeout = 1_800_000
    publishing = Publishing(anywhere, name, raw)
    published: list[int] = []
    first = steps.pauses(5, lambda: published.append(anywhere.publish([publishing.stage])))
    assert first.came
    tries = anywhere.retries
    second = threading.Thread(target=publishing.publish)
    second.start()
    wait_until(lambda: anywhere.retries > tries, description="that the second one meets the first")
    first.go_on()
    second.join()
    assert published == [9]
    publishing.consume()
    publishing.check()


def test_a_publisher_that_was_taken_for_dead_starts_again(store, queue, raw_of, monkeypatch):
    insert = mongodb_documents.insert_new
    interrupted = []

    def interrupt(*arguments):
        if not interrupted:
            interrupted.append(arguments)
            raise OperationFailure("operation was interrupted", 11601)
        return insert(*arguments)

    monkeypatch.setattr(mongodb_stages, "insert_new", interrupt)
    store.stage(queue, f"{queue}.s", pushes(["a"]))
    assert store.publish([f"{queue}.s"]) == 1


def test_a_publisher_that_others_end_names_its_stages():
    class Session:
        def start_transaction(self, **options):
            raise OperationFailure("operation was interrupted", 11601)

    keys = [{"stage": stage, "queue": "q"} for stage in ("s/2", "s/1")]
    with client_of("mongodb://host/db", connect=False) as client:
        stages = Stages(client.db, str, lambda act, *arguments: act(*arguments), 1_000, "staged", len, print)
        with pytest.raises(StoreUnavailable, match="publishing stage 's/1', stage 's/2'"):
            stages._publish_in_transaction(keys, Session())


@pytest.mark.parametrize("times", [1, 3])
def test_a_publisher_whose_wait_for_copies_others_end_has_published(store, queue, monkeypatch, times):
    commit, ended = ClientSession.commit_transaction, []

    def end(self):
        commit(self)
        if len(ended) < times:
            ended.append(self)
            raise WriteConcernError("operation was interrupted", 11601)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    monkeypatch.setattr(ClientSession, "commit_transaction", end)
    assert store.publish([f"{queue}.s"]) == 1
    assert len(ended) == times
    assert store.sizes(queue).total == 1


def test_who_has_the_session_of_one_that_was_taken_for_dead_tries_again(store, queue, monkeypatch):
    delete, ended = Collection.delete_many, []

    def end(self, *arguments, **named):
        if not ended:
            ended.append(self)
            raise WriteConcernError("operation was interrupted", 11601)
        return delete(self, *arguments, **named)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    monkeypatch.setattr(Collection, "delete_many", end)
    store.unstage(f"{queue}.s")
    assert ended
    assert store.staged(f"{queue}.s") == []


def test_a_publisher_that_gives_up_is_forgotten(store, queue, raw_of, monkeypatch):
    def fail(*_: Any) -> int:
        raise OperationFailure("no room", 14031)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    with monkeypatch.context() as patched:
        patched.setattr(mongodb_stages, "insert_new", fail)
        with pytest.raises(StoreError, match="no room"):
            store.publish([f"{queue}.s"])
    assert raw_of(store)["spark_queue.staged"].find_one({"_id": f"{queue}.s"})["sessions"] == []
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.publish([f"{queue}.s"]) == 1


@pytest.mark.full
def test_a_publish_that_began_without_transactions_ends_so(store, queue, raw_of, small, steps):
    """The server may have become one of a replica set meanwhile."""
    for step in itertools.count():
        publishing = Publishing(store, queue, raw_of(store))
        stages = store._stages()
        died = steps.dies(step, True, lambda p=publishing, s=stages: s.publish([p.stage], transactions=False))
        publishing.consume()
        publishing.check()
        if not died:
            break


def test_a_publish_whose_last_answer_was_lost_publishes_nothing_twice(store, queue, monkeypatch):
    commit = ClientSession.commit_transaction
    lost = []

    def commit_and_lose(self):
        commit(self)
        if not lost:
            lost.append(self)
            raise AutoReconnect("the answer was lost")

    store.stage(queue, f"{queue}.s", pushes(list(range(10))))
    monkeypatch.setattr(ClientSession, "commit_transaction", commit_and_lose)
    store.publish([f"{queue}.s"])
    assert lost
    assert store.retries == 1
    assert sorted(drain(store, queue, "c/1")) == list(range(10))
    assert store.staged(f"{queue}.s") == []


def test_pushes_of_the_same_ids_meanwhile_neither_fail_nor_double(anywhere, name, small):
    queue, ids = f"{name}.q", new_ids(200)
    anywhere.stage(queue, name, pushes(list(range(200)), ids=ids))

    def push():
        with open_store(anywhere.url, retry_timeout=20_000) as mine:
            for part in range(0, 200, 5):
                mine.push(queue, pushes(list(range(part, part + 5)), ids=ids[part : part + 5]))

    thread = threading.Thread(target=push)
    thread.start()
    anywhere.publish([name])
    thread.join()
    assert sorted(drain(anywhere, queue, "c/1")) == list(range(200))
    assert anywhere.staged(name) == []


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


def test_indexes_that_somebody_dropped_are_made_again(store, queue, collection):
    store.push(queue, pushes(["a", "b"]))
    collection.drop_indexes()
    assert store.reserve(queue, "c/1", 1) == [1]
    collection.drop()
    assert store.commit(queue, "c/1") == 0
    store.push(queue, pushes(["c"]))
    assert store.reserve(queue, "c/2", 1) == [1]
    assert store.commit(queue, "c/2") == 1


# --- names and addresses --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a$b", "system.users", ".a", "a.", "a..b"])
def test_a_name_that_mongodb_forbids_is_refused(store, name):
    for attempt in (lambda: store.push(name, pushes(["a"])), lambda: store.sizes(name), lambda: store.drop(name)):
        with pytest.raises(OptionError, match="cannot name a queue"):
            attempt()


@pytest.mark.parametrize("name", ["a b", "ü", "a.b", "a-b_c", "x" * 200])
def test_other_names_are_taken(store, name):
    name = f"{name[:180]}{uuid.uuid4().hex[:20]}"
    assert store.push(name, pushes(["a"])) == 1
    assert name in store.queues()
    store.drop(name)


def test_views_and_collections_of_the_system_are_no_queues(store, queue, collection):
    store.push(queue, pushes(["a"]))
    view = f"v{queue}"
    collection.database.command("create", view, viewOn=queue, pipeline=[])
    assert not [one for one in store.queues() if one == view or one.startswith("system.")]
    collection.database.drop_collection(view)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mongodb://h", "no database"),
        ("mongodb://h/", "no database"),
        ("mongodb://user:sesame@h/?authSource=admin", "no database"),
        ("mongodb+srv://user:sesame@cluster.example.org", "no database"),
        ("mongodb://user:ses/ame@h/db", "no MongoDB URL.*%2F"),
        ("mongodb://user:ses@ame@h/db", "no MongoDB URL.*%40"),
        ("mongodb://user:sesame@h:port/db", "no MongoDB URL"),
        ("mongodb://h/d b", "no MongoDB URL"),
        ("mongodb://h/db?replicaset=a&retrywrite=true", "retrywrite.*[rR]etry[wW]rites"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_password(url, hint):
    with pytest.raises(OptionError, match=hint) as caught:
        open_store(url)
    assert not re.search("ses|ame@", str(caught.value))
    assert "url" in str(caught.value)


def test_a_url_with_all_its_options_is_taken():
    for url in (
        "mongodb://u:p%40ss@a:1,b:2/db?replicaSet=r&authSource=admin&w=1&tls=true",
        "mongodb+srv://u:p@cluster.example.org/db?srvMaxHosts=3&retryWrites=true&srvServiceName=x",
    ):
        assert MongoStore.resolve(url) == url


def test_the_url_has_the_last_word_on_durability_and_patience(mongodb_url):
    mark = "&" if "?" in mongodb_url else "?"
    with (
        MongoStore(mongodb_url) as plain,
        MongoStore(f"{mongodb_url}{mark}w=1&serverSelectionTimeoutMS=700") as given,
    ):
        assert plain._database().client.write_concern.document == {"w": "majority", "j": True}
        assert given._database().client.write_concern.document == {"w": 1, "j": True}
        assert given._database().client.options.server_selection_timeout == 0.7


# --- a server that refuses, is away, or dies ------------------------------------------------------


def test_an_unknown_host_is_told():
    url = "mongodb://user:sesame@no-such-host.invalid/db?serverSelectionTimeoutMS=300"
    with (
        open_store(url, retry_timeout=500) as store,
        pytest.raises(StoreUnavailable, match=r"no-such-host\.inv") as caught,
    ):
        store.push("q", pushes(["a"]))
    assert "sesame" not in str(caught.value)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that asks for passwords; made there: admin, and `reader` who may only read."""
    server = Mongod(tmp_path_factory.mktemp("guarded"), "--auth")
    with client_of(server.url("admin")) as client:
        client.admin.command("createUser", "boss", pwd="open:sesame", roles=["root"])
    with client_of(server.url("admin", "boss:open%3Asesame@")) as client:
        client.admin.command("createUser", "reader", pwd="look", roles=["readAnyDatabase"])
    yield server
    server.kill()


@pytest.mark.parametrize("user", ["boss:wrong-one@", "nobody:wrong-one@"])
def test_a_wrong_password_is_told_at_once(guarded, user):
    url = guarded.url("db", user) + "?authSource=admin"
    with (
        open_store(url, retry_timeout=60_000) as store,
        pytest.raises(StoreError, match="check user, password") as caught,
    ):
        store.sizes("q")
    assert not isinstance(caught.value, StoreUnavailable)
    assert store.retries == 0
    assert "wrong-one" not in str(caught.value)
    assert ":***@" in str(caught.value)


def test_a_password_is_needed(guarded):
    with open_store(guarded.url("db")) as store, pytest.raises(StoreError, match="needs the role readWrite"):
        store.push("q", pushes(["a"]))


def test_a_reader_may_look(guarded):
    with open_store(guarded.url("db", "boss:open%3Asesame@") + "?authSource=admin") as store:
        store.push("q", pushes(["a", "b"]))
        store.reserve("q", "c/1", 1)
    with open_store(guarded.url("db", "reader:look@") + "?authSource=admin") as store:
        assert store.queues() == ["q"]
        assert store.sizes("q") == Sizes(1, 0, 1, store.sizes("q").oldest_ready_age)
        assert len(messages_of(store.peek("q"))) == len(messages_of(store.peek("q", limit=5))) == 2
        with pytest.raises(StoreError, match="needs the role readWrite"):
            store.reserve("q", "d/1", 1)


def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path):
    server = Mongod(tmp_path)
    acknowledged: list[str] = []
    held: dict[str, list[int]] = {}
    done = threading.Event()

    def produce():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            while not done.is_set():
                batch = pushes(list(range(50)))
                store.push("q", batch)
                acknowledged.extend(batch.column("id").to_pylist())

    def consume():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            for sequence in range(1_000_000):
                if done.is_set():
                    break
                if rows := store.reserve("q", f"c/{sequence}", 20, lease=None):
                    held[f"c/{sequence}"] = rows

    workers = [threading.Thread(target=work) for work in (produce, consume)]
    for one in workers:
        one.start()
    try:
        for _ in range(2):
            before = len(acknowledged), len(held)
            wait_until(lambda: len(acknowledged) > before[0] + 500 and len(held) > before[1] + 5)  # noqa: B023
            server.kill()
            server.start()
        after = len(acknowledged)
        wait_until(lambda: len(acknowledged) > after)
    finally:
        done.set()
        for one in workers:
            one.join()
    try:
        with open_store(server.url("db")) as store:
            ids = ids_of(store.peek("q"))
            assert len(ids) == len(set(ids))
            assert set(ids) >= set(acknowledged)
            for tag, rows in held.items():
                assert len(ids_of(store.fetch("q", f"{tag}/0"))) == rows[0] <= 20
    finally:
        server.kill()


@pytest.mark.full
@pytest.mark.parametrize("arguments", [(), ("--replSet", "own")], ids=["standalone", "transactions"])
def test_what_is_published_while_the_server_is_killed_comes_once(tmp_path, monkeypatch, arguments):
    monkeypatch.setattr(mongodb_stages, "CHUNK_ROWS", 40)
    server = Mongod(tmp_path, *arguments)
    if arguments:
        with client_of(server.url("admin"), directConnection=True) as client:
            members = [{"_id": 0, "host": f"{HOST}:{server.port}"}]
            client.admin.command("replSetInitiate", {"_id": "own", "members": members})
    published: list[str] = []
    taken: list[str] = []
    done = threading.Event()

    def produce():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            for turn in itertools.count():
                if done.is_set():
                    break
                batch = pushes(list(range(100)))
                stage = f"s/{uuid.uuid4().hex}"
                assert store.stage("q", stage, batch) == 100
                assert store.set_note("turns", {"n": turn}, turn)
                assert store.note("turns") == Note({"n": turn}, turn + 1)
                store.publish([stage])
                assert store.staged(stage) == []
                published.extend(batch.column("id").to_pylist())

    def consume():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            while not done.is_set():
                tag = f"c/{uuid.uuid4().hex}"
                if store.reserve("q", tag, 70, lease=None):
                    taken.extend(ids_of(store.fetch("q", f"{tag}/0")))
                    store.commit("q", tag)

    workers = [threading.Thread(target=work) for work in (produce, consume)]
    for one in workers:
        one.start()
    try:
        for _ in range(4):
            before = len(published), len(taken)
            wait_until(lambda: len(published) > before[0] + 300 and len(taken) > before[1] + 300)  # noqa: B023
            server.kill()
            server.start()
        after = len(published)
        wait_until(lambda: len(published) > after)
    finally:
        done.set()
        for one in workers:
            one.join()
    try:
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            everything = taken + ids_of(store.peek("q"))
            assert len(everything) == len(set(everything))
            assert set(everything) == set(published)
            assert store.staged() == []
    finally:
        server.kill()


class Cutter:
    """A way to a server that can be cut right after a large request went through."""

    def __init__(self, port):
        self.server_port, self.armed = port, False
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection((HOST, self.server_port))
                for way in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self.forward, args=way, daemon=True).start()

    def forward(self, source, target, is_request):
        with suppress(OSError), source, target, source.makefile("rb") as sent:
            while head := sent.read(4):
                length = int.from_bytes(head, "little")
                target.sendall(head + sent.read(length - 4))
                if self.armed and is_request and length > 100_000:
                    self.armed = False
                    for one in (source, target):
                        one.shutdown(socket.SHUT_RDWR)


def test_a_claim_whose_connection_broke_is_not_still_at_work_when_it_is_answered(standalone, monkeypatch):
    monkeypatch.setattr("spark_queue.stores.mongodb.store.COMMAND_CHUNK", 40_000)  # one long command
    queue, way = f"t{uuid.uuid4().hex[:16]}", Cutter(standalone.port)
    with open_store(standalone.url("db")) as store:
        store.push(queue, pushes(list(range(40_000))))
        with open_store(f"mongodb://{HOST}:{way.port}/db?directConnection=true") as cut:
            way.armed = True
            (rows,) = cut.reserve(queue, "c/1", 40_000)
        assert not way.armed
        held = [len(ids_of(store.fetch(queue, "c/1/0"))) for _ in range(3)]
        assert {*held} == {rows}
        store.drop(queue)
    way.listener.close()


# --- a server without transactions ----------------------------------------------------------------


def test_a_move_without_transactions_may_be_repeated_where_it_broke_off(standalone, monkeypatch):
    queue, dead = f"t{uuid.uuid4().hex[:16]}", f"t{uuid.uuid4().hex[:16]}"
    with open_store(standalone.url("db")) as store:
        store.push(queue, pushes(list(range(10))))
        store.reserve(queue, "c/1", 6)

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "delete_many", crash)
            with pytest.raises(KeyboardInterrupt):
                store.move(queue, dead, tag="c/1")
        assert len(ids_of(store.peek(dead))) == len(ids_of(store.fetch(queue, "c/1/0"))) == 6
        assert store.move(queue, dead, tag="c/1") == 6
        assert store.move(queue, dead, limit=2) == 2
        assert len(ids_of(store.peek(dead))) == 8
        assert store.sizes(queue).total == 2
        store.drop(queue)
        store.drop(dead)


@pytest.mark.full
class TestOnAStandaloneServer(StoreContract):
    """The whole contract but atomic moves."""

    test_any_json_document_survives_failures = None  # type: ignore[assignment]  # hypothesis runs it in one class only
    test_a_million_scheduled_messages_do_not_slow_the_ready_ones = None  # type: ignore[assignment]
    test_a_bucket_counts_what_its_messages_take_and_is_split = None  # type: ignore[assignment]  # it needs transactions

    @pytest.fixture
    def url(self, standalone):
        return standalone.url("contract")

    @pytest.fixture
    def unreachable(self):
        return None

    @pytest.fixture
    def atomic_moves(self):
        return False
