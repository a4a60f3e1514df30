"""The real keuss and the places of our messages: parts of a ms in scores, and `_seq`, which keuss does not know."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from spark_queue.messages.message import pushes
from spark_queue.stores.redis.keys import PARTS, queue_keys
from tests.moments import end_leases, make_due

pytestmark = [pytest.mark.interop, pytest.mark.full]

IDS = ["c", "a", "b", "zz", "z", "0"]
DUE = int(time.time()) - 60


def push(shared, ids=IDS, **options):
    """Push messages of one ms, whose ids do not have their order."""
    options = options or {"mature": datetime.fromtimestamp(DUE, UTC)}
    shared.store.push(shared.name, pushes(list(ids), ids=list(ids), **options))


def ready(ours):
    return [one.payload for one in ours.peek(limit=100)]


@pytest.mark.needs("id")
def test_keuss_takes_each_of_them_once_with_its_own_due_time(shared):
    keuss = shared.keuss()
    push(shared)
    assert keuss.size() == len(IDS)
    taken = [keuss.pop() for _ in IDS]
    assert [one.mature for one in taken] == [DUE * 1000] * len(IDS)
    payloads = [one.payload for one in taken]
    assert payloads == IDS if shared.scheme == "redis" else sorted(payloads) == sorted(IDS)
    assert keuss.get() is None
    assert shared.ours().sizes().total == 0


@pytest.mark.needs("hold")
def test_what_keuss_holds_is_not_among_them_and_the_others_keep_their_order(shared):
    keuss, ours = shared.keuss(), shared.ours()
    push(shared)
    taken = keuss.reserve()
    held = ours.reserve(9)
    assert [one.payload for one in held] == [one for one in IDS if one != taken.payload]
    assert keuss.ok(taken.id)
    assert ours.commit(*held) == keuss.total_size() + len(held) == len(IDS) - 1


@pytest.mark.needs("hold")
def test_what_keuss_gives_back_at_their_due_time_and_later(shared):
    keuss, ours = shared.keuss(), shared.ours()
    push(shared)
    first = keuss.reserve()
    assert keuss.ko(first.id, next_t=DUE * 1000 + 1)
    second = keuss.reserve()
    assert keuss.ko(second.id)
    back = [first.payload, second.payload]
    held = ours.reserve(9)
    assert [one.payload for one in held] == [one for one in IDS if one not in back] + back
    assert [one.tries for one in held] == [0, 0, 0, 0, 1, 1]
    assert ours.commit(*held) == len(IDS)
    assert keuss.total_size() == 0


@pytest.mark.needs("hold")
def test_what_keuss_takes_of_an_ended_lease_of_ours_is_fenced(shared):
    keuss, ours = shared.keuss(), shared.ours()
    push(shared)
    held = ours.reserve(9)
    end_leases(shared.store, shared.name)
    taken = [keuss.reserve() for _ in IDS[:2]]
    assert ours.commit(*held) == len(IDS) - 2
    assert all(keuss.ok(one.id) for one in taken)
    assert ours.sizes().total == keuss.total_size() == 0


@pytest.mark.needs("later")
def test_scheduled_ones_are_due_for_both_at_once(shared):
    keuss, ours = shared.keuss(), shared.ours()
    push(shared, delay=3_600_000)
    assert keuss.get() is None
    assert (keuss.size(), keuss.sched_size(), ours.sizes().scheduled) == (0, len(IDS), len(IDS))
    assert ours.reserve() == []
    make_due(shared.store, shared.name)
    assert keuss.pop().payload in IDS
    assert len(ours.reserve(9)) == len(IDS) - 1


def test_pushes_of_both_at_one_ms_come_out_once_each(shared):
    keuss, ours = shared.keuss(), shared.ours()
    due = {"mature": DUE} if "later" in shared.can else {}
    for n in range(3):
        keuss.push(f"keuss {n}", **due)
        push(shared, [f"{one}{n}" for one in IDS])
    own = [f"{one}{n}" for n in range(3) for one in IDS]
    taken = [keuss.pop().payload for _ in range(7)]
    held = [one.payload for one in ours.reserve(30)]
    assert sorted(taken + held) == sorted([*own, *(f"keuss {n}" for n in range(3))])
    assert [one for one in held if one in own] == [one for one in own if one in held], "ours have their order"


@pytest.mark.parametrize("shared", ["redis-oq"], indirect=True)
def test_scores_are_due_times_and_parts_that_keuss_keeps_while_it_holds_a_message(shared):
    def scores():
        with shared.store._connection() as client:
            return dict(client.zrange(queue_keys(shared.name).moments, 0, -1, withscores=True))

    keuss = shared.keuss()
    push(shared)
    before = scores()
    assert {score // 1 for score in before.values()} == {DUE * 1000}
    assert len({score % 1 for score in before.values()}) > 1
    assert all((score * PARTS).is_integer() for score in before.values())
    for _ in IDS[:3]:
        keuss.reserve()
    assert {score % 1 for score in scores().values()} == {score % 1 for score in before.values()}
    assert scores().keys() == before.keys()


def test_our_buckets_of_such_ids_come_to_keuss_in_their_order(buckets):
    ours, keuss = buckets.ours(), buckets.keuss()
    push(buckets)
    push(buckets, [f"{one}2" for one in IDS])
    assert ready(ours) == [*IDS, *(f"{one}2" for one in IDS)]
    taken = [keuss.pop().payload for _ in range(2 * len(IDS))]
    assert taken == [*IDS, *(f"{one}2" for one in IDS)]
    assert keuss.get() is None
