"""Stages in MongoDB: chunks, publishers that meet, and those that die."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, OperationFailure, WriteConcernError

from spark_queue.errors import MessageError, OptionError, StoreError, StoreUnavailable
from spark_queue.messages.buckets import Buckets
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.helpers import messages_of
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.mongodb import documents as mongodb_documents
from spark_queue.stores.mongodb import stages as mongodb_stages
from spark_queue.stores.mongodb.bson_json import MAX_DOCUMENT_BYTES
from spark_queue.stores.mongodb.documents import to_documents
from spark_queue.stores.mongodb.limits import MongoLimits
from spark_queue.stores.mongodb.stages import Stages
from spark_queue.stores.support.patience import retrying_for
from spark_queue.stores.types import Sizes, Staged
from tests.stores.mongodb.programs import DUE, Publishing, Steps, client_of, drain, keuss_reserve, left_of


@pytest.fixture
def small(set_limits):
    """Set chunks of few messages, and a short timeout of other publishers."""
    set_limits(stage_chunk=4, publisher_timeout=0.05)


def test_a_published_message_is_no_other_than_a_pushed_one(anywhere, name, raw):
    batch = pushes([{"n": 1, "$set": {"a.b": [1, None]}}, [1, {"$ref": 1}], "x"], headers={"h": "v"}, mature=DUE)
    anywhere.push(f"{name}.1", batch)
    anywhere.stage(f"{name}.2", name, batch)
    assert anywhere.publish([name]) == 3
    pushed, published = (list(raw[queue].find().sort("_id")) for queue in (f"{name}.1", f"{name}.2"))
    for one, later in zip(pushed, published, strict=True):
        assert later.pop("_seq") > one.pop("_seq", one["_id"]), "it was staged after the push"
        assert later.pop("_pushed") >= one.pop("_pushed")
        assert list(later.items()) == list(one.items())
    assert raw[f"{name}.2"].index_information().keys() == raw[f"{name}.1"].index_information().keys()
    assert left_of(raw, name) == []


def test_what_bson_can_just_hold_can_be_staged(anywhere, name):
    def batch(size):
        payloads = ["small", {"list": [0] * 10_000, "text": "x" * size}, "y" * (9 << 20)]
        return pushes(payloads, ids=["a", "i" * 200, "b"], headers=[{}, {"h": "v" * 8_000}, {}])

    queue, stage = f"{name}{'q' * 180}", f"{name}/{'s' * 1000}"
    room = MAX_DOCUMENT_BYTES - len(bson.encode(to_documents(batch(0), 0)[0][1]))
    with pytest.raises(MessageError, match="larger than"):
        anywhere.stage(queue, stage, batch(room + 1))
    assert anywhere.stage(queue, stage, batch(room)) == 3
    assert anywhere.staged(stage) == [Staged(stage, queue, 3)]
    assert anywhere.publish([stage]) == 3
    published = {one.id: one.payload for one in messages_of(anywhere.peek(queue))}
    assert (published["a"], len(published["i" * 200]["text"]), len(published["b"])) == ("small", room, 9 << 20)
    anywhere.drop(queue)


def test_no_chunk_and_no_transaction_is_larger_than_it_may_be(store, queue, monkeypatch):
    sizes = []
    insert_many = Collection.insert_many

    def counted(self, documents, **options):
        documents = list(documents)
        if self.name == queue:
            sizes.append((len(documents), sum(len(one.raw) for one in documents)))
        return insert_many(self, documents, **options)

    monkeypatch.setattr(Collection, "insert_many", counted)
    for part in range(20):
        store.stage(queue, f"{queue}.s/{part}", pushes(["x" * 100] * 20))
    store.stage(queue, f"{queue}.s/20", pushes(["x" * 100] * 12_000))
    store.stage(queue, f"{queue}.s/21", pushes(["x" * (1 << 20)] * 20))
    assert store.publish([f"{queue}.s/{part}" for part in range(22)]) == 12_420
    rows, size = zip(*sizes, strict=True)
    assert max(rows) == 5_000
    assert max(size) <= 8 << 20
    assert sum(rows) == 12_420
    assert len(sizes) == 6, "small chunks are published together"


def test_a_part_that_is_staged_again_is_not_doubled(small, anywhere, name):
    batch = pushes(list(range(10)), delay=1)
    for _ in range(2):
        anywhere._stage(f"{name}.q", name, "part", batch)
    assert anywhere.staged(name) == [Staged(name, f"{name}.q", 10)]
    assert anywhere.publish([name]) == 10


def test_what_is_ours_is_no_queue(anywhere, name):
    anywhere.stage(f"{name}.q", name, pushes(["x"]))
    anywhere.set_note(name, {}, 0)
    assert not [one for one in anywhere.queues() if one.startswith("spark_queue.")]
    for taken in ("spark_queue.staged", "spark_queue.notes", "spark_queue.else"):
        with pytest.raises(OptionError, match="begin with"):
            anywhere.stage(taken, name, pushes(["x"]))
    anywhere.set_note(name, None, 1)


def test_a_stage_of_several_queues_is_published_once_by_each_that_tries(small, anywhere, name, raw):
    for part in range(6):
        anywhere.stage(f"{name}.{part % 2}", f"{name}/{part}", pushes(list(range(10))))
    published: list[int] = []

    def publish():
        with open_store(anywhere.url, retry_timeout=60_000) as mine:
            published.append(mine.publish([f"{name}/{part}" for part in range(6)]))

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(published) == 60
    assert [anywhere.sizes(f"{name}.{one}").total for one in range(2)] == [30, 30]
    assert left_of(raw, name) == []


def test_a_standalone_server_refuses_buckets_before_anything_is_written(standalone, name):
    with open_store(standalone.url("buckets")) as alone:
        for put in (partial(alone.push, name), partial(alone.stage, name, f"{name}/0/a")):
            with pytest.raises(StoreError, match="layout=bucket needs transactions"):
                put(pushes([1, 2]), layout=Buckets())
        assert alone.sizes(name).total == 0
        assert alone.staged(name) == []


def test_hidden_messages_are_neither_seen_nor_delivered_and_make_way(small, standalone, monkeypatch):
    name = f"t{uuid.uuid4().hex[:16]}"
    ids = new_ids(4)
    with open_store(standalone.url("stages")) as store, client_of(standalone.url("stages")) as client:
        store.stage(name, name, pushes(["a", "b", "c", "d"], ids=ids))

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "update_one", crash)
            with pytest.raises(KeyboardInterrupt):
                store.publish([name])
        collection = client.stages[name]
        assert collection.count_documents({}) == 4
        assert keuss_reserve(collection) is None
        assert store.sizes(name) == Sizes(0, 0, 0)
        assert store.next_mature(name) is None
        assert list(store.peek(name)) == list(store.peek(name, view="history")) == store.reservations(name) == []
        assert store.reserve(name, "c/1", 9) == []
        assert store.purge(name) == store.move(name, f"{name}.2") == 0
        assert store.push(name, pushes(["new b"], ids=[ids[1]])) == 1
        assert [one.payload for one in messages_of(store.peek(name))] == ["new b"]
        assert store.publish([name]) == 3
        assert {one.payload for one in messages_of(store.peek(name))} == {"a", "c", "d", "new b"}
        store.drop(name)


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


@pytest.mark.parametrize("partly", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_publish_that_broke_off_anywhere_is_completed_by_the_next(small, anywhere, name, raw, steps, partly):
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw)
        died = steps.dies(step, partly, publishing.publish)
        publishing.consume()
        publishing.check()
        if not died:
            break
    assert step >= 10


def test_a_stage_can_be_removed_wherever_its_publish_broke_off(small, anywhere, name, raw, steps):
    counts = set()
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw, rows=4)
        died = steps.dies(step, True, publishing.publish)
        publishing.consume()
        anywhere.unstage(publishing.stage)
        publishing.consume()
        counts.add(len(publishing.taken))
        assert anywhere.publish([publishing.stage]) == 0
        assert left_of(raw, publishing.stage) == []
        assert [one["payload"] for one in raw[publishing.queue].find({"processed": None})] == ["held"]
        assert raw[publishing.queue].count_documents({"_hidden": {"$exists": True}}) == 0
        if not died:
            break
    assert counts == {0, 3}, "all of a chunk or nothing"


def test_a_publisher_that_was_slow_does_no_harm(small, anywhere, name, raw, steps):
    for step in itertools.count():
        publishing = Publishing(anywhere, name, raw, rows=6)
        slow = steps.pauses(step, publishing.publish)
        publishing.publish()
        publishing.consume()
        slow.go_on()
        publishing.check()
        if not slow.came:
            break
    assert step >= 10


@pytest.mark.full
def test_publishers_that_are_slow_in_turns_do_no_harm(small, anywhere, name, raw, steps):
    for first in itertools.count():
        for second in range(13):
            publishing = Publishing(anywhere, name, raw, rows=4)
            one = steps.pauses(first, publishing.publish)
            other = steps.pauses(second, publishing.publish)
            publishing.consume()
            one.go_on()
            publishing.consume()
            other.go_on()
            publishing.check()
        if not one.came:
            break
    assert first >= 8


PUBLISHER = """
import sys, time
from pymongo.collection import Collection
from spark_queue.stores import open_store

insert_many = Collection.insert_many

def insert_and_stop(self, *arguments, **options):
    insert_many(self, *arguments, **options)
    print("within", flush=True)
    time.sleep(600)

Collection.insert_many = insert_and_stop
open_store(sys.argv[1]).publish([sys.argv[2]])
"""


def kill_within_a_transaction(url, stage):
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", PUBLISHER, url, stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root}) as killed:
        assert killed.stdout is not None and killed.stdout.read(6) == b"within"
        killed.kill()


@with_limits(publisher_timeout=0.05)
def test_a_publisher_that_was_killed_in_its_transaction_blocks_others_briefly(store, queue, raw_of, monkeypatch):
    for part in range(3):
        store.stage(queue, f"{queue}.s/{part}", pushes(list(range(3_000))))
    kill_within_a_transaction(store.url, f"{queue}.s/0")
    assert store.sizes(queue) == Sizes(0, 0, 0)
    kill_within_a_transaction(store.url, f"{queue}.s/1")
    ended = counted_ends(monkeypatch)
    with retrying_for(60_000):  # the server itself would wait as long for who was killed
        assert store.publish([f"{queue}.s/0"]) == 3_000
    assert len(ended) == 1, "it has made an end of who holds the chunk"
    with retrying_for(60_000):
        assert store.unstage(f"{queue}.s") == 6_000
    assert len(ended) > 1
    assert store.sizes(queue).total == 3_000
    assert left_of(raw_of(store), f"{queue}.s") == []


def counted_ends(monkeypatch):
    """Each time that a publisher takes others for dead is in the list."""
    ended, stop = [], Stages._end_publishers

    def counted(self, *arguments):
        stop(self, *arguments)
        ended.append(arguments)

    monkeypatch.setattr(Stages, "_end_publishers", counted)
    return ended


def test_two_publishers_that_take_each_other_for_dead_both_come_to_an_end(small, anywhere, name, raw, monkeypatch):
    ended, generations = counted_ends(monkeypatch), []
    publishing = Publishing(anywhere, name, raw, rows=16)
    insert, hide = mongodb_documents.insert_new, mongodb_stages._insert_hidden

    def met():
        """Whether one assumed that the other had ended: it ended its session, or took its chunk."""
        return ended or max(generations, default=0) > 1

    def insert_slowly(*arguments):
        done = insert(*arguments)
        wait_until(met, description="that the other one loses its patience")
        time.sleep(0.3)  # far more than BUSY at first: so it goes on for a while
        return done

    def hide_slowly(*arguments):
        generations.append(arguments[-1])
        hide(*arguments)
        wait_until(met, description="that the other one loses its patience")
        time.sleep(0.3)

    monkeypatch.setattr(mongodb_stages, "insert_new", insert_slowly)
    monkeypatch.setattr(mongodb_stages, "_insert_hidden", hide_slowly)
    threads = [threading.Thread(target=publishing.publish) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    publishing.consume()
    assert sorted(publishing.taken) == publishing.expected
    publishing.check()


@pytest.mark.full
def test_when_a_publish_and_a_removal_meet_a_chunk_appears_whole_or_not_at_all(small, anywhere, name, raw, steps):
    counts = set()
    for first, second, dies in itertools.product(range(12), range(7), (None, 2)):
        publishing = Publishing(anywhere, name, raw, rows=4)
        publish = steps.pauses(first, publishing.publish, dies)
        remove = steps.pauses(second, lambda stage=publishing.stage: anywhere.unstage(stage))
        publish.go_on()
        remove.go_on()
        anywhere.unstage(publishing.stage)
        publishing.consume()
        counts.add(len(publishing.taken))
        assert anywhere.publish([publishing.stage]) == 0
        assert [one["payload"] for one in raw[publishing.queue].find({"processed": None})] == ["held"]
        if dies is None:  # a publisher that comes too late, and dies, may leave some that stay hidden
            assert raw[publishing.queue].count_documents({"_hidden": {"$exists": True}}) == 0
        assert left_of(raw, publishing.stage) == []
    assert counts == {0, 3}


@with_limits(publisher_timeout=600)
def test_a_publisher_at_work_is_left_alone(anywhere, name, raw, steps, monkeypatch):
    monkeypatch.setattr(anywhere, "_retry_timeout", 1_800_000)  # in all threads
    publishing = Publishing(anywhere, name, raw)
    published: list[int] = []
    first = steps.pauses(5, lambda: published.append(anywhere.publish([publishing.stage])))
    assert first.came
    tries = anywhere.retries
    second = threading.Thread(target=publishing.publish)
    second.start()
    wait_until(lambda: anywhere.retries > tries, description="that the second one meets the first")
    first.go_on()
    second.join()
    assert published == [9]
    publishing.consume()
    publishing.check()


def test_a_publisher_that_was_taken_for_dead_starts_again(store, queue, raw_of, monkeypatch):
    insert = mongodb_documents.insert_new
    interrupted = []

    def interrupt(*arguments):
        if not interrupted:
            interrupted.append(arguments)
            raise OperationFailure("operation was interrupted", 11601)
        return insert(*arguments)

    monkeypatch.setattr(mongodb_stages, "insert_new", interrupt)
    store.stage(queue, f"{queue}.s", pushes(["a"]))
    assert store.publish([f"{queue}.s"]) == 1


def test_a_publisher_that_others_end_names_its_stages():
    class Session:
        def start_transaction(self, **options):
            raise OperationFailure("operation was interrupted", 11601)

    keys = [{"stage": stage, "queue": "q"} for stage in ("s/2", "s/1")]
    with client_of("mongodb://host/db", connect=False) as client:
        limits = MongoLimits()
        stages = Stages(client.db, str, lambda act, *arguments: act(*arguments), 1_000, "staged", len, print, limits)
        with pytest.raises(StoreUnavailable, match="publishing stage 's/1', stage 's/2'"):
            stages._publish_in_transaction(keys, Session())


@pytest.mark.parametrize("times", [1, 3])
def test_a_publisher_whose_wait_for_copies_others_end_has_published(store, queue, monkeypatch, times):
    commit, ended = ClientSession.commit_transaction, []

    def end(self):
        commit(self)
        if len(ended) < times:
            ended.append(self)
            raise WriteConcernError("operation was interrupted", 11601)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    monkeypatch.setattr(ClientSession, "commit_transaction", end)
    assert store.publish([f"{queue}.s"]) == 1
    assert len(ended) == times
    assert store.sizes(queue).total == 1


def test_who_has_the_session_of_one_that_was_taken_for_dead_tries_again(store, queue, monkeypatch):
    delete, ended = Collection.delete_many, []

    def end(self, *arguments, **named):
        if not ended:
            ended.append(self)
            raise WriteConcernError("operation was interrupted", 11601)
        return delete(self, *arguments, **named)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    monkeypatch.setattr(Collection, "delete_many", end)
    store.unstage(f"{queue}.s")
    assert ended
    assert store.staged(f"{queue}.s") == []


def test_a_publisher_that_gives_up_is_forgotten(store, queue, raw_of, monkeypatch):
    def fail(*_: Any) -> int:
        raise OperationFailure("no room", 14031)

    store.stage(queue, f"{queue}.s", pushes(["a"]))
    with monkeypatch.context() as patched:
        patched.setattr(mongodb_stages, "insert_new", fail)
        with pytest.raises(StoreError, match="no room"):
            store.publish([f"{queue}.s"])
    assert raw_of(store)["spark_queue.staged"].find_one({"_id": f"{queue}.s"})["sessions"] == []
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.publish([f"{queue}.s"]) == 1


@pytest.mark.full
def test_a_publish_that_began_without_transactions_ends_so(small, store, queue, raw_of, steps):
    """The server may have become one of a replica set meanwhile."""
    for step in itertools.count():
        publishing = Publishing(store, queue, raw_of(store))
        stages = store._stages()
        died = steps.dies(step, True, lambda p=publishing, s=stages: s.publish([p.stage], transactions=False))
        publishing.consume()
        publishing.check()
        if not died:
            break


def test_a_publish_whose_last_answer_was_lost_publishes_nothing_twice(store, queue, monkeypatch):
    commit = ClientSession.commit_transaction
    lost = []

    def commit_and_lose(self):
        commit(self)
        if not lost:
            lost.append(self)
            raise AutoReconnect("the answer was lost")

    store.stage(queue, f"{queue}.s", pushes(list(range(10))))
    monkeypatch.setattr(ClientSession, "commit_transaction", commit_and_lose)
    store.publish([f"{queue}.s"])
    assert lost
    assert store.retries == 1
    assert sorted(drain(store, queue, "c/1")) == list(range(10))
    assert store.staged(f"{queue}.s") == []


def test_pushes_of_the_same_ids_meanwhile_neither_fail_nor_double(small, anywhere, name):
    queue, ids = f"{name}.q", new_ids(200)
    anywhere.stage(queue, name, pushes(list(range(200)), ids=ids))

    def push():
        with open_store(anywhere.url, retry_timeout=20_000) as mine:
            for part in range(0, 200, 5):
                mine.push(queue, pushes(list(range(part, part + 5)), ids=ids[part : part + 5]))

    thread = threading.Thread(target=push)
    thread.start()
    anywhere.publish([name])
    thread.join()
    assert sorted(drain(anywhere, queue, "c/1")) == list(range(200))
    assert anywhere.staged(name) == []
