"""One wait for several queues and logs, in the thread of the caller."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from spark_queue import open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import DEADLINE, wait_until
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.support.waiting import AwaitedQueue, Bell, NextCheck, wait_for_queues

LONG = DEADLINE * 1000


@pytest.fixture
def asleep(monkeypatch):
    """Set when a wait for several queues has found nothing, and sleeps."""
    came, sleep = threading.Event(), Bell.sleep

    def spy(*arguments):
        came.set()
        sleep(*arguments)

    monkeypatch.setattr(Bell, "sleep", spy)
    return came


class Waiting:
    """A wait in a thread."""

    def __init__(self, awaited, **how):
        self.found = []
        self.thread = threading.Thread(target=lambda: self.found.append(wait_for_queues(awaited, LONG, **how)))
        self.thread.start()

    def end(self):
        self.thread.join(DEADLINE)
        return self.found


@pytest.fixture
def stores(url):
    """Four stores of one database, as the inputs of a query have them."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_store(url)) for _ in range(4)]
        opened[0].now()
        yield opened


def test_a_message_of_any_queue_ends_it(stores, name, asleep):
    queues = [AwaitedQueue(store, f"{name}.{n}") for n, store in enumerate(stores)]
    waiting = Waiting(queues)
    assert asleep.wait(DEADLINE)
    assert waiting.thread.is_alive()
    with open_store(stores[0].url) as other:
        other.push(f"{name}.3", pushes([1]))
    assert waiting.end() == [True]


def test_it_waits_for_all_of_them(stores, name, asleep):
    queues = [AwaitedQueue(store, f"{name}.{n}") for n, store in enumerate(stores)]
    waiting = Waiting(queues, enough=all)
    for n in range(4):
        assert waiting.thread.is_alive()
        asleep.clear()
        assert asleep.wait(DEADLINE)
        stores[0].push(f"{name}.{n}", pushes([1]))
    assert waiting.end() == [True]


def test_it_has_no_thread_for_each_queue_and_one_connection_for_signals(stores, name, asleep):
    waiting = Waiting([AwaitedQueue(stores[n % 4], f"{name}.{n}") for n in range(20)])
    assert asleep.wait(DEADLINE)
    ours = [one.name for one in threading.enumerate() if one.name.startswith("spark_queue")]
    assert len(ours) <= 1, f"one receives the signals: {ours}"
    stores[1].push(f"{name}.17", pushes([1]))
    assert waiting.end() == [True]


@with_limits(poll_interval_ms=10)
def test_signals_may_be_lost(stores, name, asleep, monkeypatch):
    monkeypatch.setattr(Bell, "_ring", lambda *_: None)
    waiting = Waiting([AwaitedQueue(store, f"{name}.{n}") for n, store in enumerate(stores)])
    assert asleep.wait(DEADLINE)
    stores[0].push(f"{name}.2", pushes([1]))
    assert waiting.end() == [True]


def test_it_ends_with_its_time_or_with_a_store(stores, name, asleep):
    queues = [AwaitedQueue(store, f"{name}.{n}") for n, store in enumerate(stores)]
    begun = time.monotonic()
    assert not wait_for_queues(queues, 20)
    assert time.monotonic() - begun >= 0.02


def test_a_log_wakes_by_what_another_reader_seals(stores, name, asleep):
    one, other = Log(stores[0], name), Log(stores[1], name)
    end = one.end()
    waiting = Waiting([one.awaited(end), AwaitedQueue(stores[2], f"{name}.other")])
    assert asleep.wait(DEADLINE)
    stores[3].push(name, pushes([1]))
    wait_until(lambda: other.latest().position == 1)
    assert waiting.end() == [True]


@pytest.mark.parametrize(
    ("answer", "interval", "expected"),
    [(None, 5.0, (5.0, True)), (200, 5.0, (0.2, False)), (60_000, 5.0, (5.0, True)), (5_000, 5.0, (5.0, False))],
)
def test_when_to_ask_again(answer, interval, expected):
    assert NextCheck.after(answer, interval) == expected
