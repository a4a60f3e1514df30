"""Payloads between JSON and BSON: what goes in comes out, even if it looks like Extended JSON."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import bson
import orjson
import pyarrow as pa
import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS

from spark_queue.messages.json_text import dump_json, load_json
from spark_queue.stores.conformance.payloads import LOOKALIKES, extended_json, same_json
from spark_queue.stores.mongodb.bson_json import CODEC, all_from_bson, from_bson, need_checks, to_bson
from tests.tiers import param

#: How many batches of a thousand cases of a property are tried: few in `make test`.
BATCHES = pytest.mark.parametrize("batches", [param(2, fast=True), param(100, fast=False)])


def all_stored(payloads):
    """The BSON values of JSON payloads, as documents give them back."""
    found = zip(payloads, need_checks(pa.array(payloads, pa.binary())), strict=True)
    documents = ({"payload": to_bson(payload, "json", hard)} for payload, hard in found)
    return [bson.decode(bson.encode(one, codec_options=CODEC), CODEC)["payload"] for one in documents]


def store_and_read(payload):
    return all_stored([payload])[0]


@pytest.mark.timeout(1500)
@BATCHES
def test_what_goes_in_comes_out(batches):
    some = Random(batches)
    for _ in range(batches):
        values = [extended_json(some) for _ in range(1_000)]
        found = all_stored([dump_json(one) for one in values])
        texts = [text for text, _ in map(from_bson, found)]
        assert all_from_bson(found) == (texts, ["json"] * len(values))
        changed = [value for value, text in zip(values, texts, strict=True) if not same_json(value, load_json(text))]
        assert changed == []
        again = [text for text, _ in map(from_bson, all_stored(texts))]
        assert again == texts, "they are others when they go in again"


def test_the_cases_are_what_they_should_be():
    """Without this, the property might hold for nothing: most types and their imitations occur."""
    some = Random(1)
    kinds: Counter[str] = Counter()
    found = all_stored([dump_json(extended_json(some)) for _ in range(2_000)])
    while found:
        one = found.pop()
        kinds[type(one).__name__] += 1
        found += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
        kinds["kept"] += isinstance(one, dict) and any(name in one for name in ("$oid", "$date", "$binary"))
    wanted = "ObjectId DatetimeMS Binary bytes Regex Timestamp Decimal128 MinKey MaxKey Code DBRef float int str kept"
    assert all(kinds[one] > 10 for one in wanted.split()), kinds


@pytest.mark.parametrize("value", LOOKALIKES, ids=repr)
def test_what_only_looks_like_extended_json_stays_as_it_is(value):
    for payload in (value, [value], {"a": {"b": value}}):
        text = orjson.dumps(payload)
        assert from_bson(store_and_read(text)) == (text, "json")


def test_each_object_is_read_by_itself():
    value = {
        "at": {"$date": "2024-01-01T00:00:00Z"},
        "id": {"$oid": None},
        "ref": [{"$oid": "5f1d7e0123456789abcdef01"}],
    }
    assert store_and_read(orjson.dumps(value)) == {
        "at": DatetimeMS(1704067200000), "id": {"$oid": None}, "ref": [ObjectId("5f1d7e0123456789abcdef01")],
    }  # fmt: skip


def test_names_with_an_escaped_dollar_are_names():
    assert from_bson(store_and_read(b'{"\\u0024oid":null,"a":{"\\u0024date":true}}')) == (
        b'{"$oid":null,"a":{"$date":true}}', "json"
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        b'{"$id":1,"$ref":"c"}', b'{"a":[{"$ref":"c","more":1,"$id":2}]}', b'{"$ref":"c","$id":1,"$db":null}',
        b'{"\\u0024id":1,"\\u0024ref":"c"}', b'{"$db":"d","$ref":"c","$id":1}',
    ],
)  # fmt: skip
def test_a_reference_in_another_order_is_refused(text):
    with pytest.raises(ValueError, match="these two come first"):
        store_and_read(text)


@pytest.mark.parametrize("text", [b'"$oid"', b'["$oid"]', b'"\\u0024"', b'[{"$a":1},"$b"]'])
def test_a_dollar_in_a_text_is_no_name(text):
    value = store_and_read(text)
    assert load_json(from_bson(value)[0]) == load_json(text) if type(value) is not str else value == load_json(text)


def test_an_object_deep_inside_its_like_takes_no_time_of_its_own():
    value: dict[str, object] = {"a": "x" * 100_000}
    for _ in range(45):
        value = {"$code": "f()", "$scope": value}
    text = orjson.dumps(value)
    assert from_bson(store_and_read(text)) == (text, "json")


VALUES = [
    lambda some: ObjectId(some.randbytes(12)),
    lambda some: DatetimeMS(some.randrange(-(2**63), 2**63) >> some.randrange(64)),
    lambda some: Decimal128.from_bid(some.randbytes(16)),
    lambda some: Int64(some.randrange(-(2**63), 2**63)),
    lambda some: Timestamp(some.randrange(2**32), some.randrange(2**32)),
    lambda some: Regex("a" * some.randrange(3), "".join(some.sample("ilmsux", some.randrange(7)))),
    lambda some: Binary(some.randbytes(some.randrange(4)), some.choice([0, 1, 3, 4, 5, 6, 7, 8, 9, 128, 255])),
    lambda some: Code("f()"),
    lambda some: some.choice([float("nan"), float("inf"), 3e9, -0.0, 1e22, 0.1, some.random()]),
    lambda some: some.choice([MinKey(), MaxKey(), None, True, 0, "", b"", "$oid"]),
]
NAMES = ["a", "$oid", "$date", "$binary", "$code", "$numberLong", "base64", ""]


def value_of(some, deep):
    """Return a value as other programs may write it."""
    match some.randrange(7 if deep else 1):
        case 1:
            return [value_of(some, deep - 1) for _ in range(some.randrange(4))]
        case 2:
            return {name: value_of(some, deep - 1) for name in some.sample(NAMES, some.randrange(3))}
        case 3:
            return Code("f()", {name: value_of(some, deep - 1) for name in some.sample(NAMES, some.randrange(3))})
        case 4:
            return DBRef("c", value_of(some, deep - 1), some.choice([None, "d"]))
        case 5:
            return DBRef("c", value_of(some, deep - 1), None, {"a": value_of(some, deep - 1)})
        case _:
            return some.choice(VALUES)(some)


@pytest.mark.timeout(1500)
@BATCHES
def test_what_others_wrote_goes_in_again_as_it_was_read(batches):
    """The JSON of any BSON, pushed again, is the same JSON: for a forward, a replay or a move."""
    some = Random(batches)
    for _ in range(batches):
        values = [{"v": value_of(some, 3)} for _ in range(1_000)]
        found = [bson.decode(bson.encode({"": one}, codec_options=CODEC), CODEC)[""] for one in values]
        texts = [text for text, _ in map(from_bson, found)]
        assert all_from_bson(found) == (texts, ["json"] * len(values))
        assert all(isinstance(json.loads(text), dict) for text in texts)
        again = [text for text, _ in map(from_bson, all_stored(texts))]
        assert [pair for pair in zip(texts, again, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (b"\x0ev\x00\x04\x00\x00\x00abc\x00", b'{"v":"abc"}'),  # a symbol
        (b"\x06v\x00", b'{"v":null}'),  # undefined
        (b"\x0cv\x00\x02\x00\x00\x00c\x00" + bytes(12), b'{"v":{"$ref":"c","$id":{"$oid":"%s"}}}' % (b"0" * 24)),
    ],
    ids=["symbol", "undefined", "DBPointer"],
)
def test_types_of_old_programs_are_read(element, text):
    found = bson.decode(len(element + bytes(5)).to_bytes(4, "little") + element + b"\0", CODEC)
    assert from_bson(found) == (text, "json")
    assert from_bson(store_and_read(text)) == (text, "json")


@pytest.mark.parametrize(
    "value",
    [
        ObjectId("5f1d7e0123456789abcdef01"), DatetimeMS(-(2**63)), DatetimeMS(2**63 - 1), DatetimeMS(0),
        Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("1.50"), Timestamp(2**32 - 1, 1), MinKey(), MaxKey(),
        Regex("^a", "ilmsux"), Code("f()"), Code("f()", {}), Code("f()", {"a": ObjectId("0" * 24)}), Binary(b"\0", 3),
        Binary(b"\0" * 16, 4), Binary(b"\0", 128), b"\0", float("inf"), DBRef("c", ObjectId("0" * 24), "d"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_type_that_json_lacks_is_that_type_again(value):
    text, kind = from_bson({"v": value})
    assert kind == "json" and store_and_read(text) == {"v": value}
