"""Typed payloads are what Spark's own readers of JSON read: `from_json` and `spark.read.json`.

What differs is in the table of docs/typed.md, and is left out here or made the same: see `as_read`.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from spark_queue import open_store
from spark_queue.spark.schema import CORRUPT_COLUMN, arrow_schema
from spark_queue.spark.typed_json import parse_json_column
from tests.spark.drive import save
from tests.spark.typed_documents import make_documents, make_schemas

ZONE = "America/New_York"
#: The session interprets its queries: Java code for 200 schemas takes minutes, and much memory.
CONFS = {
    "spark.sql.session.timeZone": ZONE,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
DEFAULT_SOURCE = "spark.sql.sources.default"
CORRUPT = "_corrupt_record"

#: Texts that are not JSON, or that people read in more than one way; and a schema for them.
ODD = [
    '{"n":0}', '{"n":1,"i":"x","s":1.10}', '{"n":2,"s":{"q": [1, 2.50]} }', '{"n":3,"i":1,"i":"z"}',
    '{"n":4,"i":"z","i":2}', '{"n":5,"i":1,"i":null}', '{"n":6,"I":1}', '{"n":7,"m":{"k":"x","i":1},"i":2}',
    '{"n":8,"l":[1,"x",{"i":5}],"i":2}', '{"n":9,"l":[["x"]],"i":2}', '{"n":10,"s":"\\ud800"}',
    '{"n":11,"d":[{"s":"x","i":"z"},{"i":2}]}', '{"n":12,"d":[{"i":1},5],"i":1}', '{"n":13,"d":{"i":1},"i":1}',
    "{'n':14,'i':1}", '{"n":15,"i":1} and more', '{"n":16}{"n":99}', '{"n":17,"x":NaN,"i":1}',
    '{"n":18,"x":+Infinity,"i":NaN}',
]  # fmt: skip
ODD_SCHEMA = StructType(
    [
        StructField("n", IntegerType()),
        StructField("i", IntegerType()),
        StructField("s", StringType()),
        StructField("m", MapType(StringType(), IntegerType())),
        StructField("l", ArrayType(IntegerType())),
        StructField("d", ArrayType(StructType([StructField("s", StringType()), StructField("i", IntegerType())]))),
    ]
)


def with_corrupt(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def read_by_spark(spark, schema, texts, folder) -> tuple[pa.Table, pa.Table]:
    """Return what `from_json` and `spark.read.json` read, ordered by `n`."""
    path = folder / f"{uuid.uuid4().hex}.json"
    path.write_text("".join(f"{text}\n" for text in texts))
    wanted, options = with_corrupt(schema), {"columnNameOfCorruptRecord": CORRUPT}
    lines = spark.read.text(str(path))
    parsed = lines.select(F.from_json("value", wanted, options).alias("p")).select("p.*")
    read = spark.read.schema(wanted).options(**options).json(str(path))
    return parsed.orderBy("n").toArrow(), read.orderBy("n").toArrow()


def as_read(value: Any, *, loose: bool = False) -> Any:
    """Return a value in a form that can be compared. `loose`: JSON within a STRING, however written.

    `from_json` writes an object or a number that is read as a STRING anew, `spark.read.json` does not.
    """
    if isinstance(value, dict):
        return {name: as_read(one, loose=loose) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_read(one, loose=loose) for one in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if loose and isinstance(value, str):
        try:
            return repr(json.loads(value, parse_float=_number, parse_int=_number, object_pairs_hook=list))
        except ValueError:
            return value
    return value


def _number(text: str) -> float | str:
    number = float(text) + 0.0
    return number if math.isfinite(number) else f"{'-' if number < 0 else ''}Infinity"


def with_plain_types(kind: pa.DataType) -> pa.DataType:
    """Return the type with numbers in place of moments, which Python may not hold."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, with_plain_types(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, with_plain_types(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(with_plain_types(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return table.cast(pa.schema([pa.field(one.name, with_plain_types(one.type)) for one in table.schema])).to_pylist()


@contextmanager
def in_zone(spark) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in CONFS}
    for name, value in CONFS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def compare(texts: list[str], ours: pa.Table, parsed: pa.Table, read: pa.Table) -> None:
    """Compare our rows, ordered by `n`, with those of both readers of Spark."""
    assert len(ours) == len(parsed) == len(read) == len(texts)
    wrong = []
    for mine, first, second in zip(rows_of(ours), rows_of(parsed), rows_of(read), strict=True):
        for theirs, loose in ((second, False), (first, True)):
            a, b = as_read(mine, loose=loose), as_read(theirs, loose=loose)
            if a != b:
                wrong.append(
                    (texts[mine["n"]], [(name, mine[name], theirs[name]) for name in a if a[name] != b[name]])
                )
    assert not wrong, (len(wrong), wrong[:5])


def compare_queue(spark, url, schema: StructType, texts: list[str], folder) -> None:
    """Push texts, read them as one typed column, and compare."""
    name = f"t{uuid.uuid4().hex[:16]}"
    columns = StructType([StructField("payload", schema), StructField("_corrupt_payload", StringType())])
    try:
        for start in range(0, len(texts), 5000):
            save(pa.record_batch({"payload": texts[start : start + 5000]}), url=url, queue=name)
        with in_zone(spark):
            frame = spark.read.schema(columns).format("queue").options(url=url, queue=name).load()
            ours = frame.select("payload.*", F.col("_corrupt_payload").alias(CORRUPT)).orderBy("n").toArrow()
            compare(texts, ours, *read_by_spark(spark, schema, texts, folder))
    finally:
        with open_store(url) as store:
            store.drop(name)


def test_texts_that_people_read_in_more_than_one_way(spark, tmp_path):
    arrow = arrow_schema(StructType([StructField("p", ODD_SCHEMA)])).field("p").type
    values, corrupt = parse_json_column(ODD, ODD_SCHEMA, arrow, ZONE)
    ours = pa.table([*values.flatten(), corrupt], names=[*ODD_SCHEMA.names, CORRUPT])
    with in_zone(spark):
        compare(ODD, ours, *read_by_spark(spark, ODD_SCHEMA, ODD, tmp_path))


def test_typed_payloads_are_what_spark_reads(spark, sqlite_url, tmp_path):
    schema = make_schemas(12, seed=1)
    compare_queue(spark, sqlite_url, schema, make_documents(schema, 600, seed=2), tmp_path)


@pytest.mark.full
def test_ten_thousand_documents_of_two_hundred_schemas(spark, sqlite_url, tmp_path):
    seed = int(datetime.now().strftime("%Y%m%d"))
    schema = make_schemas(200, seed=seed)
    compare_queue(spark, sqlite_url, schema, make_documents(schema, 10_000, seed=seed), tmp_path)


def test_fields_that_a_schema_calls_not_null_are_null_if_a_message_lacks_them(q):
    q.push([{"qty": 7, "of": [{"x": 1}]}, {"of": [{}]}])
    ddl = "id STRING NOT NULL, payload STRUCT<qty: INT NOT NULL, of: ARRAY<STRUCT<x: INT NOT NULL>>> NOT NULL"
    frame = q.spark.read.schema(ddl).format("queue").options(url=q.url, queue=q.name).load()
    found = frame.orderBy("id").select("payload").collect()
    assert [row.payload.asDict(recursive=True) for row in found] == [
        {"qty": 7, "of": [{"x": 1}]},
        {"qty": None, "of": [{"x": None}]},
    ]
    assert frame.where("payload.qty IS NULL").count() == 1, "Spark knows that it may be"
    schema = StructType([StructField("payload", StructType([StructField("qty", IntegerType(), False)]), False)])
    options = {"url": q.url, "queue": q.name}
    frames = [
        q.spark.readStream.schema(schema).format("queue").options(**options).load(),
        q.spark.readStream.load(format="QUEUE", schema=schema, mode="log", **options),
        q.spark.read.load(format="queue", schema=schema, view="history", failIfMissing=False, **options),
    ]
    for one in frames:
        assert one.schema["payload"].nullable and one.schema["payload"].dataType["qty"].nullable


def test_queries_read_null_where_a_schema_calls_a_field_not_null(q):
    """A batch read and a stream, also as the default source of the session."""
    q.push([{"qty": 7, "of": [{"x": 1}], "m": {"k": 1}}, {"of": [{}, None], "m": {"k": None}}, {}])
    wanted = [
        {"qty": 7, "of": [{"x": 1}], "m": {"k": 1}},
        {"qty": None, "of": [{"x": None}, None], "m": {"k": None}},
        {"qty": None, "of": None, "m": None},
    ]
    item = StructType([StructField("x", IntegerType(), False)])
    payload = StructType(
        [
            StructField("qty", IntegerType(), False),
            StructField("of", ArrayType(item, containsNull=False), False),
            StructField("m", MapType(StringType(), IntegerType(), valueContainsNull=False), False),
        ]
    )
    texts = [StructField(one, StringType(), False) for one in ("id", CORRUPT_COLUMN)]
    required = StructType([*texts, StructField("payload", payload, False)])
    ddl = (
        f"id STRING NOT NULL, {CORRUPT_COLUMN} STRING not null, "
        "payload STRUCT<qty: INT NOT NULL, of: ARRAY<STRUCT<x: INT NOT NULL>>, m: MAP<STRING, INT>> NOT NULL"
    )
    options, found = {"url": q.url, "queue": q.name}, []

    def payloads(frame):
        return [row.payload.asDict(recursive=True) for row in frame.orderBy("id").collect()]

    q.spark.conf.set(DEFAULT_SOURCE, "queue")
    try:
        for schema in (ddl, required):
            assert payloads(q.spark.read.schema(schema).options(**options).load()) == wanted
            assert payloads(q.spark.read.load(format="queue", schema=schema, **options)) == wanted
        stream = q.spark.readStream.schema(required).options(**options, waitTimeout="200ms").load()
        assert stream.schema["payload"].nullable
    finally:
        q.spark.conf.unset(DEFAULT_SOURCE)
    q.run(stream, lambda frame, _: found.extend(payloads(frame))).awaitTermination()
    assert found == wanted
