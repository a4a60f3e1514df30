"""Our own resources, in every store: lists of messages, receipts, looks, and no GET that changes anything."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from spark_queue import Queue
from spark_queue.rest.receipts import receipt_of
from spark_queue.stores.conformance.waiting import wait_until
from tests.rest.refusals import check_refused

TYPED = {"content-type": "application/json"}


@pytest.fixture
def v1(ns, queue):
    """The path of the queue."""
    return f"/v1/queues/{ns}/{queue}"


def push(http, v1, *payloads, **fields):
    pushed = http.post(f"{v1}/messages", json=[{"payload": one, **fields} for one in payloads])
    assert pushed.status_code == 200, pushed.text
    return pushed.json()["ids"]


def reserve(http, v1, **fields):
    taken = http.post(f"{v1}/reserve", json=fields)
    assert taken.status_code == 200, taken.text
    return taken.json()


def settle(http, v1, outcome, receipts, **fields):
    done = http.post(f"{v1}/{outcome}", json={"receipts": receipts, **fields})
    assert done.status_code == 200, done.text
    return done.json()


def test_push_reserve_and_settle(http, v1):
    given = [
        {"payload": {"n": 1}, "headers": {"a": "b\n"}, "id": "one"},
        {"payload": "text"},
        {"payload": {"$binary": {"base64": "AP8=", "subType": "00"}}, "tries": 1},
        {"payload": 4, "delay": 3600},
    ]
    ids = http.post(f"{v1}/messages", json=given).json()["ids"]
    assert ids[0] == "one" and len(set(ids)) == 4
    assert http.post(f"{v1}/messages", json=given[:1]).json() == {"ids": ["one"]}
    taken = reserve(http, v1, limit=10)
    by_id = {one["id"]: one for one in taken["messages"]}
    assert sorted(by_id) == sorted(ids[:3])
    assert [by_id[id]["payload"] for id in ids[:3]] == [one["payload"] for one in given[:3]]
    assert by_id["one"]["headers"] == {"a": "b\n"} and by_id[ids[2]]["tries"] == 1
    assert all(one["pushed"] == one["mature"] for one in by_id.values()), "they are due at once"
    receipts = [by_id[id]["receipt"] for id in ids[:3]]
    assert settle(http, v1, "commit", [receipts[0], receipts[0]]) == {"committed": 1}
    assert settle(http, v1, "rollback", [receipts[1]], delay="1h") == {"rolled_back": 1, "dead": 0}
    assert settle(http, v1, "renew", [receipts[2]], lease="5m") == {"held": 1}
    assert settle(http, v1, "commit", [taken["receipt"], receipts[1]]) == {"committed": 1}
    answer = http.get(v1).json()
    assert (answer["ready"], answer["scheduled"], answer["reserved"]) == (0, 2, 0)
    assert answer["counters"]["put"] == 4 and answer["counters"]["commit"] == 2
    assert reserve(http, v1) == {"receipt": None, "messages": []}


def test_a_late_receipt_touches_nothing_of_another(http, v1, store, queue):
    push(http, v1, "x")
    late = reserve(http, v1, lease="1h")
    (reservation,) = store.reservations(queue)
    assert store.renew(queue, reservation.tag, 0) == 1  # its lease has ended
    other = reserve(http, v1, wait="20s")
    assert [one["id"] for one in other["messages"]] == [one["id"] for one in late["messages"]]
    for receipt in (late["receipt"], late["messages"][0]["receipt"]):
        assert settle(http, v1, "commit", [receipt]) == {"committed": 0}
        assert settle(http, v1, "rollback", [receipt]) == {"rolled_back": 0, "dead": 0}
        assert settle(http, v1, "dead", [receipt]) == {"dead": 0}
        assert settle(http, v1, "renew", [receipt]) == {"held": 0}
    assert settle(http, v1, "commit", [other["receipt"]]) == {"committed": 1}


def test_dead_letters(http, v1):
    first, second = push(http, v1, 1, 2)
    taken = {one["id"]: one["receipt"] for one in reserve(http, v1)["messages"]}
    assert settle(http, v1, "dead", [taken[first]], reason="no such flight") == {"dead": 1}
    assert settle(http, v1, "rollback", [taken[second]]) == {"rolled_back": 1, "dead": 0}
    again = reserve(http, v1)
    assert settle(http, v1, "rollback", [again["receipt"]]) == {"rolled_back": 0, "dead": 1}  # maxTries is 2
    dead = {one["id"]: one for one in http.get(f"{v1}.dead/messages").json()["messages"]}
    assert dead[first]["headers"]["x-error"] == "no such flight" and set(dead) == {first, second}
    assert http.get(v1).json()["dead"] == 2


def test_a_wait_ends_with_the_first_message(http, v1, server, q):
    with ThreadPoolExecutor(1) as pool:
        body = {"wait": "20s", "limit": 5, "consumer": "desk"}
        waiting = pool.submit(httpx.post, f"{server.url}{v1}/reserve", json=body, timeout=120)
        wait_until(lambda: http.get(f"{q}/consumers").json())
        push(http, v1, "now")
        assert [one["payload"] for one in waiting.result().json()["messages"]] == ["now"]


def test_a_bad_message_keeps_the_whole_batch_out(http, v1):
    for bad, rule in (
        ({"payload": 1, "dealy": 5}, "did you mean 'delay'"),
        ({"id": "x"}, "it is not a message"),
        ({"payload": 1, "delay": -1}, "delay is negative"),
        ({"payload": 1, "headers": {"a": 1}}, "headers"),
        ({"payload": 1, "mature": "2026-01-01T00:00"}, "time zone"),
        ({"payload": 1, "id": "i" * 201}, "longer than 200"),
    ):
        refused = http.post(f"{v1}/messages", json=[{"payload": 0}, bad])
        assert refused.status_code == 400 and refused.headers["content-type"] == "application/problem+json"
        assert rule in refused.json()["detail"] and list(refused.json()["rows"]) == ["1"]
    half = http.post(f"{v1}/messages", content=rb'[{"payload": ["\ud800", 12345678901234567890123]}]', headers=TYPED)
    assert half.status_code == 400 and "the body is not JSON" in half.json()["detail"]
    many = http.post(f"{v1}/messages", json=[{"payload": 1, "dealy": 5}] * 1_500)
    assert len(many.json()["rows"]) == 100 and len(many.content) < 20_000
    assert http.get(v1).json()["ready"] == 0


def test_what_looks_like_extended_json_is_pushed_as_it_is(http, v1):
    given = [{"$binary": {}}, {"$oid": None}, {"a": {"$regularExpression": {}}}]
    push(http, v1, *given)
    assert [one["payload"] for one in reserve(http, v1)["messages"]] == given


def test_what_is_too_much_at_once_stays_in_the_queue(http, v1, store, queue):
    with Queue(store, queue) as client:
        client.push_many([b"x" * (5 << 20)] * 6)
    first = reserve(http, v1, limit=6)
    assert 0 < len(first["messages"]) < 6
    assert store.sizes(queue).reserved == len(first["messages"])
    assert settle(http, v1, "commit", [first["receipt"]]) == {"committed": len(first["messages"])}
    assert store.sizes(queue).ready == 6 - len(first["messages"])


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}, TYPED])
def test_a_body_of_curl_is_json(http, v1, headers):
    pushed = http.post(f"{v1}/messages", content=b'[{"payload": 1}]', headers=headers)
    assert pushed.status_code == 200
    refused = http.post(f"{v1}/messages", content=b"a=1", headers=headers)
    assert refused.status_code == 400 and "not JSON" in refused.json()["detail"]


def test_a_look_changes_nothing_and_reads_on(http, v1):
    ids = push(http, v1, *range(25))
    later = push(http, v1, "later", delay=3600)
    held = reserve(http, v1, limit=3)
    before = http.get(v1).json()
    found, after = [], {}
    while True:
        page = http.get(f"{v1}/messages", params={"limit": 10, **after}).json()
        found += [one["id"] for one in page["messages"]]
        assert not any("receipt" in one for one in page["messages"])
        if page["after"] is None:
            break
        after = {"after": page["after"]}
    assert found == sorted(ids) + later and len(held["messages"]) == 3
    answer = http.get(v1).json()
    changing = {"oldest"}
    assert {name: answer[name] for name in answer.keys() - changing} == {
        name: before[name] for name in before.keys() - changing
    }


def test_a_look_with_conditions(http, v1):
    ids = push(http, v1, *range(5))
    push(http, v1, "tried", tries=3)
    push(http, v1, "later", delay=3600)

    def payloads(**params):
        answer = http.get(f"{v1}/messages", params=params)
        assert answer.status_code == 200, answer.text
        return [one["payload"] for one in answer.json()["messages"]]

    assert payloads(id=[ids[3], ids[1], "none"]) == [1, 3]
    assert payloads(min_tries=1) == ["tried"]
    soon = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    assert payloads(due_from=soon) == ["later"]
    assert payloads(due_until=soon, limit=3) == [0, 1, 2]


def test_lists_of_queues(http, v1, ns, queue):
    push(http, v1, 1, 2)
    listed, after = [], {}
    while True:
        page = http.get("/v1/queues", params={"ns": ns, "limit": 2, **after}).json()
        assert len(page["queues"]) <= 2
        listed += page["queues"]
        if page["after"] is None:
            break
        after = {"after": page["after"]}
    names = [one["queue"] for one in listed]
    assert names == sorted(names)
    (mine,) = [one for one in listed if one["queue"] == queue]
    assert (mine["ns"], mine["ready"], mine["paused"], mine["capped"]) == (ns, 2, False, [])
    assert {one["ns"] for one in http.get("/v1/queues?limit=1000").json()["queues"]} >= {ns}
    assert http.get("/v1/queues?ns=nope").status_code == 404


def test_pause_and_resume(http, v1):
    assert http.post(f"{v1}/pause").json() == {"paused": True}
    push(http, v1, 1)
    assert http.get(v1).json()["paused"] is True and reserve(http, v1)["messages"] == []
    assert http.post(f"{v1}/resume").json() == {"paused": False}
    assert len(reserve(http, v1, wait="20s")["messages"]) == 1


MANY, DEEP = [{"payload": 1}] * 2001, b"[" * 100_000 + b"1234567890123456789"
X, CSV = "/v1/queues/sqlite/x", {"content-type": "text/csv"}

WRONG = {
    "an unknown namespace": ("GET", "/v1/queues/sqlit/x", {}, 404, "did you mean 'sqlite'"),
    "an unknown parameter": ("GET", f"{X}?exct=1", {}, 400, "did you mean 'exact'"),
    "an unknown field": ("POST", f"{X}/reserve", {"json": {"lim": 1}}, 400, "did you mean 'limit'"),
    "no object": ("POST", f"{X}/reserve", {"json": [1]}, 400, "JSON object"),
    "too many": ("POST", f"{X}/reserve", {"json": {"limit": 2001}}, 400, "1 to 2000"),
    "no number": ("POST", f"{X}/reserve", {"json": {"limit": "5"}}, 400, "a whole number"),
    "too long a wait": ("POST", f"{X}/reserve", {"json": {"wait": "21s"}}, 400, "20000ms"),
    "too short a lease": ("POST", f"{X}/reserve", {"json": {"lease": "1ms"}}, 400, "100ms"),
    "no duration": ("POST", f"{X}/reserve", {"json": {"wait": "soon"}}, 400, "30s"),
    "a wrong consumer": ("POST", f"{X}/reserve", {"json": {"consumer": "a/b"}}, 400, "letters, digits"),
    "too many pushed": ("POST", f"{X}/messages", {"json": MANY}, 400, "2,000 at most"),
    "no list": ("POST", f"{X}/messages", {"json": {"payload": 1}}, 400, "JSON array"),
    "no body": ("POST", f"{X}/messages", {}, 400, "JSON array"),
    "another type": ("POST", f"{X}/messages", {"content": "[]", "headers": CSV}, 415, "json"),
    "a deep body": ("POST", f"{X}/messages", {"content": DEEP, "headers": TYPED}, 400, "not JSON"),
    "nothing to settle": ("POST", f"{X}/commit", {"json": {"receipts": []}}, 400, "one or more"),
    "no receipts": ("POST", f"{X}/commit", {"json": {}}, 400, "'receipts' is missing"),
    "no receipt": ("POST", f"{X}/commit", {"json": {"receipts": [receipt_of("etl/1")]}}, 400, "receipt 0"),
    "a negative delay": ("POST", f"{X}/rollback", {"json": {"receipts": ["x"], "delay": "-1s"}}, 400, "delay"),
    "no cursor": ("GET", f"{X}/messages?after=x", {}, 400, "'after'"),
    "a cursor of something else": ("GET", f"{X}/messages?after=WzFd", {}, 400, "'after'"),
    "no time zone": ("GET", f"{X}/messages?due_from=2026-01-01T00:00:00", {}, 400, "time zone"),
    "a large body": ("POST", f"{X}/messages", {"content": b"x" * (2 << 20 | 1)}, 413, "2,097,152 bytes"),
    "a GET that would reserve": ("GET", f"{X}/reserve", {}, 405, "use POST"),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_and_changes_nothing(http, call):
    check_refused(http, call)
    assert http.get(X).json()["ready"] == 0
