"""Queues whose messages lie in buckets, through tasks as Spark runs them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_queue import Buckets, OptionError, Queue, open_store
from spark_queue.spark import drain
from spark_queue.stores.base import set_layout
from spark_queue.stores.types import Sizes
from tests.spark.drive import TEXT, Query, Write, found, left_behind, rows
from tests.spark.read.test_stream import numbers
from tests.spark.write.test_settle import outcomes, settling


@pytest.fixture
def out(name):
    return f"{name}.out"


@pytest.fixture
def store(any_url):
    with open_store(any_url) as opened:
        yield opened


def buckets(store, queue):
    """How many messages each bucket of the queue holds."""
    return [
        int(id.split("\x7f")[2]) for page in store._buckets(queue, None) for id in page.batch.column("id").to_pylist()
    ]


def numbers_in_queue(url, queue):
    return [one.payload["n"] for one in found(url, queue)]


def numbered(start, end):
    return rows([{"n": n} for n in range(start, end)])


def write_buckets(url, name, total, tasks, **options):
    """Write a number of messages in buckets."""
    ends = [total * number // tasks for number in range(tasks + 1)]
    parts = [numbered(start, end) for start, end in pairwise(ends)]
    Write(url=url, queue=name, **{"layout": "bucket"} | options).run(*parts)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_write_in_buckets_is_read_back_as_single_messages(any_url, name, store, delivery):
    write_buckets(any_url, name, 2_500, 2, bucketSize="700", delivery=delivery)
    assert sorted(buckets(store, name)) == [550, 550, 700, 700]
    read, sizes, options = [], [], {"maxRecordsPerTrigger": "1500", "numPartitions": "2", "delivery": delivery}

    def keep(batch):
        got = [row | {"n": one["n"]} for row, one in zip(batch.rows, batch.payloads, strict=True)]
        sizes.append(len(got))
        read.extend(got)

    Query(keep, url=any_url, queue=name, **options).run()
    assert sorted(row["n"] for row in read) == list(range(2_500))
    assert max(sizes) <= 1_500
    assert {row["tries"] for row in read} == {0}
    assert len({row["delivery_hash"] for row in read}) == 2_500
    assert store.sizes(name) == Sizes(0, 0, 0)


def test_the_setting_of_a_queue_holds_for_spark_too(any_url, name, store, out):
    set_layout(store, out, Buckets(300, "zstd"))
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(1_000)])
    options = {"maxRecordsPerTrigger": "700", "numPartitions": "1"}
    Query(lambda batch: batch.write(url=any_url, queue=out), url=any_url, queue=name, **options).run()
    assert sorted(buckets(store, out)) == [100, 300, 300, 300]  # of batches of 700 and 300
    assert sorted(numbers_in_queue(any_url, out)) == list(range(1_000))


@pytest.mark.every_store
def test_a_batch_in_buckets_that_comes_again_is_not_written_again(any_url, name, store, out):
    write_buckets(any_url, name, 900, 2, bucketSize="200")
    options = {"layout": "bucket", "bucketSize": "150"}
    failures = [0, 1]

    def work(batch):
        batch.write(url=any_url, queue=out, **options)
        if failures and failures[0] == batch.number:  # its sink has committed, Spark has not
            raise RuntimeError(failures.pop(0))

    query = Query(work, url=any_url, queue=name, delivery="exactly-once", maxRecordsPerTrigger="700")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            query.run()
    query.run()
    assert sorted(numbers_in_queue(any_url, out)) == list(range(900))
    assert max(buckets(store, out)) == 150
    assert left_behind(any_url, out) == []


@pytest.mark.every_store
def test_messages_of_one_bucket_are_settled_one_by_one_by_several_tasks(any_url, name, store):
    write_buckets(any_url, name, 40, 1, bucketSize="40")
    ways = ["commit", "rollback", "dead"]

    def settle(batch):
        given = {row["id"]: one["n"] for row, one in zip(batch.rows, batch.payloads, strict=True) if one["n"] % 4 < 3}
        what = outcomes(given, [ways[n % 4] for n in given.values()], delay=3_600)
        quarter = -(-what.num_rows // 4)
        settling(what, any_url, name).run(*(what.slice(quarter * number, quarter) for number in range(4)))

    Query(settle, url=any_url, queue=name, consumer="etl").run()
    with Queue(any_url, name) as queue:
        sizes = queue.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved, sizes.dead) == (0, 10, 0, 10)
    assert {n % 4 for n in numbers_in_queue(any_url, name)} == {1}
    assert {n % 4 for n in numbers_in_queue(any_url, f"{name}.dead")} == {2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "buckets"}, "did you mean 'bucket'"),
        ({"bucketSize": "10"}, "option 'bucketSize' needs layout=bucket"),
        ({"layout": "bucket", "bucketSize": "0"}, "a whole number from 1"),
        ({"layout": "bucket", "bucketSize": "100001"}, "at most 100000"),
        ({"layout": "bucket", "compression": "gzip"}, "one of lz4, zstd"),
    ],
)
def test_invalid_bucket_options_are_refused(sqlite_url, name, options, message):
    with pytest.raises(OptionError, match=message):
        Write(TEXT, url=sqlite_url, queue=name, **options)


# --- with Spark -----------------------------------------------------------------------------------


def test_spark_writes_in_buckets_and_reads_single_messages(q):
    df = q.spark.range(0, 2_500, 1, 2).selectExpr("to_json(named_struct('n', id)) payload")
    q.writing(df, layout="bucket", bucketSize="700").save()
    with open_store(q.url) as opened:
        assert sorted(buckets(opened, q.name)) == [550, 550, 700, 700]
    stream, read = q.stream(maxRecordsPerTrigger="1500", numPartitions="2"), []
    while q.sizes().total:  # on Spark 4.0 and 4.1 each run is one batch
        drain(q.run(stream, lambda df, batch_id: read.append(df.collect())), q.url)
    assert sorted(numbers(read)) == list(range(2_500))
    assert max(map(len, read)) <= 1_500
