"""The sizes in the progress of a query: how old they are, and that dead letters are among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_queue import Queue, open_store
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read import backlog
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.log_reader import LogReader
from spark_queue.spark.read.multi_input import MultiInputPlanner


@pytest.fixture
def other(name):
    return f"{name}.other"


@pytest.fixture(params=["queue", "log", "zip", "alts", "alts of logs"])
def planner(request, any_url, name, other, monkeypatch):
    """Plans batches as the reader process does: of a queue, a log, or several inputs."""
    monkeypatch.setattr(backlog, "BUSY_INTERVAL", -1.0)
    monkeypatch.setattr(backlog, "IDLE_INTERVAL", 3_600.0)
    kind, _, logs = request.param.partition(" of ")
    raw = {"url": any_url, "waitTimeout": "10ms", "consumer": "c"}
    mode = {"mode": "log"} if logs else {}
    if kind in ("queue", "log"):
        raw |= {"queue": name, "mode": kind}
    else:
        inputs = {"a": {"queue": name} | mode, "b": {"queue": other} | mode}
        raw |= {"inputs": json.dumps(inputs), "combine": kind}
    kinds: dict[str, Any] = {"queue": Consumer, "log": LogReader}
    planner = kinds.get(kind, MultiInputPlanner)(QueueOptions.parse(raw, "stream", "snapshot"))
    yield planner
    planner.close()


def sizes_of(report):
    """Return the ready messages of each queue in a report."""
    return [one["ready"] for one in report.get("inputs", {"": report}).values()]


def test_a_busy_query_counts_for_each_report(planner, any_url, name, other):
    """Spark asks when a batch is planned: then the batch before it is committed already."""
    with Queue(any_url, name) as first, Queue(any_url, other) as second:
        for queue in (first, second):
            queue.push_many([{"n": n} for n in range(30)])
        start = planner.initial
        for batch in range(3):
            end = planner.next(start, 4)
            assert end != start
            report = planner.backlog()
            # A log counts from the end of the last batch on that has begun.
            rows = 4 * batch if planner._options.mode == "log" or "retained" in str(report) else 4 * (batch + 1)
            alts = planner._options.combine == "alts"
            expected = 60 - rows if alts else (30 - rows) * len(sizes_of(report))
            assert sum(sizes_of(report)) == expected, "of all inputs, those of this moment"
            planner.plan(start, end)
            start = end


def test_dead_letters_are_in_the_report(any_url, name):
    with Queue(any_url, name) as queue, Queue(any_url, f"{name}.dead") as dead:
        queue.push_many([{"n": n} for n in range(3)])
        options = QueueOptions.parse({"url": any_url, "queue": name, "waitTimeout": "10ms"}, "stream")
        consumer = Consumer(options)
        try:
            assert consumer.backlog()["dead"] == 0
            queue.reserve(1)
            with open_store(any_url) as store:
                (held,) = store.reservations(name)
                store.move(name, f"{name}.dead", tag=held.tag)
            assert dead.sizes().ready == 1
            consumer.state._backlog._counted = backlog._Counted(*consumer.state._backlog._counted[:2], 0.0)
            assert consumer.backlog()["dead"] == 1
        finally:
            consumer.close()


def test_a_fast_count_of_all_messages_is_in_the_report_that_began_it(sqlite_url, name, monkeypatch):
    monkeypatch.setattr(backlog, "COUNT_LIMIT", 10)
    monkeypatch.setattr(backlog, "COUNT_WAIT", 60.0)
    with Queue(sqlite_url, name) as queue, open_store(sqlite_url) as store:
        state = backlog.Backlog(store, name)
        for more in (25, 13):
            queue.push_many(["x"] * more)
            state._counted, state._next_full_count = state._counted._replace(at=0.0), 0.0  # as after some time
            found = state.report(busy=True)
            assert (found["ready"], found["capped"]) == (queue.sizes().ready, [])
            assert found["sizesAgeMs"] < 30_000


def test_a_dead_letter_queue_of_many_is_a_lower_bound(sqlite_url, name, monkeypatch):
    monkeypatch.setattr(backlog, "COUNT_LIMIT", 10)
    with Queue(sqlite_url, "many.dead") as dead, open_store(sqlite_url) as store:
        dead.push_many(["x"] * 25)
        state = backlog.Backlog(store, name, "many.dead")
        first = state.report(busy=True)
        assert first["dead"] >= 10 and first["capped"] in (["dead"], [])
        assert state._thread is not None
        state._thread.join()
        found = state.report(busy=True)
        assert (found["dead"], found["capped"]) == (25, [])
        assert "dead" not in backlog.Backlog(store, name).report(busy=True), "a log has no dead letters"
