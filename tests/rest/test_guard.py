"""What callers without credentials can do: nothing that costs much, and nothing that keeps others waiting."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

from spark_queue.rest import bodies
from spark_queue.rest.errors import Overloaded
from spark_queue.rest.guard import protocol
from spark_queue.rest.guard.unread import MAX_UNREAD, UnreadAnswers
from spark_queue.rest.looks.queue_metrics import MAX_QUEUES, OTHERS
from spark_queue.rest.metrics import ServerMetrics
from spark_queue.stores.conformance.waiting import wait_until
from tests.hostile import TOKEN, Attack, kinds, send
from tests.serving import ROOT, serving


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "g.yaml").write_text(f"namespaces: {{a: 'sqlite:///{folder}/q.db'}}\n")
    args = ("--graph", folder / "g.yaml", "--events", "a/events")
    with serving(folder, *args, env={"SPARK_QUEUE_REST_TOKEN": TOKEN}) as started:
        yield started


@contextmanager
def connection(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as opened:
        yield opened


def answer(opened):
    """The status and the problem document of an answer, however much of the request is still to be sent."""
    received = b""
    with suppress(ConnectionResetError):
        while part := opened.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head.lower()


def send_all(opened, parts):
    with suppress(BrokenPipeError, ConnectionResetError):  # the server has hung up
        for part in parts:
            opened.sendall(part)


HEADS = {
    "one long header": [b"GET /q HTTP/1.1\r\nx: ", *[b"x" * 65536] * 64],
    "many headers": [b"GET /q HTTP/1.1\r\n", *[b"x: " + b"y" * 100 + b"\r\n"] * 1_000, b"\r\n"],
    "a long URL": [b"GET /", *[b"q" * 65536] * 8],
    "a head that comes whole": [b"GET /q HTTP/1.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n"],
    "a long trailer": [
        b"PUT /q HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", *[b"x" * 65536] * 8,
    ],
}  # fmt: skip


@pytest.mark.parametrize("parts", HEADS.values(), ids=HEADS)
def test_a_head_has_a_limit(guarded, parts):
    with connection(guarded) as opened:
        began = time.monotonic()
        send_all(opened, parts)
        status, problem, head = answer(opened)
        assert time.monotonic() - began < 20
    if b"chunked" in parts[0]:
        assert status == 401  # its head was complete, and is answered first
    else:
        assert status == 431 and "larger than 65,536 bytes" in problem["detail"]
        assert b"content-type: application/problem+json" in head and b"connection: close" in head


def test_a_head_of_the_limit_is_taken(guarded):
    filler = "x" * (protocol.MAX_HEAD - 1_000)
    got = httpx.get(f"{guarded.url}/q", headers={"authorization": f"Bearer {TOKEN}", "x-filler": filler})
    assert got.status_code == 200


def test_a_request_that_is_no_http_is_refused(guarded):
    with connection(guarded) as opened:
        opened.sendall(b"HELO example.org\r\n\r\n")
        status, problem, _ = answer(opened)
    assert status == 400 and "no request of HTTP" in problem["detail"]
    assert "Invalid HTTP" not in guarded.said


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server whose limits of time and number are small, in a process of its own."""
    folder = tmp_path_factory.mktemp("impatient")
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'serve' in sys.argv:\n"
        "    from spark_queue.rest import bodies\n"
        "    from spark_queue.rest.guard import protocol, unread\n"
        "    protocol.HEAD_TIMEOUT = protocol.DISCARD_TIMEOUT = bodies.STALL_TIMEOUT = 0.5\n"
        "    unread.READ_TIMEOUT = 0.5\n"
        "    import spark_queue.rest.server as server\n"
        "    server.raise_limit_of_files = lambda stores: 8\n"
    )
    path = os.pathsep.join([str(folder), str(ROOT)])
    url = f"a=sqlite:///{folder}/q.db"
    env = {"SPARK_QUEUE_REST_TOKEN": TOKEN, "PYTHONPATH": path}
    with serving(folder, "--url", url, env=env) as started:
        yield started


def test_a_head_that_does_not_come_ends(impatient):
    with connection(impatient) as opened:
        opened.sendall(b"GET /q HTTP/1.1\r\nx: ")
        status, problem, _ = answer(opened)
    assert status == 408 and "did not come within" in problem["detail"]
    with connection(impatient) as silent:
        assert silent.recv(1) == b"", "a connection without a request ends"


def test_a_body_that_stalls_ends(impatient):
    head = f"PUT /q/a/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 10\r\n\r\n12"
    with connection(impatient) as opened:
        opened.sendall(head.encode())
        status, problem, _ = answer(opened)
    assert status == 408 and "after 2 bytes" in problem["detail"]


def test_a_body_after_the_answer_ends(impatient):
    """Its sender has no credentials, and sends on."""
    with connection(impatient) as opened:
        opened.sendall(b"PUT /q/a/x HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        ended = time.monotonic() + 30
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < ended:
                opened.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() < ended


def test_connections_have_a_limit(impatient):
    from contextlib import ExitStack

    with ExitStack() as stack:
        opened = [stack.enter_context(connection(impatient)) for _ in range(8)]
        for one in opened:  # none of them ends meanwhile: each asks for something that waits
            one.sendall(
                f"GET /q/a/wait?to=60000 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
        wait_until(lambda: answer_of_new(impatient) == 503)
    assert impatient.said.count("more than 8 connections") == 1
    wait_until(lambda: answer_of_new(impatient) == 401)


def test_more_queues_are_waited_for_than_there_are_threads(impatient):
    queues = [f"turn-{n}" for n in range(5)]
    with httpx.Client(base_url=impatient.url, headers=WHO, timeout=60) as http, ThreadPoolExecutor(5) as pool:
        waits = [pool.submit(http.get, f"/q/a/{queue}", params={"to": 20_000}) for queue in queues]
        wait_until(lambda: all(http.get(f"/q/a/{queue}/consumers").json() for queue in queues))
        for queue in queues:
            http.put(f"/q/a/{queue}", json=queue)
        assert [one.result().json() for one in waits] == queues


def answer_of_new(server):
    with suppress(httpx.TransportError):
        return httpx.get(f"{server.url}/q").status_code
    return None


# --- with credentials -----------------------------------------------------------------------------

WHO = {"authorization": f"Bearer {TOKEN}"}
HUB = "/v1/resources/hub-queue"
ODD = {
    "a weight that is no number": ("GET", HUB, {"accept": "text/xml;q=nan"}, b"", 415),
    "a weight of minus one": ("GET", HUB, {"accept": "text/xml;q=-1"}, b"", 415),
    "XML of an unknown encoding": (
        "PUT", HUB, {"content-type": "text/xml"}, b"<?xml version='1.0' encoding='klingon'?><event-list/>", 400,
    ),
    "a long parameter name": ("GET", f"/v1/queues?{'x' * 30_000}=1", {}, b"", 400),
    "a long path": ("GET", f"/{'x' * 30_000}", {}, b"", 404),
    "a long id": ("PATCH", f"/q/a/x/commit/{'x' * 30_000}", {}, b"", 404),
    "a long namespace": ("GET", f"/q/{'x' * 30_000}", {}, b"", 400),
    "an encoding of the body": ("PUT", "/q/a/x", {"content-encoding": "x" * 30_000}, b"1", 415),
    "a type of the body": ("PUT", "/q/a/x", {"content-type": "x" * 30_000}, b"1", 415),
    "a body that is too large": ("PUT", "/q/a/x", {}, b"x" * (17 << 20), 413),
}  # fmt: skip


@pytest.mark.parametrize("call", ODD.values(), ids=ODD)
def test_odd_requests_get_a_short_problem_document(guarded, call):
    method, path, headers, body, status = call
    refused = httpx.request(method, guarded.url + path, headers=WHO | headers, content=body, timeout=60)
    assert refused.status_code == status, refused.text[:200]
    assert refused.headers["content-type"] == "application/problem+json" and len(refused.content) < 3_000
    assert httpx.get(f"{guarded.url}/q", headers=WHO).status_code == 200


def test_an_upload_that_is_aborted_is_one_line_at_most(guarded):
    before = guarded.said.count("\n")
    for _ in range(3):
        with connection(guarded) as opened:
            head = f"PUT /q/a/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 99\r\n\r\n1"
            opened.sendall(head.encode())
    assert httpx.get(f"{guarded.url}/q/a/x/status", headers=WHO).json()["totalSize"] == 0
    assert guarded.said.count("\n") - before <= 3 and "Traceback" not in guarded.said


def test_bodies_share_a_budget():
    import asyncio

    class Request:
        def __init__(self, size):
            self.headers: dict[str, str] = {}
            self.state, self._size = type("State", (), {})(), size

        async def stream(self):
            yield b"x" * self._size
            yield b""

    async def act():
        found = bodies.Bodies(1 << 20)
        found._budget = 3 << 20
        requests = [Request(1 << 20) for _ in range(4)]
        for one in requests[:3]:
            assert len(await found.read(one)) == 1 << 20
        with pytest.raises(Overloaded):
            await found.read(requests[3])
        found.release(requests[0])
        assert len(await found.read(requests[3])) == 1 << 20
        for one in requests:
            found.release(one)
            found.release(one)
        assert found._budget == 3 << 20
        found.close()

    asyncio.run(act())


# --- answers that no caller reads ------------------------------------------------------------------


def has_ended(opened):
    """Whether the server has ended a connection, also if it has sent more than was read."""
    ends = select.poll()
    ends.register(opened, 0)  # reports nothing but an end
    return bool(ends.poll(0))


def test_an_answer_that_is_not_read_ends(impatient):
    auth = {"authorization": f"Bearer {TOKEN}"}
    for _ in range(16):
        httpx.put(f"{impatient.url}/q/a/large", json="x" * (1 << 20), headers=auth).raise_for_status()
    path, head = "/v1/queues/a/large/messages", f"host: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    with connection(impatient) as opened:
        opened.sendall(f"GET {path} HTTP/1.1\r\n{head}".encode())
        wait_until(lambda: has_ended(opened))
    with connection(impatient) as slow:  # takes longer than the limit, and takes some bytes all the time
        slow.sendall(f"GET {path} HTTP/1.1\r\nconnection: close\r\n{head}".encode())
        got, began = 0, time.monotonic()
        while part := slow.recv(400_000):
            got += len(part)
            time.sleep(0.02)
        assert got > 16 << 20 and time.monotonic() - began > 0.5


def test_the_connection_that_has_not_read_for_the_longest_time_makes_room():
    class Reader:
        """A connection that reads nothing."""

        def __init__(self, size: int) -> None:
            self.size, self.ended = size, False

        def get_write_buffer_size(self) -> int:
            return self.size

        def get_extra_info(self, _: str) -> socket.socket:
            return opened

        def abort(self) -> None:
            self.ended = True

    async def act() -> None:
        answers = UnreadAnswers()
        readers = [Reader(MAX_UNREAD // 3) for _ in range(5)] + [Reader(2 * MAX_UNREAD)]
        for number, one in enumerate(readers):
            answers.add(one, one)
            if number == 3:
                answers.remove(readers[1])
                assert [one.ended for one in readers] == [True, False, False, False, False, False]
        assert [one.ended for one in readers] == [True, False, True, True, True, False], "one always gets its answer"

    with socket.socket() as opened:
        asyncio.run(act())


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_of_made_up_queues_are_bounded():
    metrics = ServerMetrics()
    for n in range(20 * MAX_QUEUES):
        metrics.count("pop", "a", f"made-up-{n}", "timeout", 1)
    text = metrics.render().decode()
    assert text.count("keuss_q_pop_total{") == MAX_QUEUES + 1
    assert f'keuss_q_pop_total{{ns="a",proto="rest",q="{OTHERS}",status="timeout"}} {19 * MAX_QUEUES:.1f}' in text


# --- hostile requests, and what others notice -----------------------------------------------------


@pytest.mark.parametrize("kind", kinds())
def test_a_hostile_request_is_refused(guarded, kind):
    found = kinds()[kind]
    assert send(guarded.url, found.parts) == found.status
    assert httpx.get(f"{guarded.url}/q", headers=WHO).status_code == 200


@pytest.mark.full
def test_others_are_answered_while_hostile_requests_come(guarded):
    """500 of them, from four callers at once; `bench/rest.py --hostile` measures how long others wait."""
    times = []
    with Attack(guarded.url, kinds().values(), 500) as attack, httpx.Client(headers=WHO, timeout=60) as http:
        while attack.runs:
            began = time.monotonic()
            assert http.get(f"{guarded.url}/q").status_code == 200
            times.append(time.monotonic() - began)
            time.sleep(0.02)
    assert attack.wrong == []
    assert len(times) > 20 and max(times) < 30
    assert "Traceback" not in guarded.said
