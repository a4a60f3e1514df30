"""Notes that were not written for a year are removed, and no others. The tests age them."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_queue import open_store
from spark_queue.errors import CheckpointError
from spark_queue.messages.message import pushes
from spark_queue.options.parsers import DAY
from spark_queue.stores.services import ageing
from spark_queue.stores.services.ageing import FIRST_RELEASE, LAST_SWEEP_NOTE, SWEEPS, YEAR, remove_old_notes
from spark_queue.stores.services.dead_letters import add_settled, note_settings
from spark_queue.stores.services.ledger import LEDGER_PREFIX, Writer, ledger_of
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.poison import note_failure
from spark_queue.stores.services.publishing import Publisher
from spark_queue.stores.services.query_binding import QueryBinding, bind
from spark_queue.stores.services.reading import Reading
from spark_queue.stores.types import queue_note_key

pytestmark = pytest.mark.every_store


def age(store, by, *starts):
    """Make the notes with this key prefix older by ms; `None`: as an older version wrote them."""
    keys = [key for start in starts for key in store.notes(start)]
    scheme = store.url.partition(":")[0]
    if scheme == "sqlite":
        with sqlite3.connect(store.url.removeprefix("sqlite:///"), timeout=10) as db:
            db.executemany("UPDATE note SET written = written - ? WHERE key = ?", [(by, key) for key in keys])
    elif scheme == "mongodb":
        notes = store._database()[f"{store._own_prefix}notes"]
        earlier = "$$REMOVE" if by is None else {"$subtract": ["$written", by]}
        notes.update_many({"_id": {"$in": keys}}, [{"$set": {"written": earlier}}])
    else:
        from spark_queue.stores.redis.keys import note_key

        with store._cluster_connection() as client:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                name = note_key(key, store.layout_name)
                pipeline.hincrby(name, "written", -by) if by is not None else pipeline.hdel(name, "written")
            pipeline.execute()
    return keys


def run_query(store, queue, consumer, query):
    """Leave behind what a query leaves that has read one batch, whose messages are removed."""
    owner = Ownership(store, queue, consumer)
    owner.take()
    owner.start(Batch(1, owner.number))
    bind(store, queue, None, QueryBinding(query, consumer))
    return owner


def sweep(store, limit=10**6):
    """Sweep for more days than a note must be unchanged: tests beside this one count some of them."""
    for _ in range(2 * SWEEPS):
        ageing.sweep(store)
    return ageing.sweep(store, limit)


def left(store, queue):
    return sorted(key.removeprefix(queue_note_key(queue)) for key in store.notes(queue_note_key(queue)))


def test_what_a_consumer_left_goes_after_a_year_and_no_sooner(store, name):
    run_query(store, name, "etl/1", "query1")
    note_settings(store, name, "etl", 1000, None)
    add_settled(store, name, "etl", 3)
    for note in (Reading(name, "etl/1", Batch(1, 1), 1).note_plan, Reading(name, "etl/1", Batch(1, 1)).note_taken):
        note(store, 3)
    reading = ["reading/etl/1/plan", "reading/etl/1/spark"]
    everything = ["consumer/etl/1", "history/etl", "query/query1/", *reading, "settled/etl"]
    assert left(store, name) == everything
    age(store, YEAR - DAY, queue_note_key(name))
    sweep(store)
    assert left(store, name) == everything
    age(store, DAY, queue_note_key(name))
    sweep(store)
    assert left(store, name) == []
    with pytest.raises(CheckpointError, match="this consumer is unknown"):
        Ownership(store, name, "etl/1").take(Batch(1, 1))


def test_a_query_that_lives_keeps_the_notes_that_it_wrote_once(store, name):
    owner = run_query(store, name, "etl/2", "query2")
    run_query(store, name, "etl/1", "query1")
    note_settings(store, name, "etl", 1000, None)
    age(store, YEAR + DAY, queue_note_key(name))
    owner.renew()
    sweep(store)
    assert left(store, name) == ["consumer/etl/2", "history/etl", "query/query2/"]


def test_a_consumer_that_holds_messages_keeps_its_notes(store, name):
    run_query(store, name, "etl/1", "query1")
    store.push(name, pushes(["1", "2"]))
    store.reserve(name, "etl/1/1.1", 2, lease=None)
    age(store, YEAR + DAY, queue_note_key(name))
    sweep(store)
    assert left(store, name) == ["consumer/etl/1", "query/query1/"]
    store.commit(name, "etl/1/1.1")
    sweep(store)
    assert left(store, name) == []


def test_a_ledger_goes_after_a_year_never_with_a_queue(store, name):
    sinks = [f"{name}-{n}" for n in range(3)]
    for sink in sinks:
        store.stage(name, f"{sink}/0/a", pushes(["1"]))
        Publisher({"": store}, sink).publish_batch(
            0, [f"{sink}/0/a"], {"": 1}, Writer.STREAM, hashes=b"12345678" * 2000
        )
    store.drop(name)
    assert all(ledger_of(store, sink) for sink in sinks)
    age(store, YEAR + DAY, *(f"{prefix}{sink}" for prefix in (LEDGER_PREFIX, "written/") for sink in sinks[:2]))
    store.stage(name, f"{sinks[1]}/1/a", pushes(["2"]))
    sweep(store)
    assert [sink for sink in sinks if ledger_of(store, sink)] == sinks[1:], "rows of the second are staged"
    assert not store.notes(f"written/{sinks[0]}")
    assert store.notes(f"written/{sinks[2]}")
    store.unstage(sinks[1])
    sweep(store)
    assert ledger_of(store, sinks[1]) is None


def test_what_a_query_failed_with_goes_too(store, name):
    note_failure(store, name, "run 1", "boom")
    note_failure(store, name, "run 2", "bang")
    sweep(store)
    (note,) = store.notes(f"failure/{name}").values()
    assert note.value == {"v": 1, "run": "run 2", "error": "bang"}, "a query has one such note"
    age(store, YEAR + DAY, f"failure/{name}")
    sweep(store)
    assert not store.notes(f"failure/{name}")


def test_a_note_of_an_older_version_counts_from_now_on(store, name):
    run_query(store, name, "etl/1", "query1")
    (*_,) = age(store, None, queue_note_key(name))
    assert {note.written for note in store.notes(queue_note_key(name)).values()} == {None}
    sweep(store)
    assert left(store, name) == ["consumer/etl/1", "query/query1/"]
    assert all(note.written for note in store.notes(queue_note_key(name)).values())
    age(store, YEAR + DAY, queue_note_key(name))
    sweep(store)
    assert left(store, name) == []


@pytest.mark.parametrize(("many", "queues"), [(20, 50), pytest.param(1_000, 10_000, marks=pytest.mark.full)])
def test_notes_are_bounded(store, name, many, queues):
    run_query(store, name, "etl/0", "query0")
    owner = store.note(queue_note_key(name, "consumer", "etl/0")).value
    notes = {queue_note_key(f"{name}.{n}", "consumer", "etl/0"): owner for n in range(queues)}
    for n in range(1, many):
        notes[queue_note_key(name, "consumer", f"etl/{n}")] = owner
        notes[queue_note_key(name, "query", f"query{n}/")] = {"v": 1, "consumer": f"etl/{n}"}
        notes[f"{LEDGER_PREFIX}{name}-{n}"] = {"v": 1, "id": str(n), "batch": n, "stages": []}
    with ThreadPoolExecutor(8) as writers:
        assert all(writers.map(lambda note: store.set_note(*note, 0), notes.items()))
    mine = (queue_note_key(name), f"queue/{name}.", f"{LEDGER_PREFIX}{name}-")
    assert len(age(store, YEAR + DAY, *mine)) == len(notes) + 2
    # A query of another test, on the same server, may remove some of them meanwhile.
    assert sweep(store, 10) <= 10, "a query that starts does not wait for all of them"
    ageing.sweep(store, 10**6)
    assert not [key for start in mine for key in store.notes(start)]


def test_a_database_is_looked_at_once_a_day(tmp_path, monkeypatch):
    """By a file of its own: other queries look at a database that is shared."""
    looks = []
    monkeypatch.setattr(ageing, "sweep", looks.append)
    with open_store(f"sqlite:///{tmp_path}/q.db") as store:
        for _ in range(3):
            remove_old_notes(store)
        assert len(looks) == 1
        age(store, DAY - 60_000, LAST_SWEEP_NOTE)
        remove_old_notes(store)
        assert len(looks) == 1
        age(store, 60_000, LAST_SWEEP_NOTE)
        remove_old_notes(store)
        remove_old_notes(store)
        assert len(looks) == 2


@pytest.fixture
def own(tmp_path):
    """A file of this test's own: nothing else sweeps there."""
    with open_store(f"sqlite:///{tmp_path}/q.db") as store:
        yield store


def test_a_note_goes_only_if_it_was_unchanged_for_thirty_days(own, name):
    """The clock was wrong when it was written: it seems to be a year old, and its query lives."""
    for sink in ("idle", "alive"):
        own.set_note(f"{LEDGER_PREFIX}{sink}", {"v": 1, "id": sink, "batch": 0, "stages": []}, 0)
    age(own, YEAR + DAY, LEDGER_PREFIX)
    for day in range(SWEEPS):
        ageing.sweep(own)
        assert ledger_of(own, "idle") and ledger_of(own, "alive"), f"day {day}"
    note = own.note(f"{LEDGER_PREFIX}alive")
    assert own.set_note(f"{LEDGER_PREFIX}alive", note.value | {"batch": 1}, note.version)
    age(own, YEAR + DAY, f"{LEDGER_PREFIX}alive")
    for _ in range(SWEEPS):
        ageing.sweep(own)
        assert ledger_of(own, "idle") is None
        assert ledger_of(own, "alive"), "it was written meanwhile, whatever the clock said"


def test_a_time_that_cannot_be_true_counts_from_now_on(own):
    own.set_note(f"{LEDGER_PREFIX}sink", {"v": 1, "id": "1", "batch": 0, "stages": []}, 0)
    age(own, own.now() - FIRST_RELEASE + 1, LEDGER_PREFIX)
    for _ in range(2 * SWEEPS):
        ageing.sweep(own)
    assert ledger_of(own, "sink") and own.now() - own.note(f"{LEDGER_PREFIX}sink").written < DAY


def test_the_ledger_of_a_query_stays_while_its_consumer_does(own, name):
    owner = run_query(own, name, "etl/1", "query1")
    for sink in ("query1", "app:query1", "query2"):
        own.set_note(f"{LEDGER_PREFIX}{sink}", {"v": 1, "id": sink, "batch": 0, "stages": []}, 0)
    age(own, YEAR + DAY, queue_note_key(name), LEDGER_PREFIX)
    for _ in range(SWEEPS + 2):
        owner.renew()
        ageing.sweep(own)
    assert sorted(own.notes(LEDGER_PREFIX)) == [f"{LEDGER_PREFIX}{sink}" for sink in ("app:query1", "query1")]


def test_a_clock_that_was_ahead_once_does_not_end_the_sweeps(own, monkeypatch):
    looks = []
    monkeypatch.setattr(ageing, "sweep", looks.append)
    remove_old_notes(own)
    age(own, -YEAR, LAST_SWEEP_NOTE)
    remove_old_notes(own)
    remove_old_notes(own)
    assert len(looks) == 2
