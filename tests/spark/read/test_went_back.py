"""A source whose database was put back to a copy: the checkpoint knows more than it does."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from spark_queue import CheckpointError, Queue, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.services.owner import OWNER_NOTE, load_consumer_state
from spark_queue.stores.types import queue_note_key
from tests.spark.drive import Query, found


class Killed(Exception):
    """The driver has died."""


def dies_in(number):
    def work(batch):
        if batch.number == number:
            raise Killed

    return work


def put_back(store, name, consumer, seq):
    """Let a queue be as it was when its batch `seq` had just been started, with ten messages a batch."""
    for one in store.reservations(name):
        store.rollback(name, one.tag, failed=False)
    store.purge(name)
    key = queue_note_key(name, OWNER_NOTE, consumer)
    note = store.note(key)
    by = note.value["started"][1]
    store.push(name, pushes(list(range((seq - 1) * 10, 60))))
    if seq:
        store.reserve(name, f"{consumer}/{seq}.{by}", 10, lease=None)
    assert store.set_note(key, note.value | {"started": [seq, by] if seq else None, "owner": None}, note.version)


def state(store, name, consumer):
    """What must not change: the messages, who holds them, and what was started."""
    held = sorted((one.tag, one.rows, one.until) for one in store.reservations(name))
    known = load_consumer_state(store, name, consumer)
    assert known is not None
    return held, store.sizes(name), known.started


@pytest.mark.parametrize("seq", [0, 1, 2, 3])
@pytest.mark.parametrize("in_flight", [True, False])
def test_it_is_refused_before_anything_changes(any_url, name, seq, in_flight):
    """Also if it is one batch older: the batch in flight looks as if it had only not started yet."""
    with Queue(any_url, name) as queue, open_store(any_url) as store:
        queue.push_many(range(60 if in_flight else 40))
        options = {"url": any_url, "queue": name, "delivery": "exactly-once", "maxRecordsPerTrigger": "10"}
        query = Query(dies_in(3 if in_flight else 99), **options, reserveAhead="false")
        if in_flight:
            with pytest.raises(Killed):
                query.run()
        else:
            query.run()
        assert len(query.offsets) == 4 and query.finished == 4 - in_flight
        consumer = query.offsets[-1]["consumer"]
        put_back(store, name, consumer, seq)
        before = state(store, name, consumer)
        for _ in range(2):
            query.work = lambda batch: pytest.fail("it runs")
            way_on = rf"restored from a backup.*spark-queue recover URL {name} {consumer} --sink URL"
            with pytest.raises(CheckpointError, match=way_on):
                query.run()
            assert state(store, name, consumer) == before


@pytest.mark.parametrize("batches", [1, 3])
def test_a_file_that_is_an_older_copy(tmp_path, name, batches):
    """The copy was made while the query worked on a batch, three or one before the one in flight."""
    url = f"sqlite:///{tmp_path}/q.db"
    with Queue(url, name) as queue:
        queue.push_many(range(60))
    read = []

    def work(batch):
        read.append(batch.payloads)
        if batch.number == 3 - batches:
            with sqlite3.connect(tmp_path / "q.db") as db, sqlite3.connect(tmp_path / "copy.db") as to:
                db.backup(to)
        if batch.number == 3:
            raise Killed

    options = {"url": url, "queue": name, "delivery": "exactly-once", "maxRecordsPerTrigger": "10"}
    query = Query(work, **options, reserveAhead="false")
    with pytest.raises(Killed):
        query.run()
    for one in tmp_path.glob("q.db*"):
        one.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "q.db")
    seen = len(read)
    with pytest.raises(CheckpointError, match="restored from a backup"):
        query.run()
    assert len(read) == seen and len(found(url, name)) == 60 - 10 * (3 - batches)
