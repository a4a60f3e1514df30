"""What `drain` says about the messages that a run has left in its queues."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from spark_queue import Queue, drain, open_store
from spark_queue.spark.read import leftovers
from spark_queue.stores.types import Sizes


def ended(**offset):
    """A query that has ended at this offset."""
    progress = {"sources": [{"endOffset": json.dumps({"v": 2, "seq": 1, "rows": [1]} | offset)}]}
    return SimpleNamespace(awaitTermination=lambda: None, lastProgress=progress)


def said(caplog):
    return [(one.levelno, one.getMessage()) for one in caplog.records if one.name == leftovers.__name__]


def test_drain_says_what_is_left(any_url, name, caplog):
    caplog.set_level(logging.INFO, "spark_queue")
    query = ended(queue=name, consumer="c/e", by=1)
    with Queue(any_url, name) as queue, open_store(any_url) as store:
        queue.push({"n": 1})
        store.reserve(name, "c/e/1.1", 1)
        assert drain(query, any_url) == 1 and said(caplog) == [], "nothing is left"
        queue.push_many([{"n": n} for n in range(6)])
        queue.push({"n": 7}, delay=3_600)
        assert drain(query, any_url) == 0
        assert said(caplog) == [(logging.INFO, f"queue {name!r} still holds 6 ready, 1 scheduled")]
        caplog.clear()
        store.reserve(name, "other/e/1.1", 5)
        drain(query, any_url)
        assert said(caplog) == [(logging.WARNING, f"queue {name!r} still holds 1 ready, 1 scheduled, 5 reserved")]


def test_it_counts_so_far_and_no_further(caplog):
    caplog.set_level(logging.INFO, "spark_queue")
    leftovers.log_what_is_left(
        SimpleNamespace(sizes=lambda queue, limit: Sizes(limit, 0, 0, capped=frozenset(["ready"]))), "q"
    )
    assert said(caplog) == [(logging.INFO, "queue 'q' still holds 10,000 or more ready")]


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_join_says_it_of_each_of_its_inputs(sqlite_url, name, side, caplog):
    caplog.set_level(logging.INFO, "spark_queue")
    inputs = {one: {"queue": f"{name}.{one}", "ns": "db"} for one in "ab"}
    query = ended(inputs=inputs, consumer="c/e", by={"a": 1, "b": 1}, rows={"a": [1], "b": [1]})
    with Queue(sqlite_url, f"{name}.{side}") as queue:
        queue.push_many([{"n": n} for n in range(3)])
        drain(query, {"db": sqlite_url})
    assert said(caplog) == [(logging.INFO, f"queue '{name}.{side}' still holds 3 ready")]
