"""`/health` and `/ready` need no credentials, reveal nothing, and report unreachable stores."""

from __future__ import annotations

import logging
import socket
import threading
import time

import httpx
import pytest

from spark_queue import __version__
from spark_queue.errors import StoreUnavailable
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Credentials, Settings, create_app, readiness
from tests.rest.in_process import calling
from tests.serving import serving

TOKEN = "correct-horse-battery"


@pytest.fixture
def app(tmp_path):
    """An app with credentials, over two stores."""
    spaces = {name: Namespace(f"sqlite:///{tmp_path}/{name}.db") for name in ("warehouse", "shop")}
    return create_app(Settings(graph=Graph(spaces), credentials=Credentials.from_texts([TOKEN])))


@pytest.fixture
def client(app):
    with calling(app, "http://10.0.0.7:3444") as called:
        yield called


def away(app, monkeypatch, name="shop"):
    def refuse():
        raise StoreUnavailable(f"cannot reach redis://user:secret@db/0 of {name}")

    monkeypatch.setattr(app.state.service.stores[name], "now", refuse)


@pytest.fixture
def fresh(monkeypatch):
    """Nothing of the stores is reused."""
    monkeypatch.setattr(readiness, "ANSWER_FRESH", 0.0)  # the server makes the object


@pytest.mark.parametrize(("path", "status"), [("/health", "ok"), ("/ready", "ready")])
def test_they_answer_without_credentials_and_reveal_nothing(client, path, status):
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": status})
    assert set(answer.headers) <= {"content-length", "content-type", "cache-control"}
    assert client.request("HEAD", path).status_code == 200
    assert client.get(path, headers={"origin": "http://evil.example.org"}).json() == {"status": status}


@pytest.mark.parametrize("path", ["/health/", "//health", "/health/x", "/ready%2f", "/q", "/docs", "/metrics"])
def test_no_other_path_is_open(client, path):
    assert client.get(path).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_no_other_method_is_open(client, method):
    assert client.request(method, "/health").status_code == 401


def test_a_store_that_is_away_makes_it_unready_and_the_log_names_it(app, client, fresh, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    assert client.get("/ready").status_code == 200
    with monkeypatch.context() as patched:
        away(app, patched)
        refused = [client.get("/ready") for _ in range(3)][-1]
        assert client.get("/health").status_code == 200
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert refused.headers["content-type"] == "application/problem+json"
    for secret in ("shop", "warehouse", "secret", "redis", "sqlite", __version__, "2"):
        assert secret not in refused.text, secret
    assert caplog.text.count("the store of namespace 'shop' cannot be reached") == 1, "not at each request"
    assert client.get("/ready").status_code == 200
    assert caplog.text.count("'shop' can be reached again") == 1


def test_many_that_ask_cost_a_store_one_question(app, client, monkeypatch):
    monkeypatch.setattr(readiness, "ANSWER_FRESH", 3600.0)  # the server makes the object
    asked = []
    for store in app.state.service.stores.values():
        monkeypatch.setattr(store, "now", lambda: asked.append(1))
    for _ in range(2):  # the second time, the answer is reused
        assert {one.status_code for one in client.many([("GET", "/ready")] * 40)} == {200}
    assert len(asked) == 2, "one of each store"


def test_a_store_that_hangs_keeps_no_caller_waiting(app, client, monkeypatch):
    monkeypatch.setattr(readiness, "LONGEST_CHECK", 0.01)  # the server makes the object
    released = threading.Event()
    monkeypatch.setattr(app.state.service.stores["shop"], "now", lambda: released.wait(40))
    try:
        begun = time.monotonic()
        assert client.get("/ready").status_code == 503
        assert time.monotonic() - begun < 30
    finally:
        released.set()


def test_a_server_that_shuts_down_is_not_ready(app, client):
    app.state.service.wait_list.shut_down()
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200


def test_a_database_that_never_answers_makes_it_unready(tmp_path):
    silent = socket.create_server(("127.0.0.1", 0))  # it lets clients connect, and never answers
    gone = f"gone=redis://me:secret@127.0.0.1:{silent.getsockname()[1]}/0"
    with silent, serving(tmp_path, "--url", gone) as started:
        assert httpx.get(f"{started.url}/ready", timeout=120).status_code == 503
        assert httpx.get(f"{started.url}/health", timeout=120).status_code == 200
        assert "secret" not in started.said


def test_the_stores_of_the_tests_are_ready(http):
    assert http.get("/ready").json() == {"status": "ready"}


def test_the_description_of_a_server_without_credentials_speaks_of_none(http):
    assert '"security":' not in http.get("/openapi.json").text


def test_the_description_says_that_they_need_no_credentials(app):
    described = app.openapi()
    assert described["security"] == [{"bearer": []}]
    for path in ("/health", "/ready"):
        assert described["paths"][path]["get"]["security"] == []
        assert not {"401", "403"} & set(described["paths"][path]["get"]["responses"])
