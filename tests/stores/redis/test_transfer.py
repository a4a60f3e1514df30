"""Notes in Redis, and reservations that pass on."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.redis import store as redis_store
from spark_queue.stores.redis.keys import note_key, queue_keys, registry_key
from tests.stores.redis.programs import MINUTE, begin_to_renew, cuts, fetched, keuss_commits, keuss_reserves, scores

# --- notes ----------------------------------------------------------------------------------------


def test_keys_beside_the_queues_are_those_of_no_queue(store, raw, queue):
    key = f"{queue}:history"
    assert store.set_note(key, {"a": 1}, 0)
    try:
        assert not [name for name in store.queues() if queue in name]
        nasty = ["note", "sink", "note:x", ".note:x", "x:staged:y/z", "{note}"]
        queues = {key for name in nasty for key in queue_keys(name)}
        beside = {note_key(name) for name in ("held", "x:held", *nasty)} | {
            registry_key(name) for name in ("held", "x:held")
        }
        assert not queues & beside
    finally:
        store.set_note(key, None, 1)


def test_a_prefix_of_notes_is_no_pattern(store, queue):
    keys = [f"{queue}{odd}" for odd in ("[a-c]", "a", "\\*", "?", "^", "[", "*", "\n")]
    for key in keys:
        assert store.set_note(key, {}, 0)
    try:
        for key in keys:
            assert list(store.notes(key)) == sorted(one for one in keys if one.startswith(key))
        assert sorted(store.notes(queue)) == sorted(keys)
    finally:
        for key in keys:
            store.set_note(key, None, 1)


def held_by(raw, queue):
    """How many messages the tags have."""
    found = Counter()
    for run in raw.zrange(queue_keys(queue).held, 0, -1):
        tag, _, *ids = run.split(b"\0")
        found[tag.decode()] += len(ids)
    return found


# --- passing on -----------------------------------------------------------------------------------


def test_what_is_passed_on_in_many_steps_has_one_lease(small_steps, store, raw, queue):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 4, lease=MINUTE)
    store.reserve(queue, "c/2", 6, lease=MINUTE)
    ids = [one.id for one in fetched(store, queue, "c/2/0")]
    assert store.transfer(queue, "c/2", "c/1/0", ids[:5], lease=3 * MINUTE) == 5
    (held, rest) = store.reservations(queue)
    assert (held.tag, held.rows, rest.rows) == ("c/1/0", 9, 1)
    assert 2 * MINUTE < held.until - store.now() <= 3 * MINUTE
    assert scores(raw, queue) == {held.until, rest.until}
    assert store.transfer(queue, "c/2", "c/1/0", lease=None) == 1
    assert scores(raw, queue) == {redis_store.NO_END}
    assert raw.zrange(queue_keys(queue).leases, 0, -1) == [b"c/1/0"]
    assert held_by(raw, queue) == {"c/1/0": 10}
    assert store.commit(queue, "c/1") == 10
    assert not raw.exists(*queue_keys(queue))


@pytest.mark.parametrize("lease", [1000, 3 * MINUTE, None])
def test_a_transfer_that_is_cut_off_anywhere_is_completed_by_the_next(
    monkeypatch, redis_url, peer, raw, queue, small_steps, lease
):
    for store, once in cuts(monkeypatch, redis_url):
        peer.push(queue, pushes(list(range(12))))
        peer.reserve(queue, "c/1", 4, lease=MINUTE)
        peer.reserve(queue, "c/2", 8, lease=MINUTE)
        once(lambda store=store: store.transfer(queue, "c/2", "c/1/0", lease=lease))
        assert sum(one.rows for one in peer.reservations(queue)) == 12
        assert len(fetched(peer, queue, "c/1/0")) + len(fetched(peer, queue, "c/2/0")) == 12
        passed = len(fetched(peer, queue, "c/1/0")) - 4
        assert peer.transfer(queue, "c/2", "c/1/0", lease=lease) == 8 - passed
        (held,) = peer.reservations(queue)
        assert scores(raw, queue) == {held.until or redis_store.NO_END}
        assert raw.zcard(queue_keys(queue).leases) == 1
        assert [one.payload for one in fetched(peer, queue, "c/1/0")] == list(range(12))
        assert (peer.commit(queue, "c/2"), peer.commit(queue, "c/1")) == (0, 12)


def test_a_tag_of_the_tree_itself_may_get_what_the_tree_holds(small_steps, store, raw, queue):
    store.push(queue, pushes(list(range(12))))
    assert store.reserve(queue, "c/1", 12, partitions=3, min_partitions=3, lease=MINUTE) == [4, 4, 4]
    assert store.transfer(queue, "c/1", "c/1/1", lease=2 * MINUTE) == 8
    assert held_by(raw, queue) == {"c/1/1": 12}
    assert store.transfer(queue, "c/1", "c/1/1", lease=2 * MINUTE) == 0
    assert [one.payload for one in fetched(store, queue, "c/1/1")] == list(range(12))


def test_what_keuss_took_is_not_passed_on(store, raw, queue):
    store.push(queue, pushes([1, 2, 3], ids=["a", "b", "c"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert store.transfer(queue, "c/1", "c/2/0", ["a"], lease=None) == 0
    assert store.transfer(queue, "c/1", "c/2/0", lease=None) == 2
    assert held_by(raw, queue) == {"c/2/0": 2}
    assert store.commit(queue, "c") == 2
    assert keuss_commits(raw, queue, "a")
    assert not raw.exists(*queue_keys(queue))


@pytest.mark.parametrize("lease", [MINUTE // 2, 2 * MINUTE])
def test_what_is_passed_on_in_the_middle_of_a_renewal_is_held(small_steps, store, peer, raw, queue, lease):
    store.push(queue, pushes(list(range(20))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store.reserve(queue, "c/2", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", lease)
    assert peer.transfer(queue, "c/2", "c/1/0", lease=3 * MINUTE) == 10
    assert [one.rows for one in peer.reservations(queue)] == [20]
    assert len(scores(raw, queue)) == raw.zcard(queue_keys(queue).leases) == 1
    begin_to_renew(store, queue, "c/1/0", lease)
    assert [one.payload for one in fetched(peer, queue, "c/1/0")] == list(range(20))
    assert peer.commit(queue, "c/1") == 20


def test_renewals_and_transfers_at_once_leave_one_end(small_steps, store, peer, raw, queue):
    store.push(queue, pushes(list(range(60))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store.reserve(queue, "c/2", 50, lease=MINUTE)
    ids = [one.id for one in fetched(store, queue, "c/2/0")]
    other = threading.Thread(target=lambda: [peer.renew(queue, "c/1", 3 * MINUTE) for _ in range(15)])
    other.start()
    passed = [store.transfer(queue, "c/2", "c/1/0", ids[at : at + 10], lease=2 * MINUTE) for at in range(0, 50, 10)]
    other.join()
    assert passed == [10] * 5
    assert len(scores(raw, queue)) == raw.zcard(queue_keys(queue).leases) == 1
    assert store.commit(queue, "c/1") == 60
    assert not raw.exists(*queue_keys(queue))


def test_what_was_passed_on_comes_back_when_its_lease_ends(small_steps, store, queue):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=None)
    assert store.transfer(queue, "c/1", "c/2/0", lease=MINUTE) == 10
    assert store.reserve(queue, "d/1", 99) == []
    end_lease(store, queue, "c/2")
    assert store.reserve(queue, "d/1", 99) == [10]
    assert {one.tries for one in fetched(store, queue, "d/1/0")} == {1}
    assert store.commit(queue, "c") == 0


def test_a_renewal_does_not_hold_again_what_is_lost(store, raw, queue):
    store.push(queue, pushes([1, 2], ids=["a", "b"]))
    store.reserve(queue, "c/1", 2, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert store.renew(queue, "c/1", None) == 1
    keys = queue_keys(queue)
    raw.zadd(keys.moments, {"a": 1_700_000_000_000})  # keuss gives it back
    assert store.reserve(queue, "d/1", 9, lease=None) == [1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b"]
    assert store.commit(queue, "c/1") == 1
    assert store.commit(queue, "d/1") == 1
