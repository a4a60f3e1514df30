"""A program that has a queue open forks a server: it answers, and loses nothing, or says why it cannot."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack, contextmanager

import httpx

from spark_queue import Queue
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings
from spark_queue.rest.server import serve
from spark_queue.stores.sqlite import forks
from tests.forked import Beside, Child


@contextmanager
def forked_server(url):
    """A server of this store, in a forked process, as a client that calls it."""
    out, into = os.pipe()

    def work():
        settings = Settings(graph=Graph({"ns": Namespace(url)}))
        serve(settings, port=0, on_started=lambda at: os.write(into, at.encode()) and None)

    child = Child(work)
    try:
        assert select.select([out], [], [], 60)[0], "it does not listen"
        with httpx.Client(base_url=os.read(out, 1_000).decode(), timeout=60) as http:
            yield http
    finally:
        os.kill(child.pid, signal.SIGTERM)
        child.result()
        os.close(out)
        os.close(into)


def answer(response):
    assert response.status_code == 200, response.text
    return response.json()


def test_a_forked_server_loses_and_doubles_nothing(any_url, queue):
    """Its parent closes what it had open, and another program opens the file: SQLite's log begins anew."""
    path = f"/v1/queues/ns/{queue}"
    with Queue(any_url, queue) as mine:
        mine.push("parent")
        mine.sizes()
        with forked_server(any_url) as http:
            answer(http.post(f"{path}/messages", json=[{"payload": "early"}]))
            mine.store.close()
            with Beside(any_url, queue):
                ids = answer(http.post(f"{path}/messages", json=[{"payload": n} for n in range(50)]))["ids"]
                assert answer(http.get(path))["ready"] == 53
                taken = answer(http.post(f"{path}/reserve", json={"limit": 10}))["messages"]
                receipts = [one["receipt"] for one in taken]
                assert answer(http.post(f"{path}/commit", json={"receipts": receipts})) == {"committed": 10}
            assert mine.push("parent again")
            assert answer(http.get(path))["ready"] == 44
        left = {one.id for one in mine.peek(100)}
        assert len(left) == 44 and not left & {one["id"] for one in taken}
        assert set(ids) <= left | {one["id"] for one in taken}


def test_a_server_that_cannot_use_the_file_says_so(sqlite_url, monkeypatch):
    """It was forked within a call to SQLite: it writes nothing."""
    monkeypatch.setattr(forks, "FORK_WAIT", 0.02)
    with Queue(sqlite_url, "q") as mine, ExitStack() as stack:
        mine.push("parent")
        with forks.sqlite_call(sqlite_url):
            http = stack.enter_context(forked_server(sqlite_url))
        for call, body in (("messages", [{"payload": 1}]), ("reserve", {"limit": 1})):
            refused = http.post(f"/v1/queues/ns/q/{call}", json=body)
            said = refused.json()["detail"]
            assert refused.status_code == 502 and "forked while its parent was in a call to a SQLite file" in said
            assert "nothing was written" in said
        assert [http.get(path).status_code for path in ("/health", "/ready")] == [200, 503]
        mine.push("parent again")
        assert [one.payload for one in mine.peek(10)] == ["parent", "parent again"]
