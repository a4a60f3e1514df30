"""Every value of a sink's columns becomes a message, or one bad row whose error names its column."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from spark_queue import MessageError, Queue
from spark_queue.spark.schema import arrow_schema
from tests.spark.begun import begin_batch
from tests.spark.drive import Write, found, payloads, save
from tests.spark.test_unfit_values import numbers

UTC_TIME = pa.timestamp("us", tz="UTC")
NOT_TEXT = b"caf\xe9"


def texts(*values: bytes | None) -> pa.Array:
    """Return a text column as Spark passes it: unchecked."""
    return pa.array(values, pa.binary()).view(pa.string())


# --- queues and databases -------------------------------------------------------------------------


def test_a_row_that_names_no_queue_is_one_bad_row(any_url, name):
    names = [name.encode(), None, b"", b"x" * 300, NOT_TEXT, b"a\0b", name.encode()]
    batch = pa.record_batch({"id": list("abcdefg"), "payload": ["1"] * 7, "queue": texts(*names)})
    for bad in range(1, 6):
        with pytest.raises(MessageError, match=rf"row with id '{'abcdef'[bad]}': its queue is (NULL|no|not)"):
            save(batch.slice(bad, 1), url=any_url)
    dead = f"{name}.dead"
    save(batch, url=any_url, onBadRow="deadLetter", deadLetterQueue=dead)
    assert [one.id for one in found(any_url, name)] == ["a", "g"]
    letters = {one.id: one.headers for one in found(any_url, dead)}
    assert sorted(letters) == list("bcdef")
    assert all(one["x-error"].startswith("its queue is ") for one in letters.values())
    assert not any("x-dl-from-queue" in one for one in letters.values())


def test_rows_that_name_no_queue_are_in_unnamed_dead(tmp_path, name):
    url = f"sqlite:///{tmp_path}/q.db"
    batch = pa.record_batch({"id": ["a", "b"], "payload": ["1", "2"], "queue": [name, None]})
    with pytest.raises(MessageError, match="row with id 'b': its queue is NULL, and the option 'queue' is not set"):
        save(batch, url=url)
    for delivery in ("exactly-once", "at-least-once"):
        save(batch, url=url, onBadRow="deadLetter", delivery=delivery)
    assert [one.id for one in found(url, "unnamed.dead")] == ["b"] and payloads(url, name) == [1]


def test_a_row_that_names_no_database_is_one_bad_row(tmp_path, name):
    urls = {one: f"sqlite:///{tmp_path}/{one}.db" for one in ("here", "there")}
    batch = pa.record_batch(
        {"id": list("abcd"), "payload": ["1"] * 4, "ns": texts(b"there", None, b"ther", NOT_TEXT)}
    )
    given = {"urls": json.dumps(urls), "queue": name}
    rule = "its ns is 'ther', but option 'urls' has no database 'ther'; did you mean"
    with pytest.raises(MessageError, match=rule):
        save(batch.slice(2, 1), **given)
    save(batch, onBadRow="deadLetter", deadLetterQueue=f"{name}.dead", **given)
    assert payloads(urls["there"], name) == [1] and payloads(urls["here"], name) == []
    letters = {one.id: one.headers["x-error"] for one in found(urls["here"], f"{name}.dead")}
    assert sorted(letters) == ["b", "c", "d"] and all(one.startswith("its ns is ") for one in letters.values())


# --- settle ---------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_settle_that_names_no_message_or_outcome_is_one_bad_row(any_url, name):
    with Queue(any_url, name) as queue:
        ids = [one.encode() for one in queue.push_many([{"n": n} for n in range(8)])]
        begin_batch(any_url, name)
        batch = pa.record_batch(
            {
                "id": texts(*ids[:6], None, NOT_TEXT, b""),
                "outcome": texts(b"commit", b"done", None, NOT_TEXT, b"rollback", b"commit", *[b"commit"] * 3),
                "delay": pa.array([0, 0, 0, 0, -1, 2**62, 0, 0, 0], pa.int64()),
                "reason": texts(NOT_TEXT, *[None] * 8),
            }
        )
        options = {"url": any_url, "queue": name, "operation": "settle", "consumer": "etl"}
        for bad in range(1, 9):
            rule = r"row with id '.*': (its (id|delay)|outcome) .*nothing of this batch"
            with pytest.raises(MessageError, match=rule):
                save(batch.slice(bad, 1), **options)
        assert queue.sizes().reserved == 8
        save(batch, **options, onBadRow="deadLetter")
        assert queue.sizes().reserved == 2  # those that no row names
        letters = [one.headers["x-error"] for one in found(any_url, f"{name}.dead")]
    assert sorted(one.split(" ")[0] for one in letters) == ["its"] * 5 + ["outcome"] * 3
    assert sum(one.startswith("its id is ") for one in letters) == 3


# --- every column ---------------------------------------------------------------------------------

MOST = 2**63 - 1
TEXTS = [
    b"x",
    b"",
    b"\0",
    b"\x7fb",
    b"x" * 300,
    NOT_TEXT,
    b"\xed\xa0\x80",
    "é😀".encode(),
    b'{"_id":{"$gt":""}}',
    None,
]
JSON_TEXTS = [
    b"1",
    b"null",
    b"",
    b"{oops",
    NOT_TEXT,
    b"\xef\xbb\xbf1",
    b'"\\ud800"',
    b"1e999",
    b"18446744073709551616",
    b"-0.0",
    b"[" * 300 + b"]" * 300,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":1,"a":2}',
    b'{"a\\u0000b":1}',
    b'{"":1}',
    b'{"$ref":1}',
    b'{"$numberLong":"x"}',
    b'{"$date":"soon"}',
    b'{"$id":1,"$ref":"x"}',
    b"NaN",
    b'"\\u0000"',
    None,
]
NO_NAMES = b"\x01\x00\x00"
VALUES: dict[str, list[tuple[DataType, Sequence[object]]]] = {
    "id": [(StringType(), TEXTS)],
    "headers": [
        (
            MapType(StringType(), StringType()),
            [
                None,
                [],
                [("k", None)],
                [("k", "x" * 9_000)],
                [("a\0b", "1")],
                [(str(n), "v") for n in range(1_100)],
                [("k", "x" * 8_000)] * 3,
                [(str(n), "x" * 8_000) for n in range(5)],
                [("", "")],
                [("k", "1"), ("k", "2")],
            ],
        ),
    ],
    "mature": [(TimestampType(), [0, -1, MOST, -MOST - 1, 253_402_300_800_000_000, 1_767_243_600_000_000, None])],
    "delay": [
        (LongType(), [0, -1, MOST, -MOST - 1, None]),
        (ByteType(), [127, -128]),
        (DoubleType(), [0.5, math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0]),
        (FloatType(), [1.5, math.nan, -math.inf, 3e38]),
        (DecimalType(38, 0), [Decimal(10**37), Decimal(-(10**37)), Decimal(1)]),
        (DecimalType(38, 18), [Decimal("1E-18"), Decimal("99999999999999999999.999999999999999999")]),
        (DayTimeIntervalType(), [0, 1, MOST, -MOST - 1, None]),
    ],
    "tries": [(LongType(), [0, -1, 2**31 - 1, 2**31, MOST, -MOST - 1, None]), (IntegerType(), [-(2**31), 2**31 - 1])],
    "payload": [
        (StringType(), JSON_TEXTS),
        (
            VariantType(),
            [
                None,
                {"value": b"\0", "metadata": NO_NAMES},
                {"value": b"", "metadata": b""},
                {"value": bytes([12 << 2]), "metadata": NO_NAMES},
                {"value": bytes([60 << 2]), "metadata": NO_NAMES},
                {"value": bytes([3, 1, 0, 1, 0]), "metadata": NO_NAMES},
                {"value": b"\x11" + NOT_TEXT, "metadata": NO_NAMES},
            ],
        ),
        (
            StructType().add("a", TimestampType()).add("b", FloatType()),
            [
                None,
                {"a": MOST, "b": math.nan},
                {"a": -MOST - 1, "b": -math.inf},
                {"a": None, "b": None},
            ],
        ),
        (
            MapType(StringType(), StringType()),
            [None, [], [("a\0b", "1")], [("", None)], [("$ref", "x"), ("$id", "y")]],
        ),
        (ArrayType(DecimalType(38, 18)), [None, [], [None, Decimal("0E-18"), Decimal("99999999999999999999")]]),
    ],
}
CASES = [(column, kind, values) for column, kinds in VALUES.items() for kind, values in kinds]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(
    ("column", "kind", "values"), CASES, ids=[f"{one[0]}-{one[1].simpleString()}" for one in CASES]
)
def test_every_value_becomes_a_message_or_a_dead_letter(any_url, name, column, kind, values, delivery):
    schema = StructType().add("payload", StringType()).add("id", StringType())
    if column in schema.names:
        schema[column].dataType = kind
    else:
        schema.add(column, kind)
    count = len(values) + 1
    columns = {"payload": pa.array(["1"] * count), "id": pa.array([f"row{n}" for n in range(count)])}
    target = arrow_schema(schema).field(column).type
    columns[column] = as_spark([b"row" if column == "id" else values[0], *values], target)
    batch = pa.record_batch([columns[one] for one in schema.names], names=schema.names)
    given = {"url": any_url, "queue": name, "delivery": delivery}
    Write(schema, **given, onBadRow="deadLetter").run(batch)
    letters = {one.id: one for one in found(any_url, f"{name}.dead")}
    good = found(any_url, name)
    assert len(good) + len(letters) == count
    assert all(column.removesuffix("s") in one.headers["x-error"] for one in letters.values())
    fresh = f"{name}.2"
    if letters:
        with pytest.raises(MessageError, match=r"row with id '.*': it.*"):
            Write(schema, **given | {"queue": fresh}).run(batch)
        assert found(any_url, fresh) == []


def as_spark(values, target):
    """Return an Arrow column of values in the form in which Spark keeps them."""
    if pa.types.is_string(target):
        return texts(*values)
    return pa.array(values, numbers(target)).view(target)
