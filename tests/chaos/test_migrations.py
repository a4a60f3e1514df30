"""A process that takes over a file or a collection of an earlier version is killed in the middle of it."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from pymongo import MongoClient

from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.order import drain
from spark_queue.stores.mongodb.documents import INDEXES, OLD_INDEXES
from spark_queue.stores.mongodb.keys import key_of
from spark_queue.stores.sqlite.store import SCHEMA, SCHEMA_VERSION

pytestmark = pytest.mark.full

MESSAGES, HELD, KILLS = 20_000, 100, 6
FIRST = datetime(2020, 1, 1, tzinfo=UTC)

#: Opens a store and makes the first change, and kills itself so many seconds after it began.
TAKE_OVER = """
import os, signal, sys, threading
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
url, queue, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with open_store(url) as store:
    if seconds:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    store.reserve(queue, "taken/over", 1)
    store.rollback(queue, "taken/over", delay=None, failed=False)
"""


def take_over(url, queue, seconds=0.0):
    """Let another process take it over, and return whether it was killed, and how long it took."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", TAKE_OVER, url, queue, str(seconds)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0, time.monotonic() - began


def kill_in_the_middle(url, queue, check, longest):
    """Kill processes that take it over, each after another time, and call `check` after each."""
    killed = 0
    for number in range(KILLS):
        killed += take_over(url, queue, 0.001 + longest * number / KILLS)[0]
        check()
    assert killed, "no process was killed"
    assert take_over(url, queue)[0] is False


def expect_all(url, queue):
    """Check that the messages are there once, in their order, and that new ones come after them."""
    with open_store(url) as store:
        held = [int(one) for page in store.fetch(queue, "c/1/0") for one in page.column("payload").to_pylist()]
        assert held == list(range(len(held)))
        store.push(queue, pushes([MESSAGES, MESSAGES + 1], ids=["z", "a"]))
        assert drain(store, queue, 5_000) == list(range(len(held), MESSAGES + 2))
        return len(held)


def old_file(path):
    """Write a file of the version that sorted messages of one due time by their ids."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for step in SCHEMA[:6]:
            db.executescript(step)
        db.execute("PRAGMA user_version = 6")
        db.execute("INSERT INTO queue VALUES (1, 'q')")
        db.execute("INSERT INTO lease (queue, tag, until) VALUES (1, 'c/1/0', 99999999999999)")
        row = "INSERT INTO message (queue, id, mature, tries, kind, payload) VALUES (1, ?, ?, 0, 'json', ?)"
        db.execute("BEGIN")
        db.executemany(row, ((f"order-{n}", 1000 + n // 1000, b"%d" % n) for n in range(MESSAGES)))
        db.execute("UPDATE message SET lease = 1 WHERE rowid <= ?", (HELD,))
        db.execute("COMMIT")


def test_a_file_that_a_killed_process_took_over_has_each_message_once_and_in_order(tmp_path):
    path, copy = tmp_path / "old.db", tmp_path / "copy.db"
    old_file(path)
    shutil.copy(path, copy)
    took = take_over(f"sqlite:///{copy}", "q")[1]

    def check():
        with closing(sqlite3.connect(path)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            assert version in range(6, SCHEMA_VERSION + 1)
            assert db.execute("SELECT count(*) FROM message").fetchone() == (MESSAGES,)
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    kill_in_the_middle(f"sqlite:///{path}", "q", check, took / 2)
    assert expect_all(f"sqlite:///{path}", "q") == HELD


def test_a_collection_that_a_killed_process_took_over_has_each_message_once_and_in_order(mongodb_url):
    with MongoClient(mongodb_url, tz_aware=True) as client:
        collection = client.get_default_database()[f"t{uuid.uuid4().hex[:16]}"]
        try:
            collection.create_indexes([*OLD_INDEXES, *INDEXES[2:]])
            collection.insert_many(
                {
                    "_id": key_of(f"order-{n}"),
                    "_sid": f"order-{n}",
                    "mature": FIRST + timedelta(milliseconds=n),
                    "payload": n,
                    "tries": 0,
                    "hdrs": {},
                }
                for n in range(MESSAGES)
            )

            def check():
                assert collection.count_documents({}) == MESSAGES

            kill_in_the_middle(mongodb_url, collection.name, check, 0.6)
            names = {one["name"] for one in collection.list_indexes()}
            assert not names & {one.document["name"] for one in OLD_INDEXES}
            assert expect_all(mongodb_url, collection.name) == 0
        finally:
            collection.drop()
