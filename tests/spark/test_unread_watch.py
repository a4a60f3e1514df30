"""What the listener makes of Spark's reports: a warning for batches that were not read. Without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_queue.spark.unread import UnreadWatch

QUEUE = {"v": 2, "queue": "orders", "consumer": "etl/1", "seq": 3, "by": 1, "rows": [60, 40]}
PLACE = {"v": 1, "queue": "orders", "reader": "etl/1", "log": "x", "segment": 1, "row": 5}
LOG = PLACE | {"position": 105}
INPUTS = {
    "v": 2,
    "inputs": {"a": {"queue": "orders", "mode": "queue"}, "b": {"queue": "prices", "mode": "queue"}},
    "consumer": "etl/1",
    "seq": 3,
    "by": {"a": 1, "b": 1},
    "rows": {"a": [100], "b": [50, 50]},
}


@pytest.fixture
def watch():
    query: Any = SimpleNamespace(name="daily", id="5b0e", _jsq=None)
    return UnreadWatch(query, replayed=9)


def progress(end, read, batch=4, start=None, form=json.dumps):
    """The part of a report that the watch reads."""
    source = {"startOffset": start and form(start), "endOffset": form(end), "numInputRows": read}
    return {"batchId": batch, "sources": [source], "stateOperators": []}


@pytest.mark.parametrize(
    ("end", "start", "queues"),
    [
        (QUEUE, QUEUE | {"seq": 2}, "'orders'"),
        (QUEUE, None, "'orders'"),
        (LOG, PLACE | {"position": 5}, "'orders'"),
        (LOG | {"begin": PLACE | {"position": 5}}, PLACE | {"position": 0}, "'orders'"),
        (INPUTS, INPUTS | {"seq": 2}, "'orders' and 'prices'"),
        (INPUTS | {"rows": {"b": [100]}}, INPUTS | {"seq": 2}, "'orders' and 'prices'"),
    ],
)
@pytest.mark.parametrize("form", [json.dumps, str])  # Spark 4.0 and 4.1 report the text of a dict
def test_a_batch_that_was_not_read_is_a_warning(watch, caplog, end, start, queues, form):
    for batch, read in enumerate((100, 101, 200)):
        watch.note(progress(end, read, batch, start, form))
    watch.close()
    assert not caplog.records
    watch.note(progress(end, 3, 4, start, form))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    text = record.getMessage()
    assert text.startswith("query daily commits messages that it has not read: ")
    assert f"Spark read 3 of 100 messages of queue {queues}, in 1 batch up to batch 4" in text
    assert "docs/unread.md" in text and "onUnread=fail" in text and "onUnread=ignore" in text


@pytest.mark.parametrize(
    "report",
    [
        progress(QUEUE | {"onUnread": "ignore"}, 3),
        progress(QUEUE, 3, 9),  # the batch with which the run began comes again: it may be smaller
        progress(QUEUE, 0, 4, QUEUE),  # a batch without new messages
        progress(QUEUE | {"seq": 0, "rows": []}, 0),
        progress({"topic": {"0": 5}}, 0),
        progress(5, 0),
    ],
)
def test_others_are_none(watch, caplog, report):
    watch.note(report)
    watch.close()
    assert not caplog.records


def test_warnings_are_few_and_their_numbers_are_complete(watch, caplog):
    for batch in range(9):
        for _ in range(2):  # a report may come twice
            watch.note(progress(QUEUE | {"seq": batch + 1}, 3, batch))
    assert len(caplog.records) == 1
    for _ in range(2):
        watch.close()
    _, late = (one.getMessage() for one in caplog.records)
    assert "Spark read 24 of 800 messages of queue 'orders', in 8 batches up to batch 8" in late
