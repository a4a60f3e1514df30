"""Clients that fork, on every store: what is acknowledged is there, and nothing is committed twice."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from spark_queue import Queue, open_store
from spark_queue.events import Events
from spark_queue.messages import ids
from tests.forked import Beside, Child, Gate, in_child

#: How a process starts a worker that goes on with what it has open.
WAYS = ("os.fork", "multiprocessing", "daemon")


@pytest.fixture
def shared(url, name):
    """A client that is open when its process forks."""
    queue = Queue(url, name)
    queue.push("parent")
    yield queue
    queue.close()


def start_worker(way, work):
    """Start a worker; the result waits until it has ended, and checks that its work succeeded."""
    if way == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()

        def joined():
            process.join(60)
            assert process.exitcode == 0

        return joined
    if way == "daemon":  # the parent of the worker ends at once
        ended = Gate()

        def first():
            if os.fork() == 0:
                try:
                    work()
                    ended.open()
                finally:
                    os._exit(0)

        in_child(first)
        return ended.wait
    return Child(work).result


def all_payloads(url, name):
    with Queue(url, name) as queue:
        return sorted(map(str, (one.payload for one in queue.peek(1_000))))


@pytest.mark.parametrize("own", [False, True], ids=["inherited", "of its own"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_forked_worker_pushes_is_there(way, own, shared, url, name):
    go = Gate()

    def work():
        go.wait()
        worker = Queue(url, name) if own else shared
        worker.push_many(range(50))
        worker.push_many(range(50))
        worker.close()

    ended = start_worker(way, work)
    shared.close()  # the last client, for now
    with Beside(url, name):  # SQLite's log begins anew
        go.open()
        ended()
    assert all_payloads(url, name) == sorted([*map(str, range(50))] * 2 + ["beside", "parent"])


def test_what_workers_of_a_fork_server_push_is_there(shared, url, name):
    """They are forked by a process that has imported this module, and has no client."""
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=push_own, args=(url, name)) for _ in range(2)]
    for one in workers:
        one.start()
    shared.close()
    with Beside(url, name):
        for one in workers:
            one.join(60)
    assert [one.exitcode for one in workers] == [0, 0]
    assert all_payloads(url, name) == ["beside", "own", "own", "parent"]


def push_own(url, name):
    with Queue(url, name) as queue:
        queue.push("own")


@pytest.mark.parametrize("own", [False, True], ids=["inherited", "of its own"])
def test_a_forked_consumer_and_another_program_commit_each_message_once(own, shared, url, name):
    shared.push_many(range(99))
    go = Gate()

    def consume(queue):
        done = []
        while batch := queue.reserve(7):
            done += [one.id for one in batch[: queue.commit(*batch)]]
        return done

    def work():
        go.wait()
        return consume(Queue(url, name) if own else shared)

    child = Child(work)
    shared.close()
    with Beside(url, name), Queue(url, name) as mine:
        go.open()
        committed = consume(mine) + child.result()
    with Queue(url, name) as queue:
        committed += consume(queue)
    assert len(committed) == len(set(committed)) == 101


def test_workers_of_a_server_that_loads_its_application_before_it_forks(shared, url, name):
    """As `gunicorn --preload`: a worker that dies is forked again, by a master that uses the queue too."""

    def worker(number):
        def serve():
            shared.push(f"first of {number}")
            with Queue(url, name) as own:
                own.push(f"second of {number}")
            if number < 3:
                os.kill(os.getpid(), 9)

        return serve

    first = [Child(worker(number)) for number in range(3)]
    for one in first:
        os.waitpid(one.pid, 0)
    shared.push("master")
    for one in [Child(worker(number)) for number in range(3, 5)]:
        one.result()
    pushed = [f"{which} of {number}" for which in ("first", "second") for number in range(5)]
    assert all_payloads(url, name) == sorted([*pushed, "master", "parent"])


def test_workers_are_forked_while_threads_use_the_client_of_their_parent(shared, url, name):
    """A lock that a thread of the parent holds stops no child."""
    done = threading.Event()

    def push():
        with Queue(shared.store, name) as mine:
            while not done.is_set():
                mine.push("thread")

    threads = [threading.Thread(target=push) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        for number in range(4):
            in_child(lambda number=number: shared.push(f"child {number}"))
    finally:
        done.set()
        for one in threads:
            one.join(60)
    with open_store(url) as store:
        found = [one for batch in store.peek(name) for one in batch.column("payload").to_pylist()]
    assert sum(b"child" in one for one in found) == 4


@pytest.mark.parametrize("way", ["reserve", "iterate"])
def test_parent_and_child_go_on_with_the_same_client(way, shared, url, name):
    """Neither gets what the other has reserved, and one that ends releases nothing of the other."""
    shared.push_many(range(39))
    found = shared.messages(timeout=0, prefetch=5)

    def take(rows):
        taken = shared.reserve(rows) if way == "reserve" else [next(found) for _ in range(rows)]
        assert shared.commit(*taken[1:]) == rows - 1
        return [one.id for one in taken]

    mine = take(3)
    child = Child(lambda: take(7))
    mine += take(4)
    theirs = child.result()
    mine += take(4)
    assert len({*mine, *theirs}) == 18
    held = sum(one.rows for one in shared.store.reservations(name))
    assert held >= 3, "what the parent has not settled it still holds"
    shared.close()
    with Queue(url, name) as queue:
        assert queue.sizes().total == 40 - 14


def test_a_child_makes_ids_though_a_thread_of_its_parent_did():
    with ids._ids._lock:
        assert in_child(lambda: len(ids.new_ids(3))) == 3


@pytest.mark.parametrize("lock", ["_lock", "_listener_lock"])
def test_a_child_gets_through_a_lock_that_a_thread_of_its_parent_held(shared, lock):
    holder = shared.store if lock == "_listener_lock" else getattr(shared.store, "_connections", shared.store)
    held = getattr(holder, lock, None)
    if held is None:
        pytest.skip("this store has none: see the tests of SQLite's forks")
    with held:
        assert in_child(lambda: shared.push("child"))


def test_events_in_a_fork(url, name):
    go = Gate()

    def work():
        go.wait()
        return events.create("urn:tests", "flight")

    with Events(url, name) as events:
        first = events.create("urn:tests", "flight")
        child = Child(work)
    with Beside(url, f"{name}.other"):
        go.open()
        second = child.result()
    with Events(url, name) as events:
        assert set(events.find("new")) == {first, second}
