"""The columns that a write takes: checked when it is planned, before a row is written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    CharType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from spark_queue import Queue, SchemaError
from tests.spark.begun import begin_batch
from tests.spark.drive import Write, found, source

NUMBER = StructType().add("a", LongType())
TWICE = StructType().add("a", LongType()).add("b", LongType()).add("a", StringType())


@pytest.fixture
def refused(sqlite_url):
    """Refuse a DataFrame with these columns, for a batch and for a stream; return why."""

    def refuse(schema, **options):
        for query in (None, "a-stream"):
            with pytest.raises(SchemaError) as raised:
                Write(schema, query=query, url=sqlite_url, queue="q", **options)
        return str(raised.value)

    return refuse


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (TWICE, "payload"),
        (ArrayType(TWICE), "payload[]"),
        (MapType(StringType(), TWICE), "payload[]"),
        (StructType().add("x", ArrayType(StructType().add("y", TWICE))), "payload.x[].y"),
    ],
)
def test_a_struct_with_two_fields_of_one_name_is_refused(refused, sqlite_url, kind, path):
    """Spark's JVM would end each task with `DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT`."""
    message = f"{path} has two fields 'a': rename or drop one"
    assert message in refused(StructType().add("payload", kind))
    with pytest.raises(SchemaError) as raised:
        source({"url": sqlite_url, "queue": "q"}).reader(StructType().add("payload", kind))
    assert message in str(raised.value)


def test_a_column_that_is_there_twice_is_refused(refused, sqlite_url):
    schema = StructType().add("payload", StringType()).add("id", StringType()).add("id", StringType())
    assert "the DataFrame has two fields 'id': rename or drop one" in refused(schema)
    with pytest.raises(SchemaError, match="the schema has two fields 'id': rename or drop one"):
        source({"url": sqlite_url, "queue": "q"}).reader(schema)


def test_names_that_differ_in_case_are_two(sqlite_url):
    kind = StructType().add("a", LongType()).add("A", LongType())
    rows = pa.record_batch({"payload": pa.array([{"a": 1, "A": 2}], pa.struct({"a": pa.int64(), "A": pa.int64()}))})
    Write(StructType().add("payload", kind), url=sqlite_url, queue="q").run(rows)
    assert [one.payload for one in found(sqlite_url, "q")] == [{"a": 1, "A": 2}]


@pytest.mark.parametrize("kind", [CalendarIntervalType(), ArrayType(CalendarIntervalType()), NUMBER])
def test_an_interval_of_the_calendar_is_refused(refused, kind):
    """Spark refuses it in batches, as `Cannot use "INTERVAL" type in the table schema`, but not in streams."""
    if kind is NUMBER:
        kind = StructType().add("a", LongType()).add("i", MapType(StringType(), CalendarIntervalType()))
    reason = refused(StructType().add("payload", StructType().add("x", kind)))
    assert "payload.x" in reason and "make_interval, which Spark writes to no table: cast it to STRING" in reason


@pytest.fixture(params=[CharType(40), VarcharType(40)], ids=["char", "varchar"])
def text(request):
    return request.param


def write(schema, rows, **options):
    """Write rows as a batch. Spark passes CHAR and VARCHAR as the texts that they are."""
    writing = Write(schema, **options)
    writing.schema = from_arrow_schema(rows.schema)
    writing.run(rows)


def test_a_char_is_a_text_in_each_column_of_a_push(any_url, name, text):
    columns = ("payload", "id", "queue", "delivery_hash", "consumer", "outcome", "tag")
    row = dict.fromkeys(columns, "x") | {"payload": '{"a":1}', "queue": name}
    rows = pa.record_batch({one: [row[one]] for one in columns})
    headers = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    schema = StructType([StructField(one, text) for one in columns]).add("headers", MapType(text, text))
    write(schema, rows.append_column("headers", headers), url=any_url)
    [message] = found(any_url, name)
    assert (message.id, message.payload, message.headers) == ("x", {"a": 1}, {"k": "v"})


def test_a_char_is_a_text_in_each_column_of_a_settle(sqlite_url, name, text):
    with Queue(sqlite_url, name) as queue:
        id = queue.push({"a": 1})
    begin_batch(sqlite_url, name)
    row = {"id": id, "outcome": "dead", "reason": "broken", "payload": '{"a":2}'}
    rows = pa.record_batch({column: pa.array([one], pa.string()) for column, one in row.items()})
    schema = StructType([StructField(one, text) for one in rows.schema.names])
    write(schema, rows, url=sqlite_url, queue=name, operation="settle", consumer="etl")
    [letter] = found(sqlite_url, f"{name}.dead")
    assert letter.payload == {"a": 1} and "broken" in letter.headers.values()


def test_another_type_is_no_text(refused, text):
    schema = StructType().add("payload", text).add("id", IntegerType())
    assert "column 'id' is int but must be string" in refused(schema)
    schema = StructType().add("payload", text).add("headers", MapType(text, IntegerType()))
    assert "but must be map<string,string>" in refused(schema)
