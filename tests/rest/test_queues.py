"""Messages over HTTP, one in each request, in every store."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from spark_queue import Queue
from spark_queue.rest.receipts import receipt_of
from spark_queue.stores.conformance.waiting import wait_until
from tests.rest.refusals import check_refused

PAYLOADS = {
    "object": (b'{"a": [1, 2.5, null, "\xc3\xa9"], "n": 123456789012345678}', "application/json"),
    "big number": (b"1234567890123456789", "application/vnd.mine+json"),
    "string": (b'"x"', "application/json"),
    "text": ("gate closed é\n".encode(), "text/plain; charset=utf-8"),
    "page": (b"<script>", "text/html"),
    "bytes": (bytes(range(256)), "application/octet-stream"),
    "picture": (b"\x89PNG", "image/png"),
}


@pytest.mark.parametrize("given", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_comes_back_as_it_was_sent(http, q, given, store, queue):
    body, media = given
    pushed = http.put(
        q, content=body, headers={"content-type": media, "x-ks-hdr-Gate": "B 12", "x-ks-hdr-who": "Zoë 💺".encode()}
    )
    assert pushed.status_code == 200
    (kept,) = Queue(store, queue).peek()
    assert kept.id == pushed.json()["id"]
    assert kept.headers == {"content-type": media, "gate": "B 12", "who": "Zoë 💺"}
    got = http.get(q)
    assert got.status_code == 200
    if "json" in media:
        import orjson

        assert orjson.loads(got.content) == orjson.loads(body)
    else:
        assert got.content == body
    assert got.headers["content-type"] == (f"{media}; charset=utf-8" if media == "application/json" else media)
    raw = {key.lower(): value for key, value in got.headers.raw}
    assert raw[b"x-ks-hdr-gate"] == b"B 12" and raw[b"x-ks-hdr-who"].decode() == "Zoë 💺"
    assert got.headers["x-ks-id"] == kept.id
    assert got.headers["x-ks-tries"] == "0"
    assert datetime.fromisoformat(got.headers["x-ks-mature"]) == kept.mature
    assert http.get(q, params={"to": 0}).status_code == 504


def test_a_body_without_a_type_is_bytes(http, q, store, queue):
    assert http.post(q, content=b"\xff").status_code == 200
    assert [one.payload for one in Queue(store, queue).peek()] == [b"\xff"]


def test_what_was_pushed_elsewhere_has_a_type_too(http, q, store, queue):
    with Queue(store, queue) as client:
        for payload in ({"n": 1}, "text", b"\0"):
            client.push(payload, headers={"odd name\n": "line\nend", "CASE": "x"})
    for media in ("application/json; charset=utf-8", "text/plain; charset=utf-8", "application/octet-stream"):
        got = http.get(q)
        assert got.headers["content-type"] == media
        assert got.headers["x-ks-hdr-odd%20name%0a"] == "line%0Aend" and got.headers["x-ks-hdr-case"] == "x"


def test_it_comes_when_it_is_mature(http, q):
    later = datetime.now(UTC) + timedelta(hours=1)
    for when in ({"delay": 3600}, {"mature": later.timestamp()}, {"mature": later.isoformat()}):
        assert http.put(q, json=1, params=when).status_code == 200
    reported = http.get(f"{q}/status").json()
    assert (reported["size"], reported["schedSize"], reported["totalSize"], reported["resvSize"]) == (0, 3, 3, 0)
    assert 3_500_000 < reported["next_t"] <= 3_600_000
    http.put(q, json=2, params={"delay": 0.05, "tries": 1})
    got = http.get(q, params={"to": 20_000})
    assert (got.text, got.headers["x-ks-tries"]) == ("2", "1")


def test_an_id_is_pushed_once(http, q):
    for _ in range(2):
        assert http.put(q, json=1, params={"id": "once"}).json() == {"id": "once"}
    assert http.get(f"{q}/status").json()["size"] == 1


def test_each_of_many_that_push_at_once_gets_an_answer_of_its_own(http, q, store, queue):
    def push(n):
        bad = n % 10 == 3
        content, name = (b'{"n": ', None) if bad else (b'{"n": %d}' % n, f"m{n}" if n % 2 else None)
        answer = http.put(q, content=content, headers={"content-type": "application/json"},
                          params={"id": name} if name else {})  # fmt: skip
        return answer.status_code, None if bad else answer.json()["id"]

    with ThreadPoolExecutor(24) as callers:
        answers = list(callers.map(push, range(120)))
    with Queue(store, queue) as opened:
        there = {one.id: one.payload["n"] for one in opened.peek(200)}
    assert [status for status, _ in answers] == [400 if n % 10 == 3 else 200 for n in range(120)]
    assert there == {id: n for n, (_, id) in enumerate(answers) if id is not None}
    assert all(id == f"m{n}" for n, (_, id) in enumerate(answers) if id is not None and n % 2)


# --- reservations ---------------------------------------------------------------------------------


def test_counters(http, q):
    http.put(q, json="x")
    one = http.get(q, params={"reserve": 1})
    assert http.patch(f"{q}/rollback/{one.headers['x-ks-receipt']}").json() == {}
    two = http.get(q, params={"reserve": 1})
    assert http.patch(f"{q}/commit/{two.headers['x-ks-receipt']}").json() == {}
    stats = http.get(f"{q}/status").json()["stats"]
    assert stats == {"put": 1, "get": 0, "reserve": 2, "commit": 1, "rollback": 1, "deadletter": 0}


def test_a_pop_counts_as_one_act(http, q):
    http.put(q, json="x")
    http.get(q)
    stats = http.get(f"{q}/status").json()["stats"]
    assert (stats["get"], stats["reserve"], stats["commit"]) == (1, 0, 0)


def test_who_fails_too_often_is_a_dead_letter(http, q):
    http.put(q, json="y", params={"tries": 2})
    assert http.get(q, params={"reserve": 1, "to": 0}).status_code == 504
    assert http.get(f"{q}.dead").json() == "y"


def test_a_receipt_reaches_no_query(http, q, store, queue):
    with Queue(store, queue) as client:
        client.push_many([1, 2])
    store.reserve(queue, "etl/3fa9c1/7", 1)
    store.reserve(queue, "etl/0123456789abcdef", 1)  # looks like a tag of this server
    for forged in (
        receipt_of("etl/3fa9c1/7"),
        receipt_of("etl/0123456789abcdef"),
        receipt_of("etl"),
        receipt_of("rest"),
        receipt_of("rest/0123456789abcdef/0"),
        "x",
        "é",
        "a" * 5000,
    ):
        assert http.patch(f"{q}/commit/{forged}").status_code == 404
    assert store.sizes(queue).reserved == 2


# --- waiting --------------------------------------------------------------------------------------


def test_a_push_wakes_those_who_wait_one_each(http, q, server):
    waiting = 24
    with ThreadPoolExecutor(waiting) as pool:
        answers = [
            pool.submit(httpx.get, server.url + q, params={"to": 20_000, "reserve": 1}, timeout=120)
            for _ in range(waiting)
        ]
        wait_until(lambda: len(http.get(f"{q}/consumers").json()) == waiting)
        for n in range(waiting):
            http.put(q, json=n)
        got = [one.result() for one in answers]
    assert max(one.elapsed.total_seconds() for one in got) < 20, "each is woken before it has waited to its end"
    assert sorted(one.json() for one in got) == list(range(waiting))
    assert http.get(f"{q}/consumers").json() == []


def test_a_message_from_elsewhere_is_heard_soon(q, server, store, queue):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, server.url + q, params={"to": 20_000}, timeout=120)
        wait_until(lambda: httpx.get(f"{server.url}{q}/consumers").json())
        with Queue(store, queue) as client:
            client.push("now")
        assert answer.result().text == "now"
        assert answer.result().elapsed.total_seconds() < 20, "it is woken before it has waited to its end"


def test_a_wait_ends_when_it_is_cancelled_or_over(http, q, server):
    over = http.get(q, params={"to": 300})
    assert over.status_code == 504 and 0.29 < over.elapsed.total_seconds() < 20
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, server.url + q, params={"to": 20_000, "tid": "me"}, timeout=120)
        wait_until(lambda: http.get(f"{q}/consumers").json())
        assert http.get(q, params={"to": 1, "tid": "me"}).status_code == 400
        assert http.delete(f"{q}/consumer/you").status_code == 200
        assert http.delete(f"{q}/consumer/me").status_code == 200
        assert answer.result().status_code == 410


def test_who_has_gone_gets_nothing(http, q, server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall(f"GET {q}?to=20000 HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        wait_until(lambda: http.get(f"{q}/consumers").json())
    wait_until(lambda: not http.get(f"{q}/consumers").json(), 15)  # before its wait would have ended
    http.put(q, json="mine")
    assert http.get(q, params={"to": 20_000}).json() == "mine"


def test_a_paused_queue_gives_nothing_until_it_goes_on(http, q, server):
    assert http.patch(f"{q}/pause").status_code == 201
    http.put(q, json=1)
    assert http.get(q, params={"to": 0}).status_code == 504
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, server.url + q, params={"to": 20_000}, timeout=120)
        wait_until(lambda: http.get(f"{q}/consumers").json())
        http.patch(f"{q}/resume")
        assert answer.result().json() == 1


# --- everything else ------------------------------------------------------------------------------


def test_durations_of_requests_and_what_answers(http, q, ns):
    def sample(text):
        lines = http.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(text)), None)

    http.put(q, json=1)
    labels = '{method="PUT",route="/q/{ns}/{queue}",status="200"}'
    wait_until(lambda: sample(f"http_request_duration_seconds_count{labels}"))
    assert sample(f'q_global_up{{ns="{ns}"}}') == 1


def test_exchanges(http, urls):
    all_of_them = http.get("/x").json()
    late, every = {"ns": "sqlite", "q": "late"}, {"ns": "redis", "q": "all"}
    assert all_of_them["by_delay"] == http.get("/x/by_delay").json() == {
        "name": "by_delay", "kind": "exchange", "src": {"ns": "sqlite", "q": "departures"},
        "sources": [{"ns": "sqlite", "q": "departures"}],
        "dst": [
            {**late, "selector": "payload:delay::int > 60", "dst": late}, {**every, "selector": None, "dst": every},
        ],
        "delivery": "exactly-once", "consumer": {"parallel": None, "wsize": "auto", "reserve": True},
        "opts": {"reserve": True}, "wsize": 1000, "cid": "by_delay", "pending_acks": {}, "pending_tids": {},
        "stopped": False, "declared": False, "state": "stopped", "running": False, "owner": None, "server": None,
        "restarts": 0, "error": None, "stats": None, "hops": {}, "rates": {"received": 0.0, "pushed": 0.0},
        "evaluation": None,
    }  # fmt: skip
    pairs = all_of_them["pairs"]
    assert (pairs["kind"], pairs["dst"][0]["q"], pairs["running"]) == ("join", "pairs", False)
    assert pairs["sources"] == [{"ns": "sqlite", "q": "left"}, {"ns": "redis", "q": "right"}]
    missing = http.get("/x/by_dealy")
    assert missing.status_code == 404 and "no such exchange [by_dealy]; did you mean 'by_delay'?" in missing.text
    assert http.put("/x/by_delay", json={}).status_code == 409, "it has no session"


TYPED, PLAIN = {"content-type": "application/json"}, {"content-type": "text/plain"}
KLINGON = {"content-type": "text/plain; charset=klingon"}
PUNYCODE = {"content-type": "text/plain; charset=punycode"}

WRONG = {
    "an unknown namespace": ("GET", "/q/sqlit/x", {}, 404, "did you mean 'sqlite'"),
    "no JSON": ("PUT", "/q/sqlite/x", {"content": "{", "headers": TYPED}, 400, "not JSON"),
    "no text": ("PUT", "/q/sqlite/x", {"content": b"\xff", "headers": PLAIN}, 400, "not text"),
    "an unknown charset": ("PUT", "/q/sqlite/x", {"content": b"x", "headers": KLINGON}, 415, "UTF-8"),
    "a slow charset": ("PUT", "/q/sqlite/x", {"content": b"x", "headers": PUNYCODE}, 415, "UTF-8"),
    "compressed": ("PUT", "/q/sqlite/x", {"content": b"x", "headers": {"content-encoding": "gzip"}}, 415, "gzip"),
    "no moment": ("PUT", "/q/sqlite/x?mature=tomorrow", {"json": 1}, 400, "tomorrow"),
    "an infinite delay": ("PUT", "/q/sqlite/x?delay=inf", {"json": 1}, 400, "delay"),
    "a wrong consumer": ("GET", "/q/sqlite/x?reserve=1&consumer=a/b", {}, 400, "consumer"),
    "a wrong name": ("PUT", "/q/mongodb/system.x", {"json": 1}, 400, "system.x"),
    "a large body": ("PUT", "/q/sqlite/x", {"content": b"x" * (2 << 20 | 1)}, 413, "2,097,152 bytes"),
    "another method": ("DELETE", "/q/sqlite/x", {}, 405, "does not support DELETE; use GET, POST, PUT"),
    "another place": ("GET", "/queues", {}, 404, "no resource /queues"),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_mistake_is_reported_and_changes_nothing(http, call):
    check_refused(http, call)
    assert http.get("/q/sqlite/x/status").json()["totalSize"] == 0


def test_a_large_body_that_does_not_say_so_is_not_read_to_its_end(http):
    def endless():
        for _ in range(2000):
            sent.append(1)
            yield b"x" * 65536

    sent: list[int] = []
    with suppress(httpx.WriteError):  # the server has hung up
        assert http.put("/q/sqlite/x", content=endless()).status_code == 413
    assert len(sent) < 1000
