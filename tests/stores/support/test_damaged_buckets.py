"""Damaged buckets and stages in each store: none is read as other messages, no reserve loops."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest

from spark_queue import StoreError, open_store
from spark_queue.messages.arrow_bytes import to_bytes
from spark_queue.messages.buckets import Buckets, build_bucket, rows_of
from spark_queue.messages.columns import with_due_time
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import BUCKET_PREFIX, PUSHES
from tests.damaged_buckets import flipped

#: Numbers of messages that an id cannot have, or that are not those of a bucket of 30.
LIES = ["0", "29", "31", "99999", "100001", "-1", "x", "", "9" * 30, "0000030"]

STAGE = "s/1/a"


def bucket_record(store, compression="lz4"):
    """A bucket of 30 messages that is ready, as a record."""
    batch = with_due_time(
        pushes([{"n": n} for n in range(30)], ids=[f"id-{n:02}" for n in range(30)]), store.now() - 1000
    )
    return build_bucket(batch, Buckets(100, compression))


def put_record(store, queue, record, **columns):
    """Put a record in the database, in which such columns are others."""
    changed = {
        name: pa.array([columns[name]], one.type)
        for name, one in zip(PUSHES.names, PUSHES, strict=True)
        if name in columns
    }
    arrays = [changed.get(name, record.column(name)) for name in PUSHES.names]
    store._attempt(store._push, queue, pa.RecordBatch.from_arrays(arrays, schema=PUSHES))


def refusal(store, queue):
    """Why the only record of the queue is not read."""
    (row,) = [one for batch in store.peek(queue) for one in messages(batch)]
    return row.headers["x-error"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_flip_in_the_database_is_noticed_when_the_bucket_is_read(store, name, compression):
    record, dice = bucket_record(store, compression), random.Random(1)
    packed = record.column("payload")[0].as_py()
    for _ in range(8):
        put_record(store, name, record, payload=flipped(packed, dice.randrange(8 * len(packed))))
        assert "do not have the digest" in refusal(store, name)
        store.drop(name)


def test_a_bucket_that_comes_back_as_it_was_written_is_read(store, name):
    put_record(store, name, bucket_record(store))
    found = [one for batch in store.peek(name) for one in messages(batch)]
    assert [one.id for one in found] == [f"id-{n:02}" for n in range(30)]


@pytest.mark.parametrize("lie", LIES)
def test_a_reserve_ends_though_a_bucket_lies_about_its_messages(store, name, lie, monkeypatch):
    record = bucket_record(store)
    id = (
        record.column("id")[0]
        .as_py()
        .replace(f"{BUCKET_PREFIX}30{BUCKET_PREFIX}", f"{BUCKET_PREFIX}{lie}{BUCKET_PREFIX}")
    )
    put_record(store, name, record, id=id)
    assert store.sizes(name).ready == rows_of(id), "the database counts as Python does"
    claims, claim = [], store._claim

    def counted(*arguments):
        claims.append(arguments)
        assert len(claims) < 10, "it turns in circles"
        return claim(*arguments)

    monkeypatch.setattr(store, "_claim", counted)
    store.reserve(name, "c/1", 10)
    assert claims
    assert "messages" in refusal(store, name)


# --- stages in SQLite, which are Arrow as well ----------------------------------------------------


@pytest.fixture
def staged(sqlite_url, tmp_path):
    """A store with a stage of two queues, and what changes the bytes of the part of one of them."""
    with open_store(sqlite_url) as store:
        store.stage("good", STAGE, pushes(["good"]))
        store.stage("bad", STAGE, pushes([f"text {n}" for n in range(30)]))
        with closing(sqlite3.connect(tmp_path / "queues.db")) as db:
            (packed,) = db.execute("SELECT rows FROM staged WHERE queue = 'bad'").fetchone()

            def write(changed):
                with db:
                    db.execute("UPDATE staged SET rows = ? WHERE queue = 'bad'", (changed,))

            yield store, packed, write


def payloads_of_queue(store, queue):
    return [one.payload for batch in store.peek(queue) for one in messages(batch)]


def test_a_damaged_part_of_a_stage_is_an_error_and_nothing_is_published(staged):
    store, packed, write = staged
    dice = random.Random(1)
    flips = [flipped(packed, dice.randrange(8 * len(packed))) for _ in range(30)]
    for changed in (None, "text", b"", packed[:-1], packed[: len(packed) // 2], *flips):
        write(changed)
        with pytest.raises(StoreError, match=r"part '\S+' of stage 's/1/a' is damaged: it") as error:
            store.publish([STAGE])
        assert error.value.facts["queue"] == "bad"
        assert "30 messages for queue 'bad'; nothing was published. Restore the file" in str(error.value)
        assert store.queues() == []
    write(packed)
    assert store.publish([STAGE]) == 31
    assert payloads_of_queue(store, "bad") == [f"text {n}" for n in range(30)]


def test_the_error_names_the_statement_that_gives_a_damaged_part_up(staged, tmp_path):
    store, packed, write = staged
    write(packed[:-1])
    with pytest.raises(StoreError) as error:
        store.publish([STAGE])
    statement = str(error.value).split("(")[1].split(")")[0]
    with closing(sqlite3.connect(tmp_path / "queues.db")) as db, db:
        assert db.execute(statement).rowcount == 1
    assert store.publish([STAGE]) == 1


def test_stages_of_other_versions_are_read_and_they_read_ours(staged):
    store, packed, write = staged
    with pa.ipc.open_stream(packed) as reader:  # as they do
        batch = reader.read_next_batch()
    assert batch.column("payload")[0].as_py() == b"text 0"
    write(to_bytes(batch, "lz4"))
    assert store.publish([STAGE]) == 31
    assert payloads_of_queue(store, "bad") == [f"text {n}" for n in range(30)]
