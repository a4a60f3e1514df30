"""`pushed` of messages of other programs, older versions, and damaged ones. The conformance suite has the rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from bson import DatetimeMS, ObjectId

from spark_queue import Queue, open_store
from spark_queue.messages.arrow_bytes import append_digest, to_bytes
from spark_queue.messages.buckets import Buckets
from spark_queue.messages.columns import with_due_time
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import PUSHES, WRITTEN
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.conformance.waiting import tick
from spark_queue.stores.sqlite.store import SCHEMA
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.types import DeadLetterInfo
from tests import odd, registered
from tests.tiers import param

MINUTE = 60_000

#: A message as an older version or another program writes it, by scheme and layout.
_DOCUMENT = {"_id": ObjectId("0123456789abcdef01234567"), "payload": {"n": "old"}, "tries": 0, "hdrs": {}}
OLD: dict[str, Any] = {
    "sqlite/": {"id": "old", "payload": b'{"n":"old"}'},
    "mongodb/mongo": _DOCUMENT,
    "mongodb/ps-mongo": _DOCUMENT,
    "mongodb/pl-mongo": _DOCUMENT,
    "mongodb/bucket-mongo-safe": {"_id": _DOCUMENT["_id"], "b": [{"__p": {"n": "old"}, "__h": {}}], "n": 1},
    "redis/redis-oq": (b"old", odd.document(_id='"old"', payload='{"n":"old"}')),
    "redis/redis-list": (b"old", odd.document(_id='"old"', payload='{"n":"old"}')),
    "redis/rfq": (b"old", {b"n": b"old"}, None),
}

#: Values of the field that are no moments.
_DATES = ["soon", 5, 1.5, True, {"a": 1}, DatetimeMS(2**60)]
WRONG: dict[str, list[Any]] = {
    "sqlite/": [{"pushed": one} for one in ("soon", b"\xff", 2**60)],
    **{f"mongodb/{one}": [{"_pushed": value} for value in _DATES] for one in ("mongo", "ps-mongo", "pl-mongo")},
    "mongodb/bucket-mongo-safe": [{"_pushed": value} for value in _DATES],
    "redis/redis-oq": ['"soon"', "true", "null", "[1]", "1e999", str(10**17), "9" * 5_000],
    "redis/redis-list": ['"soon"', "9" * 40],
}


def is_fast(kind):
    return registered.embedded(kind.partition("/")[0])


@pytest.fixture(params=[param(kind, fast=is_fast(kind)) for kind in OLD])
def kind(request):
    return request.param


@pytest.fixture
def url(kind, url_of):
    scheme, layout = kind.split("/")
    return registered.in_layout(url_of(scheme), layout)


def pushed_of(store, queue, view="messages"):
    """When each message was pushed, by its number."""
    return {one.payload["n"]: one.pushed for batch in store.peek(queue, view=view) for one in messages(batch)}


def test_a_message_of_an_older_version_has_none_whatever_becomes_of_it(kind, store, queue):
    odd.put(kind, store.url, queue, OLD[kind], mature=5)
    store.push(queue, pushes([{"n": "new"}]))
    new = pushed_of(store, queue)["new"]
    assert (new is None) == ("pushed" in store.unsupported)
    expected = {"old": None, "new": new}
    assert pushed_of(store, queue) == expected
    store.reserve(queue, "c/1", 2)
    found = [one for batch in store.fetch(queue, "c/1/0") for one in messages(batch)]
    assert {one.payload["n"]: one.pushed for one in found} == expected
    store.rollback(queue, "c/1", delay=0)
    assert pushed_of(store, queue) == expected
    store.reserve(queue, "c/2", 2)
    store.move(queue, dead_letter_queue(queue), tag="c/2", dead_letter=DeadLetterInfo("failed", history=MINUTE))
    assert pushed_of(store, dead_letter_queue(queue)) == expected
    store.move(dead_letter_queue(queue), queue)
    if "buckets" not in store.unsupported:
        compact(store, queue, Buckets(10))
    assert pushed_of(store, queue) == expected
    store.reserve(queue, "c/3", 2)
    store.commit(queue, "c/3", history=MINUTE)
    assert pushed_of(store, queue, "history") == expected


@pytest.mark.parametrize("kind", [param(kind, fast=is_fast(kind)) for kind in WRONG])
def test_a_value_that_is_no_moment_is_as_none_and_damages_no_message(kind, url, store, queue):
    for value in WRONG[kind]:
        if kind.startswith("redis/"):
            record = (b"old", odd.document(_id='"old"', payload='{"n":"old"}', pushed=value))
        else:
            record = OLD[kind] | value | ({"_id": ObjectId()} if "mongodb" in kind else {})
        odd.put(kind, url, queue, record, mature=5)
        assert pushed_of(store, queue) == {"old": None}, value
        assert store.reserve(queue, "c/1", 2) == [1]
        found = [one for batch in store.fetch(queue, "c/1/0") for one in messages(batch)]
        assert [(one.payload, one.pushed) for one in found] == [({"n": "old"}, None)], value
        assert store.rollback(queue, "c/1") == 1
        store.reserve(queue, "c/2", 2)
        assert store.commit(queue, "c/2") == 1
        assert store.sizes(dead_letter_queue(queue)).total == 0, value


def test_a_damaged_record_that_becomes_a_dead_letter_keeps_it(kind, url, store, queue):
    if "pushed" in store.unsupported:
        pytest.skip("this layout has no field for it")
    record, moment = odd.TABLE[kind][0].record, 1_700_000_000_123
    if kind == "sqlite/":
        record = record | {"pushed": moment}
    elif kind.startswith("mongodb/"):
        record = record | {"_pushed": DatetimeMS(moment)}
    else:
        record = b"odd", odd.document(hdrs="[1]", pushed=str(moment))
    odd.put(kind, url, queue, record, mature=5)
    store.reserve(queue, "c/1", 1)
    assert list(store.fetch(queue, "c/1/0")) == []
    (batch,) = store.peek(dead_letter_queue(queue), check_json=False)
    assert [one.timestamp() for one in batch.column("pushed").to_pylist()] == [moment / 1000]


# --- files of older versions ----------------------------------------------------------------------


def old_file(path, version):
    """Make a file of an older version with a message in a queue, one in the history, and a staged one."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(";".join(SCHEMA[:version]) + f"; PRAGMA user_version = {version}")
        db.execute("INSERT INTO queue VALUES (1, 'q')")
        columns = "queue, id, mature, tries, kind, headers, payload"
        db.execute(f"INSERT INTO message ({columns}) VALUES (1, 'a', 5, 0, 'json', NULL, ?)", (b'{"n":"old"}',))
        db.execute(
            f"INSERT INTO history ({columns}, processed, until) VALUES (1, 'h', 5, 0, 'json', NULL, ?, 5, ?)",
            (b'{"n":"done"}', 2**52),
        )
        rows = with_due_time(pushes([{"n": "staged"}], ids=["s"]), 5)
        packed = append_digest(to_bytes(pa.RecordBatch.from_pydict(rows.to_pydict(), schema=PUSHES), "lz4"))
        if version > 1:
            db.execute("INSERT INTO staged VALUES ('s/1', 'p.000000', 'q', 1, ?)", (packed,))


@pytest.mark.parametrize("version", range(1, len(SCHEMA)))
def test_messages_in_a_file_of_an_older_version_have_none(tmp_path, version):
    old_file(tmp_path / "old.db", version)
    with open_store(f"sqlite:///{tmp_path}/old.db") as store:
        assert pushed_of(store, "q") == {"old": None}
        assert pushed_of(store, "q", "history") == {"done": None}
        if version > 1:
            assert store.publish(["s/1"]) == 1
            assert pushed_of(store, "q") == {"old": None, "staged": None}
        store.push("q", pushes([{"n": "new"}]))
        assert pushed_of(store, "q")["new"] is not None


# --- clients --------------------------------------------------------------------------------------


def test_rows_that_are_written_again_keep_it(store, name):
    """`Store.push` of WRITTEN rows: what a dead letter of a damaged record is."""
    moment = datetime(2020, 1, 2, tzinfo=UTC)
    batch = pushes([{"n": "1"}, {"n": "2"}, {"n": "3"}])
    column = pa.array([moment, None, moment], WRITTEN.field("pushed").type)
    store.push(name, pa.RecordBatch.from_arrays([*batch.columns, column], schema=WRITTEN))
    known = None if "pushed" in store.unsupported else moment
    assert pushed_of(store, name) == {"1": known, "2": None, "3": known}


def test_a_client_sees_when_a_message_was_pushed(store, name):
    with Queue(store, name) as queue:
        queue.push({"n": "1"})
        (first,) = queue.peek()
        tick(store)
        queue.push({"n": "2"}, delay=60)
        later = next(one for one in queue.peek() if one.payload == {"n": "2"})
        if "pushed" in store.unsupported:
            assert first.pushed is later.pushed is None
            return
        assert first.pushed is not None and later.pushed is not None
        assert first.pushed == first.mature < later.pushed < later.mature
        (held,) = queue.reserve(1)
        queue.rollback(held, delay=30)
        assert {one.pushed for one in queue.peek()} == {first.pushed, later.pushed}
