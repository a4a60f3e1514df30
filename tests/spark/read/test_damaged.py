"""An unreadable record becomes a dead letter; a query goes on with the rest of its batch."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.columns import header_dicts
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.options.roles import parse_options
from spark_queue.spark.read.fetch import FetchRange, fetch_messages
from tests import odd, registered
from tests.spark.conftest import Harness


def cases():
    """Every odd record of every layout. A payload that is no JSON is delivered as text."""
    found = [(kind, one) for kind in odd.TABLE for one in odd.TABLE[kind] if not one.decoded]
    fast = ("sqlite/: headers a blob",)
    named = [(f"{kind}: {one.name}", kind, one) for kind, one in found]
    return pytest.mark.parametrize(
        ("kind", "one"),
        [pytest.param(kind, one, id=id, marks=() if id in fast else pytest.mark.full) for id, kind, one in named],
    )


@pytest.fixture
def harness(kind, url_of, spark, name, tmp_path):
    scheme, layout = kind.split("/")
    url = registered.in_layout(url_of(scheme), layout)
    with open_store(url) as store:
        store.now()
    yield Harness(spark, url, name, tmp_path)
    with open_store(url) as store:
        for queue in (name, dead_letter_queue(name)):
            store.drop(queue)


@cases()
def test_a_query_delivers_the_good_messages(kind, one, harness):
    odd.put(kind, harness.url, harness.name, one.record, mature=5)
    harness.push([{"n": "1"}, {"n": "2"}, {"n": "3"}])
    rows = [row for batch in harness.drain() for row in batch]
    assert sorted(json.loads(row.payload)["n"] for row in rows) == ["1", "2", "3"]
    sizes = harness.sizes()
    assert (sizes.total, sizes.dead) == (0, 1)
    with open_store(harness.url) as store:
        (batch,) = store.peek(dead_letter_queue(harness.name), check_json=False)
        (headers,) = header_dicts(batch)
    assert one.reason in headers["x-error"]


@pytest.mark.full
def test_a_query_with_a_dead_letter_queue_of_its_own(q):
    with open_store(q.url) as store:
        store.now()
    for mature in (5, 6):
        odd.put("sqlite/", q.url, q.name, {"id": f"odd {mature}", "headers": "[1]"}, mature=mature)
    q.push([{"n": n} for n in range(3)])
    batches = q.drain(
        numPartitions="2", minPartitions="2", deadLetterQueue=f"{q.name}.graves", maxRecordsPerTrigger="3"
    )
    assert sorted(json.loads(row.payload)["n"] for batch in batches for row in batch) == [0, 1, 2]
    with Queue(q.url, f"{q.name}.graves") as graves:
        assert sorted(one.id for one in graves.peek()) == ["odd 5", "odd 6"]


def test_a_snapshot_shows_them(q):
    with open_store(q.url) as store:
        store.now()
    odd.put("sqlite/", q.url, q.name, {"headers": "[1]"}, mature=5)
    odd.put("sqlite/", q.url, q.name, {"id": "latin", "payload": b'"\xff"'}, mature=6)
    q.push([{"n": 1}])
    found = {row.id: row.headers.get("x-error") for row in q.read().collect()}
    assert len(found) == 3
    assert "not a JSON object" in found["odd"]
    assert "not UTF-8" in found["latin"]
    assert q.sizes().total == 3


@pytest.mark.full
def test_a_log_shows_them_at_their_positions(q):
    with open_store(q.url) as store:
        store.now()
    odd.put("sqlite/", q.url, q.name, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3}, mature=5)
    q.push([{"n": 1}])
    rows = [row for batch in q.drain(mode="log") for row in batch]
    assert [(row.position, "x-error" in row.headers) for row in rows] == [(0, True), (1, True), (2, True), (3, False)]


def test_of_several_inputs_each_message_keeps_its_place(sqlite_url, name):
    options = parse_options({"url": sqlite_url, "queue": name}, "stream")
    with Queue(sqlite_url, name) as queue:
        queue.push({"n": 1}, mature=datetime.fromtimestamp(1, UTC))
        odd.put("sqlite/", sqlite_url, name, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3}, mature=5_000)
        queue.push({"n": 2})
        assert queue.store.reserve(name, "c/1/1.1", 10) == [5]
        share = FetchRange("c/1/1.1/0", 4, first=1)
        rows = [headers for batch in fetch_messages(options, share) for headers in header_dicts(batch)]
        assert ["x-error" in headers for headers in rows] == [True, True, True, False]
        assert queue.sizes().reserved == 5
