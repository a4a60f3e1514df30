"""The process of Spark dies, in a server of its own: its exchanges go on, and one that ends it is stopped."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from spark_queue import Queue
from spark_queue.stores.conformance.waiting import wait_until
from tests.crowds import children
from tests.serving import serving

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

#: How long the exchanges may stand still (s): 60 are promised, on a machine that does nothing else.
STILL = 150

#: How long everything else may take on a busy machine (s).
LONG = 180

GOOD = ("one", "two", "three")


class World:
    """A graph file, its server and its queues."""

    def __init__(self, folder, bomb):
        self.url = f"sqlite:///{folder}/queues.db"
        exchanges: dict[str, Any] = {name: {"src": f"ns/in_{name}", "dst": [f"ns/out_{name}"]} for name in GOOD}
        destination = {"queue": "never", "selector": f"tests.rest.bombs:{bomb}"}
        exchanges["bomb"] = {"src": "ns/bombs", "dst": [destination]}
        file = folder / "graph.yaml"
        file.write_text(yaml.safe_dump({"namespaces": {"ns": {"url": self.url}}, "exchanges": exchanges}))
        self.args = ["--graph", file, "--run", "--checkpoint-root", folder / "checkpoints"]
        self.pushed = 0

    def push(self, *names):
        for name in names:
            with Queue(self.url, f"in_{name}") as queue:
                queue.push_many([{"n": self.pushed + n} for n in range(20)])
        self.pushed += 20

    def arrived(self, name):
        with Queue(self.url, f"out_{name}") as queue:
            return Counter(one.payload["n"] for one in queue.peek(limit=1_000_000))

    def wait_for_all(self, seconds):
        for name in GOOD:
            wait_until(lambda name=name: self.arrived(name) == Counter(range(self.pushed)), seconds)


def status(server, name):
    return httpx.get(f"{server.url}/x/{name}", timeout=30).json()


def javas(server):
    """Return the ids of the processes of Java that a server has started, also of those that have ended."""
    return [pid for pid in children(server.process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]


@pytest.mark.parametrize("bomb", ["exhaust_memory", "exit_java"])
def test_an_exchange_that_ends_spark_is_stopped_and_the_others_go_on(tmp_path, bomb):
    world = World(tmp_path, bomb)
    with serving(tmp_path, *world.args) as server:
        world.push(*GOOD)
        world.wait_for_all(LONG)
        with Queue(world.url, "bombs") as queue:
            queue.push({"n": 1})
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, LONG)
        world.push(*GOOD)
        world.wait_for_all(STILL)
        found = wait_until(lambda: (one := status(server, "bomb"))["stopped"] and one, STILL)
        assert "Spark process died 2 times while only this exchange was running" in found["error"]
        assert "PUT /x/bomb/start" in found["error"] and not found["running"]
        assert sum(one["messages"] for one in found["pending_acks"].values()) == 1, "it holds its message"
        assert not any(status(server, name)["stopped"] for name in GOOD)
        world.push(*GOOD)
        world.wait_for_all(LONG)
        assert server.stop() == 0
    with serving(tmp_path, *world.args) as server:
        world.push(*GOOD)
        world.wait_for_all(LONG)
        assert status(server, "bomb")["stopped"], "also after a restart"
        assert httpx.put(f"{server.url}/x/bomb/start").status_code == 201
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, LONG, description="it runs, and dies")


def test_a_killed_spark_starts_again_and_all_exchanges_go_on(tmp_path):
    world = World(tmp_path, "exit_java")
    declaration = {"src": "ns/in_new", "dst": [{"queue": "out_new", "selector": "payload:n::int >= 0"}]}
    with serving(tmp_path, *world.args) as server:
        world.push(*GOOD)
        world.wait_for_all(LONG)
        for _ in range(2):
            [java] = javas(server)
            os.kill(java, signal.SIGKILL)
            wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, 30)
            answer = httpx.put(f"{server.url}/x/new", json=declaration, timeout=30)
            assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1"), answer.text
            assert "Spark process" in answer.json()["detail"]
            assert httpx.put(f"{server.url}/q/ns/any", json={"n": 1}).status_code == 200, "queues need no Spark"
            world.push(*GOOD)
            world.wait_for_all(STILL)
        wait_until(lambda: httpx.put(f"{server.url}/x/new", json=declaration, timeout=60).status_code == 201, 60)
        assert not any(status(server, name)["stopped"] for name in (*GOOD, "bomb", "new"))
        assert len(javas(server)) == 1, "no dead process stays"
        assert server.stop() == 0
