"""A record that cannot be read becomes a dead letter; the other messages of its queue flow."""

from __future__ import annotations

import re
import sqlite3
from datetime import UTC, datetime

import pytest
import redis
from bson import ObjectId
from pymongo import MongoClient

from spark_queue import Queue, open_store
from spark_queue.admin import damage, doctor, reservations
from spark_queue.admin.queues import move
from spark_queue.errors import StoreError, UsageError
from spark_queue.messages.buckets import Buckets, rows_of
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.message import messages, pushes
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import read_layout
from spark_queue.stores.policy import QueuePolicy
from spark_queue.stores.redis.keys import note_key
from spark_queue.stores.services.ageing import sweep
from spark_queue.stores.services.dead_letters import history_of, settled_count
from spark_queue.stores.services.ledger import ledger_of
from spark_queue.stores.services.log.log import Log, find_retained
from spark_queue.stores.services.owner import consumers
from spark_queue.stores.services.query_binding import query_bindings
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.support.dead_lettering import SET_ASIDE_TAG
from spark_queue.stores.types import Condition, queue_note_key
from tests import odd, registered
from tests.owners import owner_of
from tests.tiers import param

#: Before all that is put as of 1970.
EARLY = datetime.fromtimestamp(1, UTC)


def is_fast(kind):
    return registered.embedded(kind.partition("/")[0])


@pytest.fixture(params=[param(kind, fast=is_fast(kind)) for kind in odd.TABLE])
def kind(request):
    return request.param


@pytest.fixture
def url(kind, url_of):
    scheme, layout = kind.split("/")
    return registered.in_layout(url_of(scheme), layout)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        opened.now()
        yield opened


def payload(n):
    return {"n": str(n)}


def letter_of(store, queue):
    """The only dead letter of a queue, with its payload as text."""
    (batch,) = store.peek(dead_letter_queue(queue), check_json=False)
    (letter,), (headers,) = batch.column("payload").to_pylist(), header_dicts(batch)
    (id,) = batch.column("id").to_pylist()
    return headers.get("x-dl-id", id), letter.decode(errors="replace").replace('\\"', '"'), headers


def check_letter(store, queue, one):
    id, text, headers = letter_of(store, queue)
    assert one.reason in headers["x-error"]
    assert headers["x-dl-from-queue"] == queue
    assert {"x-dl-t", "x-dl-tries"} <= headers.keys()
    assert one.raw.replace('\\"', '"') in text
    assert one.id in id or one.id == "odd"  # a list has no ids


def each_odd(*kinds):
    cases = [(kind, one) for kind, found in odd.TABLE.items() for one in found if not kinds or kind in kinds]
    return pytest.mark.parametrize(
        ("kind", "one"),
        [
            pytest.param(kind, one, id=f"{kind}: {one.name}", marks=() if is_fast(kind) else pytest.mark.full)
            for kind, one in cases
        ],
    )


@each_odd()
def test_one_odd_record_stops_no_reader(kind, one, url, store, queue):
    odd.put(kind, url, queue, one.record, mature=5)
    store.push(queue, pushes([payload(1)]))
    store.push(queue, pushes([payload(2), payload(3)]))
    total = store.sizes(queue).total
    assert total == 3 + one.rows
    with Queue(store, queue) as client:
        found = client.reserve(10) + client.reserve(10)
        assert sorted(one.payload["n"] for one in found) == ["1", "2", "3"]
        assert client.commit(*found) == 3
    assert store.sizes(queue).total == 0
    check_letter(store, queue, one)


@each_odd()
def test_peek_shows_it_and_changes_nothing(kind, one, url, store, queue):
    odd.put(kind, url, queue, one.record, mature=5)
    store.push(queue, pushes([payload(1)]))
    for limit in (None, 10):
        batches = list(store.peek(queue, limit=limit))
        reasons = [headers.get("x-error", "") for batch in batches for headers in header_dicts(batch)]
        assert len(reasons) == 2
        assert sorted(bool(one) for one in reasons) == [False, True]
        assert any(one.reason in reason for reason in reasons)
        assert [one for batch in batches for one in messages(batch)]
    assert store.sizes(queue).total == 1 + one.rows


def odd_of(kind):
    """The first odd record of a layout, and the URL-independent facts of it."""
    return odd.TABLE[kind][0]


@pytest.mark.parametrize("how", ["name", "size"])
def test_what_no_dead_letter_queue_takes_is_set_aside(kind, how, url, store, queue, monkeypatch):
    one = odd_of(kind)
    odd.put(kind, url, queue, one.record, mature=5)
    store.push(queue, pushes([payload(1)]))
    if how == "size":
        monkeypatch.setattr(store, "max_payload", 3)
        dead = f"{queue}.dead"
    else:
        dead = "x" * 300
    assert store.reserve(queue, "c/1", 10)
    (batch,) = store.queue(queue, QueuePolicy(dead_letter_queue=dead)).read("c/1/0")
    assert [message.payload["n"] for message in messages(batch)] == ["1"]
    held = {found.tag: (found.rows, found.until) for found in store.reservations(queue)}
    assert held.keys() == {"c/1/0", SET_ASIDE_TAG}
    assert held[SET_ASIDE_TAG] == (one.rows, None)
    assert store.sizes(queue).reserved == 1 + one.rows
    store.commit(queue, "c/1")
    monkeypatch.undo()
    assert store.rollback(queue, SET_ASIDE_TAG, failed=False) == one.rows
    with Queue(store, queue) as client:
        assert client.reserve(10) == []
    check_letter(store, queue, one)


def test_a_letter_whose_id_another_message_has_gets_another_one(kind, url, store, queue):
    one = odd_of(kind)
    odd.put(kind, url, queue, one.record, mature=5)
    if store.ids_unique_per_store or "ids" in store.unsupported:
        pytest.skip("an id names one message in all queues, or none in particular")
    store.reserve(queue, "c/1", 1)
    (row,) = store.peek_reserved(queue, "c/1/0")
    (id,) = row.column("id").to_pylist()
    if not id.startswith("\x7f"):
        store.push(dead_letter_queue(queue), pushes([payload("mine")], ids=[id]))
    assert list(store.queue(queue).read("c/1/0", check_json=True)) == []
    found = [message for batch in store.peek(dead_letter_queue(queue)) for message in messages(batch)]
    letters = [message for message in found if "x-error" in message.headers]
    assert len(letters) == 1
    assert letters[0].headers["x-dl-id"] == id
    assert len(found) == (1 if id.startswith("\x7f") else 2)


def test_the_history_keeps_it_and_shows_it(kind, url, store, queue):
    one = odd_of(kind)
    odd.put(kind, url, queue, one.record, mature=5)
    with Queue(store, queue, history=60) as client:
        assert client.reserve(1) == []
    check_letter(store, queue, one)
    if not store.supports_forward:  # there an id is in one place
        (batch,) = store.peek(queue, view="history")
        assert batch.column("outcome").to_pylist() == ["dead"]
        assert one.reason in header_dicts(batch)[0]["x-error"]


@each_odd()
def test_it_can_be_held_renewed_passed_on_and_given_back(kind, one, url, store, queue):
    odd.put(kind, url, queue, one.record, mature=5)
    assert store.reserve(queue, "a/1", 10, lease=60_000) == [one.rows]
    assert store.renew(queue, "a/1", 120_000) == one.rows
    assert store.transfer(queue, "a/1", "b/1/0", lease=60_000) == one.rows
    assert store.rollback(queue, "b/1", failed=True) == one.rows
    assert store.move(queue, f"{queue}.other") in (one.rows, rows_of(one.id))
    assert store.sizes(queue).total == 0
    with Queue(store, f"{queue}.other", dead_letter_queue=dead_letter_queue(queue)) as client:
        client.reserve(10)
    # A move lets the tries start anew: where these were damaged, it is a message again.
    assert store.sizes(f"{queue}.other").total + store.sizes(dead_letter_queue(queue)).total == 1


def test_a_log_shows_it_where_it_lies(kind, url, store, queue):
    if "holds" in store.unsupported:
        pytest.skip("the layout has no logs")
    bucket = next((one for one in odd.TABLE[kind] if one.rows > 1), odd_of(kind))
    store.push(queue, pushes([payload(1)], mature=[EARLY]))
    odd.put(kind, url, queue, bucket.record, mature=5_000)
    store.push(queue, pushes([payload(2)]))
    log = Log(store, queue)
    pieces = log.next_ranges(log.first(), 100)
    assert sum(piece.rows for piece in pieces) == 2 + bucket.rows
    rows = [headers for piece in pieces for batch in log.fetch(piece) for headers in header_dicts(batch)]
    assert ["x-error" in headers for headers in rows] == [False, *[True] * bucket.rows, False]
    assert store.sizes(queue).total == 2 + bucket.rows


# --- ids of all types -----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", odd.IDS)
@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.full) for one in odd.TABLE if "mongodb" in one])
def test_an_id_of_any_type_settles_its_message(kind, type_, url, store, queue):
    key, id = odd.IDS[type_]
    document = {"_id": key, "payload": {"n": "1"}, "tries": 0, "hdrs": {}}
    if "bucket" in kind:
        document, id = {"_id": key, "b": [{"__p": {"n": "1"}, "__h": {}}], "n": 1}, f"{id}:0"
    odd.put(kind, url, queue, document, mature=5)
    store.push(queue, pushes([payload(2)]))
    assert store.reserve(queue, "a/1", 10) == [2]
    found = {one.payload["n"]: one.id for batch in store.fetch(queue, "a/1/0") for one in messages(batch)}
    assert found["1"] == id
    assert [one.id for batch in store.peek(queue, [Condition("id", "=", id)]) for one in messages(batch)] == [id]
    assert store.transfer(queue, "a/1", "b/1/0", [id], lease=60_000) == 1
    assert store.rollback(queue, "b/1", [id]) == 1
    assert store.commit(queue, "a/1") == 1
    assert store.move(queue, f"{queue}.other", ids=[id]) == 1
    assert store.move(f"{queue}.other", queue) == 1
    with Queue(store, queue) as client:
        (message,) = client.reserve(10)
        assert (message.id, message.payload) == (id, {"n": "1"})
        assert client.commit(message) == 1
    assert store.sizes(queue).total == 0


# --- notes, and what doctor says ------------------------------------------------------------------


def damage_note(url, key, text):
    """Write a note that cannot be read, as a failing disk does."""
    if url.startswith("sqlite"):
        db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        db.execute("INSERT OR REPLACE INTO note VALUES (?, ?, 1, 0)", (key, text))
        db.close()
    elif url.startswith("mongodb"):
        with MongoClient(StoreUrl.parse(url).url) as client:
            client.get_default_database()["spark_queue.notes"].replace_one(
                {"_id": key}, {"_id": key, "value": text, "version": 1}, upsert=True
            )
    else:
        with redis.Redis.from_url(url, protocol=2) as client:
            client.hset(note_key(key), mapping={"value": text, "version": 1})


@pytest.mark.parametrize("kind", [param(f"{one}/", fast=registered.embedded(one)) for one in registered.schemes()])
@pytest.mark.parametrize("text", ["{oops", "[1]", "5"])
def test_a_damaged_note_is_named_and_removed(kind, text, url, store, queue):
    key = queue_note_key(queue, "layout")
    damage_note(store.url, key, text)
    with pytest.raises(StoreError, match=f"the note '{key}' is damaged"):
        store.note(key)
    with pytest.raises(StoreError, match="--remove-note"):
        store.push(queue, pushes([payload(1), payload(2)]))
    found = [one for one in doctor.examine(store.url) if one.what == "note" and key in one.told]
    assert [one.todo for one in found] == [f"spark-queue doctor URL --remove-note {key}"]
    damage.remove_note(store.url, key)
    assert store.note(key) is None
    damage_note(store.url, key, text)
    store.drop(queue)
    assert store.note(key) is None


@pytest.mark.parametrize("kind", ["sqlite/"])
def test_a_sound_note_is_not_removed(kind, store, queue):
    store.set_note(queue_note_key(queue, "layout"), {"size": 3, "compression": "lz4"}, 0)
    with pytest.raises(UsageError, match="is not damaged"):
        damage.remove_note(store.url, queue_note_key(queue, "layout"))


#: Notes of a wrong shape, and what calls read them.
WRONG_NOTES = {
    "ledger/sink": ('{"v":1,"batch":"x"}', lambda store: ledger_of(store, "sink")),
    "ledger/b": ('{"v":1,"batch":1,"stages":[1]}', lambda store: ledger_of(store, "b")),
    "queue/q/consumer/c/1": (
        '{"v":2,"number":1,"started":[1],"owner":null}', lambda store: owner_of(store, "q", "c/1"),
    ),
    "queue/q/consumer/c": (
        '{"v":2,"number":1,"started":null,"owner":{"token":"t"}}', lambda store: [*consumers(store)],
    ),
    "queue/q/consumer/d": ('{"v":1,"token":"t"}', lambda store: [*consumers(store, "q")]),
    "queue/q/query/a/": ('{"v":1}', lambda store: query_bindings(store, "q", "c/1")),
    "queue/q/settled/c": ('{"rows":"3"}', lambda store: settled_count(store, "q", "c")),
    "queue/q/history/c": ('{"v":1,"history":true}', lambda store: history_of(store, "q", "c")),
    "queue/q/layout": ('{"v":1,"size":3}', lambda store: read_layout(store, "q")),
    "queue/q/log": ('{"v":1,"id":"x"}', lambda store: find_retained(store, "q")),
    "queue/r/log": (
        '{"v":1,"id":"x","first":0,"cleared":0,"number":0,"position":0,"pages":[],"sealing":null,"stale":[],'
        '"segments":[["t",1,1,null],["t",1,true,null]]}',
        lambda store: find_retained(store, "r"),
    ),
    "queue/s/log": (
        '{"v":1,"id":"x","first":0,"cleared":0,"number":0,"position":0,"pages":[],"sealing":null,"stale":[["t"]],'
        '"segments":[]}',
        lambda store: find_retained(store, "s"),
    ),
    "queue/q/failing/c": ('{"v":1,"seq":1}', lambda store: store.note("queue/q/failing/c")),
    "exchange/x": ('{"v":1,"batches":"7"}', lambda store: store.notes("exchange/")),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite/"])
@pytest.mark.parametrize("key", WRONG_NOTES)
def test_a_note_of_a_wrong_shape_is_named_and_stops_no_other(kind, key, store, queue):
    text, read = WRONG_NOTES[key]
    damage_note(store.url, key, text)
    with pytest.raises(StoreError, match=re.escape(f"the note '{key}' is damaged")):
        read(store)
    sweep(store)  # what a query does that starts
    assert [one.told.partition(":")[0] for one in doctor.examine(store.url) if one.what == "note"] == [key]
    damage.remove_note(store.url, key)
    assert [one for one in doctor.examine(store.url) if one.what == "note"] == []
    read(store)


@pytest.mark.parametrize(
    "kind",
    [param(one, fast=is_fast(one)) for one in odd.TABLE if one.startswith(("sqlite", "mongodb"))],
)
def test_doctor_finds_what_is_never_due_and_how_to_mend_it(kind, url, store, queue):
    if kind.startswith("sqlite"):
        odd.put(kind, url, queue, {"id": "late", "mature": "soon", "payload": b'{"n":"1"}'})
        id = "late"
    else:
        content = {"b": [{"__p": {"n": "1"}}], "n": 1} if "bucket" in kind else {"payload": {"n": "1"}}
        odd.put(kind, url, queue, {"_id": ObjectId(id := "0123456789abcdef01234567"), "mature": "soon", **content})
    assert store.reserve(queue, "c/1", 5) == []
    (found,) = (one for one in doctor.examine(url) if one.what == "never due" and queue in one.told)
    assert found.todo.startswith(f"make them due now, in another queue: spark-queue move URL {queue} {queue}.mended")
    assert id in found.todo
    ids = [one.rpartition("--id ")[2].strip("'") for one in found.todo.split(" --id ")[1:]]
    assert move(url, queue, f"{queue}.other", ids=[one.encode().decode() for one in ids], create=True) == 1
    with Queue(store, f"{queue}.other") as client:
        (message,) = client.reserve(1)
        assert message.payload == {"n": "1"}


@pytest.mark.parametrize("kind", ["sqlite/"])
def test_doctor_and_reservations_show_what_was_set_aside(kind, url, store, queue):
    odd.put(kind, url, queue, odd_of(kind).record)
    store.reserve(queue, "c/1", 1)
    list(store.queue(queue, QueuePolicy(dead_letter_queue="x" * 300)).read("c/1/0"))
    (held,) = reservations(url, queue)
    assert (held.tag, held.damaged, held.rows, held.until) == (SET_ASIDE_TAG, True, 1, None)
    (found,) = (one for one in doctor.examine(url) if one.what == "damaged")
    assert f"spark-queue release URL {queue} {SET_ASIDE_TAG}" in found.todo


@pytest.mark.parametrize("kind", ["sqlite/"])
def test_doctor_finds_damaged_buckets(kind, url, store, queue):
    store.push(queue, pushes([payload(1), payload(2)]), layout=Buckets(2))
    odd.put(kind, url, queue, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3, "kind": "binary"})
    assert store.damaged_buckets(queue, 10) == [odd.BUCKET]
    (found,) = (one for one in doctor.examine(url) if one.what == "buckets")
    assert "1 bucket of the first" in found.told


@pytest.mark.parametrize("kind", ["sqlite/"])
@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_damaged_bucket_that_is_too_large_is_taken_all_the_same(kind, limit, url, store, queue):
    odd.put(kind, url, queue, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3, "kind": "binary"}, mature=5)
    store.push(queue, pushes([payload(1)]))
    with Queue(store, queue) as client:
        assert [one.payload["n"] for one in client.reserve(limit)] == ["1"]


@pytest.mark.parametrize("kind", ["sqlite/"])
def test_compaction_leaves_damaged_records_alone(kind, url, store, queue):
    store.push(queue, pushes([payload(1)], mature=[EARLY]))
    odd.put(kind, url, queue, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3, "kind": "binary"}, mature=5_000)
    odd.put(kind, url, queue, {"headers": "[1]"}, mature=5_000)
    store.push(queue, pushes([payload(2)]))
    compact(store, queue, Buckets(100))
    with Queue(store, queue) as client:
        assert [one.payload["n"] for one in client.reserve(10)] == ["1", "2"]


@pytest.mark.parametrize("kind", [pytest.param("redis/redis-oq", marks=pytest.mark.full)])
@pytest.mark.parametrize("id", [b"", b"\0", b"a\0b"])
def test_an_id_that_no_reservation_can_name_gets_another(kind, id, url, store, queue):
    odd.put(kind, url, queue, (id, odd.document()), mature=5)
    store.push(queue, pushes([payload(1)]))
    with Queue(store, queue) as client:
        found = client.reserve(10)
        assert sorted(one.payload["n"] for one in found) == ["1", "odd"]
        assert client.commit(*found) == 2
    assert store.sizes(queue).total == 0


@pytest.mark.parametrize("id", [b"a\0b", b"", b"\xff0005", b"\xff0005\0x", b"\xffz"])
@pytest.mark.parametrize("kind", ["redis/rfq"])
def test_an_id_that_looks_like_a_mark_of_ours_costs_no_message(kind, id, url, store, queue):
    store.push(queue, pushes([payload(1)]))
    odd.put(kind, url, queue, (id, {b"n": b"odd"}, None), mature=5)
    store.push(queue, pushes([payload(2), payload(3)]))
    with Queue(store, queue) as client:
        found = client.reserve(10) + client.reserve(10)
        assert sorted({one.payload["n"] for one in found} - {"odd"}) == ["1", "2", "3"]
        assert client.commit(*found) == len(found)
    assert store.sizes(queue).total == 0
    assert len(found) + store.sizes(dead_letter_queue(queue)).total == 4
