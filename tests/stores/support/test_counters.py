"""Counts of a client, without a database: when they are written, and each exactly once."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref

import pytest

from spark_queue.errors import AccessDenied, StoreError, StoreUnavailable
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.support import counters, pause
from spark_queue.stores.support.counters import Counters, Statistics
from spark_queue.stores.support.pause import PauseCache
from tests.stores.clock import Clock


def test_what_is_counted_in_a_tenth_of_a_second_is_written_together(monkeypatch):
    clock, written = Clock(monkeypatch, counters), []
    mine = Counters(written.append, StoreLimits())
    for _ in range(1_000):
        mine.add("a", put=2, get=0)
        mine.add("b", reserve=1)
    clock.advance(0.09)
    assert written == []
    clock.advance(0.02)
    assert written == [{"a": {"put": 2_000}, "b": {"reserve": 1_000}}]
    mine.add("a", put=1)
    clock.advance(0.09)
    assert len(written) == 1
    clock.advance(0.02)
    assert written[1] == {"a": {"put": 1}}


def test_nothing_is_written_where_nothing_is_left_to_say():
    written = []
    mine = Counters(written.append, StoreLimits())
    mine.add("a", put=0)
    mine.add("a", commit=1)
    mine.add("a", commit=-1, get=1)
    mine.add("b", commit=1)
    mine.add("b", commit=-1)
    mine.close()
    mine.close()
    assert written == [{"a": {"get": 1}}]


def test_counts_that_cannot_be_written_are_kept_and_logged_once(monkeypatch, caplog):
    tried, written = [], []

    def write(counts):
        tried.append(counts)
        if len(tried) < 4:
            raise StoreUnavailable("no server there")
        written.append(counts)

    mine = Counters(write, StoreLimits(flush_interval=0.01, flush_retry=0.01))
    with caplog.at_level(logging.WARNING):
        mine.add("a", put=1)
        wait_until(lambda: tried)
        mine.add("a", put=2)
        wait_until(lambda: written)
    mine.close()
    total = sum(one["a"]["put"] for one in written)
    assert total == 3
    assert [one.getMessage() for one in caplog.records] == [
        "cannot write the statistics of 'a', they are kept: no server there"
    ]


def test_a_client_that_is_closed_opens_nothing_again(monkeypatch):
    clock, tried = Clock(monkeypatch, counters), []

    def write(counts):
        tried.append(counts)
        raise StoreError("gone")

    mine = Counters(write, StoreLimits())
    mine.add("a", put=1)
    mine.close()
    clock.advance(3_600)
    assert len(tried) == 1
    mine.add("a", put=1)
    clock.advance(StoreLimits.flush_retry)
    assert tried[1:] == [{"a": {"put": 2}}]
    mine.close()
    clock.advance(3_600)
    assert len(tried) == 3


def test_threads_lose_no_count(monkeypatch):
    total, lock = [0], threading.Lock()

    def write(counts):
        with lock:
            total[0] += counts["a"]["put"]

    mine = Counters(write, StoreLimits(flush_interval=0.001))

    def count():
        for turn in range(2_000):
            mine.add("a", put=1)
            if turn % 100 == 0:
                mine.write()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    mine.close()
    assert total == [8_000]


def test_a_fork_writes_its_own_counts_and_not_its_parents(monkeypatch):
    there, here = multiprocessing.get_context("fork").Pipe()
    mine = Counters(lambda counts: there.send((os.getpid(), counts)), StoreLimits(flush_interval=60))
    mine.add("a", put=5)

    def child():
        mine.write()
        mine.add("a", put=1)
        mine.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    mine.close()
    assert sorted((here.recv(), here.recv()), key=lambda one: one[1]["a"]["put"]) == [
        (process.pid, {"a": {"put": 1}}),
        (os.getpid(), {"a": {"put": 5}}),
    ]
    assert not here.poll()


def test_a_process_that_ends_by_itself_writes_what_it_has_counted_and_does_not_wait(tmp_path):
    code = (
        "import sys\n"
        "from spark_queue import open_store\n"
        "from spark_queue.messages.message import pushes\n"
        "from spark_queue.stores.conformance.limits import limits_of\n"
        "store = open_store(sys.argv[1], limits=limits_of(sys.argv[1], flush_interval=3600))\n"
        "store.push('q', pushes(['x'] * 7))\n"
        "raise SystemExit(sys.argv[2] == 'fail' and 'planned')"
    )
    from spark_queue import open_store

    url = f"sqlite:///{tmp_path}/queues.db"
    for number, how in enumerate(("end", "fail"), 1):
        subprocess.run([sys.executable, "-c", code, url, how], timeout=300, stderr=subprocess.DEVNULL, check=False)
        with open_store(url) as store:
            assert store.statistics("q") == Statistics(put=7 * number)


def test_a_client_without_references_is_forgotten(monkeypatch):
    written = []
    mine = Counters(written.append, StoreLimits(flush_interval=0.001))
    mine.add("a", put=1)
    wait_until(lambda: written)
    there = weakref.ref(mine)
    assert there() in counters._written_at_exit
    del mine

    def gone():
        gc.collect()
        return there() is None

    wait_until(gone)


# --- what is known of a pause ---------------------------------------------------------------------


def test_a_flag_is_asked_for_when_what_is_known_is_too_old(monkeypatch):
    clock, asked, flag = Clock(monkeypatch, pause), [], [True]
    mine = PauseCache(lambda queue: asked.append(queue) or flag[0], StoreLimits())
    assert [mine.is_paused("q", 0.05) for _ in range(5)] == [True] * 5
    assert asked == ["q"]
    flag[0] = False
    assert not mine.is_paused("other", 0.05)
    clock.advance(0.04)
    assert mine.is_paused("q", 0.05), "it is believed so long"
    clock.advance(0.02)
    assert not mine.is_paused("q", 0.05)
    mine.update("q", True)
    assert mine.is_paused("q", 0.05)
    assert asked == ["q", "other", "q"]
    mine.discard("q")
    assert not mine.is_paused("q", 0.05)


def test_a_signal_that_comes_while_the_flag_is_read_is_believed():
    mine = PauseCache(lambda queue: mine.update(queue, True) or False, StoreLimits())
    assert mine.is_paused("q", 60)
    assert mine.is_paused("q", 60)


def test_a_queue_whose_flag_may_not_be_read_is_not_paused_and_the_log_says_so_once(caplog):
    def refused(queue):
        raise AccessDenied("not authorized")

    mine = PauseCache(refused, StoreLimits())
    with caplog.at_level(logging.WARNING):
        assert not any(mine.is_paused("q", 0) for _ in range(5))
    assert [one.getMessage() for one in caplog.records] == [
        "cannot read whether queue 'q' is paused, so it is taken as running: not authorized"
    ]


@pytest.mark.parametrize("error", [StoreUnavailable("no server there"), StoreError("wrong password")])
def test_a_flag_that_cannot_be_read_for_another_reason_is_an_error(error):
    def failing(queue):
        raise error

    with pytest.raises(type(error)):
        PauseCache(failing, StoreLimits()).is_paused("q")


def test_no_more_queues_are_known_than_is_allowed(monkeypatch):
    mine = PauseCache(lambda queue: queue == "q55", StoreLimits(cached_pauses=10))
    for number in range(100):
        assert mine.is_paused(f"q{number}") is (number == 55)
        mine.update(f"r{number}", True)
        assert mine.is_paused(f"r{number}", 3_600)
        assert len(mine._flags) <= 10
