"""A driver dies before its first offset is in Spark's log: its epoch is abandoned, and nothing is lost by that."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_queue import FencedError, Queue, open_store
from spark_queue.messages.message import pushes
from spark_queue.options.roles import parse_options
from spark_queue.spark.read import abandoned
from spark_queue.spark.read.abandoned import SHARE_OF_TIME, AbandonedEpochs
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.offsets import batch_of_tag, input_offsets
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.services.owner import OWNER_NOTE, Batch, ConsumerState, Owner, load_consumer_state
from spark_queue.stores.types import queue_note_key
from tests.spark.read.inputs import same

LEAST, EXACTLY = "at-least-once", "exactly-once"


@pytest.fixture
def consumers():
    """Makes consumers of a queue, and closes them."""
    made = []

    def make(url, queue, **options):
        raw = {
            "url": url,
            "queue": queue,
            "numPartitions": "2",
            "waitTimeout": "50ms",
            "maxRecordsPerTrigger": "20",
        } | options
        made.append(Consumer(parse_options(raw, "stream")))
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
            assert note is not None
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
    assert sum(two["rows"]) == 10 and second.owned.abandoned.undecided == 10
    assert sum(share.rows for share in first.plan(first.initial, one)) == 10
    change_owner(any_url, name, one["consumer"], dead)
    assert second.owned.abandoned.release() == 0 and second.owned.abandoned.undecided == 0, "its batch was started"


@pytest.mark.parametrize("later", [True, False])
def test_it_looks_again(any_url, name, consumers, later):
    """Also for what another process reserves after its first look."""
    with Queue(any_url, name) as queue:
        queue.push_many(list(range(20)))
    first, second = consumers(any_url, name), consumers(any_url, name)
    if not later:
        one = first.next(first.initial, 10)
    two = second.next(second.initial, 10)
    second.plan(second.initial, two)
    if later:
        one = first.next(first.initial, 10)
    first.owned.lease_renewer.stop()
    change_owner(any_url, name, one["consumer"], dead)
    second.owned.abandoned._look_at = 0.0  # ten seconds later
    three = second.next(two, 10)
    assert sum(three["rows"]) == 10
    assert tries(any_url, name) <= {0}


def test_looks_take_a_part_of_the_time_only(sqlite_url, name, consumers, monkeypatch):
    with Queue(sqlite_url, name) as queue:
        queue.push_many(list(range(20)))
    one = consumers(sqlite_url, name)
    seconds = iter([100.0, 103.0])
    monkeypatch.setattr(abandoned, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    looks = AbandonedEpochs(one.store, name, "other/1")
    looks.release_when_due()
    assert looks._look_at == 100 + 3 / SHARE_OF_TIME


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


# --- several inputs -------------------------------------------------------------------------------


def change_owners(world, offset, change):
    for ns, queue in world.queues.values():
        with open_store(world.urls[ns]) as store:
            if store.note(queue_note_key(queue, OWNER_NOTE, offset["consumer"])) is None:
                continue
        change_owner(world.urls[ns], queue, offset["consumer"], change)


@pytest.mark.parametrize("delivery", [LEAST, EXACTLY])
@pytest.mark.parametrize("reached", [["a"], ["a", "b"]], ids=["one input", "both"])
def test_the_nth_comes_with_the_nth_after_a_death_in_the_first_reserve(world, delivery, reached):
    for binding in "ab":
        world.push(binding, range(100))
    old, new = (world.reader(delivery=delivery, maxTries="1") for _ in range(2))
    offset = old.initial
    for binding in reached:  # it dies while it reserves, or when it has
        view = input_offsets(offset)[binding]
        old.queues[binding].claim(view, 60 if binding == "a" else 40)
        old.queues[binding].owned.lease_renewer.stop()
    change_owners(world, offset, dead)
    for binding in "ab":
        world.push(binding, range(100, 120))
    start, seen = new.initial, []
    while (end := new.next(start, 50)) != start:
        seen += world.rows(new, new.plan(start, end))
        start = end
    assert seen == same(range(120))
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_inputs_side_by_side_wait_until_another_process_is_known_to_be_dead(small, monkeypatch, caplog):
    for binding in "ab":
        small.push(binding, range(10))
    old, new = small.reader(), small.reader()
    old.queues["a"].claim(input_offsets(old.initial)["a"], 6)
    old.queues["a"].owned.lease_renewer.stop()
    change_owners(small, old.initial, lambda one: replace(one, host="elsewhere"))
    looks = []

    def sleep(_):
        looks.append(1)
        if len(looks) == 3:  # ten seconds without a heartbeat have passed
            change_owners(small, old.initial, silent)

    monkeypatch.setattr(time, "sleep", sleep)
    with caplog.at_level(logging.INFO):
        end = new.next(new.initial, 10)
    assert small.rows(new, new.plan(new.initial, end)) == same(range(10)) and len(looks) == 3
    [reported] = [one.getMessage() for one in caplog.records if "waiting for up to 10 s" in one.getMessage()]
    assert small.queues["a"][1] in reported


def test_a_living_consumer_of_one_input_is_warned_of_once(small, monkeypatch, caplog):
    for binding in "ab":
        small.push(binding, range(10))
    old, new = small.reader(), small.reader()
    old.queues["a"].claim(input_offsets(old.initial)["a"], 6)
    monkeypatch.setattr(time, "sleep", lambda _: old.queues["a"].owned.ownership.renew())
    start = new.initial
    while (end := new.next(start, 2)) != start:
        new.plan(start, end)
        start = end
    reported = [one.getMessage() for one in caplog.records if "n-th message of one input" in one.getMessage()]
    assert len(reported) == 1 and f"{small.queues['a'][1]} (6 held by other consumers)" in reported[0]


@pytest.mark.parametrize("held", [0, 3])
def test_retries_of_one_input_are_in_the_same_warning(world, monkeypatch, caplog, held):
    for binding in "ab":
        world.push(binding, range(10))
    ns, queue = world.queues["a"]
    with open_store(world.urls[ns]) as store:
        store.reserve(queue, "failed/0", 2, lease=60_000)
        store.rollback(queue, "failed/0", delay=3_600_000)
        if held:
            store.reserve(queue, "other/0", held, lease=60_000)
        ns_b, queue_b = world.queues["b"]
        with open_store(world.urls[ns_b]) as other:  # pushed for later, and never tried
            other.push(queue_b, pushes([{"n": 99}], delay=3_600_000))
    new = world.reader()
    start, seen = new.initial, []
    while (end := new.next(start, 2)) != start:
        seen += world.rows(new, new.plan(start, end))
        start = end
    assert len(seen) == 8 - held
    (reported,) = [one.getMessage() for one in caplog.records if "n-th message of one input" in one.getMessage()]
    expected = f"{queue} (3 held by other consumers, 2 retried later)" if held else f"{queue} (2 retried later)"
    assert reported.endswith(f": {expected}"), "the other queue is not named"


def test_a_new_pair_of_queues_causes_no_warning(small, caplog):
    for binding in "ab":
        small.push(binding, range(10))
    new = small.reader()
    new.next(new.initial, 10)
    assert "n-th message of one input" not in caplog.text


@pytest.mark.parametrize("started", ["none", "a"])
def test_a_batch_that_no_task_has_read_goes_back_if_it_is_not_whole(world, started):
    """Its offset is in Spark's log, but it is not started in each of its queues."""
    for binding in "ab":
        world.push(binding, range(10))
    old, new = (world.reader(delivery=EXACTLY) for _ in range(2))
    end = old.next(old.initial, 10)
    if started == "a":
        old.queues["a"].start(input_offsets(end)["a"])
    for one in old.queues.values():
        one.owned.lease_renewer.stop()
    ns, queue = world.queues["b"]
    with open_store(world.urls[ns]) as store:
        tag = store.reservations(queue, end["consumer"])[0].tag
        ids = next(iter(store.peek_reserved(queue, tag))).column("id").to_pylist()
        store.rollback(queue, tag, ids[:2], delay=None, failed=False)  # as the end of its lease does
    change_owners(world, end, dead)
    assert world.rows(new, new.plan(old.initial, end)) == [], "the batch is empty"
    assert world.sizes() == {"a": (10, 0), "b": (10, 0)}
    again = new.next(end, 10)
    assert world.rows(new, new.plan(end, again)) == same(range(10))
