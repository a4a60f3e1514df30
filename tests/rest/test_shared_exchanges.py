"""Servers that share exchanges: what callers create runs in one of them, and in another when that one is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import httpx
import pytest

from spark_queue import Queue, open_store
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from spark_queue.runner.declared import DeclaredExchanges
from spark_queue.stores.conformance.waiting import wait_until
from tests.rest.in_process import calling
from tests.rest.test_keuss_exchanges import two_stores
from tests.serving import serving

#: How long everything may take on a busy machine (s).
LONG = 120

DECLARATION = {
    "src": "ns1/in",
    "dst": [{"queue": "even", "selector": "payload:n::int % 2 = 0"}, {"ns": "ns2", "queue": "all"}],
    "consumer": {"wsize": 200},
}


class Pushing:
    """Pushes 400 numbers a second, until it is stopped."""

    def __init__(self, url):
        self.total, self._url, self._ending = 0, url, threading.Event()
        self._thread = threading.Thread(target=self._push)
        self._thread.start()

    def _push(self):
        with Queue(self._url, "in") as queue:
            while not self._ending.wait(0.05):
                queue.push_many([{"n": self.total + n} for n in range(20)])
                self.total += 20

    def stop(self):
        self._ending.set()
        self._thread.join()
        return self.total


def count_numbers(url, queue):
    with Queue(url, queue) as opened:
        return Counter(one.payload["n"] for one in opened.peek(limit=1_000_000))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_server_is_killed_and_another_goes_on_with_nothing_lost_or_doubled(scheme, tmp_path):
    with two_stores(scheme, tmp_path / "stores") as urls:
        one, two = urls
        args = [word for ns, url in zip(("ns1", "ns2"), urls, strict=True) for word in ("--url", f"{ns}={url}")]
        args += ["--run", "--checkpoint-root", tmp_path / "checkpoints"]
        with serving(tmp_path, *args) as first, serving(tmp_path, *args) as second:
            assert httpx.put(f"{first.url}/x/routes", json=DECLARATION, timeout=60).status_code == 201
            assert httpx.get(f"{second.url}/x/routes").json()["declared"] is True
            pushing = Pushing(one)
            try:
                wait_until(lambda: len(count_numbers(two, "all")) > 200, LONG)
                status = httpx.get(f"{first.url}/x/routes").json()
                [victim] = [one for one in (first, second) if f"process {one.process.pid} on" in status["server"]]
                [other] = [server for server in (first, second) if server is not victim]
                os.kill(victim.process.pid, signal.SIGKILL)
                before = len(count_numbers(two, "all"))
                wait_until(lambda: len(count_numbers(two, "all")) > before + 200, LONG)
            finally:
                total = pushing.stop()
            wait_until(lambda: len(count_numbers(two, "all")) == total, LONG)
            wait_until(
                lambda: count_numbers(one, "in") == Counter(), LONG, description="the last reservation is gone"
            )
            assert count_numbers(two, "all") == Counter(range(total)), "each number once"
            assert count_numbers(one, "even") == Counter(range(0, total, 2))
            status = httpx.get(f"{other.url}/x/routes").json()
            assert status["running"] and status["server"].startswith(f"process {other.process.pid} ")
            assert other.stop() == 0
        with serving(tmp_path, *args) as third:
            status = httpx.get(f"{third.url}/x/routes").json()
            assert status["dst"][0]["selector"] == DECLARATION["dst"][0]["selector"], "it is there after a restart"
            httpx.put(f"{third.url}/q/ns1/in", json={"n": total})
            wait_until(lambda: len(count_numbers(two, "all")) == total + 1, LONG)
            assert count_numbers(two, "all") == Counter(range(total + 1))
            assert httpx.delete(f"{third.url}/x/routes").status_code == 201
            assert httpx.get(f"{third.url}/x").json() == {}
            wait_until(lambda: count_numbers(one, "in") == Counter(), LONG)


# --- a server without Spark -----------------------------------------------------------------------


@pytest.fixture
def viewing(tmp_path):
    """A server that runs nothing, and what another one has declared in its database."""
    url = f"sqlite:///{tmp_path}/queues.db"
    graph = Graph({"ns1": Namespace(url), "ns2": Namespace(f"sqlite:///{tmp_path}/other.db")})
    with open_store(url) as store, open_store(f"sqlite:///{tmp_path}/other.db") as other:
        declared = DeclaredExchanges(graph, {"ns1": store, "ns2": other})
        declared.add("routes", "ns1", DECLARATION, stopped=False)
        declared.add("broken", "ns2", {"src": "ns2/in", "dst": ["ns9/out"]}, stopped=True)
    with calling(create_app(Settings(graph=graph))) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/x/new"), ("POST", "/x/new"), ("DELETE", "/x/routes"), ("PUT", "/x/routes/start"),
        ("POST", "/x/routes/start"), ("PUT", "/x/routes/stop"), ("POST", "/x/routes/stop"),
    ],
)  # fmt: skip
def test_without_a_session_nothing_is_created_started_or_stopped(viewing, method, path):
    answer = viewing.request(method, path, json=DECLARATION) if path == "/x/new" else viewing.request(method, path)
    assert answer.status_code == 409
    assert "this server runs no exchanges: start it with spark-queue serve --run" in answer.json()["detail"]
    assert list(viewing.get("/x").json()) == ["broken", "routes"]


def test_without_a_session_all_is_shown(viewing):
    found = viewing.get("/x").json()
    assert found["routes"]["state"] == "stopped" and not found["routes"]["running"] and not found["routes"]["stopped"]
    assert found["routes"]["consumer"]["wsize"] == found["routes"]["wsize"] == 200
    assert "unknown namespace 'ns9'" in found["broken"]["error"] and found["broken"]["stopped"] is True
    assert viewing.get("/x/route").json()["detail"] == "no such exchange [route]; did you mean 'routes'?"
    assert viewing.request("PUT", "/x/routes/reset").status_code == 201


def test_without_java_it_says_what_to_install(tmp_path):
    args = ["--url", f"ns1=sqlite:///{tmp_path}/queues.db", "--run", "--checkpoint-root", tmp_path / "checkpoints"]
    with pytest.raises(AssertionError) as refused, serving(tmp_path, *args, env={"JAVA_HOME": "/nonexistent"}):
        pass
    said = str(refused.value)
    assert "Spark does not start: " in said and "Java 17 or later: install it, or set JAVA_HOME" in said
    assert "Traceback" not in said


def test_a_checkpoint_root_is_for_a_server_that_runs(tmp_path):
    args = ["--url", f"ns1=sqlite:///{tmp_path}/queues.db", "--checkpoint-root", tmp_path]
    with pytest.raises(AssertionError, match="--checkpoint-root is for --run: add --run"), serving(tmp_path, *args):
        pass
