"""The option `payloadFormat`: a VARIANT that does not fit is one row, and what it contradicts is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    VariantVal,
)

from spark_queue import OptionError, Queue
from spark_queue.messages.columns import build_messages
from spark_queue.spark.schema import batch_converter, check_read_schema
from tests.options.test_inputs import parse
from tests.spark.drive import Query, Write, snapshot

NESTED: list[DataType] = [
    StructType([StructField("a", IntegerType())]),
    MapType(StringType(), IntegerType()),
    ArrayType(IntegerType()),
]


def with_payload(kind: DataType, *others: str) -> StructType:
    return StructType([StructField("payload", kind), *[StructField(name, StringType()) for name in others]])


# --- a VARIANT ------------------------------------------------------------------------------------

CORRUPT = with_payload(VariantType(), "id", "_corrupt_payload")
TOO_LARGE = "x" * (16 << 20)


def values(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the values of VARIANTs, and the rest of each row."""
    payloads = [row["payload"] for row in rows]
    return [None if one is None else VariantVal(one["value"], one["metadata"]).toPython() for one in payloads]


@pytest.mark.parametrize(
    "text",
    [f'"{TOO_LARGE}"', "[" * 5000 + "]" * 5000, "1" * 5000, '{"a":', f'{{"{"k" * (17 << 20)}":1}}'],
    ids=["too large", "too deep", "a number of 5000 digits", "no JSON", "a name that is too large"],
)
def test_a_payload_that_no_variant_holds_is_null_and_kept_as_text(text):
    options = parse(inputs=None, queue="q", payloadFormat="variant")
    texts = ['{"a":1}', text, "null"]
    batch = build_messages(
        "q", ["1", "2", "3"], [one.encode() for one in texts], ["json"] * 3, [{}] * 3, [0] * 3, [0] * 3
    )
    rows = batch_converter(CORRUPT, options.content)(batch).to_pylist()
    assert values(rows) == [{"a": 1}, None, None]
    assert rows[2]["payload"] is not None, "JSON null is a value of VARIANT"
    assert [row["_corrupt_payload"] for row in rows] == [None, text, None]


def test_reads_go_on_after_a_payload_that_no_variant_holds(sqlite_url, name):
    """A batch read, one without the column for such texts, and a stream."""
    wanted = [1, None, 2]
    with Queue(sqlite_url, name) as queue:
        queue.push_many([1, TOO_LARGE, 2])
    options = {"url": sqlite_url, "queue": name, "payloadFormat": "variant"}
    rows = snapshot(CORRUPT, **options)
    assert values(rows) == wanted
    assert [row["_corrupt_payload"] == f'"{TOO_LARGE}"' for row in rows] == [False, True, False]
    assert values(snapshot(**options)) == wanted
    found = []
    Query(lambda batch: found.extend(values(batch.rows)), CORRUPT, **options).run()
    assert found == wanted


# --- what contradicts a type ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", NESTED, ids=lambda kind: kind.typeName())
@pytest.mark.parametrize("form", ["text", "binary", "variant"])
def test_typed_json_is_of_no_other_format(sqlite_url, name, kind, form):
    message = f"option 'payloadFormat' is '{form}', but column 'payload' is of type {kind.typeName()}, which is read"
    options = {"url": sqlite_url, "queue": name}
    for make in (snapshot, lambda columns, **given: Query(print, columns, **given).run()):
        with pytest.raises(OptionError, match=message) as caught:
            make(with_payload(kind, "id"), **options, payloadFormat=form)
        assert caught.value.facts["option"] == "payloadFormat"
    with Queue(sqlite_url, name) as queue:
        queue.push("no such type")
    for more in ({}, {"payloadFormat": "json"}):
        assert [row["payload"] for row in snapshot(with_payload(kind), **options, **more)] == [None]


def test_the_format_is_that_of_the_inputs_that_are_not_typed():
    typed, plain = with_payload(NESTED[0]), with_payload(BinaryType())
    both = StructType([StructField("order", typed), StructField("price", plain)])
    check_read_schema(both, parse(payloadFormat="binary"))
    for columns in (
        StructType([StructField("price", typed)]),
        StructType([StructField(n, typed) for n in ("price", "order")]),
    ):
        check_read_schema(columns, parse())
        with pytest.raises(
            OptionError, match=r"'payloadFormat' is 'binary', but column 'price\.payload' is of type struct"
        ):
            check_read_schema(columns, parse(payloadFormat="binary"))


@pytest.mark.parametrize("kind", [*NESTED, VariantType()], ids=lambda kind: kind.typeName())
@pytest.mark.parametrize("form", ["text", "binary"])
def test_what_is_written_as_json_is_of_no_other_format(sqlite_url, name, kind, form):
    message = (
        f"option 'payloadFormat' is '{form}', but column 'payload' is of type {kind.typeName()}, which is written"
    )
    options = {"url": sqlite_url, "queue": name}
    settling = {"operation": "settle", "consumer": "c"}
    for query, more, columns in ((None, {}, ()), ("a query", {}, ()), (None, settling, ("id", "outcome", "to"))):
        with pytest.raises(OptionError, match=message):
            Write(with_payload(kind, *columns), query=query, **options, **more, payloadFormat=form)
    for form in ("json", "variant"):
        Write(with_payload(kind), **options, payloadFormat=form)
