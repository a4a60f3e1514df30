"""The cases of keuss-server's own test suite, by kind, on each layout that it has: 112 of them.

They are written anew from what the suite asserts. A caller knows what keuss-server's clients know: a bare id settles
a message, a pop without `to` waits.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from spark_queue import open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered
from tests.conftest import store_url
from tests.serving import serving
from tests.tiers import param

RESERVING = ("redis-oq", "mongo", "ps-mongo", "pl-mongo", "bucket-mongo-safe")
PUSHING = ("redis-list", *RESERVING)

#: How long after its moment a message may come (s): machines are noisy, and a clock must not fail a test.
LATE = 10.0

each_layout = pytest.mark.parametrize("layout", [param(one, fast=one == "redis-list") for one in PUSHING])
each_reserving_layout = pytest.mark.parametrize("layout", [param(one, fast=one == "mongo") for one in RESERVING])


@pytest.fixture(scope="module")
def layout_urls(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    kinds = (one.split(" ") for one in registered.kinds())
    return {
        layout: registered.in_layout(store_url(request, scheme, folder), layout)
        for scheme, layout in kinds
        if layout in PUSHING
    }


@pytest.fixture(scope="module")
def keuss_server(layout_urls, tmp_path_factory):
    """A server of all layouts, and one user as keuss-server has them."""
    folder = tmp_path_factory.mktemp("keuss-server")
    spaces = [one for ns, url in layout_urls.items() for one in ("--url", f"{ns}={url}")]
    with serving(folder, *spaces, env={"SPARK_QUEUE_REST_USER": "test1:test1"}) as started:
        yield started


class Server:
    """A client of one queue."""

    def __init__(self, url: str, layout: str, queue: str) -> None:
        self.http = httpx.Client(base_url=url, auth=("test1", "test1"), timeout=120)
        self.layout, self.queue, self.q = layout, queue, f"/q/{layout}/{queue}"
        self._threads = ThreadPoolExecutor(4)

    def put(self, body: object = None, *, content: object = None, media: str = "", **params: object) -> str:
        how = {"json": body} if content is None else {"content": content, "headers": {"content-type": media}}
        answer = self.http.put(self.q, params=params, **how)
        assert answer.status_code == 200
        return str(answer.json()["id"])

    def get(self, **params: object) -> httpx.Response:
        return self.http.get(self.q, params=params)

    def reserve(self, **params: object) -> httpx.Response:
        return self.get(reserve="true", **params)

    def settle(self, outcome: str, id: str, **params: object) -> httpx.Response:
        return self.http.patch(f"{self.q}/{outcome}/{id}", params=params)

    def status(self) -> dict:
        return self.http.get(f"{self.q}/status").json()

    def consumers(self) -> list:
        return self.http.get(f"{self.q}/consumers").json()

    @contextmanager
    def waiting(self, **params: object):
        """A get that waits meanwhile."""
        before = len(self.consumers())
        future: Future[httpx.Response] = self._threads.submit(self.get, **params)
        wait_until(lambda: len(self.consumers()) > before)
        yield future

    def nothing(self) -> None:
        answer = self.get(to=50)
        assert answer.status_code == 504 and answer.json()["timeout"] is True

    def close(self) -> None:
        self._threads.shutdown()
        self.http.close()


@pytest.fixture
def server(keuss_server, layout, queue, layout_urls):
    client = Server(keuss_server.url, layout, queue)
    yield client
    client.close()
    with open_store(layout_urls[layout]) as store:
        store.drop(queue)


# --- push and pop: 7 cases on 6 layouts --------------------------------------------------------------------------


@each_layout
def test_lists_introspection_info(server):
    server.put({"a": 1})
    assert set(server.http.get("/q").json()) == set(PUSHING)
    assert server.queue in server.http.get(f"/q/{server.layout}").json()
    answer = server.status()
    assert {"type", "capabilities", "factory", "stats", "paused", "next_mature_t", "totalSize", "size", "schedSize",
            "resvSize"} <= set(answer)  # fmt: skip
    assert (answer["size"], answer["totalSize"]) == (1, 1)
    assert server.consumers() == []
    assert server.http.get(f"{server.q}/paused").json() is False


BODIES = {
    "JSON": (b'{"a":1,"b":"2"}', "application/json", "application/json; charset=utf-8"),
    "text": (b"aaaaaa", "text/plain", "text/plain"),
    "Buffer": (b"\x00\xff", "application/octet-stream", "application/octet-stream"),
}


@each_layout
@pytest.mark.parametrize("body", BODIES)
def test_a_body_comes_back(server, body):
    content, media, shown = BODIES[body]
    id = server.put(content=content, media=media)
    got = server.get()
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, content, shown)
    assert got.headers["x-ks-id"] == id and got.headers["x-ks-tries"] == "0" and got.headers["x-ks-mature"]
    server.nothing()


@each_layout
def test_pop_and_timeout(server):
    began = time.monotonic()
    answer = server.get(to=300, tid="mine")
    assert answer.status_code == 504 and 0.29 < time.monotonic() - began < LATE
    assert answer.json()["timeout"] is True and answer.json()["tid"] == "mine" and answer.json()["since"]


@each_layout
def test_pop_and_push_later(server):
    with server.waiting() as pop:
        server.put({"late": 1})
        assert pop.result().json() == {"late": 1}


@each_layout
def test_cancel_one_of_two_pops(server):
    with server.waiting(tid="one") as one, server.waiting(tid="two") as two:
        answer = server.consumers()
        assert [each["tid"] for each in answer] == ["one", "two"]
        assert {"tid", "since", "callback", "cleanup_timeout", "wakeup_timeout"} <= set(answer[0])
        cancelled = server.http.delete(f"{server.q}/consumer/one")
        assert (cancelled.status_code, cancelled.content) == (200, b"")
        assert (one.result().status_code, one.result().text) == (410, "cancel")
        server.put("for the other")
        assert two.result().json() == "for the other"


# --- delete: 3 cases on 5 layouts --------------------------------------------------------------------------------


@each_reserving_layout
def test_delete_an_unknown_id(server):
    server.put(1)
    for id in ("112233445566778899001122", "no-such-id", "{}", "x" * 300):
        assert server.http.delete(f"{server.q}/{id}").status_code == 404
    assert server.status()["totalSize"] == 1


@each_reserving_layout
def test_delete_a_message(server):
    ids = [server.put(n) for n in range(3)]
    assert server.http.delete(f"{server.q}/{ids[1]}").status_code == 204
    assert [server.get().json() for _ in range(2)] == [0, 2]
    server.nothing()


@each_reserving_layout
def test_delete_a_deleted_message(server):
    id = server.put(1)
    held = server.put(2)
    assert server.http.delete(f"{server.q}/{id}").status_code == 204
    assert server.http.delete(f"{server.q}/{id}").status_code == 404
    assert server.reserve().headers["x-ks-id"] == held
    assert server.http.delete(f"{server.q}/{held}").status_code == 404  # it is reserved


# --- reserve: 6 cases on 5 layouts -------------------------------------------------------------------------------


@each_reserving_layout
def test_reserve_and_commit(server):
    id = server.put({"r": 1})
    got = server.reserve()
    assert (got.json(), got.headers["x-ks-id"]) == ({"r": 1}, id)
    answer = server.status()
    assert (answer["size"], answer["totalSize"], answer["resvSize"]) == (0, 1, 1)
    done = server.settle("commit", id)
    assert (done.status_code, done.json()) == (200, {})
    assert server.status()["totalSize"] == 0
    assert server.settle("commit", id).status_code == 404


@each_reserving_layout
def test_reserve_rollback_get(server):
    id = server.put({"r": 1})
    server.reserve()
    done = server.settle("rollback", id)
    assert (done.status_code, done.json()) == (200, {})
    got = server.get()
    assert (got.json(), got.headers["x-ks-tries"]) == ({"r": 1}, "1")


@each_reserving_layout
def test_a_second_consumer_gets_what_the_first_rolls_back(server):
    id = server.put({"r": 1})
    server.reserve()
    with server.waiting(reserve="true") as second:
        assert server.settle("rollback", id).status_code == 200
        assert second.result().headers["x-ks-id"] == id and second.result().headers["x-ks-tries"] == "1"
    assert server.settle("commit", id).status_code == 200


@each_reserving_layout
def test_reserve_and_commit_a_scheduled_message(server):
    began = time.time()
    id = server.put({"r": 1}, delay=0.6)
    with server.waiting(reserve="true") as reserve:
        assert reserve.result().headers["x-ks-id"] == id
        assert 0.55 < time.time() - began < LATE
    assert server.settle("commit", id).status_code == 200


@each_reserving_layout
def test_rollback_with_a_delay(server):
    id = server.put({"r": 1})
    server.reserve()
    began = time.time()
    assert server.settle("rollback", id, delay=600).status_code == 200
    with server.waiting(reserve="true") as reserve:
        assert reserve.result().headers["x-ks-id"] == id
        assert 0.55 < time.time() - began < LATE


@each_reserving_layout
def test_rollback_an_invalid_id(server):
    server.put(1)
    server.reserve()
    for id in ("zzz", "112233445566778899001122", "x" * 300, "%7B%22_id%22%3A5%7D", "%00"):
        assert server.settle("rollback", id).status_code == 404
        assert server.settle("commit", id).status_code == 404
    assert server.status()["resvSize"] == 1


# --- scheduled: 5 cases on 5 layouts -----------------------------------------------------------------------------


@each_reserving_layout
def test_scheduled_push_and_pop(server):
    server.put({"s": 1}, delay=0)
    assert server.get().json() == {"s": 1}
    server.nothing()


@each_reserving_layout
def test_scheduled_pop_and_timeout(server):
    server.put({"s": 1}, delay=3600)
    began = time.monotonic()
    answer = server.get(to=300)
    assert answer.status_code == 504 and 0.29 < time.monotonic() - began < LATE
    assert server.status()["schedSize"] == 1


@each_reserving_layout
def test_push_delayed_and_pop(server):
    began = time.time()
    server.put({"s": 1}, mature=began + 0.6)
    with server.waiting() as pop:
        assert pop.result().json() == {"s": 1}
        assert 0.55 < time.time() - began < LATE


@each_reserving_layout
def test_pop_and_push_delayed(server):
    with server.waiting() as pop:
        began = time.time()
        server.put({"s": 1}, delay=0.6)
        assert pop.result().json() == {"s": 1}
        assert 0.55 < time.time() - began < LATE


@each_reserving_layout
def test_three_delayed_messages_come_in_the_order_of_their_moments(server):
    for n, delay in ((3, 0.6), (1, 0.2), (2, 0.4)):
        server.put(n, delay=delay)
    server.nothing()
    assert [server.get().json() for _ in range(3)] == [1, 2, 3]
