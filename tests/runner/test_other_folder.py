"""A server with another folder of checkpoints: what stays reserved is in the status, with the way on."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from spark_queue import open_store
from spark_queue.admin.recovery import recover_consumer
from spark_queue.graph.exchange import Destination, Exchange
from spark_queue.graph.model import Graph, Namespace
from spark_queue.graph.parts import ConsumerSettings, Place
from spark_queue.graph.processor import Input, Processor
from spark_queue.graph.validation import with_step
from spark_queue.messages.message import pushes
from spark_queue.rest import Settings, create_app
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.ledger import LEDGER_PREFIX, delete_sink
from spark_queue.stores.services.owner import revoke
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.query_binding import query_bindings
from tests.rest.in_process import calling
from tests.runner.test_shared_graph import Servers
from tests.runner.test_shared_graph_deaths import wait_for

pytestmark = pytest.mark.timeout(180)


def status(graph, name):
    with calling(create_app(Settings(graph=graph))) as client:
        answer = client.get(f"/x/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.mark.full
def test_what_cannot_be_settled_is_in_the_status_with_the_way_on(spark, any_url, name, tmp_path):
    """The ledger is lost too: so it is unknown whether the last batch was written."""
    with ExitStack() as stack:
        urls = {"ns1": any_url, "ns2": f"sqlite:///{tmp_path}/ns2.db"}
        servers = Servers(spark, urls, name, tmp_path, stack)
        exchange, src, go = f"{name}.x", servers.place("ns1/in").queue, tmp_path / "go"
        to = Destination(servers.place("ns2/out").queue, selector=wait_for(go), ns="ns2")
        step = Exchange(servers.place("ns1/in"), [to], consumer=ConsumerSettings(wsize=10))
        servers.graph_of_all = with_step(servers.graph_of_all, exchange, step)
        go.touch()
        first, store = servers.serve("one"), servers.stores["ns1"]
        store.push(src, pushes([{"n": n} for n in range(10)]))
        wait_until(lambda: servers.numbers("ns2/out") == Counter(range(10)), 90)
        wait_until(lambda: store.reservations(src) == [], 30)
        go.unlink()
        store.push(src, pushes([{"n": n} for n in range(10, 20)]))
        wait_until(lambda: [one.rows for one in store.reservations(src) if one.until is None] == [10], 60)
        first.close()
        (tag,) = {one.tag for one in store.reservations(src)}
        consumer = "/".join(tag.split("/")[:2])
        assert status(servers.graph_of_all, exchange)["error"] is None, "its next start goes on"
        (binding,) = query_bindings(store, src, consumer)
        for one in (store, servers.stores["ns2"]):
            for key in list(one.notes(LEDGER_PREFIX)):
                if key.endswith(binding.query):
                    delete_sink(one, key.removeprefix(LEDGER_PREFIX))
        go.touch()

        second = servers.serve("two")
        found = wait_until(lambda: (one := status(servers.graph_of_all, exchange))["error"] and one, 60)
        assert "ran on a server with another folder of checkpoints" in found["error"]
        assert f"spark-queue recover URL {src} {consumer} --written (or --not-written)" in found["error"]
        assert found["pending_acks"] == {tag: {"messages": 10, "until": None}} and not found["running"]
        assert servers.numbers("ns2/out") == Counter(range(10)), "it changed nothing"

        recover_consumer(any_url, src, consumer, written=False)
        second.look_now(exchange)
        wait_until(lambda: servers.numbers("ns2/out") == Counter(range(20)), 90)
        wait_until(lambda: status(servers.graph_of_all, exchange)["pending_acks"] == {}, 30)
        assert status(servers.graph_of_all, exchange)["error"] is None


def test_what_another_checkpoint_holds_is_stuck_while_a_new_one_runs(any_url, name):
    """As if an earlier version had taken over, which knew of no folder."""
    src = f"{name}.in"
    step = Exchange(Place(src, "ns1"), [Destination(f"{name}.out")])
    graph = with_step(Graph({"ns1": Namespace(any_url)}), f"{name}.x", step)
    with open_store(any_url) as store:
        store.push(src, pushes([{"n": n} for n in range(10)]))
        old, new = (Ownership(store, src, f"{name}.x/{epoch}") for epoch in ("e1", "e2"))
        old.take()
        store.reserve(src, f"{name}.x/e1/1.1", 4, lease=None)
        assert status(graph, f"{name}.x")["error"] is None, "it is at work"
        revoke(store, src, f"{name}.x/e1")
        assert status(graph, f"{name}.x")["error"] is None, "its next start goes on"
        new.take()
        store.reserve(src, f"{name}.x/e2/1.1", 3, lease=None)
        found = status(graph, f"{name}.x")
        assert found["cid"] == f"{name}.x/e2" and found["running"]
        assert (
            "4 messages" in found["error"]
            and f"spark-queue recover URL {src} {name}.x/e1 --sink URL" in found["error"]
        )
        assert "e2 --sink" not in found["error"] and len(found["pending_acks"]) == 2
        assert {one["until"] for one in found["pending_acks"].values()} == {None}
        recover_consumer(any_url, src, f"{name}.x/e1", written=False)
        assert status(graph, f"{name}.x")["error"] is None


def test_what_a_step_of_several_sources_holds(any_url, name):
    step = Processor("m:f", in_={one: Input(f"{name}.{one}", "ns1") for one in "ab"})
    graph = with_step(Graph({"ns1": Namespace(any_url)}), f"{name}.x", step)
    with open_store(any_url) as store:
        for queue, rows in ((f"{name}.a", 4), (f"{name}.b", 3)):
            store.push(queue, pushes([{"n": n} for n in range(5)]))
            store.reserve(queue, f"{name}.x/e1/1.1", rows, lease=None)
        found = status(graph, f"{name}.x")
        assert found["pending_acks"] == {f"{name}.x/e1/1.1/0": {"messages": 7, "until": None}}
        new = Ownership(store, f"{name}.b", f"{name}.x/e2")
        new.take()
        found = status(graph, f"{name}.x")
        assert found["cid"] == f"{name}.x/e2" and f"7 messages of queue '{name}.a' and '{name}.b'" in found["error"]
