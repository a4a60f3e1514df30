"""An iteration over a queue: what counts as a try, what is renewed, what is skipped and what goes back."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import threading

import pytest

from spark_queue import OptionError, Queue
from spark_queue.consuming import iteration
from spark_queue.errors import StoreUnavailable
from spark_queue.messages.buckets import Buckets
from spark_queue.stores.conformance.waiting import end_lease, wait_until

#: A program that iterates, says what it has got, and stays in its work on the last of them.
WORKER = """
import sys, time
from spark_queue import Queue
queue = Queue(sys.argv[1], sys.argv[2], lease=600, max_tries=1)
for number, message in enumerate(queue.messages(prefetch=int(sys.argv[3])), 1):
    print(message.id, flush=True)
    if number == int(sys.argv[4]):
        time.sleep(600)
    queue.commit(message)
"""


@pytest.fixture
def queue(url, name):
    with Queue(url, name) as opened:
        yield opened


@pytest.fixture
def later(monkeypatch):
    """A function that lets seconds pass by the client's clock."""
    passed = [0.0]
    clock = iteration.seconds
    monkeypatch.setattr(iteration, "seconds", lambda: clock() + passed[0])
    return lambda more: passed.__setitem__(0, passed[0] + more)


def tries(url, name):
    """The tries of the messages of a queue by their payload; all leases end before."""
    with Queue(url, name) as queue:
        for one in queue.store.reservations(name):
            end_lease(queue.store, name, one.tag)
        return {one.payload: one.tries for one in queue.reserve(1000)}


def test_it_gives_every_message_and_waits_for_more(queue):
    queue.push_many(list(range(250)))
    seen = []
    for message in queue:
        seen.append(message.payload)
        queue.commit(message)
        if message.payload == 100:
            queue.push("last")
        if message.payload == "last":
            break
    assert seen == [*range(250), "last"]
    assert queue.sizes().total == 0


@pytest.mark.parametrize("prefetch", [1, 2, 100])
def test_with_a_timeout_it_ends(queue, prefetch):
    queue.push_many([1, 2, 3])
    found = queue.messages(timeout=0.1, prefetch=prefetch)
    assert [message.payload for message in found] == [1, 2, 3]
    assert next(found, None) is None, "it stays at its end"


def test_wrong_arguments(queue):
    for wrong in ({"timeout": -1}, {"prefetch": 0}, {"batch_size": 5}):
        with pytest.raises(OptionError):
            queue.messages(**wrong)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("prefetch", [1, 100])
def test_a_killed_program_fails_the_message_that_it_worked_on_alone(url, name, how, prefetch):
    with Queue(url, name, max_tries=1) as queue:
        ids = queue.push_many(range(100))
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, url, name, str(prefetch), "3"], stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            seen = [worker.stdout.readline().strip() for _ in range(3)]
            worker.send_signal(how)
        for one in queue.store.reservations(name):
            end_lease(queue.store, name, one.tag)
        left = [one.id for one in queue.reserve(100)]
        assert seen == ids[:3]
        assert sorted(left) == sorted(ids[3:])
        assert queue.sizes().dead == 1


def test_in_buckets_one_message_counts_too(url, name):
    with Queue(url, name, layout=Buckets(size=50), max_tries=1) as queue:
        queue.push_many(range(100))
        found = queue.messages(prefetch=30)
        queue.commit(next(found))
        assert next(found).payload == 1
        for one in queue.store.reservations(name):
            end_lease(queue.store, name, one.tag)
        with Queue(url, name, max_tries=1) as other:
            assert len(other.reserve(100)) == 98
            assert other.sizes().dead == 1


def test_messages_that_are_kept_count_each(url, name):
    with Queue(url, name) as queue:
        queue.push_many(range(5))
        found = queue.messages()
        kept = [next(found) for _ in range(3)]
        assert [one.payload for one in kept] == [0, 1, 2]
        assert tries(url, name) == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}


@pytest.mark.parametrize("settle", ["commit", "rollback", "dead_letter"])
def test_each_outcome_hands_out_the_next(url, name, settle):
    with Queue(url, name, max_tries=3) as queue:
        queue.push_many(range(3))
        found = queue.messages()
        assert getattr(queue, settle)(next(found)) == 1
        assert next(found).payload == 1
        assert tries(url, name) == {1: 1, 2: 0} | ({0: 1} if settle == "rollback" else {})


@pytest.mark.parametrize("end", ["close", "drop", "exception", "queue"])
@pytest.mark.parametrize("renew", [True, False])
def test_a_message_that_was_not_handed_out_goes_back_to_its_place(url, name, end, renew):
    with Queue(url, name) as queue, Queue(url, name) as other:
        queue.push_many(range(6))
        found = queue.messages(renew=renew)
        first = next(found)
        queue.commit(first)  # that hands out the second, which the program does not get any more
        if end == "close":
            found.close()
            assert next(found, None) is None
        elif end == "exception":
            with pytest.raises(ZeroDivisionError), found:
                raise ZeroDivisionError
        elif end == "queue":
            queue.close()
        else:
            del found
            gc.collect()
            if not renew:  # there is no thread that puts them back: the next call does
                queue.messages()
        wait_until(lambda: other.sizes().ready == 5)
        taken = other.reserve(100)
        assert [one.payload for one in taken] == [1, 2, 3, 4, 5]
        assert {one.tries for one in taken} == {0}


def test_a_message_can_be_settled_after_its_iteration(url, name):
    with Queue(url, name) as queue:
        queue.push_many(range(3))
        with queue.messages() as found:
            first, second = next(found), next(found)
        assert queue.commit(first) == queue.rollback(second) == 1
        assert tries(url, name) == {1: 1, 2: 0}


def test_leases_are_renewed_while_the_program_works(url, name):
    with Queue(url, name, lease=0.5) as queue, Queue(url, name) as thief:
        queue.push_many(range(4))
        found = queue.messages()
        next(found)

        def ends():
            return min(one.until or 0 for one in queue.store.reservations(name))

        first = ends()
        wait_until(lambda: ends() > first + 600)
        assert thief.reserve(4) == []
        assert [one.payload for one in (next(found), next(found))] == [1, 2]


def test_without_the_thread_they_are_renewed_between_two_messages(url, name, later):
    with Queue(url, name, lease=3_600) as slow, Queue(url, name) as thief:
        slow.push_many(list(range(5)))
        done = 0
        for message in slow.messages(timeout=0.0, prefetch=5, renew=False):
            assert thief.reserve(5) == []
            done += slow.commit(message)
            later(1_300)
            if done < 5:
                end_lease(slow.store, name, slow.consumer)
        assert done == 5


def test_they_are_renewed_no_more_than_they_must(queue, later, monkeypatch):
    renewed = []
    monkeypatch.setattr(queue.store, "renew", lambda *_: renewed.append(1) or 0)
    queue.push_many(list(range(6)))
    for _ in queue.messages(timeout=0.0, prefetch=6):
        later(25)  # of a lease of 120
    assert len(renewed) == 2


def test_a_renewal_that_fails_is_logged_and_tried_again(url, name, monkeypatch, caplog):
    with Queue(url, name, lease=0.2) as queue:
        queue.push_many(range(2))
        real, calls = queue.store.renew, []

        def renew(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                raise StoreUnavailable("the database is away")
            return real(*arguments)

        monkeypatch.setattr(queue.store, "renew", renew)
        found = queue.messages()
        next(found)
        wait_until(lambda: len(calls) > 2)
        assert "could not be renewed: the database is away" in caplog.text


def test_an_error_leaves_the_message_to_the_next_call(url, name, monkeypatch):
    with Queue(url, name) as queue:
        queue.push_many(range(3))
        found = queue.messages()

        def away(*_):
            raise StoreUnavailable("the database is away")

        seen = []
        for call in ("hand_out", "settle_and_hand_out", "hand_out"):
            with monkeypatch.context() as broken:
                broken.setattr(queue.store, call, away)
                with pytest.raises(StoreUnavailable):
                    queue.commit(*seen[-1:]) if call == "settle_and_hand_out" else next(found)
            seen.append(next(found))
        assert [one.payload for one in seen] == [0, 1, 2]
        assert queue.commit(*seen) == 3


def test_no_renewal_calls_a_client_that_is_closed(sqlite_url, monkeypatch):
    with Queue(sqlite_url, "work", lease=0.15) as queue:
        queue.push_many(range(3))
        next(queue.messages())
        began, calls, real = threading.Event(), [], queue.store.renew

        def renew(*arguments):
            began.set()
            calls.append(real(*arguments))

        monkeypatch.setattr(queue.store, "renew", renew)
        found = queue.messages()
        next(found)
        assert began.wait(30)
        queue.close()
        done = len(calls)
        wait_until(lambda: not any(one.name == "spark_queue renewal" for one in threading.enumerate()))
        assert len(calls) == done


def test_what_was_lost_is_skipped_with_one_warning(url, name, caplog):
    with Queue(url, name) as queue, Queue(url, name) as thief:
        queue.push_many(range(6))
        found = queue.messages(renew=False)
        assert next(found).payload == 0
        end_lease(queue.store, name, queue.consumer)
        stolen = thief.reserve(4)
        assert len(stolen) == 4
        queue.push_many([6, 7])
        rest = [one.payload for one in [next(found), next(found)]]
        assert set(rest).isdisjoint(one.payload for one in stolen)
        assert thief.commit(*stolen) == 4
        warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "their lease ended" in warnings[0].getMessage()


def test_what_was_lost_while_the_program_stood_still_is_skipped(url, name, later):
    with Queue(url, name) as queue, Queue(url, name) as thief:
        queue.push_many(range(3))
        found = queue.messages(renew=False)
        queue.commit(next(found))  # that hands out the second
        end_lease(queue.store, name, queue.consumer)
        (stolen, _) = thief.reserve(2)
        later(121)
        queue.push("new")
        assert next(found).payload == "new"
        assert thief.commit(stolen) == 1


def test_a_dropped_iteration_calls_no_database(sqlite_url, monkeypatch):
    """It may be dropped anywhere: within a transaction of the same store, for example."""
    with Queue(sqlite_url, "work") as queue:
        queue.push_many(range(3))
        found = queue.messages(renew=False)
        next(found)
        with monkeypatch.context() as away:
            away.setattr(queue.store, "_attempt", lambda *_: pytest.fail("the database is called"))
            del found
            gc.collect()
        assert queue.store.sizes("work").reserved == 3
        assert [one.payload for one in queue.reserve(3)] == [1, 2], "the next call has put them back"


def test_its_thread_ends_with_it(url, name):
    def threads():
        return [one for one in threading.enumerate() if one.name == "spark_queue renewal"]

    before = len(threads())
    with Queue(url, name) as queue:
        queue.push_many(range(3))
        found = queue.messages()
        next(found)
        assert len(threads()) == before + 1
        del found
        wait_until(lambda: len(threads()) == before)
