"""A source whose database was put back to a copy: the checkpoint knows more than it does."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from spark_queue import CheckpointError, Queue, open_store
from spark_queue.messages.message import pushes
from spark_queue.spark.read.batches import Batches
from spark_queue.spark.read.reserver import Reserver
from spark_queue.stores.services.owner import OWNER_NOTE, load_consumer_state
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.types import queue_note_key
from tests.spark.drive import Query, found


class Killed(Exception):
    """The driver has died."""


def dies_in(number):
    def work(batch):
        if batch.number == number:
            raise Killed

    return work


def exactly_once(url, name):
    """Options of a query."""
    return {
        "url": url, "queue": name, "delivery": "exactly-once", "maxRecordsPerTrigger": "10", "reserveAhead": "false",
    }  # fmt: skip


def copy_file(folder):
    """Copy a database while it is in use."""
    with sqlite3.connect(folder / "q.db") as db, sqlite3.connect(folder / "copy.db") as to:
        db.backup(to)


def put_copy_back(folder):
    """Let the database be its copy."""
    for one in folder.glob("q.db*"):
        one.unlink()
    shutil.copy(folder / "copy.db", folder / "q.db")


def put_back(store, name, consumer, seq):
    """Let a queue be as it was when its batch `seq` had just been started, with ten messages a batch."""
    for one in store.reservations(name):
        store.rollback(name, one.tag, failed=False)
    store.purge(name)
    key = queue_note_key(name, OWNER_NOTE, consumer)
    note = store.note(key)
    by, value = note.value["started"][1], dict(note.value)
    if reserved := value.pop("reserved", None):
        assert reserved == value["started"]
        value |= {"reserved": [seq, by]} if seq else {}
    store.push(name, pushes(list(range((seq - 1) * 10, 60))))
    if seq:
        store.reserve(name, f"{consumer}/{seq}.{by}", 10, lease=None)
    assert store.set_note(key, value | {"started": [seq, by] if seq else None, "owner": None}, note.version)


def state(store, name, consumer):
    """What must not change: the messages, who holds them, and what was started."""
    held = sorted((one.tag, one.rows, one.until) for one in store.reservations(name))
    known = load_consumer_state(store, name, consumer)
    assert known is not None
    return held, store.sizes(name), known.started


def by_an_earlier_version(store, name, query):
    """Let the checkpoint and the note of a query be without what says which batch is reserved."""
    for offset in query.offsets:
        assert offset.pop("delivery") == "exactly-once"
    key = queue_note_key(name, OWNER_NOTE, query.offsets[-1]["consumer"])
    note = store.note(key)
    value = dict(note.value)
    assert value.pop("reserved") == value["started"]
    assert store.set_note(key, value, note.version)


@pytest.mark.parametrize("seq", [0, 1, 2, 3])
@pytest.mark.parametrize("in_flight", [True, False])
@pytest.mark.parametrize("noted", [pytest.param(True, id=""), pytest.param(False, id="earlier version")])
def test_it_is_refused_before_anything_changes(any_url, name, seq, in_flight, noted):
    """Also if it is one batch older: the batch in flight looks as if it had only not started yet."""
    with Queue(any_url, name) as queue, open_store(any_url) as store:
        queue.push_many(range(60 if in_flight else 40))
        query = Query(dies_in(3 if in_flight else 99), **exactly_once(any_url, name))
        if in_flight:
            with pytest.raises(Killed):
                query.run()
        else:
            query.run()
        assert len(query.offsets) == 4 and query.finished == 4 - in_flight
        consumer = query.offsets[-1]["consumer"]
        if not noted:
            by_an_earlier_version(store, name, query)
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
            copy_file(tmp_path)
        if batch.number == 3:
            raise Killed

    query = Query(work, **exactly_once(url, name))
    with pytest.raises(Killed):
        query.run()
    put_copy_back(tmp_path)
    query.dies()
    seen = len(read)
    with pytest.raises(CheckpointError, match="restored from a backup"):
        query.run()
    assert len(read) == seen and len(found(url, name)) == 60 - 10 * (3 - batches)


def copy_once(monkeypatch, tmp_path, holder, method, seq):
    """Let a copy of the file be made before this call for batch `seq`."""
    real, calls = getattr(holder, method), []

    def copies(self, *arguments, **options):
        calls.append(method)
        if len(calls) == seq:
            copy_file(tmp_path)
        return real(self, *arguments, **options)

    monkeypatch.setattr(holder, method, copies)


@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize(
    ("holder", "method"),
    [(Batches, "reserve"), (Reserver, "reserve"), (Ownership, "note_reserved")],
    ids=["before it waits for messages", "before it is reserved", "before that is noted"],
)
def test_a_copy_from_just_before_the_batch_in_flight(tmp_path, name, monkeypatch, holder, method, seq):
    """Else it looks as if the lease of the batch had ended, and its messages come again in the next one."""
    url = f"sqlite:///{tmp_path}/q.db"
    with Queue(url, name) as queue:
        queue.push_many(range(60))
    copy_once(monkeypatch, tmp_path, holder, method, seq)
    query = Query(dies_in(seq - 1), **exactly_once(url, name))
    with pytest.raises(Killed):
        query.run()
    put_copy_back(tmp_path)
    query.dies()
    query.work = lambda batch: pytest.fail("it runs")
    with pytest.raises(CheckpointError, match=r"restored from a backup.*spark-queue recover"):
        query.run()
    assert len(found(url, name)) == 60 - 10 * (seq - 1)


@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize("method", ["start", "hold"])
def test_a_copy_that_has_the_batch_in_flight_goes_on(tmp_path, name, monkeypatch, method, seq):
    """It has all that the checkpoint has, whether the batch was started then or not."""
    url = f"sqlite:///{tmp_path}/q.db"
    with Queue(url, name) as queue:
        queue.push_many(range(60))
    copy_once(monkeypatch, tmp_path, Batches, method, seq)
    read = []

    def work(batch):
        dies_in(seq - 1)(batch)
        read.extend(batch.payloads)

    query = Query(work, **exactly_once(url, name))
    with pytest.raises(Killed):
        query.run()
    put_copy_back(tmp_path)
    query.dies()
    query.work = lambda batch: read.extend(batch.payloads)
    query.run()
    assert sorted(read) == list(range(60))
