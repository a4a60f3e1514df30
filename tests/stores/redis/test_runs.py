"""Runs: the messages of a tag in `held`, in the order of their scores. See lua/common.lua."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.helpers import ids_of, payloads_of
from spark_queue.stores.conformance.order import drain, own_ids
from spark_queue.stores.redis import store as redis_store
from spark_queue.stores.redis.keys import ids_of as ids_of_run
from spark_queue.stores.redis.keys import messages_of, queue_keys, single_run
from spark_queue.stores.redis.store import RUN_SIZE

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(redis_url):
    with open_store(redis_url) as opened:
        yield opened


def held(raw, queue):
    return raw.zrange(queue_keys(queue).held, 0, -1)


def test_a_run_names_the_parts_of_each_score():
    run = b"\0".join([b"c/1", b"000000000000005", b"b", b"\xff0001", b"a", b"c", b"\xff0003", b"B"])
    assert messages_of(run) == [
        (b"c/1", 5, b"b"), (b"c/1", 5 + 1 / 1024, b"a"), (b"c/1", 5 + 1 / 1024, b"c"), (b"c/1", 5 + 3 / 1024, b"B")
    ]  # fmt: skip
    assert ids_of_run(run) == [b"b", b"a", b"c", b"B"]
    assert single_run(*messages_of(run)[2]) == b"\0".join([b"c/1", b"000000000000005", b"\xff0001", b"c"])


def test_messages_in_the_order_of_their_push_are_in_as_few_runs_as_others(store, raw, queue):
    store.push(queue, pushes(list(range(1000)), ids=own_ids(1000), mature=PAST))
    assert store.reserve(queue, "c/1", 1000) == [1000]
    assert len(held(raw, queue)) == 1000 // RUN_SIZE
    assert [one for page in store.fetch(queue, "c/1/0", 70) for one in payloads_of([page])] == list(range(1000))
    assert store.rollback(queue, "c/1", delay=None) == 1000
    assert drain(store, queue, 300) == list(range(1000))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_to_parts_of_runs_each_message_keeps_its_place(store, raw, queue, monkeypatch, seed):
    monkeypatch.setattr(redis_store, "SCRIPT_CHUNK", 4)
    monkeypatch.setattr(redis_store, "SCRIPTS", redis_store.load_scripts(chunk=4, run=3, page=300))
    choose = random.Random(seed)
    ids = own_ids(60)
    for first in range(0, 60, 12):
        store.push(queue, pushes(list(range(first, first + 12)), ids=ids[first : first + 12], mature=PAST))
    free, tags = set(range(60)), {"a/1": set(), "b/1": set()}
    for step in range(30):
        tag = choose.choice(list(tags))
        mine = sorted(tags[tag])
        some = [n for n in mine if choose.random() < 0.4]
        act = choose.choice(["reserve", "commit", "rollback", "transfer", "renew"])
        if act == "reserve" and not mine:
            taken = sorted(free)[: choose.randint(1, 25)]
            assert sum(store.reserve(queue, tag, len(taken) or 1)) == len(taken), step
            tags[tag] = set(taken)
            free -= set(taken)
        elif act == "commit":
            some = some[:3]
            assert store.commit(queue, tag, [ids[n] for n in some]) == len(some)
            tags[tag] -= set(some)
        elif act == "rollback":
            assert store.rollback(queue, tag, [ids[n] for n in some], delay=None) == len(some)
            tags[tag] -= set(some)
            free |= set(some)
        elif act == "transfer":
            other = "b/1" if tag == "a/1" else "a/1"
            assert store.transfer(queue, f"{tag}/0", f"{other}/0", [ids[n] for n in some], lease=60_000) == len(some)
            tags[tag] -= set(some)
            tags[other] |= set(some)
        else:
            assert store.renew(queue, tag, 60_000) == len(mine)
        for name, numbers in tags.items():
            rows = choose.choice([1, 2, 5, 100])
            assert payloads_of(store.fetch(queue, f"{name}/0", rows)) == sorted(numbers), (step, act, name)
        runs = [[one[1:] for one in messages_of(run)] for run in held(raw, queue)]
        assert all(one == sorted(one) for one in runs)
    left = sorted(free | tags["a/1"] | tags["b/1"])
    for name in tags:
        store.rollback(queue, name, delay=None)
    assert drain(store, queue, 9) == left


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_bucket_that_is_split_stays_in_its_place(store, queue, size):
    store.layout = Buckets(size)
    pushed = [own_ids(9), [f"x{one}" for one in own_ids(9)], [f"a{one}" for one in own_ids(9)]]
    for number, ids in enumerate(pushed):
        store.push(queue, pushes([9 * number + row for row in range(9)], ids=ids, mature=PAST))
    assert store.move(queue, f"{queue}.other", ids=[pushed[1][2], pushed[1][6]]) == 2
    assert store.purge(queue, ids=[pushed[0][4], pushed[2][4]]) == 2
    assert sum(store.reserve(queue, "c/1", 9)) > 2
    held = ids_of(store.fetch(queue, "c/1/0"))
    assert store.rollback(queue, "c/1", held[1:3], delay=None) == 2
    store.rollback(queue, "c/1", delay=None)
    assert drain(store, queue, 7) == [n for n in range(27) if n not in (4, 11, 15, 22)]


def test_an_id_that_looks_like_a_mark_gets_another_name(store, raw, queue):
    keys = queue_keys(queue)
    for id in (b"\xff0001", b"\xff", b"a"):
        raw.hset(keys.hash, id, b'{"_id":"x","payload":1,"tries":0,"hdrs":{},"mature":1700000000000}')
        raw.zadd(keys.moments, {id: 1_700_000_000_000})
    assert store.reserve(queue, "c/1", 9) == [3]
    assert [[one[2] for one in messages_of(run)] for run in held(raw, queue)] == [[b"\\xff", b"\\xff0001", b"a"]]
    assert ids_of(store.fetch(queue, "c/1/0")) == ["\\xff", "\\xff0001", "a"]
    assert store.commit(queue, "c/1") == 3
