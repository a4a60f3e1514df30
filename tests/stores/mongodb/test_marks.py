"""Collections of other programs: they are refused, and stay as they are. Queues of any age are none of these."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from spark_queue import NotAQueue, OptionError, open_store
from spark_queue.messages.message import messages, pushes
from spark_queue.stores.mongodb import marks
from spark_queue.stores.mongodb import store as mongodb
from spark_queue.stores.types import Condition, DeadLetterInfo, Sizes

PAST = datetime(2020, 1, 1, tzinfo=UTC)
LAYOUTS = ["mongo", "ps-mongo", "pl-mongo", "bucket-mongo-safe"]

#: The indexes that a queue has had since the first commit, by layout, and the one of buckets, which came later.
FIRST: list[Any] = [
    ([("processed", 1), ("mature", 1), ("_id", 1)], {"name": "spark_queue_ready"}),
    (
        [("_tag", 1), ("_mature", 1), ("_id", 1)],
        {"name": "spark_queue_held", "partialFilterExpression": {"reserved": {"$exists": True}}},
    ),
    ([("_until", 1)], {"name": "spark_queue_ending", "sparse": True, "expireAfterSeconds": 0}),
]
REST = [("processed", 1), ("mature", 1), ("_tag", 1)]
BUCKETS = (
    [("rows", 1), *REST],
    {"name": "spark_queue_buckets", "partialFilterExpression": {"rows": {"$exists": True}}},
)
COUNTED = ([("n", 1), *REST], {"name": "spark_queue_buckets"})
IN_PIPELINE = [
    ([("_q", 1), *keys], how) if "expireAfterSeconds" not in how else (keys, how) for keys, how in [*FIRST, BUCKETS]
]
OLD = {
    "the first commit": ("mongo", FIRST),
    "with buckets": ("mongo", [*FIRST, BUCKETS]),
    "with a history that is always kept": ("ps-mongo", [*FIRST, BUCKETS]),
    "a pipeline": ("pl-mongo", IN_PIPELINE),
    "buckets of keuss": ("bucket-mongo-safe", [*FIRST, COUNTED]),
}
KEUSS: dict[str, Any] = {
    "mongo": ("mongo", [("mature", {})]),
    "ps-mongo": ("ps-mongo", [("mature", {}), ("processed", {"expireAfterSeconds": 3600})]),
    "pl-mongo": ("pl-mongo", [([("_q", 1), ("mature", 1)], {})]),
    "bucket-mongo-safe": ("bucket-mongo-safe", [("mature", {})]),
}


@pytest.fixture
def database(mongodb_url):
    with MongoClient(mongodb_url, tz_aware=True) as client:
        yield client.get_default_database()


@pytest.fixture
def users(database):
    """An application's collection."""
    found = database[f"users{uuid.uuid4().hex[:12]}"]
    yield found
    found.drop()


def with_layout(url, layout, pipeline=""):
    return f"{url}&layout={layout}" + (f"&pipeline={pipeline}" if layout == "pl-mongo" and pipeline else "")


def opened(url, layout, collection):
    """A store in whose eyes the collection may be a queue; and the name of that queue."""
    store = open_store(with_layout(url, layout, collection.name))
    return store, "sales" if layout == "pl-mongo" else collection.name


def as_it_is(collection: Collection) -> object:
    database: Database = collection.database
    listed = [one for one in database.list_collections() if one["name"] == collection.name]
    kind = listed[0]["type"] if listed else None
    indexes = collection.index_information() if kind == "collection" else None
    return listed, indexes, list(collection.find())


# --- what applications have -----------------------------------------------------------------------


def plain(collection):
    collection.insert_many([{"_id": n, "name": f"user {n}"} for n in range(3)])


def like_messages(collection):
    document = {"mature": PAST, "payload": {"a": 1}, "tries": 0, "hdrs": {}, "_q": "sales"}
    collection.insert_many([document | {"_id": ObjectId()} for _ in range(3)])


def ours_without_indexes(collection):
    like_messages(collection)
    collection.update_many({}, {"$set": {"reserved": PAST, "_reserved": PAST, "_tag": "c/1/0"}})


def bonds(collection):
    """By the same index as a queue of keuss."""
    collection.create_index("mature")
    collection.insert_many([{"mature": PAST, "rate": 2.5} for _ in range(3)])


def more_indexes(collection):
    collection.create_index("mature")
    collection.create_index("isin")
    like_messages(collection)


def unique_index(collection):
    collection.create_index("mature", unique=True)
    collection.insert_one({"mature": PAST, "tries": 0})


def same_name_of_index(collection):
    collection.create_index("name", name="spark_queue_ready")
    like_messages(collection)


def empty(collection):
    collection.database.create_collection(collection.name)


def validated(collection):
    collection.database.create_collection(collection.name, validator={"name": {"$exists": True}})


def commented(collection):
    comment = {"$comment": "spark_queue: queue", "name": {"$exists": True}}
    collection.database.create_collection(collection.name, validator=comment)


def capped(collection):
    collection.database.create_collection(collection.name, capped=True, size=4096)
    collection.create_index("mature")
    like_messages(collection)


def view(collection):
    source = collection.database[f"{collection.name}.source"]
    like_messages(source)
    collection.database.create_collection(collection.name, viewOn=source.name)


def time_series(collection):
    collection.database.create_collection(collection.name, timeseries={"timeField": "mature"})
    collection.insert_one({"mature": PAST, "payload": 1, "tries": 0, "hdrs": {}})


def of_another_layout(collection):
    collection.create_index([("_q", 1), ("processed", 1), ("mature", 1), ("_id", 1)], name="spark_queue_ready")
    like_messages(collection)


APPLICATIONS = [
    plain, like_messages, ours_without_indexes, bonds, more_indexes, unique_index, same_name_of_index, empty,
    validated, commented, capped, view, time_series, of_another_layout,
]  # fmt: skip

DEAD = DeadLetterInfo("spoilt")
IDS = ["5f1d7e0123456789abcdef01", '{"_id":{"$numberInt":"1"}}']

OPERATIONS = {
    "push": lambda store, name, other: store.push(name, pushes(["a"])),
    "stage": lambda store, name, other: store.stage(name, "s/1/1", pushes(["a"])),
    "reserve": lambda store, name, other: store.reserve(name, "c/1", 1),
    "reserve for partitions": lambda store, name, other: store.reserve(name, "c/1", 8, partitions=4),
    "ready": lambda store, name, other: store.ready(name, 1),
    "fetch": lambda store, name, other: list(store.fetch(name, "c/1/0")),
    "peek_reserved": lambda store, name, other: list(store.peek_reserved(name, "c/1/0")),
    "renew": lambda store, name, other: store.renew(name, "c/1", 1_000),
    "commit": lambda store, name, other: store.commit(name, "c/1"),
    "commit by id": lambda store, name, other: store.commit(name, "c/1", IDS, history=1_000),
    "rollback": lambda store, name, other: store.rollback(name, "c/1", IDS),
    "transfer": lambda store, name, other: store.transfer(name, "c/1", "c/2/0", lease=None),
    "reservations": lambda store, name, other: store.reservations(name),
    "move from": lambda store, name, other: store.move(name, other),
    "move from by id": lambda store, name, other: store.move(name, other, ids=IDS),
    "dead letter from": lambda store, name, other: store.move(name, other, tag="c/1", dead_letter=DEAD),
    "pause": lambda store, name, other: store.pause(name),
    "resume": lambda store, name, other: store.resume(name),
    "is_paused": lambda store, name, other: store.is_paused(name),
    "statistics": lambda store, name, other: store.statistics(name),
    "register": lambda store, name, other: store.register(name),
    "sizes": lambda store, name, other: store.sizes(name),
    "sizes with a limit": lambda store, name, other: store.sizes(name, 10),
    "next_mature": lambda store, name, other: store.next_mature(name),
    "wait": lambda store, name, other: store.wait(name, 10),
    "peek": lambda store, name, other: list(store.peek(name)),
    "peek with a limit": lambda store, name, other: list(store.peek(name, limit=2)),
    "peek by id": lambda store, name, other: list(store.peek(name, [Condition("id", "in", tuple(IDS))])),
    "history": lambda store, name, other: list(store.peek(name, view="history")),
    "exists": lambda store, name, other: store.exists(name),
    "never_due": lambda store, name, other: store.never_due(name),
    "damaged_buckets": lambda store, name, other: store.damaged_buckets(name, 10),
    "delete_history": lambda store, name, other: store.delete_history(name, IDS),
    "purge": lambda store, name, other: store.purge(name),
    "purge by id": lambda store, name, other: store.purge(name, IDS),
    "drop": lambda store, name, other: store.drop(name),
}
TARGETS = {
    "move to": lambda store, name, other: store.move(other, name),
    "dead letter to": lambda store, name, other: store.move(other, name, tag="c/1", dead_letter=DEAD),
}


@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_collection_that_is_no_queue_is_not_touched(mongodb_url, database, users, application):
    application(users)
    before = as_it_is(users)
    with open_store(mongodb_url) as store:
        other = f"q{uuid.uuid4().hex[:12]}"
        store.push(other, pushes(["a", "b"]))
        assert store.reserve(other, "c/1", 1) == [1]
        for name, act in {**OPERATIONS, **TARGETS}.items():
            with pytest.raises(NotAQueue, match="is no queue") as caught:
                act(store, users.name, other)
            assert as_it_is(users) == before, name
            assert caught.value.facts["queue"] == caught.value.facts["collection"] == users.name
        store.write_counts()
        assert users.name not in store.queues()
        assert users.name not in store.all_statistics()
        assert store.sizes(other) == Sizes(1, 0, 1), "nothing left the other queue"
        assert store.staged("s/1/1") == []
        store.examine()
        assert as_it_is(users) == before
        store.drop(other)
    assert not database.client[f"{database.name}_stats"]["keuss_stats"].find_one({"name": users.name})


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_collection_that_is_no_queue_of_a_layout_is_not_touched(mongodb_url, users, application, layout):
    if layout == "pl-mongo" and application is of_another_layout:
        pytest.skip("it is one of this layout")
    application(users)
    before = as_it_is(users)
    store, name = opened(mongodb_url, layout, users)
    with store:
        for act in OPERATIONS.values():
            with pytest.raises(NotAQueue, match="is no queue"):
                act(store, name, f"{name}.other")
        assert name not in store.queues()
        store.examine()
    assert as_it_is(users) == before


@pytest.mark.parametrize("application", APPLICATIONS)
def test_the_sizes_of_many_queues_leave_it_out(mongodb_url, users, application, monkeypatch):
    application(users)
    before = as_it_is(users)
    with open_store(mongodb_url) as store:
        other = f"q{uuid.uuid4().hex[:12]}"
        store.push(other, pushes(["a", "b"]))
        for _ in range(2):
            assert store.sizes_of([users.name, other, f"{other}.missing"]) == {
                other: Sizes(2, 0, 0),
                f"{other}.missing": Sizes(0, 0, 0),
            }
            with pytest.raises(NotAQueue, match="is no queue"):
                store.sizes(users.name)
        assert store.sizes_of([users.name]) == {}
        assert store.statistics_of([users.name, other]).keys() == {other}
        assert as_it_is(users) == before
        users.drop()
        store.push(users.name, pushes(["a"]))
        assert store.sizes_of([users.name, other]) == {users.name: Sizes(1, 0, 0), other: Sizes(2, 0, 0)}
        store.drop(other)


def test_many_queues_of_a_pipeline_that_is_none_are_refused_with_one_check(mongodb_url, users, monkeypatch):
    plain(users)
    store, name = opened(mongodb_url, "pl-mongo", users)
    with store:
        asked = []
        read = store._marks.read
        monkeypatch.setattr(store._marks, "read", lambda *args: asked.append(args) or read(*args))
        assert store.sizes_of([f"{name}.{one}" for one in range(50)]) == {}
        assert len(asked) == 1


def test_the_error_says_what_to_do(mongodb_url, users):
    plain(users)
    url = mongodb_url.replace("mongodb://", "mongodb://joe:sesame@", 1)
    with open_store(mongodb_url) as store:
        store.url = url
        store._marks._url = url  # type: ignore[attr-defined]
        with pytest.raises(NotAQueue) as caught:
            store.peek(users.name).__next__()
    text = str(caught.value)
    assert repr(users.name) in text and repr(users.database.name) in text
    assert text.endswith(f"spark-queue adopt URL {users.name}")
    assert "sesame" not in text
    assert isinstance(caught.value, OptionError)


def test_a_stage_is_published_as_a_whole_or_not_at_all(mongodb_url, users):
    with open_store(mongodb_url) as store:
        first = f"a{users.name}"
        store.stage(first, "s/1/1", pushes(["a"]))
        store.stage(users.name, "s/1/1", pushes(["b"]))
        plain(users)
        with pytest.raises(NotAQueue):
            store.publish(["s/1/1"])
        assert store.sizes(first).total == 0
        assert users.count_documents({}) == 3
        users.drop()
        assert store.publish(["s/1/1"]) == 2
        store.drop(first)


def test_what_an_earlier_version_counted_of_it_is_not_listed(mongodb_url, database, users):
    plain(users)
    counted = database.client[f"{database.name}_stats"]["keuss_stats"]
    counted.insert_one({"_id": f"keuss:stats:N:{users.name}", "ns": "N", "name": users.name, "counters": {"put": 1}})
    with open_store(mongodb_url) as store:
        assert users.name not in store.queues()
        assert users.name not in store.all_statistics()
        users.drop()
        assert users.name in store.queues(), "a queue that is only registered"
        store.drop(users.name)


# --- looking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_looking_at_what_does_not_exist_makes_nothing(empty_mongodb_url, layout):
    looks = set(OPERATIONS) - {"push", "stage", "pause", "resume", "register"}
    with MongoClient(empty_mongodb_url) as client, open_store(with_layout(empty_mongodb_url, layout)) as store:
        names = [client.get_default_database().name + end for end in ("", "_stats", "_signal")]
        before = [client[name].list_collection_names() for name in names[:2]]
        for name in looks:
            with suppress(OptionError):  # the queue to move to is the same
                OPERATIONS[name](store, "nothing", "nothing.other")
        store.queues()
        store.examine()
        store.write_counts()
        made = {name for name in client[names[0]].list_collection_names() if name != "nothing.other"}
        assert made <= {*before[0], "default"} and (layout == "pl-mongo" or "default" not in made)
        assert [client[name].list_collection_names() for name in names[1:2]] == before[1:]


# --- queues of any age ----------------------------------------------------------------------------


def message_of(layout, payload="old"):
    if layout == "bucket-mongo-safe":
        return {"b": [{"__p": payload, "__h": {}}], "n": 1, "mature": PAST}
    document = {"mature": PAST, "payload": payload, "tries": 0, "hdrs": {}}
    return document | {"_q": "sales"} if layout == "pl-mongo" else document


def is_whole(store, name, collection, layout, *, held=0):
    """Whether it works as a queue: it is listed, its message comes out, and a push goes in."""
    if held or layout != "pl-mongo":
        assert name in store.queues()
    assert store.exists(name) or layout == "pl-mongo"
    assert store.sizes(name).ready == held
    assert sum(store.reserve(name, "c/1", 10)) == held
    assert store.commit(name, "c/1") == held
    store.push(name, pushes(["new"]))
    assert store.reserve(name, "c/2", 10) == [1]
    assert [one.payload for batch in store.fetch(name, "c/2/0") for one in messages(batch)] == ["new"]
    names = {one["name"] for one in collection.list_indexes()}
    assert names >= {"spark_queue_next", "spark_queue_tagged", "spark_queue_buckets"}
    assert not names & {"spark_queue_ready", "spark_queue_held"}, "those of earlier versions are dropped"
    store.drop(name)
    assert name not in store.queues()


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("form", OLD)
def test_queues_of_earlier_commits_are_queues(mongodb_url, users, form, held):
    layout, indexes = OLD[form]
    for keys, how in indexes:
        users.create_index(keys, **how)
    if held:
        users.insert_one(message_of(layout))
    store, name = opened(mongodb_url, layout, users)
    with store:
        is_whole(store, name, users, layout, held=held)


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("backend", KEUSS)
def test_queues_of_keuss_are_queues(mongodb_url, users, backend, held):
    layout, indexes = KEUSS[backend]
    for keys, how in indexes:
        users.create_index(keys, **how)
    if held:
        users.insert_one(message_of(layout))
    before = as_it_is(users)
    store, name = opened(mongodb_url, layout, users)
    with store:
        for act in ("sizes", "peek", "exists", "statistics", "next_mature", "reservations"):
            OPERATIONS[act](store, name, "")
        assert as_it_is(users) == before, "looking changes nothing"
        is_whole(store, name, users, layout, held=held)


@pytest.mark.parametrize("lost", ["spark_queue_ready", "spark_queue_held", "all, but made by us"])
def test_a_queue_that_has_lost_indexes_is_a_queue(mongodb_url, users, lost):
    with open_store(mongodb_url) as store:
        if lost.startswith("all"):
            store.push(users.name, pushes(["old"]))
            users.drop_indexes()
        else:
            for keys, how in FIRST:
                users.create_index(keys, **how)
            users.drop_index(lost)
            users.insert_one(message_of("mongo"))
    with open_store(mongodb_url) as store:
        is_whole(store, users.name, users, "mongo", held=1)


# --- creation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_client_that_dies_between_creation_and_indexes_leaves_a_queue(mongodb_url, users, layout, monkeypatch):
    def dies(*_, **__):
        raise KeyboardInterrupt

    store, name = opened(mongodb_url, layout, users)
    with store:
        monkeypatch.setattr(Collection, "create_indexes", dies)
        with pytest.raises(KeyboardInterrupt):
            store.push(name, pushes(["lost"]))
        monkeypatch.undo()
        assert list(users.index_information()) == ["_id_"]
    store, name = opened(mongodb_url, layout, users)
    with store:
        assert store.sizes(name) == Sizes(0, 0, 0)
        is_whole(store, name, users, layout)


@pytest.mark.parametrize("faster", ["another client", "an application"])
def test_one_creates_it_when_two_do_so_at_once(mongodb_url, users, faster, monkeypatch):
    create = Database.create_collection

    def late(self, name, **options):
        monkeypatch.undo()
        create(self, name, **(options if faster == "another client" else {"check_exists": False}))
        return create(self, name, **options)

    monkeypatch.setattr(Database, "create_collection", late)
    with open_store(mongodb_url) as store:
        if faster == "another client":
            assert store.push(users.name, pushes(["a"])) == 1
            assert store.reserve(users.name, "c/1", 9) == [1]
            return
        with pytest.raises(NotAQueue):
            store.push(users.name, pushes(["a"]))
        assert list(users.index_information()) == ["_id_"] and users.count_documents({}) == 0


# --- a collection that takes the place of a queue ----------------------------------------------------


HINTED = ["reserve", "ready", "commit", "renew", "rollback", "purge", "purge by id", "sizes", "peek with a limit",
          "next_mature", "reservations", "drop", "delete_history", "move from", "move from by id"]  # fmt: skip


@pytest.mark.parametrize("act", HINTED)
def test_a_collection_in_the_place_of_a_queue_is_not_touched(mongodb_url, users, act, monkeypatch):
    monkeypatch.setattr(marks, "MARK_MISSING", 0.1)
    with open_store(mongodb_url, retry_timeout=0) as store:
        store.push(users.name, pushes(["a", "b"]))
        assert store.reserve(users.name, "c/1", 1) == [1]
        assert store.sizes(users.name).total == 2
        users.drop()
        ours_without_indexes(users)
        users.insert_one({"_id": ObjectId(IDS[0]), "mature": PAST, "payload": 1, "tries": 0})
        before = as_it_is(users)
        with suppress(NotAQueue):
            OPERATIONS[act](store, users.name, f"{users.name}.other")
        assert as_it_is(users) == before
        with pytest.raises(NotAQueue):
            store.sizes(users.name)


def test_a_push_finds_it_out_within_a_second(mongodb_url, users, monkeypatch):
    with open_store(mongodb_url) as store:
        store.push(users.name, pushes(["a"]))
        users.drop()
        plain(users)
        monkeypatch.setattr(mongodb, "INSERT_AGE", 0.0)
        for act in (OPERATIONS["push"], OPERATIONS["reserve"]):
            with pytest.raises(NotAQueue):
                act(store, users.name, "")
        assert users.count_documents({}) == 3 and list(users.index_information()) == ["_id_"]
    assert marks.INSERT_AGE <= 1


@pytest.mark.parametrize("application", [plain, like_messages, empty])
def test_what_did_not_exist_and_is_no_queue_now_is_not_touched(mongodb_url, users, application):
    with open_store(mongodb_url, retry_timeout=0) as store:
        assert store.sizes(users.name) == Sizes(0, 0, 0)
        application(users)
        before = as_it_is(users)
        for act in ("purge", "purge by id", "reserve", "push", "drop"):
            with pytest.raises(NotAQueue):
                OPERATIONS[act](store, users.name, "")
            assert as_it_is(users) == before, act


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_push_after_a_drop_by_another_client_makes_a_queue_again(mongodb_url, users, layout, monkeypatch):
    monkeypatch.setattr("spark_queue.stores.mongodb.store.INSERT_AGE", 60.0)  # however slow this machine is
    store, name = opened(mongodb_url, layout, users)
    peer, _ = opened(mongodb_url, layout, users)
    with store, peer:
        store.push(name, pushes(["a"]))
        users.drop()
        store.push(name, pushes(["b"]))
        assert "validator" not in users.options(), "the server has created it"
        store.write_counts()
        assert [one.payload for batch in peer.peek(name) for one in messages(batch)] == ["b"]
        is_whole(peer, name, users, layout, held=1)


def test_a_consumer_waits_for_the_mark_of_its_queue(mongodb_url, users):
    with open_store(mongodb_url) as store, open_store(mongodb_url) as peer:
        store.push(users.name, pushes(["a"]))
        assert peer.sizes(users.name).ready == 1
        users.drop()
        store.push(users.name, pushes(["b"]))  # its counts are written, and its mark checked, by itself
        assert peer.reserve(users.name, "c/1", 1) == [1]


# --- lists ----------------------------------------------------------------------------------------


def test_who_has_dropped_a_queue_waits_for_its_new_mark(mongodb_url, users):
    """Its own answer is that there is no queue: an operation with a hint fails on the new one, and reads the mark."""
    with open_store(mongodb_url) as store, open_store(mongodb_url) as other:
        other.push(users.name, pushes(["old"]))
        store.drop(users.name)
        assert store.ready(users.name, 1) == 0
        other.push(users.name, pushes(["new"]))  # it believes its answer of just now
        assert store.reserve(users.name, "c/1", 5) == [1]


def test_who_has_dropped_a_queue_and_pushes_at_once_waits_for_its_new_mark(mongodb_url, users):
    with open_store(mongodb_url) as store, open_store(mongodb_url) as other:
        other.push(users.name, pushes(["old"]))
        store.drop(users.name)
        other.push(users.name, pushes(["new"]))
        assert store.push(users.name, pushes(["newer"])) == 1


def test_a_list_asks_once_about_each_collection(empty_mongodb_url, monkeypatch):
    asked = []
    examine = marks.Marks._examine
    monkeypatch.setattr(
        marks.Marks, "_examine", lambda self, name, info=None: (asked.append(name), examine(self, name, info))[1]
    )
    with MongoClient(empty_mongodb_url) as client, open_store(empty_mongodb_url) as store:
        database = client.get_default_database()
        database["invoices"].insert_one({"n": 1})
        database["old"].create_index(FIRST[0][0], **FIRST[0][1])
        with open_store(empty_mongodb_url) as peer:
            peer.push("new", pushes(["a"]))
        asked.clear()
        assert [store.queues() for _ in range(3)] == [["new", "old"]] * 3
        assert sorted(asked) == ["invoices", "old"]


# --- adoption -------------------------------------------------------------------------------------


def test_an_adopted_collection_is_a_queue(mongodb_url, users):
    like_messages(users)
    documents = list(users.find())
    with open_store(mongodb_url) as store, open_store(mongodb_url) as peer:
        found = store.inspect_foreign(users.name)
        assert (found.place, found.documents) == (f"{users.database.name}.{users.name}", 3)
        assert found.indexes == {"_id_": "_id: 1"} and not found.is_queue
        assert store.adopt(users.name) == found
        assert list(users.find()) == documents, "adoption changes no document"
        assert peer.inspect_foreign(users.name).is_queue and peer.adopt(users.name).is_queue
        assert users.name in peer.queues()
        is_whole(peer, users.name, users, "mongo", held=3)


@pytest.mark.parametrize("application", [view, capped, time_series, of_another_layout, same_name_of_index])
def test_what_cannot_be_a_queue_is_not_adopted(mongodb_url, users, application):
    application(users)
    before = as_it_is(users)
    with open_store(mongodb_url) as store, pytest.raises(NotAQueue, match=r"Use another name$"):
        store.adopt(users.name)
    assert as_it_is(users) == before


def test_what_does_not_exist_needs_no_adoption(mongodb_url, users):
    with open_store(mongodb_url) as store, pytest.raises(OptionError, match="nothing needs to be adopted"):
        store.adopt(users.name)
    assert users.name not in users.database.list_collection_names()
