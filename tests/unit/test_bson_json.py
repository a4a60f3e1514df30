"""Payloads between JSON and BSON: what goes in comes out, and nothing that only looks like Extended JSON is read."""

from __future__ import annotations

import json

import bson
import orjson
import pyarrow as pa
import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_queue.json_text import dump_json, load_json
from spark_queue.store.bson_json import CODEC, all_from_bson, difficult, from_bson, to_bson
from spark_queue.store.conformance_payloads import EXTENDED_JSON, LOOKALIKES, same_json
from tests.tiers import param

#: How many cases of a property are tried: few in `make test`.
CASES = pytest.mark.parametrize("cases", [param(300, fast=True), param(100_000, fast=False)])


def cases_of(cases):
    return settings(
        max_examples=cases, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def stored(payload, kind="json"):
    """The BSON value of a payload, as a document gives it back."""
    (hard,) = difficult(pa.array([payload], pa.binary()))
    return bson.decode(bson.encode({"payload": to_bson(payload, kind, hard)}, codec_options=CODEC), CODEC)["payload"]


@CASES
def test_what_goes_in_comes_out(cases):
    @given(EXTENDED_JSON)
    @cases_of(cases)
    def check(value):
        found = stored(dump_json(value))
        text, kind = from_bson(found)
        assert kind == "json" and same_json(value, load_json(text))
        assert all_from_bson([found, {}]) == ([text, b"{}"], ["json", "json"])
        assert bson.encode({"": stored(text)}) == bson.encode({"": found})  # and so does what came out

    check()


@pytest.mark.parametrize("value", LOOKALIKES, ids=repr)
def test_what_only_looks_like_extended_json_stays_as_it_is(value):
    for payload in (value, [value], {"a": {"b": value}}):
        text = orjson.dumps(payload)
        assert from_bson(stored(text)) == (text, "json")


def test_each_object_is_read_by_itself():
    value = {
        "at": {"$date": "2024-01-01T00:00:00Z"},
        "id": {"$oid": None},
        "ref": [{"$oid": "5f1d7e0123456789abcdef01"}],
    }
    assert stored(orjson.dumps(value)) == {
        "at": DatetimeMS(1704067200000), "id": {"$oid": None}, "ref": [ObjectId("5f1d7e0123456789abcdef01")],
    }  # fmt: skip


def test_names_with_an_escaped_dollar_are_names():
    assert from_bson(stored(b'{"\\u0024oid":null,"a":{"\\u0024date":true}}')) == (
        b'{"$oid":null,"a":{"$date":true}}', "json"
    )  # fmt: skip
    with pytest.raises(ValueError, match="come first"):
        stored(b'{"\\u0024id":1,"\\u0024ref":"c"}')


@pytest.mark.parametrize("text", [b'"$oid"', b'["$oid"]', b'"\\u0024"', b'[{"$a":1},"$b"]'])
def test_a_dollar_in_a_text_is_no_name(text):
    value = stored(text)
    assert load_json(from_bson(value)[0]) == load_json(text) if type(value) is not str else value == load_json(text)


def test_an_object_deep_inside_its_like_takes_no_time_of_its_own():
    value: dict[str, object] = {"a": "x" * 100_000}
    for _ in range(45):
        value = {"$code": "f()", "$scope": value}
    text = orjson.dumps(value)
    assert from_bson(stored(text)) == (text, "json")


DATES = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.binary(min_size=12, max_size=12).map(ObjectId),
    DATES.map(DatetimeMS),
    st.decimals().map(lambda one: Decimal128(str(one)) if len(str(one)) < 30 else Decimal128("-Infinity")),
    st.sampled_from(["NaN", "-0", "0E-6176", "9.999999999999999999999999999999999E+6144"]).map(Decimal128),
    DATES.map(Int64),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(
        Regex,
        st.text(max_size=3).filter(lambda one: "\0" not in one),
        st.sets(st.sampled_from("ilmsux")).map("".join),
    ),
    st.builds(Binary, st.binary(max_size=4), st.sampled_from([0, 1, 3, 4, 5, 6, 7, 8, 9, 128, 255])),
    st.floats(),
    st.text(max_size=3).map(Code),
    st.sampled_from([MinKey(), MaxKey(), None, True, 0, 3e9, -0.0, 1e22, "", b"", "$oid"]),
)
NAMES = st.sampled_from(["a", "$oid", "$date", "$binary", "$code", "$numberLong", "base64", ""])


def around(inner):
    scopes = st.dictionaries(NAMES, inner, max_size=2)
    return st.one_of(
        st.lists(inner, max_size=3),
        scopes,
        st.builds(Code, st.text(max_size=3), scopes),
        st.builds(lambda one, more: DBRef("c", one, more), inner, st.sampled_from([None, "d"])),
        st.builds(lambda one, more: DBRef("c", one, None, {"a": more}), inner, inner),
    )


@CASES
def test_what_others_wrote_goes_in_again_as_it_was_read(cases):
    """The JSON of any BSON, pushed again, is the same JSON: so a message may be forwarded, replayed, moved."""

    @given(st.recursive(VALUES, around, max_leaves=6))
    @cases_of(cases)
    def check(value):
        found = bson.decode(bson.encode({"": {"v": value}}, codec_options=CODEC), CODEC)[""]
        text, kind = from_bson(found)
        json.loads(text)
        assert from_bson(stored(text, kind)) == (text, kind)
        assert all_from_bson([found, {}]) == ([text, b"{}"], ["json", "json"])

    check()


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
    assert stored(text, kind) == {"v": value}
