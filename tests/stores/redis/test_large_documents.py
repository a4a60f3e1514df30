"""Long documents in Redis: the scripts read them from their ends, and copy them as seldom as they can."""

from __future__ import annotations

import itertools
import json

import pytest
import redis

from spark_queue import open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.redis.keys import queue_keys
from spark_queue.stores.types import DeadLetterInfo
from tests.redis_server import Server
from tests.stores.redis.programs import documents, fetched, put

#: A payload that looks like the end of a document, in parts longer than what the scripts read at once.
NASTY = '{"s":"}],{[\\"\\\\","tries":5,"hdrs":{"x":1},"mature":9,"reserved":true,"l":[]}'
PAYLOADS = {
    "ends nasty": '{"pad":"' + "x," * 5_000 + '","last":' + NASTY + "}",
    "begins nasty": '{"first":' + NASTY + ',"pad":["' + '","'.join(["x"] * 5_000) + '"]}',
    "a text": '"' + "x" * 10_000 + '\\",\\"tries\\":7,\\"hdrs\\":{}"',
    "a text with a backslash at its end": '"' + "x" * 10_000 + ',\\\\"',
    "nested": "[" * 500 + "1," * 5_000 + "1" + "]" * 500,
    "many fields": "{" + ",".join(f'"tries{n}":{{"tries":{n},"hdrs":{{}}}}' for n in range(500)) + "}",
}
HEADERS = {"h": '"}{\\""', "tries": '"9"', "hdrs": '"{"'}
LONG_HEADERS = HEADERS | {"long": '"' + "y" * 10_000 + '"'}


def full(value):
    return pytest.param(value, marks=pytest.mark.full)


def as_object(fields, comma=","):
    return "{" + comma.join(f'"{name}":{text}' for name, text in fields.items()) + "}"


@pytest.mark.parametrize("headers", [full({}), HEADERS, full(LONG_HEADERS)], ids=["none", "some", "long"])
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize(
    "more", [full({}), {"reserved": "true"}, full({"reserved": "false", "other": '{"tries":8}'})]
)
def test_a_long_document_is_changed_whatever_the_order_of_its_fields(store, raw, queue, payload, headers, more):
    fields = {
        "_id": "",
        "payload": payload,
        "tries": "4",
        "hdrs": as_object(headers),
        "mature": "1700000000000",
        **more,
    }
    orders = list(itertools.permutations(fields))
    orders = orders[:: 1 if len(fields) == 5 else 17 if len(fields) == 6 else 113]
    for number, order in enumerate(orders):
        id, comma = f"m{number:04}", " ,\n " if number % 10 == 9 else ","
        put(raw, queue, id, as_object({name: fields[name] or json.dumps(id) for name in order}, comma))
    assert store.reserve(queue, "c/1", 9_999) == [len(orders)]
    assert {(one.tries, *sorted(one.headers)) for one in fetched(store, queue, "c/1/0")} == {(4, *sorted(headers))}
    assert store.rollback(queue, "c/1") == len(orders)
    moments = dict(raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True))
    expected = {name: json.loads(text) for name, text in headers.items()}
    for id, text in documents(raw, queue).items():
        assert f'"payload":{payload}'.encode() in text
        document = json.loads(text)
        assert list(document) == list(orders[int(id[1:])])
        assert (document["_id"], document["tries"], document["hdrs"]) == (id, 5, expected)
        assert document["mature"] == moments[id.encode()] > 1_700_000_000_000
        assert document.get("reserved", False) is False
    assert store.move(queue, f"{queue}.dead", min_tries=5, dead_letter=DeadLetterInfo("no", 1)) == len(orders)
    for text in documents(raw, f"{queue}.dead").values():
        document = json.loads(text)
        assert document["tries"] == 0 and document["hdrs"].items() >= (expected | {"x-dl-tries": "6"}).items()
        assert f'"payload":{payload}'.encode() in text


def test_a_long_document_that_does_not_change_moves_as_it_is(store, raw, queue):
    store.push(queue, pushes([{"a": "x" * 10_000}, {"b": 1}], ids=["a", "b"], headers={"h": "1"}))
    before = documents(raw, queue)
    assert store.move(queue, f"{queue}.other") == 2
    assert documents(raw, f"{queue}.other") == before


def test_a_step_with_a_large_document_of_keuss_takes_no_longer_than_with_one_of_ours(tmp_path):
    """Seconds for 20 MB, in which the server does nothing else, if a script walks through the payload."""
    server = Server(tmp_path)
    try:
        with open_store(server.url) as opened, redis.Redis.from_url(server.url, protocol=2) as client:
            payload = [{"b": 'c"d'}] * 80_000  # 1 MB
            times = {}
            for kind in ("ours", "keuss"):
                opened.push(kind, pushes([payload], ids=["a"]))
                if kind == "keuss":
                    document = json.loads(documents(client, kind)["a"])
                    order = ("mature", "payload", "hdrs", "tries", "_id")
                    text = json.dumps({one: document[one] for one in order}, separators=(",", ":"))
                    client.hset(queue_keys(kind).hash, "a", text)
                times[kind] = min(time_of_rollback(opened, client, kind, seq) for seq in range(5))
                assert json.loads(documents(client, kind)["a"])["tries"] == 5
            assert times["keuss"] < 8 * times["ours"], times
    finally:
        server.kill()


def time_of_rollback(store, client, queue, seq):
    """Return the processor time of the server for a rollback (s)."""
    store.reserve(queue, f"c/{seq}", 1)
    before = client.info("cpu")["used_cpu_user_main_thread"]
    assert store.rollback(queue, f"c/{seq}") == 1
    return client.info("cpu")["used_cpu_user_main_thread"] - before
