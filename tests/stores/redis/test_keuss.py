"""The layout that Redis shares with keuss, and queues that both use."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_queue.errors import MessageError
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.redis import documents as redis_documents
from spark_queue.stores.redis.keys import queue_keys
from spark_queue.stores.types import Sizes
from tests.stores.redis.programs import MINUTE, documents, fetched, keuss_commits, keuss_reserves, put

# --- the layout of keuss --------------------------------------------------------------------------


def test_a_push_writes_what_keuss_would_write_and_when_it_was(store, raw, queue):
    moment = 1_700_000_000_123
    due = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_000)
    store.push(
        queue,
        pa.RecordBatch.from_pylist(
            [
                {"id": id, "payload": payload, "payload_kind": kind, "headers": headers, "tries": 2, "mature": due}
                for id, payload, kind, headers in [
                    ("j", b'{"n":12345678901234567890,"f":1.0, "l":[]}', "json", None),
                    ("t", 'a "text" ü\n'.encode(), "text", [("h", 'v"'), ("ü", "")]),
                    ("b", b"\x00\xff", "binary", []),
                    ('q"', b"null", "json", []),
                ]
            ],
            schema=PUSHES,
        ),
    )  # fmt: skip
    found = documents(raw, queue)
    pushed = b"%d" % json.loads(found["j"])["pushed"]
    tail = b',"tries":2,"hdrs":{},"mature":1700000000123,"pushed":' + pushed
    assert found == {
        "j": b'{"_id":"j","payload":{"n":12345678901234567890,"f":1.0, "l":[]}' + tail + b"}",
        "t": '{"_id":"t","payload":"a \\"text\\" ü\\n"'.encode()
        + ',"tries":2,"hdrs":{"h":"v\\"","ü":""},"mature":1700000000123,"pushed":'.encode()
        + pushed
        + b"}",
        "b": b'{"_id":"b","payload":"AP8="' + tail + b',"type":"buffer"}',
        'q"': b'{"_id":"q\\"","payload":null' + tail + b"}",
    }
    scores = dict(raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True))
    assert {id: int(score) for id, score in scores.items()} == dict.fromkeys([b"j", b"t", b"b", b'q"'], moment)


@pytest.mark.parametrize(
    "text",
    [
        b'{"z":1,"a":123456789012345678901234567890,"f":1.50e3}', b"1E100", b' [ 1 , 2 ] ', b'{"a":1,"a":2}', b"[]",
        b'{"d":",\\"tries\\":7,\\"hdrs\\":{","tries":5,"hdrs":{"x":1},"mature":1}', b'{"reserved":true}',
    ],
)  # fmt: skip
def test_not_a_byte_of_a_json_payload_changes(store, queue, text):
    row = {"id": "a", "payload": text, "payload_kind": "json", "tries": 0}
    store.push(queue, pa.RecordBatch.from_pylist([row], schema=PUSHES))
    for seq in range(3):
        store.reserve(queue, f"c/{seq}", 1)
        (batch,) = store.fetch(queue, f"c/{seq}/0")
        assert batch.column("payload").to_pylist() == [text]
        assert batch.column("tries").to_pylist() == [seq]
        store.rollback(queue, f"c/{seq}")


def test_what_keuss_has_pushed_is_read(store, raw, queue):
    end = ',"mature":1700000000000'
    for id, fields in {
        "number": f'"payload":17.5,"tries":0,"hdrs":{{}}{end}',
        "none": f'"payload":null,"tries":0,"hdrs":{{}}{end}',
        "string": f'"payload":"ü","tries":3,"hdrs":{{"i":1,"b":true,"f":1.5,"s":"x","tries":"9"}}{end}',
        "buffer": f'"payload":"AP8=","tries":0,"hdrs":{{}}{end},"type":"buffer"',
        "absent": f'"tries":0,"hdrs":{{}}{end}',
        "half": f'"payload":"\\ud83d","tries":0,"hdrs":{{}}{end}',
    }.items():
        put(raw, queue, id, f'{{"_id":"{id}",{fields}}}')
    store.reserve(queue, "c/1", 9)
    got = {one.id: one for one in fetched(store, queue, "c/1/0")}
    assert {id: one.payload for id, one in got.items()} == {
        "number": 17.5, "none": None, "string": "ü", "buffer": b"\x00\xff", "absent": None, "half": "?",
    }  # fmt: skip
    assert got["string"].headers == {"i": "1", "b": "true", "f": "1.5", "s": "x", "tries": "9"}
    assert (got["string"].tries, got["none"].headers) == (3, {})
    assert got["none"].mature.timestamp() == 1_700_000_000


NASTY = '{"s":"}],{[\\"\\\\","tries":5,"hdrs":{"x":1},"mature":9,"reserved":true,"n":12345678901234567890,"l":[]}'

FIELDS = {"_id": None, "payload": NASTY, "tries": "4", "hdrs": '{"h":"}{\\""}', "mature": "1700000000000"}


@pytest.mark.parametrize("more", [{}, {"reserved": "true"}, {"reserved": "false", "other": '"x"'}])
@pytest.mark.parametrize("comma", [",", " ,\n "])
def test_a_document_is_read_and_given_back_whatever_the_order_of_its_fields(store, raw, queue, more, comma):
    fields = FIELDS | more
    orders = {
        f"m{i:04}": order for i, order in enumerate(itertools.permutations(fields)) if len(fields) == 5 or i % 7 == 0
    }
    for id, order in orders.items():
        put(raw, queue, id, "{" + comma.join(f'"{name}":{fields[name] or json.dumps(id)}' for name in order) + "}")
    assert store.reserve(queue, "c/1", 9999) == [len(orders)]
    for batch in store.fetch(queue, "c/1/0"):
        assert set(batch.column("payload").to_pylist()) == {NASTY.encode()}
        assert {(one.tries, one.headers["h"]) for one in messages(batch)} == {(4, '}{"')}
    assert store.rollback(queue, "c/1") == len(orders)
    moments = dict(raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True))
    for id, text in documents(raw, queue).items():
        assert f'"payload":{NASTY}'.encode() in text
        document = json.loads(text)
        assert list(document) == list(orders[id])
        assert (document["_id"], document["tries"], document["hdrs"]) == (id, 5, {"h": '}{"'})
        assert document["mature"] == moments[id.encode()] > 1_700_000_000_000
        assert document.get("reserved", False) is False


def test_a_document_that_redis_cannot_take_is_refused_with_all_its_batch(store, queue, monkeypatch):
    monkeypatch.setattr(redis_documents, "LARGEST_DOCUMENT", 1000)  # the server's own limit
    with pytest.raises(MessageError, match=r"'long'.*1,000") as caught:
        store.push(queue, pushes(["short", "\n" * 600], ids=["short", "long"]))
    assert list(caught.value.rows) == [1]
    assert store.sizes(queue).total == 0


# --- sharing a queue with keuss -------------------------------------------------------------------


def test_what_is_held_looks_to_keuss_as_if_it_were_not_due(store, raw, queue):
    store.push(queue, pushes(["a", "b"]))
    store.reserve(queue, "c/1", 1, lease=MINUTE)
    store.reserve(queue, "d/1", 1, lease=None)
    now = store.now()
    for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True):
        assert score > now
        assert f"{score:.0f}" > f"{now}"  # keuss compares the texts


def test_what_keuss_takes_after_the_lease_is_no_longer_held(store, raw, queue):
    store.push(queue, pushes([1, 2, 3], ids=["a", "b", "c"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b", "c"]
    assert [one.rows for one in store.reservations(queue)] == [2]
    assert store.renew(queue, "c/1", MINUTE) == 2
    assert store.rollback(queue, "c/1", ["a"]) == 0
    assert store.move(queue, f"{queue}.other", tag="c/1", ids=["a"]) == 0
    assert store.commit(queue, "c/1") == 2
    assert store.sizes(queue) == Sizes(0, 1, 0)
    assert keuss_commits(raw, queue, "a")


def test_a_tag_of_which_keuss_took_everything_can_reserve_again(store, raw, queue):
    store.push(queue, pushes([1], ids=["a"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    store.push(queue, pushes([2], ids=["b"]))
    assert store.reserve(queue, "c/1", 3) == [1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b"]


def test_a_late_commit_of_keuss_does_not_remove_what_is_ours(store, raw, queue):
    put(
        raw,
        queue,
        "a",
        '{"_id":"a","payload":{"n":[1]},"tries":0,"hdrs":{},"mature":1600000000000}',
        1_600_000_000_000,
    )
    keuss_reserves(raw, queue, "a")  # and its lease, counted from the old maturity, has ended already
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.payload for one in fetched(store, queue, "c/1/0")] == [{"n": [1]}]
    assert not keuss_commits(raw, queue, "a")
    assert store.commit(queue, "c/1") == 1


def test_what_keuss_holds_is_neither_purged_nor_moved(store, raw, queue):
    store.push(queue, pushes([1, 2], ids=["a", "b"]))
    keuss_reserves(raw, queue, "a")
    store.push(queue, pushes([{"reserved": True}], ids=["c"], delay=MINUTE))
    assert store.reserve(queue, "c/1", 9) == [1]
    store.rollback(queue, "c/1")
    assert store.move(queue, f"{queue}.other", limit=1) == 1
    assert store.purge(queue) == 1
    assert list(documents(raw, queue)) == ["a"]
    assert keuss_commits(raw, queue, "a")
