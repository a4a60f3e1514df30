"""Streaming reads: triggers, restarts, competition, leases, outcomes."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark import drain
from spark_queue.spark.read.batch_size import FIRST_ROWS
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import descendants
from tests.spark.begun import begin_batch
from tests.spark_session import SPARK, admission


def stopped(query):
    query.stop()
    wait_until(lambda: not query.isActive)


def readers():
    """The processes of this one in which sources plan."""
    return {pid for pid, command in descendants(os.getpid()).items() if "python_streaming_source_runner" in command}


def numbers(batches):
    return [json.loads(row.payload)["n"] for batch in batches for row in batch]


# --- triggers -------------------------------------------------------------------------------------


def test_available_now_takes_all_that_is_ready_and_commits_it(q_any):
    q_any.push([{"n": n} for n in range(2_500)])
    q_any.push([{"n": -1}], delay=3600)
    batches = q_any.drain(maxRecordsPerTrigger="1000", numPartitions="2")
    assert sorted(numbers(batches)) == list(range(2_500))
    assert [len(batch) for batch in batches] == [1000, 1000, 500]
    sizes = q_any.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved) == (0, 1, 0)


@admission
def test_batches_find_their_size(q):
    q.push([{"n": n} for n in range(3 * FIRST_ROWS)])
    frame = q.stream(numPartitions="1", targetBatchDuration="60s")
    query = q.run(frame, lambda df, i: df.write.format("noop").mode("append").save(), {"availableNow": True})
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in batches] == [FIRST_ROWS, 2 * FIRST_ROWS]
    sizes = [json.loads(one["sources"][0]["endOffset"])["size"] for one in batches]
    assert sizes[0] == FIRST_ROWS and sizes[1] > 30_000
    assert "size" not in json.loads(batches[0]["sources"][0]["latestOffset"])
    assert q.sizes().total == 0


@admission
def test_available_now_ends_though_its_own_output_comes_back_into_the_queue(q):
    q.push([{"n": n} for n in range(10)])

    def push_back(df, batch_id):
        q.writing(df.select("payload")).save()

    batches = q.drain(on_batch=push_back, maxRecordsPerTrigger="4")
    assert sorted(numbers(batches)) == list(range(10))
    assert q.sizes().ready == 10


def test_a_running_query_takes_what_comes_and_commits_it_before_it_takes_more(q_any):
    seen = []
    query = q_any.run(q_any.stream(), lambda df, i: seen.extend(df.collect()), {"processingTime": "0 seconds"})
    try:
        for n in range(3):
            q_any.push([{"n": n}])
            wait_until(lambda: len(seen) == n + 1)  # noqa: B023
        wait_until(lambda: q_any.sizes().reserved == 0)
    finally:
        stopped(query)
    assert numbers([seen]) == [0, 1, 2]


@admission
def test_once_takes_all_that_is_ready_in_one_batch(q):
    q.push([{"n": n} for n in range(50)])
    got = []
    query = q.run(q.stream(maxRecordsPerTrigger="10"), lambda df, i: got.append(df.collect()), {"once": True})
    query.awaitTermination()
    assert [len(batch) for batch in got if batch] == [50]
    assert q.sizes().reserved == 50, "a source never learns from Spark that the last batch of `once` is done"
    assert drain(query, q.url) == 50
    assert q.sizes().reserved == 0


def test_a_queue_that_is_empty_gives_an_empty_run(q):
    assert q.drain() == []


def test_columns_of_a_stream(q):
    (id,) = q.push([{"n": 1}], headers={"origin": "EWR"})
    ((row,),) = q.drain(consumer="etl")
    assert (row.id, row.queue, row.payload, row.headers, row.tries) == (id, q.name, '{"n":1}', {"origin": "EWR"}, 0)
    assert len(row.delivery_hash) == 64


# --- restarts -------------------------------------------------------------------------------------


def test_a_query_that_fails_in_a_batch_gets_the_same_batch_again(q_any):
    q_any.push([{"n": n} for n in range(300)])
    seen, attempts = [], []

    def fail_once(df, batch_id):
        attempts.append((batch_id, sorted((row.id, row.tries, row.delivery_hash) for row in df.collect())))
        if batch_id == 1 and [i for i, _ in attempts].count(1) == 1:
            raise RuntimeError("planned failure")
        seen.extend(df.collect())

    options = {"maxRecordsPerTrigger": "100", "numPartitions": "2"}
    query = q_any.run(q_any.stream(**options), fail_once, {"processingTime": "0 seconds"})
    with pytest.raises(StreamingQueryException, match="planned failure"):
        query.awaitTermination()
    with q_any.client() as other:
        other.push({"n": 300}, id=None)
        assert len(other.reserve(50)) == 50, "others go on meanwhile"
    query = q_any.run(q_any.stream(**options), fail_once, {"processingTime": "0 seconds"})
    wait_until(lambda: len(seen) == 301)
    wait_until(lambda: q_any.sizes().total == 0)
    stopped(query)
    again = [rows for batch, rows in attempts if batch == 1]
    assert again[0] == again[1] and len(again[0]) == 100
    assert sorted(numbers([seen])) == list(range(301))
    assert {row.tries for row in seen} == {0}


def test_a_finished_batch_is_not_read_again_after_a_restart(q_any):
    q_any.push([{"n": n} for n in range(10)])
    assert len(numbers(q_any.drain())) == 10
    q_any.push([{"n": n} for n in range(10, 20)])
    assert sorted(numbers(q_any.drain())) == list(range(10, 20))
    assert q_any.sizes().total == 0


def test_the_last_batch_of_a_stopped_query_is_committed_by_drain(q):
    q.push([{"n": 1}])
    seen = []
    query = q.run(q.stream(waitTimeout="30s"), lambda df, i: seen.extend(df.collect()), {"processingTime": "1 hour"})
    wait_until(lambda: query.lastProgress and query.lastProgress["numInputRows"])
    stopped(query)
    assert q.sizes().reserved == 1
    assert drain(query, q.url) == 1
    assert q.sizes().total == 0


def _offsets(checkpoint):
    return sorted(
        (file for file in Path(checkpoint, "offsets").iterdir() if file.name.isdigit()), key=lambda f: int(f.name)
    )


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"v": 3}, {}, "offset of version 3"),
        ({"queue": "another"}, {}, "query on queue 'another'"),
        ({}, {"consumer": "other"}, "that of consumer 'etl', but option 'consumer' is 'other'"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(q, change, options, message):
    q.push([{"n": 1}])
    q.drain(consumer="etl")
    (last, *_) = reversed(_offsets(q.checkpoint))
    *head, offset = last.read_text().splitlines()
    last.write_text("\n".join([*head, json.dumps(json.loads(offset) | change)]))
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    q.push([{"n": 2}])
    with pytest.raises(StreamingQueryException, match=message):
        q.drain(**{"consumer": "etl"} | options)
    assert q.sizes().total >= 1, "nothing is lost"


def test_a_new_checkpoint_does_not_adopt_what_an_older_one_holds(q, tmp_path):
    q.push([{"n": n} for n in range(5)])

    def fail(df, batch_id):
        df.collect()
        raise RuntimeError("planned failure")

    with pytest.raises(StreamingQueryException):
        q.run(q.stream(consumer="etl"), fail).awaitTermination()
    q.push([{"n": 5}])
    assert numbers(q.drain(consumer="etl", checkpoint=str(tmp_path / "fresh"))) == [5]
    with open_store(q.url) as store:
        (held,) = store.reservations(q.name, "etl")
        assert held.rows == 5
        assert store.rollback(q.name, held.tag, failed=False) == 5


# --- one batch, read more than once ---------------------------------------------------------------


def test_two_actions_in_a_batch_see_the_same_rows(q_any):
    q_any.push([{"n": n} for n in range(100)])
    counts = []
    q_any.drain(
        on_batch=lambda df, i: counts.append((df.count(), len(df.collect()), df.select("id").distinct().count()))
    )
    assert [one for one in counts if one[0]] == [(100, 100, 100)]


def test_a_self_union_has_every_message_twice(q):
    q.push([{"n": n} for n in range(20)])
    stream = q.stream()
    got = []
    query = q.run(stream.union(stream), lambda df, i: got.extend(df.collect()))
    query.awaitTermination()
    assert sorted(numbers([got])) == sorted([*range(20), *range(20)])
    drain(query, q.url)
    assert q.sizes().total == 0


def test_a_failed_task_is_tried_again_with_the_same_rows(q):
    # Local mode gives a task one attempt. A second action in the batch reads the partition again.
    q.push([{"n": n} for n in range(1_200)])
    hashes = []

    def read_twice(df, batch_id):
        first, second = (sorted(row.delivery_hash for row in df.collect()) for _ in range(2))
        hashes.append((first == second, len(set(first))))

    q.drain(on_batch=read_twice, numPartitions="3")
    assert [one for one in hashes if one[1]] == [(True, 1_200)]


# --- competition and leases -----------------------------------------------------------------------


def test_queries_and_clients_compete_for_a_queue_and_none_gets_what_another_holds(q_any, tmp_path):
    total = 1_500
    q_any.push([{"n": n} for n in range(total)])
    seen, plain, done = [], [], threading.Event()

    def consume():
        with q_any.client() as queue:
            while not done.is_set():
                batch = queue.reserve(5, timeout=0.2)
                plain.extend(message.payload["n"] for message in batch)
                queue.commit(*batch)
                wait_until(lambda: seen or done.is_set())  # so that the queries find their share

    thread = threading.Thread(target=consume)
    thread.start()
    queries = [
        q_any.run(
            q_any.stream(maxRecordsPerTrigger="200"),
            lambda df, i: seen.extend(df.collect()),
            {"processingTime": "0 seconds"},
            checkpoint=str(tmp_path / f"checkpoint{i}"),
        )
        for i in range(2)
    ]
    try:
        wait_until(lambda: len(seen) + len(plain) >= total)
        wait_until(lambda: q_any.sizes().total == 0)
    finally:
        done.set()
        thread.join()
        for query in queries:
            stopped(query)
    assert plain and seen
    assert sorted(numbers([seen]) + plain) == list(range(total))


def lease_ends(q):
    """When the leases of the reservations in a queue end (ms), by their tags."""
    with open_store(q.url) as store:
        return {one.tag: one.until or 0 for one in store.reservations(q.name)}


def test_a_lease_is_renewed_while_its_batch_is_worked_on(q_any):
    q_any.push([{"n": n} for n in range(10)])
    renewed = []

    def slow(df, batch_id):
        if df.count():
            before = lease_ends(q_any)
            wait_until(lambda: all(end > before[tag] for tag, end in lease_ends(q_any).items()))
            renewed.append(len(before))

    assert len(numbers(q_any.drain(on_batch=slow, reserveTimeout="6s"))) == 10
    assert renewed == [1]
    assert q_any.sizes().total == 0


def test_what_a_dead_query_held_comes_back_when_its_lease_ends(q_any):
    q_any.push([{"n": n} for n in range(10)])

    def fail(df, batch_id):
        df.collect()
        raise RuntimeError("planned failure")

    with pytest.raises(StreamingQueryException):
        q_any.run(q_any.stream(reserveTimeout="1h"), fail).awaitTermination()
    with q_any.client() as other, open_store(q_any.url) as store:
        assert other.reserve(10) == []
        (held,) = store.reservations(q_any.name)
        assert 0 < (held.until or 0) - store.now() <= 3_600_000
        assert store.renew(q_any.name, held.tag, 0) == 10  # its lease has ended now
        assert {message.tries for message in other.reserve(10)} == {1}


def test_messages_that_failed_too_often_go_to_the_dead_letter_queue(q_any):
    q_any.push([{"n": 1}])
    with q_any.client() as client:
        for _ in range(2):
            client.rollback(*client.reserve())
        q_any.push([{"n": 2}])
    assert numbers(q_any.drain(maxTries="2")) == [2]
    with Queue(q_any.url, f"{q_any.name}.dead") as dead:
        (message,) = dead.peek()
        assert message.payload == {"n": 1}
        assert message.headers["x-dl-from-queue"] == q_any.name
        assert message.headers["x-dl-tries"] == "2"
    assert q_any.sizes().dead == 1


# --- the batch after ------------------------------------------------------------------------------


@admission
def test_a_query_that_is_stopped_holds_the_batch_it_worked_on_and_no_other(q_any):
    q_any.push([{"n": n} for n in range(50)])
    batches, running = {}, []

    def work(df, batch_id):
        rows = numbers([df.collect()])
        assert batches.setdefault(batch_id, rows) == rows, "the batch that was cut short comes again"
        if batch_id == 1:
            wait_until(lambda: running and not running[0].isActive, description="the stop of the query")

    def start(trigger):
        return q_any.run(q_any.stream(maxRecordsPerTrigger="10", delivery="exactly-once"), work, trigger)

    running.append(start({"processingTime": "0 seconds"}))
    wait_until(lambda: q_any.sizes().reserved == 20 and len(batches) == 2)
    running[0].stop()
    wait_until(lambda: q_any.sizes().reserved == 10)
    start({"availableNow": True}).awaitTermination()
    assert sorted(n for rows in batches.values() for n in rows) == list(range(50))
    assert q_any.sizes().total == 0


@admission
def test_a_reader_process_that_is_killed_leaves_the_next_batch_to_its_successor(q_any):
    q_any.push([{"n": n} for n in range(30)])
    before, batches, held = readers(), [], []

    def work(df, batch_id):
        batches.append(numbers([df.collect()]))
        if len(batches) == 1:
            wait_until(lambda: q_any.sizes().reserved == 20)
            for pid in readers() - before:
                os.kill(pid, signal.SIGKILL)
            with open_store(q_any.url) as store:
                held.extend(
                    one.payload["n"]
                    for tag in store.reservations(q_any.name)
                    if tag.tag.split("/")[2] == "2.1"
                    for rows in store.fetch(q_any.name, tag.tag)
                    for one in messages(rows)
                )
            raise RuntimeError("planned failure")

    stream = q_any.stream(maxRecordsPerTrigger="10", delivery="exactly-once")
    with pytest.raises(StreamingQueryException):
        q_any.run(stream, work).awaitTermination()
    assert q_any.sizes().reserved == 20
    q_any.run(stream, work).awaitTermination()
    assert batches == [list(range(10)), list(range(10)), held, list(range(20, 30))]
    assert q_any.sizes().total == 0


@admission
def test_nothing_is_reserved_ahead_where_that_is_not_wanted(q):
    q.push([{"n": n} for n in range(30)])
    held, done = [], [0]

    def look(df, batch_id):
        df.count()
        end = min(lease_ends(q).values())
        held.append(q.sizes().reserved)
        assert end - 3_600_000 >= done[-1], "it was reserved when the last batch was done"
        with open_store(q.url) as store:
            done.append(store.now())

    options = {"maxRecordsPerTrigger": "10", "reserveTimeout": "1h"}
    q.run(q.stream(reserveAhead="false", **options), look).awaitTermination()
    assert held == [10, 10, 10]


# --- settle ---------------------------------------------------------------------------------------


def test_settle_gives_every_message_its_own_outcome(q_any):
    q_any.push([{"n": n} for n in range(8)])

    def settle(df, batch_id):
        outcomes = df.selectExpr(
            "id",
            "CASE WHEN payload.n = 0 THEN 'commit' WHEN payload.n < 3 THEN 'rollback' WHEN payload.n < 5 THEN 'dead' "
            "END outcome",
            "CASE WHEN payload.n = 2 THEN 3600 ELSE 0 END delay",
            "CASE WHEN payload.n = 3 THEN 'hopeless' END reason",
        ).where("outcome IS NOT NULL")
        q_any.writing(outcomes, operation="settle", consumer="etl").save()

    stream = q_any.stream(consumer="etl").selectExpr("id", "from_json(payload, 'n INT') payload", "tries")
    query = q_any.run(stream, settle)
    query.awaitTermination()
    drain(query, q_any.url)
    with q_any.client() as client:
        left = {message.payload["n"]: message.tries for message in client.peek(20)}
        assert left == {1: 1, 2: 1}, "5, 6 and 7 were committed by the query, 0 by settle"
    sizes = q_any.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved, sizes.dead) == (1, 1, 0, 2)
    with Queue(q_any.url, f"{q_any.name}.dead") as dead:
        assert {message.payload["n"]: message.headers.get("x-error") for message in dead.peek()} == {
            3: "hopeless",
            4: None,
        }


@admission
def test_a_stream_settles_the_messages_of_each_batch(q):
    q.push([{"n": n} for n in range(8)])
    stream = q.stream(consumer="etl", maxRecordsPerTrigger="3")
    settled = stream.selectExpr("id", "'rollback' outcome", "3600 delay").writeStream.format("queue")
    settled = settled.options(url=q.url, queue=q.name, operation="settle", consumer="etl")
    query = settled.option("checkpointLocation", q.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len([one for one in query.recentProgress if one["numInputRows"]]) == 3
    sizes = q.sizes()
    assert (sizes.scheduled, sizes.total) == (8, 8), "each batch was settled while it was worked on"


def test_settle_refuses_what_it_does_not_know(q):
    spark = q.spark
    begin_batch(q.url, q.name)
    cases = [
        ("SELECT 'a' id, 'commit' outcome", {"consumer": "elt"}, "works on a batch; did you mean 'etl'"),
        ("SELECT 'a' id, 'done' outcome", {"consumer": "etl"}, "outcome 'done' must be one of"),
        ("SELECT 'a' id, 'rollback' outcome, -1 delay", {"consumer": "etl"}, "delay is negative"),
        ("SELECT 'a' id", {"consumer": "etl"}, "column 'outcome' is missing"),
        ("SELECT 'a' id, 'commit' outcome, 1 dealy", {"consumer": "etl"}, "did you mean 'delay'"),
        ("SELECT 'a' id, 'commit' outcome", {}, "option 'consumer' is missing"),
    ]
    for query, options, message in cases:
        with pytest.raises(Exception, match=message):
            q.writing(spark.sql(query), operation="settle", **options).save()


# --- progress, history ----------------------------------------------------------------------------


@admission
def test_the_progress_has_the_backlog(q_any):
    q_any.push([{"n": n} for n in range(30)])
    q_any.push([{"n": 0}], delay=3600)
    query = q_any.run(q_any.stream(maxRecordsPerTrigger="10"), lambda df, i: df.collect())
    query.awaitTermination()
    first = next(one for one in query.recentProgress if one["numInputRows"])
    offset = json.loads(first["sources"][0]["latestOffset"])
    assert (offset["ready"], offset["scheduled"], offset["reserved"]) == (20, 1, 10)
    assert offset["oldestReadyAgeMs"] >= 0


def test_committed_messages_are_history(q_any):
    q_any.push([{"n": n} for n in range(5)])
    q_any.drain(history="1h")
    if SPARK < (4, 2):  # there `drain` settled the last batch, without the query's own options
        q_any.push([{"n": 5}])
        query = q_any.run(q_any.stream(history="1h"), lambda df, i: None)
        query.awaitTermination()
        drain(query, q_any.url, history=3_600_000)
    rows = q_any.read(view="history").collect()
    assert rows and all(row.processed is not None for row in rows)
    assert q_any.read().count() == 0


def test_streams_from_queue_to_queue(q_any):
    other = f"{q_any.name}.other"
    ids = q_any.push([{"n": n} for n in range(50)], headers={"h": "1"})
    query = (
        q_any.stream()
        .selectExpr("id", "headers", "to_json(named_struct('m', payload)) payload")
        .writeStream.format("queue")
        .options(url=q_any.url, queue=other, checkpointLocation=q_any.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    drain(query, q_any.url)
    with Queue(q_any.url, other) as queue:
        got = queue.reserve(100)
        assert sorted(message.id for message in got) == sorted(ids)
        assert {tuple(message.headers.items()) for message in got} == {(("h", "1"),)}
    assert q_any.sizes().total == 0
