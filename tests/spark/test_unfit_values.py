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
)

from spark_queue.messages.dead_letter import batch_of
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.rules import validate_rows
from spark_queue.messages.schema import PUSHES
from spark_queue.spark.encode import dead_letters_of, delays_ms, encode_pushes
from spark_queue.spark.far_moments import date_of, moment_of
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.typed_json import encode_json_column, parse_json_column

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
    return pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind


def texts_of(kind, values):
    texts, faults = encode_json_column(column_of(kind, values), kind)
    assert not faults
    return [None if one is None else json.loads(one) for one in texts.to_pylist()]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (IN_12026, "+12026-01-01"),
        (MINUS_44, "-0044-03-15"),
        (-719_528, "0000-01-01"),
        (-719_163, "0000-12-31"),
        (2_932_897, "+10000-01-01"),
        (2**31 - 1, "+5881580-07-11"),
        (-(2**31), "-5877641-06-23"),
    ],
)
def test_a_date_that_python_cannot_hold_is_written_as_spark_writes_it(days, text):
    assert date_of(days) == text
    assert moment_of(days * DAY + 61_000_001, local=True) == f"{text}T00:01:01.000001"
    assert moment_of(days * DAY, local=False) == f"{text}T00:00:00Z"
    kind = StructType([StructField("d", DateType())])
    near, far = texts_of(kind, [{"d": 0}, {"d": days}])
    assert (near, far) == ({"d": "1970-01-01"}, {"d": text})


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
            "map": {"-0044-03-15": {"t": "+12026-01-01T00:00:00Z", "n": "1970-01-01T00:00:00"}, "1970-01-01": None},
            "by_time": {"-0044-03-15T00:00:00Z": 1},
            "text": "é",
        }
    ]


def test_rows_beside_a_far_one_are_written_as_without_it():
    kind = StructType([StructField("t", TimestampType()), StructField("d", DateType())])
    target = pa.struct([("t", pa.timestamp("us", "America/New_York")), ("d", pa.date32())])
    rows = [{"t": 0, "d": 1}, {"t": IN_12026 * DAY, "d": 1}]
    column = pa.array(rows, numbers(target)).cast(target)
    near, _ = encode_json_column(column.slice(0, 1), kind)
    both, faults = encode_json_column(column, kind)
    assert both[0] == near[0] and not faults
    assert json.loads(both[1].as_py()) == {"t": "+12026-01-01T00:00:00Z", "d": "1970-01-02"}


def test_a_row_that_cannot_be_written_is_one_row():
    kind = ArrayType(StringType())
    for _ in range(300):
        kind = ArrayType(kind)
    deep: list[object] = ["x"]
    for _ in range(300):
        deep = [deep]
    texts, faults = encode_json_column(pa.array([None, deep], arrow_schema_of(kind)), kind)
    assert texts.null_count == 2 and list(faults) == [1]
    assert faults[1].startswith("its payload cannot be written as JSON (")


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
    ("kind", "text"),
    [
        (TimestampType(), '"0001-01-01T00:00:00+14:00"'),
        (TimestampType(), '"9999-12-31T23:59:59-14:00"'),
        (DoubleType(), "1" + "0" * 400),
        (StringType(), "[" * 300 + "]" * 300),
        (DateType(), '"+12026-01-01"'),
    ],
)
def test_json_that_python_cannot_hold_does_not_fit(kind, text):
    schema = StructType([StructField("a", kind)])
    texts = ['{"a":' + text + "}", '{"a":null}']
    values, corrupt = parse_json_column(texts, schema, arrow_schema_of(schema))
    assert corrupt.to_pylist() == [texts[0], None] or kind == StringType()
    assert values[1].as_py() == {"a": None}
