"""What a database refuses is an error before anything is written, and lookups of it find nothing.

Ids, names of queues, and messages that are too large in their database only: in buckets, as dead letters, as other
programs have stored them.
"""

from __future__ import annotations

import uuid

import bson
import pyarrow as pa
import pytest
from bson import DatetimeMS, ObjectId
from pymongo import MongoClient

from spark_queue import Queue, open_store
from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.buckets import Buckets
from spark_queue.messages.headers import HEADER_COUNT_LIMIT
from spark_queue.messages.message import messages, pushes
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.mongodb.bson_json import MAX_DOCUMENT_BYTES
from spark_queue.stores.types import Condition, DeadLetterInfo
from tests import registered
from tests.layouts import use_layout
from tests.limits import IDS, NAMES
from tests.tiers import param

KINDS = [param(one, fast=registered.is_default(one)) for one in registered.kinds()]
MONGODB_KINDS = [one for one in registered.kinds() if one.startswith("mongodb ")]


@pytest.fixture
def url(kind, url_of):
    scheme, _, layout = kind.partition(" ")
    return registered.in_layout(url_of(scheme), layout)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        opened.now()
        yield opened


def messages_found(store, queue, **how):
    return [one for batch in store.peek(queue, **how) for one in messages(batch)]


def payload(n=1):
    return {"n": str(n)}  # every layout takes it


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_is_kept_or_refused_and_names_no_other_message(kind, store, queue):
    store.push(queue, pushes([payload()], ids=["other"]))
    kept = set()
    for id in IDS:
        try:
            assert store.push(queue, pushes([payload(2)], ids=[id])) == 1
            kept.add(id)
        except MessageError as error:
            assert error.rows.keys() == {0}
    assert kept and len(kept) < len(IDS)
    assert {one.id for one in messages_found(store, queue)} == {"other", *kept}
    assert store.reserve(queue, "a/1", 100) == [1 + len(kept)]
    for id in IDS:
        mine = int(id in kept)
        where = [Condition("id", "=", id)]
        assert [one.id for one in messages_found(store, queue, where=where)] == [id] * mine
        assert store.transfer(queue, "a/1/0", "b/1/0", [id], lease=60_000) == mine
        assert store.rollback(queue, "b/1/0", [id], delay=0) == mine
        assert store.move(queue, f"{queue}.other", ids=[id]) == mine
        assert store.purge(f"{queue}.other", [id]) == mine
        assert store.commit(queue, "a/1", [id]) == store.delete_history(queue, [id]) == 0
    assert {one.id for one in messages_found(store, queue)} == {"other"}
    stage = f"{queue}/1/a"
    for id in IDS:
        try:
            store.stage(queue, stage, pushes([payload(3)], ids=[id]))
            assert id in kept
        except MessageError:
            assert id not in kept
    assert store.publish([stage]) == len(kept)
    assert store.staged(queue) == []
    assert {one.id for one in messages_found(store, queue)} == {"other", *kept}


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_no_message_has_finds_none(kind, store, queue):
    store.push(queue, pushes([payload()], ids=["other"]))
    store.reserve(queue, "a/1", 1)
    for id in ("\ud800", '{"_id":{"$gt":""}}', "{" * 5_000, '{"_id":' + "[" * 5_000, "\x7f", "\0"):
        for op in ("=", "<", "in"):
            where = [Condition("id", op, (id,) if op == "in" else id)]
            assert op == "<" or messages_found(store, queue, where=where) == []
            assert len(list(store.peek(queue, where, limit=5))) <= 1
        assert store.commit(queue, "a/1", [id]) == store.rollback(queue, "a/1", [id]) == 0
        assert store.move(queue, f"{queue}.other", tag="a/1", ids=[id]) == store.purge(queue, [id]) == 0
        assert store.delete_history(queue, [id]) == 0
    assert store.commit(queue, "a/1", ["other", "\ud800"]) == 1


def named_anew(name, mark):
    """Return a name of the same form that no other test uses, unless it is refused everywhere."""
    if name in ("", "\0"):
        return name
    if "x" * 8 in name or "é" * 8 in name:
        return name.replace("x" * 8, mark, 1).replace("é" * 8, mark + mark, 1)
    return f"{mark}{name}" if name.endswith((".", ".dead")) else f"{name}{mark}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_that_of_a_queue_or_refused(kind, store):
    taken = [check_name(store, name) for name in NAMES]
    assert any(taken) and not all(taken)


def check_name(store, name):
    """Use a queue of this name, or see all operations refuse it. Return whether it can be used."""
    mark = uuid.uuid4().hex[:8]
    queue = named_anew(name, mark)
    try:
        store.check_queue(queue)
    except OptionError as error:
        assert len(str(error)) < 1_000
        for act in (
            lambda: store.push(queue, pushes([payload()])),
            lambda: store.reserve(queue, "a/1", 1),
            lambda: store.register(queue),
            lambda: store.pause(queue),
        ):
            with pytest.raises(OptionError):
                act()
        return False
    try:
        store.check_queue(dead := dead_letter_queue(queue))
    except OptionError:  # this one is the dead-letter queue of a long name
        assert queue.endswith(".dead")
        dead = f"{mark}.dead"
    store.drop(queue)
    try:
        store.push(queue, pushes([payload()], ids=[mark]))
        assert store.reserve(queue, "a/1", 1) == [1]
        assert queue in store.queues()
        assert store.move(queue, dead, tag="a/1", dead_letter=DeadLetterInfo("why")) == 1
        (letter,) = messages_found(store, dead)
        assert (letter.id, letter.headers["x-dl-from-queue"]) == (mark, queue)
    finally:
        store.drop(queue)
        store.drop(dead)
    return True


def test_the_name_of_a_database_counts_in_that_of_a_queue(mongodb_url):
    database = f"t{uuid.uuid4().hex[:8]}{'y' * 50}"
    head, _, options = mongodb_url.partition("?")
    url = f"{head.rpartition('/')[0]}/{database}?{options}"
    with open_store(url) as store:
        with pytest.raises(OptionError, match="its collection has 260 bytes, and MongoDB allows 255"):
            store.push("x" * 200, pushes([1]))
        store.check_queue("x" * 195)


# --- buckets --------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_bucket_that_a_database_cannot_hold_is_split(url_of, scheme):
    """Headers count in the size of a bucket, and so does what an array takes in BSON."""
    for layout in registered.layouts(scheme):
        queue = f"t{uuid.uuid4().hex[:12]}"
        with open_store(registered.in_layout(url_of(scheme), layout)) as store:
            if "buckets" in store.unsupported:
                continue
            if store.default_layout is None:
                use_layout(store, Buckets(1_000))
            headers = {f"h{n}": "x" * 25 for n in range(HEADER_COUNT_LIMIT)}
            try:
                assert store.push(queue, pushes([[0] * 20_000] * 150)) == 150  # 40 KB in JSON, 220 KB in BSON
                assert store.push(queue, pushes([0] * 600, headers=headers)) == 600  # 30 KB each
                assert store.sizes(queue).ready == 750
                assert len(messages_found(store, queue)) == 750
            finally:
                store.drop(queue)


@pytest.mark.parametrize("kind", [param(one, fast=registered.is_default(one)) for one in MONGODB_KINDS])
@pytest.mark.parametrize("how", ["push", "stage"])
def test_a_message_that_no_bucket_can_hold_is_named(kind, how, store, queue):
    if "buckets" in store.unsupported:
        pytest.skip("the layout has no buckets")
    if store.default_layout is None:
        use_layout(store, Buckets(100))
    rows = [payload(n) for n in range(500)]
    rows[321] = {"big": "x" * (store.max_payload - 10), "n": [1.5] * 100} if kind.endswith("safe") else rows[321]
    batch = pushes(rows, headers=[{"h": "x" * 4_000, "k": "\0"} for _ in rows])
    if kind.endswith("safe"):
        with pytest.raises(MessageError) as caught:
            store.push(queue, batch) if how == "push" else store.stage(queue, f"{queue}/1", batch)
        assert list(caught.value.rows) == [321]
        batch = batch.slice(0, 321)
    assert (store.push(queue, batch) if how == "push" else store.stage(queue, f"{queue}/1", batch)) == len(batch)
    store.unstage(queue)


# --- documents of other programs ------------------------------------------------------------------


def insert_full(url, store, queue, room, junk=0):
    """Insert a document as another program does, which leaves this room below MongoDB's limit of 16 MiB.

    `junk`: bytes of a field that we do not know.
    """
    with MongoClient(url.partition("&")[0].partition("?layout")[0]) as client:
        database = client.get_default_database()
        if store.ids_unique_per_store:
            collection, more = database["default"], {"_q": queue}
        else:
            collection, more = database[queue], {}
        document = {"_id": ObjectId(), "mature": DatetimeMS(5), "tries": 0, "hdrs": {"k": "v"}, **more}
        document |= {"junk": "j" * junk} if junk else {}
        if store.default_layout is None:
            document["payload"] = ""
            document["payload"] = "x" * ((16 << 20) - room - len(bson.encode(document)))
        else:
            del document["hdrs"]
            document |= {"n": 100, "b": [{"__p": "", "__h": {"k": "v"}} for _ in range(100)]}
            document["b"][50]["__p"] = "x" * ((16 << 20) - room - len(bson.encode(document)))
        collection.insert_one(document)
        return 1 if store.default_layout is None else 100


@pytest.mark.parametrize("kind", [param(one, fast=registered.is_default(one)) for one in MONGODB_KINDS])
@pytest.mark.parametrize(
    ("room", "junk"), [(0, 0), (3_000, 15 << 20), pytest.param(12_000, 0, marks=pytest.mark.full)]
)
def test_a_document_without_room_for_the_reason_becomes_a_dead_letter(kind, room, junk, url, store, queue):
    for n in range(3):
        store.push(queue, pushes([payload(n)], ids=[f"small{n}"]))
    number = insert_full(url, store, queue, room, junk)
    with Queue(store, queue, max_tries=1, history=60) as client:
        while got := client.reserve(500):
            client.rollback(*got)
    assert store.sizes(queue).total == 0
    letters = messages_found(store, f"{queue}.dead")
    assert len(letters) == 3 + number
    (large,) = [one for one in letters if len(str(one.payload)) > 1_000]
    assert large.headers["k"] == "v" and large.headers["x-error"] and large.headers["x-dl-from-queue"] == queue
    if len(str(large.payload)) == 1 << 20:
        assert large.headers["x-dl-size"] and len(large.headers["x-dl-sha256"]) == 64
    assert store.reserve(f"{queue}.dead", "a/1", 500) == [3 + number]


@pytest.mark.parametrize("headers", [{"$ref": "a", "$id": "b"}, {"$ref": "a", "$id": "b", "$db": "c"}, {"": "1"}])
@pytest.mark.parametrize("kind", KINDS)
def test_headers_of_any_names_come_out_as_they_went_in(kind, headers, store, queue):
    store.push(queue, pushes([payload()], headers=headers))
    assert [one.headers for one in messages_found(store, queue)] == [headers]
    store.reserve(queue, "a/1", 1)
    (batch,) = store.fetch(queue, "a/1/0")
    assert messages(batch)[0].headers == headers
    assert store.move(queue, f"{queue}.dead", tag="a/1", dead_letter=DeadLetterInfo("why")) == 1
    (letter,) = messages_found(store, f"{queue}.dead")
    assert letter.headers.items() >= headers.items() and letter.headers["x-error"] == "why"


@pytest.mark.parametrize("kind", [param(one, fast=registered.is_default(one)) for one in MONGODB_KINDS])
def test_a_payload_that_the_server_would_replace_comes_out_as_it_went_in(store, queue):
    texts = [{"$timestamp": {"t": 0, "i": 0}}, {"a": {"$timestamp": {"t": 0, "i": 0}}}]
    store.push(queue, pushes(texts, ids=["a", "b"]))
    assert {one.id: one.payload for one in messages_found(store, queue)} == dict(zip("ab", texts, strict=True))


@pytest.mark.parametrize("kind", [param(one, fast=registered.is_default(one)) for one in MONGODB_KINDS])
def test_a_reason_of_any_length_fits(store, queue):
    size = store.max_payload if store.default_layout is None else 16_000_000
    store.push(queue, pushes(["x" * size], ids=["a"], headers={"h": "y" * 8_000}))
    store.reserve(queue, "a/1", 1)
    assert store.move(queue, f"{queue}.dead", tag="a/1", dead_letter=DeadLetterInfo("é" * 10_000_000)) == 1
    (letter,) = messages_found(store, f"{queue}.dead")
    assert len(letter.headers["x-error"].encode()) <= 4_000 and letter.headers["x-error"].endswith("é…")


@pytest.mark.parametrize("kind", [param(one, fast=True) for one in MONGODB_KINDS if one.endswith("pl-mongo")])
def test_a_message_that_grows_beyond_a_document_on_its_way_is_named_and_the_others_move(kind, store, queue):
    store.push(queue, pushes([payload(1)], ids=["small"]))
    head = {"list": [0] * 500_000, "text": ""}
    room = MAX_DOCUMENT_BYTES - len(bson.encode({"payload": head})) - 200
    store.push(queue, pushes([head | {"text": "x" * room}], ids=["large"]))
    store.reserve(queue, "a/1", 10)
    longer = {f"h{n}": "x" * 7_000 for n in range(4)}
    changes = pushes([0, 0], ids=["small", "large"], headers=longer)
    unchanged = changes.set_column(1, changes.schema.field(1), pa.nulls(2, pa.binary()))
    with pytest.raises(MessageError, match="'large': its document would be larger than 16 MiB") as caught:
        store.forward(queue, f"{queue}.other", "a/1", unchanged)
    assert list(caught.value.rows) == [1]
    assert [one.id for one in messages_found(store, f"{queue}.other")] == ["small"]
    assert store.move(queue, f"{queue}.dead", tag="a/1", dead_letter=DeadLetterInfo("r" * 9_000)) == 1
    (letter,) = messages_found(store, f"{queue}.dead")
    assert letter.id == "large" and len(letter.payload["text"]) == room
