"""The answers of keuss-server, request by request: status, body and headers that its clients may rely on."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from spark_queue import Queue
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered

JSON, UTF8 = {"content-type": "application/json"}, "application/json; charset=utf-8"


def test_lists(http, ns, q, queue):
    http.put(q, json=1)
    for path in ("/q", "/q?reload=1"):
        names = http.get(path)
        assert names.json() == registered.schemes()
        assert names.headers["content-type"] == UTF8
    (mine,) = [one for one in http.get("/q?array=1").json()["data"] if one["name"] == queue]
    assert mine["factory"]["name"] == ns and mine["capabilities"]["reserve"] is True and mine["totalSize"] == 1
    (folder,) = [one for one in http.get("/q?tree=1").json() if one["key"] == ns]
    (leaf,) = [one for one in folder["children"] if one["key"] == f"{queue}@{ns}"]
    assert folder["folder"] is True and (leaf["title"], leaf["size"], leaf["total"]) == (leaf["key"], 1, 1)
    among_all, alone = http.get(f"/q/{ns}").json()[queue], http.get(f"{q}/status").json()
    changing = ("next_t", "next_mature_t")
    assert {name: value for name, value in among_all.items() if name not in changing} == {
        name: value for name, value in alone.items() if name not in changing
    }
    assert [one["name"] for one in http.get(f"/q/{ns}?array=1").json()["data"] if one["queue"] == queue] == [queue]
    unknown = http.get("/q/nope")
    assert unknown.status_code == 404 and "no such queue namespace [nope]" in unknown.json()["detail"]


@pytest.mark.parametrize(
    ("body", "media", "got", "shown"),
    [
        (b'"x"', "application/json", b'"x"', UTF8),
        (b"true", "application/json", b"true", UTF8),
        (b"[]", "application/json", b"[]", UTF8),
        (b"{}", "application/json", b"{}", UTF8),
        (b"5", "application/json", b"5", UTF8),
        (b'{"n":12345678901234567}', "application/json", b'{"n":12345678901234567}', UTF8),
        (b'{"a":1}', "application/vnd.x+json", b'{"a":1}', "application/vnd.x+json"),
        ('{"a":"é"}'.encode(), UTF8, '{"a":"é"}'.encode(), UTF8),
        (b"a=1", "application/x-www-form-urlencoded", b"a=1", "application/x-www-form-urlencoded"),
        (b"", "", b"", "application/octet-stream"),
        (b"hello", "", b"hello", "application/octet-stream"),
    ],
)  # fmt: skip
def test_bodies(http, q, body, media, got, shown):
    sent = http.put(q, content=body, headers={"content-type": media} if media else {})
    assert (sent.status_code, list(sent.json())) == (200, ["id"])
    answer = http.get(q)
    assert answer.content.replace(b" ", b"") == got and answer.headers["content-type"] == shown
    assert answer.headers["x-ks-id"] == sent.json()["id"] and "x-ks-receipt" not in answer.headers


def test_a_body_that_is_no_json(http, q):
    refused = http.put(q, content=b"{", headers=JSON)
    assert refused.status_code == 400 and "not JSON" in refused.json()["detail"]  # keuss-server: 500
    assert http.get(f"{q}/status").json()["totalSize"] == 0


@pytest.mark.parametrize(("to", "longest"), [("300", 20), ("0", 10), ("abc", 10), ("", 10), ("nan", 10), ("-1", 10)])
def test_a_wait(http, q, to, longest):
    began = time.monotonic()
    answer = http.get(q, params={"to": to})
    assert answer.status_code == 504 and set(answer.json()) == {"timeout", "tid", "since"}
    assert (0.29 if to == "300" else 0) < time.monotonic() - began < longest


@pytest.mark.parametrize("to", [None, "120000", "1e12", "inf"])
def test_a_long_wait_is_cut_to_what_the_server_allows(http, q, server, to):
    with ThreadPoolExecutor(1) as pool:
        params = {} if to is None else {"to": to}
        pop = pool.submit(httpx.get, server.url + q, params=params, timeout=120)
        wait_until(lambda: http.get(f"{q}/consumers").json())
        http.put(q, json="came")
        assert pop.result().json() == "came"


def test_unknown_parameters_are_ignored(http, q):
    assert http.put(q, json=1, params={"dealy": 5, "groups": "a"}).status_code == 200
    assert http.get(q, params={"group": "G1", "x": 1}).json() == 1


def test_parameters_of_a_push(http, q):
    soon = time.time() + 0.4
    http.put(q, json="mature", params={"mature": soon, "delay": 3600})  # the first wins
    http.put(q, json="now", params={"delay": -5, "tries": 1})
    got = http.get(q, params={"to": 0})
    assert (got.json(), got.headers["x-ks-tries"]) == ("now", "1")
    assert http.get(q, params={"to": 0}).status_code == 504
    assert http.get(q).json() == "mature" and time.time() > soon - 0.05


def test_outcomes(http, q):
    id = http.put(q, json={"r": 1}).json()["id"]
    for tries, delay in ((0, None), (1, 0)):
        got = http.get(q, params={"reserve": "true", "to": 20_000})
        assert (got.headers["x-ks-id"], got.headers["x-ks-tries"]) == (id, str(tries))
        done = http.patch(f"{q}/rollback/{id}", params={} if delay is None else {"delay": delay})
        assert (done.status_code, done.json()) == (200, {})  # the second makes it a dead letter
    assert http.get(q, params={"to": 0}).status_code == 504
    dead = http.get(f"{q}.dead", params={"to": 0})
    assert dead.json() == {"r": 1} and dead.headers["x-ks-hdr-x-dl-tries"] == "2"
    for outcome in ("commit", "rollback"):
        gone = http.patch(f"{q}/{outcome}/{id}")
        assert gone.status_code == 404 and id in gone.json()["detail"]


def test_a_receipt_is_fenced_and_an_id_is_not(http, q, store, queue):
    from spark_queue.rest.receipts import parse_receipt

    id = http.put(q, json="x").json()["id"]
    first = http.get(q, params={"reserve": 1}).headers["x-ks-receipt"]
    (held,) = store.reservations(queue)
    assert parse_receipt(first) == (held.tag.removesuffix("/0"), None)
    assert store.renew(queue, held.tag, 0) == 1  # its lease has ended
    second = http.get(q, params={"reserve": 1, "to": 20_000, "consumer": "desk"})
    assert second.headers["x-ks-id"] == id and second.headers["x-ks-receipt"] != first
    assert [one.tag.split("/")[:2] for one in store.reservations(queue)] == [["rest", "desk"]]
    for outcome in ("commit", "rollback", "renew"):
        late = http.patch(f"{q}/{outcome}/{first}")
        assert late.status_code == 404 and "its lease has ended" in late.json()["detail"]
    assert http.patch(f"{q}/renew/{id}").status_code == 404
    assert http.patch(f"{q}/renew/{second.headers['x-ks-receipt']}", params={"lease": 60_000}).json() == {"held": 1}
    assert http.patch(f"{q}/commit/{id}").json() == {}
    assert store.sizes(queue).total == 0


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_id_settles_the_message_wherever_it_was_reserved(http, q, store, queue, outcome):
    """This server remembers what it reserved; another one, or a later call of itself, may have reserved it since."""
    id = http.put(q, json="x").json()["id"]
    assert http.get(q, params={"reserve": 1}).headers["x-ks-id"] == id
    (held,) = store.reservations(queue)
    assert store.renew(queue, held.tag, 0) == 1  # its lease has ended
    elsewhere = "rest/0123456789abcdef"
    wait_until(lambda: sum(store.reserve(queue, elsewhere, 1, lease=60_000)) == 1)
    assert http.patch(f"{q}/{outcome}/{id}").json() == {}
    assert store.sizes(queue).reserved == 0
    assert http.patch(f"{q}/{outcome}/{id}").status_code == 404


def test_an_id_settles_nothing_that_is_held_elsewhere(http, q, store, queue):
    """What a query or a client holds is not settled by an id over HTTP."""
    id = http.put(q, json="x").json()["id"]
    with Queue(store, queue, consumer="query") as client:
        (held,) = client.reserve(1)
        for outcome in ("commit", "rollback"):
            assert http.patch(f"{q}/{outcome}/{id}").status_code == 404
        assert http.delete(f"{q}/{id}").status_code == 404
        assert store.sizes(queue).reserved == 1
        client.commit(held)


def test_a_receipt_of_before_stays_valid(http, q, store, queue):
    """Until now the name of a consumer was part of the first word of a tag."""
    from spark_queue.rest.receipts import receipt_of

    http.put(q, json="x")
    tag = "rest:desk/0123456789abcdef"
    assert sum(store.reserve(queue, tag, 1, lease=60_000)) == 1
    assert http.patch(f"{q}/commit/{receipt_of(tag)}").status_code == 200
    assert store.sizes(queue).total == 0


def test_pause(http, q):
    paused = http.patch(f"{q}/pause")
    assert (paused.status_code, paused.content) == (201, b"")
    assert http.get(f"{q}/paused").json() is True and http.get(f"{q}/status").json()["paused"] is True
    assert http.put(q, json=1).status_code == 200
    assert http.get(q, params={"to": 100}).status_code == 504
    resumed = http.patch(f"{q}/resume")
    assert (resumed.status_code, resumed.content) == (201, b"")
    assert http.get(q, params={"to": 20_000}).json() == 1


def test_cancelling_what_does_not_wait(http, q):
    answer = http.delete(f"{q}/consumer/nobody")
    assert (answer.status_code, answer.content) == (200, b"")


def test_headers_of_a_message(http, q):
    http.put(q, json=1, headers={"x-ks-hdr-MyName": "v1", "x-ks-hdr-n": "5"})
    got = http.get(q)
    assert (got.headers["x-ks-hdr-myname"], got.headers["x-ks-hdr-n"]) == ("v1", "5")


@pytest.mark.parametrize("headers", [{f"h{n}": "x" for n in range(120)}, {f"h{n}": "x" * 7_000 for n in range(3)}])
def test_headers_that_fit_into_no_head(http, q, store, queue, headers):
    """Clients of HTTP refuse a head of that size, and the message would be lost."""
    with Queue(store, queue) as client:
        client.push({"n": 1}, headers=headers)
    got = http.get(q, params={"reserve": 1})
    whole = got.json()
    assert got.headers["x-ks-whole"] == "1" and len(got.headers) < 20
    assert whole["payload"] == {"n": 1} and whole["headers"] == headers and whole["id"] == got.headers["x-ks-id"]
    assert http.patch(f"{q}/commit/{got.headers['x-ks-receipt']}").status_code == 200


def test_exchanges_that_do_not_exist(http):
    missing = http.get("/x/n")
    assert missing.status_code == 404 and "no such exchange [n]" in missing.json()["detail"]


def test_the_names_of_metrics(http, ns, q, queue):
    http.put(q, json=1)
    http.get(q)

    def sample(text):
        lines = http.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(text)), None)

    labels = f'{{ns="{ns}",proto="rest",q="{queue}",status="ok"}}'
    wait_until(lambda: sample(f"keuss_q_pop{labels}") == 1)
    assert sample(f"keuss_q_push{labels}") == sample(f"keuss_q_push_total{labels}") == 1
    for name in ("size", "totalSize", "schedSize", "resvSize", "put", "get", "reserve", "commit", "rollback"):
        assert sample(f'q_global_{name}{{ns="{ns}",q="{queue}"}}') is not None
