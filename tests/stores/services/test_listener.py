"""How the signals of many queues are heard by one thread, without a database."""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
import weakref
from contextlib import contextmanager

import pytest

from spark_queue.errors import AccessDenied, StoreUnavailable
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services.listener import Listener, Signal, SignalsLost, Subscription

#: Seconds that a wait lasts which nothing ends.
HOUR = 3_600


class Wire(Subscription):
    """A connection whose signals a test gives it."""

    def __init__(self, refuses=()):
        self.refuses, self.followed, self.coming = set(refuses), [], queue.Queue()

    def subscribe(self, name):
        self.followed.append(name)
        refused = AccessDenied("no rights") if name in self.refuses else None
        self.coming.put(Signal(name, refused=refused))

    def unsubscribe(self, name):
        self.followed.remove(name)

    def next(self, timeout):
        try:
            one = self.coming.get(timeout=timeout)
        except queue.Empty:
            return []
        if isinstance(one, Exception):
            raise one
        return [] if one is None else [one]

    def wake(self):
        self.coming.put(None)


class Everything(Wire):
    """A connection that brings the signals of all queues."""

    receives_all = True


class World:
    """A listener, what it connects to, and what it learned of pauses."""

    def __init__(self, *wires, **limits):
        self.wires, self.tried, self.learned = list(wires), 0, []
        self.listener = Listener(self.subscribe, lambda *one: self.learned.append(one), StoreLimits(**limits))

    @contextmanager
    def subscribe(self):
        self.tried += 1
        one = self.wires.pop(0)
        if isinstance(one, Exception):
            raise one
        yield one

    def waiter(self, name, count):
        """A thread that waits for another number than this, for an hour if none comes."""
        thread = threading.Thread(target=self.listener.wait, args=(name, count, HOUR), daemon=True)
        thread.start()
        return thread

    def sleeper(self, name):
        """A thread that waits for a signal. It sleeps already."""
        thread = self.waiter(name, self.listener.signal_version(name))
        wait_until(lambda: self.listener._queues[name].waiters, description="that it sleeps")
        return thread

    @property
    def running(self):
        return self.listener._running


@pytest.fixture
def world():
    """Make a listener of these connections."""
    made = []

    def make(*wires, **limits):
        made.append(World(*wires, **limits))
        return made[-1]

    yield make
    for one in made:
        one.listener.close()


#: Limits of a listener that connects again, and drops idle queues, at once.
HASTY = {"reconnect_pause": 0.01, "listener_heartbeat": 0.01}


def ended(thread):
    wait_until(lambda: not thread.is_alive(), description="that it is awake")


@pytest.mark.parametrize("kind", [Wire, Everything])
def test_a_signal_wakes_those_who_wait_for_its_queue_alone(world, kind):
    wire = kind()
    one = world(wire)
    before = {name: one.listener.signal_version(name) for name in "abc"}
    first, second, other = one.sleeper("a"), one.sleeper("a"), one.sleeper("b")
    wire.coming.put(Signal("a", "1"))
    ended(first)
    ended(second)
    assert one.listener.signal_version("a") != before["a"]
    assert one.listener.signal_version("c") == before["c"]
    assert other.is_alive()
    wire.coming.put(Signal("unknown", "1"))
    wire.coming.put(Signal("b", "1"))
    ended(other)
    assert one.tried == 1
    assert sorted(wire.followed) == (["a", "b", "c"] if kind is Wire else [])


def test_a_ring_of_this_process_wakes_as_a_signal_does(world):
    one = world(Wire())
    sleeper = one.sleeper("a")
    one.listener.notify("b")
    one.listener.notify("a")
    ended(sleeper)


def test_a_pause_is_noticed_and_wakes_no_thread_until_it_ends(world):
    wire = Wire()
    one = world(wire)
    before = one.listener.signal_version("a")
    wire.coming.put(Signal("b", "p true"))
    wire.coming.put(Signal("a", "p true"))
    wait_until(lambda: one.learned == [("a", True)])
    assert one.listener.signal_version("a") == before
    sleeper = one.sleeper("a")
    wire.coming.put(Signal("a", "p false"))
    ended(sleeper)
    assert one.learned == [("a", True), ("a", False)]


def test_a_listener_that_cannot_hear_says_so_once_and_tries_again(world, caplog):
    last = Wire()
    failures = [*[StoreUnavailable("no server there")] * 3, StoreUnavailable("still none")]
    one = world(*failures, last, listen_timeout=HOUR, **HASTY)
    with caplog.at_level(logging.WARNING):
        first = one.listener.signal_version("a")  # it does not wait for an hour
        wait_until(lambda: one.tried == 5)
        wait_until(
            lambda: one.listener.signal_version("a") != first, description="that it is awake, for it hears now"
        )
    assert [record.getMessage() for record in caplog.records] == [
        "signals are not received, so waiting clients poll: no server there"
    ]


def test_while_it_cannot_hear_a_new_queue_does_not_wait_for_it(world):
    one = world(StoreUnavailable("no server there"), listen_timeout=HOUR)
    for name in "abc":
        one.listener.signal_version(name)
    assert one.tried == 1


def test_lost_signals_wake_waiting_threads_without_a_warning(world, caplog):
    first, second = Wire(), Everything()
    one = world(first, second, **HASTY)
    with caplog.at_level(logging.WARNING):
        sleeper = one.sleeper("a")
        first.coming.put(SignalsLost())
        ended(sleeper)
        sleeper = one.sleeper("a")
        second.coming.put(Signal("a", "1"))
        ended(sleeper)
    assert not caplog.records


def test_one_that_is_lost_each_time_is_not_tried_without_end(world):
    def lost():
        wire = Wire()
        wire.coming.put(SignalsLost())
        return wire

    one = world(*(lost() for _ in range(1_000)))
    one.listener.signal_version("a")
    time.sleep(0.2)
    assert one.tried <= 2


def test_a_queue_that_is_refused_keeps_no_other_from_being_heard(world, caplog):
    wire = Wire(refuses="ab")
    one = world(wire, **HASTY, listen_timeout=HOUR, max_reconnect_pause=0.05)
    with caplog.at_level(logging.WARNING):
        for name in "abc":
            one.listener.signal_version(name)
        sleeper = one.sleeper("c")
        wire.coming.put(Signal("c", "1"))
        ended(sleeper)
        sleeper = one.sleeper("a")
        wire.refuses.clear()
        ended(sleeper)  # it was followed again
    assert [record.getMessage() for record in caplog.records] == [
        "signals of queue 'a' are not received, so its waiting clients poll: no rights"
    ]
    assert one.tried == 1


@pytest.mark.parametrize("kind", [Wire, Everything])
def test_idle_queues_are_forgotten_and_the_thread_ends_then(world, kind):
    first, second = kind(), kind()
    one = world(first, second, **HASTY, idle_timeout=0.05)
    sleeper = one.sleeper("a")
    old = one.listener.signal_version("b")
    wait_until(lambda: "b" not in one.listener._queues, description="that b is forgotten")
    wait_until(lambda: first.followed == ["a"] * (kind is Wire), description="that the database knows it")
    assert sleeper.is_alive()
    ended(one.waiter("b", old))  # what came meanwhile was not heard, so it looks again
    first.coming.put(Signal("a", "1"))
    ended(sleeper)
    wait_until(lambda: not one.running, description="the end of its thread")
    assert not one.listener._queues
    sleeper = one.sleeper("a")
    second.coming.put(Signal("a", "1"))
    ended(sleeper)


def test_no_more_queues_are_kept_than_is_allowed_and_those_waited_for_last(world):
    wire = Wire()
    one = world(wire, **HASTY, idle_queues=10)
    sleeper = one.sleeper("first")
    for number in range(300):
        one.listener.signal_version(f"q{number}")
    wait_until(lambda: len(wire.followed) == 11)
    assert set(wire.followed) == {"first", *(f"q{number}" for number in range(290, 300))}
    assert set(one.listener._queues) == set(wire.followed)
    assert sleeper.is_alive()


def test_a_close_ends_all_waits_and_the_thread(world):
    one = world(Wire())
    sleepers = [one.sleeper(name) for name in "abc"]
    one.listener.close()
    for sleeper in sleepers:
        ended(sleeper)
    wait_until(lambda: not one.running, description="the end of its thread")
    ended(one.waiter("d", one.listener.signal_version("d")))  # a closed one keeps no thread asleep
    assert not one.running


def test_a_listener_without_references_ends():
    one = World(Wire(), **HASTY, idle_timeout=0.05)
    one.listener.signal_version("a")
    gone = weakref.ref(one)
    del one
    wait_until(lambda: gc.collect() is not None and gone() is None, description="the end of its thread")


def test_a_thread_that_failed_is_started_again(world, monkeypatch):
    hook = []
    monkeypatch.setattr(threading, "excepthook", hook.append)
    one = world(ZeroDivisionError(), Wire(), listen_timeout=0.01)
    one.listener.signal_version("a")
    wait_until(lambda: hook)
    one.listener.signal_version("a")
    wait_until(lambda: one.listener._subscription)


def test_no_number_of_a_listener_comes_again_in_another(world):
    first, second = world(Everything()), world(Everything())
    old = first.listener.signal_version("a")
    first.listener.close()
    ended(second.waiter("a", old))
