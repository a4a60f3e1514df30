"""A graph that several servers share: each step runs in one of them, and in another if that one ends."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from spark_queue import GraphError
from spark_queue.admin.recovery import recover_consumer
from spark_queue.errors import StoreUnavailable
from spark_queue.graph.model import Graph, Namespace
from spark_queue.runner.declared import DeclaredExchanges, parse_declaration
from spark_queue.runner.runs import load_run
from spark_queue.runner.shared_graph import SharedGraph
from spark_queue.runner.traffic import load_traffic
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.named import NamedStores
from tests.runner.test_exchange import World

pytestmark = pytest.mark.timeout(180)


def settle(url, queue, consumer, sinks, written):
    recover_consumer(url, queue, consumer, sink=sinks, written=written)


class Servers(World):
    """Processes that share a graph, in this process."""

    def __init__(self, spark, urls, prefix, folder, stack):
        super().__init__(spark, urls, prefix, folder)
        self.graph_of_all = Graph({ns: Namespace(url) for ns, url in urls.items()})
        self.stack = stack
        self.stores = stack.enter_context(NamedStores(urls))
        self.declared = DeclaredExchanges(self.graph_of_all, self.stores)

    def serve(self, folder="checkpoints"):
        declared = DeclaredExchanges(self.graph_of_all, self.stores)
        root = str(self.folder / folder)
        made = SharedGraph(declared, self.stores, root, lambda: self.spark, settle)
        self.stack.callback(made.close)
        made.start()
        return made

    def create(self, name, src, *dst, **more):
        declaration = {"src": str(self.place(src)), "dst": [str(self.place(one)) for one in dst], **more}
        self.declared.add(f"{self.prefix}.{name}", src.partition("/")[0], declaration, stopped=False)
        return f"{self.prefix}.{name}"

    def run(self, name):
        one = self.declared.load().get(name)
        return None if one is None else load_run(self.stores[one.ns], one.key)

    def numbers(self, name):
        return Counter(one["n"] for one in self.payloads(name))


@pytest.fixture
def servers(spark, name, tmp_path):
    urls = {ns: f"sqlite:///{tmp_path}/{ns}.db" for ns in ("ns1", "ns2")}
    with ExitStack() as stack:
        yield Servers(spark, urls, name, tmp_path, stack)


def test_one_runs_what_is_declared_and_the_other_goes_on_when_it_ends(servers):
    first, second = servers.serve(), servers.serve()
    name = servers.create("x", "ns1/in", "ns1/out", "ns2/copy")
    servers.push("ns1/in", *({"n": n} for n in range(10)))
    wait_until(lambda: servers.numbers("ns2/copy") == Counter(range(10)), 60)
    wait_until(lambda: servers.run(name).state == "running")
    running = [one for one in (first, second) if name in one.running]
    assert len(running) == 1, "one of them runs it"
    before = servers.run(name).owner
    running[0].close()
    after = servers.run(name).owner
    assert after is None or after.token != before.token, "it has given it up"
    servers.push("ns1/in", *({"n": n} for n in range(10, 20)))
    for queue in ("ns1/out", "ns2/copy"):
        wait_until(lambda queue=queue: servers.numbers(queue) == Counter(range(20)), 60)
    wait_until(lambda: servers.payloads("ns1/in") == [], 30, description="the reservation is gone")


def test_stop_start_and_remove_reach_the_server_that_runs_it(servers):
    first, second = servers.serve(), servers.serve()
    name = servers.create("x", "ns1/in", "ns1/out")
    wait_until(lambda: (one := servers.run(name)) is not None and one.state == "running", 60)
    known = servers.declared.load()[name]
    servers.declared.set_stopped(known, True)
    second.look_now(name)
    wait_until(lambda: servers.run(name).owner is None, 30)
    servers.push("ns1/in", {"n": 1})
    assert servers.run(name).state == "stopped" and servers.numbers("ns1/out") == Counter()
    servers.declared.set_stopped(known, False)
    wait_until(lambda: servers.numbers("ns1/out") == Counter([1]), 60)
    servers.declared.remove(known)
    wait_until(lambda: not servers.declared.load() and not servers.declared.removed, 30)
    assert name not in load_traffic(servers.urls["ns1"]) and load_run(servers.stores["ns1"], known.key) is None
    assert name not in first.running and name not in second.running
    servers.create("x", "ns1/in", "ns2/copy")
    servers.push("ns1/in", {"n": 2})
    wait_until(lambda: servers.numbers("ns2/copy") == Counter([2]), 60), "with another destination"
    assert servers.numbers("ns1/out") == Counter([1])


def test_a_removed_exchange_holds_nothing_and_has_doubled_nothing(servers):
    """Removed within a batch: what it has written is committed, and the rest is free again."""
    first, second = servers.serve(), servers.serve()
    slow = {
        "queue": servers.place("ns1/slow").queue,
        "selector": "length(repeat(left(payload:n::string, 1), 2000000)) > 0",
    }
    dst = [str(servers.place("ns2/fast")), slow]
    name = servers.create("x", "ns1/in", consumer={"wsize": 100}, dst=dst)
    servers.push("ns1/in", *({"n": n} for n in range(1_000)))
    wait_until(lambda: len(servers.payloads("ns2/fast")) >= 100, 60)
    src = servers.place("ns1/in").queue
    wait_until(lambda: servers.stores["ns1"].reservations(src), 60)
    servers.declared.remove(servers.declared.load()[name])
    wait_until(lambda: not servers.declared.load() and not servers.declared.removed, 60)
    assert not first.running and not second.running
    assert servers.stores["ns1"].reservations(src) == []
    left, fast, slow_ones = (servers.numbers(one) for one in ("ns1/in", "ns2/fast", "ns1/slow"))
    assert 0 < len(left) < 1_000, "it was removed in the middle"
    assert fast == slow_ones and fast + left == Counter(range(1_000)), "each number once"


def test_one_that_cannot_start_is_named_and_the_others_run(servers):
    bad = {"src": str(servers.place("ns1/in")), "dst": [{"queue": "out", "selector": "nothing > 1"}]}
    name = f"{servers.prefix}.bad"
    served = servers.serve()
    with pytest.raises(GraphError, match=r"exchange .*bad.*nothing"):
        served.check(name, parse_declaration(servers.graph_of_all, name, bad))
    servers.declared.add(name, "ns1", bad, stopped=False)
    servers.create("good", "ns1/other", "ns1/out")
    servers.push("ns1/other", {"n": 1})
    wait_until(lambda: servers.numbers("ns1/out") == Counter([1]), 60)
    run = servers.run(name)
    assert run.owner is None and run.state == "stopped" and "nothing" in run.error


def test_a_database_that_is_away_keeps_no_other_exchange_waiting(servers, monkeypatch, caplog):
    served = servers.serve()
    servers.create("away", "ns2/in", "ns2/out")
    name = f"{servers.prefix}.away"
    wait_until(lambda: name in served.running, 60)

    def refuse(*_):
        raise StoreUnavailable("no answer")

    gone = servers.stores["ns2"]
    for call in ("notes", "note", "set_note"):
        monkeypatch.setattr(gone, call, refuse)
    servers.create("here", "ns1/in", "ns1/out")
    servers.push("ns1/in", {"n": 1})
    wait_until(lambda: servers.numbers("ns1/out") == Counter([1]), 60)
    assert name in served.running, "what runs there retries by itself"
    assert caplog.text.count("the database of namespace ns2 cannot be reached: its exchanges wait") == 1
    monkeypatch.undo()
    servers.declared.set_stopped(servers.declared.load()[name], True)
    wait_until(lambda: name not in served.running, 60)


def test_an_error_without_a_remedy_ends_it_and_is_seen(servers, monkeypatch, caplog):
    served = servers.serve()
    assert served.is_alive
    monkeypatch.setattr(served, "_look", lambda: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # it would be shown as a warning, and fail the test
    wait_until(lambda: not served.is_alive, 30)
    assert "this server runs no exchanges any more: restart it" in caplog.text
