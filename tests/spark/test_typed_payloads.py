"""Typed payloads, as Spark's JSON reader reads them, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest
from pymongo import MongoClient
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from spark_queue import OptionError, Queue, SchemaError
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.task_context import TIME_ZONE
from spark_queue.spark.typed_json import parse_json_column
from tests.spark.drive import snapshot, source, task

NEW_YORK = "America/New_York"


def struct(**fields):
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def parsed(kind, *texts, zone=None):
    """Return the values of texts, and which of them do not fit."""
    arrow = arrow_schema(struct(payload=kind)).field("payload").type
    values, corrupt = parse_json_column(texts, kind, arrow, zone)
    assert values.type == arrow
    assert [one for one in corrupt.to_pylist() if one is not None] == [
        text for text, one in zip(texts, corrupt.to_pylist(), strict=True) if one is not None
    ]
    return values.to_pylist(), corrupt.is_valid().to_pylist()


def field(kind, text, **options):
    """Return the value of a field, and whether the payload fits."""
    values, bad = parsed(struct(a=kind), f'{{"a":{text}}}', **options)
    return values[0] and values[0]["a"], not bad[0]


def moment(text, zone=None):
    value, fits = field(TimestampType(), json.dumps(text), zone=zone)
    return value.isoformat() if fits else None


# --- what does not fit ----------------------------------------------------------------------------

NESTED = struct(
    b=IntegerType(),
    m=MapType(StringType(), IntegerType()),
    l=ArrayType(IntegerType()),
    s=struct(x=IntegerType(), y=IntegerType()),
    ss=ArrayType(struct(x=IntegerType(), y=IntegerType())),
    ms=MapType(StringType(), struct(x=IntegerType(), y=IntegerType())),
    ll=ArrayType(ArrayType(IntegerType())),
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"b":"x","l":[1]}', {"l": [1]}),
        ('{"m":{"k":"x","b":1},"b":2}', {"b": 2}),
        ('{"l":[1,"x",{"b":5}],"b":2}', {"b": 2}),
        ('{"s":{"x":"z","y":1},"b":2}', {"b": 2, "s": {"x": None, "y": 1}}),
        ('{"ss":[{"x":"z","y":1},{"x":2}]}', {"ss": [{"x": None, "y": 1}, {"x": 2, "y": None}]}),
        ('{"ss":[{"x":1},5],"b":1}', {"b": 1}),
        ('{"ss":{"x":1},"b":1}', {"b": 1}),
        (
            '{"ms":{"k":{"x":"z","y":2},"j":{"x":1}}}',
            {"ms": [("k", {"x": None, "y": 2}), ("j", {"x": 1, "y": None})]},
        ),
        ('{"ms":{"k":5,"y":{"y":1}},"b":1}', {"b": 1}),
        ('{"ll":[[1],["x"],[2]],"b":1}', {"b": 1}),
        ('{"s":5,"b":1}', {"b": 1}),
        ('{"b":1,"b":"z"}', {"b": 1}),
        ('{"b":"z","b":2}', {"b": 2}),
    ],
)
def test_a_field_of_another_type_is_null_and_the_others_stay(text, kept):
    [value], [bad] = parsed(NESTED, text)
    assert bad and {name: one for name, one in value.items() if one is not None} == kept


@pytest.mark.parametrize("text", ['"text"', "5", "[]", '[{"b":1}]', "{", '{"b":1', '{"b":tru}', '{"b":01}', "{b:1}"])
def test_a_payload_that_is_no_object_is_null_and_kept_as_a_text(text):
    assert parsed(NESTED, text) == ([None], [True])


@pytest.mark.parametrize("text", ["null", "", "  "])
def test_nothing_is_null_and_fits(text):
    assert parsed(NESTED, text) == ([None], [False])


@pytest.mark.parametrize(
    "text", ['\ufeff{"b":1}', ' {"b" : 1 }\n', '{"b":1} and more', "{'b':1}", '{"b":1}{"b":2}', '{"x":NaN,"b":1}']
)
def test_what_spark_takes_as_json(text):
    [value], [bad] = parsed(NESTED, text)
    assert value["b"] == 1 and not bad


def test_rows_that_are_odd_change_no_other_row():
    """Rows are read many at once, in steps that become smaller where one of them does not fit."""
    kind = struct(n=IntegerType(), s=StringType())
    odd = {7: '{"n":"x","s":"kept"}', 1500: '{"n":1.5}', 1501: "{", 2999: '{"n":1,"n":2}', 2500: '}{"v":{"n":1}'}
    texts = [odd.get(n, f'{{"n":{n},"s":"{n}"}}') for n in range(3000)]
    values, bad = parsed(kind, *texts)
    expected = {
        7: {"n": None, "s": "kept"},
        1500: {"n": None, "s": None},
        1501: None,
        2999: {"n": 2, "s": None},
        2500: None,
    }
    assert values == [expected.get(n, {"n": n, "s": str(n)}) for n in range(3000)]
    assert [n for n, one in enumerate(bad) if one] == [7, 1500, 1501, 2500]


def test_payloads_of_one_text_do_not_reach_into_the_next():
    kind = struct(a=IntegerType(), b=IntegerType())
    texts = ['{"a":1,', '"b":2}', '{"a":1}}\n{"v":{"a":3}', '{"a":[1', "2]}"]
    assert parsed(kind, *texts) == ([None, None, {"a": 1, "b": None}, None, None], [True, True, False, True, True])


# --- each type ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (IntegerType(), "1.0", None),
        (IntegerType(), "1e0", None),
        (IntegerType(), '"5"', None),
        (IntegerType(), '""', None),
        (IntegerType(), "2147483648", None),
        (ByteType(), "-128", -128),
        (ByteType(), "200", None),  # Spark reads -56
        (LongType(), "9223372036854775807", 2**63 - 1),
        (BooleanType(), "true", True),
        (BooleanType(), '"true"', None),
        (DoubleType(), "1", 1.0),
        (DoubleType(), "1e400", float("inf")),
        (DoubleType(), '"-INF"', float("-inf")),
        (DoubleType(), "Infinity", float("inf")),
        (DoubleType(), '"INF"', None),
        (DoubleType(), '"1"', None),
        (DecimalType(6, 2), "1.005", Decimal("1.01")),
        (DecimalType(6, 2), "-1.005", Decimal("-1.01")),
        (DecimalType(6, 2), '"1,234.5"', Decimal("1234.50")),
        (DecimalType(6, 2), '"1e3"', Decimal("1000.00")),
        (DecimalType(6, 2), "99999", None),
        (DecimalType(6, 2), '" 1"', None),
        (DecimalType(38, 0), "1" + "2" * 37, Decimal("1" + "2" * 37)),
        (DecimalType(38, 10), "12345678901234567890123456789012345678", None),
        (StringType(), "1.10", "1.10"),
        (StringType(), "1e400", "1e400"),
        (StringType(), "true", "true"),
        (StringType(), '{"q": [1, 2.50,"\\u00e9"]}', '{"q": [1, 2.50,"\\u00e9"]}'),
        (StringType(), '{"x":1,"x":2}', '{"x":1,"x":2}'),
        (StringType(), "[ 1 ]", "[ 1 ]"),
        (StringType(), '"\\ud83d\\ude00"', "\U0001f600"),
        (StringType(), '"\\ud800"', "?"),
        (StringType(), "'q\"r'", 'q"r'),
        (BinaryType(), '"AP8="', b"\x00\xff"),
        (BinaryType(), '" AP8= "', b"\x00\xff"),
        (BinaryType(), '"AP8=AP8="', b"\x00\xff\x00\xff"),
        (BinaryType(), '"AP8"', None),
        (BinaryType(), '""', b""),
        (DateType(), '"2013-01-31"', date(2013, 1, 31)),
        (DateType(), '"2013-1-3"', date(2013, 1, 3)),
        (DateType(), '"2013"', date(2013, 1, 1)),
        (DateType(), '" 2013-01-31 "', date(2013, 1, 31)),
        (DateType(), '"2013-01-31Tgarbage"', date(2013, 1, 31)),
        (DateType(), '"17"', date(1970, 1, 18)),
        (DateType(), '"2013-02-30"', None),
        (DateType(), "5", None),
        (TimestampNTZType(), '"2013-01-31 05:00:00.25"', datetime(2013, 1, 31, 5, 0, 0, 250_000)),
        (TimestampNTZType(), '"2013-01-31T05:00:00Z"', None),
        (DayTimeIntervalType(0, 3), '"1 02:03:04.5"', timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        (DayTimeIntervalType(0, 3), "\"INTERVAL '-1 02:03:04' DAY TO SECOND\"", -timedelta(1, 7384)),
        (DayTimeIntervalType(0, 3), '"26:03:04"', None),
        (DayTimeIntervalType(3, 3), '"1.5"', timedelta(seconds=1.5)),
        (DayTimeIntervalType(3, 3), '"-0.5"', -timedelta(seconds=0.5)),
        (DayTimeIntervalType(3, 3), "\"INTERVAL '-00.000001' SECOND\"", -timedelta(microseconds=1)),
        (ArrayType(StringType()), '["x",1,null]', ["x", "1", None]),
        (MapType(StringType(), StringType()), '{"a":1.50,"b":null}', [("a", "1.50"), ("b", None)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spaces", ["", " "], ids=["compact", "with spaces"])
def test_values_of_each_type(kind, text, value, spaces):
    assert field(kind, spaces + text) == (value, value is not None)


def test_a_variant_keeps_any_value_and_null():
    for text, value in [
        ("null", None),
        ('{"a":[1,"x"]}', {"a": [1, "x"]}),
        ("[ 1.50 ]", [Decimal("1.5")]),
        ('"s"', "s"),
    ]:
        found, fits = field(VariantType(), text)
        assert fits and VariantVal(found["value"], found["metadata"]).toPython() == value
    assert field(VariantType(), '{"a":1,"a":2}') == (None, False)


def test_far_moments_are_kept():
    kind = struct(t=TimestampType(), d=DateType())
    arrow = arrow_schema(struct(p=kind)).field("p").type
    texts = ['{"t":"+12026-01-01T00:00:00Z","d":"-0044-03-15"}', '{"t":1700000000000,"d":"20130131"}']
    values, corrupt = parse_json_column(texts, kind, arrow)
    assert corrupt.null_count == 2
    assert values.field("t").cast(pa.int64()).to_pylist() == [317336745600000000, 1700000000000000000]
    assert values.field("d").cast(pa.int32()).to_pylist() == [-735525, 20130131]
    assert parsed(kind, '{"t":10000000000000}', '{"t":"12:30:15"}')[1] == [True, True], (
        "neither wraps nor means today"
    )


# --- times and zones ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "in_utc"),
    [
        ("2026-07-01T12:00:00", "2026-07-01T16:00:00+00:00"),
        ("2026-07-01 12:00:00.123456", "2026-07-01T16:00:00.123456+00:00"),
        ("2026-07-01", "2026-07-01T04:00:00+00:00"),
        ("2026-01", "2026-01-01T05:00:00+00:00"),
        ("2013-01-31T05", "2013-01-31T10:00:00+00:00"),
        ("2013-01-31T05:30", "2013-01-31T10:30:00+00:00"),
        ("2013-01-31T05:30Z", None),
        ("2013-01-31T05:30:00Z", "2013-01-31T05:30:00+00:00"),
        ("2013-01-31T05:30:00z", None),
        ("2013-01-31 05:30:01.123456789+1:2", "2013-01-31T04:28:01.123456+00:00"),
        ("2013-01-31T05:00:00+0130", "2013-01-31T03:30:00+00:00"),
        ("2013-01-31T05:00:00 Europe/Paris", "2013-01-31T04:00:00+00:00"),
        ("2013-01-31T05:00:00 Europe/Atlantis", None),
        ("2013-01-31T05:00:00EST", "2013-01-31T10:00:00+00:00"),
        ("2013-01-31T05:00:00UTC+1", "2013-01-31T04:00:00+00:00"),
        ("2013-01-31T05:00:00GMT", "2013-01-31T05:00:00+00:00"),
        ("2013-01-31T05:00:00+18:01", None),
        ("2013-03-10T02:30:00", "2013-03-10T07:30:00+00:00"),  # does not exist there
        ("2013-11-03T01:30:00", "2013-11-03T05:30:00+00:00"),  # is there twice
        ("2013-01-31T24:00:00", None),
        ("2013-01-31T", None),
        ("12:30:15", None),
        ("1800-01-01T00:00:00", "1800-01-01T04:56:02+00:00"),
    ],
)
def test_a_time_has_its_own_zone_or_that_of_the_session(text, in_utc):
    assert moment(text, NEW_YORK) == in_utc


def test_a_zone_may_be_an_offset_and_is_utc_if_none_is_known():
    assert moment("2026-07-01T12:00:00", "+05:30") == "2026-07-01T06:30:00+00:00"
    assert moment("2026-07-01T12:00:00") == "2026-07-01T12:00:00+00:00"


def test_many_times_are_read_as_one_is():
    hours = [datetime(2026, 1, 1) + timedelta(hours=n) for n in range(24 * 365)]
    texts = [f'{{"a":"{one.isoformat()}"}}' for one in hours]
    together, _ = parsed(struct(a=TimestampType()), *texts, zone=NEW_YORK)
    each = [parsed(struct(a=TimestampType()), one, zone=NEW_YORK)[0][0] for one in texts[::97]]
    assert together[::97] == each


VISITS = pa.schema({"payload": pa.struct({"at": pa.timestamp("us", "UTC"), "day": pa.timestamp("us", "UTC")})})
NOON = {"at": "2026-07-01T12:00:00", "day": "2026-07-01"}


def visit(url, name, session=None, **options):
    """Return the hours of a visit in UTC, as a task reads them."""
    with task() as context:
        if session is not None:
            context._localProperties[TIME_ZONE] = session
        [row] = snapshot(VISITS, url=url, queue=name, **options)
    return row["payload"]["at"].hour, row["payload"]["day"].hour


def test_the_zone_is_that_of_the_option_else_of_the_session_else_of_the_driver(any_url, name, monkeypatch):
    with Queue(any_url, name) as queue:
        queue.push(NOON)
    assert visit(any_url, name) == (12, 0), "UTC if none is known"
    assert visit(any_url, name, session=NEW_YORK) == (16, 4)
    assert visit(any_url, name, session=NEW_YORK, timeZone="Asia/Tokyo") == (3, 15)
    monkeypatch.setattr("spark_queue.spark.QueueDataSource.zone", "Asia/Tokyo")
    assert visit(any_url, name) == (3, 15), "that of the session that registered the source"
    assert visit(any_url, name, session=NEW_YORK) == (16, 4)
    assert visit(any_url, name, session=NEW_YORK, timeZone="UTC") == (12, 0)
    with pytest.raises(OptionError, match="the session's time zone is 'Mars/Olympus'"):
        visit(any_url, name, session="Mars/Olympus")


def test_a_zone_that_python_does_not_know_matters_only_for_typed_payloads(sqlite_url, name):
    with Queue(sqlite_url, name) as queue:
        queue.push(NOON)
    with task() as context:
        context._localProperties[TIME_ZONE] = "SystemV/PST8"
        [row] = snapshot(url=sqlite_url, queue=name)
        assert json.loads(row["payload"]) == NOON
        with pytest.raises(OptionError, match="the session's time zone is 'SystemV/PST8'"):
            snapshot(VISITS, url=sqlite_url, queue=name)


def test_a_zone_that_does_not_exist_is_refused(sqlite_url, name):
    with pytest.raises(OptionError, match="option 'timeZone' is 'Mars/Olympus' but must be a time zone such as"):
        source({"url": sqlite_url, "queue": name, "timeZone": "Mars/Olympus"}).schema()


# --- NOT NULL -------------------------------------------------------------------------------------


def required(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=False)])


@pytest.mark.parametrize(
    ("kind", "bad", "path"),
    [
        (required("qty", IntegerType()), {"note": 1}, "payload.qty"),
        (struct(l=ArrayType(IntegerType(), containsNull=False)), {"l": [1, None]}, "payload.l.element"),
        (struct(m=MapType(StringType(), ByteType(), valueContainsNull=False)), {"m": {"k": None}}, "payload.m.value"),
        (struct(s=required("x", IntegerType())), {"s": {}}, "payload.s.x"),
    ],
)
def test_a_null_where_the_schema_has_none_names_the_field_and_the_message(sqlite_url, name, kind, bad, path):
    """Without `register` the schema stays as it is: Spark's JVM would only say `Value at index is null`."""
    good = {"qty": 7, "l": [1], "m": {"k": 1}, "s": {"x": 1}}
    with Queue(sqlite_url, name) as queue:
        queue.push(good)
        schema = struct(payload=kind)
        assert len(snapshot(schema, url=sqlite_url, queue=name)) == 1
        id = queue.push(bad)
        with pytest.raises(SchemaError, match=rf"column '{path}' is NOT NULL, but it is NULL in the message '{id}'"):
            snapshot(schema, url=sqlite_url, queue=name)


# --- values of MongoDB ----------------------------------------------------------------------------

NODE = struct(
    at=TimestampType(),
    day=DateType(),
    price=DecimalType(10, 2),
    key=StringType(),
    count=LongType(),
    uuid=StringType(),
    raw=BinaryType(),
    ats=ArrayType(TimestampType()),
    keys=MapType(StringType(), StringType()),
    ratio=DoubleType(),
)


def test_values_of_a_node_program_on_mongodb(mongodb_url, name):
    from bson import Binary, Decimal128, Int64, ObjectId

    key, uuid, when = ObjectId(), UUID(int=7), datetime(2026, 7, 1, 23, 30, tzinfo=UTC)
    with Queue(mongodb_url, name) as queue:
        queue.push({})
    with MongoClient(mongodb_url) as client:
        payload = {
            "at": when, "day": when, "price": Decimal128("12.50"), "key": key, "count": Int64(2**40),
            "uuid": Binary.from_uuid(uuid), "raw": Binary(b"\0\xff", 5), "ats": [when], "keys": {"k": key},
            "ratio": Decimal128("0.5"),
        }  # fmt: skip
        client.get_default_database()[name].update_one({}, {"$set": {"payload": payload}})
    schema = struct(payload=NODE, _corrupt_payload=StringType())
    [row] = snapshot(schema, url=mongodb_url, queue=name, timeZone=NEW_YORK)
    assert row["_corrupt_payload"] is None
    assert row["payload"] == {
        "at": when, "day": date(2026, 7, 1), "price": Decimal("12.50"), "key": str(key), "count": 2**40,
        "uuid": str(uuid), "raw": b"\0\xff", "ats": [when], "keys": [("k", str(key))], "ratio": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (TimestampType(), {"$date": "2026-07-01T12:00:00.5Z"}, datetime(2026, 7, 1, 12, 0, 0, 500_000, UTC)),
        (TimestampType(), {"$date": {"$numberLong": "-1"}}, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (TimestampType(), {"$date": True}, None),
        (TimestampType(), {"$date": "2026-07-01T12:00:00Z", "x": 1}, None),
        (LongType(), {"$numberLong": "9007199254740993"}, 9007199254740993),
        (IntegerType(), {"$numberLong": "9007199254740993"}, None),
        (DoubleType(), {"$numberDouble": "Infinity"}, float("inf")),
        (DecimalType(4, 1), {"$numberDecimal": "NaN"}, None),
        (StringType(), {"$oid": "5f1d7e0123456789abcdef01"}, "5f1d7e0123456789abcdef01"),
        (StringType(), {"$oid": None}, '{"$oid":null}'),
        (StringType(), {"$date": "2026-07-01T12:00:00Z"}, '{"$date":"2026-07-01T12:00:00Z"}'),
        (struct(**{"$oid": StringType()}), {"$oid": "5f"}, {"$oid": "5f"}),
    ],
)
def test_extended_json_of_any_store(any_url, name, kind, value, read):
    with Queue(any_url, name) as queue:
        queue.push({"a": value})
    [row] = snapshot(struct(payload=struct(a=kind)), url=any_url, queue=name)
    assert row["payload"]["a"] == read


# --- many at once, however they are written -------------------------------------------------------

PARTS = struct(
    s=StringType(),
    l=ArrayType(StringType()),
    m=MapType(StringType(), StringType()),
    d=DecimalType(12, 3),
    i=struct(s=StringType(), x=DoubleType()),
    t=MapType(StringType(), TimestampType()),
)
WRITTEN = [
    '{"s":{"a":[1,{"b":"}"}]},"l":["x",{"q":1.5}],"m":{"k":{"v":2},"n":"t"},"d":12.5,"i":{"s":[1],"x":1}}',
    '{"s": {"a": [1, {"b": "}"}]}, "l": ["x", {"q": 1.5}], "m": {"k": {"v": 2}, "n": "t"}, "d": 12.5}',
    '{ "s" : 1.10 , "l" : [ 1.10 , null ] , "m" : { "k" : -0 , "e\\u0301" : 1.10 } , "d" : 12.50 }',
    '{"s":"\\u00e9","l":[{"e":"\\u00e9"}],"i":{"s":{"e":"\\u007d"},"x":1.10}}',
    '{"s":{"s": 1},"i":{"s": {"s": 2}}}',
    '{"x\\"s": 1, "s": [1, 2]}',
    '{"\\u0073": {"a": 1}, "m": {"s": {"a":1}}}',
    '{"s": -0, "d": -0, "i": {"s": -0}}',
    '{"s": {"$oid": "5f1d7e0123456789abcdef01"}, "l": [{"$oid": 5}]}',
    '{"t": {"a": "2026-07-01T12:00:00Z", "b": {"$date": "2026-07-01T12:00:00Z"}, "c": 5}}',
    '{"s": 12345678901234567890123, "d": 1.0005, "m": {}, "l": []}',
    '{"i": {"x": "odd", "s": [ ]}, "s": [ ]}',
    "null",
    '{"s": {"a": 1}, "s": {"a": 2}}',
    '{"s": ',
]


@pytest.mark.parametrize("kind", [PARTS, MapType(StringType(), StringType()), ArrayType(PARTS)], ids=str)
def test_documents_are_read_together_as_each_is_by_itself(kind):
    """Whatever is beside them: parts that are read as text keep the text that they have."""
    together, bad = parsed(kind, *WRITTEN, zone=NEW_YORK)
    each = [parsed(kind, text, zone=NEW_YORK) for text in WRITTEN]
    assert together == [values[0] for values, _ in each]
    assert bad == [one[0] for _, one in each]
    for style in ({"separators": (",", ":")}, {}, {"indent": 1}):
        texts = [json.dumps(json.loads(text), **style) for text in WRITTEN[:-1]]
        together, _ = parsed(kind, *texts)
        exact = [parsed(kind, f"{text} and more")[0][0] for text in texts]  # read by itself, slowly
        assert together == exact


ANY = [
    {}, {"a": {"b": [1, "x y", {"c": " } "}]}, "é \"q\"": [1], "n": None},
    {"a": {"$oid": "5f1d7e0123456789abcdef01"}}, {"a": 5, "b": "\t", "c": [], "d": {}, "": {"": ""}}, None, 5,
    [{"x": 1}], {"a": [[]]}, {"l": {"l": [2]}},
]  # fmt: skip


@pytest.mark.parametrize("kind", [MapType(StringType(), StringType()), ArrayType(StringType())], ids=str)
@pytest.mark.parametrize("inside", [False, True])
def test_texts_in_maps_and_arrays_have_their_spaces(kind, inside):
    """Also those of many documents, which are read together, and beside values of other types."""
    values = [*ANY, *[[*one.values(), one] for one in ANY if type(one) is dict]]
    source = Random(7)
    texts = []
    for value in source.choices([{"v": one, "w": 1} for one in values] if inside else values, k=300):
        text = json.dumps(value, ensure_ascii=False, indent=source.choice([None, 1]))
        texts.append(source.choice(["", "\n "]) + text + source.choice(["", " "]))
    kind = struct(v=kind, w=IntegerType()) if inside else kind
    together, bad = parsed(kind, *texts)
    each = [parsed(kind, f"{text} and more") for text in texts]  # read by itself, slowly
    assert together == [values[0] for values, _ in each]
    assert bad == [one[0] for _, one in each]


def test_a_part_that_is_read_as_text_is_as_it_is_written():
    [first, second, third], _ = parsed(PARTS, *WRITTEN[:3])
    assert first["s"] == '{"a":[1,{"b":"}"}]}' and first["l"] == ["x", '{"q":1.5}']
    assert second["s"] == '{"a": [1, {"b": "}"}]}' and second["m"] == [("k", '{"v": 2}'), ("n", "t")]
    assert third["s"] == "1.10" and third["l"] == ["1.10", None] and third["d"] == Decimal("12.500")
    assert third["m"] == [("k", "-0"), ("e\u0301", "1.10")]


def test_any_column_that_may_not_be_null_is_checked(sqlite_url, name):
    with Queue(sqlite_url, name) as queue:
        id = queue.push({"a": 1})
    schema = StructType([StructField("id", StringType()), *required("_corrupt_payload", StringType())])
    with pytest.raises(
        SchemaError, match=f"column '_corrupt_payload' is NOT NULL, but it is NULL in the message '{id}'"
    ):
        snapshot(schema, url=sqlite_url, queue=name)
