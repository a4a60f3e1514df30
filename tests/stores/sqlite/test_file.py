"""A SQLite file that is deleted, replaced, full or unreadable: what is acknowledged is kept."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from spark_queue import OptionError, Queue, StoreError, StoreUnavailable, open_store, shrink
from spark_queue.stores.conformance.limits import with_limits
from tests.command_line import Run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queues.db"


@pytest.fixture
def queue(sqlite_url):
    """A client that has the file open, and holds a message."""
    made = Queue(sqlite_url, "q", consumer="c")
    made.push_many([1, 2], ids=["a", "b"])
    yield made
    made.store.close()  # the client itself would give back what it holds


def delete(path):
    for one in path.parent.glob("queues.db*"):
        one.unlink()


def replace(path):
    """Rename a copy over the file, as backup programs and editors do."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(copy)) as to:
        db.backup(to)
    copy.replace(path)


def move(path):
    path.rename(path.with_name("moved.db"))


def delete_the_log(path):
    path.with_name("queues.db-wal").unlink()


WAYS = {
    "deleted": (delete, "deleted"),
    "replaced": (replace, "replaced"),
    "moved": (move, "deleted"),
    "without its log": (delete_the_log, "db-wal' was deleted"),
}
WORK = {
    "push": lambda queue, held: queue.push(3),
    "reserve": lambda queue, held: queue.reserve(1),
    "commit": lambda queue, held: queue.commit(held),
    "rollback": lambda queue, held: queue.rollback(held),
    "pause": lambda queue, held: queue.pause(),
    "sizes": lambda queue, held: queue.sizes(),
    "stage": lambda queue, held: queue.store.set_note("n", {"a": 1}, 0),
    "wait": lambda queue, held: Queue(queue.store, "other").reserve(1, timeout=10),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("work", WORK)
def test_a_file_that_was_taken_away_acknowledges_nothing(queue, path, way, work):
    (held,) = queue.reserve(1)
    take_away, expected = WAYS[way]
    take_away(path)
    for _ in range(2):  # and the same client does not go on in another file
        with pytest.raises(StoreError, match=f"{expected} while it was in use.*nothing of it is kept.*restart"):
            WORK[work](queue, held)


@pytest.mark.parametrize("way", ["deleted", "replaced", "moved"])
def test_no_later_connection_of_a_client_goes_on_in_another_file(queue, path, way):
    WAYS[way][0](path)
    with pytest.raises(StoreError, match="while it was in use"):
        queue.peek(10)  # which has a connection of its own
    queue.store.close()
    with pytest.raises(StoreError, match="while it was in use"):
        queue.push(3)
    assert way == "replaced" or not path.exists()
    with Queue(f"sqlite:///{path}", "q") as another:
        another.push(4)
        assert [one.payload for one in another.peek(10)] == ([1, 2, 4] if way == "replaced" else [4])


def test_a_file_that_was_put_back_is_used_again(queue, path):
    move(path)
    with pytest.raises(StoreError):
        queue.push(3)
    path.with_name("moved.db").rename(path)
    queue.push(4)
    assert [one.payload for one in queue.peek(10)] == [1, 2, 4]


@pytest.mark.parametrize("way", ["replaced", "moved"])
def test_a_file_that_is_taken_away_in_a_transaction_does_not_keep_it(queue, path, way):
    kept = path.with_name("kept.db")
    os.link(path, kept)
    for suffix in ("-wal", "-shm"):
        os.link(f"{path}{suffix}", f"{kept}{suffix}")

    def write():
        with queue.store._transaction() as db:
            db.execute("INSERT INTO note (key, value, version) VALUES ('late', '{}', 1)")
            WAYS[way][0](path)

    with pytest.raises(StoreError, match="while it was in use"):
        write()
    for one in (kept, path):
        if one.exists():
            with closing(sqlite3.connect(one)) as db:
                assert db.execute("SELECT * FROM note WHERE key = 'late'").fetchall() == []


# --- what failed ends -----------------------------------------------------------------------------


def ended_early(batches):
    next(batches)
    batches.throw(ValueError("the caller has failed"))


#: Reads that fail, and what lets them.
READS = {
    "statistics": (
        ["INSERT INTO statistics (queue, put) VALUES ('x1', 'many'), ('x2', 'many'), ('x3', 'many')"],
        lambda store: store.all_statistics(),
    ),
    "messages": (
        [
            "INSERT INTO message (queue, id, mature, tries, kind, payload) "
            f"VALUES (1, 'x{number}', 0, 0, 'binary', zeroblob(9000000))"
            for number in range(3)
        ],
        lambda store: ended_early(store.peek("q", [])),
    ),
}


@pytest.mark.parametrize("what", READS)
def test_a_read_that_failed_leaves_no_snapshot_open(sqlite_url, path, what):
    with open_store(sqlite_url, retry_timeout=100) as store, Queue(sqlite_url, "q") as other:
        other.push(1)
        changes, read = READS[what]
        with closing(sqlite3.connect(path)) as db, db:
            for one in changes:
                db.execute(one)
        with pytest.raises(ValueError, match=r"."):
            read(store)
        try:
            read(store)
        except ValueError as error:  # a program that keeps the error keeps all that the read had in its hands
            kept = error
        other.push(2)
        assert store.set_note("mine", {"a": 1}, 0), "a write of the same client"
        with closing(sqlite3.connect(path, timeout=0)) as third:
            assert third.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        del kept


FULL = """
import resource, sys
from pathlib import Path
from spark_queue import Queue, StoreError

path = Path(sys.argv[1])
with Queue(f"sqlite:///{path}", "q") as queue:
    queue.push("first")
    size = path.with_name("queues.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
    kept = []
    for _ in range(3):
        try:
            queue.push("x" * 100_000)
        except StoreError as error:
            kept.append(error)
    assert len(kept) == 3, kept
    assert all("transaction" not in str(one) for one in kept), kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    queue.push("last")
    print([one.payload for one in queue.peek(10)])
"""


def test_a_commit_that_failed_leaves_no_transaction_open(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "['first', 'last']\n", done.stderr


def test_a_commit_that_is_refused_leaves_no_transaction_open(queue):
    with queue.store._connection.use() as db:
        db.execute("PRAGMA foreign_keys = ON")

    def write():
        with queue.store._transaction() as db:
            db.execute("CREATE TEMP TABLE parent (id INTEGER PRIMARY KEY)")
            db.execute("CREATE TEMP TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
            db.execute("INSERT INTO child VALUES (1)")

    with pytest.raises(StoreError, match="FOREIGN KEY"):
        write()
    queue.push(3)


# --- the size of a file ---------------------------------------------------------------------------


def size_of(path):
    return sum(one.stat().st_size for one in (path, path.with_name("queues.db-wal")))


def push_and_commit_large(url, name, count):
    with Queue(url, name) as queue:
        queue.push_many(["x" * 10_000] * count)
        queue.commit(*queue.reserve(count))


def test_a_file_is_shrunk_in_place_while_others_use_it(queue, path, sqlite_url):
    push_and_commit_large(sqlite_url, "large", 1_000)
    before, inode = size_of(path), path.stat().st_ino
    (held,) = queue.reserve(1)
    queue.statistics()  # writes the counts now: a thread would write them a moment later, and the file grows by them
    less = shrink(sqlite_url)
    assert size_of(path) == before - less < before / 10
    assert path.stat().st_ino == inode
    assert queue.commit(held) == 1
    queue.push(3)
    assert [one.payload for one in queue.peek(10)] == [2, 3]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_writer_waits_while_a_file_is_shrunk(queue, sqlite_url):
    push_and_commit_large(sqlite_url, "large", 5_000)
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(shrink, sqlite_url)
        pushed = 0
        while not shrinking.done() or not pushed:
            queue.push(pushed)
            pushed += 1
        assert shrinking.result() > 40_000_000
    assert queue.sizes().total == 2 + pushed


@with_limits(busy_timeout=0.1)
def test_what_is_read_while_a_file_is_shrunk_makes_it_say_so(queue, path, sqlite_url):
    push_and_commit_large(sqlite_url, "large", 100)
    reading = queue.store.peek("q", [])
    next(reading)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM message").fetchone()
        with pytest.raises(StoreUnavailable, match="stays large while another process reads its old state"):
            shrink(sqlite_url)
    reading.close()
    before = size_of(path)
    shrink(sqlite_url)
    assert size_of(path) < before


@pytest.mark.every_store
@pytest.mark.stores(server=True)
def test_a_server_is_asked_for_its_own_way(any_url):
    with pytest.raises(OptionError, match=r"is no file: .*(db\.runCommand|MEMORY PURGE)"):
        shrink(any_url)


def test_a_file_that_is_missing_is_not_created_to_be_shrunk(path, sqlite_url):
    with pytest.raises(OptionError, match="there is no file"):
        shrink(sqlite_url)
    assert not path.exists()


def test_the_command_compact_shrinks_a_file(queue, sqlite_url):
    push_and_commit_large(sqlite_url, "large", 100)
    queue.store.write_counts()
    assert re.fullmatch(r"the file is \d[\d,]+ bytes smaller\n", Run("compact", sqlite_url).out)
    assert Run("compact", "--json", sqlite_url).json["bytes"] >= 0
    assert Run("compact", sqlite_url, "q").out == "q: 1 record fewer\n"
