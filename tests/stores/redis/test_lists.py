"""The Redis layouts with lists: their steps, and what a crash between two of them leaves."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
import redis

from spark_queue.errors import StoreError
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.redis.limits import RedisLimits
from spark_queue.stores.redis.store import load_scripts
from spark_queue.stores.types import Sizes
from tests.moments import make_due

MINUTE = 60_000
LAYOUTS = ["redis-list", "rfq"]


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def store(redis_url, layout):
    with open_store(f"{redis_url}?layout={layout}") as opened:
        yield opened


@pytest.fixture
def peer(store):
    with open_store(store.url) as opened:
        yield opened


@pytest.fixture
def waiting(raw, layout, queue):
    """How many wait where the programs of others see them."""
    key = {"redis-list": f"keuss:q:list:{queue}", "rfq": f"rfq:{queue}:backlog"}[layout]
    return lambda: raw.llen(key)


def push_in_order(store, queue, numbers, **columns):
    """Push messages of these numbers, in this order."""
    ids = [f"{n:03} {uuid.uuid4().hex[:4]}" for n in numbers]
    assert store.push(queue, pushes([{"n": str(n)} for n in numbers], ids=ids, **columns)) == len(numbers)


def numbers(batches):
    return [int(one.payload["n"]) for batch in batches for one in messages(batch)]


def held_numbers(store, queue, tag):
    return numbers(store.fetch(queue, tag))


# --- steps ----------------------------------------------------------------------------------------


def test_a_claim_of_many_steps_keeps_the_order_of_the_list(small_steps, store, queue):
    order = [7, 3, 9, 1, 8, 2, 6, 4, 5, 0, 13, 11, 12, 10]
    for n in order:
        push_in_order(store, queue, [n])
    assert store.reserve(queue, "c/1", 11) == [11]
    assert held_numbers(store, queue, "c/1/0") == order[:11]
    assert store.reserve(queue, "c/2", 11) == [3]
    assert held_numbers(store, queue, "c/2/0") == order[11:]
    assert store.commit(queue, "c") == 14
    assert store.sizes(queue) == Sizes(0, 0, 0)


def test_a_claim_stops_at_its_limit_of_bytes_and_goes_on(small_steps, store, queue):
    store.push(queue, pushes([{"n": str(n), "pad": "x" * 200} for n in range(9)]))
    assert store.reserve(queue, "c/1", 9) == [9]
    assert held_numbers(store, queue, "c/1/0") == list(range(9))


def test_what_is_due_after_a_moment_stays_in_its_place(store, queue):
    now = datetime.fromtimestamp(store.now() / 1000, UTC)
    young = [0, 3, 4, 7]
    for n in range(8):
        push_in_order(store, queue, [n], mature=now - timedelta(hours=1 if n in young else 2))
    before = store.now() - 90 * MINUTE
    assert store.reserve(queue, "c/1", 3, before=before) == [3]
    assert held_numbers(store, queue, "c/1/0") == [1, 2, 5]
    assert store.reserve(queue, "c/2", 9, before=before) == [1]
    assert store.reserve(queue, "c/3", 9, before=before) == []
    assert store.reserve(queue, "c/4", 9) == [4]
    assert held_numbers(store, queue, "c/4/0") == young


def test_a_lease_that_ended_gives_back_in_front_what_was_rolled_back_at_the_end(small_steps, store, peer, queue):
    push_in_order(store, queue, range(8))
    assert store.reserve(queue, "old/1", 3, lease=MINUTE) == [3]
    assert store.reserve(queue, "failed/1", 2) == [2]
    assert store.rollback(queue, "failed/1") == 2
    end_lease(store, queue, "old/1")
    assert peer.reserve(queue, "new/1", 99) == [8]
    assert held_numbers(peer, queue, "new/1/0") == [0, 1, 2, 5, 6, 7, 3, 4]


def test_a_push_takes_nothing_from_a_holder_who_is_merely_late(store, peer, queue):
    push_in_order(store, queue, range(2))
    assert store.reserve(queue, "old/1", 2, lease=MINUTE) == [2]
    end_lease(store, queue, "old/1")
    push_in_order(peer, queue, [2])
    assert store.renew(queue, "old/1", MINUTE) == 2
    assert peer.reserve(queue, "new/1", 9) == [1]
    assert store.commit(queue, "old/1") == 2


def test_what_is_scheduled_comes_before_what_is_pushed_when_it_is_due(small_steps, store, queue, waiting):
    push_in_order(store, queue, range(5), delay=[MINUTE] * 5)
    assert waiting() == 0 and store.sizes(queue).scheduled == 5
    make_due(store, queue)
    assert store.sizes(queue) == Sizes(5, 0, 0)
    push_in_order(store, queue, [5])
    assert waiting() == 4, "a step brings three"
    push_in_order(store, queue, [6])
    assert waiting() == 7
    assert store.reserve(queue, "c/1", 9) == [7]


@pytest.mark.parametrize("layout", ["rfq"], indirect=True)
def test_what_is_dated_ahead_of_the_server_is_ready_at_once(store, raw, queue):
    """As by a publisher with a wrong clock; also if the server's clock goes on during a step."""
    ahead = [f"{n:08x}ffff1ffe8000010000000001" for n in range(3_000)]
    for start in range(0, 3_000, 60):
        pipe = raw.pipeline()
        for id in ahead[start : start + 60]:
            pipe.hset(f"rfq:{queue}:message:{id}", "n", "1")
            pipe.lpush(f"rfq:{queue}:backlog", id)
        pipe.execute()
        assert store.reserve(queue, f"c/{start}", 60) == [60]


# --- what a crash leaves --------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["purge", "move"])
@pytest.mark.parametrize("calls", range(8))
def test_a_move_or_a_purge_that_is_cut_off_anywhere_loses_nothing(
    small_steps, store, peer, queue, act, calls, monkeypatch
):
    other = f"{queue}.other"
    push_in_order(store, queue, range(8))
    store.reserve(queue, "c/1", 1, lease=MINUTE)
    run, done = store._run, []

    def cut_off(*arguments, **more):
        if len(done) == calls:
            raise StoreError("the process dies here")
        done.append(1)
        return run(*arguments, **more)

    monkeypatch.setattr(store, "_run", cut_off)
    with pytest.raises(StoreError, match="dies here"):
        store.move(queue, other) if act == "move" else store.purge(queue)
    monkeypatch.setattr(store, "_run", run)
    found = numbers(peer.peek(queue)) + numbers(peer.peek(other))
    assert len(found) == len(set(found))
    assert set(found) == set(range(8)) or act == "purge"
    left = peer.sizes(queue).ready
    assert sum(peer.reserve(queue, "d/1", 99)) == left == len(held_numbers(peer, queue, "d/1/0"))
    assert held_numbers(peer, queue, "d/1/0") == sorted(held_numbers(peer, queue, "d/1/0")), "in their order"
    assert peer.commit(queue, "c/1") == 1


@pytest.mark.parametrize("act", ["purge", "move"])
def test_a_move_or_a_purge_takes_what_leases_held_that_ended(small_steps, store, queue, act):
    push_in_order(store, queue, range(8))
    store.reserve(queue, "c/1", 2, lease=MINUTE)
    end_lease(store, queue, "c/1")
    done = store.move(queue, f"{queue}.other") if act == "move" else store.purge(queue)
    assert done == 8
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.sizes(f"{queue}.other").ready == (8 if act == "move" else 0)


def test_what_a_move_leaves_waits_in_the_list_again(store, queue, waiting):
    push_in_order(store, queue, range(8))
    assert store.move(queue, f"{queue}.other", limit=3) == 3
    assert waiting() == 5
    assert store.reserve(queue, "c/1", 9) == [5]
    assert held_numbers(store, queue, "c/1/0") == [3, 4, 5, 6, 7]


# --- what others write ----------------------------------------------------------------------------


#: Which of ten reservations of 40 messages, or which of their messages, are released. And how many commands that
#: takes for each of them one by one: none, if they are many.
RELEASED = {
    "the oldest": ("a", None, 0),
    "one in the middle": ("e", None, 0),
    "the latest": ("j", None, 0),
    "every second one": ("e", slice(None, None, 2), 0),
    "a few": ("e", slice(3, 6), 3),
}


@pytest.mark.parametrize("layout", ["rfq"], indirect=True)
@pytest.mark.parametrize("released", RELEASED.values(), ids=RELEASED)
@pytest.mark.parametrize("act", ["rollback", "commit"])
def test_many_leave_the_nextlog_of_rfq_in_few_steps_and_others_keep_their_order(new_server, queue, released, act):
    """One by one, each would walk through all that are reserved: a script of 5,000 messages took five seconds."""
    tag, which, walks = released
    server = new_server()
    with open_store(f"{server.url}?layout=rfq") as store, redis.Redis.from_url(server.url, protocol=2) as client:
        push_in_order(store, queue, range(400))
        for one in "abcdefghij":
            assert sum(store.reserve(queue, one, 40)) == 40
        before = client.lrange(f"rfq:{queue}:nextlog", 0, -1)
        ids = None if which is None else store.held_ids(queue, f"{tag}/0")[which]
        gone = set(store.held_ids(queue, f"{tag}/0") if ids is None else ids)
        client.config_resetstat()
        assert getattr(store, act)(queue, tag, ids) == len(gone)
        assert client.info("commandstats").get("cmdstat_lrem", {"calls": 0})["calls"] == walks
        assert client.lrange(f"rfq:{queue}:nextlog", 0, -1) == [one for one in before if one.decode() not in gone]
        assert store.sizes(queue).reserved == 400 - len(gone)


@pytest.mark.parametrize("layout", ["redis-list"], indirect=True)
def test_messages_of_keuss_with_any_fields_are_kept_apart(store, raw, queue):
    """One id twice, fields in another order, a payload like a document: nothing is mixed up."""
    texts = [
        b'{"payload":{"n":"0"},"tries":0,"hdrs":{}}',
        b'{"payload":{"n":"1"},"tries":0,"hdrs":{}}',
        b'{"_id":"a","payload":{"n":"2"},"tries":0,"hdrs":{},"mature":5}',
        b'{"_id":"a","payload":{"n":"3"},"tries":0,"hdrs":{},"mature":5}',
        b'{"tries":1,"hdrs":{"h":"x"},"payload":{"n":"4","_id":"b","mature":7},"_id":"b"}',
        b'{ "hdrs": {}, "payload" : {"n": "5"}, "_id": "c\\"d" }',
        b'{"payload":{"n":"6"},"hdrs":{"mature":9},"tries":2}',
    ]
    raw.lpush(f"keuss:q:list:{queue}", *texts)
    assert numbers(store.peek(queue, limit=2)) == [2, 3], "the oldest"
    assert sorted(numbers(store.peek(queue))) == list(range(7))
    assert store.reserve(queue, "c/1", 9) == [7]
    got = [one for batch in store.fetch(queue, "c/1/0") for one in messages(batch)]
    assert [int(one.payload["n"]) for one in got] == list(range(7))
    assert len({one.id for one in got}) == 7
    assert (got[2].id, got[4].id, got[5].id) == ("a", "b", 'c"d')
    assert [one.tries for one in got] == [0, 0, 0, 0, 1, 0, 2]
    assert (got[4].headers, got[6].headers) == ({"h": "x"}, {"mature": "9"})
    assert store.rollback(queue, "c/1") == 7
    assert store.reserve(queue, "c/2", 9) == [7]
    again = [one for batch in store.fetch(queue, "c/2/0") for one in messages(batch)]
    assert [(one.id, one.payload, one.tries) for one in again] == [
        (one.id, one.payload, one.tries + 1) for one in got
    ]


@pytest.mark.parametrize("layout", ["rfq"], indirect=True)
def test_bytes_that_are_no_text_come_as_replacements_and_stay_what_they_are(store, raw, queue):
    bad = {b"n": b"0", b"a": b"\xff\xfe", b"b": "ü🛫".encode(), b"c": b"x\xed\xa0\x80", b"\xc3": b"\xe2\x82"}
    raw.hset(f"rfq:{queue}:message:one", mapping=bad)
    raw.lpush(f"rfq:{queue}:backlog", "one")
    for look in (lambda: store.peek(queue), lambda: store.fetch(queue, "c/1/0")):
        (got,) = (one for batch in look() for one in messages(batch))
        assert (got.payload["n"], got.payload["b"]) == ("0", "ü🛫")
        assert "\ufffd" in got.payload["a"] and "\ufffd" in got.payload["c"]
        store.reserve(queue, "c/1", 1)
    store.rollback(queue, "c/1")
    assert raw.hgetall(f"rfq:{queue}:message:one") == bad


def test_the_scripts_of_each_layout_are_its_own():
    names = {layout: set(load_scripts(RedisLimits(), layout)) for layout in LAYOUTS}
    assert names["rfq"] - names["redis-list"] == {"harvest", "purge"}
    assert {"fill", "deliver"} == names["redis-list"] - set(load_scripts(RedisLimits()))
