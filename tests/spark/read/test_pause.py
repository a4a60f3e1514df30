"""A query on a paused queue reserves nothing, goes on and says so; statistics count its work."""

from __future__ import annotations

import json
import logging
import threading
import time

import pytest

from spark_queue import Queue, Statistics, open_store
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from tests.spark.read.consumers import fetched, taken_over
from tests.spark_session import SPARK

#: Whether the progress of a query has the sizes of its queue: Spark 4.0 and 4.1 do not ask.
REPORTS_SIZES = SPARK >= (4, 2)


def pauses_in(caplog):
    return [one.getMessage() for one in caplog.records if "paused" in one.getMessage()]


# --- what the reader process does -----------------------------------------------------------------


def test_a_consumer_takes_nothing_from_a_paused_queue_and_says_so_once(any_url, name, consumers, caplog):
    consumer = consumers(any_url, name)
    with Queue(any_url, name) as queue, caplog.at_level(logging.WARNING):
        queue.push_many([1, 2, 3])
        start = consumer.next(consumer.initial, 1)
        assert consumer.backlog()["paused"] is False
        queue.pause()
        consumer.store._pause_cache.discard(name)  # as after `pause_cache` seconds
        assert fetched(any_url, name, consumer.plan(consumer.initial, start)), "what it holds goes on"
        for _ in range(3):
            assert consumer.next(start, 1) == start
        assert consumer.backlog()["paused"] is True
        assert queue.statistics() == Statistics(put=3, reserve=1, commit=1, paused=True)
        assert pauses_in(caplog) == [f"queue {name} is paused: no messages are read until it is resumed"]
        queue.resume()
        consumer.store._pause_cache.discard(name)
        assert sum(consumer.next(start, 10)["rows"]) == 2
        assert consumer.backlog()["paused"] is False


def test_a_restarted_consumer_replays_its_batch_though_the_queue_is_paused(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many([1, 2, 3])
        start = consumers(any_url, name).initial
        first = consumers(any_url, name)
        end = first.next(start, 2)
        first.plan(start, end)
        first.close()
        queue.pause()
        taken_over(any_url, name, start)
        again = consumers(any_url, name)
        assert len(fetched(any_url, name, again.plan(start, end))) == 2
        assert again.next(end, 2) == end
        assert queue.sizes().total == 1, "the batch is committed"


def test_a_run_until_now_ends_on_a_paused_queue_and_warns(any_url, name, consumers, caplog):
    consumer = consumers(any_url, name, waitTimeout="1h")
    with Queue(any_url, name) as queue, caplog.at_level(logging.WARNING):
        queue.push(1)
        queue.pause()
        consumer.stop_at_now()
        assert consumer.next(consumer.initial, 10) == consumer.initial
        assert len(pauses_in(caplog)) == 1


def test_a_resume_and_a_push_wake_an_idle_consumer_by_their_signals_alone(
    any_url,
    name,
    consumers,
    by_signals,
    listening,
):
    consumer = consumers(any_url, name, waitTimeout="2m", numPartitions="1")
    with Queue(any_url, name) as queue:
        queue.push(0)
        offset = consumer.next(consumer.initial, 10)
        consumer.plan(consumer.initial, offset)
        for act in ("push", "resume") * 3:
            if act == "resume":
                queue.pause()
                consumer.store._pause_cache.discard(name)
                queue.push(1)
            found = []
            thread = threading.Thread(target=lambda: found.append(consumer.next(offset, 10)), daemon=True)  # noqa: B023
            thread.start()
            listening()
            assert not found, "it waits"
            queue.push(1) if act == "push" else queue.resume()
            thread.join(60)  # how many ms that takes: see bench/latency.py
            consumer.plan(offset, found[0])
            (offset,) = found


@with_limits(flush_interval=3_600)
def test_the_counts_of_a_batch_are_written_with_its_commit(any_url, name, consumers):
    """Spark ends the process by a signal, at once after the last commit."""
    consumer = consumers(any_url, name)
    with Queue(any_url, name) as queue:
        queue.push_many([1, 2])
        end = consumer.next(consumer.initial, 10)
        consumer.plan(consumer.initial, end)
        consumer.next(end, 10)
        with open_store(any_url) as store:
            found = store.statistics(name)
            assert (found.reserve, found.commit) == (2, 2)


# --- with Spark -----------------------------------------------------------------------------------


@pytest.mark.full  # an idle query counts what is in its queue every 10 s
def test_a_query_sleeps_while_its_queue_is_paused_and_goes_on_when_it_is_resumed(q_any):
    got = []
    q_any.push([{"n": n} for n in range(5)])
    stream = q_any.stream(waitTimeout="500ms", maxRecordsPerTrigger="5")
    query = q_any.run(stream, lambda df, i: got.extend(df.collect()), trigger={"processingTime": "100 milliseconds"})
    try:
        wait_until(lambda: len(got) == 5)
        with q_any.client() as queue:
            queue.pause()
            time.sleep(
                StoreLimits.pause_cache + 0.05
            )  # for so long its process may believe that the queue is not paused
            queue.push_many([{"n": n} for n in range(5, 8)])

            def says():
                return (query.lastProgress or {}) and json.loads(query.lastProgress["sources"][0]["latestOffset"])

            if REPORTS_SIZES:
                wait_until(lambda: (found := says()) and found["paused"] and found["ready"] == 3)
            else:
                time.sleep(0.6)  # more than it waits
            assert (len(got), query.isActive) == (5, True)
            queue.resume()
            wait_until(lambda: len(got) == 8)
            wait_until(lambda: not REPORTS_SIZES or says()["paused"] is False)
            wait_until(lambda: queue.statistics().commit == 8)
            assert queue.statistics() == Statistics(put=8, reserve=8, commit=8)
    finally:
        query.stop()


def test_available_now_on_a_paused_queue_ends_without_taking_anything(q_any):
    q_any.push([{"n": 1}])
    with q_any.client() as queue:
        queue.pause()
        assert q_any.drain() == []
        queue.resume()
    assert [row.payload for batch in q_any.drain() for row in batch] == ['{"n":1}']


def test_a_drain_is_counted_to_its_last_message(q_any):
    q_any.push([{"n": n} for n in range(25)])
    q_any.drain(maxRecordsPerTrigger="10")
    with q_any.client() as queue:
        assert queue.statistics() == Statistics(put=25, reserve=25, commit=25)
