"""Documents of MongoDB: their fields, payloads and numbers."""

from __future__ import annotations

import json

import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId

from spark_queue.errors import MessageError
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.types import Condition
from tests.stores.mongodb.programs import DUE, keuss_now, keuss_push, without_place


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


def test_numbers_that_json_lacks_differ_from_null(store, queue, collection):
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
