"""A fork of a process that has SQLite files open: nothing is lost, or the child is refused."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_queue import Queue, StoreError, open_store
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.sqlite import forks
from tests.forked import Child, in_child, run


@pytest.fixture
def queue(sqlite_url):
    with Queue(sqlite_url, "q") as opened:
        opened.push("parent")
        yield opened


def inode_of(path):
    return path.stat().st_dev, path.stat().st_ino


def sorted_payloads(url):
    with Queue(url, "q") as queue:
        return sorted(one.payload for one in queue.peek(1_000))


def open_files(folder):
    """The files below a folder that this process has open."""
    links = [one for one in Path("/proc/self/fd").iterdir() if one.exists()]
    return sorted(one.readlink().name for one in links if one.readlink().is_relative_to(folder))


on_linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows which files are open")


# --- nothing is open at a fork --------------------------------------------------------------------------------------


@on_linux
def test_no_file_is_open_in_the_child(sqlite_url, tmp_path):
    stores = [open_store(f"sqlite:///{tmp_path}/{name}.db") for name in ("a", "b")]
    with stores[0], stores[1], Queue(sqlite_url, "q") as queue:
        for store in stores:
            store.now()
        queue.push(1)
        ended = queue.store.watch("q", lambda name: None)  # a thread polls the file
        assert open_files(tmp_path)
        assert in_child(lambda: open_files(tmp_path)) == []
        ended()


def test_parent_child_and_grandchild_go_on_with_what_they_had_open(queue, sqlite_url):
    def work():
        queue.push("child")
        in_child(lambda: queue.push("grandchild"))
        return queue.push("child again")

    in_child(work)
    queue.push("parent again")
    assert sorted_payloads(sqlite_url) == ["child", "child again", "grandchild", "parent", "parent again"]


def test_a_store_that_was_used_in_the_child_first(sqlite_url):
    with Queue(sqlite_url, "q") as queue:
        in_child(lambda: queue.push("child"))
        assert sorted_payloads(sqlite_url) == ["child"]


def test_what_a_process_has_reserved_is_its_own_after_a_fork(queue):
    (message,) = queue.reserve(1)
    assert in_child(lambda: queue.sizes().reserved) == 1
    assert queue.commit(message) == 1


def test_a_version_of_the_file_is_another_one_after_a_fork(queue):
    """A process that waits compares versions: a push during a fork must not look like none."""
    before = queue.store._signal_version("q")
    in_child(lambda: None)
    assert queue.store._signal_version("q") != before


def test_a_client_that_waits_gets_what_a_forked_one_pushes(queue):
    queue.commit(*queue.reserve(1))
    got = []
    waiting = threading.Thread(target=lambda: got.extend(queue.reserve(1, timeout=30)))
    waiting.start()
    wait_until(lambda: queue.store._change_poll._polling)
    in_child(lambda: queue.push("child"))
    waiting.join(30)
    assert [one.payload for one in got] == ["child"]


def test_a_watch_goes_on_in_the_parent_and_begins_anew_in_the_child(queue):
    seen = []
    ended = queue.store.watch("q", seen.append)

    def work():
        mine = threading.Event()
        queue.store.watch("q", lambda name: mine.set())
        return mine.wait(10)

    assert in_child(work), "it is called once when it begins"
    in_child(lambda: None)
    wait_until(lambda: bool(seen))
    seen.clear()
    in_child(lambda: queue.push("child"))
    wait_until(lambda: bool(seen))
    ended()


def test_threads_push_while_others_fork(queue, sqlite_url):
    done = threading.Event()
    pushed = [[], []]

    def push(mine):
        with Queue(sqlite_url, "q") as own:
            while not done.is_set():
                mine.append(own.push("thread"))

    def fork(number):
        for _ in range(5):
            in_child(lambda: queue.push(f"child of {number}"))

    pushing = [threading.Thread(target=push, args=(one,)) for one in pushed]
    forking = [threading.Thread(target=fork, args=(number,)) for number in range(2)]
    for one in (*pushing, *forking):
        one.start()
    for one in forking:
        one.join(60)
    done.set()
    for one in pushing:
        one.join(60)
    found = sorted_payloads(sqlite_url)
    assert found.count("thread") == sum(map(len, pushed)) > 0
    assert found.count("child of 0") == found.count("child of 1") == 5


def test_a_fork_waits_for_a_call(queue, sqlite_url):
    entered = threading.Event()

    def write():
        with queue.store._transaction() as db:
            entered.set()
            wait_until(lambda: bool(forks.current_process()._forks))
            db.execute("INSERT INTO note (key, value, version) VALUES ('late', '{}', 1)")

    with thread(write):
        entered.wait(10)
        assert in_child(lambda: queue.store.note("late")) is not None


def test_a_failed_open_does_not_matter_to_a_fork(queue, tmp_path):
    path = tmp_path / "other.db"
    path.write_bytes(b"no database" * 100)
    with open_store(f"sqlite:///{tmp_path}/other.db") as other, pytest.raises(StoreError, match="not a database"):
        other.now()
    with (
        open_store(f"sqlite:///{tmp_path}/none/other.db") as other,
        pytest.raises(StoreError, match="does not exist"),
    ):
        other.now()
    assert not [one for one in forks.current_process().connections if one.file == inode_of(path)]
    assert in_child(lambda: queue.push("child"))


# --- what cannot be closed ------------------------------------------------------------------------------------------


@contextmanager
def thread(work):
    one = threading.Thread(target=work)
    one.start()
    yield
    one.join(60)


@pytest.fixture
def busy(queue, monkeypatch):
    """A thread of this process is in a call until the end of the test."""
    monkeypatch.setattr(forks, "FORK_WAIT", 0.02)  # hooks of the process, not of a store
    entered, done = threading.Event(), threading.Event()

    def write():
        with queue.store._transaction() as db:
            db.execute("INSERT INTO note (key, value, version) VALUES ('late', '{}', 1)")
            entered.set()
            done.wait(60)

    with thread(write):
        entered.wait(10)
        yield
        done.set()


REFUSED = r"forked while its parent was in a call to a SQLite file.*nothing was written.*after the fork.*'spawn'"


def refused(work, match=REFUSED):
    """Check that a call is refused, within its process."""
    with pytest.raises(StoreError, match=match):
        work()
    return "refused"


@pytest.mark.usefixtures("busy")
def test_a_child_is_refused_if_a_thread_was_in_a_call(queue, sqlite_url, tmp_path):
    def work():
        other = open_store(f"sqlite:///{tmp_path}/other.db")
        with Queue(sqlite_url, "q") as own:
            calls = [
                lambda: queue.push("child"),
                lambda: queue.reserve(1),
                lambda: queue.peek(1),
                lambda: queue.sizes(),
                lambda: own.push("child"),
                lambda: other.now(),  # a lock of SQLite itself may be held
                lambda: in_child(lambda: queue.push("grandchild")),
            ]
            reported = [refused(one) for one in calls]
        queue.close()
        gc.collect()
        return reported

    assert set(in_child(work)) == {"refused"}
    assert sorted_payloads(sqlite_url) == ["parent"]
    assert not (tmp_path / "other.db").exists()


def test_the_parent_of_a_refused_child_loses_nothing(queue, busy, sqlite_url):
    child = Child(lambda: refused(lambda: queue.push("child")))
    with Queue(sqlite_url, "q") as own:
        assert own.peek(1)
    assert child.result() == "refused"


def test_after_the_call_has_ended_children_are_not_refused(queue, sqlite_url, monkeypatch):
    monkeypatch.setattr(forks, "FORK_WAIT", 0.02)  # hooks of the process, not of a store
    with queue.store._transaction():
        assert in_child(lambda: refused(lambda: queue.push("child")))
    in_child(lambda: queue.push("child"))
    assert sorted_payloads(sqlite_url) == ["child", "parent"]


def test_a_child_that_is_forked_within_a_call_commits_nothing(queue, sqlite_url):
    """As by a signal handler, which returns in both processes."""

    def work(db):
        refused(lambda: db.execute("COMMIT"))
        refused(lambda: db.executemany("DELETE FROM note WHERE key = ?", [("late",)]))
        raise LookupError("what the user's handler does")

    def transaction():
        with queue.store._transaction() as db:
            db.execute("INSERT INTO note (key, value, version) VALUES ('late', '{}', 1)")
            with pytest.raises(LookupError):
                in_child(lambda: work(db))

    transaction()
    assert queue.store.note("late") is not None
    assert sorted_payloads(sqlite_url) == ["parent"]


def test_a_child_is_refused_a_file_that_its_parent_is_reading(queue, sqlite_url, tmp_path):
    queue.push_many(range(30_000))
    reading = queue.store.peek("q")
    rows = next(reading).num_rows
    in_a_read = r"forked while its parent was reading this file.*nothing was written"

    def work():
        with Queue(sqlite_url, "q") as own:
            refused(lambda: own.push("child"), in_a_read)
        refused(lambda: queue.push("child"), in_a_read)
        refused(lambda: next(reading), in_a_read)
        refused(lambda: in_child(lambda: queue.push("grandchild")), in_a_read)
        with Queue(f"sqlite:///{tmp_path}/other.db", "q") as other:
            other.push("child")
        return "refused"

    assert in_child(work) == "refused"
    assert rows + sum(batch.num_rows for batch in reading) == queue.sizes().ready == 30_001
    in_child(lambda: queue.push("child"))
    assert sorted_payloads(f"sqlite:///{tmp_path}/other.db") == ["child"]


# --- forks without hooks --------------------------------------------------------------------------------------------

#: A program that opens a queue, and is forked by C code.
FORKS = """
import ctypes, gc, os, sys, threading, time
from spark_queue import Queue, StoreError, open_store
from tests.forked import Child
url, folder = sys.argv[1:3]
c = ctypes.PyDLL(None)
queue = Queue(url, "q")
queue.push("parent")
queue.store._counters.write()

def end_threads():
    # A child of C code inherits the locks of threads as they are. A thread would also keep the client alive in it.
    while threading.active_count() > 1:
        time.sleep(0.01)

end_threads()

def refused(work):
    try:
        work()
    except StoreError as error:
        assert "without the fork hooks" in str(error) and "uWSGI" in str(error), error
        assert "nothing was written" in str(error)
        return True
    raise AssertionError("it was not refused")
"""


def test_a_child_of_c_code_is_refused_the_files_that_were_open(sqlite_url, tmp_path):
    program = """
def work(hooks):
    if hooks:
        ctypes.pythonapi.PyOS_AfterFork_Child()  # uWSGI can be told to
    refused(lambda: queue.push("child"))
    refused(lambda: queue.peek(1))
    refused(lambda: Queue(url, "q").push("child"))
    refused(lambda: Child(lambda: queue.push("grandchild")).result())
    queue.close()
    other = Queue(f"sqlite:///{folder}/other.db", "q")
    other.push("child")
    other.close()
    return gc.collect() >= 0

for hooks in False, True:
    assert Child(lambda: work(hooks), c.fork).result()
queue.push("parent again")
queue.close()
end_threads()
assert Child(lambda: queue.push("child"), c.fork).result(), "nothing was open"
"""
    run(FORKS + program, sqlite_url, tmp_path)
    assert sorted_payloads(sqlite_url) == ["child", "parent", "parent again"]
    assert sorted_payloads(f"sqlite:///{tmp_path}/other.db") == ["child", "child"]


@pytest.mark.parametrize("noticed", [True, False], ids=["a call", "no call"])
def test_a_child_does_not_close_what_it_inherited_when_it_ends(noticed, sqlite_url, tmp_path):
    """The last connection to a file that closes removes the log."""
    program = """
reading = queue.store.peek("q") if sys.argv[3:] else iter([1])  # its end would be a call
next(reading)
if pid := c.fork():
    os._exit(0)  # the parent dies, and does not close
if sys.argv[3:]:
    refused(lambda: queue.push("child"))
del queue, reading
gc.collect()
print("ends", flush=True)
"""
    arguments = [sqlite_url, tmp_path, *(["a call"] if noticed else [])]
    assert run(FORKS + program, *arguments) == "ends\n"  # also the end of the child: it has the pipe
    assert (tmp_path / "queues.db-wal").stat().st_size > 0
    assert sorted_payloads(sqlite_url) == ["parent"]


def test_a_child_that_ends_by_itself_closes_nothing(sqlite_url, tmp_path):
    program = """
entered = threading.Event()
def write():
    with queue.store._transaction() as db:
        db.execute("INSERT INTO note (key, value, version) VALUES ('late', '{}', 1)")
        entered.set()
        threading.Event().wait()

from spark_queue.stores.sqlite import forks
forks.FORK_WAIT = 0.01
threading.Thread(target=write, daemon=True).start()
entered.wait()
if os.fork():
    os._exit(0)
del queue
gc.collect()
print("ends", flush=True)
"""
    assert run(FORKS + program, sqlite_url, tmp_path) == "ends\n"
    assert (tmp_path / "queues.db-wal").stat().st_size > 0
    assert sorted_payloads(sqlite_url) == ["parent"]
