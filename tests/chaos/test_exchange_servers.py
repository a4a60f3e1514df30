"""Exchanges between two servers, one of which is killed: what waits, what goes on, and that nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

from spark_queue import Queue
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace, Place
from spark_queue.runner import ExchangeGraph
from spark_queue.stores import STORES
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered
from tests.chaos.servers import PASSWORD, Server
from tests.services import ServiceError

pytestmark = pytest.mark.full


@pytest.fixture
def servers(tmp_path):
    """One near by, and one far away."""
    made = []
    try:
        for scheme in (registered.schemes(server=True)[0], registered.schemes(server=True)[-1]):
            kind = STORES[scheme].server
            folder = tmp_path / kind
            folder.mkdir()
            made.append(Server(kind, folder))
        yield made
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    finally:
        for one in made:
            one.kill()
            shutil.rmtree(one.folder)


def test_a_staging_queue_keeps_an_exchange_going_while_a_server_is_away_and_nothing_is_lost(servers, spark, tmp_path):
    near, far = servers
    hasty = {"waitTimeout": "200ms", "retryTimeout": "1s"}
    graph = Graph(
        {"near": Namespace(near.url, hasty), "far": Namespace(far.url)},
        {
            "split": Exchange(Place("in", "near"), [Destination("here"), Destination("to_far")]),
            "carry": Exchange(Place("to_far", "near"), [Destination("there", ns="far")]),
            "direct": Exchange(Place("straight", "near"), [Destination("x"), Destination("y", ns="far")]),
        },
    )

    def push(numbers):
        for queue in ("in", "straight"):
            with Queue(near.url, queue) as client:
                client.push_many([{"n": n} for n in numbers])

    def found(server, queue):
        with Queue(server.url, queue) as client:
            return Counter(one.payload["n"] for one in client.peek(limit=10_000))

    def has(server, queue, count):
        return lambda: found(server, queue) == Counter(range(count))

    running = ExchangeGraph(graph, str(tmp_path / "checkpoints"), initial_backoff=0.2, max_backoff=0.5)
    push(range(100))
    running.start(spark)
    try:
        for server, queue in ((near, "here"), (far, "there"), (near, "x"), (far, "y")):
            wait_until(has(server, queue, 100))

        far.kill()
        push(range(100, 300))
        wait_until(has(near, "here", 300))
        for name in ("carry", "direct"):
            wait_until(lambda name=name: running.status()[name].state == "waiting", pause=0.01)
        status = running.status()
        assert (status["split"].state, status["split"].restarts) == ("running", 0)
        for name in ("carry", "direct"):
            assert status[name].restarts >= 1
            reported = str(status[name].error)
            assert f":***@127.0.0.1:{far.port}" in reported
            assert PASSWORD not in reported
        with Queue(near.url, "to_far") as staging:
            assert staging.sizes().total == 200, "they wait near by"

        far.start()
        for server, queue in ((far, "there"), (near, "x"), (far, "y")):
            wait_until(has(server, queue, 300))
        push(range(300, 310))
        for server, queue in ((near, "here"), (far, "there"), (near, "x"), (far, "y")):
            wait_until(has(server, queue, 310))
        wait_until(lambda: {one.state for one in running.status().values()} == {"running"})
    finally:
        running.stop()
    for queue in ("in", "to_far", "straight"):
        with Queue(near.url, queue) as client:
            assert client.sizes().ready == 0
