"""A server whose Spark process dies: what runs then, and which exchange is stopped.

The process of these tests does not die, since all tests share it: the server only believes so.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import pytest
from pyspark.sql import functions as F

from spark_queue.errors import SparkUnavailable
from spark_queue.graph.exchange import Destination, Exchange
from spark_queue.graph.parts import ConsumerSettings
from spark_queue.graph.validation import with_step
from spark_queue.runner import server_spark, shared_graph
from spark_queue.runner.declared import DeclaredExchanges, parse_declaration
from spark_queue.runner.work import is_free
from spark_queue.stores.conformance.waiting import wait_until
from tests.runner.test_shared_graph import servers

__all__ = ["servers"]

pytestmark = pytest.mark.timeout(180)


def wait_for(file):
    """Return a selector whose batch lasts until there is this file."""
    path = str(file)

    def select(env):
        @F.udf("boolean")
        def exists(_):
            while not os.path.exists(path):
                time.sleep(0.05)
            return True

        return exists(env.payload)

    return select


@pytest.fixture
def die(monkeypatch):
    """Make the server believe that its Spark process has died."""
    dead = threading.Event()
    monkeypatch.setattr(server_spark, "is_running", lambda _: not dead.is_set())
    monkeypatch.setattr(server_spark, "forget_session", lambda _: dead.clear())
    return dead.set


@pytest.fixture
def free_later(monkeypatch):
    """Let the reader of a step end later than the process of Spark: after `free_later(name)`, it is not free once."""
    held = set()

    def is_free_now(stores, name, step):
        if name in held:
            held.remove(name)
            return False
        return is_free(stores, name, step)

    monkeypatch.setattr(shared_graph, "is_free", is_free_now)
    return held.add


def test_those_with_a_batch_in_work_start_alone_and_one_that_dies_twice_is_stopped(
    servers, die, free_later, tmp_path
):
    bomb, slow = (
        f"{servers.prefix}.bomb",
        Destination(servers.place("ns1/slow").queue, selector=wait_for(tmp_path / "go")),
    )
    step = Exchange(servers.place("ns1/in"), [slow], consumer=ConsumerSettings(wsize=10))
    servers.graph_of_all = with_step(servers.graph_of_all, bomb, step)
    servers.declared = DeclaredExchanges(servers.graph_of_all, servers.stores)
    served = servers.serve()
    served._probation._clock = lambda: 0.0  # the others never wait for too long
    good = servers.create("good", "ns2/in", "ns2/out")
    src, store = servers.place("ns1/in").queue, servers.stores["ns1"]
    wait_until(lambda: sorted(served.running) == [bomb, good], 60)
    servers.push("ns1/in", *({"n": n} for n in range(20)))
    wait_until(lambda: store.reservations(src, bomb), 60)

    def alone():
        run = servers.run(bomb)
        return run.alone, run.deaths, run.state

    for deaths in (0, 1):
        free_later(bomb)
        die()
        wait_until(lambda deaths=deaths: alone() == (True, deaths, "running"), 60)
        assert served.running == [bomb], "it runs alone"
    die()
    wait_until(lambda: servers.declared.load()[bomb].stopped, 60)
    assert "died 2 times while only this exchange was running" in servers.run(bomb).error
    servers.push("ns2/in", {"n": 1})
    wait_until(lambda: servers.numbers("ns2/out") == Counter([1]), 60)
    assert not servers.declared.load()[good].stopped and servers.run(good).error is None
    assert store.reservations(src, bomb), "its batch waits for its next start"

    (tmp_path / "go").touch()
    servers.declared.set_stopped(servers.declared.load()[bomb], False)
    wait_until(lambda: servers.numbers("ns1/slow") == Counter(range(20)), 90)
    wait_until(lambda: not servers.run(bomb).alone)
    assert servers.run(bomb).deaths == 0, "it has done a batch"


def test_while_spark_is_away_nothing_can_be_checked_and_it_is_not_ready(servers, monkeypatch):
    served = servers.serve()
    exchange = {"src": str(servers.place("ns1/in")), "dst": [{"queue": "out", "selector": "payload:n::int > 1"}]}
    step = parse_declaration(servers.graph_of_all, "x", exchange)
    served.check("x", step)
    monkeypatch.setattr(server_spark, "is_running", lambda _: False)
    entered, ended = threading.Event(), threading.Event()

    def start_slowly(_):
        entered.set()
        ended.wait(60)
        monkeypatch.undo()

    monkeypatch.setattr(server_spark, "forget_session", start_slowly)
    try:
        wait_until(entered.is_set, 30)
        assert not served.is_alive
        with pytest.raises(SparkUnavailable, match="is started again: try again"):
            served.check("x", step)
        with pytest.raises(SparkUnavailable, match="is started again: try again"):
            served.measure("x", step)
    finally:
        ended.set()
    wait_until(lambda: served.is_alive, 30)
    served.check("x", step)


def test_an_error_while_spark_dies_is_one_of_spark(servers, monkeypatch):
    served = servers.serve()
    monkeypatch.setattr(served._graph, "check", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        served.check("x", None)
    monkeypatch.setattr(server_spark, "forget_session", lambda _: monkeypatch.undo())

    def die(*_):
        monkeypatch.setattr(server_spark, "is_running", lambda _: False)
        raise ConnectionRefusedError

    monkeypatch.setattr(served._graph, "check", die)
    with pytest.raises(SparkUnavailable, match="died meanwhile"):
        served.check("x", None)
    wait_until(lambda: served.is_alive, 30)


def test_what_the_server_does_if_spark_does_not_start(servers, die, monkeypatch, caplog):
    served = servers.serve()
    name = servers.create("x", "ns1/in", "ns1/out")
    wait_until(lambda: name in served.running, 60)
    opened = served._spark._get_spark

    def fail():
        raise OSError("no memory")

    monkeypatch.setattr(served._spark, "_get_spark", fail)
    monkeypatch.setattr(shared_graph, "SPARK_RETRY_SECONDS", 0.1)  # of the server's graph
    die()
    wait_until(lambda: "Spark cannot start, which is retried" in caplog.text, 30)
    wait_until(lambda: servers.run(name).owner is None, 30, description="another server may run it")
    monkeypatch.setattr(served._spark, "_get_spark", opened)
    servers.push("ns1/in", {"n": 1})
    wait_until(lambda: servers.numbers("ns1/out") == Counter([1]), 60)


def test_a_server_with_another_folder_settles_what_the_last_one_had_in_work(servers, tmp_path):
    """Each container has a folder of its own: the checkpoint of the last one is not there."""
    name, slow = (
        f"{servers.prefix}.x",
        Destination(servers.place("ns1/slow").queue, selector=wait_for(tmp_path / "go")),
    )
    step = Exchange(
        servers.place("ns1/in"),
        [Destination(servers.place("ns2/fast").queue), slow],
        consumer=ConsumerSettings(wsize=10),
    )
    servers.graph_of_all = with_step(servers.graph_of_all, name, step)
    servers.declared = DeclaredExchanges(servers.graph_of_all, servers.stores)
    first = servers.serve("one")
    servers.push("ns1/in", *({"n": n} for n in range(25)))
    src, store = servers.place("ns1/in").queue, servers.stores["ns1"]
    wait_until(lambda: [one.rows for one in store.reservations(src) if one.until is None] == [10], 60)
    first.close()
    assert [one.rows for one in store.reservations(src) if one.until is None] == [10], "it was stopped within a batch"
    (tmp_path / "go").touch()
    second = servers.serve("two")
    wait_until(lambda: servers.numbers("ns1/slow") == Counter(range(25)), 90)
    wait_until(lambda: store.reservations(src) == [], 30, description="nothing stays reserved")
    second.close()
    ids = {(tmp_path / one / "_spark_queue_folder").read_text() for one in ("one", "two")}
    assert len(ids) == 2 and servers.run(name).folder in ids
