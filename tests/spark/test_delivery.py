"""Delivery guarantees with Spark: repeated batches, errors, competing queries, hashes.

What needs no Spark is in read/test_plan.py, write/test_publish.py and write/test_settle.py.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Queue, delivery_hash, open_store
from spark_queue.messages.message import messages
from spark_queue.spark import drain
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.ledger import set_ledger
from spark_queue.stores.services.owner import consumers, revoke
from tests.owners import owner_of
from tests.spark.drive import batch_in_ledger, change_ledger, forget_ledger, left_behind, payloads
from tests.spark.read.test_stream import numbers, stopped
from tests.spark_session import SPARK


@pytest.fixture
def out(q):
    return f"{q.name}.out"


@pytest.fixture
def out_any(q_any):
    return f"{q_any.name}.out"


def to_queue(q, df, queue, trigger=None, **options):
    writer = df.writeStream.format("queue").options(**{"url": q.url, "queue": queue} | options)
    return writer.option("checkpointLocation", q.checkpoint).trigger(**(trigger or {"availableNow": True})).start()


def run_to_queue(q, queue, source=None, **options):
    """Move what is ready to another queue, and give the last query, which has ended."""
    while True:  # on Spark 4.0 and 4.1 each run is one batch
        query = to_queue(
            q, q.stream(maxRecordsPerTrigger="700", **(source or {})).select("payload"), queue, **options
        )
        drain(query, q.url)
        if q.sizes().total == 0:
            return query


# --- the sink -------------------------------------------------------------------------------------


def test_a_streaming_write_is_exactly_once_by_default(q_any, out_any):
    q_any.push([{"n": n} for n in range(2_000)])
    query = run_to_queue(q_any, out_any, source={"delivery": "exactly-once", "numPartitions": "2"})
    assert sorted(one["n"] for one in payloads(q_any.url, out_any)) == list(range(2_000))
    assert left_behind(q_any.url, q_any.name) == []
    assert batch_in_ledger(q_any.url, str(query.id)) == 2


def test_a_write_in_foreach_batch_goes_on_with_a_new_checkpoint(q, out, tmp_path):
    """Its `txnAppId` is the same, and its batches count from 0 again."""

    def write(batch, batch_id):
        given = {"url": q.url, "queue": out, "txnAppId": q.name, "txnVersion": batch_id}
        batch.select("payload").write.format("queue").mode("append").options(**given).save()

    for run in range(2):
        q.push([{"n": 10 * run + n} for n in range(10)])
        q.drain(write, checkpoint=str(tmp_path / f"checkpoint{run}"), delivery="exactly-once")
    assert sorted(one["n"] for one in payloads(q.url, out)) == list(range(20))


def forget_the_last_commit(q):
    """As if the query had died after its sink committed, before Spark ended the batch."""
    commits = Path(q.checkpoint, "commits")
    last = max((one for one in commits.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def one_batch(q, df, queue, **options):
    query = to_queue(q, df, queue, {"once": True}, **options)
    query.awaitTermination()
    return query.lastProgress["batchId"]


@pytest.mark.every_store
def test_a_batch_that_comes_again_is_not_written_again(q_any, out_any):
    source = q_any.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100).load()
    df = source.selectExpr("to_json(struct(value)) payload").repartition(2)
    assert one_batch(q_any, df, out_any) == 0
    written = payloads(q_any.url, out_any)
    assert forget_the_last_commit(q_any) == 0
    with Queue(q_any.url, out_any) as queue:  # and what it wrote has been consumed meanwhile
        assert len(queue.reserve(10_000)) == len(written) == 100
        queue.store.commit(out_any, queue.consumer)
    assert [one_batch(q_any, df.repartition(5), out_any) for _ in range(2)] == [0, 1]  # in other pieces, too
    values = Counter(one["value"] for one in written + payloads(q_any.url, out_any))
    assert values == Counter(range(200))


@pytest.mark.full
def test_a_ledger_that_is_gone_or_of_another_time_stops_the_query(q, out):
    q.push([{"n": n} for n in range(1_500)])
    query = run_to_queue(q, out)
    sink = str(query.id)
    last = batch_in_ledger(q.url, sink)
    assert last is not None
    forget_ledger(q.url, sink)
    q.push([{"n": -1}])
    with pytest.raises(StreamingQueryException, match=rf"batch {last + 1} of sink .*there is no ledger"):
        run_to_queue(q, out)
    with open_store(q.url) as store:
        set_ledger(store, sink, last)
    run_to_queue(q, out)
    assert sorted(one["n"] for one in payloads(q.url, out)) == [-1, *range(1_500)]
    change_ledger(q.url, sink, v=2)
    q.push([{"n": -2}])
    with pytest.raises(StreamingQueryException, match=r"ledger of sink .* has version 2.*upgrade"):
        run_to_queue(q, out)
    with open_store(q.url) as store:
        set_ledger(store, sink, last + 7)
    with pytest.raises(StreamingQueryException, match=f"is at batch {last + 7} already"):
        run_to_queue(q, out)


def test_a_failing_task_leaves_nothing_visible(q_any, out_any):
    df = q_any.spark.range(0, 4_000, 1, 4).selectExpr("if(id = 3500, raise_error('broken row'), string(id)) payload")
    with pytest.raises(Exception, match="broken row"):
        q_any.writing(df, queue=out_any).save()
    assert payloads(q_any.url, out_any) == []
    wait_until(lambda: left_behind(q_any.url, q_any.name) == [])


@pytest.mark.full
def test_a_bad_row_fails_the_whole_write_before_any_of_it_is_visible(q_any, out_any):
    df = q_any.spark.range(0, 30_000, 1, 2).selectExpr("if(id = 29999, 'no json', string(id)) payload")
    with pytest.raises(Exception, match="its payload is not JSON"):
        q_any.writing(df, queue=out_any).save()
    assert payloads(q_any.url, out_any) == []
    q_any.writing(df, queue=out_any, onBadRow="deadLetter").save()
    assert len(payloads(q_any.url, out_any)) == 29_999
    assert payloads(q_any.url, f"{out_any}.dead") == ["no json"]
    wait_until(lambda: left_behind(q_any.url, q_any.name) == [])


# --- several databases ----------------------------------------------------------------------------


def test_a_write_reaches_several_databases(q_any, out_any, tmp_path):
    urls = {"here": q_any.url, "there": f"sqlite:///{tmp_path}/there.db"}
    df = q_any.spark.range(0, 9_000, 1, 3).selectExpr("string(id) payload", "if(id % 3 = 0, 'there', 'here') ns")
    options = {"urls": json.dumps(urls), "queue": out_any}
    df.write.format("queue").mode("append").options(**options).save()
    assert sorted(payloads(urls["there"], out_any)) == list(range(0, 9_000, 3))
    assert len(set(payloads(urls["here"], out_any))) == 6_000
    for url in urls.values():
        assert left_behind(url, q_any.name) == []


# --- the source -----------------------------------------------------------------------------------


def test_an_at_most_once_batch_is_not_delivered_twice(q_any):
    q_any.push([{"n": n} for n in range(30)])
    seen = []

    def fail_first(df, batch_id):
        seen.append([row.payload for row in df.collect()])
        if len(seen) == 1:
            assert df.count() == 10, "within a batch it can be looked at again"
            raise RuntimeError("on purpose")

    options = {"delivery": "at-most-once", "maxRecordsPerTrigger": "10"}
    with pytest.raises(StreamingQueryException, match="on purpose"):
        q_any.run(q_any.stream(**options), fail_first).awaitTermination()
    while q_any.sizes().total:  # on Spark 4.0 and 4.1 each run is one batch
        q_any.run(q_any.stream(**options), fail_first).awaitTermination()
    assert sum(len(batch) for batch in seen) == 30
    assert len({text for batch in seen for text in batch}) == 30
    assert len(seen[0]) == 10 and seen[1] == [], "the batch that was being worked on is given up"


def test_a_query_whose_messages_were_taken_fails_instead_of_committing_them(q_any):
    q_any.push([{"n": n} for n in range(20)])
    taken = []

    def steal(df, batch_id):
        df.collect()
        if not taken:
            with open_store(q_any.url) as store:  # as if the lease had ended: another one has a part of the batch
                (tag,) = {one.tag for one in store.reservations(q_any.name)}
                ids = [one.id for batch in store.fetch(q_any.name, tag) for one in messages(batch)][:5]
                store.transfer(q_any.name, tag, "thief/0", ids, lease=3_600_000)
                taken.extend(ids)

    with pytest.raises(StreamingQueryException, match=r"5 of 20 messages of queue .* are no longer held"):
        q_any.run(q_any.stream(numPartitions="1"), steal, {"processingTime": "0 seconds"}).awaitTermination()
    assert q_any.sizes().reserved == 5, "the thief's are still there, ours are done"
    with open_store(q_any.url) as store:
        store.rollback(q_any.name, "thief")
    assert len(numbers(q_any.drain())) == 5, "started again, the query goes on"


def test_a_second_query_on_a_copy_of_the_checkpoint_is_refused(q_any, tmp_path):
    q_any.push([{"n": 0}])
    seen = []
    stream = q_any.stream(delivery="exactly-once")
    first = q_any.run(stream, lambda df, i: seen.extend(df.collect()), {"processingTime": "0 seconds"})
    wait_until(Path(q_any.checkpoint, "commits", "0").exists)  # from now on nothing is written there
    assert seen
    copy = str(tmp_path / "copy")
    shutil.copytree(q_any.checkpoint, copy)
    # In one session, Spark itself stops a query if another run starts. So this uses another one.
    Path(copy, ".metadata.crc").unlink(missing_ok=True)
    Path(copy, "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    with pytest.raises(StreamingQueryException, match="a second query on a copy of its checkpoint"):
        q_any.run(stream, lambda df, i: None, {"processingTime": "0 seconds"}, checkpoint=copy).awaitTermination()
    assert first.isActive
    q_any.push([{"n": 1}])
    wait_until(lambda: len(seen) == 2)
    stopped(first)
    with pytest.raises(StreamingQueryException, match=r"ends with batch 1\.1, but batch 2\.1 was started since"):
        q_any.run(stream, lambda df, i: None, checkpoint=copy).awaitTermination()


@pytest.mark.full
@pytest.mark.parametrize("damage", ["a copy is restored", "the newest files are lost"])
@pytest.mark.parametrize("sink", ["queue", "parquet"])
def test_an_older_checkpoint_loses_nothing(q_any, tmp_path, sink, damage):
    """By its number alone, batch 1 would count as written, and its new rows would be lost."""
    checkpoint, copy, out = Path(q_any.checkpoint), tmp_path / "copy", f"{q_any.name}.other"

    def run():
        rows = q_any.stream(delivery="exactly-once").select("payload")
        writer = rows.writeStream.format(sink).option("checkpointLocation", str(checkpoint))
        if sink == "queue":
            writer = writer.options(url=q_any.url, queue=out)
        else:
            writer = writer.option("path", str(tmp_path / "out"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        drain(query, q_any.url)

    for start in (0, 10):
        q_any.push([{"n": n} for n in range(start, start + 10)])
        run()
        if not start:
            shutil.copytree(checkpoint, copy)
    if damage == "a copy is restored":
        shutil.rmtree(checkpoint)
        shutil.copytree(copy, checkpoint)
    else:
        for file in checkpoint.rglob("*1*"):
            if file.parent.name in ("offsets", "commits"):
                file.unlink()
    q_any.push([{"n": n} for n in range(20, 30)])
    with pytest.raises(StreamingQueryException, match=r"ends with batch 1\.1, but batch 2\.\d was started since"):
        run()
    assert q_any.sizes().ready == 10, "nothing was changed"


@pytest.mark.parametrize("how", ["two queues", "one queue as two consumers"])
@pytest.mark.parametrize("together", ["union", pytest.param("join", marks=pytest.mark.full)])
def test_two_sources_in_one_query_go_on_after_a_failure(q, how, together):
    one, two = (
        ({"consumer": "one"}, {"consumer": "two"}) if how != "two queues" else ({}, {"queue": f"{q.name}.other"})
    )
    streams = [q.stream(delivery="exactly-once", maxRecordsPerTrigger="10", **own) for own in (one, two)]
    if together == "union":
        both = streams[0].union(streams[1]).selectExpr("array(payload) payloads")
    else:  # every message of one with every message of the other
        left, right = (
            df.selectExpr("1 always", f"payload {side}") for df, side in zip(streams, ("a", "b"), strict=True)
        )
        both = left.join(right, "always").selectExpr("array(a, b) payloads")
    seen, pairs, fails = set(), [], [True]

    def work(df, batch_id):
        rows = [tuple(json.loads(one)["n"] for one in row.payloads) for row in df.collect()]
        if fails and rows:
            fails.pop()
            raise RuntimeError("planned failure")
        pairs.extend(rows)
        seen.update(n for row in rows for n in row)

    for start in (0, 20):
        q.push([{"n": n} for n in range(start, start + 10)])
        with Queue(q.url, two.get("queue", q.name)) as other:
            other.push_many([{"n": n} for n in range(start + 10, start + 20)])
        if fails:
            with pytest.raises(StreamingQueryException, match="planned failure"):
                q.run(both, work).awaitTermination()
        drain_all(q, both, work)
    assert seen == set(range(40)) and len(pairs) == len(set(pairs)), "each once"
    assert q.sizes().total == q.sizes(two.get("queue")).total == 0


def test_a_query_that_is_stopped_goes_on_at_once_with_other_options(q, out):
    """Each start meets the process of the one before, which is about to end."""
    q.push([{"n": n} for n in range(100)])
    options = [
        {"delivery": "exactly-once", "maxRecordsPerTrigger": "10"},
        {"delivery": "exactly-once", "maxRecordsPerTrigger": "7", "numPartitions": "2"},
        {"delivery": "at-least-once", "maxRecordsPerTrigger": "10"},
        {"delivery": "exactly-once", "minPartitions": "3", "maxRecordsPerTrigger": "50"},
    ]
    for number, one in enumerate(options):
        query = to_queue(q, q.stream(**one).select("payload"), out, {"processingTime": "0 seconds"})
        wait_until(lambda: query.exception() or q.sizes(out).total > 10 * number)  # noqa: B023
        assert query.exception() is None
        stopped(query)
    run_to_queue(q, out, source={"delivery": "exactly-once"})
    assert sorted(one["n"] for one in payloads(q.url, out)) == list(range(100))


def drain_all(q, df, work):
    """Run until nothing is ready, and settle that, on every Spark."""
    for _ in range(1 if SPARK >= (4, 2) else 2):
        query = q.run(df, work)
        query.awaitTermination()
        drain(query, q.url)


@pytest.mark.full
def test_a_query_whose_consumer_was_released_by_force_fails(q):
    q.push([{"n": 0}])
    seen = []
    query = q.run(
        q.stream(delivery="exactly-once"), lambda df, i: seen.extend(df.collect()), {"processingTime": "0 seconds"}
    )
    wait_until(lambda: seen)
    with open_store(q.url) as store:
        ((_, consumer, owner),) = consumers(store, q.name)
        assert owner is not None and owner == owner_of(store, q.name, consumer)
        revoke(store, q.name, consumer)
    q.push([{"n": 1}])
    with pytest.raises(StreamingQueryException, match=r"no longer runs consumer .* released manually"):
        query.awaitTermination(200)


# --- hashes ---------------------------------------------------------------------------------------


def test_hashes_are_the_same_at_every_replay(q_any):
    q_any.push([{"n": n} for n in range(100)])
    seen = []

    def fail_at_first(df, batch_id):
        rows = {row.id: row.delivery_hash for row in df.collect()}
        seen.append((batch_id, rows, delivery_hash(df, batch_id)))
        if len(seen) % 2:
            raise RuntimeError("on purpose")

    while q_any.sizes().total:
        query = q_any.run(q_any.stream(delivery="exactly-once", maxRecordsPerTrigger="50"), fail_at_first)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
    by_batch = {}
    for batch, rows, whole in seen:
        if rows:
            assert by_batch.setdefault(batch, (rows, whole)) == (rows, whole)
    assert len(by_batch) >= 2
    assert len({whole for _, whole in by_batch.values()}) == len(by_batch)
    assert len({one for rows, _ in by_batch.values() for one in rows.values()}) == 100


def test_a_batch_without_the_column_has_no_hash(q):
    with pytest.raises(Exception, match="no column 'delivery_hash'"):
        delivery_hash(q.read().select("id"), 0)
