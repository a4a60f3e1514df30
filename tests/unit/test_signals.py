"""Signals, without a database: what is sent when, and how one is heard."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from functools import partial

import pytest

from spark_queue.errors import StoreUnavailable
from spark_queue.store import signals
from spark_queue.store.signals import Ear, Sender
from tests.chaos import processes

#: Seconds after which what should have happened has not.
DEADLINE = 60

until = partial(processes.until, seconds=DEADLINE, pause=0.002)


@pytest.fixture
def sent(monkeypatch):
    monkeypatch.setattr(signals, "WINDOW", 0.2)
    return []


def test_the_first_signal_is_sent_at_once_and_the_others_of_a_window_as_one_at_its_end(sent):
    sender = Sender(lambda *one: sent.append((time.monotonic(), *one)))
    for mature in (7, 5, 3, 4):
        sender.tell("q", mature)
    assert [one[1:] for one in sent] == [("q", 7)]
    until(lambda: len(sent) == 2)
    assert sent[1][1:] == ("q", 3)
    assert sent[1][0] - sent[0][0] >= 0.19
    sender.tell("q", 9)  # the window of the second has begun
    assert len(sent) == 2
    until(lambda: len(sent) == 3)


def test_queues_have_windows_of_their_own(sent):
    sender = Sender(lambda *one: sent.append(one))
    for queue in ("a", "b", "a"):
        sender.tell(queue, 0)
    assert sent == [("a", 0), ("b", 0)]


def test_what_waits_for_the_end_of_its_window_is_flushed_once(sent):
    sender = Sender(lambda *one: sent.append(one))
    sender.tell("q", 0)
    sender.tell("q", 5)
    sender.flush()
    assert sent == [("q", 0), ("q", 5)]
    sender.flush()
    time.sleep(0.3)
    assert sent == [("q", 0), ("q", 5)]


def test_nothing_is_being_sent_when_a_flush_returns(sent):
    begun, end = threading.Event(), threading.Event()

    def send(*one):
        if one[1]:
            begun.set()
            end.wait(DEADLINE)
        sent.append(one)

    sender = Sender(send)
    sender.tell("q", 0)
    sender.tell("q", 5)
    assert begun.wait(DEADLINE)
    flushing = threading.Thread(target=sender.flush)
    flushing.start()
    flushing.join(0.05)
    assert flushing.is_alive() and sent == [("q", 0)]
    end.set()
    flushing.join(DEADLINE)
    assert not flushing.is_alive() and sent == [("q", 0), ("q", 5)]


def test_none_is_lost_when_many_threads_tell(sent, monkeypatch):
    monkeypatch.setattr(signals, "WINDOW", 0.005)
    told = threading.Event()
    sender = Sender(lambda queue, mature: (sent.append(mature), time.sleep(0.001)))

    def tell():
        for _ in range(300):
            sender.tell("q", 1)
            time.sleep(0.0005)
        told.set()

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sender.tell("q", -1)
    until(lambda: sent[-1] == -1)


def test_a_fork_does_not_wait_for_its_parents_window(sent):
    there, here = multiprocessing.get_context("fork").Pipe()
    sender = Sender(lambda *one: there.send(one))
    sender.tell("q", 0)
    sender.tell("q", 1)
    assert here.recv() == ("q", 0)
    child = multiprocessing.get_context("fork").Process(target=sender.tell, args=("q", 2))
    child.start()
    child.join()
    assert sorted((here.recv(), here.recv())) == [("q", 1), ("q", 2)]


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
    threading.Timer(0.05, go.set).start()
    ear.wait(rung, DEADLINE)
    assert ear.rung() == rung + 1
    ear.close()


def test_an_ear_that_cannot_hear_says_so_once_and_tries_again(monkeypatch, caplog):
    monkeypatch.setattr(signals, "PAUSE", 0.01)
    tried = []

    def heard():
        tried.append(1)
        if len(tried) < 4:
            raise StoreUnavailable("no server there")
        yield True
        threading.Event().wait()

    with caplog.at_level(logging.WARNING):
        ear = Ear("q", heard)
        first = ear.rung()
        ear.wait(first, DEADLINE)
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
    threading.Timer(0.05, ear.close).start()
    ear.wait(ear.rung(), DEADLINE)
