"""Values of Spark that Python, Arrow or JSON cannot hold: one bad row is one row."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
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
)

from spark_queue.messages.dead_letter import batch_of
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.rules import validate_rows
from spark_queue.messages.schema import PUSHES
from spark_queue.spark.encode import dead_letters_of, delays_ms, encode_pushes
from spark_queue.spark.json_write import encode_json_column
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.typed_json import parse_json_column

DAY = 86_400_000_000
IN_12026, MINUS_44 = 3672879, -735525  # days since 1970: 12026-01-01, -0044-03-15


def column_of(kind, values):
    """Return an Arrow column as Spark passes it, of the numbers in which Spark keeps moments."""
    target = arrow_schema(StructType([StructField("payload", kind)])).field("payload").type
    return pa.array(values, numbers(target)).cast(target)


def numbers(kind):
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(numbers(kind.key_type), numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(numbers(kind.value_type))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind


def texts_of(kind, values, style=None):
    texts, faults = encode_json_column(column_of(kind, values), kind, style)
    assert not faults
    return [None if one is None else json.loads(one) for one in texts.to_pylist()]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (IN_12026, "+12026-01-01"),
        (MINUS_44, "-0044-03-15"),
        (-719_528, "0000-01-01"),
        (-719_163, "0000-12-31"),
        (-719_162, "0001-01-01"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"),
    ],
)
def test_a_moment_that_python_cannot_hold_is_written_as_spark_writes_it(days, text):
    names = ("d", DateType()), ("t", TimestampType()), ("n", TimestampNTZType())
    kind = StructType([StructField(name, one) for name, one in names])
    micros = days * DAY + 61_000_001
    near, far = texts_of(kind, [{"d": 0, "t": 0, "n": 0}, {"d": days, "t": micros, "n": micros}])
    assert near == {"d": "1970-01-01", "t": "1970-01-01T00:00:00.000Z", "n": "1970-01-01T00:00:00.000"}
    assert far == {"d": text, "t": f"{text}T00:01:01.000Z", "n": f"{text}T00:01:01.000"}


def test_the_first_and_last_moments_of_spark_are_written():
    kind = StructType([StructField("d", DateType()), StructField("t", TimestampType())])
    assert texts_of(kind, [{"d": 2**31 - 1, "t": 2**63 - 1}, {"d": -(2**31), "t": -(2**63)}]) == [
        {"d": "+5881580-07-11", "t": "+294247-01-10T04:00:54.775Z"},
        {"d": "-5877641-06-23", "t": "-290308-12-21T19:59:05.224Z"},
    ]


def test_far_moments_are_written_wherever_they_are():
    inner = StructType([StructField("t", TimestampType()), StructField("n", TimestampNTZType())])
    kind = StructType(
        [
            StructField("list", ArrayType(DateType())),
            StructField("map", MapType(DateType(), inner)),
            StructField("by_time", MapType(TimestampType(), IntegerType())),
            StructField("text", StringType()),
        ]
    )
    value = {
        "list": [IN_12026, 0, None],
        "map": [(MINUS_44, {"t": IN_12026 * DAY, "n": 0}), (0, None)],
        "by_time": [(MINUS_44 * DAY, 1)],
        "text": "é",
    }
    assert texts_of(kind, [value]) == [
        {
            "list": ["+12026-01-01", "1970-01-01", None],
            "map": {
                str(MINUS_44): {"t": "+12026-01-01T00:00:00.000Z", "n": "1970-01-01T00:00:00.000"},
                "0": None,
            },
            "by_time": {str(MINUS_44 * DAY): 1},
            "text": "é",
        }
    ]


def test_a_row_that_cannot_be_written_is_one_row():
    kind = StructType([StructField("v", VariantType())])
    good, bad = {"value": bytes([1 << 2 | 0]), "metadata": b"\1\0\0"}, {"value": b"", "metadata": b""}
    target = arrow_schema_of(kind)
    values = [None, {"v": good}, {"v": bad}, {"v": None}, *[{"v": good}] * 20, {"v": bad}]
    texts, faults = encode_json_column(pa.array(values, target), kind)
    reason = "its payload cannot be written as JSON (ValueError: it is no VARIANT)"
    assert faults == {2: reason, 24: reason}
    assert texts.to_pylist()[:4] == [None, b'{"v":true}', None, b"{}"] and texts.null_count == 3


def arrow_schema_of(kind):
    return arrow_schema(StructType([StructField("v", kind)])).field("v").type


# --- delays and tries -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        (pa.array([18446744073709552, 1], pa.int64()), "beyond the year 5000"),
        (pa.array([2**63 - 1, 1], pa.int64()), "beyond the year 5000"),
        (pa.array([-(2**63), 1], pa.int64()), "negative"),
        (pa.array([-18446744073709552, 1], pa.int64()), "negative"),
        (pa.array([math.inf, 1.0], pa.float64()), "beyond the year 5000"),
        (pa.array([-math.inf, 1.0], pa.float32()), "negative"),
        (pa.array([math.nan, 1.0], pa.float32()), "beyond the year 5000"),
        (pa.array([1e300, 1.0], pa.float64()), "beyond the year 5000"),
        (pa.array([Decimal(10**37), Decimal(1)], pa.decimal128(38, 0)), "beyond the year 5000"),
        (pa.array([Decimal(-(10**37)), Decimal(1)], pa.decimal128(38, 0)), "negative"),
        (pa.array([2**63 - 1, 10**6], pa.duration("us")), "beyond the year 5000"),
        (pa.array([-(2**63) + 1, 10**6], pa.duration("us")), "negative"),
    ],
)
def test_a_delay_that_no_number_of_ms_holds_is_a_bad_row(column, rule):
    schema = StructType([StructField("payload", StringType()), StructField("delay", LongType())])
    batch = pa.RecordBatch.from_arrays([pa.array(["1", "2"]), column], ["payload", "delay"])
    rows, faults = encode_pushes(batch, schema, None, new_id_array)
    assert not faults and rows.column("delay")[1].as_py() == 1_000
    ((row, text),) = validate_rows(rows, 1_000).items()
    assert row == 0 and rule in text


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
def test_a_delay_is_in_seconds_in_each_type(kind):
    assert delays_ms(pa.array([0, 100, None], kind)).to_pylist() == [0, 100_000, None]


def test_tries_that_are_too_many_are_a_bad_row():
    schema = StructType([StructField("payload", StringType()), StructField("tries", LongType())])
    batch = pa.RecordBatch.from_pydict(
        {"payload": ["1"] * 4, "tries": [1, 2**31, None, -(2**40)]},
    )
    rows, faults = encode_pushes(batch, schema, None, new_id_array)
    assert faults == {1: "its tries is beyond 2147483647"}
    assert validate_rows(rows, 1_000) == {3: "its tries is negative"}


def test_a_row_with_a_far_mature_becomes_a_dead_letter():
    columns = {
        "id": ["a", "b"],
        "payload": [b"1", b"2"],
        "payload_kind": ["json", "json"],
        "headers": [[], []],
        "mature": pa.array([IN_12026 * DAY, MINUS_44 * DAY]).cast(PUSHES.field("mature").type),
        "delay": pa.nulls(2, pa.int64()),
        "tries": [0, 0],
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=PUSHES)
    wrong = validate_rows(rows, 1_000)
    assert wrong == {0: "its mature is after 9999-12-31", 1: "its mature is before 1970-01-01"}
    letters = batch_of([next(one.variants()) for one in dead_letters_of("flights", rows, list(wrong.values()))])
    assert validate_rows(letters, 1_000) == {} and letters.column("mature").null_count == 2


# --- reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "raw", "value"),
    [
        (TimestampType(), '"0001-01-01T00:00:00+14:00"', pa.int64(), -62135647200000000),
        (TimestampType(), '"9999-12-31T23:59:59-14:00"', pa.int64(), 253402351199000000),
        (DoubleType(), "1" + "0" * 400, pa.float64(), float("inf")),
        (StringType(), "[" * 300 + "]" * 300, pa.string(), "[" * 300 + "]" * 300),
        (DateType(), '"+12026-01-01"', pa.int32(), 3672879),
    ],
)
def test_json_that_python_cannot_hold_is_read_as_spark_does(kind, text, raw, value):
    schema = StructType([StructField("a", kind)])
    texts = ['{"a":' + text + "}", '{"a":null}']
    values, corrupt = parse_json_column(texts, schema, arrow_schema_of(schema))
    assert corrupt.to_pylist() == [None, None]
    assert values.field("a").cast(raw).to_pylist() == [value, None]
