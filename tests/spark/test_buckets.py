"""Queues whose messages lie in buckets, through Spark."""

from __future__ import annotations

import pytest

from spark_queue import Buckets, open_store
from spark_queue.message import messages
from spark_queue.spark import drain
from spark_queue.store.base import set_layout
from spark_queue.store.facts import Sizes
from tests.spark.test_delivery import forget_the_last_commit, run_to_queue, to_queue
from tests.spark.test_stream import numbers


@pytest.fixture
def out(q_any):
    return f"{q_any.name}.out"


@pytest.fixture
def store(q_any):
    with open_store(q_any.url) as opened:
        yield opened


def buckets(store, queue):
    """How many messages each bucket of the queue holds."""
    return [int(id.split("\x7f")[2]) for page in store._buckets(queue, None) for id in page.column("id").to_pylist()]


def payloads(store, queue):
    return [one.payload["n"] for batch in store.peek(queue) for one in messages(batch)]


def rows(q, n):
    return q.spark.range(0, n, 1, 2).selectExpr("to_json(named_struct('n', id)) payload")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_write_in_buckets_is_read_back_as_single_messages(q_any, store, delivery):
    q_any.writing(rows(q_any, 2_500), layout="bucket", bucketSize="700", delivery=delivery).save()
    assert sorted(buckets(store, q_any.name)) == [550, 550, 700, 700]
    stream = q_any.stream(maxRecordsPerTrigger="1500", numPartitions="2", delivery=delivery)
    found, sizes = [], []

    def keep(df, batch_id):
        got = df.selectExpr("payload", "tries", "queue", "delivery_hash").collect()
        sizes.append(len(got))
        found.extend(got)

    while q_any.sizes().total:  # on Spark 4.0 and 4.1 each run is one batch
        drain(q_any.run(stream, keep), q_any.url)
    assert sorted(numbers([found])) == list(range(2_500))
    assert max(sizes) <= 1_500
    assert {one.tries for one in found} == {0}
    assert len({one.delivery_hash for one in found}) == 2_500
    assert store.sizes(q_any.name) == Sizes(0, 0, 0)


def test_the_setting_of_a_queue_holds_for_spark_too(q_any, store, out):
    set_layout(store, out, Buckets(300, "zstd"))
    q_any.push([{"n": n} for n in range(1_000)])
    query = run_to_queue(q_any, out, source={"numPartitions": "1"})
    assert sorted(buckets(store, out)) == [100, 300, 300, 300]  # of batches of 700 and 300
    assert sorted(payloads(store, out)) == list(range(1_000))
    assert query.exception() is None


def test_a_batch_in_buckets_that_comes_again_is_not_written_again(q_any, store, out):
    q_any.writing(rows(q_any, 900), layout="bucket", bucketSize="200").save()
    options = {"layout": "bucket", "bucketSize": "150"}
    run_to_queue(q_any, out, source={"delivery": "exactly-once"}, **options)
    forget_the_last_commit(q_any)
    query = to_queue(
        q_any, q_any.stream(maxRecordsPerTrigger="700", delivery="exactly-once").select("payload"), out, **options
    )
    drain(query, q_any.url)
    assert sorted(payloads(store, out)) == list(range(900))
    assert [one for one in store.staged() if one.queue == out] == []


def test_messages_of_one_bucket_are_settled_one_by_one_by_several_tasks(q_any, store):
    q_any.writing(
        rows(q_any, 40),
        layout="bucket",
        bucketSize="40",
    ).save()

    def settle(df, batch_id):
        outcomes = (
            df.repartition(4)
            .selectExpr(
                "id",
                "CASE WHEN payload.n % 4 = 0 THEN 'commit' WHEN payload.n % 4 = 1 THEN 'rollback' "
                "WHEN payload.n % 4 = 2 THEN 'dead' END outcome",
                "3600 delay",
            )
            .where("outcome IS NOT NULL")
        )
        q_any.writing(outcomes, operation="settle", consumer="etl").save()

    stream = q_any.stream(consumer="etl").selectExpr("id", "from_json(payload, 'n INT') payload", "tries")
    drain(q_any.run(stream, settle), q_any.url)
    sizes = q_any.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved, sizes.dead) == (0, 10, 0, 10)
    assert {n % 4 for n in payloads(store, q_any.name)} == {1}
    assert {n % 4 for n in payloads(store, f"{q_any.name}.dead")} == {2}


def test_bucket_options_that_cannot_be_meant_are_refused(q):
    for options, told in (
        ({"layout": "buckets"}, "did you mean 'bucket'"),
        ({"bucketSize": "10"}, "option 'bucketSize' goes with layout=bucket"),
        ({"layout": "bucket", "bucketSize": "0"}, "a whole number from 1"),
        ({"layout": "bucket", "bucketSize": "100001"}, "at most 100000"),
        ({"layout": "bucket", "compression": "gzip"}, "one of lz4, zstd"),
    ):
        with pytest.raises(Exception, match=told):
            q.writing(rows(q, 1), **options).save()
