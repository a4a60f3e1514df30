"""Signals, without a database: what is sent when, and how one is heard."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time

import pytest

from spark_queue.errors import StoreUnavailable
from spark_queue.store import signals
from spark_queue.store.conformance_waiting import until
from spark_queue.store.signals import Ear, Sender
from tests.unit.clock import Clock

#: Seconds after which what should have happened has not.
DEADLINE = 60


@pytest.fixture
def clock(monkeypatch):
    """What windows are measured by: none ends by itself."""
    return Clock(monkeypatch, signals)


@pytest.fixture
def sent():
    return []


def waiting(ear, rung):
    """A thread that waits for a ring; it sleeps already, and for an hour if none comes."""
    thread = threading.Thread(target=ear.wait, args=(rung, 3_600), daemon=True)
    thread.start()
    until(lambda: ear._changed._waiters, what="that it sleeps")
    return thread


def test_the_first_signal_is_sent_at_once_and_the_others_of_a_window_as_one_at_its_end(clock, sent):
    sender = Sender(lambda *one: sent.append(one))
    for mature in (7, 5, 3, 4):
        sender.tell("q", mature)
    assert sent == [("q", 7)]
    clock.advance(0.9 * signals.WINDOW)
    assert len(sent) == 1
    clock.advance(0.2 * signals.WINDOW)
    assert sent[1:] == [("q", 3)]
    sender.tell("q", 9)  # the window of the second has begun
    assert len(sent) == 2
    clock.advance(signals.WINDOW)
    assert sent[2:] == [("q", 9)]
    clock.advance(2 * signals.WINDOW)
    sender.tell("q", 8)
    assert sent[3:] == [("q", 8)], "a window without a signal has ended"


def test_queues_have_windows_of_their_own(clock, sent):
    sender = Sender(lambda *one: sent.append(one))
    for queue in ("a", "b", "a"):
        sender.tell(queue, 0)
    assert sent == [("a", 0), ("b", 0)]


def test_what_waits_for_the_end_of_its_window_is_flushed_once(clock, sent):
    sender = Sender(lambda *one: sent.append(one))
    sender.tell("q", 0)
    sender.tell("q", 5)
    sender.flush()
    assert sent == [("q", 0), ("q", 5)]
    sender.flush()
    clock.advance(2 * signals.WINDOW)
    assert sent == [("q", 0), ("q", 5)]


def test_nothing_is_being_sent_when_a_flush_returns(clock, sent):
    begun, end = threading.Event(), threading.Event()

    def send(*one):
        if one[1]:
            begun.set()
            end.wait(DEADLINE)
        sent.append(one)

    sender = Sender(send)
    sender.tell("q", 0)
    sender.tell("q", 5)
    ending = threading.Thread(target=clock.advance, args=(signals.WINDOW,))
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


def test_none_is_lost_when_many_threads_tell(sent, monkeypatch):
    monkeypatch.setattr(signals, "WINDOW", 0.005)
    sender = Sender(lambda queue, mature: (sent.append(mature), time.sleep(0.001)))

    def tell():
        for _ in range(300):
            sender.tell("q", 1)
            time.sleep(0.0005)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sender.tell("q", -1)
    until(lambda: sent[-1] == -1)


def test_a_fork_does_not_wait_for_its_parents_window(clock):
    there, here = multiprocessing.get_context("fork").Pipe()
    sender = Sender(lambda *one: there.send(one))
    sender.tell("q", 0)
    sender.tell("q", 1)
    assert here.recv() == ("q", 0)
    child = multiprocessing.get_context("fork").Process(target=sender.tell, args=("q", 2))
    child.start()
    child.join()
    assert here.recv() == ("q", 2)
    assert not here.poll(), "the window of the parent has not ended"
    clock.advance(signals.WINDOW)
    assert here.recv() == ("q", 1)


def test_an_ear_rings_for_each_signal_and_wakes_who_waits():
    go = threading.Event()

    def heard():
        yield True
        while True:
            is_signal = go.wait(0.01)
            if is_signal:  # else it may be set by now, and is not heard yet
                go.clear()
            yield is_signal

    ear = Ear("q", heard)
    rung = ear.rung()
    ear.wait(rung, 0.01)
    assert ear.rung() == rung
    sleeping = waiting(ear, rung)
    go.set()
    until(lambda: not sleeping.is_alive(), what="that it is awake")
    assert ear.rung() == rung + 1
    ear.close()


def test_an_ear_that_cannot_hear_says_so_once_and_tries_again(monkeypatch, caplog):
    monkeypatch.setattr(signals, "PAUSE", 0.01)
    tried, go = [], threading.Event()

    def heard():
        tried.append(1)
        if len(tried) < 4:
            raise StoreUnavailable("no server there")
        go.wait()
        yield True
        threading.Event().wait()

    with caplog.at_level(logging.WARNING):
        ear = Ear("q", heard)
        first = ear.rung()
        sleeping = waiting(ear, first)
        go.set()
        until(lambda: not sleeping.is_alive(), what="that it is awake")
    assert ear.rung() == first + 1
    assert [one.getMessage() for one in caplog.records] == [
        "signals of q are not heard, so they are looked for instead: no server there"
    ]


def test_who_waits_goes_on_when_an_ear_is_closed():
    def heard():
        yield True
        while True:
            time.sleep(0.01)
            yield False

    ear = Ear("q", heard)
    until(ear._up.is_set)
    sleeping = waiting(ear, ear.rung())
    ear.close()
    until(lambda: not sleeping.is_alive(), what="that it is awake")
