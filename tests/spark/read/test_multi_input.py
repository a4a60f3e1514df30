"""Several inputs: how a batch is cut into tasks, and how rows are put side by side."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from spark_queue.errors import CheckpointError, SchemaError
from spark_queue.messages.schema import MESSAGES
from spark_queue.spark.read.fetch import FetchRange, align_batches
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.read.offsets import MultiInputOffset, input_offsets
from spark_queue.spark.read.split import split_batch
from spark_queue.spark.schema import (
    batch_converter,
    batch_joiner,
    check_read_schema,
    read_schema,
)
from spark_queue.spark.write.columns import PUSH_COLUMN_TYPES, check_write_schema
from tests.options.test_inputs import parse

# --- columns --------------------------------------------------------------------------------------


def test_there_is_a_struct_for_each_input():
    schema = read_schema(parse(payloadFormat="binary"))
    assert schema.names == ["order", "price", "delivery_hash"]
    order, price = schema["order"].dataType, schema["price"].dataType
    assert isinstance(order, StructType) and isinstance(price, StructType)
    assert order.names == ["id", "queue", "payload", "headers", "mature", "tries", "pushed"]
    assert price["payload"].dataType.simpleString() == "binary"
    check_read_schema(schema, parse(payloadFormat="binary"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("ordr", StructType()), "option 'inputs' names no 'ordr'; did you mean 'order'?"),
        (StructType().add("order", StringType()), "'order' is an input, so a struct of id, queue, payload"),
        (StructType().add("delivery_hash", LongType()), "'delivery_hash' is string, not bigint"),
        (StructType().add("order", StructType().add("payloda", StringType())), "the input 'order' has no column"),
        (StructType().add("order", StructType().add("tries", StringType())), "'tries' is int, not string"),
        (StructType().add("order", StructType().add("delivery_hash", StringType())), "has no column 'delivery_hash'"),
    ],
)
def test_a_schema_that_inputs_have_not_is_told(schema, message):
    with pytest.raises(SchemaError) as caught:
        check_read_schema(schema, parse())
    assert message in str(caught.value)


def stored(*rows):
    made = [
        {"id": id, "queue": "q", "payload": payload.encode(), "payload_kind": "json", "headers": [("h", id)],
         "mature": 0, "tries": 1}
        for id, payload in rows
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(made, schema=MESSAGES)


def test_rows_have_what_the_user_asks_for_and_null_where_an_input_gives_nothing():
    number = StructType([StructField("n", LongType())])
    inner = StructType().add("payload", number).add("headers", MapType(StringType(), StringType()))
    inner = inner.add("_corrupt_payload", StringType())
    schema = StructType([StructField("price", inner), *read_schema(parse()).fields])
    schema = StructType([schema.fields[0], schema["order"], schema["delivery_hash"]])
    check_read_schema(schema, parse())
    join = batch_joiner(schema, parse())
    both = join({"order": stored(("1", "7"), ("2", "8")), "price": stored(("3", '{"n":1}'), ("4", "[1]"))}, "c/1/5")
    prices = both.column("price").to_pylist()
    assert [one["payload"] for one in prices] == [{"n": 1}, None]
    assert [one["_corrupt_payload"] for one in prices] == [None, "[1]"]
    assert [one["payload"] for one in both.column("order").to_pylist()] == ["7", "8"]
    hashes = [hashlib.sha256(f"c/1/5\0{ids}".encode()).hexdigest() for ids in ("1\x003", "2\x004")]
    assert both.column("delivery_hash").to_pylist() == hashes
    alone = join({"order": stored(("1", "7"))}, "c/1/5")
    assert alone.column("price").to_pylist() == [None]
    assert alone.column("delivery_hash").to_pylist() == [hashlib.sha256(b"c/1/5\x001").hexdigest()]
    assert both.schema == alone.schema


def test_a_read_tells_the_tag_where_it_is_asked_for():
    schema = StructType().add("id", StringType()).add("tag", StringType())
    queue, log = ({"queue": "q", "inputs": None, "mode": mode} for mode in (None, "log"))
    check_read_schema(schema, parse(**queue))
    assert "tag" not in read_schema(parse(**queue)).names
    shape = batch_converter(schema, parse(**queue))
    assert shape(stored(("1", "7"), ("2", "8")), "c/1/5/0").to_pylist() == [
        {"id": id, "tag": "c/1/5/0"} for id in ("1", "2")
    ]
    assert shape(stored(("1", "7")), None).to_pylist() == [{"id": "1", "tag": None}], "a snapshot holds nothing"
    with pytest.raises(SchemaError, match="has no column 'tag'"):
        check_read_schema(schema, parse(**log))
    check_write_schema(
        schema.add("payload", StringType()), PUSH_COLUMN_TYPES, ["payload"]
    )  # what was read can be written


# --- offsets and shares ---------------------------------------------------------------------------


def offset(**rows):
    inputs = {binding: {"queue": binding.upper()} for binding in rows}
    return {"v": 2, "inputs": inputs, "consumer": "c/1", "seq": 4, "by": dict.fromkeys(rows, 3), "rows": rows}


def test_an_offset_is_one_of_each_input():
    end = offset(a=[3, 2], b=[5])
    assert input_offsets(end)["b"] == {"v": 2, "queue": "B", "consumer": "c/1", "seq": 4, "by": 3, "rows": [5]}
    del end["rows"]["b"]
    assert input_offsets(end)["b"]["rows"] == []
    del end["by"]
    assert input_offsets(end)["b"]["by"] == 0, "version 1"


def lies(rows):
    """Where messages lie by tag."""
    return {
        binding: [FetchRange(f"c/1/4/{part}", held, first=0) for part, held in enumerate(parts) if held]
        for binding, parts in rows.items()
    }


def parts_of(total):
    """Ways to lay so many messages out under the tags of a batch."""
    marks = st.lists(st.integers(0, total), max_size=4).map(lambda at: [0, *sorted(at), total])
    return marks.map(lambda at: [b - a for a, b in pairwise(at)])


@given(st.integers(1, 40).flatmap(lambda n: st.dictionaries(st.sampled_from("abc"), parts_of(n), min_size=1)))
def test_every_cut_gives_each_message_once_and_the_nth_with_the_nth(rows):
    def meant(shares):
        return [(one.tag, (one.first or 0) + row) for one in shares for row in range(one.rows or 0)]

    tasks = split_batch("c/1/4", lies(rows))
    sizes = [{sum(one.rows or 0 for one in shares) for shares in task.ranges.values()} for task in tasks]
    assert all(len(of) == 1 for of in sizes), "a task has as many of each"
    assert max(min(of) for of in sizes) - min(min(of) for of in sizes) <= 1
    for binding, parts in rows.items():
        got = [one for task in tasks for one in meant(task.ranges[binding])]
        assert got == [(f"c/1/4/{part}", row) for part, held in enumerate(parts) for row in range(held)]


def test_the_cuts_are_those_of_the_tags_where_these_are_alike():
    assert [one.ranges["a"][0].rows for one in split_batch("c/1/4", lies({"a": [2, 1]}), min_tasks=2)] == [2, 1]
    tasks = split_batch("c/1/4", lies({"a": [501, 500], "b": [501, 500]}))
    assert [[(one.first, one.rows) for shares in task.ranges.values() for one in shares] for task in tasks] == [
        [(0, 501)] * 2, [(0, 500)] * 2
    ]  # fmt: skip


def test_a_part_of_a_share_of_a_log_knows_its_position():
    piece = FetchRange("log/0/x/0", 100, first=20, position=1_020)
    assert piece.slice(10, 30) == FetchRange("log/0/x/0", 20, first=30, position=1_030)


@given(st.integers(0, 30).flatmap(lambda n: st.dictionaries(st.sampled_from("abc"), parts_of(n), min_size=1)))
def test_batches_of_any_lengths_are_put_side_by_side(flows):
    def flow(parts):
        at = 0
        for rows in parts:
            yield pa.record_batch({"n": pa.array(range(at, at + rows), pa.int64())})
            at += rows

    got = list(align_batches({name: flow(parts) for name, parts in flows.items()}))
    rows = {name: [n for one in got for n in one[name].column("n").to_pylist()] for name in flows}
    assert all(of == list(range(sum(flows[name]))) for name, of in rows.items())
    assert all(len({batch.num_rows for batch in one.values()}) == 1 for one in got)


def test_a_checkpoint_of_other_inputs_is_told():
    reader = MultiInputPlanner(parse())
    for inputs, told in (
        ({"order": {"queue": "orders"}}, "a query on order: orders, but option 'inputs' has order: orders, price"),
        ({"order": {"queue": "orders"}, "price": {"queue": "p"}}, "price: p, but"),
    ):
        with pytest.raises(CheckpointError) as caught:
            reader.next({**reader.initial, "inputs": inputs}, 10)
        assert told in str(caught.value)
    with pytest.raises(CheckpointError, match="a query on queue: orders"):
        reader.plan(
            reader.initial, cast("MultiInputOffset", {"v": 1, "queue": "orders", "consumer": "c/1", "seq": 1})
        )
    reader.close()
