"""Queues read with `mode=log`: several queries, each with a place of its own."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from spark_queue import CheckpointError, Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.log_cursor import split_pieces
from spark_queue.spark.read.log_reader import LogReader
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPosition, LogRange
from tests.spark.read.test_consumer import DROPPED
from tests.spark.read.test_stream import stopped
from tests.spark_session import SPARK


def numbers(rows):
    return [json.loads(row.payload)["n"] for row in rows]


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.fixture
def readers():
    """Makes readers of logs, as the reader process has them, and closes them."""
    made = []

    def make(url, queue, **options):
        raw = {"url": url, "queue": queue, "mode": "log", "numPartitions": "2", "waitTimeout": "50ms"} | options
        made.append(LogReader(QueueOptions.parse(raw, "stream", "snapshot")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def of(url, queue, shares):
    with open_store(url) as store:
        found = Log(store, queue)
        return [
            one.payload["n"]
            for pieces in shares
            for piece in pieces
            for batch in found.fetch(piece)
            for one in messages(batch)
        ]


# --- with Spark -----------------------------------------------------------------------------------


def test_each_query_gets_every_message_and_goes_on_where_it_was(q_any, tmp_path):
    q_any.push([{"n": n} for n in range(2_500)])
    q_any.push([{"n": -1}], delay=3600)
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    batches = q_any.drain(checkpoint=one, mode="log", maxRecordsPerTrigger="1000", numPartitions="2")
    assert sorted(numbers(flat(batches))) == list(range(2_500))
    q_any.push([{"n": n} for n in range(2_500, 2_600)])
    assert sorted(numbers(flat(q_any.drain(checkpoint=one, mode="log")))) == list(range(2_500, 2_600))
    later = flat(q_any.drain(checkpoint=two, mode="log", consumer="other"))
    assert sorted(numbers(later)) == list(range(2_600))
    assert sorted(row.position for row in later) == list(range(2_600))
    first = {row.id: row for row in flat(batches)}
    again = {row.id: row for row in later}
    assert all(again[id].position == row.position for id, row in first.items()), "the same order for all"
    assert not {row.delivery_hash for row in first.values()} & {row.delivery_hash for row in later}
    kept = q_any.read(mode="log")
    assert sorted(numbers(kept.collect())) == list(range(2_600))
    columns = ["id", "queue", "payload", "headers", "mature", "tries", "pushed", "delivery_hash", "position"]
    assert kept.columns == columns
    assert q_any.drain(checkpoint=two, mode="log", consumer="other") == []


def test_a_batch_that_fails_comes_again_as_it_was(q):
    q.push([{"n": n} for n in range(300)])
    attempts = []

    def fail_once(df, batch_id):
        attempts.append((batch_id, sorted((row.id, row.delivery_hash, row.position) for row in df.collect())))
        if [i for i, _ in attempts] == [0, 1]:
            raise RuntimeError("planned failure")

    options = {"mode": "log", "maxRecordsPerTrigger": "100"}
    query = q.run(q.stream(**options), fail_once, {"processingTime": "0 seconds"})
    with pytest.raises(StreamingQueryException, match="planned failure"):
        query.awaitTermination()
    q.push([{"n": n} for n in range(300, 400)])
    query = q.run(q.stream(**options), fail_once, {"processingTime": "0 seconds"})
    wait_until(lambda: len({id for _, rows in attempts for id, *_ in rows}) == 400)
    wait_until(lambda: query.lastProgress)
    progress = query.lastProgress
    stopped(query)
    again = [rows for batch, rows in attempts if batch == 1]
    assert again[0] == again[1] and len(again[0]) == 100
    assert sorted(place for batch, rows in attempts for *_, place in rows) == sorted([*range(400), *range(100, 200)])
    if SPARK >= (4, 2):
        told = json.loads(progress["sources"][0]["latestOffset"])
        assert (told["queue"], told["scheduled"]) == (q.name, 0)
        assert told["retained"] in (300, 400), "it is looked at now and then"


def test_running_queries_are_woken_whoever_seals(q_any, tmp_path):
    seen = {"one": [], "two": []}

    def collect(name):
        return lambda df, _: seen[name].extend(row.position for row in df.collect())

    queries = [
        q_any.run(
            q_any.stream(mode="log", waitTimeout="1h"),
            collect(name),
            {"processingTime": "0 seconds"},
            str(tmp_path / name),
        )
        for name in seen
    ]
    try:
        for n in range(4):
            q_any.push([{"n": n}])
            wait_until(lambda: all(len(found) == n + 1 for found in seen.values()))  # noqa: B023
    finally:
        for query in queries:
            stopped(query)
    assert [*seen.values()] == [[0, 1, 2, 3]] * 2


def test_what_was_removed_fails_the_query_or_is_passed_over(q, tmp_path):
    q.push([{"n": n} for n in range(10)])
    assert len(flat(q.drain(mode="log", maxRecordsPerTrigger="5"))) == 10
    late = str(tmp_path / "late")
    assert q.drain(checkpoint=late, mode="log", startingOffsets="latest") == []
    q.push([{"n": 10}])
    with open_store(q.url) as store:
        found = Log(store, q.name)
        found.latest()
        found.trim(0)
    with pytest.raises(StreamingQueryException, match=r"1 message removed from position 10 on.*failOnDataLoss"):
        q.drain(checkpoint=late, mode="log")
    q.push([{"n": 11}])
    assert numbers(flat(q.drain(checkpoint=late, mode="log", failOnDataLoss="false"))) == [11]


def test_a_batch_read_changes_nothing(q):
    q.push([{"n": 1}])
    assert q.read(mode="log").collect() == [], "nobody has sealed it"
    assert q.sizes().ready == 1
    with pytest.raises(PySparkException, match="'retention' is not for a batch read"):
        q.read(mode="log", retention="1h").collect()


# --- the reader process, without Spark ------------------------------------------------------------


def test_a_run_ends_with_what_was_there_at_its_start_whoever_seals_it(any_url, name, readers):
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(30)])
        one, other = readers(any_url, name), readers(any_url, name)
        start = one.initial
        one.stop_at_now()
        place = other.next(other.initial, 20)
        seen = []
        for turn in range(100):
            time.sleep(0.002)
            queue.push({"n": 100 + turn})
            place = other.next(place, 3)  # somebody else goes on sealing
            end = one.next(start, 7)
            if end == start:
                break
            seen += of(any_url, name, one.plan(start, end))
            start = end
        else:
            pytest.fail("it did not end")
    assert set(range(30)) <= set(seen)
    assert one.next(start, 7) == start


def test_without_a_start_a_reader_goes_on_after_what_it_has_planned(any_url, name, readers):
    """Spark 4.0 and 4.1 ask a new query at once, and first restore the offset of another."""
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(30)])
        one = readers(any_url, name)
        end = one.next(one.planned, 20)
        assert of(any_url, name, one.plan(one.initial, end)) == [*range(20)]
        last = one.next(one.planned, 20)
        assert of(any_url, name, one.plan(end, last)) == [*range(20, 30)]
        assert one.next(one.planned, 20) == last
        again = readers(any_url, name)
        assert again.plan(end, end) == []
        last = again.next(again.planned, 3)
        assert of(any_url, name, again.plan(end, last)) == [20, 21, 22]
        with open_store(any_url) as store:
            Log(store, name).trim(0)
        again = readers(any_url, name, failOnDataLoss="false")
        assert again.plan(end, end) == [], "though what was the first batch is removed"
        queue.push({"n": 30})
        assert of(any_url, name, again.plan(end, again.next(again.planned, 10))) == [30]


def test_a_new_query_that_begins_at_the_end_does_so_without_a_start(any_url, name, readers):
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(5)])
        one = readers(any_url, name, startingOffsets="latest")
        start = one.next(one.planned, 20)
        assert start == one.initial and start["position"] == 5
        queue.push({"n": 5})
        assert of(any_url, name, one.plan(start, one.next(one.planned, 20))) == [5]


def test_the_first_batch_of_a_query_that_begins_at_the_end_comes_again_as_it_was(any_url, name, readers):
    """Spark asks a restarted query anew where it begins, which is further on by then."""
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(5)])
        one = readers(any_url, name, startingOffsets="latest")
        start = one.initial
        queue.push_many([{"n": n} for n in range(5, 15)])
        end = json.loads(json.dumps(one.next(start, 20)))
        again = readers(any_url, name, startingOffsets="latest")
        queue.push({"n": 15})
        assert again.initial["position"] > start["position"]
        assert of(any_url, name, again.plan(again.initial, end)) == [*range(5, 15)]
        assert of(any_url, name, again.plan(end, again.next(end, 20))) == [15]


@pytest.mark.parametrize("deliveries", DROPPED)
def test_at_most_once_a_batch_does_not_come_again(any_url, name, readers, deliveries):
    before, after = deliveries
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(30)])
    one = readers(any_url, name, delivery=before)
    start = one.initial
    end = one.next(start, 20)
    assert sum(piece.rows for pieces in one.plan(start, end) for piece in pieces) == 20
    again = readers(any_url, name, delivery=after)
    assert again.plan(start, end) == []
    last = again.next(end, 20)
    assert last.get("delivery") == (after if after != "at-least-once" else None)
    assert sum(piece.rows for pieces in again.plan(end, last) for piece in pieces) == 10


def test_the_backlog_is_that_of_the_reader(any_url, name, readers, monkeypatch):
    monkeypatch.setattr("spark_queue.spark.read.backlog.BUSY_INTERVAL", -1)
    monkeypatch.setattr("spark_queue.spark.read.backlog.IDLE_INTERVAL", -1)
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(30)])
        queue.push({"n": 30}, delay=3600)
        one, other = readers(any_url, name), readers(any_url, name)
        start = one.initial
        assert {key: one.backlog()[key] for key in ("ready", "scheduled", "retained", "position")} == {
            "ready": 30, "scheduled": 1, "retained": 0, "position": 0,
        }  # fmt: skip
        end = one.next(start, 20)
        one.plan(start, end)
        assert (one.backlog()["ready"], one.backlog()["retained"]) == (10, 30)
        assert other.initial
        assert other.backlog()["ready"] == 30


def test_a_checkpoint_keeps_its_mode_its_queue_and_its_reader(sqlite_url, name, readers):
    one = readers(sqlite_url, name, consumer="etl")
    start = one.initial
    queue = Consumer(QueueOptions.parse({"url": sqlite_url, "queue": name}, "stream", "snapshot"))
    with pytest.raises(CheckpointError, match="with mode=log"):
        queue.next(start, 10)
    with pytest.raises(CheckpointError, match="is not one of mode=log"):
        one.next(queue.initial, 10)
    queue.close()
    with pytest.raises(CheckpointError, match="needs a new checkpoint"):
        readers(sqlite_url, f"{name}.other").next(start, 10)
    with pytest.raises(CheckpointError, match="consumer 'etl', but option 'consumer' is 'els'"):
        readers(sqlite_url, name, consumer="els").next(start, 10)


def test_pieces_are_shared_out_in_order():
    place = LogPosition("a", 0, 0, 0)
    pieces = [LogRange("t/0", place, 700), LogRange("t/1", LogPosition("a", 1, 0, 700), 800)]
    one, two = split_pieces(pieces, [750, 750])
    assert [(p.tag, p.start.row, p.start.position, p.rows) for p in one] == [("t/0", 0, 0, 700), ("t/1", 0, 700, 50)]
    assert [(p.tag, p.start.row, p.start.position, p.rows) for p in two] == [("t/1", 50, 750, 750)]
    assert split_pieces([], []) == []
