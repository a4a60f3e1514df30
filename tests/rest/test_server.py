"""The server as a process: it ends, dies, starts again, and its databases may be down."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from spark_queue import open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests.command_line import Run
from tests.serving import serving


def spaces(urls):
    return [one for ns, url in urls.items() for one in ("--url", f"{ns}={url}")]


@pytest.fixture
def paths(urls):
    """A queue in each store."""
    name = f"t{uuid.uuid4().hex[:16]}"
    yield [f"/q/{ns}/{name}" for ns in urls]
    for url in urls.values():
        with open_store(url) as store:
            store.drop(name)


def test_it_ends_at_a_signal_and_reservations_survive(urls, paths, tmp_path):
    with serving(tmp_path, *spaces(urls)) as first, httpx.Client(base_url=first.url) as http:
        for q in paths:
            http.put(q, json="x")
        handles = [http.get(q, params={"reserve": 1}).headers["x-ks-receipt"] for q in paths]
        with ThreadPoolExecutor(len(paths)) as pool:
            waiting = [pool.submit(httpx.get, first.url + q, params={"to": 20_000}, timeout=120) for q in paths]
            for q in paths:
                wait_until(lambda: http.get(f"{q}/consumers").json())  # noqa: B023
            assert first.stop() == 0
            for one in waiting:
                assert one.result().status_code == 503 and "shutting down" in one.result().json()["detail"]
        assert "Traceback" not in first.said and "ERROR" not in first.said
    with serving(tmp_path, *spaces(urls)) as second, httpx.Client(base_url=second.url) as http:
        for q, handle in zip(paths, handles, strict=True):
            assert http.get(f"{q}/status").json()["resvSize"] == 1
            assert http.patch(f"{q}/commit/{handle}").status_code == 200
            assert http.get(f"{q}/status").json()["totalSize"] == 0


@pytest.mark.full
def test_requests_that_wait_for_many_queues_block_neither_others_nor_the_end(mongodb_url, tmp_path):
    """There are more queues of one store than its driver has connections."""
    waits, run = 120, f"t{uuid.uuid4().hex[:12]}"
    with (
        serving(tmp_path, "--url", f"m={mongodb_url}", "--max-wait", "2m") as started,
        httpx.Client(timeout=120, limits=httpx.Limits(max_connections=None)) as http,
        ThreadPoolExecutor(waits) as pool,
    ):
        paths = [f"{started.url}/q/m/{run}.{number}" for number in range(waits)]
        waiting = [pool.submit(http.get, one, params={"to": 100_000}) for one in paths]
        for one in paths:
            wait_until(lambda: http.get(f"{one}/consumers").json())  # noqa: B023
        for number in range(0, waits, 10):
            http.put(paths[number], json=number).raise_for_status()
            assert waiting[number].result(60).json() == number
        began = time.monotonic()
        assert started.stop() == 0
        assert time.monotonic() - began < 10, "it did not wait for a thread that waits"
        assert {one.result().status_code for one in waiting} == {200, 503}
        assert "Traceback" not in started.said and "ERROR" not in started.said


def test_a_database_that_is_down_is_reported_and_keeps_no_other_caller_waiting(tmp_path):
    silent = socket.create_server(("127.0.0.1", 0))  # it lets clients connect, and never answers
    gone = f"gone=redis://me:secret@127.0.0.1:{silent.getsockname()[1]}/0"
    here = f"here=sqlite:///{tmp_path}/q.db"
    with serving(tmp_path, "--url", gone, "--url", here) as started, httpx.Client(base_url=started.url) as http:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(http.put("/q/gone/x", json=1, timeout=120)))
        asking.start()
        with silent.accept()[0]:  # from now on the server waits for it
            assert httpx.put(f"{started.url}/q/here/x", json=1, timeout=120).status_code == 200
            assert not answers
            silent.close()
        asking.join()
        (refused,) = answers
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert "secret" not in refused.text + http.get("/q").text + started.said
        numbers = http.get("/metrics", timeout=120).text
    assert 'q_global_up{ns="gone"} 0.0' in numbers and 'q_global_size{ns="here",q="x"} 1.0' in numbers


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "there is nothing to serve"),
        (["--url", "sqlite:///q.db"], "must be NAME=URL"),
        (["--url", "b"], "--url must be NAME=URL"),
        (["--url", "b=q.db"], "--url 'b' must be NAME=URL"),
        (["--url", "a=sqlit:///q.db"], "did you mean 'sqlite'"),
        (["--url", "a=sqlite:///q.db", "--url", "a=sqlite:///r.db"], "there is a namespace of that name already"),
        (["--graph", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--url", "a=sqlite:///q.db", "--host", "0.0.0.0"], "--token-file"),
        (["--url", "a=sqlite:///q.db", "--host", "::"], "--token-file"),
        (["--url", "a=sqlite:///q.db", "--token-file", "nowhere"], "nowhere: No such file"),
        (["--url", "a=sqlite:///q.db", "--events", "b/events"], "there is no namespace 'b'"),
        (["--url", "a=sqlite:///q.db", "--events", "a"], "NAMESPACE/QUEUE"),
        (["--url", "a=sqlite:///q.db", "--conf", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--url", "a=sqlite:///q.db", "--tls-cert", "nowhere.pem"], "nowhere.pem: no such file"),
        (["--url", "a=sqlite:///q.db", "--max-wait", "never"], "'never' is not a duration"),
    ],
)
def test_invalid_arguments_are_refused_at_the_start(args, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = Run("serve", *args, "--port", 0)
    assert refused.code == 2 and expected in refused.err, refused.err
    assert not (tmp_path / "q.db").exists()


def test_a_port_in_use_is_reported(server, tmp_path):
    port = server.url.rpartition(":")[2]
    refused = Run("serve", "--url", f"a=sqlite:///{tmp_path}/q.db", "--port", port)
    assert (
        refused.code == 2
        and f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another" in refused.err
    )
