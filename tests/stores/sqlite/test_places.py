"""The place of a record among those of the same due time: see stores/sqlite/places.py."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.order import drain, own_ids
from spark_queue.stores.sqlite.store import SCHEMA, SCHEMA_VERSION

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def old_file(tmp_path):
    """A file of the version that sorted messages of one due time by their ids."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for step in SCHEMA[:6]:
            db.executescript(step)
        db.execute("PRAGMA user_version = 6")
        db.execute("INSERT INTO queue VALUES (1, 'q')")
        row = "INSERT INTO message (queue, id, mature, tries, kind, payload) VALUES (1, ?, 1000, 0, 'json', ?)"
        db.executemany(row, [(id, b"%d" % n) for n, id in enumerate(own_ids(30))])
        db.execute("INSERT INTO lease (queue, tag, until) VALUES (1, 'c/1/0', 99999999999999)")
        db.execute("UPDATE message SET lease = 1 WHERE rowid <= 10")
        past = "INSERT INTO history (queue, id, mature, tries, kind, payload, processed, until) VALUES"
        db.executemany(
            f"{past} (1, ?, 1000, 0, 'json', X'31', 5000, 99999999999999)", [(id,) for id in ("b", "a", "c")]
        )
    return path


def indexes_of(path):
    with closing(sqlite3.connect(path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        found = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
        return version, dict(found.fetchall())


def test_a_file_of_the_version_before_is_taken_over(old_file):
    with open_store(f"sqlite:///{old_file}") as store:
        held = [batch.column("payload").to_pylist() for batch in store.fetch("q", "c/1/0", 4)]
        assert [int(one) for page in held for one in page] == list(range(10))
        assert drain(store, "q", 7) == list(range(10, 30))
        past = [batch.column("id").to_pylist() for batch in store.peek("q", view="history", limit=3)]
        assert past == [["b", "a", "c"]]
    version, indexes = indexes_of(old_file)
    assert version == SCHEMA_VERSION
    assert {"message_free", "message_held", "history_queue"} <= set(indexes)
    assert not [name for name, sql in indexes.items() if "mature, id" in sql and name != "message_bucket"]


def test_what_a_running_program_of_the_version_before_writes_is_in_order(old_file):
    """It opened the file before: it goes on, and a new one of that version is refused."""
    with closing(sqlite3.connect(old_file, isolation_level=None)) as older:
        older.execute("SELECT id FROM message WHERE queue = 1 ORDER BY mature, id LIMIT 1").fetchone()
        with open_store(f"sqlite:///{old_file}") as store:
            store.push("q", pushes([30, 31], ids=["z", "a"], mature=datetime.fromtimestamp(1, UTC)))
            row = "INSERT INTO message (queue, lease, rows, id, mature, tries, kind, payload) VALUES"
            older.execute(
                f"{row} (1, NULL, 1, 'Z', 1000, 0, 'json', X'3332'), (1, NULL, 1, 'B', 1000, 0, 'json', X'3333')"
            )
            assert older.execute("SELECT id FROM message ORDER BY mature, id DESC LIMIT 1").fetchone() == ("z",)
            assert drain(store, "q", 7) == list(range(10, 34))


def test_a_bucket_is_split_in_its_place(sqlite_url):
    with open_store(sqlite_url) as store:
        store.layout = Buckets(100)
        store.push("q", pushes(list(range(300)), ids=own_ids(300), mature=PAST))
        store.push("q", pushes([300, 301], ids=["b", "a"], mature=PAST))
        assert drain(store, "q", 9) == list(range(302))


def test_a_file_that_is_shrunk_keeps_the_places(sqlite_url):
    with open_store(sqlite_url) as store:
        store.push("q", pushes(list(range(50)), ids=own_ids(50), mature=PAST))
        store.layout = Buckets(100)
        store.push("q", pushes(list(range(50, 250)), ids=[f"x{one}" for one in own_ids(200)], mature=PAST))
        store.reserve("q", "c/1", 20)
        store.shrink()
        store.rollback("q", "c/1", delay=None)
        assert drain(store, "q", 9) == list(range(250))


def test_a_row_needs_no_space_for_its_place(sqlite_url):
    with open_store(sqlite_url) as store:
        store.push("q", pushes([1]))
    _, indexes = indexes_of(sqlite_url.removeprefix("sqlite:///"))
    assert "(queue, mature)" in indexes["message_free"]
    assert "(lease, mature)" in indexes["message_held"]
