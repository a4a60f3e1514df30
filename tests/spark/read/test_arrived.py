"""The column `arrived`: when a batch was reserved, by its offset. Without Spark, see drive.py."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from spark_queue import Queue, SchemaError, open_store
from spark_queue.messages.columns import milliseconds
from tests.spark.drive import Query, Write, found, snapshot, source

ARRIVED = StructField("arrived", TimestampType())
PAYLOAD = StructField("payload", StringType())
COLUMNS = StructType([PAYLOAD, ARRIVED])


class Died(Exception):
    """The process of a query is gone."""


def push_values(url, name, values):
    with Queue(url, name) as queue:
        queue.push_many(list(values))


def arrivals(batch):
    """When the rows of a batch arrived (ms)."""
    parts = [one.column("arrived") for part in batch.partitions for one in part]
    return [moment for one in parts for moment in milliseconds(one).to_pylist()]


@pytest.fixture
def reads(any_url, name):
    """How the same ten messages are read: from a queue, a log, and inputs of each kind."""
    push_values(any_url, name, range(10))

    def options(how):
        if how in ("queue", "log"):
            return {"url": any_url, "queue": name, "mode": how}, COLUMNS
        other = f"{name}.other"
        push_values(any_url, other, range(10))
        inputs = {"a": {"queue": name}, "b": {"queue": other, "mode": "log" if how == "with a log" else "queue"}}
        given = {"combine": "alts"} if how == "alts" else {}
        inputs = {"a": inputs["a"]} if how == "one input" else inputs
        columns = StructType([StructField("a", StructType([PAYLOAD])), ARRIVED])
        return {"url": any_url, "inputs": json.dumps(inputs)} | given, columns

    return options


HOW = ["queue", "log", "one input", "zip", "with a log", pytest.param("alts", marks=pytest.mark.full)]


@pytest.mark.parametrize("how", HOW)
def test_it_grows_from_batch_to_batch_and_is_the_same_when_a_batch_comes_again(any_url, reads, how):
    options, columns = reads(how)
    seen: dict[int, set[int]] = {}
    runs = []

    def work(batch):
        moments = set(arrivals(batch))
        assert len(moments) == 1 and None not in moments, "all rows of a batch have the same"
        assert seen.setdefault(batch.number, moments) == moments, "that of the first run"
        runs.append(batch.number)
        if runs.count(batch.number) == 1:
            raise Died

    query = Query(work, columns, **options, maxRecordsPerTrigger="3", delivery="exactly-once")
    with open_store(any_url) as store:
        before = store.now()
        while True:
            try:
                query.run()
            except Died:
                continue
            break
        after = store.now()
    moments = [moment for batch in sorted(seen) for moment in seen[batch]]
    assert len(moments) >= 4
    assert moments == sorted(set(moments)), "it grows, also across restarts"
    assert before <= moments[0] and moments[-1] <= after + len(moments), "the clock is that of the database"


@pytest.mark.parametrize("how", HOW)
def test_it_grows_though_the_clock_was_set_back(reads, how):
    options, columns = reads(how)
    seen = []
    query = Query(lambda batch: seen.append(set(arrivals(batch))), columns, **options, maxRecordsPerTrigger="5")

    def once(batch):
        seen.append(set(arrivals(batch)))
        raise Died

    query.work = once
    with pytest.raises(Died):
        query.run()
    later = query.offsets[-1]["arrived"] + 3_600_000
    query.offsets[-1]["arrived"] = later  # as if the clock had been an hour ahead
    query.work = lambda batch: seen.append(set(arrivals(batch)))
    query.run()
    assert seen[1:3] == [{later}, {later + 1}]


@pytest.mark.parametrize("how", HOW)
def test_an_offset_of_an_earlier_version_goes_on(reads, how):
    """It has no such field: its batch is NULL there, in each replay, and the next one is not."""
    options, columns = reads(how)
    seen = []

    def die(batch):
        raise Died

    query = Query(die, columns, **options, maxRecordsPerTrigger="5", delivery="exactly-once")
    with pytest.raises(Died):
        query.run()
    del query.offsets[-1]["arrived"]
    query.work = lambda batch: seen.append(set(arrivals(batch)))
    query.run()
    assert seen[0] == {None}
    assert len(seen) >= 2 and None not in set.union(*seen[1:])


def test_a_batch_read_has_none_and_a_read_has_it_only_if_you_say_so(any_url, name):
    push_values(any_url, name, [1])
    given = {"url": any_url, "queue": name}
    for mode in ("queue", "log"):
        assert "arrived" not in source(given | {"mode": mode}).schema().names
    assert [row["arrived"] for row in snapshot(COLUMNS, **given)] == [None]
    assert [row["arrived"] for row in snapshot(COLUMNS, **given, view="history")] == []
    Query(lambda batch: batch.rows, **given, mode="log").run()
    assert [row["arrived"] for row in snapshot(COLUMNS, **given, mode="log")] == [None]
    with pytest.raises(SchemaError, match="'arrived' is timestamp, not int"):
        source(given).streamReader(StructType([StructField("arrived", IntegerType())]))


def test_what_was_read_can_be_written_again(any_url, name):
    push_values(any_url, name, [1, 2])
    seen = []
    Query(
        lambda batch: seen.extend(one for part in batch.partitions for one in part), COLUMNS, url=any_url, queue=name
    ).run()
    Write(seen[0].schema, url=any_url, queue=f"{name}.out", delivery="at-least-once").run(seen)
    assert [one.payload for one in found(any_url, f"{name}.out")] == [1, 2]


def test_an_input_may_have_that_name(any_url, name):
    """It may have had it before the column existed; then there is no such column."""
    push_values(any_url, name, [1])
    inputs = {"arrived": {"queue": name}, "b": {"queue": f"{name}.b"}}
    columns = StructType([StructField("arrived", StructType([PAYLOAD])), StructField("b", StructType([PAYLOAD]))])
    seen = []
    query = Query(
        lambda batch: seen.extend(batch.rows), columns, url=any_url, inputs=json.dumps(inputs), combine="alts"
    )
    query.run()
    assert seen == [{"arrived": {"payload": "1"}, "b": None}]
