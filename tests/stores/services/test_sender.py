"""Signals, without a database: what is sent when."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services import signals
from spark_queue.stores.services.signals import SignalSender
from tests.stores.clock import Clock

#: Seconds after which what should have happened has not.
DEADLINE = 60

#: For how long signals of a queue are merged into one (s).
WINDOW = StoreLimits.signal_window


@pytest.fixture
def clock(monkeypatch):
    """What windows are measured by: none ends by itself."""
    return Clock(monkeypatch, signals)


@pytest.fixture
def sent():
    return []


def test_the_first_signal_is_sent_at_once_and_the_others_of_a_window_as_one_at_its_end(clock, sent):
    sender = SignalSender(lambda *one: sent.append(one), WINDOW)
    for mature in (7, 5, 3, 4):
        sender.send_soon("q", mature)
    assert sent == [("q", 7)]
    clock.advance(0.9 * WINDOW)
    assert len(sent) == 1
    clock.advance(0.2 * WINDOW)
    assert sent[1:] == [("q", 3)]
    sender.send_soon("q", 9)  # the window of the second has begun
    assert len(sent) == 2
    clock.advance(WINDOW)
    assert sent[2:] == [("q", 9)]
    clock.advance(2 * WINDOW)
    sender.send_soon("q", 8)
    assert sent[3:] == [("q", 8)], "a window without a signal has ended"


def test_queues_have_windows_of_their_own(clock, sent):
    sender = SignalSender(lambda *one: sent.append(one), WINDOW)
    for queue in ("a", "b", "a"):
        sender.send_soon(queue, 0)
    assert sent == [("a", 0), ("b", 0)]


def test_what_waits_for_the_end_of_its_window_is_flushed_once(clock, sent):
    sender = SignalSender(lambda *one: sent.append(one), WINDOW)
    sender.send_soon("q", 0)
    sender.send_soon("q", 5)
    sender.flush()
    assert sent == [("q", 0), ("q", 5)]
    sender.flush()
    clock.advance(2 * WINDOW)
    assert sent == [("q", 0), ("q", 5)]


def test_nothing_is_being_sent_when_a_flush_returns(clock, sent):
    begun, end = threading.Event(), threading.Event()

    def send(*one):
        if one[1]:
            begun.set()
            end.wait(DEADLINE)
        sent.append(one)

    sender = SignalSender(send, WINDOW)
    sender.send_soon("q", 0)
    sender.send_soon("q", 5)
    ending = threading.Thread(target=clock.advance, args=(WINDOW,))
    ending.start()
    assert begun.wait(DEADLINE)
    flushing = threading.Thread(target=sender.flush)
    flushing.start()
    flushing.join(0.05)
    assert flushing.is_alive() and sent == [("q", 0)]
    end.set()
    for one in (flushing, ending):
        one.join(DEADLINE)
    assert not flushing.is_alive() and sent == [("q", 0), ("q", 5)]


def test_no_signal_is_lost_if_many_threads_send(sent):
    sender = SignalSender(lambda queue, mature: (sent.append(mature), time.sleep(0.001)), 0.005)

    def send():
        for _ in range(300):
            sender.send_soon("q", 1)
            time.sleep(0.0005)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sender.send_soon("q", -1)
    wait_until(lambda: sent[-1] == -1)


def test_a_fork_does_not_wait_for_its_parents_window(clock):
    there, here = multiprocessing.get_context("fork").Pipe()
    sender = SignalSender(lambda *one: there.send(one), WINDOW)
    sender.send_soon("q", 0)
    sender.send_soon("q", 1)
    assert here.recv() == ("q", 0)
    child = multiprocessing.get_context("fork").Process(target=sender.send_soon, args=("q", 2))
    child.start()
    child.join()
    assert here.recv() == ("q", 2)
    assert not here.poll(), "the window of the parent has not ended"
    clock.advance(WINDOW)
    assert here.recv() == ("q", 1)
