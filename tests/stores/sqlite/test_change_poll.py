"""Threads that wait for a change of a file: one polls, and all of them notice."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from spark_queue.stores.sqlite.change_poll import POLL_INTERVAL, ChangePoll

THREADS, LONG = 32, 60.0


class Number:
    """A number that counts its reads."""

    def __init__(self):
        self.value, self.reads, self.lock = 0, 0, threading.Lock()

    def read(self):
        with self.lock:
            self.reads += 1
            return self.value


def wait_until_all_wait(poll, n):
    while not poll._polling or len(poll._changed._waiters) < n - 1:
        time.sleep(0.001)


def start_waiting(pool, poll, timeout, n):
    """Let one more thread wait, so that n do."""
    one = pool.submit(poll.wait, 0, timeout)
    wait_until_all_wait(poll, n)
    return one


def test_one_thread_polls_and_a_change_wakes_all():
    number = Number()
    poll = ChangePoll(number.read)
    with ThreadPoolExecutor(THREADS) as pool:
        waits = [pool.submit(poll.wait, 0, LONG) for _ in range(THREADS)]
        wait_until_all_wait(poll, THREADS)
        before, began = number.reads, time.monotonic()
        while number.reads < before + 20:
            time.sleep(POLL_INTERVAL)
        assert number.reads - before <= (time.monotonic() - began) / POLL_INTERVAL + 2, "more than one thread polls"
        assert not any(one.done() for one in waits)
        number.value = 1
        began = time.monotonic()
        for one in waits:
            one.result(LONG)
        assert time.monotonic() - began < LONG / 2


def test_when_the_one_that_polls_leaves_another_goes_on():
    number = Number()
    poll = ChangePoll(number.read)
    with ThreadPoolExecutor(3) as pool:
        first = start_waiting(pool, poll, 0.05, 1)
        others = [pool.submit(poll.wait, 0, LONG) for _ in range(2)]
        first.result(LONG)
        wait_until_all_wait(poll, 2)
        number.value = 1
        for one in others:
            one.result(LONG)


def test_a_change_that_only_newer_threads_know_wakes_the_older_ones():
    """The number changed between two looks of the thread that polls; it left, and a newer one came."""
    number = Number()
    poll = ChangePoll(number.read)
    with ThreadPoolExecutor(3) as pool:
        poller, older = start_waiting(pool, poll, 0.2, 1), start_waiting(pool, poll, LONG, 2)
        pool.submit(poll.wait, 1, LONG)  # has seen the change
        older.result(LONG)
        number.value = 2
        poller.result(LONG)


def test_an_error_goes_to_its_thread_and_another_goes_on():
    number = Number()
    broken = threading.Event()

    def read():
        if broken.is_set():
            broken.clear()
            raise OSError("the file is away")
        return number.read()

    poll = ChangePoll(read)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(poll.wait, 0, LONG) for _ in range(2)]
        wait_until_all_wait(poll, 2)
        broken.set()
        while not any(one.done() for one in waits):
            time.sleep(0.001)
        number.value = 1
        errors = [one.exception(LONG) for one in waits]
    assert [type(one) for one in errors if one] == [OSError]


def test_a_forked_process_polls_itself():
    number = Number()
    poll = ChangePoll(number.read)
    with ThreadPoolExecutor(1) as pool:
        waiting = start_waiting(pool, poll, LONG, 1)
        child = os.fork()
        if not child:  # the copy of the thread that polls does not run here
            number.lock = threading.Lock()
            poll.wait(0, 0.05)
            before, began = number.reads, time.monotonic()
            poll.wait(0, 0.1)
            os._exit(0 if number.reads > before and time.monotonic() - began < LONG / 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        number.value = 1
        waiting.result(LONG)
