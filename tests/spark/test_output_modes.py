"""Output modes and save modes: a queue takes rows, and changes none that it has."""

from __future__ import annotations

import json
import logging

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from spark_queue import Queue, register
from spark_queue.spark import supervise
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores.conformance.waiting import wait_until

WAY = "with foreachBatch, whose function writes each result as new messages"


@pytest.fixture
def counts(q):
    """A stream with the number of messages of each kind."""
    q.push([{"kind": kind} for kind in "abbccc"])
    return q.stream().selectExpr("get_json_object(payload, '$.kind') AS kind").groupBy("kind").count()


def writing(q, counts, mode):
    rows = counts.selectExpr("to_json(struct(*)) AS payload").writeStream.format("queue").outputMode(mode)
    rows = rows.options(url=q.url, queue=f"{q.name}.out", checkpointLocation=q.checkpoint)
    return rows.trigger(availableNow=True).start()


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_a_mode_that_would_change_messages_is_refused_once_with_the_right_way(q, counts, mode, caplog):
    register(q.spark)
    with caplog.at_level(logging.WARNING), pytest.raises(StreamingQueryException) as caught:
        supervise(lambda: writing(q, counts, mode), q.url)  # it does not start again
    assert f"outputMode('{mode}') {WAY}" in failure_of(caught.value).text
    if mode == "update":  # Spark itself refuses it, so the listener tells the way
        wait_until(lambda: WAY in caplog.text)
    else:
        assert WAY in str(caught.value)
    with Queue(q.url, f"{q.name}.out") as out:
        assert out.sizes().total == 0


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_each_result_is_written_in_foreach_batch(q, counts, mode):
    def write(rows, batch):
        rows = rows.selectExpr("to_json(struct(*)) AS payload").write.format("queue").mode("append")
        rows.options(url=q.url, queue=f"{q.name}.out", txnAppId=f"{q.name}.counts", txnVersion=batch).save()

    query = counts.writeStream.outputMode(mode).foreachBatch(write).option("checkpointLocation", q.checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    with Queue(q.url, f"{q.name}.out") as out:
        assert sorted(one.payload["count"] for one in out.peek(10)) == [1, 2, 3]


def test_a_batch_write_appends(q):
    rows = q.spark.sql("SELECT '1' AS payload")
    q.writing(rows).save()
    for mode, words in (
        ("overwrite", "write with mode('append')"),
        ("ignore", 'use either the "Append"'),
        ("error", 'use either the "Append"'),
    ):
        with pytest.raises(PySparkException) as caught:
            q.writing(rows).mode(mode).save()
        assert words in str(caught.value)
    assert [json.loads(row.payload) for row in q.read().collect()] == [1]


def test_a_view_reads_and_writes_a_queue_and_a_table_keeps_no_options(q):
    view = f"v_{q.name}"
    using = f"USING queue OPTIONS (url '{q.url}', queue '{q.name}')"
    q.spark.sql(f"CREATE TEMPORARY VIEW {view} (payload STRING) {using}")
    q.push([1])
    q.spark.sql(f"INSERT INTO {view} VALUES ('2')")
    assert sorted(row.payload for row in q.spark.sql(f"SELECT payload FROM {view}").collect()) == ["1", "2"]
    for statement, words in (
        (f"INSERT OVERWRITE {view} VALUES ('3')", "a queue is never overwritten"),
        (f"CREATE TABLE t_{q.name} {using}", "a table keeps no options for a queue: use CREATE TEMPORARY VIEW"),
    ):
        with pytest.raises(PySparkException, match=words):
            q.spark.sql(statement)
    assert q.sizes().total == 2
    q.spark.catalog.dropTempView(view)
