"""The column `pushed` of each kind of read, and what a write does with it. Without Spark, see drive.py."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.types import StructField, StructType, TimestampType

from spark_queue import Queue
from spark_queue.graph.link import Link
from spark_queue.graph.link_function import Forward
from spark_queue.graph.parts import Place
from spark_queue.messages.columns import build_messages
from spark_queue.runner.link import _FunctionCalls
from spark_queue.stores.conformance.waiting import tick
from tests.spark.drive import Query, found, save, snapshot

HOUR = 3_600


def pushed_of(rows):
    """When each message was pushed, by its payload."""
    return {row["payload"]: row["pushed"] for row in rows}


def fill(url, name, **options):
    """Push two messages at different moments; return when, by payload."""
    with Queue(url, name, **options) as queue:
        queue.push({"n": 1})
        tick(queue.store)
        queue.push({"n": 2}, delay=0)
        expected = {f'{{"n":{one.payload["n"]}}}': one.pushed for one in queue.peek()}
    assert len(set(expected.values())) == 2
    return expected


def test_a_batch_read_has_it(any_url, name):
    expected = fill(any_url, name)
    rows = snapshot(url=any_url, queue=name)
    assert list(rows[0])[-3:] == ["tries", "pushed", "delivery_hash"]
    assert pushed_of(rows) == expected
    only = StructType([StructField("pushed", TimestampType())])
    assert {row["pushed"] for row in snapshot(only, url=any_url, queue=name)} == {*expected.values()}


def test_a_stream_has_it_and_a_batch_that_comes_again_has_the_same(any_url, name):
    expected, seen = fill(any_url, name), []

    def work(batch):
        seen.append(pushed_of(batch.rows))
        if len(seen) == 1:
            raise ValueError("the first attempt fails")

    query = Query(work, url=any_url, queue=name, maxRecordsPerTrigger="10", consumer="etl")
    try:
        query.run()
    except ValueError:
        query.run()
    assert seen == [expected, expected]


def test_a_log_has_it(any_url, name):
    expected, seen = fill(any_url, name), {}
    Query(lambda batch: seen.update(pushed_of(batch.rows)), url=any_url, queue=name, mode="log").run()
    assert seen == expected
    assert pushed_of(snapshot(url=any_url, queue=name, mode="log")) == expected


def test_the_history_has_it(any_url, name):
    expected = fill(any_url, name)
    with Queue(any_url, name, history=HOUR) as queue:
        queue.commit(*queue.reserve(1))
        queue.dead_letter(*queue.reserve(1), reason="no such flight")
    assert pushed_of(snapshot(url=any_url, queue=name, view="history")) == expected
    assert {one.pushed for one in found(any_url, f"{name}.dead")} <= {*expected.values()}


def test_a_write_of_rows_that_were_read_pushes_them_anew(any_url, name):
    (old,) = {datetime(2020, 1, 1, tzinfo=UTC)}
    column = pa.array([old], pa.timestamp("us", "UTC"))
    save(pa.record_batch({"payload": ['{"n":1}'], "pushed": column}), url=any_url, queue=name)
    (one,) = found(any_url, name)
    assert one.pushed is not None and one.pushed > old


def test_a_function_of_a_link_sees_it():
    seen = []

    def process(one):
        seen.append(one.pushed)
        return Forward()

    batch = build_messages("a", ["1", "2"], [b"1", b"2"], ["json"] * 2, [{}, {}], [0, 0], [0, 0], [5_000, None])
    batch = batch.set_column(2, "payload", batch.column("payload").cast(pa.string()))
    list(_FunctionCalls(Link(Place("a"), [Place("b")], process=process))(iter([batch])))
    assert seen == [datetime.fromtimestamp(5, UTC), None]
