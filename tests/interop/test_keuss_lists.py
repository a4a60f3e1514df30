"""keuss' `redis-list`, shared with the real keuss: what differs where keuss itself holds and schedules nothing."""

from __future__ import annotations

import json

import pytest

from spark_queue import Queue
from tests.moments import end_leases, make_due

pytestmark = [pytest.mark.interop, pytest.mark.full, pytest.mark.parametrize("shared", ["redis-list"], indirect=True)]


@pytest.fixture
def raw(shared):
    """What the list has, the next one first."""

    def read():
        with shared.store._connection() as client:
            return client.lrange(f"keuss:q:list:{shared.name}", 0, -1)[::-1]

    return read


def test_the_order_is_that_of_the_pushes_of_both(shared):
    keuss, ours = shared.keuss(), shared.ours()
    for n in range(6):
        (keuss, ours)[n % 2].push(n)
    first, middle, last = keuss.pop(), ours.reserve(4), keuss.pop()
    assert [one.payload for one in (first, *middle, last)] == list(range(6))


def test_what_ours_push_has_the_fields_of_keuss_and_an_id(shared, raw):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push({"n": 1}, hdrs={"h": "x"})
    id = ours.push({"n": 1}, headers={"h": "x"})
    theirs, mine = map(json.loads, raw())
    assert theirs == {"payload": {"n": 1}, "tries": 0, "hdrs": {"h": "x"}}
    assert mine == theirs | {"_id": id, "mature": mine["mature"], "pushed": mine["mature"]}
    assert keuss.size() == 2 == keuss.total_size() == ours.sizes().ready


def test_what_we_hold_keuss_does_not_get_and_a_commit_ends_it(shared, raw):
    keuss, ours = shared.keuss(), shared.ours()
    for n in range(3):
        keuss.push(n)
    held = ours.reserve(2)
    assert [one.payload for one in held] == [0, 1]
    assert len(raw()) == 1
    assert (ours.sizes().ready, ours.sizes().reserved) == (1, 2)
    assert keuss.pop().payload == 2
    assert keuss.get() is None
    assert ours.commit(*held) == 2
    assert ours.sizes().total == 0 == keuss.total_size()
    assert raw() == []
    assert shared.name not in shared.store._queues(), "its statistics may be there"


def test_a_rollback_gives_a_message_back_to_keuss_with_its_tries(shared):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push(b"\x00\xff", hdrs={"h": "x"})
    keuss.push("second")
    assert ours.rollback(*ours.reserve(1)) == 1
    assert keuss.pop().payload == "second", "it goes to the end"
    taken = keuss.pop()
    assert (taken.payload, taken.hdrs, taken.tries) == (b"\x00\xff", {"h": "x"}, 1)
    assert ours.sizes().total == 0


def test_what_is_scheduled_comes_to_keuss_when_it_is_due_and_we_push_next(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push("later", delay=3600)
    assert (ours.sizes().scheduled, keuss.total_size()) == (1, 0)
    make_due(shared.store, shared.name)
    assert keuss.get() is None, "no client has pushed it"
    assert ours.sizes().ready == 1
    ours.push("now")
    assert [keuss.pop().payload, keuss.pop().payload] == ["later", "now"]


def test_what_an_ended_lease_held_comes_back_in_front_when_we_reserve_next(shared):
    keuss, ours = shared.keuss(), shared.ours()
    for n in range(4):
        keuss.push(n)
    assert len(ours.reserve(2)) == 2
    end_leases(shared.store, shared.name)
    with Queue(shared.url, shared.name) as other:
        (message,) = other.reserve(1)
        assert (message.payload, message.tries) == (0, 1)
        taken = keuss.pop()
        assert (taken.payload, taken.tries) == (1, 1)
        assert [keuss.pop().payload, keuss.pop().payload] == [2, 3]


def test_an_element_that_is_no_message_is_a_dead_letter(shared, raw):
    ours = shared.ours()
    with shared.store._connection() as client:
        client.lpush(f"keuss:q:list:{shared.name}", b"oops", b"[1]", b'{"_id":7,"payload":1}')
    ours.push("good")
    assert shared.store.reserve(shared.name, "c/1", 3) == [3]
    assert shared.store.reserve(shared.name, "c/2", 9) == [1]
    (batch,) = shared.store.fetch(shared.name, "c/1/0")
    assert batch.column("payload").to_pylist() == [b"1"]
    assert shared.store.commit(shared.name, "c/1") == 1
    letters = Queue(shared.store, f"{shared.name}.dead").peek()
    assert {str(one.payload) for one in letters} == {"[1]", "oops"}
    assert raw() == []
