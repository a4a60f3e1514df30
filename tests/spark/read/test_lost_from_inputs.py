"""Several inputs of which others have taken messages."""

from __future__ import annotations

import pytest

from spark_queue import FencedError, Queue, open_store
from spark_queue.admin.recovery import recover_consumer
from tests.spark.read.consumers import DROPPED, renewed
from tests.spark.read.inputs import begun, same


def release_some(world, binding, end):
    ns, queue = world.queues[binding]
    with open_store(world.urls[ns]) as store:
        store.rollback(queue, f"{end['consumer']}/{end['seq']}.1/0", failed=False)


def test_a_batch_that_lost_messages_comes_again_with_others(small, caplog):
    old, new, end, shares = begun(small, numPartitions="1")
    release_some(small, "b", end)
    with pytest.raises(FencedError, match=f"12 of 12 messages of queue '{small.queues['b'][1]}' are no longer held"):
        small.rows(old, shares)
    old.close()
    small.gone(end)
    assert small.rows(new, new.plan(old.initial, end)) == []
    assert "12 of 12 of" in caplog.text and "the batch cannot be repeated" in caplog.text
    assert small.sizes() == {"a": (20, 0), "b": (20, 0)}
    after = new.next(end, 100)
    assert sorted(row["a"] for row in small.rows(new, new.plan(end, after))) == list(range(20))


def test_with_exactly_once_a_person_decides_what_becomes_of_the_rest(small):
    old, new, end, _ = begun(small, delivery="exactly-once")
    release_some(small, "b", end)
    old.close()
    small.gone(end)
    settle_rest(small, "a", new, old.initial, end)
    assert small.sizes()["a"] == (8, 12)
    last = settle_rest(small, "a", new, old.initial, end, written=False)
    assert last.next(end, 100)["rows"] == {"a": [20], "b": [20]}


def test_a_batch_of_which_a_part_was_removed_is_not_written_again(small):
    """An older checkpoint may have a written batch that one queue committed before a crash."""
    old, new, end, _ = begun(small, delivery="exactly-once")
    with open_store(small.urls["here"]) as store:
        store.commit(small.queues["a"][1], f"{end['consumer']}/1.1")
    old.close()
    small.gone(end)
    last = settle_rest(small, "b", new, old.initial, end, written=True)
    assert last.next(end, 100)["rows"] == {"a": [8], "b": [8]}
    assert small.sizes() == {"a": (0, 8), "b": (0, 8)}


def settle_rest(world, binding, reader, begin, end, **recover):
    """See a reader refuse a batch, do what it says, and give the reader that goes on."""
    ns, queue = world.queues[binding]
    with pytest.raises(FencedError, match=rf"spark-queue recover URL {queue} {end['consumer']} --sink URL"):
        reader.plan(begin, end)
    if not recover:
        return reader
    reader.close()
    world.gone(end)
    recover_consumer(world.urls[ns], queue, end["consumer"], **recover)
    last = world.reader(delivery="exactly-once", numPartitions="1")
    assert world.rows(last, last.plan(begin, end)) == []
    return last


@pytest.mark.parametrize("deliveries", DROPPED)
def test_at_most_once_drops_what_was_begun(small, deliveries):
    before, after = deliveries
    old, _, end, _ = begun(small, delivery=before)
    new = small.reader(delivery=after)
    old.close()
    small.gone(end)
    assert small.rows(new, new.plan(old.initial, end)) == []
    assert small.sizes() == {"a": (8, 0), "b": (8, 0)}
    last = new.next(end, 100)
    assert last.get("delivery") == (after if after != "at-least-once" else None)
    assert small.rows(new, new.plan(end, last)) == same(range(12, 20))


def test_leases_of_all_inputs_are_renewed(small, renewing):
    old, _, _, shares = begun(small, **renewing)
    for ns, queue in small.queues.values():
        with open_store(small.urls[ns]) as store:
            assert sum(store.reserve(queue, "rival", 100)) == 8
            assert store.commit(queue, "rival") == 8
        renewed(small.urls[ns], queue, ["1.1/0"])
    assert small.rows(old, shares) == same(range(12))


def test_a_message_that_failed_too_often_is_alone_in_its_batch(small):
    small.push("a", range(5), tries=3)
    small.push("a", range(5, 10))
    small.push("b", range(5, 10))
    reader = small.reader(maxTries="3")
    end = reader.next(reader.initial, 100)
    assert small.rows(reader, reader.plan(reader.initial, end)) == same(range(5, 10))
    with Queue(small.urls["here"], f"{small.queues['a'][1]}.dead") as dead:
        assert dead.sizes().ready == 5
