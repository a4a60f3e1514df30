"""Queues over HTTP, in every store: the API of keuss-server, batches, and fenced handles."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from spark_queue import Queue
from spark_queue.rest.receipts import parse_receipt, receipt_of
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered

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
    assert got.headers["content-type"] == media
    raw = {key.lower(): value for key, value in got.headers.raw}
    assert raw[b"x-ks-hdr-gate"] == b"B 12" and raw[b"x-ks-hdr-who"].decode() == "Zoë 💺"
    assert got.headers["x-ks-message-id"] == got.headers["x-ks-id"] == kept.id
    assert got.headers["x-ks-tries"] == "0"
    assert datetime.fromisoformat(got.headers["x-ks-mature"]) == kept.mature
    assert http.get(q).status_code == 504


def test_a_body_without_a_type_is_bytes(http, q, store, queue):
    assert http.post(q, content=b"\xff").status_code == 200
    assert [one.payload for one in Queue(store, queue).peek()] == [b"\xff"]


def test_what_was_pushed_elsewhere_has_a_type_too(http, q, store, queue):
    with Queue(store, queue) as client:
        for payload in ({"n": 1}, "text", b"\0"):
            client.push(payload, headers={"odd name\n": "line\nend", "CASE": "x"})
    for media in ("application/json", "text/plain; charset=utf-8", "application/octet-stream"):
        got = http.get(q)
        assert got.headers["content-type"] == media
        assert got.headers["x-ks-hdr-odd%20name%0a"] == "line%0Aend" and got.headers["x-ks-hdr-case"] == "x"


def test_it_comes_when_it_is_mature(http, q):
    later = datetime.now(UTC) + timedelta(hours=1)
    for when in ({"delay": 3600}, {"mature": later.timestamp()}, {"mature": later.isoformat()}):
        assert http.put(q, json=1, params=when).status_code == 200
    told = http.get(f"{q}/status").json()
    assert (told["size"], told["schedSize"], told["totalSize"], told["resvSize"]) == (0, 3, 3, 0)
    assert 3_500_000 < told["next_t"] <= 3_600_000
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
        told = list(callers.map(push, range(120)))
    with Queue(store, queue) as opened:
        there = {one.id: one.payload["n"] for one in opened.peek(200)}
    assert [status for status, _ in told] == [400 if n % 10 == 3 else 200 for n in range(120)]
    assert there == {id: n for n, (_, id) in enumerate(told) if id is not None}
    assert all(id == f"m{n}" for n, (_, id) in enumerate(told) if id is not None and n % 2)


# --- reservations ---------------------------------------------------------------------------------


def test_reserve_commit_rollback(http, q):
    http.put(q, json="x")
    one = http.get(q, params={"reserve": 1})
    assert http.get(f"{q}/status").json()["resvSize"] == 1
    assert http.patch(f"{q}/rollback/{one.headers['x-ks-id']}").json() == {"rolled_back": 1, "dead": 0}
    assert http.patch(f"{q}/commit/{one.headers['x-ks-id']}").status_code == 404
    two = http.get(q, params={"reserve": 1, "consumer": "desk"})
    assert two.headers["x-ks-tries"] == "1" and two.headers["x-ks-message-id"] == one.headers["x-ks-message-id"]
    assert http.patch(f"{q}/renew/{two.headers['x-ks-id']}", params={"lease": 60_000}).json() == {"held": 1}
    assert http.patch(f"{q}/commit/{two.headers['x-ks-id']}").status_code == 204
    assert http.patch(f"{q}/commit/{two.headers['x-ks-id']}").status_code == 404
    stats = http.get(f"{q}/status").json()["stats"]
    assert stats == {"put": 1, "get": 0, "reserve": 2, "commit": 1, "rollback": 1, "deadletter": 0}


def test_a_pop_counts_as_one_act(http, q):
    http.put(q, json="x")
    http.get(q)
    stats = http.get(f"{q}/status").json()["stats"]
    assert (stats["get"], stats["reserve"], stats["commit"]) == (1, 0, 0)


def test_a_late_commit_touches_nothing_of_another(http, q, store, queue):
    http.put(q, json="x")
    late = http.get(q, params={"reserve": 1, "lease": 60_000}).headers["x-ks-id"]
    assert http.get(q, params={"reserve": 1}).status_code == 504
    assert store.renew(queue, parse_receipt(late)[0], 0) == 1  # from now on its lease is over
    other = http.get(q, params={"reserve": 1, "to": 20_000}).headers["x-ks-id"]
    assert other != late and parse_receipt(other)[1] == parse_receipt(late)[1]
    for outcome in ("commit", "rollback", "renew"):
        refused = http.patch(f"{q}/{outcome}/{late}")
        assert refused.status_code == 404 and "its lease has ended" in refused.json()["detail"]
    assert http.patch(f"{q}/commit", json=[late]).json() == {"committed": 0}
    assert http.get(f"{q}/status").json()["resvSize"] == 1
    assert http.patch(f"{q}/commit/{other}").status_code == 204


def test_who_fails_too_often_is_a_dead_letter(http, q):
    http.put(q, json="x")
    for expected in ({"rolled_back": 1, "dead": 0}, {"rolled_back": 0, "dead": 1}):
        handle = http.get(q, params={"reserve": 1}).headers["x-ks-id"]
        assert http.patch(f"{q}/rollback/{handle}").json() == expected
    dead = http.get(f"{q}.dead")
    assert dead.json() == "x" and dead.headers["x-ks-hdr-x-dl-tries"] == "2"
    http.put(q, json="y", params={"tries": 2})
    assert http.get(q, params={"reserve": 1}).status_code == 504
    assert http.get(f"{q}.dead").json() == "y"


def test_a_handle_reaches_no_query(http, q, store, queue):
    with Queue(store, queue) as client:
        client.push(1)
    store.reserve(queue, "etl/3fa9c1/7", 1)
    for forged in (
        receipt_of("etl/3fa9c1/7"),
        receipt_of("etl"),
        receipt_of("rest"),
        receipt_of("rest/0123456789abcdef/0"),
        "x",
        "é",
        "a" * 5000,
    ):
        assert http.patch(f"{q}/commit/{forged}").status_code == 400
        assert http.patch(f"{q}/rollback", json=[forged]).status_code == 400
    assert store.sizes(queue).reserved == 1


# --- batches --------------------------------------------------------------------------------------


def test_batches(http, q):
    given = [
        {"payload": {"n": 1}, "headers": {"a": "b\n"}, "id": "one"},
        {"payload": "text"},
        {"payload": {"$binary": {"base64": "AP8=", "subType": "00"}}, "tries": 1},
        {"payload": 4, "delay": 3600},
    ]
    ids = http.post(f"{q}/batch", json=given).json()["ids"]
    assert ids[0] == "one" and len(set(ids)) == 4
    assert len(http.post(f"{q}/batch", json=given[:1]).json()["ids"]) == 1
    taken = http.get(f"{q}/batch", params={"n": 10, "reserve": 1}).json()
    by_id = {one["id"]: one for one in taken["messages"]}
    assert sorted(by_id) == sorted(ids[:3])
    assert [by_id[id]["payload"] for id in ids[:3]] == [one["payload"] for one in given[:3]]
    assert by_id["one"]["headers"] == {"a": "b\n"} and by_id[ids[2]]["tries"] == 1
    handles = [by_id[id]["handle"] for id in ids[:3]]
    assert http.patch(f"{q}/commit", json=[handles[0], handles[0]]).json() == {"committed": 1}
    assert http.patch(f"{q}/rollback", json=[handles[1]], params={"delay": 10**6}).json() == {
        "rolled_back": 1,
        "dead": 0,
    }
    assert http.patch(f"{q}/commit", json=[taken["reservation"], handles[1]]).json() == {"committed": 1}
    told = http.get(f"{q}/status").json()
    assert (told["totalSize"], told["schedSize"]) == (2, 2)
    assert http.get(f"{q}/batch").json() == {"reservation": None, "messages": []}


def test_a_batch_is_popped(http, q):
    http.post(f"{q}/batch", json=[{"payload": n} for n in range(250)])
    taken = [http.get(f"{q}/batch", params={"n": 200}).json() for _ in range(3)]
    assert [len(one["messages"]) for one in taken] == [200, 50, 0]
    assert [one["payload"] for one in taken[0]["messages"][:3]] == [0, 1, 2] and "handle" not in taken[0]["messages"][
        0
    ]
    assert http.get(f"{q}/status").json()["totalSize"] == 0


def test_a_bad_message_keeps_the_whole_batch_out(http, q):
    for bad, rule in (
        ({"payload": 1, "dealy": 5}, "did you mean 'delay'"),
        ({"id": "x"}, "it is not a message"),
        ({"payload": 1, "delay": -1}, "delay is negative"),
        ({"payload": 1, "headers": {"a": 1}}, "headers"),
        ({"payload": 1, "mature": "2026-01-01T00:00"}, "time zone"),
        ({"payload": 1, "id": "i" * 201}, "longer than 200"),
    ):
        refused = http.post(f"{q}/batch", json=[{"payload": 0}, bad])
        assert refused.status_code == 400 and refused.headers["content-type"] == "application/problem+json"
        assert rule in refused.json()["detail"] and list(refused.json()["rows"]) == ["1"]
    half = http.post(f"{q}/batch", content=rb'[{"payload": ["\ud800", 12345678901234567890123]}]', headers=TYPED)
    assert half.status_code == 400 and "the body is not JSON" in half.json()["detail"]
    alone = http.put(q, content=rb'["\ud800", 12345678901234567890123]', headers=TYPED)
    assert alone.status_code == 400 and "the body is not JSON" in alone.json()["detail"]
    assert http.get(f"{q}/status").json()["totalSize"] == 0


def test_what_looks_like_extended_json_is_pushed_as_it_is(http, q):
    given = [{"$binary": {}}, {"$oid": None}, {"a": {"$regularExpression": {}}}]
    assert http.put(q, json=given[0]).is_success
    assert http.post(f"{q}/batch", json=[{"payload": one} for one in given[1:]]).is_success
    assert [one["payload"] for one in http.get(f"{q}/batch", params={"n": 3}).json()["messages"]] == given


def test_what_is_too_much_at_once_stays_in_the_queue(http, q, store, queue):
    with Queue(store, queue) as client:
        client.push_many([b"x" * (5 << 20)] * 6)
    first = http.get(f"{q}/batch", params={"n": 6, "reserve": 1}).json()
    assert 0 < len(first["messages"]) < 6
    assert store.sizes(queue).reserved == len(first["messages"])
    assert http.patch(f"{q}/commit", json=[first["reservation"]]).json() == {"committed": len(first["messages"])}
    assert store.sizes(queue).ready == 6 - len(first["messages"])


# --- waiting --------------------------------------------------------------------------------------


def test_a_push_wakes_those_who_wait_one_each(http, q, server):
    waiting = 24
    with ThreadPoolExecutor(waiting) as pool:
        answers = [
            pool.submit(httpx.get, server.url + q, params={"to": 20_000, "reserve": 1}, timeout=120)
            for _ in range(waiting)
        ]
        wait_until(lambda: len(http.get(f"{q}/consumers").json()) == waiting)
        http.post(f"{q}/batch", json=[{"payload": n} for n in range(waiting)])
        got = [one.result() for one in answers]
    assert max(one.elapsed.total_seconds() for one in got) < 20, "each is woken before it has waited to its end"
    assert sorted(one.json() for one in got) == list(range(waiting))
    assert http.get(f"{q}/consumers").json() == {}


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
        assert http.delete(f"{q}/consumer/you").status_code == 404
        assert http.delete(f"{q}/consumer/me").status_code == 204
        assert answer.result().status_code == 410
    assert http.delete(f"{q}/consumer/me").status_code == 404


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
    assert http.get(f"{q}/paused").json() == {"paused": True} and http.get(f"{q}/status").json()["paused"] is True
    assert http.get(q).status_code == 504
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, server.url + q, params={"to": 20_000}, timeout=120)
        wait_until(lambda: http.get(f"{q}/consumers").json())
        assert http.patch(f"{q}/resume").json() == {"paused": False}
        assert answer.result().json() == 1


# --- everything else ------------------------------------------------------------------------------


def test_status_of_all_and_numbers_for_prometheus(http, q, ns, queue):
    http.post(f"{q}/batch", json=[{"payload": n} for n in range(3)])
    http.get(q)
    http.patch(f"{q}/commit/{http.get(q, params={'reserve': 1}).headers['x-ks-id']}")
    one, among_all = http.get(f"{q}/status").json(), http.get(f"/q/{ns}").json()[queue]
    assert among_all.pop("next_t") >= one.pop("next_t") - 5_000 and among_all == one
    assert set(http.get("/q").json()) == set(registered.schemes())

    def sample(text):
        return next((float(line.split()[-1]) for line in lines() if line.startswith(text)), None)

    def lines():
        return http.get("/metrics").text.splitlines()

    wait_until(lambda: sample(f'q_global_size{{ns="{ns}",q="{queue}"}}') == 1)
    assert sample(f'q_global_put{{ns="{ns}",q="{queue}"}}') == 3
    assert sample(f'keuss_q_push_total{{ns="{ns}",proto="rest",q="{queue}",status="ok"}}') == 3
    assert sample(f'keuss_q_commit_total{{ns="{ns}",proto="rest",q="{queue}",status="ok"}}') == 1
    assert (
        sample('http_request_duration_seconds_count{method="POST",route="/q/{ns}/{queue}/batch",status="200"}') >= 1
    )
    assert sample(f'q_global_up{{ns="{ns}"}}') == 1


def test_exchanges(http, urls):
    told = http.get("/x").json()
    assert told["by_delay"] == http.get("/x/by_delay").json() == {
        "name": "by_delay", "kind": "exchange", "src": {"ns": "sqlite", "q": "departures"},
        "sources": [{"ns": "sqlite", "q": "departures"}],
        "dst": [
            {"ns": "sqlite", "q": "late", "selector": "payload:delay::int > 60"},
            {"ns": "redis", "q": "all", "selector": None},
        ],
        "delivery": "exactly-once", "consumer": {"parallel": None, "wsize": "auto", "reserve": True},
        "running": False, "owner": None, "stats": None,
    }  # fmt: skip
    assert (told["pairs"]["kind"], told["pairs"]["dst"][0]["q"], told["pairs"]["running"]) == ("join", "pairs", False)
    assert told["pairs"]["sources"] == [{"ns": "sqlite", "q": "left"}, {"ns": "redis", "q": "right"}]
    missing = http.get("/x/by_dealy")
    assert missing.status_code == 404 and "no such exchange [by_dealy]; did you mean 'by_delay'?" in missing.text
    assert http.put("/x/by_delay").status_code == 405


TYPED, PLAIN = {"content-type": "application/json"}, {"content-type": "text/plain"}
KLINGON = {"content-type": "text/plain; charset=klingon"}
MANY, DEEP = [{"payload": 1}] * 2001, b"[" * 100_000 + b"1234567890123456789"

WRONG = {
    "an unknown namespace": ("GET", "/q/sqlit/x", {}, 404, "did you mean 'sqlite'"),
    "an unknown parameter": ("PUT", "/q/sqlite/x?dealy=5", {"json": 1}, 400, "did you mean 'delay'"),
    "no JSON": ("PUT", "/q/sqlite/x", {"content": "{", "headers": TYPED}, 400, "not JSON"),
    "no text": ("PUT", "/q/sqlite/x", {"content": b"\xff", "headers": PLAIN}, 400, "not text"),
    "an unknown charset": ("PUT", "/q/sqlite/x", {"content": b"x", "headers": KLINGON}, 415, "UTF-8"),
    "compressed": ("PUT", "/q/sqlite/x", {"content": b"x", "headers": {"content-encoding": "gzip"}}, 415, "gzip"),
    "both moments": ("PUT", "/q/sqlite/x?mature=1&delay=1", {"json": 1}, 400, "exclude each other"),
    "no moment": ("PUT", "/q/sqlite/x?mature=tomorrow", {"json": 1}, 400, "tomorrow"),
    "a negative delay": ("PUT", "/q/sqlite/x?delay=-1", {"json": 1}, 400, "delay"),
    "an infinite delay": ("PUT", "/q/sqlite/x?delay=inf", {"json": 1}, 400, "delay"),
    "a lease of a pop": ("GET", "/q/sqlite/x?lease=1000", {}, 400, "reserve=1"),
    "too long a wait": ("GET", "/q/sqlite/x?to=20001", {}, 400, "20,000 ms at most"),
    "too many": ("GET", "/q/sqlite/x/batch?n=2001", {}, 400, "2,000 messages at most"),
    "too many pushed": ("POST", "/q/sqlite/x/batch", {"json": MANY}, 400, "2,000 at most"),
    "no batch": ("POST", "/q/sqlite/x/batch", {"json": {"payload": 1}}, 400, "JSON array"),
    "a batch of another type": ("POST", "/q/sqlite/x/batch", {"content": "[]"}, 415, "application/json"),
    "nothing to settle": ("PATCH", "/q/sqlite/x/commit", {"json": []}, 400, "one or more"),
    "a wrong consumer": ("GET", "/q/sqlite/x?reserve=1&consumer=a/b", {}, 400, "consumer"),
    "a wrong name": ("PUT", "/q/mongodb/system.x", {"json": 1}, 400, "system.x"),
    "a large body": ("PUT", "/q/sqlite/x", {"content": b"x" * (2 << 20 | 1)}, 413, "2,097,152 bytes"),
    "a deep body": ("POST", "/q/sqlite/x/batch", {"content": DEEP, "headers": TYPED}, 400, "not JSON"),
    "another method": ("DELETE", "/q/sqlite/x", {}, 405, "does not support DELETE; use GET, POST, PUT"),
    "another place": ("GET", "/queues", {}, 404, "no resource /queues"),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_and_changes_nothing(http, call):
    method, path, how, status, told = call
    refused = http.request(method, path, **how)
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["status"] == status and told in refused.json()["detail"]
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
