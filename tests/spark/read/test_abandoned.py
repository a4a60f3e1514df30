"""A driver that dies before its first offset is in Spark's log: its epoch is abandoned, and nothing is lost by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_queue import FencedError, Queue, open_store
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.abandoned import AbandonedEpochs
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.offsets import Batch, batch_of_tag
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState, Owner, load_consumer_state
from spark_queue.stores.types import queue_note_key

LEAST, EXACTLY = "at-least-once", "exactly-once"


@pytest.fixture
def consumers():
    """Makes consumers of a queue, and closes them."""
    made = []

    def make(url, queue, **options):
        raw = {"url": url, "queue": queue, "numPartitions": "2", "waitTimeout": "50ms", "maxRecordsPerTrigger": "20"} | options
        made.append(Consumer(QueueOptions.parse(raw, "stream", "snapshot")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def change_owner(url, queue, consumer, change):
    """Change the owner in the note of a consumer, as if another process had written it."""
    key = queue_note_key(queue, OWNER_NOTE, consumer)
    with open_store(url) as store:
        while True:
            note = store.note(key)
            state = ConsumerState.from_note(note)
            if store.set_note(key, replace(state, owner=change(state.owner)).note_value, note.version):
                return


def dead(one: Owner) -> Owner:
    return replace(one, started=one.started + 1)


def silent(one: Owner) -> Owner:
    """A process of another machine without a heartbeat."""
    return replace(one, host="elsewhere", until=0)


def gone(_: Owner) -> None:
    return None


def reserved(url, queue):
    with open_store(url) as store:
        return {one.tag.rpartition("/")[0] for one in store.reservations(queue)}


def tries(url, queue):
    with Queue(url, queue) as opened:
        return {one.tries for one in opened.peek(limit=1_000)}


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("end", [dead, silent, gone])
@pytest.mark.parametrize("lease", ["goes on", "has ended"])
def test_what_a_dead_process_had_reserved_before_its_first_batch_comes_again(
    any_url, name, consumers, end, lease, delivery
):
    with Queue(any_url, name) as queue:
        ids = queue.push_many(list(range(20)))
    first, second = (consumers(any_url, name, delivery=delivery, maxTries="1") for _ in range(2))
    one = first.next(first.initial, 20)
    first.owned.lease_renewer.stop()
    change_owner(any_url, name, one["consumer"], end)
    if lease == "has ended":
        with open_store(any_url) as store:
            for held in store.reservations(name):
                end_lease(store, name, held.tag)
    two = second.next(second.initial, 20)
    with open_store(any_url) as store:
        shares = second.plan(second.initial, two)
        rows = [row for share in shares for page in store.fetch(name, share.tag) for row in page.to_pylist()]
        assert {row["id"] for row in rows} == set(ids) and {row["tries"] for row in rows} == {0}
        assert store.sizes(f"{name}.dead").total == 0
    assert load_state(any_url, name, one).owner is None
    with pytest.raises(FencedError):
        first.plan(first.initial, one)  # it only stood still


def load_state(url, queue, offset):
    with open_store(url) as store:
        return load_consumer_state(store, queue, offset["consumer"])


def test_a_living_process_keeps_what_it_has_reserved(any_url, name, consumers):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    first, second = consumers(any_url, name), consumers(any_url, name)
    one = first.next(first.initial, 10)
    two = second.next(second.initial, 20)
    assert sum(two["rows"]) == 10 and second.owned.abandoned.waiting == 10
    assert sum(share.rows for share in first.plan(first.initial, one)) == 10
    change_owner(any_url, name, one["consumer"], dead)
    assert second.owned.abandoned.release() == 0 and second.owned.abandoned.waiting == 0, "its batch was started"


def test_it_looks_again_while_others_may_be_abandoned(any_url, name, consumers, monkeypatch):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    first, second = consumers(any_url, name), consumers(any_url, name)
    one = first.next(first.initial, 10)
    two = second.next(second.initial, 10)
    second.plan(second.initial, two)
    first.owned.lease_renewer.stop()
    change_owner(any_url, name, one["consumer"], dead)
    second.owned.abandoned._look_at = 0.0  # ten seconds later
    three = second.next(two, 10)
    assert sum(three["rows"]) == 10
    assert second.owned.abandoned.waiting == 0 and tries(any_url, name) <= {0}


def test_who_loses_the_compare_and_set_gives_nothing_back(any_url, name, consumers, monkeypatch):
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(10)))
    first = consumers(any_url, name)
    one = first.next(first.initial, 10)
    change_owner(any_url, name, one["consumer"], dead)
    with open_store(any_url) as store:
        set_note = store.set_note

        def late(*args):
            first.owned.ownership.renew()
            return set_note(*args)

        change_owner(any_url, name, one["consumer"], lambda owner: replace(owner, started=owner.started - 1))
        monkeypatch.setattr(Owner, "is_dead", property(lambda _: True))
        monkeypatch.setattr(store, "set_note", late)
        assert AbandonedEpochs(store, name, "other/1").release() == 0
    assert sum(share.rows for share in first.plan(first.initial, one)) == 10


@pytest.mark.parametrize(
    ("tag", "batch"),
    [
        ("etl/a1/3.2/0", ("etl/a1", Batch(3, 2))), ("etl/a1/3/0", ("etl/a1", Batch(3, 0))),
        ("etl/a1/parked/0", ("etl/a1", None)), ("0123abc", ("", None)), ("a/b", ("", None)),
        ("split/etl/a1/3.2/0", ("split/etl/a1", None)), ("a/b/c.d/0", ("a/b", None)),
    ],
)  # fmt: skip
def test_the_batch_of_a_tag(tag, batch):
    assert batch_of_tag(tag) == batch
